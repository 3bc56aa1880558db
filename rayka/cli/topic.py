"""`rayka topic`: topics created, listed, described and deleted."""

import click

from rayka.cli.options import admin_of, cluster_options, json_option
from rayka.cli.output import print_json, print_table


@click.group()
def topic() -> None:
    """Create, list, describe and delete topics."""


@topic.command()
@click.argument("topic_name", metavar="NAME")
@click.option(
    "--partitions", "-p", type=click.IntRange(min=1), help="How many; the cluster's default otherwise."
)
@click.option(
    "--replication-factor", "-r", type=click.IntRange(min=1), help="The cluster's default otherwise."
)
@click.option(
    "--config", "-c", "configs", multiple=True, metavar="KEY=VALUE", help="A topic's setting, Kafka's name."
)
@cluster_options
def create(
    topic_name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    name: str,
    address: str,
) -> None:
    """Create the topic NAME."""
    values = dict(_key_and_value(each) for each in configs)
    with admin_of(name, address) as admin:
        admin.create_topic(
            topic_name, partitions=partitions, replication_factor=replication_factor, configs=values
        )
    click.echo(f"created topic {topic_name}")


@topic.command("list")
@cluster_options
@json_option
def list_topics(name: str, address: str, as_json: bool) -> None:
    """List the topics' names."""
    with admin_of(name, address) as admin:
        names = admin.list_topics()
    if as_json:
        print_json(names)
        return
    for each in names:
        click.echo(each)


@topic.command()
@click.argument("topic_name", metavar="NAME")
@cluster_options
@json_option
def describe(topic_name: str, name: str, address: str, as_json: bool) -> None:
    """Show a topic's settings, partitions, their leaders and replicas."""
    with admin_of(name, address) as admin:
        description = admin.describe_topic(topic_name)
    if as_json:
        print_json(description)
        return
    settings = "  ".join(f"{key}={value}" for key, value in sorted(description.configs.items()))
    click.echo(f"topic {description.name}  id {description.topic_id}  {settings}\n")
    rows = [
        (each.partition, each.leader_id, each.leader_epoch, _ids(each.replicas), _ids(each.isr))
        for each in description.partitions
    ]
    print_table("Partitions", ("partition", "leader", "epoch", "replicas", "isr"), rows)


@topic.command()
@click.argument("topic_name", metavar="NAME")
@cluster_options
def delete(topic_name: str, name: str, address: str) -> None:
    """Delete the topic NAME with all its records."""
    with admin_of(name, address) as admin:
        admin.delete_topic(topic_name)
    click.echo(f"deleted topic {topic_name}")


def _key_and_value(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"expected KEY=VALUE, found {text!r}", param_hint="--config")
    return key, value


def _ids(node_ids: tuple[int, ...]) -> str:
    return ",".join(str(node_id) for node_id in node_ids)
