"""`rayka topic`: topics created, listed, described, altered and deleted. Kafka: `kafka-topics`, `kafka-configs`,
`kafka-delete-records`.
"""

from functools import partial
from typing import TYPE_CHECKING

import click

from rayka.cli.load_tables import print_configs, print_partition_loads
from rayka.cli.output import Count, Style, ids, local_time, print_json, print_table, size
from rayka.cli.shared_options import (
    CommandGroup,
    Target,
    changes_of,
    config_options,
    confirm,
    keys_and_values,
    target_options,
    yes_option,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayka.client.admin.admin_partition_results import LastRetentionInfo, LogCleaningInfo, ReplicaLogInfo
    from rayka.client.admin.admin_results import PartitionDescription, TopicDescription


# What `rayka topic describe` shows of the logs of a topic: how large and how old they are, and what was done last.


_LOG_COLUMNS = (
    "partition",
    "offsets",
    "records",
    "size",
    "segments",
    "oldest record",
    "dirty",
    "last compaction",
    "last retention",
)
_UNKNOWN = "unknown"


def print_logs(partitions: "Sequence[PartitionDescription]") -> None:
    """Prints a table of the leaders' logs; the logs of a broker that did not answer are unknown."""
    rows = [(each.partition, *_cells(each.leader_log)) for each in partitions]
    styles = [Style.NOTE if each.leader_log is None else Style.PLAIN for each in partitions]
    print_table("Logs of the leaders", _LOG_COLUMNS, rows, styles)


def compaction_problems(topic_name: str, partitions: "Sequence[PartitionDescription]") -> list[str]:
    """The reasons why replicas cannot be compacted, one line each."""
    return [
        f"{topic_name}-{each.partition} grows on broker {node_id}: {log.cleaning.problem}"
        for each in partitions
        for node_id, log in zip(each.replicas, each.logs, strict=False)
        if log is not None and log.cleaning is not None and log.cleaning.problem
    ]


def _cells(log: "ReplicaLogInfo | None") -> tuple[object, ...]:
    if log is None:
        return (_UNKNOWN,) * (len(_LOG_COLUMNS) - 1)
    return (
        f"{log.log_start_offset}-{log.high_watermark}",
        Count(log.high_watermark - log.log_start_offset),
        size(log.size_bytes),
        Count(log.segment_count),
        "none" if log.oldest_timestamp_ms < 0 else local_time(log.oldest_timestamp_ms),
        *_cleaning_cells(log.cleaning),
        _retention_cell(log.retention),
    )


def _cleaning_cells(cleaning: "LogCleaningInfo | None") -> tuple[str, str]:
    if cleaning is None:
        return "-", "-"
    last = cleaning.last
    if last is None:
        return f"{cleaning.dirty_ratio:.0%}", "none"
    done = f"{local_time(last.timestamp_ms)}, {size(last.input_bytes)} to {size(last.output_bytes)}"
    return f"{cleaning.dirty_ratio:.0%}", done


def _retention_cell(last: "LastRetentionInfo | None") -> str:
    return (
        "none" if last is None else f"{local_time(last.timestamp_ms)}, {size(last.size_bytes)} ({last.cause})"
    )


_COLUMNS = ("partition", "leader", "epoch", "replicas", "isr", "elr", "lag", "state")
_END = -1  # Kafka's way to say: the high watermark
_OFFSET_MAX = 2**63 - 1
_name_argument = click.argument("topic_name", metavar="NAME")


@click.group(cls=CommandGroup)
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


@topic.command()
@_name_argument
@click.option(
    "--partitions", "-p", type=click.IntRange(min=1), help="How many; the cluster's default otherwise."
)
@click.option(
    "--replication-factor", "-r", type=click.IntRange(min=1), help="The cluster's default otherwise."
)
@click.option(
    "--config", "-c", "configs", multiple=True, metavar="KEY=VALUE", help="A topic's setting, Kafka's name."
)
@click.option(
    "--if-not-exists", is_flag=True, help="Leave one that exists as it is; a warning says where it differs."
)
@target_options
def create(
    topic_name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    target: Target,
) -> None:
    """Create the topic NAME."""
    values = keys_and_values(configs)
    with target.admin() as admin:
        created = admin.create_topic(
            topic_name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=values,
            if_not_exists=if_not_exists,
        )
    target.report(
        created.to_dict(), f"topic {topic_name} exists" if if_not_exists else f"created topic {topic_name}"
    )


@topic.command()
@click.argument("topic_names", metavar="[NAME]…", nargs=-1)
@target_options
def load(topic_names: tuple[str, ...], target: Target) -> None:
    """Show the partitions that take most of their brokers, of the topics NAME or of all."""
    with target.admin() as admin:
        found = admin.describe_load(topic_names or None)
    nothing = "no broker has reported a partition with records; brokers report every few seconds"
    said = partial(print_partition_loads, found.partitions) if found.partitions else nothing
    target.report(found.to_dict()["partitions"], said)


@topic.command("list")
@target_options
def list_topics(target: Target) -> None:
    """List the topics' names."""
    with target.admin() as admin:
        names = admin.list_topics()
    if target.as_json:
        print_json(names)
        return
    for each in names:
        click.echo(each)


@topic.command()
@click.argument("topic_name", metavar="[NAME]", required=False)
@click.option("--under-replicated", is_flag=True, help="Only partitions with a replica that is not in sync.")
@click.option(
    "--configs", "shows_configs", is_flag=True, help="The settings in force, and where each is from."
)
@target_options
def describe(topic_name: str | None, under_replicated: bool, shows_configs: bool, target: Target) -> None:
    """Show a topic's settings and partitions, or those of all topics: leader, replicas, how far each is, and its log.

    lag: the records that each replica is behind its leader; ? where the broker does not answer. elr: replicas that are
    not in sync, but hold all that was acknowledged. offsets: the first one, and the one after the last that is
    committed; records: how many offsets these are, fewer records where compaction took some. dirty: of the bytes that
    compaction could go through, the share that it has not seen; last compaction, last retention: since the leader
    started.
    """
    if shows_configs:
        _describe_configs(topic_name, target)
        return
    with target.admin() as admin:
        topics = admin.describe_topics(None if topic_name is None else [topic_name])
        (named,) = topics if topic_name is not None else (None,)
    if under_replicated:
        topics = [each for each in topics if any(one.is_under_replicated for one in each.partitions)]
    if target.as_json:
        plain = [each.to_dict() for each in (topics if named is None else [named])]
        for found in plain if under_replicated else ():
            found["partitions"] = [one for one in found["partitions"] if one["is_under_replicated"]]
        print_json(plain if named is None else plain[0])
        return
    if under_replicated and not topics:
        click.echo("every partition has all its replicas in sync")
    for number, each in enumerate(topics):
        click.echo("\n" * (number > 0) + _title(each))
        shown = [one for one in each.partitions if one.is_under_replicated or not under_replicated]
        print_partitions(shown)
        click.echo()
        print_logs(shown)
        for line in (*remedies(each), *compaction_problems(each.name, shown)):
            click.echo(line)


def _describe_configs(topic_name: str | None, target: Target) -> None:
    with target.admin() as admin:
        names = admin.list_topics() if topic_name is None else [topic_name]
        found = {each: list(admin.describe_configs(topic=each).values()) for each in names}
    plain = {name: [each.to_dict() for each in values] for name, values in found.items()}
    if target.as_json:
        print_json(plain if topic_name is None else plain[topic_name])
        return
    for number, (name, values) in enumerate(found.items()):
        click.echo("\n" * (number > 0) + f"topic {name}")
        print_configs(values)


@topic.command()
@_name_argument
@config_options
@target_options
def alter(topic_name: str, configs: tuple[str, ...], deleted: tuple[str, ...], target: Target) -> None:
    """Change settings of the topic NAME, all together or none."""
    changes = changes_of(configs, deleted)
    with target.admin() as admin:
        admin.alter_configs(changes, topic=topic_name)
        now = admin.describe_topic(topic_name).configs if target.as_json else {}
    target.report(now, f"altered topic {topic_name}")


@topic.command("add-partitions")
@_name_argument
@click.argument("total", metavar="TOTAL", type=click.IntRange(min=1))
@target_options
def add_partitions(topic_name: str, total: int, target: Target) -> None:
    """Add partitions, so that the topic NAME has TOTAL of them. Keys go to other partitions from then on."""
    with target.admin() as admin:
        described = admin.create_partitions(topic_name, total)
    target.report(described.to_dict(), f"topic {topic_name} has {total} partitions")


@topic.command("delete-records")
@_name_argument
@click.option(
    "--before", required=True, metavar="OFFSET", help="Records below it go; `end`: all committed ones."
)
@click.option(
    "--partition", "-p", "numbers", multiple=True, type=click.IntRange(min=0), help="Which; all otherwise."
)
@yes_option
@target_options
def delete_records(
    topic_name: str, before: str, numbers: tuple[int, ...], is_sure: bool, target: Target
) -> None:
    """Delete the oldest records of the topic NAME. They cannot be brought back."""
    from rayka.ids import TopicPartition

    offset = _offset(before)
    which = "all committed records" if offset == _END else f"the records below offset {offset}"
    where = f"partition {ids(numbers)}" if numbers else "all partitions"
    confirm(f"this deletes {which} in {where} of topic {topic_name} of cluster {target.name}", is_sure)
    with target.admin() as admin:
        chosen = numbers or range(len(admin.describe_topic(topic_name).partitions))
        found = admin.delete_records({TopicPartition(topic_name, each): offset for each in chosen})
    rows = [(tp.partition, low_watermark) for tp, low_watermark in found.items()]
    target.report(
        [{"partition": number, "low_watermark": low} for number, low in rows],
        lambda: print_table("First offsets", ("partition", "first offset"), rows),
    )


@topic.command()
@_name_argument
@yes_option
@target_options
def delete(topic_name: str, is_sure: bool, target: Target) -> None:
    """Delete the topic NAME with all its records."""
    confirm(f"this deletes topic {topic_name} of cluster {target.name} with all its records", is_sure)
    with target.admin() as admin:
        admin.delete_topic(topic_name)
    target.report({"deleted": topic_name}, f"deleted topic {topic_name}")


def print_partitions(partitions: "list[PartitionDescription]") -> None:
    """Prints a table of partitions; unhealthy ones stand out."""
    rows = [
        (
            each.partition,
            each.leader_id if not each.is_offline else "none",
            each.leader_epoch,
            ids(each.replicas),
            ids(each.isr),
            ids(each.eligible_leader_replicas),
            _lags(each),
            _state(each),
        )
        for each in partitions
    ]
    styles = [
        Style.BAD if each.is_offline else Style.NOTE if _state(each) else Style.PLAIN for each in partitions
    ]
    print_table("Partitions", _COLUMNS, rows, styles)


def remedies(description: "TopicDescription") -> list[str]:
    """A line for each partition without a leader: the replicas it waits for, and how to go on without them."""
    return [
        f"{description.name}-{each.partition} is offline until {_awaited(each)} runs again with its disk. What only "
        f"that has is lost with: rayka partition elect-leaders --topic {description.name} "
        f"--partition {each.partition} --unclean"
        for each in description.partitions
        if each.is_offline
    ]


def _awaited(partition: "PartitionDescription") -> str:
    whole = partition.isr or partition.eligible_leader_replicas
    return f"broker {' or '.join(str(each) for each in whole)}" if whole else "the broker that led it last"


def _title(description: "TopicDescription") -> str:
    settings = "  ".join(f"{key}={value}" for key, value in sorted(description.configs.items()))
    return f"topic {description.name}  id {description.topic_id}  {settings}".rstrip() + "\n"


def _lags(partition: "PartitionDescription") -> str:
    """`2:0 3:15 1:?`, but for the leader."""
    known = zip(partition.replicas, partition.lags, strict=True)
    return " ".join(
        f"{node_id}:{'?' if lag is None else lag}" for node_id, lag in known if node_id != partition.leader_id
    )


def _state(partition: "PartitionDescription") -> str:
    moves = [f"+{each}" for each in partition.adding_replicas]
    moves += [f"-{each}" for each in partition.removing_replicas]
    states = [
        "offline" * partition.is_offline,
        "under-replicated" * partition.is_under_replicated,
        f"reassigning {' '.join(moves)}" if moves else "",
        f"disk full on {ids(partition.full_replicas)}" if partition.full_replicas else "",
        f"disk failed on {ids(partition.offline_replicas)}" if partition.offline_replicas else "",
    ]
    return ", ".join(each for each in states if each)


def _offset(text: str) -> int:
    if text == "end":
        return _END
    if not text.isdecimal() or int(text) > _OFFSET_MAX:
        raise click.BadParameter(f"expected an offset, or `end`, found {text!r}", param_hint="--before")
    return int(text)
