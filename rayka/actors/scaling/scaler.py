"""The supervisor's part that lets brokers come and go: looks, plans, takes one step, and looks again.

Nothing is done while another process starts, restarts or changes the cluster: it may be about the same brokers.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

import ray

from rayka.actors.scaling.grown_spec import come_and_gone, declared, grown
from rayka.actors.scaling.planner import (
    AskForRoom,
    DropRoom,
    Forget,
    Leave,
    Make,
    Planner,
    ScalingStatus,
    Seen,
    Stay,
    Step,
)
from rayka.config import ClusterSpec
from rayka.errors import RaykaError

_SOON_S = 0.5
_WAITS = "scale-out-waits"
# Steps that are decisions, or their end, and the kinds of events that they are.
_KINDS: dict[type[Step], str] = {
    AskForRoom: "scale-out-begun",
    Make: "scale-out-ended",
    DropRoom: "scale-out-stopped",
    Leave: "scale-in-begun",
    Stay: "scale-in-stopped",
    Forget: "scale-in-ended",
}
_logger = logging.getLogger(__name__)


class ScalingPort(Protocol):
    """The cluster to look at and to change. Both raise RaykaError, TimeoutError and what Ray raises."""

    async def see(self) -> Seen | None:
        """What there is; None while another process starts, restarts or changes the cluster."""
        ...

    async def take(self, step: Step) -> str:
        """Why the step was not taken; empty where it was. It may be repeated."""
        ...

    async def record(self, kind: str, broker_id: int, reason: str) -> None:
        """Has it among the events of the cluster."""
        ...


class Scaler:
    """Of one cluster. `spec` is what there is to keep: with the brokers that have come, without one that has gone."""

    def __init__(self, spec: ClusterSpec, port: ScalingPort, look_s: float, acting: asyncio.Lock) -> None:
        """`acting` is held while a step is taken: what else keeps the nodes then waits."""
        self.spec = spec
        self._declared = declared(spec)
        self._port = port
        self._look_s = look_s
        self._acting = acting
        self._planner = Planner(self._declared)
        self._lacking: set[int] = set()

    def __repr__(self) -> str:
        return f"<Scaler {self._planner!r}>"

    @property
    def status(self) -> ScalingStatus | None:
        """What came of the last look; None before the first."""
        return self._planner.status

    async def run(self) -> None:
        """Goes on for ever."""
        while True:
            try:
                is_idle = await self.look()
            except (RaykaError, TimeoutError, ray.exceptions.RayError) as error:
                self._planner.failed(f"not done yet: {error or type(error).__name__}")
                _logger.warning("%r: %r", self, error)
                is_idle = True
            await asyncio.sleep(self._look_s if is_idle else _SOON_S)

    async def look(self) -> bool:
        """One look, and one step at most; whether there is nothing under way."""
        seen = await self._port.see()
        if seen is None:
            return True
        self.spec = grown(self._declared, _kept(self._declared, seen))
        step = self._planner.next(seen)
        await self._record_lacking(seen)
        if step is not None:
            await self._take(step)
        status = self._planner.status
        return step is None and status is not None and status.desired == status.actual

    async def _take(self, step: Step) -> None:
        async with self._acting:
            refusal = await self._port.take(step)
        if refusal:
            self._planner.failed(f"broker {step.broker_id}: {refusal}")
            _logger.warning("%r: %s", self, refusal)
            return
        _logger.info("%s of broker %d: %s", type(step).__name__, step.broker_id, step.reason)
        if type(step) in _KINDS:
            await self._port.record(_KINDS[type(step)], step.broker_id, step.reason)

    async def _record_lacking(self, seen: Seen) -> None:
        """Says once of each broker that Ray has no room for it."""
        lacking = {each: room.lacking for each, room in seen.rooms.items() if room.lacking}
        for each in lacking.keys() - self._lacking:
            _logger.warning("broker %d waits for a Ray node: %s", each, lacking[each])
            await self._port.record(_WAITS, each, lacking[each])
        self._lacking = set(lacking)


def _kept(spec: ClusterSpec, seen: Seen) -> Iterable[int]:
    """The brokers beyond the declared ones that are to have a process."""
    going = {id for id, each in seen.brokers.items() if each.is_leaving and each.replica_count == 0}
    return come_and_gone(spec, {*seen.brokers, *seen.actors} - going)
