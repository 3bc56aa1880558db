"""The application's own partitioner, and the shortest queue that is chosen without one."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from rayka import Producer
from rayka.errors import ConfigError, UnknownTopicOrPartition
from rayka.protocol.murmur2 import partition_for_key
from tests.client.support import QUICK, ScriptedCluster

WAIT_S = 60
Calls = list[tuple[bytes | None, Sequence[int], Sequence[int]]]


def by_last_byte(key: bytes | None, partitions: Sequence[int], available: Sequence[int]) -> int | None:
    return None if key is None else key[-1] % len(partitions)


def test_a_partitioner_chooses_by_key_and_partitions():
    calls: Calls = []

    def choose(key: bytes | None, partitions: Sequence[int], available: Sequence[int]) -> int:
        calls.append((key, partitions, available))
        return 2

    with Producer(ScriptedCluster(), partitioner=choose, **QUICK) as producer:
        sent = [producer.send("orders", b"v", key=b"k"), producer.send("orders", b"v")]
        assert [each.result(WAIT_S).partition for each in sent] == [2, 2]
        assert producer.send("orders", b"v", key=b"k", partition=1).result(WAIT_S).partition == 1
    assert calls == [(b"k", (0, 1, 2), (0, 1, 2)), (None, (0, 1, 2), (0, 1, 2))]


def test_a_key_is_serialized_before_it_is_placed():
    with Producer(ScriptedCluster(), partitioner=by_last_byte, key_serializer="string", **QUICK) as producer:
        assert producer.send("orders", b"v", key="\x04").result(WAIT_S).partition == 1


def test_where_a_partitioner_chooses_nothing_the_producer_does():
    def choose(*_: object) -> None:
        return None

    with Producer(ScriptedCluster({"orders": 7}), partitioner=choose, **QUICK) as producer:
        keyed = producer.send("orders", b"v", key=b"UA").result(WAIT_S)
        assert keyed.partition == partition_for_key(b"UA", 7)
        assert producer.send("orders", b"v").result(WAIT_S).offset >= 0


def test_partitions_without_a_leader_are_not_available():
    cluster, calls = ScriptedCluster(), Calls()

    def choose(key: bytes | None, partitions: Sequence[int], available: Sequence[int]) -> int:
        calls.append((key, partitions, available))
        return 0

    cluster.move_leaders(-1)
    with Producer(cluster, partitioner=choose, **QUICK) as producer:
        producer.send("orders", b"v")
        cluster.move_leaders(1)
    assert calls == [(None, (0, 1, 2), ())]


def test_records_of_a_batch_are_placed_one_by_one():
    cluster = ScriptedCluster()
    columns = {
        "key": pa.array([b"\x00", b"\x01", None, b"\x02", b"\x01"], pa.binary()),
        "value": pa.array([b"a", b"b", b"c", b"d", b"e"]),
        "partition": pa.array([None, None, 2, None, 0], pa.int32()),
    }
    with Producer(cluster, partitioner=by_last_byte, **QUICK) as producer:
        producer.send_batch("orders", pa.record_batch(columns)).result(WAIT_S)
        producer.send_batch("orders", pa.record_batch({"value": columns["value"]})).result(WAIT_S)
    first = [cluster.values("orders", each) for each in range(3)]
    assert first[0][:2] == [b"a", b"e"]
    assert first[1][:1] == [b"b"]
    assert first[2][:2] == [b"c", b"d"]


@pytest.mark.parametrize(
    ("chosen", "kind", "message"),
    [
        (3, UnknownTopicOrPartition, "it chose partition 3 of topic 'orders', which has 3"),
        (-1, UnknownTopicOrPartition, "it chose partition -1"),
        ("0", TypeError, "expected it to return int or None, found str"),
        (True, TypeError, "expected it to return int or None, found bool"),
    ],
)
def test_a_choice_that_is_none_is_named(chosen: Any, kind: type[Exception], message: str):
    with Producer(ScriptedCluster(), partitioner=lambda *_: chosen, **QUICK) as producer:
        with pytest.raises(kind, match=f"partitioner: {message}"):
            producer.send("orders", b"v")
        with pytest.raises(kind, match=f"partitioner: {message}"):
            producer.send_batch("orders", [b"v"])


def test_what_a_partitioner_raises_arrives_with_a_note_of_where():
    def choose(*_: object) -> int:
        raise LookupError("my own")

    with Producer(ScriptedCluster(), partitioner=choose, **QUICK) as producer:
        with pytest.raises(LookupError, match="my own") as raised:
            producer.send("orders", b"v", key=b"k")
    assert raised.value.__notes__ == ["raised by the producer's partitioner for topic 'orders', key b'k'"]


def test_a_partitioner_is_a_callable():
    with pytest.raises(ConfigError, match="partitioner: expected a callable"):
        Producer(ScriptedCluster(), partitioner="murmur2")  # type: ignore[arg-type]


def test_without_a_key_a_partition_whose_batches_do_not_go_gets_no_more_than_the_others():
    """Kafka chooses among queues with a probability by their length; here the shortest is taken."""
    cluster = ScriptedCluster({"orders": 4})
    with Producer(cluster, batch_size=2_000, linger_ms=60_000) as producer:
        cluster.hold()
        for _ in range(5):
            producer.send("orders", bytes(1_500), partition=3)
        for _ in range(9):
            producer.send("orders", bytes(1_500))
        cluster.release()
    counts = [len(cluster.values("orders", each)) for each in range(4)]
    assert counts == [3, 3, 3, 5]
