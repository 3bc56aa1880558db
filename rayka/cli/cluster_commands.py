"""`rayka start`, `stop` and `status`, and the Ray that `start` leaves running when there was none."""

from contextlib import suppress
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rayka.cli.output import Style, ids, local_time, print_json, print_table, say_progress, size, working
from rayka.cli.shared_options import (
    Target,
    cluster_options,
    confirm,
    dry_run_option,
    force_option,
    is_dry_run,
    json_option,
    quiet_option,
    target_options,
    yes_option,
)
from rayka.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rayka.actors.cluster_description import ClusterDescription, NodeDescription
    from rayka.actors.rolling_restart import RestartStep
    from rayka.actors.scaling_planner import ScalingStatus
    from rayka.cluster import Cluster
    from rayka.config.cluster_config import ClusterSpec


DEFAULT_SPEC = "cluster.yaml"
_STATE_STYLES = {
    "running": Style.GOOD,
    "degraded": Style.BAD,
    "failed": Style.BAD,
    "unreachable": Style.BAD,
}


@click.command()
@click.argument("spec_path", metavar="[SPEC]", required=False, type=click.Path(path_type=Path))
@click.option("--cluster", "name", help="The cluster's name, instead of the spec's.")
@click.option("--address", metavar="HOST:PORT", help="The Ray to use, instead of the spec's.")
@click.option(
    "--replace",
    multiple=True,
    metavar="ID[:PATH]",
    help="A node to bring back on an empty disk, or one data directory of a broker that has several.",
)
@force_option
@yes_option
@dry_run_option
@quiet_option
@json_option
def start(
    spec_path: Path | None,
    name: str | None,
    address: str | None,
    replace: tuple[str, ...],
    force: bool,
    is_sure: bool,
    as_json: bool,
) -> None:
    """Start the cluster that SPEC declares (default: ./cluster.yaml, or one broker and one controller).

    Data that is there already comes back. Where no Ray runs, one is started that stays until `rayka stop`. A cluster
    that runs gets the nodes that SPEC has more; other settings take effect by a restart of one node after another. A
    node whose machine or disk is lost is brought back empty while the others run; a controller then has no vote until
    `rayka quorum voters` gives it one.
    """
    from rayka.actors.formatting import replaced_directories
    from rayka.cli.restart_command import announce, plain_change
    from rayka.cluster import Cluster

    spec = _spec(spec_path, name, address)
    replaced = replaced_directories(spec, replace)
    if is_dry_run():
        print_start_plan(spec, replaced, as_json)
        return
    if replace:
        paths = ", ".join(path for each in replaced.values() for path in each)
        confirm(f"this brings back {_named(spec, tuple(replaced))} on an empty disk: {paths}", is_sure)
    if not as_json:
        say_progress()
    with working(f"Starting cluster {spec.name} …"):
        has_started_ray = ensure_ray(spec.ray.address, spec)
        try:
            if not (as_json or replace):
                announce(spec)
            report = None if as_json else _print_restarted
            cluster = Cluster.start(spec, replace=replace, force=force, on_restarted=report)
            description = cluster.describe()
        except BaseException:
            if has_started_ray:
                end_ray(unless_used_by_others_than=spec.name)
            raise
    if as_json:
        changed = {"added_brokers": cluster.added_brokers, **plain_change(cluster.change)}
        print_json({**asdict(description), **changed})
        return
    print_description(description)
    if cluster.added_brokers:
        print_added(cluster.added_brokers)
    if cluster.change and cluster.change.new_voters:
        click.echo(f"\nGave a vote to {_named(spec, cluster.change.new_voters)}.")
    print_vote_commands(cluster, spec, tuple(replaced))
    click.echo(f"\nUse it:   rayka.Producer(cluster={spec.name!r})")
    click.echo(f"          rayka topic create NAME --cluster {spec.name}")
    click.echo(f"Stop it:  rayka stop --cluster {spec.name}")


