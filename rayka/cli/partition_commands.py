"""`rayka partition`: other replicas, other leaders. Kafka: `kafka-reassign-partitions`, `kafka-leader-election`."""

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import click

from rayka.cli.output import Style, counted, ids, print_json, print_table
from rayka.cli.shared_options import (
    CommandGroup,
    Target,
    confirm,
    dry_run_option,
    is_dry_run,
    target_options,
    wait_options,
    yes_option,
)
from rayka.errors import InvalidReplicaAssignment, UnknownTopicOrPartition
from rayka.ids import Role, TopicPartition

if TYPE_CHECKING:
    from rayka.client.admin.admin import Admin
    from rayka.client.admin.admin_partition_results import ElectionOutcome, PartitionReassignment
    from rayka.client.admin.admin_partitions import Plan
    from rayka.client.admin.admin_results import BrokerDescription, TopicDescription


# Parsing of replicas from arguments and Kafka's reassignment file. Pure.


_ANY_DIRECTORY = "any"
_ID_MAX = 2**31 - 1  # of partitions and of brokers


def parse_replicas(texts: Sequence[str], topic: str) -> "Plan":
    """`0:1,2,3`: the replicas of partition 0, the preferred leader first. Raises InvalidReplicaAssignment."""
    plan: Plan = {}
    for text in texts:
        number, separator, listed = text.partition(":")
        brokers = listed.split(",")
        if not separator or not all(map(_is_number, (number, *(each.strip() for each in brokers)))):
            raise InvalidReplicaAssignment(
                f"--replicas: expected PARTITION:BROKER,BROKER, such as 0:1,2,3, found {text!r}"
            )
        _add(plan, TopicPartition(topic, int(number)), tuple(int(each) for each in brokers))
    return plan


def check_brokers(plan: "Plan", brokers: "Iterable[BrokerDescription]") -> None:
    """Raises InvalidReplicaAssignment for an unknown broker, a repeated one, or no broker, like the controller."""
    from rayka.client.admin.admin_arguments import replicas_of

    for_users = sorted(each.node_id for each in brokers if Role.BROKER in each.roles)
    for topic_partition, replicas in plan.items():
        unknown = sorted(set(replicas_of(replicas, str(topic_partition))) - set(for_users))
        if unknown:
            raise InvalidReplicaAssignment(
                f"{topic_partition}: {unknown} are no brokers of this cluster; expected some of {for_users}"
            )


def parse_partition(text: str) -> TopicPartition:
    """`orders-3`: partition 3 of that topic. Raises InvalidReplicaAssignment."""
    topic, _, number = text.rpartition("-")
    if not topic or not _is_number(number):
        raise InvalidReplicaAssignment(f"expected TOPIC-PARTITION, such as flights-0, found {text!r}")
    return TopicPartition(topic, int(number))


