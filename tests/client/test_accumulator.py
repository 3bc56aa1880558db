"""The producer's brain: order, memory, partitioning, linger."""

from collections.abc import Callable, Iterable
from threading import Thread

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rayka.client.producer.accumulator import OPENED_AT, Accumulator
from rayka.client.producer.acknowledgement import PartEnd
from rayka.client.producer.arrow_input import Piece
from rayka.client.producer.delivery_future import DeliveryFuture
from rayka.client.producer.partition_queue import NEVER, STAMP_AGE_MS, Limits
from rayka.client.producer.producer_batch import BATCH_OVERHEAD_BYTES, ProducerBatch
from rayka.client.producer.record_columns import (
    KEYED_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Columns,
    Moment,
    PreparedRecord,
    Row,
)
from rayka.errors import ClosedError, RequestTimedOut, UnknownTopicOrPartition
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import Codec, RecordBatch, split_batches
from tests.client.support import OneLeader, expired, hold, new_accumulator, start_batch

RECORD_BYTES = 100 + RECORD_OVERHEAD_BYTES
VALUE = bytes(100)
WAIT_S = 60.0
LOST = RequestTimedOut("lost")


def accumulator(
    *,
    batch_bytes: int = 10_000,
    memory_bytes: int = 1 << 20,
    linger_ms: float = 5,
    partitions: int = 3,
    delivery_timeout_ms: float = 1_000,
) -> Accumulator:
    limits = Limits(batch_bytes, memory_bytes, linger_ms, delivery_timeout_ms)
    return new_accumulator(limits, partitions=partitions)


def append(
    to: Accumulator,
    value: bytes = VALUE,
    *,
    partition: int | None = None,
    now_ms: float = 0,
    timestamp_ms: int = 1,
) -> DeliveryFuture:
    size_bytes = len(value) + RECORD_OVERHEAD_BYTES
    future = to.try_append(
        PreparedRecord("orders", partition, value, size_bytes), Moment(now_ms, timestamp_ms)
    )
    assert future is not None
    return future


def append_to_open(to: Accumulator, timestamp_ms: int = 1) -> ProducerBatch:
    """The batch of two records, the second of which finds the sender woken and opens it."""
    append(to, timestamp_ms=timestamp_ms)
    batch = append(to, timestamp_ms=timestamp_ms).batch
    assert batch.limit_bytes == batch.granted_bytes
    return batch


def values_of(batch: ProducerBatch) -> list[bytes | None]:
    encoded = batch.encode(Codec.NONE, 1 << 30)
    return [value for each in split_batches(encoded) for value in decode(each).values_list()]


def partitions_of(batches: Iterable[ProducerBatch]) -> list[int]:
    return [each.partition for each in batches]


# ---- Partitioning ----


def test_records_without_a_key_stick_to_a_partition_until_its_batch_is_full():
    filling = accumulator(batch_bytes=BATCH_OVERHEAD_BYTES + 2 * RECORD_BYTES)
    assert partitions_of(append(filling).batch for _ in range(7)) == [0, 0, 1, 1, 2, 2, 0]


def test_the_next_sticky_partition_is_the_one_with_the_shortest_queue():
    filling = accumulator(batch_bytes=BATCH_OVERHEAD_BYTES + RECORD_BYTES)
    for partition in (0, 0, 1):
        append(filling, partition=partition)
    assert partitions_of(append(filling).batch for _ in range(4)) == [2, 1, 2, 0]


def test_records_with_and_without_a_partition_share_its_batch_in_order():
    filling = accumulator()
    futures = [append(filling, b"a"), append(filling, b"b", partition=0), append(filling, b"c")]
    assert len({id(each.batch) for each in futures}) == 1
    futures[0].batch.seal()
    assert values_of(futures[0].batch) == [b"a", b"b", b"c"]


def test_a_topic_may_bound_its_batches():
    filling = accumulator(batch_bytes=10_000)
    filling.set_topic("orders", 3, BATCH_OVERHEAD_BYTES + 3 * RECORD_BYTES)
    assert partitions_of(append(filling).batch for _ in range(4)) == [0, 0, 0, 1]


# ---- Lists of records ----


def append_keyed(to: Accumulator) -> ProducerBatch:
    future = to.try_append(PreparedRecord("orders", 0, Row(VALUE, b"key"), RECORD_BYTES), Moment(0, 1))
    assert future is not None
    return future.batch


