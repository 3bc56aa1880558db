"""What a controller node does for replicated partitions: ISRs proposed, brokers that end, leaders that return."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from uuid import UUID

import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.controller.controller_timers import RETURNED_CHECK_INTERVAL_MS
from rayka.errors import StaleBrokerEpoch
from rayka.node.controller_node import ControllerNode
from rayka.protocol.membership import (
    AlterPartitionItem,
    AlterPartitionRequest,
    HeartbeatRequest,
    IsrMember,
    MetadataPartition,
    MetadataRequest,
    RegisteredDirectory,
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
    directories=(RegisteredDirectory(UUID(int=10), "/data/broker-2"),),
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
    processes: dict[int, UUID]

    @classmethod
    async def start(cls) -> "Cluster":
        node = await new_cluster(MemoryDisk(), config=CONFIG)
        await node.handle(SECOND_BROKER)
        brokers = (await node.handle(MetadataRequest(()))).brokers
        cluster = cls(
            node, {each.node_id: each.broker_epoch for each in brokers}, UUID(int=0), dict(FIRST_PROCESSES)
        )
        await cluster.beat(2)
        created = await node.handle(CreateTopicsRequest((NewTopic("orders", 1, 2),)))
        cluster.topic_id = created.topics[0].topic_id
        return cluster

    async def beat(self, broker_id: int) -> None:
        offset = (await self.node.handle(MetadataRequest(()))).metadata_offset
        await self.node.handle(HeartbeatRequest(broker_id, self.epochs[broker_id], offset, False, False))

    async def partition(self) -> MetadataPartition:
        return (await self.node.handle(MetadataRequest(("orders",)))).topics[0].partitions[0]

    async def end(self, broker_id: int) -> bool:
        """Whether it is fenced."""
        request = ReportExitRequest(broker_id, self.processes[broker_id])
        return (await self.node.handle(request)).is_fenced

    async def restart(self, broker_id: int) -> None:
        self.processes[broker_id] = UUID(int=100 + self.processes[broker_id].int)
        again = registration(
            broker_id=broker_id,
            incarnation_id=self.processes[broker_id],
            directories=(RegisteredDirectory(UUID(int=8 + broker_id), f"/data/broker-{broker_id}"),),
        )
        self.epochs[broker_id] = (await self.node.handle(again)).broker_epoch
        await self.beat(broker_id)

    async def s_until_led_again(self, preferred_id: int, *, partition_epoch: int) -> float:
        """The preferred replica ends, is back and in sync; how long it then takes until it leads."""
        await self.end(preferred_id)
        await self.restart(preferred_id)
        await self.propose(3 - preferred_id, partition_epoch)
        assert (await self.partition()).leader_id == 3 - preferred_id
        now_s = asyncio.get_running_loop().time
        begin_s = now_s()
        end = (await self.node.handle(MetadataRequest(()))).metadata_offset
        await self.node.handle(MetadataRequest(("orders",), end + 1))  # what the timer writes
        return now_s() - begin_s

    async def propose(self, leader_id: int, partition_epoch: int) -> tuple[int, ...]:
        """That both are in sync; the ISR of the answer."""
        members = tuple(IsrMember(each, epoch) for each, epoch in self.epochs.items())
        item = AlterPartitionItem(
            self.topic_id, 0, (await self.partition()).leader_epoch, partition_epoch, members
        )
        request = AlterPartitionRequest(leader_id, self.epochs[leader_id], (item,))
        return (await self.node.handle(request)).partitions[0].isr


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
async def test_a_preferred_replica_that_is_back_and_in_sync_leads_again_soon(cluster: Cluster) -> None:  # B46
    before = await cluster.partition()
    assert (
        await cluster.s_until_led_again(before.leader_id, partition_epoch=1)
        <= RETURNED_CHECK_INTERVAL_MS / 1000
    )
    after = await cluster.partition()
    assert (after.leader_id, after.leader_epoch) == (before.leader_id, before.leader_epoch + 2)


@scenario
async def test_one_that_comes_and_goes_leads_again_after_a_while(cluster: Cluster) -> None:  # B46, A68
    preferred_id = (await cluster.partition()).leader_id
    await cluster.s_until_led_again(preferred_id, partition_epoch=1)
    waited_s = await cluster.s_until_led_again(preferred_id, partition_epoch=4)
    assert CONFIG.leader_imbalance_check_interval_seconds / 2 < waited_s
    assert (await cluster.partition()).leader_id == preferred_id
