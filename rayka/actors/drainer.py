"""The supervisor's part of emptying machines that Ray drains: looks, decides, takes one step, and looks again.

Only a stop changes the nodes that the supervisor keeps. So a stop alone waits for the others that keep them, and does
so beside the looks: the deadline of a machine waits neither for a slow disk nor for the stop of another broker.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Protocol

import ray

from rayka.actors import node_handles
from rayka.actors.cluster_looks import ControllerAsk
from rayka.actors.names import running_node_ids
from rayka.actors.node_handles import is_starting
from rayka.actors.node_placement import wall_clock_ms
from rayka.actors.ray_network import RayNetwork
from rayka.actors.ray_records import draining_ray_nodes
from rayka.client.admin.drained_brokers import (
    DrainedBrokers,
    DrainStep,
    Mark,
    SeenDrains,
    StopDrained,
    next_step,
)
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import RaykaError

_LOOK_S = 1.0
_SOON_S = 0.1
_logger = logging.getLogger(__name__)


class DrainPort(Protocol):
    """The cluster to look at and to change. The methods raise RaykaError, TimeoutError and Ray's errors."""

    async def see(self) -> SeenDrains | None:
        """Returns the present state; None if no machine is drained and no broker is marked."""
        ...

    async def take(self, step: DrainStep) -> str:
        """Takes the step, which may be a repetition. Returns why it was refused, wholly or in part; empty if it was
        taken.
        """
        ...

    async def record(self, kind: str, node_ids: tuple[int, ...], reason: str) -> None:
        """Records an event of the cluster."""
        ...


class Drainer:
    """Drains machines of one cluster."""

    def __init__(self, port: DrainPort, acting: asyncio.Lock) -> None:
        """`acting` is held while brokers are stopped, so that other parts of the supervisor that keep the nodes
        wait.
        """
        self._port = port
        self._acting = acting
        # The stop of brokers that runs beside the looks.
        self._stopping: asyncio.Task[bool] | None = None
        # The nodes whose machines go, and when, as of the last look: a wall clock in ms, 0 if Ray names none.
        self.draining: Mapping[int, int] = {}

    def __repr__(self) -> str:
        return f"<Drainer {dict(self.draining)}>"

    async def run(self) -> None:
        """Looks and takes steps for ever."""
        try:
            while True:
                try:
                    has_stepped = await self.look()
                except (RaykaError, TimeoutError, ray.exceptions.RayError) as error:
                    _logger.warning("%r: %r", self, error)
                    has_stepped = False
                await asyncio.sleep(_SOON_S if has_stepped else _LOOK_S)
        finally:
            if self._stopping is not None:
                self._stopping.cancel()

    async def look(self) -> bool:
        """Looks once, and takes at most one step. Returns whether a step was taken, or a stop has begun. Raises the
        error of the last stop.
        """
        if self._stopping is not None and self._stopping.done():
            stopping, self._stopping = self._stopping, None
            stopping.result()
        seen = await self._port.see()
        self.draining = {} if seen is None else seen.drains
        if seen is None:
            return False
        is_changing = seen.is_changing or self._stopping is not None
        step = next_step(replace(seen, is_changing=is_changing))
        if isinstance(step, StopDrained):
            self._stopping = asyncio.create_task(self._take(step))
            return True
        return step is not None and await self._take(step)

    async def _take(self, step: DrainStep) -> bool:
        refusal = await (self._stop(step) if isinstance(step, StopDrained) else self._port.take(step))
        if refusal:
            _logger.warning("%s of %s: %s", type(step).__name__, list(step.node_ids), refusal)
            return False
        _logger.info("%s of %s: %s", type(step).__name__, list(step.node_ids), step.reason)
        await self._port.record(step.kind, step.node_ids, step.reason)
        return True

    async def _stop(self, step: StopDrained) -> str:
        async with self._acting:
            if not all(each in self.draining for each in step.node_ids):
                return "Ray does not drain its machine any more"
            return await self._port.take(step)


class DrainedCluster:
    """A `DrainPort`, used on one event loop."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        network = RayNetwork(spec.name)
        self._brokers = DrainedBrokers(network, ControllerAsk(network), wall_clock_ms)
        # Whether brokers may be marked: True until none is known to be.
        self._has_marks = True

    # ---- Looking -----------------------------------------------------------------------------------------------------

    async def see(self) -> SeenDrains | None:
        """Looks at Ray and, if a node of the cluster is on a drained machine, at the controller. Otherwise, and without
        marked brokers, one call to Ray is enough.
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
        """Returns when the machines of these nodes go, by the Ray node of each node's last process."""
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