def test_a_keyed_batch_leaves_its_list_once_for_the_next_of_its_partition():
    filling = accumulator(linger_ms=0)
    first = append_keyed(filling)
    records = first.records
    start_batch(filling, first)
    second = append_keyed(filling)
    assert second.records is records
    filling.defer(first, LOST, 0)
    start_batch(filling, first)  # sent again, it has none to give
    filling.topics.close(second)
    assert append_keyed(filling).records is not records
    assert (len(first), len(second)) == (1, 1)


def test_a_batch_that_was_filled_without_the_lock_keeps_its_list():
    filling = accumulator(linger_ms=0)
    batch = append_to_open(filling)
    records = batch.records
    start_batch(filling, batch)
    assert append(filling, partition=batch.partition).batch.records is not records


# ---- What may go ----


def test_a_batch_lingers_then_goes():
    filling = accumulator(linger_ms=5)
    batch = append(filling, now_ms=10).batch
    assert filling.ready(14.9) == []
    assert filling.schedule.reschedule(10) == 15
    assert filling.ready(15) == [batch]


def test_a_full_batch_goes_at_once():
    filling = accumulator(batch_bytes=BATCH_OVERHEAD_BYTES + RECORD_BYTES)
    full, filling_up = append(filling).batch, append(filling).batch
    assert filling.ready(0) == [full]
    assert filling_up.partition == 1


def test_a_caller_that_waits_ends_the_linger():
    filling = accumulator(linger_ms=1_000)
    batch = append(filling).batch
    assert filling.end_linger() == [batch]
    assert filling.ready(0) == [batch]


def test_one_batch_of_a_partition_is_in_flight_and_the_next_waits_for_its_end():
    filling = accumulator(linger_ms=0)
    first = append(filling, b"a", partition=0).batch
    start_batch(filling, first)
    second = append(filling, b"b", partition=0).batch
    assert filling.ready(100) == []
    filling.finish((first,), is_acknowledged=True)
    assert filling.ready(100) == [second]


def test_a_full_batch_behind_one_that_goes_is_ready_at_once():  # C11
    limits = Limits(10_000, 1 << 20, 0, 1_000, is_idempotent=True, in_flight_max=2)
    filling = new_accumulator(limits, partitions=1, producer_id=7)
    known = append(filling, partition=0).batch
    start_batch(filling, known)
    filling.finish((known,), is_acknowledged=True)
    first, second = (append(filling, bytes(9_000), partition=0).batch for _ in range(2))
    second.close()
    assert filling.ready(0) == [first]
    start_batch(filling, first)
    assert filling.ready(0) == [second]


def test_a_failed_batch_stays_first_and_pauses_its_partition():  # G18
    filling = accumulator(linger_ms=0)
    first = append(filling, partition=0).batch
    start_batch(filling, first)
    append(filling, partition=0)
    filling.defer(first, LOST, 50)
    assert filling.ready(49) == []
    assert filling.schedule.reschedule(20) == 50
    assert filling.ready(50) == [first]


def test_a_batch_that_had_its_time_expires_unless_it_is_in_flight():
    filling = accumulator(linger_ms=0, delivery_timeout_ms=100)
    batch = append(filling, partition=0).batch
    start_batch(filling, batch)
    assert expired(filling, 1_000) == []
    filling.defer(batch, LOST, 2_000)
    assert expired(filling, 99) == []
    assert expired(filling, 100) == [batch]


def test_batches_that_had_their_time_expire_together_and_the_next_one_is_looked_at_in_time():
    filling = accumulator(
        linger_ms=0, delivery_timeout_ms=100, batch_bytes=BATCH_OVERHEAD_BYTES + RECORD_BYTES
    )
    batches = [append(filling, partition=0, now_ms=now_ms).batch for now_ms in (0, 10, 20, 90)]
    start_batch(filling, batches[0])
    filling.defer(batches[0], LOST, 1_000)
    assert expired(filling, 130) == batches[:3]
    for batch in batches[:3]:
        filling.finish((batch,), is_acknowledged=False)
    assert filling.schedule.reschedule(130) == 190


def test_an_open_batch_that_failed_takes_no_more_records():
    filling = accumulator(delivery_timeout_ms=100)
    batch = append(filling).batch
    assert expired(filling, 100) == [batch]
    filling.finish((batch,), is_acknowledged=False)
    assert batch.limit_bytes < 0
    after = append(filling, now_ms=101).batch
    assert list(filling.batches()) == [after]


