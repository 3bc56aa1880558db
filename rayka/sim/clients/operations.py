"""What an operator asks about partitions with records while everything goes wrong: other replicas, the preferred
leader, another min ISR, fewer records; and in the end, for a partition whose last known replicas are on disks that are
gone, an unclean election.

Each attempt is made once: what is refused, or fails, is as good as what is done.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from rayka.errors import ApiError
from rayka.ids import NO_NODE, TopicPartition
from rayka.ports import Request
from rayka.protocol.active_controller import ActiveController
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.topics import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    ElectionType,
    ElectLeadersRequest,
    NewPartitions,
    Reassignment,
)
from rayka.sim.checks.partition_states import PartitionStates
from rayka.sim.checks.partition_truth import PartitionTruth
from rayka.sim.checks.replica_views import Replication
from rayka.sim.clients.acting import Acting
from rayka.sim.run_options import GROUP_OPERATOR_ID, OPERATOR_ID, TopicPlan
from rayka.sim.world.machines import SimCluster

_TIMEOUT_MS = 3_000


class PartitionOperator(Acting):
    """An operator of the partitions of a run."""

    def __init__(self, cluster: SimCluster, replication: Replication, states: PartitionStates) -> None:
        super().__init__(cluster, OPERATOR_ID)
        self._replication = replication
        self._states = states
        self._network = cluster.network.port(self.process)
        self._active = ActiveController(self._network)
        self._random = Random(f"operations {cluster.options.seed}")
        self._rescue: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to ask."""
        if self.options.topics and self.options.operations_per_minute:
            self.begin("operations", self._run())

    def stop_asking(self) -> None:
        """No new operations; a reassignment under way goes on."""
        for each in self.tasks:
            each.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1) * 60 / self.options.operations_per_minute)
            truths = [each for each in self._replication.truths.values() if each.name.startswith("data")]
            if truths:
                await self._operate(self._random.choice(truths))

    async def _operate(self, truth: PartitionTruth) -> None:
        draw, topic = self._random.random(), truth.name.rpartition("-")[0]
        if draw < 0.4:
            await self._ask(truth, self._reassignment(truth, topic))
        elif draw < 0.6:
            await self._ask(truth, ElectLeadersRequest(ElectionType.PREFERRED))
        elif draw < 0.8:
            change = ConfigChange("min.insync.replicas", AlterConfigOp.SET, self._random.choice(("1", "2")))
            resource = AlteredResource(ResourceType.TOPIC, topic, (change,))
            await self._ask(truth, IncrementalAlterConfigsRequest((resource,)))
        else:
            await self._delete_records(truth)

    def _reassignment(self, truth: PartitionTruth, topic: str) -> AlterPartitionReassignmentsRequest:
        brokers = list(self.options.broker_ids)
        self._random.shuffle(brokers)
        count = self._random.choice((1, 2, 3))
        replicas = None if self._random.random() < 0.2 else tuple(brokers[:count])
        return AlterPartitionReassignmentsRequest((Reassignment(topic, truth.number, replicas),))

    async def _delete_records(self, truth: PartitionTruth) -> None:
        """Deletes up to a random committed offset, or up to the high watermark."""
        state = self._replication.state_of(truth)
        if state is None or not state.has_leader:
            return
        before = self._random.choice((-1, int(truth.end * self._random.random())))
        partition = DeleteRecordsPartition(truth.topic_id, truth.number, before)
        truth.deleted_up_to = max(truth.deleted_up_to, truth.end if before < 0 else before)
        truth.is_deleted_to_the_end = truth.is_deleted_to_the_end or before < 0
        await self._ask(truth, DeleteRecordsRequest(_TIMEOUT_MS, (partition,)), state.leader_id)

    async def _ask(self, truth: PartitionTruth, request: Request[object], node_id: int = NO_NODE) -> None:
        self._tell(truth, f"{request!r}"[:150])
        try:
            if node_id == NO_NODE:
                response = await self._active.call(request, _TIMEOUT_MS)
            else:
                response = await self._network.call(node_id, request, _TIMEOUT_MS)
        except ApiError as error:
            self._tell(truth, f"failed: {error.code.name}")
        else:
            self._tell(truth, f"{response!r}"[:150])

    def _tell(self, truth: PartitionTruth, what: str) -> None:
        self.tell("operate", f"{truth.name}: {what}")

    # ---- The end -----------------------------------------------------------------------------------------------------

    def rescue(self) -> None:
        """Elects a live replica uncleanly for a partition that no replica may lead, as an operator does in the end."""
        leaderless = [each for each in self._replication.truths.values() if self._states.needs_rescue(each)]
        if leaderless and (self._rescue is None or self._rescue.done()):
            self._rescue = self.begin("rescue", self._rescue_all(leaderless))

    async def _rescue_all(self, truths: list[PartitionTruth]) -> None:
        for truth in truths:
            topic = truth.name.rpartition("-")[0]
            self._states.unclean_asked[topic] = None
            partitions = (TopicPartition(topic, truth.number),)
            await self._ask(truth, ElectLeadersRequest(ElectionType.UNCLEAN, partitions))


# Topics that get more partitions while producers write to them and a group reads them.
#
# An operator asks for them, once each time; what is committed is what clients are told of, whether its answer came or
# not.


_PAUSE_S = 4.0
_LOOK_S = 0.25


class TopicGrowth(Acting):
    """The topics of a run that grows them. `on_added` is called for each partition when it is committed."""

    def __init__(self, cluster: SimCluster, replication: Replication) -> None:
        super().__init__(cluster, GROUP_OPERATOR_ID)
        self.on_added: Callable[[Sequence[TopicPartition]], None] = lambda partitions: None
        self._plan = cluster.options.group
        self._replication = replication
        self._known: dict[str, int] = {}  # partitions by topic
        self._random = Random(f"growth {cluster.options.seed}")
        self._is_on = bool(cluster.options.group_member_ids) and self._plan.grows

    def __repr__(self) -> str:
        return f"<TopicGrowth {self._known}>"

    def start(self, topics: Sequence[TopicPlan]) -> None:
        """Topics that have been created, and may grow from now on."""
        self._known |= {each.name: each.partition_count for each in topics}
        if self._is_on and not self.tasks:
            for each in (self._ask(), self._look()):
                self.begin("growth", each)

    def stop_asking(self) -> None:
        """No new ones; what is asked for may be done yet."""
        for each in self.tasks[:1]:
            each.cancel()

    async def _ask(self) -> None:
        active = ActiveController(self.cluster.network.port(self.process))
        while True:
            await asyncio.sleep(self._random.expovariate(1) * _PAUSE_S)
            name = self._random.choice(list(self._known))
            count = self._plan.next_partition_count(self._known[name])
            if count == self._known[name]:
                continue
            self.tell("grow", f"{name} to {count} partitions")
            try:
                await active.call(CreatePartitionsRequest((NewPartitions(name, count),)), _TIMEOUT_MS)
            except ApiError as error:
                self.tell("grow", f"{name}: {error.code.name}")

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for name, known in self._known.items():
                topic = self._replication.image.topics.get(name)
                count = known if topic is None else len(topic.partitions)
                self._known[name] = count
                self.on_added([TopicPartition(name, number) for number in range(known, count)])
