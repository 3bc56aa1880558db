"""`rayka events`: changes of the cluster and its own decisions, with causes. `rayka logs`: the logs of a node's
current and previous process, on whatever Ray node they are.
"""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from rayka.cli.output import local_time, print_json
from rayka.cli.shared_options import Target, cluster_options, target_options
from rayka.errors import ClusterNotFound, ConfigError, UnavailableError
from rayka.protocol.events import EVENTS_MAX

if TYPE_CHECKING:
    from rayka.actors.node_logs import LogFile
    from rayka.client.admin.admin_load_results import EventInfo


_LOOK_EVERY_S = 1.0


@click.command()
@click.option(
    "--count",
    "-n",
    type=click.IntRange(1, EVENTS_MAX),
    default=100,
    show_default=True,
    help="How many of the newest events.",
)
@click.option(
    "--follow", "-f", "is_following", is_flag=True, help="Stay, and print what happens from now on."
)
@target_options
def events(count: int, is_following: bool, target: Target) -> None:
    """Print what happened to the cluster and what it decided by itself, with causes: the newest events last.

    Among them are processes that ended, brokers that were fenced, disks that failed, fail-overs, lost machines, drains
    and removals, healing, balancing and scaling. With --follow and --json each event is a line.
    """
    with target.admin() as admin:
        found = admin.events(count=count)
        if target.as_json and not is_following:
            print_json([each.to_dict() for each in found])
            return
        print_events(found, target.as_json)
        last = found[-1].number if found else None
        while is_following:
            time.sleep(_LOOK_EVERY_S)
            found = admin.events(since=last)
            print_events(found, target.as_json)
            last = found[-1].number if found else last


def print_events(events: "Sequence[EventInfo]", as_json: bool) -> None:
    """Prints a line for each event."""
    for each in events:
        if as_json:
            click.echo(json.dumps(each.to_dict()))
        else:
            about = ", ".join(each.subjects)
            click.echo(f"{local_time(each.timestamp_ms)}  {each.kind:<16}  {about}  {each.reason}")


# ---- rayka logs ----

SUPERVISOR = "supervisor"


@click.command()
@click.argument("node", metavar="NODE")
@click.option(
    "--follow", "-f", "is_following", is_flag=True, help="Stay, and print what is logged from now on."
)
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="How many of the last lines.",
)
@cluster_options
def logs(node: str, is_following: bool, lines: int, name: str, address: str) -> None:
    """Print what NODE logged last: a node's id or name (3, broker-3), or `supervisor`.

    After a restart the last lines of the process before come first. A line on stderr names each file.
    """
    from rayka.actors.node_logs import find_logs, follow, last_lines
    from rayka.actors.ray_connection import connect

    connect(address)
    actor = log_owner(name, node)
    try:
        files = find_logs(actor)
    except UnavailableError:
        _refuse_unknown(name, actor, address)
        raise
    found, position = last_lines(files, lines)
    _print(found)
    if is_following:
        for line in follow(actor, files[-1], position):
            click.echo(line)


def log_owner(cluster_name: str, node: str) -> str:
    """The actor's name, `rayka/broker-3`, from `3`, `broker-3` or `rayka/broker-3`. Raises ConfigError."""
    from rayka.actors.names import actor_name, supervisor_name
    from rayka.ids import node_name

    given = node.removeprefix(f"{cluster_name}/")
    if given == SUPERVISOR:
        return supervisor_name(cluster_name)
    number = given.rpartition("-")[2]
    if not (number.isascii() and number.isdigit()) or given not in (number, node_name(int(number))):
        raise ConfigError(
            f"NODE: expected a node's id or name, as 3 or broker-3, or supervisor, found {node!r}"
        )
    return actor_name(cluster_name, int(number))


def _refuse_unknown(cluster_name: str, actor: str, address: str) -> None:
    """Raises ConfigError, naming the nodes, if the cluster runs and has no node of this actor."""
    from rayka.actors.names import supervisor_name
    from rayka.cluster import Cluster

    with suppress(ClusterNotFound):
        nodes = Cluster.connect(cluster_name, address=address).describe().nodes
        if actor not in (supervisor_name(cluster_name), *(each.actor_name for each in nodes)):
            number = actor.rpartition("-")[2]
            raise ConfigError(f"no node {number}; there are {', '.join(str(each.node_id) for each in nodes)}")


def _print(lines: "Sequence[tuple[LogFile, str]]") -> None:
    """Prints each line; prints a file's path on stderr before its first line."""
    shown = None
    for file, line in lines:
        if file != shown:
            click.echo(f"==> {file.path} <==", err=True)
            shown = file
        click.echo(line)
