"""The steps of scaling, taken on Ray, in the metadata and on disks. Each step may be repeated, by the next
planner too.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from random import SystemRandom
from typing import Any

from rayka.actors import node_handles, scaling_rooms
from rayka.actors.cluster_looks import ClusterLooks
from rayka.actors.formatting import format_brokers, remove_directories
from rayka.actors.found_directories import look_at
from rayka.actors.names import actor_name, node_directories
from rayka.actors.node_handles import is_starting
from rayka.actors.node_placement import NodePlacement, wall_clock_ms
from rayka.actors.ray_nodes import live_ray_nodes, run_on
from rayka.actors.scaling_planner import (
    AskForRoom,
    DropRoom,
    Forget,
    Leave,
    Make,
    ReturnRoom,
    RoleView,
    ScalingStep,
    Stay,
    Stop,
    with_scaled,
)
from rayka.client.admin.broker_asks import mark_brokers, record_event
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import InvalidReplicationFactor, InvalidRequest, StorageError
from rayka.ids import Role, node_name, random_uuid
from rayka.protocol.configs import LEAVING
from rayka.protocol.drains import DrainBrokerRequest, DrainCause
from rayka.protocol.topics import UnregisterBrokerRequest

_ANSWER_TIMEOUT_S = 15.0
_logger = logging.getLogger(__name__)


class ScaledCluster:
    """A `ScalingPort`. Steps are taken one at a time."""

    def __init__(self, spec: ClusterSpec, looks: ClusterLooks) -> None:
        self._spec = spec
        self._looks = looks
        self._takers: Mapping[type[ScalingStep], Callable[[int], Coroutine[Any, Any, str]]] = {
            AskForRoom: self._ask_for_room,
            DropRoom: self._drop_room,
            ReturnRoom: self._drop_room,
            Make: self._make,
            Leave: self._leave,
            Stay: self._stay,
            Stop: self._stop,
            Forget: self._forget,
        }

    async def see(self) -> Mapping[Role, RoleView] | None:
        if await asyncio.to_thread(is_starting, self._spec.name):
            return None
        return await self._looks.see()

    async def record(self, kind: str, broker_id: int, reason: str) -> None:
        await record_event(self._looks.ask, wall_clock_ms(), kind, (broker_id,), reason)

    async def take(self, step: ScalingStep) -> str:
        """Takes the step. Returns why it was refused; empty if it was taken. Raises RaykaError, TimeoutError and Ray's
        errors: the next look finds out how far the step came.
        """
        return await self._takers[type(step)](step.broker_id)

    # ---- A broker that comes ----

    async def _ask_for_room(self, broker_id: int) -> str:
        await asyncio.to_thread(scaling_rooms.ask, self._spec, broker_id)
        return ""

    async def _drop_room(self, broker_id: int) -> str:
        await asyncio.to_thread(scaling_rooms.drop, self._spec.name, broker_id)
        return ""

    async def _make(self, broker_id: int) -> str:
        """Makes the directories and the actor, which waits for the resources of its room, then gives the room back."""
        room = (await asyncio.to_thread(scaling_rooms.find, self._spec.name)).get(broker_id)
        if room is None or not room.ray_node_id:
            return "its room has gone"
        placement = NodePlacement(with_scaled(self._spec, [broker_id]), broker_id, room.ray_node_id)
        await asyncio.to_thread(run_on, room.ray_node_id, make_directories, placement, self._looks.cluster_id)
        await asyncio.to_thread(node_handles.create, placement)
        return await self._drop_room(broker_id)

    # ---- A broker that goes ----

    async def _leave(self, broker_id: int) -> str:
        """Makes the active controller mark the broker and move its replicas. Returns why not all of them can move."""
        try:
            answer = await self._looks.ask(DrainBrokerRequest(broker_id, DrainCause.SCALING))
        except (InvalidReplicationFactor, InvalidRequest) as error:
            return str(error)
        return answer.no_room

    async def _stay(self, broker_id: int) -> str:
        await mark_brokers(self._looks.ask, LEAVING, {broker_id: None}, is_scaling=True)
        return ""

    async def _stop(self, broker_id: int) -> str:
        handle = await asyncio.to_thread(node_handles.find, self._spec.name, broker_id)
        if handle is not None:
            process = await node_handles.process_of(handle, _ANSWER_TIMEOUT_S)
            directories = node_directories(with_scaled(self._spec, [broker_id]), broker_id)
            await node_handles.stop(self._spec.name, {broker_id: handle})
            if process is not None:
                await asyncio.to_thread(run_on, process.ray_node_id, remove_after, process.pid, directories)
        return ""

    async def _forget(self, broker_id: int) -> str:
        """Removes the directories that an interrupted stop has left, then makes the controller forget the broker. The
        broker is marked as long as it is registered, so the next planner would remove the directories again.
        """
        homes = await asyncio.to_thread(node_handles.last_homes, self._spec.name, [broker_id])
        ray_nodes = await asyncio.to_thread(live_ray_nodes)
        home = homes.get(broker_id, "")
        directories = node_directories(with_scaled(self._spec, [broker_id]), broker_id)
        if home in ray_nodes:
            await asyncio.to_thread(run_on, home, remove_directories, directories)
        else:
            name = actor_name(self._spec.name, broker_id)
            _logger.warning(
                "%s: %s went with its Ray node %s", name, ", ".join(directories), home or "unknown"
            )
        await self._looks.ask(UnregisterBrokerRequest(broker_id))
        return ""


def remove_after(pid: int, directories: Collection[str]) -> None:
    """Removes the directories of a node as soon as its process has gone. Runs on its machine. Ray takes an idle machine
    soon, and its disk may stay.
    """
    node_handles.await_exit(pid)
    remove_directories(directories)


def make_directories(placement: NodePlacement, cluster_id: str) -> None:
    """Makes the directories of a node that comes. Leaves those that an interrupted step made. Runs on the node's
    machine. Raises StorageError if another disk is there.
    """
    for path, found in look_at(placement.directories).items():
        is_own = found.node_id == placement.node_id and found.cluster_id in ("", cluster_id)
        if found.problem or (found.is_formatted and not is_own):
            said = found.problem or f"belongs to {node_name(found.node_id)} of cluster {found.cluster_id}"
            raise StorageError(f"{path} is to be made for {node_name(placement.node_id)}, but {said}")
    random = SystemRandom()
    format_brokers([(placement, {path: random_uuid(random) for path in placement.directories})])
