"""`rayka restart`: nodes of a running cluster restarted, one after another."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from rayka.cli.output import counted, ids, print_json, print_table, working
from rayka.cli.shared_options import (
    Target,
    confirm,
    dry_run_option,
    force_option,
    is_dry_run,
    target_options,
    yes_option,
)

if TYPE_CHECKING:
    from rayka.actors.rolling_restart import RestartStep
    from rayka.actors.spec_changes import SpecChange
    from rayka.config.cluster_config import ClusterSpec


@click.command()
@click.argument("node_ids", metavar="[NODE]…", nargs=-1, type=int)
@click.option("--rolling", "is_rolling", is_flag=True, help="All nodes, one after another.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop when a node has not caught up so long after its stop.",
)
@force_option
@yes_option
@dry_run_option
@target_options
def restart(
    node_ids: tuple[int, ...],
    is_rolling: bool,
    timeout_s: float,
    force: bool,
    is_sure: bool,
    target: Target,
) -> None:
    """Restart nodes of a running cluster, each when the one before has caught up.

    A node hands over what it leads before it stops. Brokers come first, the active controller last. When one does not
    come back, the others are left as they are. Nothing is restarted where a partition would have fewer replicas in sync
    than min.insync.replicas, without --force.
    """
    if bool(node_ids) == is_rolling:
        raise click.UsageError("expected ids of nodes, or --rolling for all of them, and not both")
    from rayka.actors.rolling_restart import refuse_below_min_isr

    cluster = target.cluster()
    plan = cluster.plan_restart(*node_ids)
    if is_dry_run():
        print_restart_plan(plan, target.as_json)
        return
    if not force:
        refuse_below_min_isr(plan)
    confirm(f"this restarts {_named(plan)} of cluster {target.name}{_warning(plan)}", is_sure)
    done: list[int] = []

    def on_restarted(step: "RestartStep") -> None:
        done.append(step.node_id)
        if not target.as_json:
            click.echo(f"{step.actor_name} is back ({len(done)} of {len(plan)})")

    with working(f"Restarting {_named(plan)} …"):
        cluster.restart(*node_ids, timeout_s=timeout_s, force=force, on_restarted=on_restarted)
    if target.as_json:
        print_json({"restarted": done})


def print_restart_plan(plan: "Sequence[RestartStep]", as_json: bool) -> None:
    """Prints the nodes in their order, and the loss of service while each restarts."""
    if as_json:
        print_json({"dry_run": True, "steps": plain_steps(plan)})
        return
    print_steps("Plan", plan)
    click.echo("nothing was changed")


def print_steps(title: str, plan: "Sequence[RestartStep]") -> None:
    """Prints a table of nodes and the loss of service while each restarts."""
    rows = [(each.actor_name, _away(each) or "nothing") for each in plan]
    print_table(title, ("node", "away meanwhile"), rows)


def plain_steps(plan: "Sequence[RestartStep]") -> list[dict[str, Any]]:
    """The same, fit for JSON."""
    return [asdict(each) for each in plan]


def _away(step: "RestartStep") -> str:
    """The loss of service while the node restarts; empty if there is none."""
    alone, few = len(step.only_copies), len(step.below_min_isr) - len(step.only_copies)
    away = [
        f"{counted(alone, 'partition')} without another replica in sync" if alone else "",
        f"writes to {counted(few, 'partition')} below min.insync.replicas" if few > 0 else "",
        "changes of topics" if step.is_only_voter else "",
    ]
    return ", ".join(filter(None, away))


def _warning(plan: "Sequence[RestartStep]") -> str:
    away = [f"{_away(each)} (with {each.actor_name})" for each in plan if _away(each)]
    return f"; away meanwhile: {', '.join(away)}" if away else ""


def _named(plan: "Sequence[RestartStep]") -> str:
    return ", ".join(each.actor_name for each in plan)


# What a start changes of a cluster that runs, for people and for programs.


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