# ---- A record behind others ----


def append_next(to: Accumulator, partition: int = 0, size_bytes: int = RECORD_BYTES) -> DeliveryFuture | None:
    """A record whose key belongs to that partition."""
    to.topics.hash_of[b"key"] = partition
    return to.try_append(PreparedRecord("orders", None, VALUE, size_bytes, b"key"), Moment(2, 3))


def test_a_record_behind_others_goes_into_their_batch():
    filling = accumulator()
    first = append(filling, partition=0)
    future = append_next(filling)
    assert future is not None
    assert (future.batch, len(first.batch)) == (first.batch, 2)
    assert first.batch.size_bytes == BATCH_OVERHEAD_BYTES + 2 * RECORD_BYTES
    start_batch(filling, first.batch)
    batch = RecordBatch(first.batch.encode(Codec.NONE, 10_000))
    assert decode(batch).keys_list() == [None, b"key"]
    assert list(decode(batch).timestamps_ms) == [1, 3]


def test_a_record_that_needs_more_than_a_place_gets_a_batch_or_memory():
    filling = accumulator(batch_bytes=1 << 20)
    first = append_next(filling)
    assert first is not None
    batch, granted_bytes = first.batch, first.batch.granted_bytes
    large = append_next(filling, size_bytes=granted_bytes)
    assert large is not None
    assert large.batch is batch
    assert batch.granted_bytes > granted_bytes
    while len(batch) < OPENED_AT - 1:
        append(filling, partition=0)
    assert batch.limit_bytes < 0
    append_next(filling)
    assert batch.limit_bytes == batch.granted_bytes
    append_next(filling)
    assert len(batch) == OPENED_AT + 1


def test_a_record_behind_others_goes_nowhere_when_its_topic_is_gone_or_the_producer_is_closed():
    filling, closed = accumulator(), accumulator()
    for each in (filling, closed):
        append(each, partition=0)
        append(each, partition=2)
    filling.set_topic("orders", 2, 1 << 20)
    future = append_next(filling, 2)
    assert future is not None
    assert future.batch.partition == 0
    filling.remove_topic("orders")
    closed.close()
    with pytest.raises(UnknownTopicOrPartition, match="was deleted"):
        append_next(filling)
    with pytest.raises(ClosedError):
        append_next(closed)


def interrupt_an_append(filling: Accumulator) -> None:
    """A Ctrl-C comes between the step that makes a batch in partition 0 and the one that adds the record."""
    target = filling.topics.known("orders", 0)
    batch = filling.topics.batch_with_room(target, "orders", 0, RECORD_BYTES, 0)
    assert batch is not None
    assert not batch.records


def test_a_batch_that_an_interrupted_append_left_empty_holds_up_nothing():
    leader = OneLeader()
    for act in (
        lambda filling: filling.try_append_columns(piece(0, columns_of([b"a"]), 60), 0),
        lambda filling: filling.topics.adopt(append(accumulator(), b"a").batch, 0),
        lambda filling: append(filling, b"a", partition=0),
    ):
        filling = accumulator(linger_ms=0)
        interrupt_an_append(filling)
        act(filling)
        filling.end_linger()
        ((batch,),), _ = leader.drain(filling, 10)
        assert values_of(batch) == [b"a"]
        leader.answer(filling, [batch], 1)
        assert filling.topics.pool.used_bytes == 0


def test_a_batch_that_an_interrupted_append_left_empty_goes_with_its_partition():
    filling, leader = accumulator(linger_ms=0), OneLeader()
    interrupt_an_append(filling)
    filling.set_topic("orders", 0, 1 << 20)
    filling.set_topic("orders", 1, 1 << 20)
    append(filling, b"a", partition=0)
    ((batch,),), _ = leader.drain(filling, 10)
    assert values_of(batch) == [b"a"]


# ---- Memory ----


def test_memory_is_set_aside_and_freed_with_the_batch():
    filling = accumulator(memory_bytes=BATCH_OVERHEAD_BYTES + RECORD_BYTES)
    batch = append(filling).batch
    assert filling.try_append(PreparedRecord("orders", 1, VALUE, RECORD_BYTES), Moment(0, 1)) is None
    assert filling.topics.pool.used_bytes == BATCH_OVERHEAD_BYTES + RECORD_BYTES
    start_batch(filling, batch)
    filling.finish((batch,), is_acknowledged=True)
    assert filling.topics.pool.used_bytes == 0
    assert filling.try_append(PreparedRecord("orders", 1, VALUE, RECORD_BYTES), Moment(0, 1)) is not None


