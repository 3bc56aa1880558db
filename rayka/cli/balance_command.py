"""`rayka balance`: replicas and leaders moved so that every broker has its share. Kafka has Cruise Control for that.

The cluster carries the balance out, whether the command waits or not.
"""

from typing import TYPE_CHECKING

import click

from rayka.cli import catch_up
from rayka.cli.output import Count, counted, ids, print_json, print_table, size
from rayka.cli.shared_options import Target, dry_run_option, is_dry_run, target_options, wait_options
from rayka.errors import NoReassignmentInProgress

if TYPE_CHECKING:
    from rayka.client.admin.admin import Admin
    from rayka.client.admin.admin_load_results import BalanceMoveInfo, BalancePlan, BalanceStatus

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
    """Returns what came of the balance when it has ended.

    Raises RequestTimedOut after `timeout_s`, and NoReassignmentInProgress when another caller cancelled it or the
    controller that knew of it has gone.
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
