"""The cluster that a drainer works on, as it is on Ray."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import TypeVar

from rayka.actors import launch
from rayka.actors.draining.drain_planner import Mark, Move, Quorum, Resign, Seen, Step, Stop, Unmark
from rayka.actors.names import NAMESPACE, actor_name, running_node_ids
from rayka.actors.node_placement import wall_clock_ms
from rayka.actors.ray_network import RayNetwork
from rayka.actors.ray_records import draining_ray_nodes, last_places
from rayka.actors.start_lock import is_starting
from rayka.client.admin.admin_configs import DRAIN_DEADLINE, closed_brokers, drain_deadline_ms
from rayka.client.admin.admin_quorum import ask_quorum
from rayka.config import ClusterSpec
from rayka.errors import ApiError, ErrorCode, error_for
from rayka.ids import TopicPartition, node_name
from rayka.node.controller_link import ControllerLink
from rayka.ports import Request
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    ConfigResourceName,
    DescribeConfigsRequest,
    DescribedConfig,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.events import REASON_LENGTH_MAX, SUBJECTS_MAX, RecordEventRequest
from rayka.protocol.membership import MetadataRequest
from rayka.protocol.partition_admin import (
    AlterPartitionReassignmentsRequest,
    DescribeLogDirsRequest,
    Reassignment,
)
from rayka.protocol.quorum_messages import ResignRequest

_RATE = "reassignment.replication.throttled.rate"
_MOVES_MAX = "balancer.moves.max"
_NO_TOPIC = ("",)  # so that no partition is named
_CALL_TIMEOUT_MS = 2_000
_ANSWER_TIMEOUT_S = 10.0
ResponseT = TypeVar("ResponseT")


class DrainedCluster:
    """A `DrainPort`, used on one event loop."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        self._network = RayNetwork(spec.name)
        self._link = ControllerLink(self._network)
        self._has_marks = True  # until it is known that there are none

    def __repr__(self) -> str:
        return f"<DrainedCluster {self._spec.name}>"

    # ---- Looking -----------------------------------------------------------------------------------------------------

    async def see(self) -> Seen | None:
        """One call to Ray, where no machine is drained and no broker is marked; all topics are asked for only where a
        node of the cluster is on one.
        """
        announced = await asyncio.to_thread(draining_ray_nodes)
        if not announced and not self._has_marks:
            return None
        cluster = await self._ask(MetadataRequest(_NO_TOPIC)) if self._has_marks else None
        broker_ids = [each.node_id for each in cluster.brokers] if cluster is not None else []
        actors = await asyncio.to_thread(running_node_ids, self._spec.name)
        drains = await asyncio.to_thread(self._drains, announced, {*actors, *broker_ids})
        if drains:
            cluster = await self._ask(MetadataRequest())
            broker_ids = [each.node_id for each in cluster.brokers]
        if cluster is None:
            return None
        described = await self._described(broker_ids)
        marks = {each: ms for each, config in described.items() if (ms := drain_deadline_ms(config)) >= 0}
        self._has_marks = bool(marks)
        if not drains and not marks:
            return None
        directories = {each.node_id: [path.path for path in each.directories] for each in cluster.brokers}
        return Seen(
            now_ms=wall_clock_ms(),
            drains=drains,
            marks=marks,
            cluster=cluster,
            quorum=await self._quorum(actors),
            closed=closed_brokers(described.values(), directories),
            sizes=await self._sizes([each for each in broker_ids if each in drains and each in actors]),
            actors=actors,
            moves_max=_least(described.values(), _MOVES_MAX),
            bytes_per_s=_least(described.values(), _RATE),
            is_changing=await asyncio.to_thread(is_starting, self._spec.name),
        )

    def _drains(self, announced: Mapping[str, int], node_ids: Collection[int]) -> dict[int, int]:
        """Of these nodes those whose last process was on a Ray node that is drained."""
        if not announced:
            return {}
        names = {actor_name(self._spec.name, each): each for each in sorted(node_ids)}
        homes = {
            names[name]: place.processes[-1].ray_node_id
            for name, place in last_places(NAMESPACE, names).items()
            if place.processes
        }
        return {each: announced[home] for each, home in homes.items() if home in announced}

    async def _described(self, broker_ids: Collection[int]) -> dict[int, DescribedConfig]:
        if not broker_ids:
            return {}
        names = tuple(ConfigResourceName(ResourceType.BROKER, str(each)) for each in broker_ids)
        resources = (await self._ask(DescribeConfigsRequest(names))).resources
        return dict(zip(broker_ids, resources, strict=True))

    async def _quorum(self, node_ids: Collection[int]) -> Quorum:
        found, _ = await ask_quorum(self._network, node_ids, _CALL_TIMEOUT_MS)
        if found is None:
            return Quorum()
        voters = tuple(each.replica.node_id for each in found.voters)
        return Quorum(found.leader_id, found.leader_epoch, voters)

    async def _sizes(self, broker_ids: Collection[int]) -> dict[int, dict[TopicPartition, int]]:
        """Of what those of the brokers hold that answer."""
        sizes: dict[int, dict[TopicPartition, int]] = {}
        for broker_id in broker_ids:
            with suppress(ApiError):
                found = await self._network.call(broker_id, DescribeLogDirsRequest(), _CALL_TIMEOUT_MS)
                sizes[broker_id] = {
                    TopicPartition(each.topic, each.partition): each.size_bytes
                    for directory in found.directories
                    for each in directory.replicas
                }
        return sizes

    async def _ask(self, request: Request[ResponseT]) -> ResponseT:
        """What the active controller answers. Raises TimeoutError where none does in time."""
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            return await self._link.call_until_answered(request, _CALL_TIMEOUT_MS)

    # ---- Acting ------------------------------------------------------------------------------------------------------

    async def take(self, step: Step) -> str:
        match step:
            case Mark():
                await self._configure({each: str(ms) for each, ms in step.deadlines_ms.items()})
                self._has_marks = True
            case Unmark():
                await self._configure(dict.fromkeys(step.node_ids))
            case Resign(node_ids=(node_id,)):
                request = ResignRequest(step.leader_epoch, step.successors)
                answer = await self._network.call(node_id, request, _CALL_TIMEOUT_MS)
                return "" if answer.error_code is ErrorCode.NONE else answer.error_code.name
            case Stop():
                found = {
                    each: await asyncio.to_thread(launch.find, self._spec.name, each)
                    for each in step.node_ids
                }
                await launch.stop(self._spec.name, {each: handle for each, handle in found.items() if handle})
            case Move() if step.plan:
                wanted = tuple(Reassignment(tp.topic, tp.partition, to) for tp, to in step.plan.items())
                results = (await self._ask(AlterPartitionReassignmentsRequest(wanted))).partitions
                refused = [each for each in results if each.error_code is not ErrorCode.NONE]
                return "; ".join(f"{each.topic}-{each.partition}: {each.error_message}" for each in refused)
        return ""

    async def _configure(self, marks: Mapping[int, str | None]) -> None:
        """In one request, so that no lead goes from one broker whose machine goes to the next."""
        altered = tuple(
            AlteredResource(
                ResourceType.BROKER,
                str(broker_id),
                (
                    ConfigChange(
                        DRAIN_DEADLINE,
                        AlterConfigOp.DELETE if value is None else AlterConfigOp.SET,
                        value or "",
                    ),
                ),
            )
            for broker_id, value in marks.items()
        )
        for result in (await self._ask(IncrementalAlterConfigsRequest(altered))).resources:
            if result.error_code is not ErrorCode.NONE:
                raise error_for(result.error_code, result.error_message)

    async def record(self, kind: str, node_ids: tuple[int, ...], reason: str) -> None:
        subjects = tuple(map(node_name, node_ids[:SUBJECTS_MAX]))
        await self._ask(RecordEventRequest(wall_clock_ms(), kind, subjects, reason[:REASON_LENGTH_MAX]))


def _least(configs: Iterable[DescribedConfig], name: str) -> int:
    return min(int(entry.value) for each in configs for entry in each.entries if entry.name == name)
