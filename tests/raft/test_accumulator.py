"""Records on their way into the leader's log: what shares a batch, what is refused, what an append is told (A25)."""

import pytest

from rayka.errors import RecordBatchTooLarge, TooManyRequests
from rayka.protocol.batch_format import RecordBatch
from rayka.raft.control_records import KRaftVersionRecord, VotersRecord
from rayka.raft.leader import ACCUMULATED_BYTES_MAX, BATCH_BYTES_MAX, BatchAccumulator
from rayka.raft.voters import VoterSet
from tests.raft.support import ME, OTHER, values_of

VOTERS = VotersRecord(VoterSet((ME, OTHER)))


def drained(accumulator: BatchAccumulator) -> list[RecordBatch]:
    return accumulator.drain(timestamp_ms=77)


def test_appends_get_their_offsets_at_once_and_share_a_batch() -> None:  # A25
    accumulator = BatchAccumulator(10, ())
    assert (accumulator.append([b"a", b"b"]), accumulator.append([b"c"]), accumulator.next_offset) == (
        10,
        12,
        13,
    )
    assert repr(accumulator) == "<BatchAccumulator next_offset=13 batches=1>"
    [batch] = drained(accumulator)
    assert (list(values_of(batch)), batch.max_timestamp_ms) == ([b"a", b"b", b"c"], 77)


def test_what_was_drained_is_drained_once_and_offsets_go_on() -> None:  # A25
    accumulator = BatchAccumulator(10, ())
    accumulator.append([b"a"])
    drained(accumulator)
    assert (accumulator.is_empty, drained(accumulator)) == (True, [])
    assert accumulator.append([b"b"]) == 11
    assert [list(values_of(each)) for each in drained(accumulator)] == [[b"b"]]


def test_control_records_have_a_batch_of_their_own_and_nothing_joins_it() -> None:  # A24, A25
    accumulator = BatchAccumulator(0, [KRaftVersionRecord(), VOTERS])
    assert (accumulator.append([b"a"]), accumulator.append_control([VOTERS]), accumulator.append([b"b"])) == (
        2,
        3,
        4,
    )
    batches = drained(accumulator)
    assert [list(values_of(each)) for each in batches] == [
        [KRaftVersionRecord(), VOTERS],
        [b"a"],
        [VOTERS],
        [b"b"],
    ]
    assert [each.is_control for each in batches] == [True, False, True, False]
    assert [each.max_timestamp_ms for each in batches] == [77] * 4


def test_a_batch_is_filled_to_the_byte_and_no_further() -> None:  # A25
    half = bytes(BATCH_BYTES_MAX // 2)
    accumulator = BatchAccumulator(0, ())
    for _ in range(3):
        accumulator.append([half])
    accumulator.append([half[:-1], b"."])
    accumulator.append([b"."])
    assert [each.record_count for each in drained(accumulator)] == [2, 3, 1]


def test_an_append_as_large_as_a_batch_is_taken_and_a_larger_one_is_refused() -> None:
    accumulator = BatchAccumulator(0, ())
    assert accumulator.append([bytes(BATCH_BYTES_MAX - 1), b"."]) == 0
    expected = (
        f"records of one append are {BATCH_BYTES_MAX + 1} bytes, more than the {BATCH_BYTES_MAX} of a batch"
    )
    with pytest.raises(RecordBatchTooLarge, match=expected):
        accumulator.append([bytes(BATCH_BYTES_MAX), b"."])
    assert accumulator.next_offset == 2


def test_what_waits_for_the_disk_is_bounded_and_room_comes_with_each_drain() -> None:
    accumulator, large = BatchAccumulator(0, ()), bytes(BATCH_BYTES_MAX)
    count = ACCUMULATED_BYTES_MAX // BATCH_BYTES_MAX
    for _ in range(count):
        accumulator.append([large])
    with pytest.raises(
        TooManyRequests, match=f"{ACCUMULATED_BYTES_MAX} bytes wait for the disk; try again later"
    ):
        accumulator.append([b"."])
    assert accumulator.next_offset == count
    drained(accumulator)
    assert accumulator.append([b"."]) == count


def test_an_append_holds_at_least_one_record() -> None:
    with pytest.raises(AssertionError, match="at least one record"):
        BatchAccumulator(0, ()).append([])
