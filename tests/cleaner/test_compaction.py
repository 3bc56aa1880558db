"""The records that a cleaning keeps, and the properties of a log that it never changes (F21-F25)."""

import struct

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.cleaner.file_cleaning import CleaningSettings, MapBuilder
from rayka.cleaner.kept_records import CleaningCounts, Horizon, KeptRecords, without_records
from rayka.cleaner.key_hashes import KeyHasher
from rayka.cleaner.offset_map import OffsetMap
from rayka.config.topic_config import TopicConfig
from rayka.log.log import Log
from rayka.log.segments import first_at_or_after, largest_before
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import (
    CRC_START,
    HEADER_BYTES,
    NULL_KEY_BIT,
    Codec,
    Column,
    ProducerSequence,
    RecordBatch,
    aligned,
    parse_contents,
    split_batches,
)
from rayka.testing.memory_disk import MemoryDisk
from tests.cleaner.support import COMPACTED, SETTINGS, clean, keyed, newest_of, put, records_of, table_of
from tests.log.support import new_log, open_log, read_batches, result_of, sync


def filled(config: TopicConfig = COMPACTED, rounds: int = 12) -> tuple[MemoryDisk, Log]:
    """A log of three keys, each written anew in every round, over several segments."""
    disk, log = new_log(config)
    for number in range(rounds):
        put(log, *[(key, b"%d" % number * 20) for key in (b"a", b"b", b"c")])
    return disk, log


def test_the_newest_record_of_each_key_stays_with_its_offset() -> None:  # F22
    disk, log = filled()
    before, end_offset = records_of(log), log.log_end_offset
    compaction = clean(disk, log)
    assert records_of(log) == before[-3:]
    assert log.log_end_offset == end_offset
    assert (log.cleaned_offset, compaction.counts.kept_records) == (end_offset, 3)


def test_the_active_segment_is_not_cleaned() -> None:  # F20
    disk, log = filled()
    clean(disk, log)
    put(log, (b"a", b"new"), (b"a", b"newer"))
    assert len(records_of(log)) == 5


def test_a_batch_that_keeps_everything_is_copied_byte_by_byte() -> None:  # F22
    disk, log = new_log(COMPACTED)
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", b"2"), (b"c", b"2"))
    put(log, (b"d", b"3"), (b"e", b"3"))
    before = read_batches(log)
    clean(disk, log)
    after = read_batches(log)
    assert [bytes(each.view) for each in after[1:]] == [bytes(each.view) for each in before[1:]]
    assert after[0].record_count == 1


def forged(batch: RecordBatch) -> RecordBatch:
    """The batch with a header that says the contrary of its keys, and a CRC that is right for it."""
    data = bytearray(batch.view)
    struct.pack_into(">h", data, CRC_START, batch.attributes ^ NULL_KEY_BIT)
    struct.pack_into(">I", data, CRC_START - 4, crc32c(data[CRC_START:]))
    return RecordBatch(bytes(data))


