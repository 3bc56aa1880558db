"""State machines that brokers host on internal topics: where they are hosted, and what ends them."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from rayka.errors import ErrorCode, NotLeaderOrFollower, StorageError
from rayka.ids import NO_EPOCH
from rayka.node.broker_node import BrokerNode
from rayka.node.inbox import completed
from rayka.partition.partition import Partition
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.produce import ACKS_ALL, ProducePartition, ProduceRequest
from rayka.protocol.topics import DeleteRecordsPartition, DeleteRecordsRequest
from rayka.sim.registers import REGISTERS_TOPIC, Get, Put, Register, registers_type
from tests.node.log_support import until
from tests.node.state_machine_support import OnPartition, active, active_shard, ask
from tests.partition.support import append_one


@pytest.fixture
def cluster() -> Iterator[OnPartition]:
    made = OnPartition()
    yield made
    made.close()


def run(cluster: OnPartition, scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await cluster.start()
            await scenario

    cluster.run(bounded())


def broker_of(cluster: OnPartition, node_id: int) -> BrokerNode:
    broker = cluster.simulation.cluster.machines[node_id].broker
    assert broker is not None
    return broker


async def led(cluster: OnPartition) -> tuple[BrokerNode, Partition]:
    """The broker that leads the partition, and its replica."""
    node_id = await active(cluster)
    return broker_of(cluster, node_id), cluster.partition_on(node_id)


def test_an_internal_topic_that_is_there_is_created_by_no_second_broker(cluster: OnPartition) -> None:
    async def scenario() -> None:
        await until(lambda: sorted(cluster.shards()) == [1, 2, 3])
        partition = cluster.partition_on(1)
        await broker_of(cluster, 2).create_internal_topic(registers_type().topic)
        assert cluster.partition_on(1) is partition

    run(cluster, scenario())


def test_a_client_neither_writes_to_an_internal_topic_nor_deletes_its_records(cluster: OnPartition) -> None:
    async def scenario() -> None:
        broker, partition = await led(cluster)
        records = encode_batch([b"mine"], timestamps_ms=1)
        produced = ProducePartition(partition.topic_id, 0, records)
        response = await completed(broker.handle(ProduceRequest(ACKS_ALL, 1000, (produced,))))
        assert response.partitions[0].error_code is ErrorCode.INVALID_TOPIC_EXCEPTION
        deletion = DeleteRecordsRequest(1000, (DeleteRecordsPartition(partition.topic_id, 0, -1),))
        deleted = await completed(broker.handle(deletion))
        assert deleted.partitions[0].error_code is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert partition.log.log_end_offset == 0

    run(cluster, scenario())


def test_a_broker_that_hosts_no_replica_says_so_with_the_error_of_the_shard(cluster: OnPartition) -> None:
    async def scenario() -> None:
        await until(lambda: 1 in cluster.shards())
        with pytest.raises(NotLeaderOrFollower, match="broker-1 does not host __registers-7"):
            broker_of(cluster, 1).shards.get(REGISTERS_TOPIC, 7)
        assert broker_of(cluster, 1).shards.get(REGISTERS_TOPIC, 0) is cluster.shards()[1]

    run(cluster, scenario())


def test_a_broker_that_stops_hands_its_shards_over(cluster: OnPartition) -> None:  # H5
    async def scenario() -> None:
        await ask(cluster, Put("a", "1"))
        leader = await active(cluster)
        await broker_of(cluster, leader).stop()
        cluster.kill(leader)
        assert await ask(cluster, Get("a")) == Register("1", 1)

    run(cluster, scenario())


def test_a_refused_append_changes_nothing_and_the_shard_goes_on(cluster: OnPartition) -> None:  # B15
    async def scenario() -> None:
        await ask(cluster, Put("a", "1"))
        leader = await active(cluster)
        for node_id in list(cluster.shards()):
            if node_id != leader:
                cluster.kill(node_id)
        partition = cluster.partition_on(leader)
        await until(lambda: partition.isr == (leader,))
        shard = await active_shard(cluster)
        assert shard.shard.registers == {"a": Register("1", 1)}
        refused = asyncio.ensure_future(shard.submit(Put("a", "2")))
        await asyncio.wait([refused])
        assert refused.exception() is not None
        assert refused.exception().code is ErrorCode.NOT_ENOUGH_REPLICAS  # type: ignore[union-attr]
        assert shard.shard.registers == {"a": Register("1", 1)}

    run(cluster, scenario())


def test_a_log_that_is_opened_anew_gets_another_shard(cluster: OnPartition) -> None:
    async def scenario() -> None:
        await ask(cluster, Put("a", "1"))
        broker, partition = await led(cluster)
        before = broker.shards.get(REGISTERS_TOPIC, 0)
        key = (partition.topic_id, 0)
        # 1. The disk is full in the middle of an append. 2. The log is opened again, in the same leader epoch.
        partition.log.failure = StorageError("half an append")
        assert broker._parts is not None
        broker._parts.replicas.parked.wake(key)
        await until(lambda: key not in broker.shards.shards)
        partition.log.failure = None
        broker._parts.replicas.parked.wake(key)
        await until(lambda: broker.shards.shards.get(key) not in (None, before))
        assert await ask(cluster, Get("a")) == Register("1", 1)

    run(cluster, scenario())


def test_a_deleted_topic_is_hosted_no_more(cluster: OnPartition) -> None:
    async def scenario() -> None:
        shard = await active_shard(cluster)
        await cluster.delete_topic(REGISTERS_TOPIC)
        await until(lambda: cluster.shards() == {})
        with pytest.raises(NotLeaderOrFollower):
            await shard.submit(Get("a"))

    run(cluster, scenario())


def test_records_that_cannot_be_read_are_loaded_once_and_the_broker_lives(
    cluster: OnPartition, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await ask(cluster, Put("a", "1"))
        broker, partition = await led(cluster)
        foreign = encode_batch([b"\xc1 no register"], keys=[b"a"], timestamps_ms=1)
        append_one(partition.as_leader(), foreign, ACKS_ALL, now_ms=0, timestamp_ms=1)
        await until(lambda: partition.high_watermark == 2)
        shard = broker.shards.get(REGISTERS_TOPIC, 0)
        shard.end(shard.not_here("begins anew"))  # as after a change of leaders
        assert broker._parts is not None
        broker._parts.replicas.parked.wake((partition.topic_id, 0))
        await asyncio.sleep(1)
        with pytest.raises(NotLeaderOrFollower, match="the record at offset 1"):
            await broker.shards.get(REGISTERS_TOPIC, 0).submit(Get("a"))
        assert partition.failure is None
        assert partition.leader_epoch > NO_EPOCH

    run(cluster, scenario())