@click.command()
@cluster_options
@click.option("--delete-data", is_flag=True, help="Delete all its topics and records, too.")
@yes_option
@json_option
def stop(name: str, address: str, delete_data: bool, is_sure: bool, as_json: bool) -> None:
    """Stop a cluster under control. Its data stays; the Ray that `rayka start` started ends with its last cluster."""
    from rayka.cluster import Cluster

    if delete_data:
        confirm(f"this stops cluster {name} and deletes all its topics and records", is_sure)
    if not as_json:
        say_progress()
    with working(f"Stopping cluster {name} …"):
        try:
            Cluster.connect(name, address=address).stop(delete_data=delete_data)
        finally:
            has_ended_ray = end_idle_ray()
    if as_json:
        print_json({"stopped": name, "is_data_deleted": delete_data, "has_ended_ray": has_ended_ray})
        return
    data = "its data is deleted" if delete_data else "its data stays"
    click.echo(f"stopped cluster {name}; {data}" + ("; ended the Ray that ran it" if has_ended_ray else ""))


@click.command()
@target_options
def status(target: Target) -> int:
    """Show a cluster's nodes.

    The exit code is 0 only if all of them run, with all their directories. A broker that serves without one is
    `degraded`.
    """

    with working(f"Asking cluster {target.name} …"):
        description = target.cluster().describe()
    target.report(description, lambda: print_description(description))
    return 0 if description.is_running else 1


def print_added(node_ids: tuple[int, ...]) -> None:
    """Prints which nodes a running cluster got, and what they will hold."""
    from rayka.ids import Role, role_of

    coordinators = [each for each in node_ids if role_of(each) is Role.COORDINATOR]
    brokers = [each for each in node_ids if each not in coordinators]
    if brokers:
        names, gets, pronoun = (
            ("broker", "it gets its", "it") if len(brokers) == 1 else ("brokers", "they get their", "them")
        )
        click.echo(
            f"\nAdded {names} {ids(brokers)} to the running cluster. New topics use {pronoun}; {gets} share of what "
            "there is within minutes (`balancer.enable`), or at once by `rayka balance`."
        )
    if coordinators:
        names = "coordinator" if len(coordinators) == 1 else "coordinators"
        click.echo(
            f"\nAdded {names} {ids(coordinators)} to the running cluster. Groups move there by themselves."
        )


def print_vote_commands(cluster: "Cluster", spec: "ClusterSpec", replaced: tuple[int, ...]) -> None:
    """Prints how the replaced controllers, which are observers now, get their votes. A vote of the lost disk, where the
    quorum still counts it, has to be removed first.
    """
    from rayka.client.admin.admin import Admin
    from rayka.ids import Role

    voted = cluster.change.new_voters if cluster.change else ()
    controllers = [each for each in replaced if Role.CONTROLLER in spec.roles[each] and each not in voted]
    if not controllers:
        return
    with Admin(cluster=cluster) as admin:
        voters = {each.node_id for each in admin.describe_quorum().voters}
    options = f" --cluster {spec.name}" + (
        "" if spec.ray.address == "auto" else f" --address {spec.ray.address}"
    )
    click.echo(f"\nController {ids(controllers)} has no vote yet. To give it one:")
    for each in controllers:
        if each in voters:
            click.echo(f"          rayka quorum voters remove {each}{options}")
        click.echo(f"          rayka quorum voters add {each}{options}")


def ensure_ray(address: str, spec: "ClusterSpec") -> bool:
    """Connects this process to Ray; with `auto` and none there, starts one that outlives it, has room for the nodes of
    the spec, and is remembered.

    Returns whether it started one: then `end_ray` ends it.
    """
    import ray

    from rayka.actors import ray_process
    from rayka.actors.node_placement import cpus_of_nodes
    from rayka.actors.ray_connection import connect, usable

    with ray_process.locked():
        ray_process.sweep()
        has_none = not ray.is_initialized() and not usable(address)
        if has_none:
            ray_process.remember(ray_process.start(cpus_of_nodes(spec)))
    try:
        connect(address)
    except BaseException:
        if has_none:
            end_ray()
        raise
    return has_none