def test_small_batches_of_many_partitions_set_aside_little_more_than_they_hold():
    filling = accumulator(batch_bytes=1 << 20, memory_bytes=128 << 20, partitions=512)
    for partition in range(512):
        append(filling, partition=partition)
    assert filling.topics.pool.used_bytes <= 512 * 1024


def test_a_batch_that_grows_sets_memory_aside_in_few_steps():
    filling = accumulator(batch_bytes=1 << 20, memory_bytes=128 << 20)
    grants = []
    for _ in range(4_000):
        batch = append(filling, partition=0).batch
        grants.append(batch.granted_bytes)
    assert batch.size_bytes <= batch.granted_bytes <= 2 * batch.size_bytes
    assert len(set(grants)) < 12


def test_a_batch_takes_the_last_of_the_memory_though_its_next_step_would_be_larger():
    filling = accumulator(memory_bytes=3_000)
    while filling.try_append(PreparedRecord("orders", 0, VALUE, RECORD_BYTES), Moment(0, 1)) is not None:
        pass
    assert 3_000 - RECORD_BYTES < filling.topics.pool.used_bytes <= 3_000


def test_memory_is_counted_anew_when_an_interrupt_came_between_the_steps_of_counting():
    filling = accumulator()
    batch = append(filling, partition=0).batch
    filling.topics.pool._is_count_torn = True  # as an interrupt leaves it
    batch.granted_bytes += 500
    append(filling, partition=1)
    assert filling.topics.pool.used_bytes == sum(each.granted_bytes for each in filling.batches())


def test_a_look_at_what_is_ready_does_not_walk_over_partitions_that_linger():
    filling = accumulator(linger_ms=5, partitions=1_000, memory_bytes=128 << 20)
    for partition in range(999):
        append(filling, partition=partition, now_ms=10)
    due = append(filling, partition=999, now_ms=0).batch
    assert filling.ready(5) == [due]
    assert filling.schedule.pending(5) == [filling.topics.queue_of(due)]


def test_what_its_leader_does_not_take_is_not_ready_until_it_is_brought_back():
    filling = accumulator(linger_ms=0, delivery_timeout_ms=100)
    batch = append(filling, partition=0).batch
    assert filling.ready(0) == [batch]
    hold(filling, batch, 0)
    assert filling.ready(50) == []
    assert filling.schedule.reschedule(50) == 100
    filling.schedule.release(1, 10)
    assert filling.ready(50) == [batch]
    hold(filling, batch, 50)
    assert expired(filling, 100) == [batch]


def test_what_is_held_back_is_not_looked_at_again_by_a_flush():
    filling = accumulator(linger_ms=0)
    batch = append(filling, partition=0).batch
    assert filling.ready(0) == [batch]
    hold(filling, batch, 0)
    assert filling.end_linger() == [batch]
    assert filling.ready(0) == []
    filling.schedule.release(1, 10)
    assert filling.ready(0) == [batch]


def test_a_batch_behind_one_in_flight_is_held_back_without_an_alarm():
    limits = Limits(10_000, 1 << 20, 0, 100, is_idempotent=True, in_flight_max=5)
    filling = new_accumulator(limits, partitions=1, producer_id=7)
    first = append(filling, partition=0).batch
    start_batch(filling, first)
    filling.finish((first,), is_acknowledged=True)
    start_batch(filling, append(filling, partition=0).batch)
    behind = append(filling, partition=0).batch
    filling.end_linger()
    assert filling.ready(0) == [behind]
    hold(filling, behind, 0)
    assert filling.schedule.reschedule(0) == NEVER


def test_the_timestamp_of_a_batch_that_is_held_back_ages():
    filling = accumulator(linger_ms=0)
    batch = append_to_open(filling)
    assert filling.ready(0) == [batch]
    hold(filling, batch, 0)
    assert filling.schedule.reschedule(0) == STAMP_AGE_MS
    assert batch.limit_bytes > 0
    filling.schedule.reschedule(STAMP_AGE_MS)
    assert batch.limit_bytes < 0


