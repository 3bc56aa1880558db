"""Records with keys: each goes to the partition of its key, and most of them there without the producer's lock."""

import threading
import time

import pyarrow as pa
import pytest

from rayka import Producer
from rayka.client.producer.delivery_future import DeliveryFuture
from rayka.client.producer.record_columns import KEYS_MAX, RememberedHashes
from rayka.errors import ClosedError
from rayka.protocol.batch_decode import decode
from rayka.protocol.murmur2 import partition_for_key
from tests.client.support import QUICK, ScriptedCluster

WAIT_S = 10
LINGERS = {"linger_ms": 60_000}


def fill(producer: Producer, key: bytes, count: int = 20, topic: str = "orders") -> list[DeliveryFuture]:
    """So many records of a key: the last of them go to an open batch."""
    sent = [producer.send(topic, b"%d" % number, key=key) for number in range(count)]
    assert sent[-1].batch.limit_bytes > 0
    return sent


# ---- Partitions ----


def test_a_key_keeps_the_partition_that_kafka_gives_it():
    hashes = RememberedHashes()
    keys = [b"", b"UA", b"a longer key", b"x" * 1000]
    for count in (7, 7, 8):
        assert [hashes[each] % count for each in keys] == [partition_for_key(each, count) for each in keys]


def test_no_more_keys_are_remembered_than_the_bound_and_no_long_ones():
    hashes = RememberedHashes()
    for number in range(KEYS_MAX + 10):
        assert hashes[b"%d" % number] % 7 == partition_for_key(b"%d" % number, 7)
    assert len(hashes) == 10
    assert hashes[b"x" * 257] % 7 == partition_for_key(b"x" * 257, 7)
    assert len(hashes) == 10


def test_all_topics_of_a_producer_share_what_is_remembered():
    topics = [f"topic-{number}" for number in range(20)]
    with Producer(ScriptedCluster(dict.fromkeys(topics, 3)), **LINGERS) as producer:
        for topic in topics:
            fill(producer, b"key", topic=topic)
        assert len(producer._accumulator.topics.hash_of) == 1


def test_keys_go_to_other_partitions_when_some_are_added():
    cluster = ScriptedCluster({"orders": 1})
    key = next(key for key in map(b"%d".__mod__, range(100)) if partition_for_key(key, 8) == 5)
    with Producer(cluster, **LINGERS) as producer:
        before = fill(producer, key)
        cluster.topics["orders"] = 8
        cluster.metadata_offset += 1
        producer.send("orders", b"learns", partition=7)
        after = fill(producer, key)
        producer.flush(WAIT_S)
        assert {each.result(0).partition for each in before} == {0}
        assert {each.result(0).partition for each in after} == {5}


# ---- Without the lock ----


def test_once_a_partition_has_a_few_its_batch_takes_records_without_the_lock():
    cluster = ScriptedCluster({"orders": 1})
    sent: list[DeliveryFuture] = []
    with Producer(cluster, **LINGERS) as producer:
        fill(producer, b"key")
        with producer._accumulator._lock:
            thread = threading.Thread(
                target=lambda: sent.append(producer.send("orders", b"last", key=b"other"))
            )
            thread.start()
            thread.join(WAIT_S)
            assert len(sent) == 1
        producer.flush(WAIT_S)
        assert sent[0].result(0).offset == 20
    (batch,) = cluster.logs["orders", 0]
    assert decode(batch).keys_list() == [b"key"] * 20 + [b"other"]
    assert decode(batch).values_list() == [*(b"%d" % number for number in range(20)), b"last"]


def test_ways_to_send_keep_the_order_of_a_partition():
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **LINGERS) as producer:
        before_ms = time.time_ns() // 1_000_000
        for first in range(0, 200, 20):
            for number in range(first, first + 14):
                producer.send("orders", b"%d" % number, key=b"key")
            producer.send("orders", b"%d" % (first + 14))
            producer.send("orders", b"%d" % (first + 15), key=b"key", headers={"h": b"1"})
            producer.send("orders", b"%d" % (first + 16), key=b"key", timestamp_ms=7)
            producer.send("orders", b"%d" % (first + 17), key=b"other", partition=0)
            columns = {"value": [b"%d" % (first + 18), b"%d" % (first + 19)], "key": [b"key", b"other"]}
            producer.send_batch("orders", pa.record_batch(columns))
        producer.flush(WAIT_S)
        after_ms = time.time_ns() // 1_000_000
    batches = [decode(each) for each in cluster.logs["orders", 0]]
    values = [value for each in batches for value in each.values_list()]
    stamps = [each for batch in batches for each in batch.timestamps_ms.tolist()]
    assert values == [b"%d" % number for number in range(200)]
    assert [each for each in stamps if not before_ms <= each <= after_ms] == [7] * 10
    assert stamps[16::20] == [7] * 10


@pytest.mark.usefixtures("hectic_threads")
def test_offsets_are_right_for_every_record_of_several_threads():
    cluster = ScriptedCluster({"orders": 2})
    futures: dict[bytes, DeliveryFuture] = {}
    with Producer(cluster, **QUICK, batch_size=5_000) as producer:

        def send(name: int) -> None:
            for number in range(2_000):
                value = b"%d:%d" % (name, number)
                futures[value] = producer.send("orders", value, key=b"%d" % (number % 10))

        threads = [threading.Thread(target=send, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(WAIT_S)
        logs = [cluster.values("orders", partition) for partition in range(2)]
        for value, future in futures.items():
            sent = future.result(0)
            assert sent.partition == partition_for_key(b"%d" % (int(value.split(b":")[1]) % 10), 2)
            assert logs[sent.partition][sent.offset] == value
    assert sum(map(len, logs)) == len(futures) == 6_000


# ---- What closes the quick way ----


def test_a_closed_producer_takes_no_keyed_record():
    producer = Producer(ScriptedCluster({"orders": 1}), **LINGERS)
    sent = fill(producer, b"key")
    producer.close(WAIT_S)
    assert [each.result(0).offset for each in sent] == list(range(20))
    with pytest.raises(ClosedError, match="make a new Producer"):
        producer.send("orders", b"late", key=b"key")


def test_after_its_topic_was_deleted_a_batch_takes_no_keyed_record():
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **LINGERS) as producer:
        fill(producer, b"key")
        (deleted,) = producer._accumulator.remove_topic("orders")
        later = producer.send("orders", b"to another of that name", key=b"key")
        assert later.batch is not deleted
        producer.flush(WAIT_S)
    assert cluster.values("orders", 0) == [b"to another of that name"]


def test_what_serializers_partitioners_and_interceptors_must_see_never_goes_the_quick_way():
    class Marks:
        def on_send(self, record):
            return record._replace(value=record.value + b"!")

    for options, key, sent in (
        ({"key_serializer": lambda key: key + b"!"}, b"key!", b"v"),
        ({"value_serializer": lambda value: value + b"!"}, b"key", b"v!"),
        ({"interceptors": [Marks()]}, b"key", b"v!"),
    ):
        cluster = ScriptedCluster({"orders": 1})
        with Producer(cluster, **LINGERS, **options) as producer:
            for _ in range(20):
                producer.send("orders", b"v", key=b"key")
        (batch,) = cluster.logs["orders", 0]
        assert decode(batch).keys_list() == [key] * 20
        assert decode(batch).values_list() == [sent] * 20
    cluster = ScriptedCluster({"orders": 3})
    with Producer(cluster, **LINGERS, partitioner=lambda key, every, _: len(every) - 1) as producer:
        for _ in range(20):
            producer.send("orders", b"v", key=b"key")
    assert cluster.values("orders", 2) == [b"v"] * 20
