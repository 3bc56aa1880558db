"""The supervisor's part that lets brokers and coordinators come and go: looks, plans, takes one step, and looks again.

Nothing is done while another process starts, restarts or changes the cluster: it may be about the same brokers.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol
from uuid import UUID

import ray

from rayka.actors.scaling_planner import (
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
    come_and_gone,
    declared,
    grown,
)
from rayka.actors.supervisor_handle import Identities
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import RaykaError
from rayka.ids import Role, role_of

_SOON_S = 0.5
_WAITS = "scale-out-waits"
_REFUSED = "scale-in-waits"
_ERRORS = (RaykaError, TimeoutError, ray.exceptions.RayError)
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

    async def see(self) -> Mapping[Role, Seen] | None:
        """What there is of each role whose nodes come and go; None while another process starts, restarts or changes
        the cluster.
        """
        ...

    async def take(self, step: Step) -> str:
        """Why the step was not taken; empty where it was. It may be repeated."""
        ...

    async def record(self, kind: str, broker_id: int, reason: str) -> None:
        """Has it among the events of the cluster."""
        ...


class Scaler:
    """Of one cluster. `spec` is what there is to keep: with the nodes that have come, without one that has gone."""

    def __init__(self, spec: ClusterSpec, port: ScalingPort, look_s: float, acting: asyncio.Lock) -> None:
        """`acting` is held while a step is taken: what else keeps the nodes then waits."""
        self.spec = spec
        self._declared = declared(spec)
        self._port = port
        self._look_s = look_s
        self._acting = acting
        self._planners = {role: Planner(self._declared, role) for role in spec.ranges}
        self._lacking: set[int] = set()
        self._registered: dict[int, frozenset[UUID]] = {}

    def __repr__(self) -> str:
        return f"<Scaler {list(self._planners.values())}>"

    @property
    def has_looked(self) -> bool:
        """Whether it knows what there is."""
        return all(each.status is not None for each in self._planners.values())

    def identities(self, known: Identities) -> Identities:
        """The same, but of nodes that come and go what they registered with last: on another machine, the next node of
        that id has another disk.
        """
        if not self.has_looked:
            return known
        declared = {id: ids for id, ids in known.directory_ids.items() if id in self._declared.roles}
        return replace(known, directory_ids={**declared, **self._registered})

    def knows_disks_of(self, node_id: int) -> bool:
        """Whether it is known which disks are the node's. On record are those of the last start: of a node that comes
        and goes they may be an earlier one's, until the controller has said what is registered.
        """
        return self.has_looked or node_id in self._declared.roles

    def status(self, role: Role) -> ScalingStatus | None:
        """What came of the last look; None before the first, and of a role whose nodes do not come and go."""
        return self._planners[role].status if role in self._planners else None

    async def run(self) -> None:
        """Goes on for ever."""
        while True:
            try:
                is_idle = await self.look()
            except _ERRORS as error:
                for each in self._planners.values():
                    self._failed(each, error)
                is_idle = True
            await asyncio.sleep(self._look_s if is_idle else _SOON_S)

    async def look(self) -> bool:
        """One look, and one step of each role at most; whether there is nothing under way."""
        seen = await self._port.see()
        if seen is None:
            return True
        kept = [each for found in seen.values() for each in _kept(self._declared, found)]
        self.spec = grown(self._declared, kept)
        registered = {id: each for found in seen.values() for id, each in found.brokers.items()}
        comers = come_and_gone(self._declared, registered)
        self._registered = {each: registered[each].directory_ids for each in comers}
        await self._record_lacking(seen.values())
        return all([await self._go_on(self._planners[role], found) for role, found in seen.items()])

    async def _go_on(self, planner: Planner, seen: Seen) -> bool:
        """Plans for one role, and takes the step; what goes wrong leaves other roles as they are."""
        step = planner.next(seen)
        try:
            is_refused = step is not None and not await self._has_taken(planner, step, seen)
        except _ERRORS as error:
            self._failed(planner, error)
            return True
        return is_refused or not planner.is_under_way

    async def _has_taken(self, planner: Planner, step: Step, seen: Seen) -> bool:
        async with self._acting:
            refusal = await self._port.take(step)
        name = f"{role_of(step.broker_id)} {step.broker_id}"
        if refusal:
            _logger.warning("%r: %s", self, refusal)
            if planner.refused(step, f"{name}: {refusal}", seen):
                await self._port.record(_REFUSED, step.broker_id, refusal)
            return False
        _logger.info("%s of %s: %s", type(step).__name__, name, step.reason)
        if type(step) in _KINDS:
            await self._port.record(_KINDS[type(step)], step.broker_id, step.reason)
        return True

    def _failed(self, planner: Planner, error: Exception) -> None:
        planner.failed(f"not done yet: {error or type(error).__name__}")
        _logger.warning("%r: %r", self, error)

    async def _record_lacking(self, seen: Iterable[Seen]) -> None:
        """Says once of each node that Ray has no room for it."""
        lacking = {id: room.lacking for each in seen for id, room in each.rooms.items() if room.lacking}
        for each in sorted(lacking.keys() - self._lacking):
            _logger.warning("%s %d waits for a Ray node: %s", role_of(each), each, lacking[each])
            await self._port.record(_WAITS, each, lacking[each])
        self._lacking = set(lacking)


def _kept(spec: ClusterSpec, seen: Seen) -> Iterable[int]:
    """The nodes beyond the declared ones that are to have a process."""
    going = {id for id, each in seen.brokers.items() if each.is_leaving and each.replica_count == 0}
    return come_and_gone(spec, {*seen.brokers, *seen.actors} - going)