def end_ray(*, unless_used_by_others_than: str = "") -> None:
    """Ends the remembered Ray, and this process's connection to it; nothing when there is none, or where a cluster of
    another name has started on it since.
    """
    import ray

    from rayka.actors import ray_process
    from rayka.actors.names import running_clusters
    from rayka.errors import UnavailableError

    if unless_used_by_others_than and ray.is_initialized():
        # A Ray that does not answer is of no use to other clusters.
        with suppress(UnavailableError):
            if set(running_clusters()) - {unless_used_by_others_than}:
                return
    process = ray_process.remembered()
    ray.shutdown()
    if process is not None:
        process.stop()
    ray_process.forget()


def end_idle_ray() -> bool:
    """Ends the remembered Ray if this process is connected to it and no cluster is left there; returns whether so."""
    import ray

    from rayka.actors import ray_process
    from rayka.actors.names import running_clusters
    from rayka.actors.ray_connection import current_address

    ray_process.sweep()
    process = ray_process.remembered()
    if (
        process is None
        or not ray.is_initialized()
        or current_address() != process.address
        or running_clusters()
    ):
        return False
    end_ray()
    return True


def print_description(description: "ClusterDescription") -> None:
    """Prints a table of a cluster's nodes, at most 80 columns wide for names of usual lengths, then a line of any
    length for each node with its data directories and its problem.
    """
    click.echo(f"cluster {description.name}  id {description.cluster_id or 'unknown'}")
    click.echo(
        f"Ray {description.ray_address}  topics {description.topic_count}  "
        f"partitions {description.partition_count}"
    )
    click.echo(f"active controller {describe_leader(description)}")
    if description.scaling is not None:
        click.echo(describe_scaling("brokers", description.scaling))
    if description.coordinator_scaling is not None:
        click.echo(describe_scaling("coordinators", description.coordinator_scaling))
    click.echo()
    nodes = description.nodes
    rows = [
        (
            each.actor_name,
            each.state,
            describe_role(each),
            "-" if each.pid is None else each.pid,
            size(each.size_bytes),
        )
        for each in nodes
    ]
    styles = [_STATE_STYLES.get(each.state, Style.NOTE) for each in nodes]
    print_table("Nodes", ("node", "state", "quorum", "pid", "size"), rows, styles)
    click.echo()
    for each in nodes:
        if each.data_dirs:
            click.echo(describe_place(each))
        if each.detail:
            click.echo(f"{each.actor_name} is {each.state}{_since(each)}: {each.detail}")
        if each.drained_until_ms >= 0:
            click.echo(f"{each.actor_name} is on a machine that Ray drains{_until(each)}")


def print_start_plan(spec: "ClusterSpec", replaced: "Mapping[int, Collection[str]]", as_json: bool) -> None:
    """Prints the plan of a start: the nodes that run, if a Ray runs, the nodes to start, and their data directories."""
    import ray

    from rayka.actors.cluster_actors import ask_ray
    from rayka.actors.names import actor_name, node_directories, running_node_ids
    from rayka.actors.ray_connection import connect, usable
    from rayka.cli.restart_command import plain_change, print_change
    from rayka.cluster import Cluster

    has_ray = ray.is_initialized() or bool(usable(spec.ray.address))
    address = connect(spec.ray.address) if has_ray else ""
    running = ask_ray(running_node_ids, spec.name) if has_ray else ()
    change = Cluster(spec.name, address).plan_change(spec) if running and not replaced else None
    rows = []
    for node_id in spec.roles:
        paths = node_directories(spec, node_id)
        is_whole = set(paths) <= set(replaced.get(node_id, ()))
        action = "start on an empty disk" if is_whole else "start"
        directories = ", ".join(
            f"{each} (empty)" if each in replaced.get(node_id, ()) and not is_whole else each
            for each in paths
        )
        rows.append(
            (actor_name(spec.name, node_id), "none, it runs" if node_id in running else action, directories)
        )
    columns = ("node", "action", "data")
    if as_json:
        nodes = [dict(zip(columns, row, strict=True)) for row in rows]
        plan = {"dry_run": True, "cluster": spec.name, "ray_address": address or None, "nodes": nodes}
        print_json({**plan, **plain_change(change)})
        return
    click.echo(f"would use the Ray at {address}" if has_ray else "no Ray runs: would start one")
    print_table("Plan", columns, rows)
    if change:
        print_change(change)
    click.echo("nothing was changed")