def parse_json(text: str, source: str) -> "Plan":
    """Kafka's file: `{"version": 1, "partitions": [{"topic": ..., "partition": ..., "replicas": [...]}]}`.

    Raises InvalidReplicaAssignment naming the source.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidReplicaAssignment(f"{source}: not JSON: {error}") from None
    partitions = found.get("partitions") if isinstance(found, dict) else None
    if not isinstance(partitions, list) or found.get("version", 1) != 1:
        raise InvalidReplicaAssignment(
            f'{source}: expected {{"version": 1, "partitions": [...]}}, as kafka-reassign-partitions takes it'
        )
    plan: Plan = {}
    for number, each in enumerate(partitions):
        _add(plan, *_entry(each, f"{source}, partitions[{number}]"))
    return plan


def _entry(entry: Any, where: str) -> tuple[TopicPartition, tuple[int, ...]]:
    given: dict[str, Any] = entry if isinstance(entry, dict) else {}
    topic, partition, replicas = given.get("topic"), given.get("partition"), given.get("replicas")
    if not isinstance(topic, str) or not _is_id(partition) or not _is_ids(replicas):
        raise InvalidReplicaAssignment(
            f'{where}: expected {{"topic": "t", "partition": 0, "replicas": [1, 2, 3]}}, found {entry!r}'
        )
    if any(each != _ANY_DIRECTORY for each in given.get("log_dirs") or ()):
        raise InvalidReplicaAssignment(f"{where}: expected no log_dirs, or 'any': brokers choose directories")
    return TopicPartition(topic, partition), tuple(replicas)


def _add(plan: "Plan", topic_partition: TopicPartition, replicas: tuple[int, ...]) -> None:
    if topic_partition in plan:
        raise InvalidReplicaAssignment(f"{topic_partition} is given twice; keep one")
    plan[topic_partition] = replicas


def _is_number(text: str) -> bool:
    return text.isdecimal() and int(text) <= _ID_MAX


def _is_id(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _ID_MAX


def _is_ids(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(_is_id(each) for each in value)


_topic_option = click.option("--topic", "-t", "topic_name", metavar="NAME", help="Of which topic.")
_partition_option = click.option(
    "--partition",
    "-p",
    "numbers",
    multiple=True,
    type=click.IntRange(0, 2**31 - 1),
    help="Of the topic only this one; may be given often.",
)


@click.group(cls=CommandGroup)
def partition() -> None:
    """Give partitions other replicas or another leader."""


@partition.command()
@_topic_option
@click.option(
    "--replicas",
    multiple=True,
    metavar="PARTITION:BROKER,BROKER,…",
    help="The brokers that partition is to be on, the preferred leader first; may be given often.",
)
@click.option(
    "--from-json",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="As kafka-reassign-partitions takes it.",
)
@wait_options
@dry_run_option
@target_options
def reassign(
    topic_name: str | None,
    replicas: tuple[str, ...],
    file: Path | None,
    is_waiting: bool,
    timeout_s: float | None,
    target: Target,
) -> None:
    """Give partitions other replicas. The old ones serve until the new ones are in sync; then they go.

    rayka partition reassign --topic flights --replicas 0:1,2,3 --replicas 1:2,3,1
    """
    from rayka.cli import catch_up

    plan = _plan(topic_name, replicas, file)
    with target.admin() as admin:
        if is_dry_run():
            check_brokers(plan, admin.describe_cluster().brokers)
            print_plan(plan, admin.describe_topics(sorted({each.topic for each in plan})), target.as_json)
            return
        catch_up.move(admin, plan, is_waiting=is_waiting, timeout_s=timeout_s)
    _report("reassigned" if is_waiting else "reassigning", list(plan), target)


@partition.command()
@_topic_option
@target_options
def cancel(topic_name: str | None, target: Target) -> None:
    """Cancel the reassignments under way, of the topic or of all: the replicas are again what they were."""
    with target.admin() as admin:
        cancelled = cancel_all(admin, topic_name)
    _report("cancelled the reassignment of", cancelled, target)


@partition.command()
@_topic_option
@target_options
def reassignments(topic_name: str | None, target: Target) -> None:
    """Show the reassignments under way."""
    with target.admin() as admin:
        found = reassignments_of(admin, topic_name)
    rows = [
        (each.topic_partition, ids(each.replicas), ids(each.adding_replicas), ids(each.removing_replicas))
        for each in found
    ]
    show = partial(print_table, "Reassignments", ("partition", "replicas", "adding", "removing"), rows)
    target.report([each.to_dict() for each in found], show if found else "no reassignment is under way")


@partition.command("elect-leaders")
@_topic_option
@_partition_option
@click.option("--all", "is_all", is_flag=True, help="Of all topics.")
@click.option(
    "--unclean", is_flag=True, help="Any live replica, where nobody leads: loses what it does not have."
)
@yes_option
@target_options
def elect_leaders(
    topic_name: str | None,
    numbers: tuple[int, ...],
    is_all: bool,
    unclean: bool,
    is_sure: bool,
    target: Target,
) -> int:
    """Make the preferred replica, the first one, the leader. The exit code is 0 only if every one leads then."""
    if (topic_name is None) != is_all or (is_all and numbers):
        raise click.UsageError("give --topic, with --partition or without, or --all")
    if unclean:
        where = "all topics" if topic_name is None else f"topic {topic_name}"
        confirm(f"this loses records in partitions of {where} that only unreachable replicas have", is_sure)
    with target.admin() as admin:
        chosen = None if topic_name is None else _partitions(admin, topic_name, numbers)
        outcomes = admin.elect_leaders(chosen, unclean=unclean)
    said = partial(print_outcomes, outcomes) if outcomes else "every partition has its preferred leader"
    target.report([each.to_dict() for each in outcomes], said)
    return 0 if all(each.error is None or each.is_needless for each in outcomes) else 1


def reassignments_of(admin: "Admin", topic_name: str | None) -> "list[PartitionReassignment]":
    """The reassignments under way, of one topic or of all. Raises UnknownTopicOrPartition."""
    found = admin.list_partition_reassignments()
    if topic_name is None:
        return found
    of_topic = [each for each in found if each.topic_partition.topic == topic_name]
    if not of_topic:
        admin.describe_topic(topic_name)  # a name that is wrong is no topic at rest
    return of_topic


def cancel_all(admin: "Admin", topic_name: str | None) -> list[TopicPartition]:
    """Cancels the reassignments under way, of one topic or of all; returns whose. Raises UnknownTopicOrPartition."""
    found = [each.topic_partition for each in reassignments_of(admin, topic_name)]
    if found:
        admin.alter_partition_reassignments(dict.fromkeys(found))
    return found


def print_plan(plan: "Plan", topics: "Sequence[TopicDescription]", as_json: bool) -> None:
    """Prints the planned replicas beside today's. Raises UnknownTopicOrPartition."""
    replicas = {
        TopicPartition(topic.name, each.partition): each.replicas
        for topic in topics
        for each in topic.partitions
    }
    unknown = [each for each in plan if each not in replicas]
    if unknown:
        raise UnknownTopicOrPartition(f"there is no partition {unknown[0]}; see `rayka topic describe`")
    if as_json:
        moves = [
            {"topic": tp.topic, "partition": tp.partition, "replicas": replicas[tp], "new_replicas": then}
            for tp, then in plan.items()
        ]
        print_json({"dry_run": True, "moves": moves})
        return
    if plan:
        rows = [(tp, ids(replicas[tp]), ids(then)) for tp, then in plan.items()]
        print_table("Plan", ("partition", "replicas", "new replicas"), rows)
    click.echo(f"would reassign {counted(len(plan), 'partition')}; nothing was changed")


