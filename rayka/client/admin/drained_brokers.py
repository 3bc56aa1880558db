"""What a drain planner has to know of the cluster, and what its steps change there, over the network alone.

What Ray knows, which machines drain and which nodes run, is an argument. So the supervisor and the simulator share it
(decision 073). Starting and stopping nodes is left to the caller.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping

from rayka.client.admin.admin_configs import closed_brokers, drain_deadline_ms
from rayka.client.admin.admin_quorum import ask_quorum
from rayka.client.admin.broker_asks import (
    NO_TOPIC,
    Ask,
    describe_brokers,
    mark_brokers,
    reassign,
    record_event,
    values_of,
)
from rayka.client.admin.drain_planner import DrainPlanner
from rayka.client.admin.drain_steps import Mark, Move, Quorum, Resign, Seen, Step, Unmark
from rayka.client.admin.drain_survey import SLICE
from rayka.client.admin.reported_disks import NO_REPORTS, ReportedDisks
from rayka.errors import ApiError, ErrorCode
from rayka.ids import TopicPartition
from rayka.ports import Network
from rayka.protocol.configs import DRAIN_DEADLINE, MOVES_MAX
from rayka.protocol.load import DescribeLoadRequest
from rayka.protocol.membership import MetadataRequest
from rayka.protocol.quorum_messages import ResignRequest
from rayka.protocol.topics import DescribeLogDirsRequest

_RATE = "reassignment.replication.throttled.rate"
_CALL_TIMEOUT_MS = 2_000


async def next_step(planner: DrainPlanner, seen: Seen) -> Step | None:
    """What the planner plans; others have their turn meanwhile."""
    planning = planner.plan(seen)
    while True:
        try:
            next(planning)
        except StopIteration as end:
            step: Step | None = end.value
            return step
        await asyncio.sleep(0)


class DrainedBrokers:
    """The brokers and coordinators of one cluster."""

    def __init__(self, network: Network, ask: Ask, wall_clock_ms: Callable[[], int]) -> None:
        self._network = network
        self._ask = ask
        self._wall_clock_ms = wall_clock_ms

    def __repr__(self) -> str:
        return f"<DrainedBrokers over {self._network!r}>"

    # ---- Looking -----------------------------------------------------------------------------------------------------

    async def registered(self) -> list[int]:
        """All that the controller knows."""
        return [each.node_id for each in (await self._ask(MetadataRequest(NO_TOPIC))).brokers]

    async def see(
        self, drains: Mapping[int, int], actors: Collection[int], *, is_changing: bool = False
    ) -> Seen:
        """See `Seen`. All topics are asked for only where a node's machine drains."""
        cluster = await self._ask(MetadataRequest() if drains else MetadataRequest(NO_TOPIC))
        broker_ids = [each.node_id for each in cluster.brokers]
        described = await describe_brokers(self._ask, broker_ids)
        sizes = await self._sizes([each for each in broker_ids if each in drains and each in actors])
        directories = {each.node_id: [path.path for path in each.directories] for each in cluster.brokers}
        return Seen(
            now_ms=self._wall_clock_ms(),
            drains=drains,
            marks={each: ms for each, config in described.items() if (ms := drain_deadline_ms(config)) >= 0},
            cluster=cluster,
            quorum=await self._quorum(actors),
            closed=closed_brokers(described.values(), directories),
            disks=ReportedDisks(await self._ask(DescribeLoadRequest(NO_TOPIC))) if sizes else NO_REPORTS,
            sizes=sizes,
            actors=actors,
            # There are none while no broker is registered.
            moves_max=min(values_of(MOVES_MAX, described.values()), default=0),
            bytes_per_s=min(values_of(_RATE, described.values()), default=0),
            is_changing=is_changing,
        )

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
            try:
                found = await self._network.call(broker_id, DescribeLogDirsRequest(), _CALL_TIMEOUT_MS)
            except ApiError:
                continue
            sizes[broker_id] = {}
            for directory in found.directories:
                for number, each in enumerate(directory.replicas):
                    sizes[broker_id][TopicPartition(each.topic, each.partition)] = each.size_bytes
                    if number % SLICE == 0:
                        await asyncio.sleep(0)
        return sizes

    # ---- Acting ------------------------------------------------------------------------------------------------------

    async def take(self, step: Step) -> str:
        """Why the step was not taken, or not all of it; empty where it was. It may be repeated."""
        match step:
            case Mark():
                # In one request, so that no lead goes from one broker whose machine goes to the next.
                marks = {each: str(ms) for each, ms in step.deadlines_ms.items()}
                await mark_brokers(self._ask, DRAIN_DEADLINE, marks)
            case Unmark():
                await mark_brokers(self._ask, DRAIN_DEADLINE, dict.fromkeys(step.node_ids))
            case Resign(node_ids=(node_id,)):
                request = ResignRequest(step.leader_epoch, step.successors)
                answer = await self._network.call(node_id, request, _CALL_TIMEOUT_MS)
                return "" if answer.error_code is ErrorCode.NONE else answer.error_code.name
            case Move() if step.plan:
                return await reassign(self._ask, step.plan)
        return ""

    async def record(self, kind: str, node_ids: tuple[int, ...], reason: str) -> None:
        """Has it among the events of the cluster."""
        await record_event(self._ask, self._wall_clock_ms(), kind, node_ids, reason)
