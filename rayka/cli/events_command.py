"""`rayka events`: what happened to the cluster and what it decided by itself, with causes."""

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rayka.cli.moments import local_time
from rayka.cli.output import print_json
from rayka.cli.shared_options import Target, target_options
from rayka.protocol.events import EVENTS_MAX

if TYPE_CHECKING:
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
    """A line for each."""
    for each in events:
        if as_json:
            click.echo(json.dumps(each.to_dict()))
        else:
            about = ", ".join(each.subjects)
            click.echo(f"{local_time(each.timestamp_ms)}  {each.kind:<16}  {about}  {each.reason}")
