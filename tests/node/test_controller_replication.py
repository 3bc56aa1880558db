"""What a controller node does for replicated partitions: ISRs proposed, brokers that end, leaders that return."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from uuid import UUID

import pytest

from rayka.config import BrokerConfig
from rayka.errors import StaleBrokerEpoch
from rayka.node.controller_node import ControllerNode
from rayka.protocol.cluster import HeartbeatRequest, LogDirectory, MetadataPartition, MetadataRequest
from rayka.protocol.replication import (
    AlterPartitionItem,
    AlterPartitionRequest,
    IsrMember,
    ReportExitRequest,
)
from rayka.protocol.topics import CreateTopicsRequest, NewTopic
from rayka.testing.memory_disk import MemoryDisk
from tests.node.controller_support import new_cluster, registration
from tests.node.log_support import run

FIRST_PROCESSES = {1: UUID(int=5), 2: UUID(int=6)}
SECOND_BROKER = registration(
    broker_id=2,
    incarnation_id=FIRST_PROCESSES[2],
    directories=(LogDirectory(UUID(int=10), "/data/broker-2"),),
)
CONFIG = BrokerConfig(
    leader_imbalance_check_interval_seconds=20,
    broker_session_timeout_ms=1_000_000,
    metadata_max_idle_interval_ms=0,
)


@dataclass
class Cluster:
    """Two brokers run, and `orders` has one partition on both."""

    node: ControllerNode
    epochs: dict[int, int]
    topic_id: UUID

    @classmethod
    async def start(cls) -> "Cluster":
        node = await new_cluster(MemoryDisk(), config=CONFIG)
        await node.register_broker(SECOND_BROKER)
        brokers = (await node.metadata(MetadataRequest(()))).brokers
        cluster = cls(node, {each.node_id: each.broker_epoch for each in brokers}, UUID(int=0))
        await cluster.beat(2)
        created = await node.create_topics(CreateTopicsRequest((NewTopic("orders", 1, 2),)))
        cluster.topic_id = created.topics[0].topic_id
        return cluster

    async def beat(self, broker_id: int) -> None:
        offset = (await self.node.metadata(MetadataRequest(()))).metadata_offset
        await self.node.heartbeat(HeartbeatRequest(broker_id, self.epochs[broker_id], offset, False, False))

    async def partition(self) -> MetadataPartition:
        return (await self.node.metadata(MetadataRequest(("orders",)))).topics[0].partitions[0]

    async def end(self, broker_id: int) -> bool:
        """Whether it is fenced."""
        request = ReportExitRequest(broker_id, FIRST_PROCESSES[broker_id])
        return (await self.node.report_exit(request)).is_fenced

    async def restart(self, broker_id: int) -> None:
        again = registration(
            broker_id=broker_id,
            incarnation_id=UUID(int=100 + broker_id),
            directories=(LogDirectory(UUID(int=8 + broker_id), f"/data/broker-{broker_id}"),),
        )
        self.epochs[broker_id] = (await self.node.register_broker(again)).broker_epoch
        await self.beat(broker_id)

    async def propose(self, leader_id: int, partition_epoch: int) -> tuple[int, ...]:
        """That both are in sync; the ISR of the answer."""
        members = tuple(IsrMember(each, epoch) for each, epoch in self.epochs.items())
        item = AlterPartitionItem(
            self.topic_id, 0, (await self.partition()).leader_epoch, partition_epoch, members
        )
        request = AlterPartitionRequest(leader_id, self.epochs[leader_id], (item,))
        return (await self.node.alter_partition(request)).partitions[0].isr


def scenario(test: Callable[[Cluster], Coroutine[None, None, None]]) -> Callable[[], None]:
    """The test on virtual time."""

    async def whole() -> None:
        await test(await Cluster.start())

    def proven() -> None:
        run(whole())

    proven.__name__, proven.__doc__ = test.__name__, test.__doc__
    return proven


@scenario
async def test_a_broker_whose_process_ended_is_fenced_before_its_session_ends(cluster: Cluster) -> None:  # H6
    leader_id = (await cluster.partition()).leader_id
    assert await cluster.end(leader_id)
    other_id = 3 - leader_id
    after = await cluster.partition()
    assert (after.leader_id, after.isr) == (other_id, (other_id,))
    with pytest.raises(StaleBrokerEpoch, match="exit of this process was reported"):
        await cluster.beat(leader_id)


@scenario
async def test_an_isr_that_was_proposed_is_committed_when_it_is_answered(
    cluster: Cluster,
) -> None:  # B13, A65
    leader_id = (await cluster.partition()).leader_id
    other_id = 3 - leader_id
    await cluster.end(other_id)
    await cluster.restart(other_id)
    assert (await cluster.partition()).isr == (leader_id,)
    assert sorted(await cluster.propose(leader_id, partition_epoch=1)) == [1, 2]
    assert sorted((await cluster.partition()).isr) == [1, 2]


@scenario
async def test_the_preferred_replica_leads_again_after_a_while(cluster: Cluster) -> None:  # B46, A68
    before = await cluster.partition()
    preferred_id = before.leader_id
    await cluster.end(preferred_id)
    await cluster.restart(preferred_id)
    await cluster.propose(3 - preferred_id, partition_epoch=1)
    assert (await cluster.partition()).leader_id == 3 - preferred_id
    end = (await cluster.node.metadata(MetadataRequest(()))).metadata_offset
    await cluster.node.metadata(MetadataRequest(("orders",), end + 1))  # what the timer writes
    after = await cluster.partition()
    assert (after.leader_id, after.leader_epoch) == (preferred_id, before.leader_epoch + 2)
