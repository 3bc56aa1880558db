"""The cluster that a scaler works on, as it is on Ray. Steps are taken there, in the metadata and on disks; each may be
repeated, by the next planner too.
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
    Move,
    ReturnRoom,
    Seen,
    Stay,
    Step,
    Stop,
    grown,
)
from rayka.client.admin.admin_results import BrokerDescription, TopicDescription
from rayka.client.admin.broker_asks import mark_brokers, reassign, record_event
from rayka.client.admin.drain_plan import Plan, drain_plan
from rayka.client.admin.reported_disks import ReportedDisks
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import InvalidReplicationFactor, NoDiskRoom, StorageError
from rayka.ids import NO_NODE, Role, TopicPartition, node_name, random_uuid, role_of
from rayka.protocol.configs import LEAVING
from rayka.protocol.load import DescribeLoadRequest
from rayka.protocol.topics import UnregisterBrokerRequest

_ANSWER_TIMEOUT_S = 15.0
_logger = logging.getLogger(__name__)


class ScaledCluster:
    """A `ScalingPort`. Steps are taken one at a time."""

    def __init__(self, spec: ClusterSpec, looks: ClusterLooks) -> None:
        self._spec = spec
        self._looks = looks
        self._takers: Mapping[type[Step], Callable[[int], Coroutine[Any, Any, str]]] = {
            AskForRoom: self._ask_for_room,
            DropRoom: self._drop_room,
            ReturnRoom: self._drop_room,
            Make: self._make,
            Leave: self._leave,
            Stay: self._stay,
            Move: self._move,
            Stop: self._stop,
            Forget: self._forget,
        }

    def __repr__(self) -> str:
        return f"<ScaledCluster {self._spec.name}>"

    async def see(self) -> Mapping[Role, Seen] | None:
        if await asyncio.to_thread(is_starting, self._spec.name):
            return None
        return await self._looks.see()

    async def record(self, kind: str, broker_id: int, reason: str) -> None:
        await record_event(self._looks.ask, wall_clock_ms(), kind, (broker_id,), reason)

    async def take(self, step: Step) -> str:
        """Why the step was not taken; empty where it was. Raises RaykaError, TimeoutError and what Ray raises: the next
        look shows how far it came.
        """
        return await self._takers[type(step)](step.broker_id)

    # ---- One that comes ----

    async def _ask_for_room(self, broker_id: int) -> str:
        await asyncio.to_thread(scaling_rooms.ask, self._spec, broker_id)
        return ""

    async def _drop_room(self, broker_id: int) -> str:
        await asyncio.to_thread(scaling_rooms.drop, self._spec.name, broker_id)
        return ""

    async def _make(self, broker_id: int) -> str:
        """The actor waits for what its room holds until that is given back."""
        room = (await asyncio.to_thread(scaling_rooms.find, self._spec.name)).get(broker_id)
        if room is None or not room.ray_node_id:
            return "its room has gone"
        placement = NodePlacement(grown(self._spec, [broker_id]), broker_id, room.ray_node_id)
        await asyncio.to_thread(run_on, room.ray_node_id, make_directories, placement, self._looks.cluster_id)
        await asyncio.to_thread(node_handles.create, placement)
        return await self._drop_room(broker_id)

    # ---- One that goes ----

    async def _leave(self, broker_id: int) -> str:
        try:
            _, refusal = await self._drain_plan(broker_id)
        except (InvalidReplicationFactor, NoDiskRoom) as error:
            return str(error)
        return refusal or await self._mark(broker_id, "true")

    async def _stay(self, broker_id: int) -> str:
        return await self._mark(broker_id, None)

    async def _move(self, broker_id: int) -> str:
        try:
            plan, refusal = await self._drain_plan(broker_id)
        except (InvalidReplicationFactor, NoDiskRoom) as error:
            plan, refusal = {}, str(error)
        if refusal and not plan:
            await self._stay(broker_id)
            return refusal
        chosen = sorted(plan.items())[: await self._looks.moves_max()]
        return await reassign(self._looks.ask, dict(chosen))

    async def _stop(self, broker_id: int) -> str:
        handle = await asyncio.to_thread(node_handles.find, self._spec.name, broker_id)
        if handle is not None:
            process = await node_handles.process_of(handle, _ANSWER_TIMEOUT_S)
            directories = node_directories(grown(self._spec, [broker_id]), broker_id)
            await node_handles.stop(self._spec.name, {broker_id: handle})
            if process is not None:
                await asyncio.to_thread(run_on, process.ray_node_id, remove_after, process.pid, directories)
        return ""

    async def _forget(self, broker_id: int) -> str:
        """What an interrupted stop has left of its directories first: while it is registered it is marked, so the next
        planner removes them again.
        """
        homes = await asyncio.to_thread(node_handles.last_homes, self._spec.name, [broker_id])
        ray_nodes = await asyncio.to_thread(live_ray_nodes)
        home = homes.get(broker_id, "")
        directories = node_directories(grown(self._spec, [broker_id]), broker_id)
        if home in ray_nodes:
            await asyncio.to_thread(run_on, home, remove_directories, directories)
        else:
            name = actor_name(self._spec.name, broker_id)
            _logger.warning(
                "%s: %s went with its Ray node %s", name, ", ".join(directories), home or "unknown"
            )
        await self._looks.ask(UnregisterBrokerRequest(broker_id))
        return ""

    async def _mark(self, broker_id: int, value: str | None) -> str:
        await mark_brokers(self._looks.ask, LEAVING, {broker_id: value}, is_scaling=True)
        return ""

    async def _drain_plan(self, broker_id: int) -> tuple[Plan, str]:
        """What may move; and why not all of it, as the move of a partition that no broker leads could not end."""
        cluster = await self._looks.topics()
        closed = await self._looks.closed(cluster.brokers)
        load = await self._looks.ask(DescribeLoadRequest())

        def plan() -> tuple[Plan, str]:
            brokers = [BrokerDescription.of(each, cluster.topics) for each in cluster.brokers]
            topics = [TopicDescription.of(each) for each in cluster.topics]
            whole = drain_plan(broker_id, brokers, topics, closed, ReportedDisks(load))
            return without_leaderless(broker_id, whole, topics)

        return await asyncio.to_thread(plan)  # 0.3 s for 30,000 partitions


def without_leaderless(broker_id: int, plan: Plan, topics: Collection[TopicDescription]) -> tuple[Plan, str]:
    """The plan for those partitions that a broker leads; and what to say of the others."""
    leaderless = {
        TopicPartition(topic.name, each.partition)
        for topic in topics
        for each in topic.partitions
        if each.leader_id == NO_NODE
    }
    left = [each for each in plan if each in leaderless]
    if not left:
        return plan, ""
    said = (
        f"of the partitions on {role_of(broker_id)} {broker_id} no broker leads {len(left):,}, such as {min(left)!r}: "
        "nothing is there to copy from"
    )
    return {tp: to for tp, to in plan.items() if tp not in leaderless}, said


def remove_after(pid: int, directories: Collection[str]) -> None:
    """Removes the directories of a node once its process has gone. Runs on its machine, and at once: Ray takes an idle
    machine soon, whose disk may stay.
    """
    node_handles.await_exit(pid)
    remove_directories(directories)


def make_directories(placement: NodePlacement, cluster_id: str) -> None:
    """Makes the directories of a node that comes, on the machine; those that an interrupted step made stay. Raises
    StorageError where another disk is there.
    """
    for path, found in look_at(placement.directories).items():
        is_own = found.node_id == placement.node_id and found.cluster_id in ("", cluster_id)
        if found.problem or (found.is_formatted and not is_own):
            said = found.problem or f"belongs to {node_name(found.node_id)} of cluster {found.cluster_id}"
            raise StorageError(f"{path} is to be made for {node_name(placement.node_id)}, but {said}")
    random = SystemRandom()
    format_brokers([(placement, {path: random_uuid(random) for path in placement.directories})])