def test_a_record_behind_a_batch_in_flight_is_no_reason_to_look_at_its_partition():
    filling = accumulator(linger_ms=0)
    first = append(filling, partition=0).batch
    start_batch(filling, first)
    filling.schedule.reschedule(0)
    behind = append(filling, partition=0).batch
    assert behind is not first
    assert filling.schedule.pending(0) == []
    filling.finish((first,), is_acknowledged=True)
    assert filling.ready(0) == [behind]


def test_a_partition_whose_batch_is_over_keeps_none_of_it():
    filling = accumulator()
    batch = append(filling, partition=1).batch
    topic = filling.topics.get("orders")
    assert topic is not None
    assert topic.filling == [None, batch, None]
    start_batch(filling, batch)
    assert topic.filling == [None, None, None]


def test_a_topic_made_anew_with_more_partitions_fills_those_that_it_had():
    filling = accumulator(partitions=2)
    batch = append(filling, partition=1).batch
    filling.set_topic("orders", 4, 1 << 20)
    assert append(filling, partition=1).batch is batch
    assert append(filling, partition=3).batch.partition == 3


def test_a_removed_topic_gives_its_batches_back():
    filling = accumulator()
    batch = append(filling).batch
    assert filling.remove_topic("orders") == [batch]
    assert filling.topics.get("orders") is None
    assert filling.topics.pool.used_bytes == 0
    assert filling.topics.queue_with(batch) is None


# ---- Appending without the lock ----


def test_a_topic_made_anew_with_fewer_partitions_takes_no_record_for_the_others():
    filling = accumulator(partitions=2)
    filling.set_topic("orders", 1, 1 << 20)
    with pytest.raises(UnknownTopicOrPartition, match="made anew with 1 partitions"):
        append(filling, b"x", partition=1)


def test_of_a_topic_made_anew_with_fewer_partitions_no_open_batch_is_left_that_takes_records():
    filling = accumulator()
    filling.finish((append(filling).batch,), is_acknowledged=True)
    sticky = append(filling).batch
    others = [append(filling, partition=each).batch for each in (0, 2)]
    assert [sticky.partition, *partitions_of(others)] == [1, 0, 2]
    filling.set_topic("orders", 1, 1 << 20)
    assert filling.topics.move_departing() == [others[1]]
    assert (sticky.partition, sticky.is_sealed) == (0, True)  # the producer chose its partition
    assert append(filling).batch not in (sticky, others[1])
    assert filling.topics.pool.used_bytes == sum(each.granted_bytes for each in filling.batches())


def with_wake(wake: Callable[[], object]) -> Accumulator:
    made = Accumulator(Limits(10_000, 1 << 20, linger_ms=5, delivery_timeout_ms=1_000), wake)
    made.set_topic("orders", 1, 1 << 20)
    return made


def test_a_batch_opens_as_far_as_its_memory_reaches_once_the_sender_is_woken():
    wake_ups: list[None] = []
    filling = with_wake(lambda: wake_ups.append(None))
    batch = append(filling).batch
    assert len(wake_ups) == 1
    assert batch.limit_bytes < 0
    append(filling)
    assert len(wake_ups) == 1
    assert batch.limit_bytes == batch.granted_bytes
    assert filling.topics.sticky == {"orders": batch}


def test_the_lock_is_free_when_the_sender_is_woken():
    free: list[bool] = []

    def wake() -> None:
        looking = Thread(target=filling.batches, daemon=True)
        looking.start()
        looking.join(WAIT_S)
        free.append(not looking.is_alive())

    filling = with_wake(wake)
    append(filling)
    filling.end_linger()
    assert free == [True, True]


def test_a_wake_up_that_was_interrupted_is_made_up_for_by_the_next_record():
    wake_ups: list[None] = []

    def wake() -> None:
        wake_ups.append(None)
        if len(wake_ups) == 1:
            raise KeyboardInterrupt

    filling = with_wake(wake)
    with pytest.raises(KeyboardInterrupt):
        append(filling)
    batch = append(filling).batch
    assert len(wake_ups) == 2
    assert batch.limit_bytes < 0


def test_a_wake_up_that_ends_after_the_drain_it_asked_for_does_not_stand_for_the_next():
    wake_ups: list[None] = []

    def wake() -> None:
        wake_ups.append(None)
        OneLeader().drain(filling, now_ms=0)  # on the IO thread, before the appender goes on

    filling = with_wake(wake)
    filling.set_topic("orders", 2, 1 << 20)
    append(filling, partition=0)
    filling.end_linger()
    append(filling, partition=1)
    assert len(wake_ups) == 3


