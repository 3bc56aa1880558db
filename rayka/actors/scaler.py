"""The supervisor's part that lets brokers and coordinators come and go: looks, plans, takes one step, and looks again.

Nothing happens while another process starts, restarts or changes the cluster, because that may concern the same
brokers.
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
    RoleView,
    ScalingStatus,
    ScalingStep,
    Stay,
    scaled_ids,
    with_scaled,
    without_scaled,
)
from rayka.actors.supervisor_handle import Identities
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import RaykaError
from rayka.ids import Role, role_of

_SOON_S = 0.5
_WAITS = "scale-out-waits"
_REFUSED = "scale-in-waits"
_ERRORS = (RaykaError, TimeoutError, ray.exceptions.RayError)
# The kinds of events of steps that begin or end a decision.
_KINDS: dict[type[ScalingStep], str] = {
    AskForRoom: "scale-out-begun",
    Make: "scale-out-ended",
    DropRoom: "scale-out-stopped",
    Leave: "scale-in-begun",
    Stay: "scale-in-stopped",
    Forget: "scale-in-ended",
}
_logger = logging.getLogger(__name__)


class ScalingPort(Protocol):
    """The cluster to look at and to change. The methods raise RaykaError, TimeoutError and Ray's errors."""

    async def see(self) -> Mapping[Role, RoleView] | None:
        """Returns the present state of each role whose nodes come and go; None while another process starts, restarts
        or changes the cluster.
        """
        ...

    async def take(self, step: ScalingStep) -> str:
        """Takes the step, which may be a repetition. Returns why it was refused; empty if it was taken."""
        ...

    async def record(self, kind: str, broker_id: int, reason: str) -> None:
        """Records an event of the cluster."""
        ...


class Scaler:
    """Scales one cluster."""

    def __init__(self, spec: ClusterSpec, port: ScalingPort, look_s: float, acting: asyncio.Lock) -> None:
        """`acting` is held while a step is taken, so that other parts of the supervisor that keep the nodes wait."""
        # The spec to keep: with the nodes that have come, without one that has gone.
        self.spec = spec
        self._declared = without_scaled(spec)
        self._port = port
        self._look_s = look_s
        self._acting = acting
        self._planners = {role: Planner(self._declared, role) for role in spec.ranges}
        # Nodes without room, as last recorded.
        self._lacking: set[int] = set()
        # The disks with which scaled nodes registered last.
        self._registered: dict[int, frozenset[UUID]] = {}

    def __repr__(self) -> str:
        return f"<Scaler {list(self._planners.values())}>"

    @property
    def has_looked(self) -> bool:
        """Whether the present state is known."""
        return all(each.status is not None for each in self._planners.values())

    def identities(self, known: Identities) -> Identities:
        """Returns the identities with the disks that scaled nodes registered last. On another machine, the next node of
        the same id has another disk.
        """
        if not self.has_looked:
            return known
        declared = {id: ids for id, ids in known.directory_ids.items() if id in self._declared.roles}
        return replace(known, directory_ids={**declared, **self._registered})

    def knows_disks_of(self, node_id: int) -> bool:
        """Whether the node's disks are known. The disks on record are those of the last start. For a scaled node they
        may be those of an earlier node, until the controller has told the registered ones.
        """
        return self.has_looked or node_id in self._declared.roles

    def status(self, role: Role) -> ScalingStatus | None:
        """Returns the outcome of the last look; None before the first, and for a role whose nodes do not come
        and go.
        """
        return self._planners[role].status if role in self._planners else None

    async def run(self) -> None:
        """Looks and takes steps for ever."""
        while True:
            try:
                is_idle = await self.look()
            except _ERRORS as error:
                for each in self._planners.values():
                    self._failed(each, error)
                is_idle = True
            await asyncio.sleep(self._look_s if is_idle else _SOON_S)

    async def look(self) -> bool:
        """Looks once, and takes at most one step of each role. Returns whether nothing is under way."""
        seen = await self._port.see()
        if seen is None:
            return True
        kept = [each for found in seen.values() for each in _kept(self._declared, found)]
        self.spec = with_scaled(self._declared, kept)
        registered = {id: each for found in seen.values() for id, each in found.brokers.items()}
        comers = scaled_ids(self._declared, registered)
        self._registered = {each: registered[each].directory_ids for each in comers}
        await self._record_lacking(seen.values())
        return all([await self._go_on(self._planners[role], found) for role, found in seen.items()])

    async def _go_on(self, planner: Planner, seen: RoleView) -> bool:
        """Plans for one role, and takes the step. An error leaves other roles as they are."""
        step = planner.next(seen)
        try:
            is_refused = step is not None and not await self._has_taken(planner, step, seen)
        except _ERRORS as error:
            self._failed(planner, error)
            return True
        return is_refused or not planner.is_under_way

    async def _has_taken(self, planner: Planner, step: ScalingStep, seen: RoleView) -> bool:
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

    async def _record_lacking(self, seen: Iterable[RoleView]) -> None:
        """Records once for each node that Ray has no room for it."""
        lacking = {id: room.lacking for each in seen for id, room in each.rooms.items() if room.lacking}
        for each in sorted(lacking.keys() - self._lacking):
            _logger.warning("%s %d waits for a Ray node: %s", role_of(each), each, lacking[each])
            await self._port.record(_WAITS, each, lacking[each])
        self._lacking = set(lacking)


def _kept(spec: ClusterSpec, seen: RoleView) -> Iterable[int]:
    """Returns the nodes beyond the declared ones that are to have a process."""
    going = {id for id, each in seen.brokers.items() if each.is_leaving and each.replica_count == 0}
    return scaled_ids(spec, {*seen.brokers, *seen.actors} - going)
