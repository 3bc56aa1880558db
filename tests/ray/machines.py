"""Several Ray nodes on one machine, each with a disk of its own, as far as one file system allows.

A machine is lost with all its processes: the raylet and what it has started are killed at once, so none is left to
report an exit, and its nodes' directories are moved away, as a disk that is out of reach. It comes back as another Ray
node, with the same disk or with an empty one.
"""

import os
import shutil
from collections.abc import Collection
from functools import partial
from typing import Any

import ray

from rayka.actors import node_handles
from rayka.actors.ray_nodes import HOST_LABEL
from rayka.client import io_thread
from rayka.cluster import Cluster
from tests.forks import kill_all, processes_of
from tests.rays import RayNodes

ON_MACHINES = {
    role: {"resources": {"machine": 0.01}} for role in ("broker", "controller", "coordinator")
}  # in a spec
_AWAY = ".away"


class Machines:
    """Some Ray nodes beside those there are; only they have what `ON_MACHINES` asks for.

    The labelled ones, by default every other one, have a label of their own, which they keep: by that Ray itself finds
    a machine again, else the supervisor does.
    """

    def __init__(self, rays: RayNodes, count: int, *, labelled: Collection[int] | None = None) -> None:
        self._rays = rays
        self._running: dict[str, Any] = {}
        self._labels: dict[str, dict[str, str]] = {}
        for number in range(count):
            has_label = number % 2 == 0 if labelled is None else number in labelled
            labels = {HOST_LABEL: f"machine-{number}"} if has_label else {}
            self._add(labels, wait=False)
        self._rays.wait_for_nodes()
        self._lost: list[tuple[str, tuple[str, ...]]] = []

    def _add(self, labels: dict[str, str], *, wait: bool) -> str:
        node = self._rays.add_node(wait=wait, num_cpus=2, resources={"machine": 1}, labels=labels)
        self._running[node.node_id], self._labels[node.node_id] = node, labels
        return str(node.node_id)

    @property
    def ray_node_ids(self) -> tuple[str, ...]:
        """The machines that run, by their ids as Ray nodes."""
        return tuple(self._running)

    def lose(self, cluster: Cluster, ray_node_id: str) -> Collection[int]:
        """Ends a machine; the nodes of the cluster that were on it."""
        lost = [each for each, home in homes(cluster).items() if home == ray_node_id]
        described = {each.node_id: each for each in cluster.describe().nodes}
        raylet = next(iter(self._running[ray_node_id].all_processes["raylet"])).process.pid
        children = processes_of(raylet)
        self._rays.remove_node(self._running.pop(ray_node_id), allow_graceful=False)
        kill_all(children)
        directories = tuple(path for each in lost for path in described[each].data_dirs)
        for each in directories:
            os.rename(each, each + _AWAY)
        self._lost.append((ray_node_id, directories))
        return lost

    def bring_back(self, *, is_empty: bool = False) -> str:
        """The machine that was lost first, as another Ray node, with its disk or an empty one; its id."""
        ray_node_id, directories = self._lost.pop(0)
        new_id = self._add(self._labels[ray_node_id], wait=True)
        for each in directories:
            if is_empty:
                shutil.rmtree(each + _AWAY)
            else:
                os.rename(each + _AWAY, each)
        return new_id

    def is_missed(self, ray_node_id: str) -> bool:
        """Whether Ray has noticed that the machine is gone."""
        return not any(each["NodeID"] == ray_node_id and each["Alive"] for each in ray.nodes())

    def close(self) -> None:
        """Ends those that run."""
        for each in self._running.values():
            self._rays.remove_node(each)


def homes(cluster: Cluster) -> dict[int, str]:
    """On which Ray node each node lives whose actor answers."""
    node_ids = [each.node_id for each in cluster.describe().nodes]
    handles = {
        each: handle for each in node_ids if (handle := node_handles.find(cluster.name, each)) is not None
    }
    processes = io_thread.run(partial(node_handles.processes, handles, 3), 30)
    return {node_id: process.ray_node_id for node_id, process in processes.items()}
