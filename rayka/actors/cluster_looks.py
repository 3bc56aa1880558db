"""The looks at a cluster whose brokers or coordinators come and go, and at the remains of former scaling.

The active controller and Ray are asked. Remains are left when a spec had a range and the next one has a number: marks
of brokers that were to go, and registrations of brokers that have gone. No planner looks at such a broker, so nothing
else would remove its mark, and it would take no new replica for ever.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypeVar

from rayka.actors import scaling_rooms
from rayka.actors.names import running_node_ids
from rayka.actors.ray_network import RayNetwork
from rayka.actors.ray_records import OVERDUE_S, free_resources
from rayka.actors.scaling_planner import RoleView, Room, ScaledBroker
from rayka.client.admin.admin_configs import is_leaving
from rayka.client.admin.broker_asks import NO_TOPIC, Ask, describe_brokers, mark_brokers, values_of
from rayka.clock import now_ms
from rayka.config.cluster_config import ClusterSpec
from rayka.ids import Role, is_internal, role_of
from rayka.node.controller_link import ControllerLink
from rayka.ports import Request
from rayka.protocol.configs import LEAVING
from rayka.protocol.drains import DescribeDrainsRequest
from rayka.protocol.load import DescribeLoadRequest
from rayka.protocol.membership import (
    MetadataBroker,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from rayka.protocol.topics import ListPartitionReassignmentsRequest

_UNAVAILABLE = "broker.unavailable.timeout.ms"
_CALL_TIMEOUT_MS = 2_000
_ANSWER_TIMEOUT_S = 10.0
ResponseT = TypeVar("ResponseT")


class ControllerAsk:
    """Asks the active controller of the cluster, as an `Ask`, on one event loop."""

    def __init__(self, network: RayNetwork) -> None:
        self._link = ControllerLink(network)

    async def __call__(self, request: Request[ResponseT]) -> ResponseT:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            return await self._link.call_until_answered(request, _CALL_TIMEOUT_MS)


class ClusterLooks:
    """Looks at one cluster, on one event loop."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        # For other questions to the active controller, too.
        self.ask = ControllerAsk(RayNetwork(spec.name))
        # By node, since when its room waits for a Ray node.
        self._room_since_s: dict[int, float] = {}
        self.cluster_id = ""

    async def see(self) -> dict[Role, RoleView]:
        """Returns the present state of each role whose nodes come and go. Asks for all topics only if one of these
        nodes goes, or is away. Raises TimeoutError while no controller answers.
        """
        cluster = await self.ask(MetadataRequest(()))
        self.cluster_id = cluster.cluster_id
        ranges = self._spec.ranges
        brokers = {each.node_id: each for each in cluster.brokers if not ranges.keys().isdisjoint(each.roles)}
        described = await describe_brokers(self.ask, brokers)
        leaving = {broker_id for broker_id, each in described.items() if is_leaving(each)}
        topics: tuple[MetadataTopic, ...] | None = None
        if leaving or not all(is_active(each) for each in brokers.values()):
            topics = (await self.ask(MetadataRequest())).topics
        counts = None if topics is None else await asyncio.to_thread(_replica_counts, topics)
        asked = (await self.ask(DescribeLoadRequest(NO_TOPIC))).brokers
        # Without brokers that have not reported yet.
        loads = {each.broker_id: each.report for each in asked if each.age_ms >= 0}
        moves = (await self.ask(ListPartitionReassignmentsRequest())).reassignments
        # As it is in force, which is the same for all brokers.
        in_force = values_of(_UNAVAILABLE, described.values())
        unavailable_ms = max(in_force, default=self._spec.config.broker_unavailable_timeout_ms)
        obstacles: dict[int, str] = {}
        if leaving:
            drains = (await self.ask(DescribeDrainsRequest())).drains
            obstacles = {each.broker_id: each.waits_for for each in drains if each.is_stuck}
        running, asked_for = await asyncio.to_thread(self._ask_ray)
        rooms_by_id = self._with_lacking(asked_for)
        return {
            role: RoleView(
                now_ms(),
                {
                    id: ScaledBroker(
                        is_active(each),
                        id in leaving,
                        loads.get(id),
                        None if counts is None else counts[id],
                        frozenset(directory.directory_id for directory in each.directories),
                        obstacles.get(id, ""),
                    )
                    for id, each in brokers.items()
                    if role in each.roles
                },
                {id: each for id, each in rooms_by_id.items() if role_of(id) is role},
                [each for each in running if role_of(each) is role],
                len(moves),
                factor_max(topics or (), cluster) if role is Role.BROKER else 1,
                unavailable_ms,
            )
            for role in ranges
        }

    def _ask_ray(self) -> tuple[Collection[int], dict[int, tuple[Room, str]]]:
        name = self._spec.name
        found = scaling_rooms.find(name)
        has_waiting = any(not each.ray_node_id for each in found.values())
        free = free_resources() if has_waiting else {}
        return running_node_ids(name), {
            id: (each, scaling_rooms.lacking(self._spec, id, free)) for id, each in found.items()
        }

    def _with_lacking(self, found: Mapping[int, tuple[Room, str]]) -> dict[int, Room]:
        now_s = asyncio.get_running_loop().time()
        waiting = [id for id, (room, _) in found.items() if not room.ray_node_id]
        self._room_since_s = {each: self._room_since_s.get(each, now_s) for each in waiting}
        overdue = [each for each in waiting if now_s - self._room_since_s[each] >= OVERDUE_S]
        return {id: Room(lacking=lacking) if id in overdue else room for id, (room, lacking) in found.items()}


