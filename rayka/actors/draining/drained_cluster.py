"""The cluster that a drainer works on, as it is on Ray."""

import asyncio
from collections.abc import Collection, Mapping

from rayka.actors import node_handles
from rayka.actors.cluster_looks import ControllerAsk
from rayka.actors.names import running_node_ids
from rayka.actors.node_handles import is_starting
from rayka.actors.node_placement import wall_clock_ms
from rayka.actors.ray_network import RayNetwork
from rayka.actors.ray_records import draining_ray_nodes
from rayka.client.admin.drained_brokers import DrainedBrokers, DrainStep, Mark, SeenDrains, StopDrained
from rayka.config.cluster_config import ClusterSpec


class DrainedCluster:
    """A `DrainPort`, used on one event loop."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        network = RayNetwork(spec.name)
        self._brokers = DrainedBrokers(network, ControllerAsk(network), wall_clock_ms)
        self._has_marks = True  # until it is known that there are none

    def __repr__(self) -> str:
        return f"<DrainedCluster {self._spec.name}>"

    # ---- Looking -----------------------------------------------------------------------------------------------------

    async def see(self) -> SeenDrains | None:
        """One call to Ray, where no machine is drained and no broker is marked; the controller is asked only where
        a node of the cluster is on one.
        """
        announced = await asyncio.to_thread(draining_ray_nodes)
        if not announced and not self._has_marks:
            return None
        broker_ids = await self._brokers.registered() if self._has_marks else []
        actors = await asyncio.to_thread(running_node_ids, self._spec.name)
        drains = await asyncio.to_thread(self._drains, announced, {*actors, *broker_ids})
        if not drains and not broker_ids:
            return None
        is_changing = await asyncio.to_thread(is_starting, self._spec.name)
        seen = await self._brokers.see(drains, actors, is_changing=is_changing)
        self._has_marks = bool(seen.marks)
        return seen if drains or seen.marks else None

    def _drains(self, announced: Mapping[str, int], node_ids: Collection[int]) -> dict[int, int]:
        """Of these nodes those whose last process was on a Ray node that is drained."""
        if not announced:
            return {}
        homes = node_handles.last_homes(self._spec.name, sorted(node_ids))
        return {each: announced[home] for each, home in homes.items() if home in announced}

    # ---- Acting ------------------------------------------------------------------------------------------------------

    async def take(self, step: DrainStep) -> str:
        match step:
            case Mark():
                self._has_marks = True
            case StopDrained():
                handles = await asyncio.to_thread(node_handles.find_all, self._spec.name, step.node_ids)
                await node_handles.stop(self._spec.name, handles)
        return await self._brokers.take(step)

    async def record(self, kind: str, node_ids: tuple[int, ...], reason: str) -> None:
        await self._brokers.record(kind, node_ids, reason)
