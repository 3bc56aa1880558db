"""`rayka group`: groups listed, described, deleted, and their offsets reset. Kafka: `kafka-consumer-groups`."""

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rayka.cli.output import Style, counted, parse_moment, print_json, print_table, working
from rayka.cli.shared_options import CommandGroup, Target, confirm, target_options, yes_option
from rayka.errors import UnknownTopicOrPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayka.client.admin.admin import Admin
    from rayka.client.admin.admin_group_results import GroupDescription, GroupOffset, OffsetReset
    from rayka.ids import TopicPartition

_TIMEOUT_MS = 15_000


@click.group(cls=CommandGroup)
def group() -> None:
    """Show groups of consumers, reset their offsets, delete them."""


@group.command("list")
@click.option(
    "--state", "states", multiple=True, metavar="STATE", help="Only these, such as Empty or Stable."
)
@target_options
def list_groups(states: tuple[str, ...], target: Target) -> None:
    """List the groups."""
    with target.admin(default_api_timeout_ms=_TIMEOUT_MS) as admin, working(f"Asking {target.name} …"):
        try:
            found = admin.list_groups(states or None)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--state") from None
    rows = [(each.group_id, each.state.value, each.protocol_type or "-") for each in found]
    show = partial(print_table, f"Groups of {target.name}", ("GROUP", "STATE", "TYPE"), rows)
    target.report([each.to_dict() for each in found], show)


@group.command()
@click.argument("group_id", metavar="GROUP")
@target_options
def describe(group_id: str, target: Target) -> None:
    """Show the members of GROUP, its offsets, and how far it is behind.

    LAG: the records from the committed offset to the end; where nothing is committed, all that the partition has.
    """
    with target.admin(default_api_timeout_ms=_TIMEOUT_MS) as admin, working(f"Asking {target.name} …"):
        found, offsets = admin.describe_group(group_id), admin.group_offsets(group_id)
        uncommitted = _uncommitted(admin, found, offsets)
    plain = {
        **found.to_dict(),
        "offsets": [each.to_dict() for each in offsets],
        "uncommitted": [
            {"topic": tp.topic, "partition": tp.partition, "end_offset": each.end, "lag": each.lag}
            for tp, each in uncommitted.items()
        ],
    }
    target.report(plain, lambda: _print_group(found, offsets, uncommitted))


@group.command()
@click.argument("group_id", metavar="GROUP")
@yes_option
@target_options
def delete(group_id: str, is_sure: bool, target: Target) -> None:
    """Forget GROUP, which has no members any more, and its offsets."""
    confirm(f"this forgets group {group_id} of cluster {target.name} and where it has read up to", is_sure)
    with target.admin(default_api_timeout_ms=_TIMEOUT_MS) as admin:
        admin.delete_group(group_id)
    target.report({"group_id": group_id, "deleted": True}, f"group {group_id} is deleted")


@group.command("reset-offsets")
@click.argument("group_id", metavar="GROUP")
@click.option("--to-earliest", is_flag=True, help="To the beginning of each partition.")
@click.option("--to-latest", is_flag=True, help="To the end of each partition.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset.")
@click.option("--to-time", metavar="TIME", help="To the first record since 2026-01-31T12:00, or since @MS.")
@click.option("--shift-by", type=int, metavar="N", help="So many records further; -N: back.")
@click.option(
    "--topic",
    "-t",
    "scope",
    multiple=True,
    metavar="TOPIC[:P,P]",
    help="Which; all with committed offsets otherwise.",
)
@click.option("--execute", is_flag=True, help="Do it; otherwise it is only shown.")
@target_options
def reset_offsets(group_id: str, scope: tuple[str, ...], execute: bool, target: Target, **aims: Any) -> None:
    """Show what GROUP, which has no members, would read next after a reset; with --execute, do it."""
    aim = _aim(**aims)
    named = [tp for each in scope for tp in _scope_of(each)] or None
    with target.admin(default_api_timeout_ms=_TIMEOUT_MS) as admin, working(f"Asking {target.name} …"):
        resets = admin.reset_group_offsets(group_id, **aim, scope=named, dry_run=not execute)
    if target.as_json:
        print_json({"executed": execute, "offsets": [each.to_dict() for each in resets]})
        return
    _print_resets(group_id, resets)
    if not execute:
        click.echo("nothing was changed; add --execute to do it")