def describe_scaling(what: str, scaling: "ScalingStatus") -> str:
    """`brokers 3, desired 4 (3 to 12): broker 4 waits for a Ray node`."""
    return f"{what} {scaling.actual}, desired {scaling.desired} ({scaling.min} to {scaling.max}): {scaling.reason}"


def describe_leader(description: "ClusterDescription") -> str:
    """`3001, epoch 7`, or a note that there is no leader."""
    if description.controller_id < 0:
        return "none: topics cannot change until a majority of the controllers is back"
    return f"{description.controller_id}, epoch {description.leader_epoch}"


def describe_role(node: "NodeDescription") -> str:
    """`leader`, or the role in the quorum with the lag behind the leader; empty for a broker."""
    if node.quorum_role in ("", "leader"):
        return node.quorum_role
    return f"{node.quorum_role}, {node.lag} behind" if node.lag >= 0 else f"{node.quorum_role}, not heard of"


def describe_place(node: "NodeDescription") -> str:
    """`rayka/broker-1 on 10.0.0.2 (rack b): /data/a, /data/b (offline)`; the last known place of a silent node."""
    said = {
        **dict.fromkeys(node.offline_data_dirs, " (offline)"),
        **dict.fromkeys(node.full_data_dirs, " (not writable)"),  # offline too, to the controller
    }
    paths = [f"{each}{said.get(each, '')}" for each in node.data_dirs]
    place = f"{'was ' if node.state == 'unreachable' else ''}on {node.host or 'an unknown machine'}"
    rack = f" (rack {node.rack})" if node.rack not in ("", node.host) else ""
    return f"{node.actor_name} {place}{rack}: {', '.join(paths)}"


def _since(node: "NodeDescription") -> str:
    return f" since {local_time(node.gone_since_ms)}" if node.gone_since_ms else ""


def _until(node: "NodeDescription") -> str:
    return f" until {local_time(node.drained_until_ms)}" if node.drained_until_ms else ""


def _print_restarted(step: "RestartStep") -> None:
    click.echo(f"{step.actor_name} is back")


def _named(spec: "ClusterSpec", node_ids: tuple[int, ...]) -> str:
    from rayka.ids import node_name

    return f"{', '.join(map(node_name, node_ids))} of cluster {spec.name}"


def _spec(path: Path | None, name: str | None, address: str | None) -> "ClusterSpec":
    from rayka.config.cluster_config import ClusterSpec

    if path is None and Path(DEFAULT_SPEC).exists():
        path = Path(DEFAULT_SPEC)
    spec = ClusterSpec.load(path) if path is not None else ClusterSpec()
    values = spec.model_dump(exclude_unset=True)
    if name is not None:
        values["name"] = name
    if address is not None:
        values["ray"] = {"address": address}
    return ClusterSpec.of(values, what="the command line")


# `rayka init`: a cluster specification to start from. The template is the `cluster.yaml` beside this file.


@click.command()
@click.argument(
    "path", metavar="[FILE]", required=False, default="cluster.yaml", type=click.Path(path_type=Path)
)
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@json_option
def init(path: Path, force: bool, as_json: bool) -> None:
    """Write a commented cluster specification to FILE (default: ./cluster.yaml), for `rayka start`."""
    text = files("rayka.cli").joinpath("cluster.yaml").read_text()
    try:
        with path.open("w" if force else "x") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists; --force overwrites it") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    if as_json:
        print_json({"path": str(path)})
        return
    click.echo(f"wrote {path}; edit it, then start the cluster: rayka start {path}")