def test_a_late_record_is_seen_to_be_outside_a_sealed_batch():
    filling = accumulator()
    counted = append(filling, b"counted")
    batch = counted.batch
    appender_sees = batch.records
    start_batch(filling, batch)
    late = DeliveryFuture(batch, b"late")
    appender_sees.append(late)
    assert batch.is_sealed
    assert (counted.slot, late.slot) == (0, b"late")
    assert values_of(batch) == [b"counted"]
    assert filling.topics.sticky == {}


def test_an_old_timestamp_sends_the_next_record_through_the_lock_for_a_new_one():
    filling = accumulator(linger_ms=1_000)
    batch = append_to_open(filling, timestamp_ms=500)
    assert filling.schedule.reschedule(0) == STAMP_AGE_MS
    filling.schedule.reschedule(STAMP_AGE_MS)
    assert batch.limit_bytes < 0
    append(filling, now_ms=STAMP_AGE_MS, timestamp_ms=510)
    start_batch(filling, batch)
    (decoded,) = (decode(each) for each in split_batches(batch.encode(Codec.NONE, 1 << 20)))
    assert decoded.timestamps_ms.tolist() == [500, 500, 510]
    assert [batch.metadata_of(index).timestamp_ms for index in range(3)] == [500, 500, 510]


# ---- Contents ----


def test_rows_and_plain_values_make_one_batch():
    filling = accumulator()
    row = Row(b"row", b"key", [("source", None)], 77)
    first = append(filling, b"plain", partition=0).batch
    assert filling.try_append(PreparedRecord("orders", 0, row, 50), Moment(0, 1)) is not None
    start_batch(filling, first)
    (decoded,) = (decode(each) for each in split_batches(first.encode(Codec.NONE, 1 << 20)))
    assert decoded.values_list() == [b"plain", b"row"]
    assert decoded.keys_list() == [None, b"key"]
    assert decoded.headers_list() == [[], [("source", None)]]
    assert decoded.timestamps_ms.tolist() == [1, 77]


def test_keys_stay_with_their_values_beside_rows_and_values_without_a_key():
    filling = accumulator()
    rows = [
        Row(b"1", b"one"),
        Row(b"2"),
        Row(b"3", b"three", [("source", b"x")]),
        Row(b"4", b"four", None, 9),
    ]
    futures = [filling.try_append(PreparedRecord("orders", 0, row, 50), Moment(0, 1)) for row in rows]
    (batch,) = {each.batch for each in futures if each is not None}
    start_batch(filling, batch)
    decoded = decode(*split_batches(batch.encode(Codec.NONE, 1 << 20)))
    assert decoded.values_list() == [b"1", b"2", b"3", b"4"]
    assert decoded.keys_list() == [b"one", None, b"three", b"four"]
    assert decoded.headers_list() == [[], [], [("source", b"x")], []]
    assert decoded.timestamps_ms.tolist() == [1, 1, 1, 9]
    kept = [(each.slot, each.key) for each in futures if each is not None]
    assert kept == [(0, None), (1, None), (2, None), (3, None)]  # futures keep no record alive


def append_row(to: Accumulator, at_ms: int, timestamp_ms: int | None = None) -> ProducerBatch:
    row = Row(b"row", b"key", None, timestamp_ms)
    future = to.try_append(PreparedRecord("orders", 0, row, 50), Moment(at_ms, at_ms))
    assert future is not None
    return future.batch


def timestamps_of(to: Accumulator, batch: ProducerBatch) -> list[int]:
    start_batch(to, batch)
    (encoded,) = split_batches(batch.encode(Codec.NONE, 1 << 20))
    return decode(encoded).timestamps_ms.tolist()


def test_each_row_without_a_timestamp_gets_that_of_its_append():
    filling = accumulator()
    batches = {append_row(filling, 3), append_row(filling, 4), append_row(filling, 9, timestamp_ms=1)}
    assert [timestamps_of(filling, each) for each in batches] == [[3, 4, 1]]


def test_rows_of_one_moment_have_one_timestamp():
    filling = accumulator()
    batch = append_row(filling, 3)
    append_row(filling, 3)
    assert timestamps_of(filling, batch) == [3, 3]


