"""What a start changes of a cluster that runs, for people and for programs."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from rayka.cli.output import ids, print_table
from rayka.cli.restart_command import plain_steps, print_steps

if TYPE_CHECKING:
    from rayka.actors.spec_changes import SpecChange
    from rayka.config.cluster_config import ClusterSpec


def announce(spec: "ClusterSpec") -> None:
    """Prints what a start with this spec is about to change, where the cluster runs and all of its nodes answer."""
    from rayka.actors.cluster_actors import ask_ray
    from rayka.actors.names import running_node_ids
    from rayka.actors.ray_connection import current_address
    from rayka.cluster import Cluster
    from rayka.errors import UnavailableError

    if not ask_ray(running_node_ids, spec.name):
        return
    with suppress(UnavailableError):  # the start brings nodes back first, or says why not
        print_change(Cluster(spec.name, current_address()).plan_change(spec))


def print_change(change: "SpecChange") -> None:
    """The settings that change, the votes, and the nodes that restart for the settings, in their order."""
    if change.settings:
        rows = [(each.key, each.before, each.after) for each in change.settings]
        print_table("Settings", ("key", "now", "then"), rows)
    if change.new_voters:
        click.echo(f"votes, one after another: {ids(change.new_voters)}")
    if change.restarts:
        print_steps("Restarts, one after another", change.restarts)
    elif change.settings:
        click.echo("no node restarts for them")


def plain_change(change: "SpecChange | None") -> dict[str, Any]:
    """The same, fit for JSON."""
    if change is None:
        return {"settings": [], "new_voters": [], "restarts": []}
    return {
        "settings": [{"key": each.key, "now": each.before, "then": each.after} for each in change.settings],
        "new_voters": list(change.new_voters),
        "restarts": plain_steps(change.restarts),
    }
