"""`rayka balance`: replicas and leaders moved so that every broker has its share. Kafka has Cruise Control for that."""

import time
from itertools import islice
from typing import TYPE_CHECKING

import click

from rayka.cli import catch_up
from rayka.cli.output import Count, counted, ids, print_json, print_table, size
from rayka.cli.shared_options import Target, dry_run_option, is_dry_run, target_options
from rayka.errors import InvalidRequest
from rayka.ids import TopicPartition

if TYPE_CHECKING:
    from rayka.client.admin.admin import Admin
    from rayka.client.admin.admin_load_results import BalanceMoveInfo, BalancePlan
    from rayka.client.admin.drain_plan import Plan

_MOVES_SHOWN = 20


@click.command()
@click.option(
    "--moves",
    type=click.IntRange(1, 100),
    default=10,
    show_default=True,
    help="How many partitions may move at once.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Go on no longer than this.",
)
@dry_run_option
@target_options
def balance(moves: int, timeout_s: float | None, target: Target) -> None:
    """Move replicas and leaders so that every broker has its share: of racks, of bytes, of leaders, of traffic.

    One plan, a few partitions at a time. Ctrl-C begins no more of them; those under way end in the
    cluster, or `rayka partition cancel` cancels them.
    """
    with target.admin() as admin:
        if is_dry_run():
            print_balance(admin.balance(dry_run=True), target.as_json)
            return
        moved = carry_out(admin, moves=moves, timeout_s=timeout_s)
    listed = [{"topic": tp.topic, "partition": tp.partition, "replicas": to} for tp, to in moved.items()]
    done = (
        f"moved {counted(len(moved), 'partition')}; every broker has its share"
        if moved
        else "nothing to move"
    )
    target.report({"moved": listed}, done)


def carry_out(admin: "Admin", *, moves: int = 10, timeout_s: float | None = None) -> "Plan":
    """Makes one plan and carries it out, so many moves at a time; the partitions that have moved, with their replicas.

    Raises what `Admin.balance` does, RequestTimedOut after `timeout_s`, NoReassignmentInProgress when another caller
    cancelled or changed a move, and InvalidRequest when another caller has begun one: then no more begin.
    """
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    plan = admin.balance(moves=moves)
    targets = {TopicPartition(each.topic, each.partition): each.new_replicas for each in plan.moves}
    moved: Plan = {}
    batch = plan.begun
    while batch:
        left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
        catch_up.wait_until_moved(admin, batch, timeout_s=left_s)
        admin.elect_leaders(list(batch))  # each has an outcome of its own; most lead already
        moved |= batch
        batch = dict(islice(((tp, to) for tp, to in targets.items() if tp not in moved), moves))
        if batch:
            _check_alone(admin)
            admin.alter_partition_reassignments(batch)
    return moved


def _check_alone(admin: "Admin") -> None:
    others = admin.list_partition_reassignments()
    if others:
        raise InvalidRequest(
            f"another reassignment has begun, of {others[0].topic_partition}; no more moves begin; `rayka balance` goes"
            " on when it is over"
        )


def print_balance(plan: "BalancePlan", as_json: bool) -> None:
    """The plan, and what brokers hold before and after, in tables of at most 80 columns for short names."""
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
