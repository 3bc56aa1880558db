"""`rayka broker`: brokers listed, described, configured, emptied and removed.

Kafka: `kafka-log-dirs`, `kafka-configs`, the `log_dirs` of `kafka-reassign-partitions`.
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click

from rayka.cli import catch_up
from rayka.cli.load_tables import print_broker_loads, print_configs
from rayka.cli.output import Count, Style, counted, ids, print_json, print_table, size, working
from rayka.cli.partition_commands import parse_partition, print_plan
from rayka.cli.shared_options import (
    CommandGroup,
    Target,
    changes_of,
    config_options,
    confirm,
    dry_run_option,
    is_dry_run,
    target_options,
    wait_options,
    yes_option,
)
from rayka.errors import NoReassignmentInProgress

if TYPE_CHECKING:
    from rayka.client.admin.admin import Admin
    from rayka.client.admin.admin_load_results import BalanceMoveInfo, BalancePlan, BalanceStatus
    from rayka.client.admin.admin_partition_results import BrokerLogDirs
    from rayka.client.admin.admin_results import BrokerDescription


_STYLES = {"active": Style.PLAIN, "fenced": Style.BAD, "shutting-down": Style.NOTE}
_GOOD = {False: "ok", True: "cordoned"}
_broker_argument = click.argument("broker_id", metavar="BROKER", type=int)


@click.group(cls=CommandGroup)
def broker() -> None:
    """List, describe, configure, drain and remove brokers and coordinators."""


@broker.command("list")
@target_options
def list_brokers(target: Target) -> None:
    """List the registered brokers and coordinators: state, rack, how many replicas they have and lead."""
    with target.admin() as admin:
        found = admin.describe_cluster()
        unsure = [each.node_id for each in found.brokers if each.offline_data_dirs]
        disks = admin.log_dirs(unsure, topics=()) if unsure and not target.as_json else []
    target.report(found.to_dict()["brokers"], lambda: print_brokers(found.brokers, disks))


@broker.command()
@_broker_argument
@target_options
def describe(broker_id: int, target: Target) -> None:
    """Show the broker BROKER, its data directories, and what is in them."""
    with target.admin() as admin:
        (disks,) = admin.log_dirs([broker_id])
        found = next(each for each in admin.describe_cluster().brokers if each.node_id == broker_id)
    target.report({**asdict(found), **disks.to_dict()}, lambda: print_broker(found, disks))


@broker.command()
@target_options
def load(target: Target) -> None:
    """Show what every broker has to do: processor, bytes in and out a second, disk."""
    with target.admin() as admin:
        found = admin.describe_load()
    target.report(found.to_dict()["brokers"], lambda: print_broker_loads(found.brokers))


@broker.command()
@_broker_argument
@click.option(
    "--cancel", "is_cancelled", is_flag=True, help="End the drain; the broker takes replicas again."
)
@wait_options
@dry_run_option
@target_options
def drain(
    broker_id: int, is_cancelled: bool, is_waiting: bool, timeout_s: float | None, target: Target
) -> None:
    """Move every replica off the broker BROKER, so that it can be removed.

    The cluster goes on with that, whatever becomes of this command.
    """
    if is_cancelled:
        with target.admin() as admin:
            was_there = admin.cancel_drain(broker_id)
        said = (
            "its drain is cancelled, partitions on their way go back"
            if was_there
            else "no drain is under way"
        )
        target.report({"broker": broker_id, "is_cancelled": was_there}, f"broker {broker_id}: {said}")
        return
    with target.admin() as admin:
        if is_dry_run():
            print_plan(admin.drain_broker(broker_id, dry_run=True), admin.describe_topics(), target.as_json)
            return
        plan = admin.drain_broker(broker_id)
        if is_waiting and plan:
            catch_up.wait_until_moved(admin, plan, timeout_s=timeout_s)
    is_empty = is_waiting or not plan
    moved = [{"topic": tp.topic, "partition": tp.partition, "replicas": to} for tp, to in plan.items()]
    end = f"`rayka broker remove {broker_id}` ends it for good"
    said = f"broker {broker_id} holds no replica; {end}"
    if not is_empty:
        moving = f"moving {counted(len(plan), 'replica')} off broker {broker_id}"
        said = f"{moving}; {end} when none is listed by `rayka partition reassignments`"
    target.report({"broker": broker_id, "is_empty": is_empty, "moved": moved}, said)


@broker.command()
@_broker_argument
@click.argument("path", metavar="DIRECTORY")
@click.argument("names", metavar="TOPIC-PARTITION…", nargs=-1, required=True)
@target_options
def move(broker_id: int, path: str, names: tuple[str, ...], target: Target) -> None:
    """Move replicas of the broker BROKER to another data directory of its own, while they serve.

    rayka broker move 1 /mnt/disk2/rayka/broker-1 flights-0 flights-3
    """
    replicas = {parse_partition(each): path for each in names}
    with target.admin() as admin:
        admin.alter_replica_log_dirs(broker_id, replicas)
    target.report(
        {"broker": broker_id, "directory": path, "moving": [str(each) for each in replicas]},
        f"moving {counted(len(replicas), 'replica')} to {path}; `rayka broker describe {broker_id}` shows how far"
        " they are",
    )


@broker.command()
@_broker_argument
@yes_option
@target_options
def remove(broker_id: int, is_sure: bool, target: Target) -> None:
    """End the broker BROKER, which was drained, for good.

    It is stopped and forgotten, and its directories are removed. Take it out of the spec's file, too: `rayka start`
    adds what is declared there.
    """

    confirm(
        f"this ends broker {broker_id} of cluster {target.name} for good and removes its directories", is_sure
    )
    with working(f"Removing broker {broker_id} …"):
        target.cluster().remove_broker(broker_id)
    rest = "take it out of the spec's file, or the next `rayka start` adds it again"
    target.report({"removed": broker_id}, f"broker {broker_id} is removed; {rest}")


@broker.command()
@_broker_argument
@target_options
def unregister(broker_id: int, target: Target) -> None:
    """Forget the broker BROKER, which no spec has any more; `remove` does so, too."""
    with target.admin() as admin:
        admin.unregister_broker(broker_id)
    target.report({"unregistered": broker_id}, f"broker {broker_id} is forgotten")


@broker.group()
def config() -> None:
    """Show and alter settings of brokers that run."""


@config.command("describe")
@click.argument("broker_name", metavar="BROKER|all")
@click.option("--all", "is_all", is_flag=True, help="Defaults too.")
@target_options
def describe_config(broker_name: str, is_all: bool, target: Target) -> None:
    """Show what was set for the broker BROKER, or for all of them."""
    chosen = _broker(broker_name)
    with target.admin() as admin:
        values = list(admin.describe_configs(broker=chosen).values())
    values = [each for each in values if is_all or not each.is_default]
    said = partial(print_configs, values) if values else "nothing is set; --all shows the defaults"
    target.report([each.to_dict() for each in values], said)


@config.command("alter")
@click.argument("broker_name", metavar="BROKER|all")
@config_options
@target_options
def alter_config(
    broker_name: str, configs: tuple[str, ...], deleted: tuple[str, ...], target: Target
) -> None:
    """Change settings of the broker BROKER, or of all of them, while they run; all together or none."""
    chosen, changes = _broker(broker_name), changes_of(configs, deleted)
    with target.admin() as admin:
        admin.alter_configs(changes, broker=chosen)
    target.report(changes, f"altered {'all brokers' if broker_name == 'all' else f'broker {broker_name}'}")


def print_brokers(brokers: "Sequence[BrokerDescription]", disks: "Sequence[BrokerLogDirs]") -> None:
    """Prints a table of brokers. `disks`: brokers' reports of directories that the controller counts as offline,
    because only the broker knows which of them are full.
    """
    full = {(each.broker_id, own.path) for each in disks for own in each.directories if own.is_full}
    rows = [_row(each, {path for broker_id, path in full if broker_id == each.node_id}) for each in brokers]
    columns = ("broker", "roles", "state", "host", "rack", "replicas", "leaders", "data")
    print_table("Brokers", columns, rows, [_STYLES[each.state] for each in brokers])


def print_broker(found: "BrokerDescription", disks: "BrokerLogDirs") -> None:
    """Prints the cluster's view of a broker, and the broker's view of its disks."""
    click.echo(
        f"broker {found.node_id}  {found.state}  host {found.host}  rack {found.rack or 'none'}  "
        f"epoch {found.broker_epoch}  replicas {found.replica_count}  leaders {found.leader_count}"
    )
    if disks.error:
        click.echo(f"its disks are not known: {disks.error}")
        return
    rows = [
        (
            each.path,
            size(each.size_bytes),
            size(each.free_bytes),
            each.replica_count,
            each.error or _GOOD[each.is_cordoned],
        )
        for each in disks.directories
    ]
    styles = [Style.BAD if each.error else Style.PLAIN for each in disks.directories]
    click.echo()
    print_table("Data directories", ("path", "size", "free", "replicas", "state"), rows, styles)
    moves = [
        (f"{log.topic}-{log.partition}", each.path, size(log.size_bytes), Count(log.offset_lag))
        for each in disks.directories
        for log in each.replicas
        if log.is_future
    ]
    if moves:
        click.echo()
        print_table("Moves", ("replica", "to", "copied", "lag"), moves)


def _row(found: "BrokerDescription", full: Collection[str]) -> tuple[object, ...]:
    said = {**dict.fromkeys(found.offline_data_dirs, " (offline)"), **dict.fromkeys(full, " (not writable)")}
    paths = ", ".join(f"{each}{said.get(each, '')}" for each in found.data_dirs)
    counts = Count(found.replica_count), Count(found.leader_count)
    roles = ", ".join(found.roles)
    return found.node_id, roles, found.state, found.host, found.rack, *counts, paths


def _broker(text: str) -> int | str:
    if text != "all" and not text.isdecimal():
        raise click.BadParameter(f"expected a broker's id, or `all`, found {text!r}", param_hint="BROKER")
    return text if text == "all" else int(text)


# `rayka balance`: replicas and leaders moved so that every broker has its share. Kafka has Cruise Control for that.
#
# The cluster carries the balance out, whether the command waits or not.


_MOVES_SHOWN = 20
_GOES_ON = (
    "the balance goes on in the cluster; `rayka balance` follows it again, `rayka balance --cancel` ends it"
)


@click.command()
@click.option(
    "--moves",
    type=click.IntRange(1, 100),
    help="How many partitions may move at once.  [default: balancer.moves.max]",
)
@click.option("--cancel", "is_cancelled", is_flag=True, help="End the balance that is under way.")
@wait_options
@dry_run_option
@target_options
def balance(
    moves: int | None, is_cancelled: bool, is_waiting: bool, timeout_s: float | None, target: Target
) -> None:
    """Move replicas and leaders so that every broker has its share: of racks, of bytes, of leaders, of traffic.

    The cluster does it, a few partitions at a time; Ctrl-C ends the waiting only. While a balance is under way, also
    one that began by itself, the command follows that.
    """
    with target.admin() as admin:
        if is_dry_run():
            print_balance(admin.balance(dry_run=True), target.as_json)
            return
        if is_cancelled:
            was_there = admin.cancel_balance()
            done = "the balance is cancelled" if was_there else "no balance is under way"
            target.report({"cancelled": was_there}, done)
            return
        plan = admin.balance(moves=moves)
        if is_waiting and (plan.moves or plan.is_joined):
            status = follow(admin, len(plan.moves), timeout_s=timeout_s)
        else:
            status = admin.describe_balance()
    moved = f"moved {counted(status.moved_count, 'partition')}; every broker has its share"
    if status.is_under_way:
        moved = f"{counted(status.planned_count - status.moved_count, 'partition')} to move; {_GOES_ON}"
    target.report(status.to_dict(), moved if plan.moves or plan.is_joined else "nothing to move")


def follow(admin: "Admin", planned_count: int, *, timeout_s: float | None = None) -> "BalanceStatus":
    """Waits for the end of the balance; returns its last status.

    Raises RequestTimedOut after `timeout_s`, and NoReassignmentInProgress when another caller cancelled the balance or
    no controller knows it any more.
    """
    status = catch_up.follow(
        admin.describe_balance, _progress, planned_count, goes_on=_GOES_ON, timeout_s=timeout_s
    )
    if status.state != "ended":
        why = status.reason or "the controller changed, and the next one does not know of it"
        raise NoReassignmentInProgress(f"the balance did not come to its end: {why}; see `rayka events`")
    return status


def _progress(status: "BalanceStatus") -> catch_up.Progress:
    waits = f", waits: {status.waits_for}" if status.waits_for else ""
    doing = f"{status.under_way_count} on their way, {size(status.moved_bytes)} copied{waits}"
    late = "the balance did not end" if status.is_under_way else ""
    return catch_up.Progress(status.moved_count, doing, late)


def print_balance(plan: "BalancePlan", as_json: bool) -> None:
    """Prints the plan, and the brokers' shares before and after it, in tables of at most 80 columns for short names."""
    if as_json:
        print_json({"dry_run": True, **plan.to_dict()})
        return
    if plan.moves:
        rows = [_move_cells(each) for each in plan.moves[:_MOVES_SHOWN]]
        print_table("Moves", ("partition", "replicas", "new replicas", "copied", "for"), rows)
        if len(plan.moves) > _MOVES_SHOWN:
            click.echo(f"and {len(plan.moves) - _MOVES_SHOWN} more; --json has all")
        click.echo()
    shares = [
        (was.broker_id, size(was.size_bytes), size(then.size_bytes), Count(was.replica_count),
         Count(then.replica_count), Count(was.leader_count), Count(then.leader_count))
        for was, then in zip(plan.before, plan.after, strict=True)
    ]  # fmt: skip
    columns = ("broker", "size", "then", "replicas", "then", "leaders", "then")
    print_table("Brokers before and after", columns, shares)
    copied = size(sum(each.copied_bytes for each in plan.moves))
    more = "" if plan.is_whole else ", and more after these"
    click.echo(
        f"would move {counted(len(plan.moves), 'partition')}, copying {copied}{more}; nothing was changed"
    )


def _move_cells(move: "BalanceMoveInfo") -> tuple[object, ...]:
    name = f"{move.topic}-{move.partition}"
    return name, ids(move.replicas), ids(move.new_replicas), size(move.copied_bytes), move.goal