def test_a_row_that_begins_an_open_batch_leaves_a_timestamp_for_the_values_behind_it():
    filling = accumulator()
    append(filling, partition=1)  # wakes the sender, so that the row opens a batch
    row = Row(b"row", None, [("source", None)])
    first = filling.try_append(PreparedRecord("orders", None, row, 50), Moment(3, 3))
    assert first is not None
    first.batch.records.append(DeliveryFuture(first.batch, b"value"))  # as `send` does without the lock
    assert timestamps_of(filling, first.batch) == [3, 3]


def test_a_batch_that_grew_too_large_becomes_several():
    filling = accumulator(batch_bytes=1 << 20)
    batch = append(filling, b"0" * 100, partition=0).batch
    for number in range(1, 10):
        append(filling, b"%d" % number * 100, partition=0)
    values, base_offsets = [], []
    while not batch.is_done:
        start_batch(filling, batch)
        (part,) = split_batches(batch.encode(Codec.NONE, 500))
        assert part.size_bytes <= 500
        base_offsets += [100 * len(base_offsets)] * part.record_count
        values += [value[:1] for value in decode(part).values_list() if value]
        if batch.has_more_parts:
            filling.go_on(batch, PartEnd(0, base_offsets[-1]))
        else:
            filling.finish((batch,), is_acknowledged=True)
            batch.acknowledge(base_offsets[-1], -1)
    assert values == [b"%d" % number for number in range(10)]
    begins = [base_offsets.index(each) for each in base_offsets]
    expected = [
        base + index - begin for index, (base, begin) in enumerate(zip(base_offsets, begins, strict=True))
    ]
    assert [batch.metadata_of(index).offset for index in range(10)] == expected
    runs = batch.runs(1, 8)
    assert sum(count for *_, count in runs) == 8
    assert [offset + each for _, offset, count in runs for each in range(count)] == expected[1:9]


def test_small_columns_of_several_calls_share_a_batch():
    filling = accumulator()
    added = [filling.try_append_columns(piece(None, columns_of([b"a"] * 3), 60), 0) for _ in range(2)]
    (first, first_index), (second, second_index) = (each for each in added if each)
    assert first is second
    assert (first_index, second_index) == (0, 3)


def test_columns_go_to_a_partition_that_a_topic_made_anew_with_fewer_has():
    filling = accumulator(partitions=3)
    filling.set_topic("orders", 1, 1 << 20)
    added = filling.try_append_columns(piece(None, columns_of([b"a"]), 60), 0)
    assert added is not None
    assert added[0].partition == 0


def piece(partition: int | None, columns: Columns, size_bytes: int) -> Piece:
    rows = range(len(columns.values))
    return Piece("orders", partition, columns, size_bytes, rows, is_pinned=partition is not None)


def columns_of(values: list[bytes]) -> Columns:
    return Columns(pa.array(values, pa.binary()), None, None, 1)


# ---- The model ----

MEMORY_BYTES = 3_000
PARTITIONS = 3