def is_active(broker: MetadataBroker) -> bool:
    """Whether the broker serves, and does not stop."""
    return not broker.is_fenced and not broker.is_in_controlled_shutdown


def factor_max(topics: Collection[MetadataTopic], cluster: MetadataResponse) -> int:
    """Returns the most replicas of one partition that brokers have to hold. Coordinators hold some of an internal
    partition.
    """
    coordinators = sum(Role.BROKER not in each.roles for each in cluster.brokers)
    return max(
        (
            len([id for id in each.replicas if id not in each.removing_replicas])
            - (coordinators if is_internal(topic.name) else 0)
            for topic in topics
            for each in topic.partitions[:1]
        ),
        default=1,
    )


def _replica_counts(topics: Collection[MetadataTopic]) -> Counter[int]:
    return Counter(node_id for topic in topics for each in topic.partitions for node_id in each.replicas)


async def remove_leftover_marks(ask: Ask, ranged: Collection[Role]) -> list[int]:
    """Removes the marks of all brokers and coordinators but those of roles that come and go. Returns the marked
    ones.
    """
    cluster = await ask(MetadataRequest(NO_TOPIC))
    fixed = [each.node_id for each in cluster.brokers if set(ranged).isdisjoint(each.roles)]
    described = await describe_brokers(ask, fixed)
    marked = [each for each, config in described.items() if is_leaving(config)]
    if marked:
        await mark_brokers(ask, LEAVING, dict.fromkeys(marked))
    return marked


async def leftover_registrations(ask: Ask, spec: ClusterSpec, running: Collection[int]) -> list[int]:
    """Returns nodes of which scaling has left only the registration: marked, empty, without an actor, and not in the
    spec. Only the mark distinguishes them from nodes that are away for a while.
    """
    cluster = await ask(MetadataRequest())
    held = Counter(
        each for topic in cluster.topics for partition in topic.partitions for each in partition.replicas
    )
    gone = [
        each.node_id
        for each in cluster.brokers
        if each.node_id not in spec.roles
        and each.node_id not in running
        and not held[each.node_id]
        and spec.ranges.keys().isdisjoint(each.roles)
    ]
    described = await describe_brokers(ask, gone)
    return [each for each, config in described.items() if is_leaving(config)]