def _aim(
    *, to_earliest: bool, to_latest: bool, to_offset: int | None, to_time: str | None, shift_by: int | None
) -> dict[str, Any]:
    """The one given target, in the form of `Admin.reset_group_offsets`. Raises click.UsageError."""
    aims: list[dict[str, Any]] = []
    aims += [{"to": "earliest"}] if to_earliest else []
    aims += [{"to": "latest"}] if to_latest else []
    aims += [] if to_offset is None else [{"to": to_offset}]
    aims += [] if to_time is None else [{"timestamp": _time(to_time)}]
    aims += [] if shift_by is None else [{"shift_by": shift_by}]
    if len(aims) != 1:
        raise click.UsageError(
            f"expected one of --to-earliest, --to-latest, --to-offset, --to-time and --shift-by, found {len(aims)}"
        )
    return aims[0]


def _time(text: str) -> datetime | int:
    try:
        return parse_moment(text)
    except ValueError:
        raise click.BadParameter(
            f"expected a time since 1970 as 2026-01-31T12:00, or @MS; found {text!r}", param_hint="--to-time"
        ) from None


def _scope_of(text: str) -> "list[str | TopicPartition]":
    """A topic, or some of its partitions. Names of topics have no colon."""
    from rayka.ids import TopicPartition

    name, colon, numbers = text.partition(":")
    if not colon:
        return [name]
    try:
        return [TopicPartition(name, int(each)) for each in numbers.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"expected TOPIC or TOPIC:0,1, found {text!r}", param_hint="--topic"
        ) from None


class _Uncommitted(NamedTuple):
    """The end of a partition of which the group has committed nothing, and its records, which are all lag; None where
    the log is not known.
    """

    end: int | None
    lag: int | None


def _uncommitted(
    admin: "Admin", found: "GroupDescription", offsets: "list[GroupOffset]"
) -> "dict[TopicPartition, _Uncommitted]":
    """The partitions that members read and of which nothing is committed."""
    committed = {each.topic_partition for each in offsets}
    read = sorted({tp for each in found.members for tp in each.assignment if tp not in committed})
    try:
        topics = admin.describe_topics(sorted({tp.topic for tp in read})) if read else []
    except UnknownTopicOrPartition:
        # Deleted since the members were asked for.
        topics = []
    logs = {(topic.name, each.partition): each.leader_log for topic in topics for each in topic.partitions}
    result = {}
    for tp in read:
        log = logs.get((tp.topic, tp.partition))
        known = log and _Uncommitted(log.high_watermark, log.high_watermark - log.log_start_offset)
        result[tp] = known or _Uncommitted(None, None)
    return result


def _print_group(
    found: "GroupDescription",
    offsets: "list[GroupOffset]",
    uncommitted: "Mapping[TopicPartition, _Uncommitted]",
) -> None:
    click.echo(
        f"group {found.group_id}: {found.state.value}, {counted(len(found.members), 'member')}, generation"
        f" {found.generation_id}, assignor {found.protocol_name or '-'}, coordinator {found.coordinator_id}"
    )
    _print_offsets(found, offsets, uncommitted)
    if found.members:
        _print_members(found)


def _print_offsets(
    found: "GroupDescription",
    offsets: "list[GroupOffset]",
    uncommitted: "Mapping[TopicPartition, _Uncommitted]",
) -> None:
    """With the member that reads each partition."""
    readers = {tp: each for each in found.members for tp in each.assignment}
    committed = {each.topic_partition: each for each in offsets}
    rows, styles = [], []
    for tp in sorted({**committed, **readers}):
        offset, reader = committed.get(tp), readers.get(tp)
        end, lag = uncommitted[tp] if offset is None else (offset.end_offset, offset.lag)
        rows.append(
            (
                tp.topic,
                tp.partition,
                "-" if offset is None else offset.offset,
                "-" if end is None else end,
                "-" if lag is None else lag,
                "-" if reader is None else reader.member_id,
            )
        )
        styles.append(Style.NOTE if lag is None else Style.PLAIN)
    columns = ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "MEMBER")
    print_table(f"Offsets of {found.group_id}", columns, rows, styles)


def _print_members(found: "GroupDescription") -> None:
    rows = [
        (each.member_id, each.group_instance_id or "-", each.client_host or "-", len(each.assignment))
        for each in found.members
    ]
    print_table(f"Members of {found.group_id}", ("MEMBER", "INSTANCE", "HOST", "PARTITIONS"), rows)


def _print_resets(group_id: str, resets: "list[OffsetReset]") -> None:
    rows = []
    for each in resets:
        former = "-" if each.former_offset is None else each.former_offset
        rows.append((each.topic_partition.topic, each.topic_partition.partition, former, each.offset))
    print_table(f"Offsets of {group_id}", ("TOPIC", "PARTITION", "OFFSET", "NEW OFFSET"), rows)
