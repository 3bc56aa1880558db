"""`rayka quorum`: the controllers' quorum shown, and its voters added and removed. Kafka: `kafka-metadata-quorum`."""

from typing import TYPE_CHECKING
from uuid import UUID

import click

from rayka.cli.output import Style, print_table, working
from rayka.cli.shared_options import CommandGroup, Target, confirm, target_options, yes_option

if TYPE_CHECKING:
    from rayka.client.admin.admin_results import QuorumInfo, ReplicaState

_TIMEOUT_MS = 15_000
_FAR_BEHIND_MS = 3_000  # so long without a fetch, and a leader would think it gone (A12)
_directory_option = click.option(
    "--directory-id", type=click.UUID, help="Which of its directories; the one that is known otherwise."
)


@click.group(cls=CommandGroup)
def quorum() -> None:
    """Show the controllers' quorum, and change its voters."""


@quorum.command()
@click.option("--replication", is_flag=True, help="Every replica: how far it is, and when it last fetched.")
@target_options
def status(replication: bool, target: Target) -> None:
    """Show the leader, the voters and the observers."""
    with target.admin(default_api_timeout_ms=_TIMEOUT_MS) as admin:
        with working(f"Asking the controllers of {target.name} …"):
            info = admin.describe_quorum()
    show = print_replication if replication else print_summary
    target.report(info.to_dict(), lambda: show(info))


@quorum.group()
def voters() -> None:
    """Change the voters, one at a time."""


@voters.command()
@click.argument("node_id", metavar="NODE", type=int)
@_directory_option
@target_options
def add(node_id: int, directory_id: UUID | None, target: Target) -> None:
    """Make the controller NODE, which follows and has caught up, a voter."""
    with target.admin(default_api_timeout_ms=_TIMEOUT_MS) as admin:
        with working(f"Adding voter {node_id} …"):
            admin.add_raft_voter(node_id, directory_id)
    target.report({"added": node_id}, f"controller {node_id} votes")


@voters.command()
@click.argument("node_id", metavar="NODE", type=int)
@_directory_option
@yes_option
@target_options
def remove(node_id: int, directory_id: UUID | None, is_sure: bool, target: Target) -> None:
    """Take the vote from the controller NODE; it may be dead."""
    confirm(f"this takes the vote from controller {node_id} of cluster {target.name}", is_sure)
    with target.admin(default_api_timeout_ms=_TIMEOUT_MS) as admin:
        with working(f"Removing voter {node_id} …"):
            admin.remove_raft_voter(node_id, directory_id)
    target.report({"removed": node_id}, f"controller {node_id} votes no more")


@quorum.command("remove")
@click.argument("node_ids", metavar="NODE…", nargs=-1, required=True, type=int)
@yes_option
@target_options
def remove_controllers(node_ids: tuple[int, ...], is_sure: bool, target: Target) -> None:
    """Take controllers out for good: their votes one after another, then the nodes and their directories.

    An odd number has to be left. Take them out of the specification, too. What was interrupted is finished by the same
    command.
    """
    from rayka.ids import node_name

    named = ", ".join(map(node_name, node_ids))
    confirm(f"this ends {named} of cluster {target.name} for good", is_sure)
    with working(f"Removing {named} …"):
        target.cluster().remove_controllers(*node_ids)
    target.report({"removed": node_ids}, f"removed {named}; take them out of the specification, too")


def print_summary(info: "QuorumInfo") -> None:
    """Prints the leader, the voters, and the largest lag of a voter."""
    followers = [each for each in info.voters if each.node_id != info.leader_id]
    silent = tuple(each for each in followers if each.lag < 0)
    lag = max((each.lag for each in followers), default=0)
    ago_ms = max((each.last_caught_up_ago_ms for each in followers), default=0)
    largest = f"{lag} records, caught up {_ago(ago_ms)}"
    lines = {
        "leader": info.leader_id,
        "leader epoch": info.leader_epoch,
        "high watermark": info.high_watermark,
        "largest lag of a voter": f"unknown: {_names(silent)} never fetched" if silent else largest,
        "voters": _names(info.voters),
        "observers": _names(info.observers),
    }
    width = max(map(len, lines))
    for key, value in lines.items():
        click.echo(f"{key.ljust(width)}  {value}")


def print_replication(info: "QuorumInfo") -> None:
    """Prints a table of all replicas; those without a recent fetch stand out."""
    rows, styles = [], []
    for status, replicas in (("voter", info.voters), ("observer", info.observers)):
        for each in replicas:
            is_leader = each.node_id == info.leader_id
            rows.append(_row(each, "leader" if is_leader else status))
            is_silent = not 0 <= each.last_fetch_ago_ms <= _FAR_BEHIND_MS and not is_leader
            styles.append(Style.GOOD if is_leader else Style.BAD if is_silent else Style.PLAIN)
    columns = ("node", "status", "log end offset", "lag", "last fetch", "last caught up", "directory id")
    print_table("Replicas", columns, rows, styles)


def _row(replica: "ReplicaState", status: str) -> tuple[object, ...]:
    return (
        replica.node_id,
        status,
        replica.log_end_offset,
        replica.lag,
        "now" if status == "leader" else _ago(replica.last_fetch_ago_ms),
        "now" if status == "leader" else _ago(replica.last_caught_up_ago_ms),
        replica.directory_id,
    )


def _names(replicas: "tuple[ReplicaState, ...]") -> str:
    return ", ".join(str(each.node_id) for each in replicas) or "none"


def _ago(milliseconds: int) -> str:
    return "never" if milliseconds < 0 else f"{milliseconds / 1000:.1f} s ago"