class AccumulatorModel(RuleBasedStateMachine):
    """Against plain lists: what was accepted arrives once, in order per partition; memory is accounted to the byte."""

    @initialize(linger_ms=st.sampled_from([0, 5]))
    def begin(self, linger_ms: float) -> None:
        self.accumulator = accumulator(
            batch_bytes=1_000, memory_bytes=MEMORY_BYTES, linger_ms=linger_ms, delivery_timeout_ms=10**9
        )
        self.now_ms = 0.0
        self.number = 0
        self.accepted: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.arrived: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
        self.in_flight: list[ProducerBatch] = []

    def next_value(self, size: int) -> bytes:
        self.number += 1
        return b"%d" % self.number + bytes(size)

    @rule(partition=st.none() | st.integers(0, PARTITIONS - 1), size=st.integers(0, 600))
    def append(self, partition: int | None, size: int) -> None:
        self.append_one(partition, size)

    def append_one(self, partition: int | None, size: int) -> None:
        value = self.next_value(size)
        moment = Moment(self.now_ms, int(self.now_ms))
        future = self.accumulator.try_append(
            PreparedRecord("orders", partition, value, len(value) + RECORD_OVERHEAD_BYTES), moment
        )
        if future is None:
            assert self.accumulator.topics.pool.used_bytes + len(value) + 1_000 > MEMORY_BYTES
            return
        self.accepted[future.batch.partition].append(value)

    @precondition(lambda self: self.accumulator.topics.sticky)
    @rule(size=st.integers(0, 100))
    def append_without_the_lock(self, size: int) -> None:
        value, batch = self.next_value(size), self.accumulator.topics.sticky["orders"]
        size_bytes = batch.size_bytes + len(value) + RECORD_OVERHEAD_BYTES
        if size_bytes <= batch.limit_bytes:
            batch.size_bytes = size_bytes
            batch.records.append(DeliveryFuture(batch, value))
            self.accepted[batch.partition].append(value)

    @rule(partition=st.integers(0, PARTITIONS - 1), size=st.integers(0, 100))
    def append_with_a_key_without_the_lock(self, partition: int, size: int) -> None:
        batch = self.accumulator.topics.by_key["orders"].filling[partition]
        value = self.next_value(size)
        size_bytes = len(value) + KEYED_OVERHEAD_BYTES
        if batch is not None and batch.size_bytes + size_bytes <= batch.limit_bytes:
            batch.size_bytes += size_bytes
            batch.has_keys = True
            batch.records.append(DeliveryFuture(batch, value, b""))
            self.accepted[partition].append(value)

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def append_a_few_small_ones(self, partition: int) -> None:
        for _ in range(OPENED_AT):
            self.append_one(partition, 0)

    @rule(partition=st.none() | st.integers(0, PARTITIONS - 1), count=st.integers(1, 20))
    def add_columns(self, partition: int | None, count: int) -> None:
        values = [self.next_value(10) for _ in range(count)]
        size_bytes = sum(len(each) + RECORD_OVERHEAD_BYTES for each in values)
        added = self.accumulator.try_append_columns(
            piece(partition, columns_of(values), size_bytes), self.now_ms
        )
        if added is not None:
            batch, index = added
            assert index == len(batch) - count
            self.accepted[batch.partition] += values

    @rule(elapsed_ms=st.sampled_from([0, 1, 5, 20]))
    def start_what_is_ready(self, elapsed_ms: float) -> None:
        self.now_ms += elapsed_ms
        for batch in self.accumulator.ready(self.now_ms):
            start_batch(self.accumulator, batch)
            self.in_flight.append(batch)
        self.accumulator.schedule.reschedule(self.now_ms)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        batch = self.take_one(data)
        self.arrived[batch.partition] += values_of(batch)
        self.accumulator.finish((batch,), is_acknowledged=True)
        batch.acknowledge(0, -1)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def fail_and_try_again(self, data: st.DataObject) -> None:
        self.accumulator.defer(self.take_one(data), LOST, self.now_ms + 3)

    @rule()
    def end_linger(self) -> None:
        self.accumulator.end_linger()

    def take_one(self, data: st.DataObject) -> ProducerBatch:
        return self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))

    @invariant()
    def memory_is_bounded_and_accounted(self) -> None:
        batches = list(self.accumulator.batches())
        assert (
            self.accumulator.topics.pool.used_bytes
            == sum(each.granted_bytes for each in batches)
            <= MEMORY_BYTES
        )
        assert all(each.size_bytes <= each.granted_bytes for each in batches)

    @invariant()
    def one_batch_of_a_partition_is_in_flight(self) -> None:
        assert len(set(partitions_of(self.in_flight))) == len(self.in_flight)

    def teardown(self) -> None:
        for _ in range(1_000):
            self.now_ms += 10
            self.accumulator.end_linger()
            for batch in [*self.in_flight, *self.accumulator.ready(self.now_ms)]:
                if batch not in self.in_flight:
                    start_batch(self.accumulator, batch)
                self.arrived[batch.partition] += values_of(batch)
                self.accumulator.finish((batch,), is_acknowledged=True)
            self.in_flight = []
            if self.arrived == self.accepted:
                break
        assert self.arrived == self.accepted
        assert not any(map(len, self.accumulator.batches()))


AccumulatorModel.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestAccumulator = AccumulatorModel.TestCase


@pytest.mark.parametrize("codec", list(Codec)[:2] + list(Codec)[3:])
def test_a_batch_is_encoded_with_every_codec(codec: Codec):
    filling = accumulator()
    batch = append(filling, b"value" * 20).batch
    start_batch(filling, batch)
    (each,) = split_batches(batch.encode(codec, 1 << 20))
    assert (each.codec, decode(each).values_list()) == (codec, [b"value" * 20])
