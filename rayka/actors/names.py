"""The names of actors, `<cluster>/<role>-<node id>` in the Ray namespace `rayka`, and the directories of nodes."""

import os
import time
from typing import Any

import ray

from rayka.actors.ray_head import check_head
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import NetworkException, RayEnded, UnavailableError
from rayka.ids import Role, holds_partitions, node_name, role_of
from rayka.node.settings import combined_controller_directory

NAMESPACE = "rayka"
_GONE_TIMEOUT_S = 15.0
_POLL_S = 0.02


def actor_name(cluster_name: str, node_id: int) -> str:
    """Returns the name of a node's actor, such as `rayka/broker-1`."""
    return f"{cluster_name}/{node_name(node_id)}"


def supervisor_name(cluster_name: str) -> str:
    """Returns the name of the supervisor's actor, such as `rayka/supervisor`."""
    return f"{cluster_name}/supervisor"


def start_lock_name(cluster_name: str) -> str:
    """Returns the name of the lock, such as `rayka/start`. The holder of the lock may start the cluster."""
    return f"{cluster_name}/start"


def named(name: str) -> Any | None:
    """Returns the handle of rayka's actor of that name; None if there is none."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def await_gone(name: str) -> None:
    """Waits until Ray has no actor of that name any more, a moment after the actor's end. Raises UnavailableError."""
    deadline_s = time.monotonic() + _GONE_TIMEOUT_S
    while named(name) is not None:
        if time.monotonic() > deadline_s:
            raise UnavailableError(
                f"{name} was ended, but Ray still has it after {_GONE_TIMEOUT_S:g} s; try again"
            )
        time.sleep(_POLL_S)


def nodes_with(spec: ClusterSpec, role: Role) -> tuple[int, ...]:
    """Returns the nodes that have this role, ascending."""
    return tuple(node_id for node_id, roles in spec.roles.items() if role in roles)


def partition_nodes(spec: ClusterSpec) -> tuple[int, ...]:
    """Returns the nodes that hold partitions, and that the controller registers as brokers: brokers and
    coordinators.
    """
    return tuple(node_id for node_id, roles in spec.roles.items() if holds_partitions(roles))


def node_directories(spec: ClusterSpec, node_id: int) -> tuple[str, ...]:
    """Returns `<data_dir>/<cluster>/<role>-<id>` below each data directory. A controller has one log, so one directory.
    A node that the spec does not have gets the role of its id.
    """
    roles = spec.roles.get(node_id, (role_of(node_id),))
    data_dirs = spec.data_dirs if holds_partitions(roles) else spec.data_dirs[:1]
    return tuple(os.path.join(each, spec.name, node_name(node_id)) for each in data_dirs)


def cluster_directories(spec: ClusterSpec) -> tuple[str, ...]:
    """Returns `<data_dir>/<cluster>` below each data directory: the parents of all directories of nodes."""
    return tuple(os.path.join(each, spec.name) for each in spec.data_dirs)


def controller_directory(spec: ClusterSpec, node_id: int) -> str:
    """Returns the directory of a controller's log: its own one, or one inside the first directory of the broker or
    coordinator in the same node.
    """
    first = node_directories(spec, node_id)[0]
    return combined_controller_directory(first) if holds_partitions(spec.roles[node_id]) else first


def formatted_directories(spec: ClusterSpec, node_id: int) -> tuple[str, ...]:
    """Returns all directories of a node that have a `meta.properties`."""
    directories = node_directories(spec, node_id)
    if Role.CONTROLLER not in spec.roles[node_id]:
        return directories
    return tuple(dict.fromkeys((*directories, controller_directory(spec, node_id))))


def running_node_ids(cluster_name: str) -> tuple[int, ...]:
    """Returns the cluster's nodes that have an actor, ascending, whatever their state."""
    return _running().get(cluster_name, ())


def running_clusters() -> tuple[str, ...]:
    """Returns the names of all clusters on this Ray."""
    return tuple(_running())


def _running() -> dict[str, tuple[int, ...]]:
    try:
        check_head(for_client=True)
    except NetworkException:
        try:
            # The first look may have connected this process to another Ray: ask the head of that one.
            check_head(for_client=True)
        except RayEnded:
            raise
        except NetworkException as error:
            raise UnavailableError(str(error)) from None
    clusters: dict[str, list[int]] = {}
    try:
        # Dicts, though annotated as names.
        named: Any = ray.util.list_named_actors(all_namespaces=True)
    except ray.exceptions.RayError as error:
        raise UnavailableError(f"Ray did not say which actors run: {error}") from error
    for actor in named:
        cluster_name, separator, node = actor["name"].rpartition("/")
        if actor["namespace"] == NAMESPACE and separator and node.rpartition("-")[2].isdigit():
            clusters.setdefault(cluster_name, []).append(int(node.rpartition("-")[2]))
    return {name: tuple(sorted(clusters[name])) for name in sorted(clusters)}
