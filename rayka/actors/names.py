"""What the actors are called and where: `<cluster>/<role>-<node id>` in the Ray namespace `rayka`."""

import os
from typing import Any

import ray

from rayka.config import ClusterSpec
from rayka.errors import UnavailableError
from rayka.ids import FIRST_BROKER_ID, FIRST_CONTROLLER_ID, Role, node_name, role_of

NAMESPACE = "rayka"


def actor_name(cluster_name: str, node_id: int) -> str:
    """`rayka/broker-1`: one node's actor."""
    return f"{cluster_name}/{node_name(node_id)}"


def wanted_node_ids(spec: ClusterSpec) -> tuple[int, ...]:
    """The nodes that a spec declares, ascending."""
    brokers = range(FIRST_BROKER_ID, FIRST_BROKER_ID + spec.brokers)
    return (*brokers, *range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + spec.controllers))


def node_directories(spec: ClusterSpec, node_id: int) -> tuple[str, ...]:
    """`<data_dir>/<cluster>/<role>-<id>` below each data directory; a controller has one log, so one directory."""
    data_dirs = spec.data_dirs[:1] if role_of(node_id) is Role.CONTROLLER else spec.data_dirs
    return tuple(os.path.join(each, spec.name, node_name(node_id)) for each in data_dirs)


def running_node_ids(cluster_name: str) -> tuple[int, ...]:
    """The cluster's nodes that have an actor, ascending, whatever their state."""
    return _running().get(cluster_name, ())


def running_clusters() -> tuple[str, ...]:
    """Names of all clusters on this Ray."""
    return tuple(_running())


def _running() -> dict[str, tuple[int, ...]]:
    # Ray would start a new Ray by itself when a process that has none asks.
    if not ray.is_initialized():
        raise UnavailableError(
            "this process is no longer connected to Ray; connect with rayka.Cluster.connect()"
        )
    clusters: dict[str, list[int]] = {}
    named: Any = ray.util.list_named_actors(all_namespaces=True)  # dicts, though it is annotated as names
    for actor in named:
        cluster_name, separator, node = actor["name"].rpartition("/")
        if actor["namespace"] == NAMESPACE and separator and node.rpartition("-")[2].isdigit():
            clusters.setdefault(cluster_name, []).append(int(node.rpartition("-")[2]))
    return {name: tuple(sorted(clusters[name])) for name in sorted(clusters)}
