"""From fetched bytes to records and Arrow batches, and the positions that follow (G4, G16)."""

import json

import numpy as np
import pytest

from rayka.client.consumer.delivery import Delivery
from rayka.client.consumer.fetch_buffer import Fetched
from rayka.config.client_config import ConsumerConfig
from rayka.errors import CorruptRecord
from rayka.ids import TopicPartition
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import RecordBatch

FLIGHTS = TopicPartition("flights", 3)


def batch_at(base_offset: int, values: list[bytes | None], **columns: object) -> np.ndarray:
    encoded = encode_batch(values, timestamps_ms=1_000, **columns)  # type: ignore[arg-type]
    stamped = RecordBatch(memoryview(encoded)).stamped(base_offset=base_offset, leader_epoch=0)
    return np.frombuffer(b"".join(bytes(each) for each in stamped), dtype=np.uint8)


def fetched(fetch_offset: int, next_offset: int, *batches: np.ndarray) -> Fetched:
    return Fetched(FLIGHTS, 1, fetch_offset, next_offset, (np.concatenate(batches),))


def test_records_before_the_fetch_offset_are_dropped():  # G4
    delivery = Delivery()
    delivery.add([fetched(12, 20, batch_at(10, [b"%d" % n for n in range(10)]))])
    assert [record.offset for record in delivery.next_records(100)] == list(range(12, 20))


def test_records_come_whole():
    delivery = Delivery()
    headers = [[("source", b"faa"), ("source", None)]]
    delivery.add([fetched(7, 8, batch_at(7, [b"v"], keys=[b"k"], headers=headers))])
    (record,) = delivery.next_records(1)
    assert (record.topic, record.partition, record.offset, record.timestamp_ms) == ("flights", 3, 7, 1_000)
    assert (record.key, record.value, record.headers) == (b"k", b"v", [("source", b"faa"), ("source", None)])


def test_a_position_moves_with_what_was_handed_over_and_ends_at_the_brokers_next_offset():  # G16
    delivery = Delivery()
    delivery.add([fetched(0, 25, batch_at(0, [b""] * 10))])
    assert len(delivery.next_records(4)) == 4
    assert delivery.position(FLIGHTS) == 4
    assert len(delivery.next_records(100)) == 6
    assert delivery.next_records(1) == []
    assert delivery.position(FLIGHTS) == 25


def test_what_a_loop_did_not_take_stays():
    delivery = Delivery()
    delivery.add([fetched(0, 10, batch_at(0, [b""] * 10))])
    iterator = delivery.iterator()
    assert iterator is not None
    assert [next(iterator).offset for _ in range(3)] == [0, 1, 2]
    assert delivery.position(FLIGHTS) == 3
    assert [record.offset for record in delivery.next_records(2)] == [3, 4]
    arrow = delivery.next_arrow()
    assert arrow is not None
    assert arrow["offset"].to_pylist() == [5, 6, 7, 8, 9]
    assert delivery.next_arrow() is None


def test_small_batches_become_one_arrow_batch():
    delivery = Delivery()
    delivery.add([fetched(0, 6, batch_at(0, [b"a", None]), batch_at(2, [b"b"] * 4))])
    arrow = delivery.next_arrow()
    assert arrow is not None
    assert arrow["value"].to_pylist() == [b"a", None, b"b", b"b", b"b", b"b"]
    assert arrow["topic"].to_pylist() == ["flights"] * 6
    assert arrow["headers"].null_count == 6


def test_an_end_offset_cuts():
    delivery = Delivery(end_offsets={FLIGHTS: 5})
    delivery.add([fetched(2, 10, batch_at(0, [b""] * 10))])
    assert [record.offset for record in delivery.next_records(100)] == [2, 3, 4]
    assert delivery.next_records(1) == []
    position = delivery.position(FLIGHTS)
    assert position is not None
    assert position >= 5


def test_control_batches_are_passed_over_but_move_the_position():
    delivery = Delivery()
    delivery.add([fetched(0, 1, batch_at(0, [b"marker"], is_control=True))])
    assert delivery.next_records(10) == []
    assert delivery.position(FLIGHTS) == 1


def test_a_bit_flip_is_an_error_that_names_partition_and_offset_and_nothing_is_skipped():
    broken = batch_at(5, [b"value" * 10]).copy()
    broken[-20] ^= 1
    delivery = Delivery()
    delivery.add([fetched(0, 6, batch_at(0, [b"good"] * 5), broken)])
    assert len(delivery.next_records(5)) == 5
    for _ in range(2):
        with pytest.raises(CorruptRecord, match=r"flights-3.*seek to 6"):
            delivery.next_records(5)
    assert delivery.position(FLIGHTS) == 5


def test_a_batch_with_a_wrong_offset_is_an_error_that_names_the_offset_right_behind_it():
    wrong, good = batch_at(500, [b"value"] * 3), batch_at(3, [b"good"] * 2)
    for batches in ((wrong, good, batch_at(5, [b"good"])), (wrong, good[:80])):
        delivery = Delivery()
        delivery.add([fetched(0, 6, *batches)])
        hint = "seek to 3 to go on behind it" if len(batches) == 3 else "seek to 6 to go on behind what"
        with pytest.raises(CorruptRecord, match=rf"flights-3: expected .*{hint}"):
            delivery.next_records(5)


def test_values_are_deserialized_but_not_tombstones():
    delivery = Delivery(ConsumerConfig(value_deserializer=json.loads))
    delivery.add([fetched(0, 2, batch_at(0, [b'{"a": 1}', None]))])
    assert [record.value for record in delivery.next_records(2)] == [{"a": 1}, None]


def test_seeking_forgets_what_was_fetched():
    delivery = Delivery()
    delivery.add([fetched(0, 10, batch_at(0, [b""] * 10))])
    delivery.next_records(3)
    delivery.drop(FLIGHTS)
    assert delivery.next_records(10) == []
    assert delivery.position(FLIGHTS) is None


def test_records_without_headers_have_an_empty_list_that_cannot_be_changed():
    delivery = Delivery()
    delivery.add([fetched(0, 2, batch_at(0, [b"a", b"b"]))])
    first, second = delivery.next_records(2)
    assert (first.headers, isinstance(first.headers, list)) == ([], True)
    with pytest.raises(TypeError, match="cannot be changed"):
        first.headers.append(("source", b"faa"))
    assert second.headers == []


def test_after_a_reset_backwards_nothing_is_skipped():  # G16
    delivery = Delivery()
    delivery.add([fetched(0, 10, batch_at(0, [b"old"] * 10))])
    assert len(delivery.next_records(100)) == 10
    delivery.add([fetched(4, 8, batch_at(4, [b"new"] * 4))._replace(position_version=2)])
    assert [(each.offset, each.value) for each in delivery.next_records(100)] == [
        (offset, b"new") for offset in range(4, 8)
    ]
    assert delivery.position(FLIGHTS) == 8