def fallen(batch: RecordBatch) -> RecordBatch:
    """The batch with offsets of keys that fall."""
    data = bytearray(batch.view)
    begin, length = parse_contents(batch.view[HEADER_BYTES:]).columns[Column.KEY_OFFSETS]
    begin += HEADER_BYTES + aligned(parse_contents(batch.view[HEADER_BYTES:]).end)
    data[begin : begin + length] = struct.pack(f"<{length // 4}i", *reversed(range(length // 4)))
    struct.pack_into(">I", data, CRC_START - 4, crc32c(data[CRC_START:]))
    return RecordBatch(bytes(data))


CONTRADICTORY = {
    "a key that is null": lambda: forged(keyed([(None, b"1"), (b"a", b"2")])),
    "no key that is null": lambda: forged(keyed([(b"a", b"1"), (b"b", b"2")])),
    "falling offsets": lambda: fallen(keyed([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])),
}


@pytest.mark.parametrize("case", CONTRADICTORY)
def test_a_batch_that_contradicts_itself_stays_and_all_others_are_compacted(case: str) -> None:  # F27
    """A leader refuses it today; a topic that was not compacted then has it, or an older release took it."""
    disk, log = filled()
    before, bad_offset = records_of(log)[-3:], log.log_end_offset
    log.append_as_leader([CONTRADICTORY[case]()], 0, now_ms=0)
    bad = log.read(bad_offset, max_bytes=1, end_offset=log.log_end_offset).records
    for number in range(3):
        compaction = clean(disk, log)  # the second and third time it lies in what was clean
        assert compaction.counts.unreadable_batches == 1
        after = read_batches(log)
        assert [bytes(each.view) for each in after if each.base_offset == bad_offset] == [bad]
        good = [each for each in after if each.base_offset != bad_offset]
        found = [
            record
            for each in map(decode, good)
            for record in zip(each.keys_list(), each.values_list(), strict=True)
        ]
        assert sorted(found) == sorted(
            [*[each[1:] for each in before], *[(b"z", b"%d" % number)] * (number > 0)]
        )
        put(log, (b"z", b"%d" % (number + 1)))


def test_a_control_batch_stays_as_it_is_however_often_its_log_is_cleaned() -> None:  # F22
    """Its keys are no records' keys: what it says of a transaction would be taken for superseded."""
    disk, log = new_log(COMPACTED)
    for value in (b"1", b"2", b"3"):
        put(log, (b"a", value), (b"b", value))
        marker = encode_batch([b"m"], keys=[b"a"], timestamps_ms=1000, is_control=True)
        log.append_as_leader([RecordBatch(marker)], 0, now_ms=0)
    before = [bytes(each.view) for each in read_batches(log) if each.is_control]
    for _ in range(2):
        clean(disk, log)
        assert [bytes(each.view) for each in read_batches(log) if each.is_control] == before
        put(log, (b"a", b"newer"))
    assert len(before) == 3


def test_a_rebuilt_batch_keeps_its_range_its_producer_and_its_timestamps() -> None:  # F22
    disk, log = new_log(COMPACTED)
    for number, codec in enumerate((Codec.NONE, Codec.ZSTD)):
        sequence = ProducerSequence(7, 1, 3 * number)
        records = [(b"x", b"0"), (b"%d" % codec, b"1"), (b"x", b"2")]
        batch = keyed(records, timestamp_ms=1000 + codec, sequence=sequence, codec=codec)
        log.append_as_leader([batch], 5, now_ms=0)
    put(log, (b"x", b"3"))
    before = read_batches(log)
    clean(disk, log)
    after = read_batches(log)
    for old, new in zip(before[:2], after[:2], strict=True):
        assert new.record_count == 1
        for name in ("base_offset", "last_offset", "leader_epoch", "codec", "max_timestamp_ms"):
            assert getattr(new, name) == getattr(old, name)
        for name in ("producer_id", "producer_epoch", "base_sequence"):
            assert getattr(new, name) == getattr(old, name)


def at(timestamp_ms: int) -> CleaningSettings:
    return SETTINGS._replace(timestamp_ms=timestamp_ms)


def test_a_tombstone_stays_until_its_horizon_which_the_first_cleaning_stamps() -> None:  # F23
    disk, log = new_log(COMPACTED)
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", None))
    put(log, (b"b", b"2"))
    clean(disk, log, at(50_000))
    assert records_of(log) == [(2, b"a", None), (3, b"b", b"2")]
    assert [each.delete_horizon_ms for each in read_batches(log)] == [51_000, None]
    put(log, (b"c", b"1"))
    clean(disk, log, at(50_999))
    assert (2, b"a", None) in records_of(log)
    put(log, (b"d", b"1"))
    clean(disk, log, at(51_000))
    assert (2, b"a", None) not in records_of(log)


def test_a_tombstone_of_which_the_map_saw_only_a_part_of_the_batch_gets_no_horizon() -> None:  # F21, F23
    disk, log = new_log(COMPACTED)
    put(log, *[(b"%d" % number, None) for number in range(20)])
    clean(disk, log, at(50_000)._replace(map_bytes=24 * 10))
    assert 0 < log.cleaned_offset < 20
    assert [each.delete_horizon_ms for each in read_batches(log)] == [None]


def test_tombstones_that_are_to_stay_for_ever_do() -> None:  # F23
    disk, log = new_log(COMPACTED.model_copy(update={"delete_retention_ms": 2**63 - 1}))
    put(log, (b"a", b"1"))
    put(log, (b"a", None), (b"b", b"1"), timestamp_ms=2000)
    for timestamp_ms in (50_000, 2**62):
        clean(disk, log, at(timestamp_ms))
        put(log, (b"c", b"1"))
    assert records_of(log)[:2] == [(1, b"a", None), (2, b"b", b"1")]
    assert decode(read_batches(log)[0]).timestamps_ms.tolist() == [2000, 2000]


def test_of_segments_that_become_one_only_the_last_batch_stays_without_records() -> None:  # F25
    disk, log = filled()
    for _ in range(2):
        clean(disk, log)  # the second time there are small ones to join
    empty = [each.next_offset for each in read_batches(log) if not each.record_count]
    assert set(empty) <= {each.next_offset for each in log.segments}


def test_a_record_without_a_key_goes() -> None:  # F22
    disk, log = new_log(COMPACTED)
    put(log, (None, b"1"), (b"a", b"1"))
    compaction = clean(disk, log)
    assert records_of(log) == [(1, b"a", b"1")]
    assert compaction.counts.invalid_records == 1


def test_a_record_without_a_key_is_counted_also_where_all_others_of_its_batch_have_newer_ones() -> (
    None
):  # F22
    disk, log = new_log(COMPACTED)
    put(log, (None, b"1"), (b"a", b"1"))
    put(log, (b"a", b"2"))
    compaction = clean(disk, log)
    assert records_of(log) == [(2, b"a", b"2")]
    assert compaction.counts.invalid_records == 1


def test_a_full_map_ends_a_cleaning_early_and_the_next_one_goes_on_there() -> None:  # F21
    disk, log = filled()
    for number in range(60):
        put(log, (b"k%d" % (number % 30), b"%d" % number))
    before = records_of(log)
    settings = SETTINGS._replace(map_bytes=24 * 12)
    ends = []
    for _ in range(20):
        clean(disk, log, settings)
        ends.append(log.cleaned_offset)
        assert table_of(records_of(log)) == table_of(before)
        assert newest_of(records_of(log), ends[-1]) == newest_of(before, ends[-1])
    assert ends[0] < ends[1] < ends[-1] == log.log_end_offset
    assert set(records_of(log)) <= set(before)


def test_a_cleaning_gets_further_however_little_memory_its_map_has() -> None:  # F21
    disk, log = new_log(COMPACTED)
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    ends = []
    for _ in range(2):
        clean(disk, log, SETTINGS._replace(map_bytes=1))
        ends.append(log.cleaned_offset)
    assert ends == [1, 2]
    assert table_of(records_of(log)) == {b"a": b"2", b"b": b"1"}


def test_what_was_put_is_found_by_its_offset_and_what_was_clean_by_its_key() -> None:  # F21, F22
    """The copy of records that were put needs no hash of them; a hasher with another secret finds no key again."""
    old = keyed([(b"a", b"old"), (b"b", b"old")])
    batches = list(split_batches(b"".join(bytes(each.view) for each in stamped([old, *dirty_batches()]))))
    hasher, map_of_all = KeyHasher(b"0123456789abcdef"), OffsetMap(1 << 16, 100)
    builder = MapBuilder(hasher, map_of_all, first_offset=2)
    assert builder.put(batches)
    map_of_all.seal()
    horizon = Horizon(
        first_dirty_offset=2, end_offset=builder.end_offset, timestamp_ms=0, delete_retention_ms=0
    )
    for secret, found in ((b"0123456789abcdef", [1, 3, 5, 6]), (b"another secret..", [0, 1, 3, 5, 6])):
        kept = KeptRecords(KeyHasher(secret), map_of_all, horizon, frozenset(), frozenset(), CleaningCounts())
        left = kept.of(batches, None)
        assert [int(offset) for each in left for offset in decode(each).offsets] == found


def dirty_batches() -> list[RecordBatch]:
    return [keyed([(b"a", b"1"), (b"c", b"1")]), keyed([(b"a", b"2"), (b"a", b"3"), (b"d", b"1")])]


def stamped(batches: list[RecordBatch]) -> list[RecordBatch]:
    """At the offsets that a log would give them."""
    offset, placed = 0, []
    for each in batches:
        pieces = each.stamped(base_offset=offset, leader_epoch=0)
        placed.append(RecordBatch(b"".join(map(bytes, pieces))))
        offset = placed[-1].next_offset
    return placed


def test_segments_become_one_as_far_as_they_fit() -> None:  # F22
    disk, log = filled(rounds=60)
    segment_count = len(log.segments)
    clean(disk, log)
    put(log, (b"a", b"1"))
    clean(disk, log)
    assert len(log.segments) < segment_count / 4
    assert all(each.size_bytes <= log.config.segment_bytes for each in log.segments)


def test_what_is_needed_to_recognise_producers_stays_without_records() -> None:  # F25, C2
    disk, log = new_log(COMPACTED)
    sent = []
    for number in range(8):
        batch = keyed([(b"a", b"%d" % number)] * 2, sequence=ProducerSequence(7, 0, 2 * number))
        log.append_as_leader([batch], 0, now_ms=0)
        sent.append(batch)
    clean(disk, log)
    assert [each.base_offset for each in read_batches(log)] == [6, 8, 10, 12, 14]
    assert [each.record_count for each in read_batches(log)] == [0, 0, 0, 0, 1]
    sync(disk, log)
    for name in disk.list(log.directory):
        if name.endswith(".snapshot"):
            disk.unlink(f"{log.directory}/{name}")
    again = open_log(disk, config=COMPACTED)
    info = again.append_as_leader([sent[4]], 0, now_ms=0)
    assert (info.is_duplicate, info.first_offset) == (True, 8)


def test_the_last_batch_of_a_segment_stays_so_that_the_next_one_follows() -> None:
    disk, log = new_log(COMPACTED)
    put(log, (b"a", b"1"))
    clean(disk, log)
    put(log, (b"a", b"2"))
    clean(disk, log)
    put(log, (b"a", b"3"))
    assert records_of(log) == [(1, b"a", b"2"), (2, b"a", b"3")]
    reopened = open_log(disk, config=COMPACTED)
    assert records_of(reopened) == records_of(log)


def test_reading_goes_on_behind_a_gap_from_every_offset() -> None:  # G4
    disk, log = filled()
    clean(disk, log)
    for offset in range(log.log_end_offset):
        found, position = [], offset
        while position < log.log_end_offset:
            read = log.read(position, max_bytes=1 << 20, end_offset=log.log_end_offset)
            assert read.next_offset > position
            found += [int(each) for batch in split_batches(read.records) for each in decode(batch).offsets]
            position = read.next_offset
        assert [each for each in found if each >= offset] == [each for each in (33, 34, 35) if each >= offset]


def test_a_batch_of_which_all_keys_have_newer_records_is_not_taken_apart() -> None:  # F22
    """Its body is broken here, and nothing looks at it."""
    offsets = OffsetMap(1 << 10, 100)
    assert offsets.put(np.array([[1, 1]], np.uint64), np.array([50])) == 1
    offsets.seal()
    encoded = bytearray(keyed([(b"a", b"1"), (b"b", b"2")]).view)
    encoded[HEADER_BYTES:] = bytes(len(encoded) - HEADER_BYTES)
    old = RecordBatch(encoded)
    kept = KeptRecords(
        KeyHasher(b"0" * 16), offsets, Horizon(0, 51, 0, 0), frozenset(), frozenset(), CleaningCounts()
    )
    assert kept.of([old], None) == []
    (last,) = kept.of([old], old)
    assert (last.record_count, last.last_offset) == (0, 1)


def test_batches_without_records_may_be_all_that_is_put_into_the_map() -> None:
    """Happens after a restart that forgot how far the log was cleaned."""
    empty = RecordBatch(without_records(keyed([(b"a", b"1"), (b"b", b"2")])))
    builder = MapBuilder(KeyHasher(b"0" * 16), OffsetMap(1 << 10, 100), 0)
    assert builder.put([empty])
    assert (builder.end_offset, builder.offsets.key_count) == (2, 0)


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 50)), min_size=1, max_size=40),
    start_offset=st.integers(0, 20),
)
def test_records_are_found_by_time_whatever_batches_were_emptied(
    batches: list[tuple[bytes, int]], start_offset: int
) -> None:  # F6, F25
    """A batch stays without records where its producer needs it, and keeps the timestamp of what it had."""
    disk, log = new_log(COMPACTED)
    for number, (key, timestamp_ms) in enumerate(batches):
        sequence = ProducerSequence(7, 0, number)
        batch = keyed([(key, b"1" * 100)], timestamp_ms=timestamp_ms, sequence=sequence)
        log.append_as_leader([batch], 0, now_ms=0)
    clean(disk, log)
    log.increment_log_start_offset(min(start_offset, log.log_end_offset))
    left = [
        (int(offset), int(timestamp_ms))
        for each in map(decode, read_batches(log))
        for offset, timestamp_ms in zip(each.offsets, each.timestamps_ms, strict=True)
        if offset >= log.log_start_offset
    ]
    largest = max(left, key=lambda each: (each[1], -each[0]), default=None)
    found = result_of(largest_before(log, end_offset=log.log_end_offset))
    assert (found and (found.offset, found.timestamp_ms)) == largest
    for timestamp_ms in range(0, 52, 7):
        first = next((each for each in left if each[1] >= timestamp_ms), None)
        found = result_of(first_at_or_after(log, timestamp_ms, end_offset=log.log_end_offset))
        assert (found and (found.offset, found.timestamp_ms)) == first
