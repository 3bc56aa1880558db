"""What the actors are called and where: `<cluster>/<role>-<node id>` in the Ray namespace `rayka`."""

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
    """`rayka/broker-1`: one node's actor."""
    return f"{cluster_name}/{node_name(node_id)}"


def supervisor_name(cluster_name: str) -> str:
    """`rayka/supervisor`: the actor that keeps the others."""
    return f"{cluster_name}/supervisor"


def start_lock_name(cluster_name: str) -> str:
    """`rayka/start`: its holder may start the cluster."""
    return f"{cluster_name}/start"


def named(name: str) -> Any | None:
    """The handle of rayka's actor of that name; None when there is none."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def await_gone(name: str) -> None:
    """Returns when Ray has no actor of that name any more, a moment after it was ended. Raises UnavailableError."""
    deadline_s = time.monotonic() + _GONE_TIMEOUT_S
    while named(name) is not None:
        if time.monotonic() > deadline_s:
            raise UnavailableError(
                f"{name} was ended, but Ray still has it after {_GONE_TIMEOUT_S:g} s; try again"
            )
        time.sleep(_POLL_S)


def nodes_with(spec: ClusterSpec, role: Role) -> tuple[int, ...]:
    """The nodes that have this role, ascending."""
    return tuple(node_id for node_id, roles in spec.roles.items() if role in roles)


def partition_nodes(spec: ClusterSpec) -> tuple[int, ...]:
    """The nodes that hold partitions, so that the controller knows them as brokers: brokers and coordinators."""
    return tuple(node_id for node_id, roles in spec.roles.items() if holds_partitions(roles))


def node_directories(spec: ClusterSpec, node_id: int) -> tuple[str, ...]:
    """`<data_dir>/<cluster>/<role>-<id>` below each data directory; a controller has one log, so one directory. A node
    that the spec does not have counts as what its id says.
    """
    roles = spec.roles.get(node_id, (role_of(node_id),))
    data_dirs = spec.data_dirs if holds_partitions(roles) else spec.data_dirs[:1]
    return tuple(os.path.join(each, spec.name, node_name(node_id)) for each in data_dirs)


def cluster_directories(spec: ClusterSpec) -> tuple[str, ...]:
    """`<data_dir>/<cluster>` below each data directory: where all directories of nodes are."""
    return tuple(os.path.join(each, spec.name) for each in spec.data_dirs)


def controller_directory(spec: ClusterSpec, node_id: int) -> str:
    """Where a controller has its log: in its directory, or inside the first one of the broker or coordinator that it is
    too.
    """
    first = node_directories(spec, node_id)[0]
    return combined_controller_directory(first) if holds_partitions(spec.roles[node_id]) else first


def formatted_directories(spec: ClusterSpec, node_id: int) -> tuple[str, ...]:
    """All directories of a node that have a `meta.properties`."""
    directories = node_directories(spec, node_id)
    if Role.CONTROLLER not in spec.roles[node_id]:
        return directories
    return tuple(dict.fromkeys((*directories, controller_directory(spec, node_id))))


def running_node_ids(cluster_name: str) -> tuple[int, ...]:
    """The cluster's nodes that have an actor, ascending, whatever their state."""
    return _running().get(cluster_name, ())


def running_clusters() -> tuple[str, ...]:
    """Names of all clusters on this Ray."""
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
        named: Any = ray.util.list_named_actors(all_namespaces=True)  # dicts, though it is annotated as names
    except ray.exceptions.RayError as error:
        raise UnavailableError(f"Ray did not say which actors run: {error}") from error
    for actor in named:
        cluster_name, separator, node = actor["name"].rpartition("/")
        if actor["namespace"] == NAMESPACE and separator and node.rpartition("-")[2].isdigit():
            clusters.setdefault(cluster_name, []).append(int(node.rpartition("-")[2]))
    return {name: tuple(sorted(clusters[name])) for name in sorted(clusters)}
