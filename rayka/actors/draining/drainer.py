"""The supervisor's part of emptying machines that Ray drains: looks, decides, takes one step, and looks again.

Only a stop keeps the nodes, so it alone waits for others that keep them, and that beside the looks: the deadline of a
machine waits for neither a slow disk nor the stop of another broker.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import ray

from rayka.client.admin.drained_brokers import DrainStep, SeenDrains, StopDrained, next_step
from rayka.errors import RaykaError

_LOOK_S = 1.0
_SOON_S = 0.1
_logger = logging.getLogger(__name__)


class DrainPort(Protocol):
    """The cluster to look at and to change. All raise RaykaError, TimeoutError and what Ray raises."""

    async def see(self) -> SeenDrains | None:
        """What there is; None where no machine is drained and no broker is marked."""
        ...

    async def take(self, step: DrainStep) -> str:
        """Why the step was not taken, or not all of it; empty where it was. It may be repeated."""
        ...

    async def record(self, kind: str, node_ids: tuple[int, ...], reason: str) -> None:
        """Has it among the events of the cluster."""
        ...


class Drainer:
    """Of one cluster. `draining`: the nodes whose machines go, and when, as of the last look: a wall clock in ms, 0
    where Ray names none.
    """

    def __init__(self, port: DrainPort, acting: asyncio.Lock) -> None:
        """`acting` is held while brokers are stopped: what else keeps the nodes then waits."""
        self._port = port
        self._acting = acting
        self._stopping: asyncio.Task[bool] | None = None
        self.draining: Mapping[int, int] = {}

    def __repr__(self) -> str:
        return f"<Drainer {dict(self.draining)}>"

    async def run(self) -> None:
        """Goes on for ever."""
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
        """One look, and one step at most; whether a step was taken, or a stop has begun. Raises what the last stop
        raised.
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
