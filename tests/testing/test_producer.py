"""The producer on the real nodes in this process: what only a broker decides (B15, B18, G10, G18)."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

import rayka
import rayka.testing
from rayka import Admin, Producer
from rayka.client import io_thread
from rayka.errors import InvalidTimestamp, RecordTooLarge
from rayka.testing import InProcessCluster

BROKER, WAIT_S = 1, 60
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(config={"log.retention.ms": -1}) as running:
        yield running


def topic(cluster: InProcessCluster, **configs: Any) -> str:
    name = f"orders-{next(_numbers)}"
    with Admin(cluster) as admin:
        admin.create_topic(name, partitions=2, configs=configs)
    return name


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_what_is_sent_can_be_read(cluster: InProcessCluster, acks: Any):  # B15, G10
    name = topic(cluster)
    with Producer(cluster, acks=acks) as producer:
        sent = [b"%d" % number for number in range(20_000)]
        for value in sent:
            producer.send(name, value)
    assert sorted(record.value for record in rayka.read(name, cluster=cluster)) == sorted(sent)


def test_partitions_that_are_added_reach_a_running_producer(cluster: InProcessCluster):
    name = topic(cluster)
    with Producer(cluster) as producer, Admin(cluster) as admin:
        producer.send(name, b"old", partition=1).result(WAIT_S)
        admin.create_partitions(name, 4)
        assert producer.send(name, b"new", partition=3).result(WAIT_S).offset == 0


@pytest.mark.parametrize("compression_type", ["none", "gzip", "lz4", "zstd"])
def test_compressed_records_can_be_read(cluster: InProcessCluster, compression_type: str):
    name = topic(cluster)
    data = pa.record_batch({"value": pa.array([b"%d" % number for number in range(5_000)])})
    with Producer(cluster, compression_type=compression_type) as producer:
        producer.send_batch(name, data).result(WAIT_S)
        producer.send(name, b"last", key=b"k").result(WAIT_S)
    assert sum(1 for _ in rayka.read(name, cluster=cluster)) == 5_001


def test_a_record_too_large_for_its_topic_is_refused_by_the_broker(cluster: InProcessCluster):  # B18
    name = topic(cluster, max_message_bytes=1_000)
    with Producer(cluster, linger_ms=0) as producer:
        with pytest.raises(RecordTooLarge, match=f"broker-1 of cluster 'testing', {name}-1"):
            producer.send(name, bytes(2_000), partition=1).result(WAIT_S)
        assert producer.send(name, bytes(500), partition=1).result(WAIT_S).offset == 0


def test_batches_fit_what_their_topic_allows(cluster: InProcessCluster):
    name = topic(cluster, max_message_bytes=1_000)
    with Producer(cluster) as producer:
        futures = [producer.send(name, bytes(100)) for _ in range(200)]
        runs = producer.send_batch(name, [bytes(100)] * 200)
        assert all(each.exception(WAIT_S) is None for each in futures)
        assert sum(each.record_count for each in runs.result(WAIT_S)) == 200


def test_a_timestamp_far_in_the_future_is_refused_by_the_broker(cluster: InProcessCluster):  # B18
    name = topic(cluster)
    with Producer(cluster, linger_ms=0) as producer, pytest.raises(InvalidTimestamp):
        producer.send(name, b"x", timestamp_ms=io_thread.wall_clock_ms() + 10**9).result(WAIT_S)


def test_a_topic_may_stamp_its_records_itself(cluster: InProcessCluster):
    name = topic(cluster, message_timestamp_type="LogAppendTime")
    with Producer(cluster, linger_ms=0) as producer:
        before_ms = io_thread.wall_clock_ms()
        metadata = producer.send(name, b"x", timestamp_ms=5).result(WAIT_S)
    assert metadata.timestamp_ms >= before_ms
    (record,) = rayka.read(name, cluster=cluster)
    assert record.timestamp_ms == metadata.timestamp_ms


def test_lost_calls_keep_the_order_of_a_partition(cluster: InProcessCluster):  # G18
    name = topic(cluster)
    with Producer(
        cluster, linger_ms=0, retry_backoff_ms=1, retry_backoff_max_ms=2, batch_size=2_000
    ) as producer:
        for number in range(500):
            if number % 50 == 0:
                cluster.fail_calls("produce", times=2)
            producer.send(name, b"%d" % number, partition=0)
        producer.flush(WAIT_S)
    assert [record.value for record in rayka.read(name, cluster=cluster)] == [b"%d" % n for n in range(500)]


def test_a_broker_that_restarts_is_waited_for(cluster: InProcessCluster):
    name = topic(cluster)
    with Producer(cluster, linger_ms=0, retry_backoff_ms=5) as producer:
        producer.send(name, b"before", partition=0).result(WAIT_S)
        cluster.kill(BROKER)
        waiting = producer.send(name, b"during", partition=0)
        cluster.restart(BROKER)
        assert waiting.result(WAIT_S).offset == 1


def test_a_topic_deleted_and_made_again_is_another_topic(cluster: InProcessCluster):
    name = topic(cluster)
    with Producer(cluster, linger_ms=0, retry_backoff_ms=1) as producer, Admin(cluster) as admin:
        producer.send(name, b"old", partition=1).result(WAIT_S)
        admin.delete_topic(name)
        admin.create_topic(name, partitions=2)
        assert producer.send(name, b"new", partition=1).result(WAIT_S).offset == 0
    assert [record.value for record in rayka.read(name, cluster=cluster)] == [b"new"]