def print_outcomes(outcomes: "list[ElectionOutcome]") -> None:
    """Prints a table of elections; failed ones stand out."""
    rows = [
        (
            each.topic_partition,
            "elected" if each.error is None else "led already" if each.is_needless else str(each.error),
        )
        for each in outcomes
    ]
    styles = [
        Style.GOOD if each.error is None else Style.PLAIN if each.is_needless else Style.BAD
        for each in outcomes
    ]
    print_table("Elections", ("partition", "outcome"), rows, styles)


def _plan(topic_name: str | None, replicas: tuple[str, ...], file: Path | None) -> "Plan":
    if file is not None:
        if replicas or topic_name:
            raise click.UsageError("give either --from-json, or --topic and --replicas")
        try:
            return parse_json(file.read_text(), str(file))
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"{file}: {error}; expected a reassignment in JSON") from None
    if topic_name is None or not replicas:
        raise click.UsageError("give --topic and --replicas, or --from-json")
    return parse_replicas(replicas, topic_name)


def _partitions(admin: "Admin", topic_name: str, numbers: tuple[int, ...]) -> list[TopicPartition]:
    chosen = numbers or range(len(admin.describe_topic(topic_name).partitions))
    return [TopicPartition(topic_name, each) for each in chosen]


def _report(done: str, partitions: list[TopicPartition], target: Target) -> None:
    listed = [{"topic": each.topic, "partition": each.partition} for each in partitions]
    target.report({done.partition(" ")[0]: listed}, f"{done} {counted(len(partitions), 'partition')}")
