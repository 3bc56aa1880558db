"""Idempotent producers as a broker sees them: ids, duplicates, restarts (C3, C8, C12)."""

import asyncio

import numpy as np
import pytest

from rayka.errors import BrokerNotAvailable, ErrorCode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import ProducerSequence
from rayka.protocol.produce import InitProducerIdRequest, ProducePartitionResult
from rayka.testing import InProcessCluster
from tests.node.broker_support import BROKER, CONTROLLER, Topic, create_topic, memory_cluster, run


def sequenced(base_sequence: int, *values: bytes, epoch: int = 0) -> np.ndarray:
    sequence = ProducerSequence(7, epoch, base_sequence)
    return encode_batch(list(values), timestamps_ms=1_700_000_000_000, sequence=sequence)


def produce(topic: Topic, batch: np.ndarray, partition: int = 0) -> ProducePartitionResult:
    return run(topic.a_produce({partition: batch})).partitions[0]


def new_ids(cluster: InProcessCluster, count: int) -> list[int]:
    topic = Topic(cluster, "unused")

    async def all_together() -> list[int]:
        responses = await asyncio.gather(*(topic.a_call(InitProducerIdRequest()) for _ in range(count)))
        assert {each.producer_epoch for each in responses} == {0}
        return [each.producer_id for each in responses]

    return run(all_together())


def test_ids_come_from_blocks_and_none_comes_twice() -> None:  # C12
    with memory_cluster() as cluster:
        assert new_ids(cluster, 1500) == list(range(1500))


def test_what_was_left_of_a_block_is_not_given_out_after_a_restart() -> None:  # C12
    with memory_cluster() as cluster:
        assert new_ids(cluster, 2) == [0, 1]
        cluster.kill(BROKER)
        cluster.restart(BROKER)
        assert new_ids(cluster, 2) == [1000, 1001]
        cluster.restart(CONTROLLER)
        cluster.restart(BROKER)
        assert new_ids(cluster, 2) == [2000, 2001]


def test_without_a_controller_a_broker_with_an_empty_block_is_not_available() -> None:  # C12
    with memory_cluster() as cluster:
        cluster.fail_calls("allocate_producer_ids", times=1)
        with pytest.raises(BrokerNotAvailable, match="no producer ids left"):
            new_ids(cluster, 1)
        assert new_ids(cluster, 1) == [0]


def test_a_batch_sent_again_is_acknowledged_with_its_offset() -> None:  # C3
    with memory_cluster() as cluster:
        topic = create_topic(cluster)
        first = produce(topic, sequenced(0, b"a", b"b"))
        produce(topic, sequenced(2, b"c"))
        assert produce(topic, sequenced(0, b"a", b"b")) == first
        assert topic.values() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("flush", ["none", "batch"])
def test_a_restart_forgets_no_batch(flush: str) -> None:  # C3, C9, C10
    with memory_cluster() as cluster:
        topic = create_topic(cluster, flush=flush)
        for number in range(5):
            produce(topic, sequenced(number, b"%d" % number))
        for is_killed in (True, False):
            if is_killed:
                cluster.kill(BROKER)
            cluster.restart(BROKER)
            again = [produce(topic, sequenced(number, b"%d" % number)) for number in range(5)]
            assert [each.base_offset for each in again] == list(range(5))
        assert produce(topic, sequenced(6, b"gap")).error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert topic.values() == [b"%d" % number for number in range(5)]


def test_a_duplicate_has_the_time_that_the_topic_gave_it() -> None:  # C3
    with memory_cluster() as cluster:
        topic = create_topic(cluster, message_timestamp_type="LogAppendTime")
        first = produce(topic, sequenced(0, b"a"))
        again = produce(topic, sequenced(0, b"a"))
        assert first.log_append_time_ms == again.log_append_time_ms > 0


def test_each_partition_of_a_request_has_an_answer_of_its_own() -> None:  # C5
    with memory_cluster() as cluster:
        topic = create_topic(cluster, partitions=2)
        produce(topic, sequenced(0, b"a"), 0)
        response = run(topic.a_produce({0: sequenced(5, b"gap"), 1: sequenced(5, b"first")}))
        assert [each.error_code for each in response.partitions] == [
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ErrorCode.NONE,
        ]


def test_a_silent_producer_is_forgotten_after_its_time() -> None:  # C8
    with memory_cluster(producer_id_expiration_ms=1, producer_id_expiration_check_interval_ms=1) as cluster:
        topic = create_topic(cluster)
        produce(topic, sequenced(0, b"a"))

        async def until_forgotten() -> None:
            while (await topic.a_produce({0: sequenced(9, b"b")})).partitions[0].error_code:
                pass

        run(until_forgotten())
        assert topic.values() == [b"a", b"b"]
