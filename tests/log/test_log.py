"""Appending, reading and rolling (B18, F10, G3-G6), without a crash."""

from itertools import pairwise

import pytest

from rayka.config.topic_config import TopicConfig
from rayka.errors import CorruptRecord, DamagedLog, OffsetOutOfRange, RecordBatchTooLarge, StorageError
from rayka.log.recovery import Tearing
from rayka.log.segment import FetchData, fetch_data
from rayka.partition.partition import readable_bytes
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import TimestampType, split_batches
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import (
    DIRECTORY,
    SMALL,
    batch,
    fill,
    new_log,
    open_log,
    placed,
    read_batches,
    read_offsets,
    segment_bases,
    segment_path,
)

ONE_SEGMENT = TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200)


# ---- Appending ----


def test_the_leader_gives_offsets_and_epoch_to_every_batch_of_an_append() -> None:
    _, log = new_log()
    info = log.append_as_leader([batch([b"a", b"b"], [5, 7]), batch([b"c"], 6)], 4, now_ms=0)  # B18
    assert (info.first_offset, info.last_offset, info.max_timestamp_ms) == (0, 2, 7)
    assert [(each.base_offset, each.leader_epoch) for each in read_batches(log)] == [(0, 4), (2, 4)]
    assert [value for each in read_batches(log) for value in decode(each).values_list()] == [b"a", b"b", b"c"]
    size_bytes = sum(each.size_bytes for each in read_batches(log))
    assert (log.log_end_offset, log.latest_epoch, log.segments.size_bytes) == (3, 4, size_bytes)


def test_an_append_of_several_batches_is_one_write() -> None:
    disk, log = new_log()
    fill(log, 1)
    first, second, size_bytes = batch(), batch(), log.segments.size_bytes
    disk.tear_next_append(segment_path(0), first.size_bytes + 10)
    with pytest.raises(StorageError):
        log.append_as_leader([first, second], 0, now_ms=0)
    assert disk.size(segment_path(0)) == size_bytes + first.size_bytes + 10


def test_the_log_append_time_replaces_every_timestamp() -> None:
    _, log = new_log()
    info = log.append_as_leader([batch([b"a", b"b"], [5, 7])], 0, now_ms=0, log_append_time_ms=99)  # B18
    [found] = read_batches(log)
    assert (found.timestamp_type, info.max_timestamp_ms) == (TimestampType.LOG_APPEND_TIME, 99)
    assert decode(found).timestamps_ms.tolist() == [99, 99]


def test_a_follower_keeps_offsets_and_epochs_and_may_leave_gaps() -> None:
    _, log = new_log()
    log.append_as_follower([placed(0, 1), placed(5, 1, count=2), placed(7, 3)], now_ms=0)  # B18
    assert read_offsets(log) == [0, 5, 6, 7]
    assert (log.log_end_offset, log.end_offset_for_epoch(2).offset) == (8, 7)


def test_a_follower_refuses_offsets_that_go_back() -> None:
    _, log = new_log()
    log.append_as_follower([placed(3)], now_ms=0)
    with pytest.raises(CorruptRecord, match="orders-0: expected offset 4 or later"):
        log.append_as_follower([placed(3)], now_ms=0)
    with pytest.raises(CorruptRecord):
        log.append_as_follower([placed(4), placed(4)], now_ms=0)
    assert read_offsets(log) == [3]


def test_a_batch_larger_than_a_segment_is_refused_and_harms_nothing() -> None:
    disk, log = new_log()
    with pytest.raises(RecordBatchTooLarge, match=r"larger than segment\.bytes, 2000"):
        log.append_as_leader([batch(), batch([b"x" * 3000])], 0, now_ms=0)
    fill(log, 1)
    assert (read_offsets(log), segment_bases(disk)) == ([0, 1], [0])


def test_an_epoch_may_begin_without_a_record() -> None:
    _, log = new_log()
    fill(log, 1, epoch=2)
    log.assign_epoch(5, 2)  # B16
    assert (log.latest_epoch, log.end_offset_for_epoch(2).offset, log.end_offset_for_epoch(5).offset) == (
        5,
        2,
        2,
    )
    assert (log.epochs.epoch_of(1), log.epochs.epoch_of(2)) == (2, 5)


# ---- A disk that fails ----


def test_after_a_torn_write_the_log_takes_no_appends_and_reads_go_on() -> None:
    disk, log = new_log()
    fill(log, 3)
    disk.tear_next_append(segment_path(0), 100)
    with pytest.raises(StorageError, match="Input/output error"):
        fill(log, 1)
    with pytest.raises(
        StorageError, match=r"orders-0 takes no appends until its node restarts: .*Input/output"
    ):
        fill(log, 1)
    assert (log.log_end_offset, read_offsets(log)) == (6, [0, 1, 2, 3, 4, 5])
    assert "failed" in repr(log)


def test_a_full_disk_loses_nothing_that_was_appended_before() -> None:
    disk, log = new_log()
    fill(log, 3)
    disk.fill_up(after_bytes=100)
    with pytest.raises(StorageError, match="disk full"):
        fill(log, 1)
    disk.fill_up(after_bytes=1 << 20)
    again = open_log(disk)
    assert (read_offsets(again), again.recovery.cut is not None) == ([0, 1, 2, 3, 4, 5], True)
    fill(again, 1)
    assert read_offsets(again) == list(range(8))


def test_a_segment_that_something_else_wrote_to_takes_no_appends() -> None:
    disk, log = new_log()
    fill(log, 1)
    size_bytes = log.segments.size_bytes
    disk.append(segment_path(0), [b"not ours"])
    expected = f"{segment_path(0)}: expected {size_bytes} bytes, found {size_bytes + 8}; restart the node"
    with pytest.raises(StorageError, match=expected):
        fill(log, 1)
    assert read_offsets(log) == [0, 1]


# ---- Reading ----


def test_a_read_begins_with_the_batch_that_contains_the_offset() -> None:
    _, log = new_log(ONE_SEGMENT)
    fill(log, 20)
    for offset in range(40):
        read = log.read(offset, max_bytes=1, end_offset=40)  # G4
        assert read.next_offset == offset // 2 * 2 + 2
        assert [each.base_offset for each in split_batches(read.records)] == [offset // 2 * 2]


def test_a_read_gives_as_many_whole_batches_as_fit() -> None:
    _, log = new_log(ONE_SEGMENT)
    fill(log, 20)
    size_bytes = read_batches(log)[0].size_bytes
    for max_bytes, count in (
        (size_bytes - 1, 0),
        (size_bytes, 1),
        (3 * size_bytes - 1, 2),
        (15 * size_bytes, 15),
    ):
        read = log.read(6, max_bytes=max_bytes, end_offset=40, min_one_batch=False)  # G5
        assert (len(read.records), read.next_offset) == (count * size_bytes, 6 + 2 * count)


def test_the_first_batch_is_read_whatever_its_size() -> None:
    _, log = new_log(ONE_SEGMENT)
    log.append_as_leader([batch([b"x" * 50_000])], 0, now_ms=0)
    assert log.read(0, max_bytes=10, end_offset=1).next_offset == 1  # G6
    assert log.read(0, max_bytes=10, end_offset=1, min_one_batch=False).records == b""  # G6


@pytest.mark.parametrize(
    ("end_offset", "next_offset"), [(10, 10), (11, 10), (12, 12), (0, 4), (4, 4), (5, 4), (99, 40)]
)
def test_a_read_never_reaches_the_end_offset(end_offset: int, next_offset: int) -> None:
    _, log = new_log(ONE_SEGMENT)
    fill(log, 20)
    assert log.read(4, max_bytes=1 << 20, end_offset=end_offset).next_offset == next_offset


def test_a_read_at_the_end_is_empty_and_outside_the_log_an_error() -> None:
    _, log = new_log()
    fill(log, 2)
    assert log.read(4, max_bytes=100, end_offset=4) == (b"", 4)  # G3
    with pytest.raises(OffsetOutOfRange, match=r"orders-0: offset 5 is outside \[0, 4\]"):
        log.read(5, max_bytes=100, end_offset=4)  # G3
    with pytest.raises(OffsetOutOfRange):
        log.read(-1, max_bytes=100, end_offset=4)


def test_reads_go_on_over_gaps_and_segment_ends() -> None:
    _, log = new_log()
    for base_offset in range(0, 400, 10):
        log.append_as_follower([placed(base_offset, count=2)], now_ms=0)
    assert len(log.segments) > 2
    for offset in range(400):
        if offset >= 392:
            break
        read = log.read(offset, max_bytes=1, end_offset=log.log_end_offset)
        first = next(split_batches(read.records))
        assert first.base_offset == (offset if offset % 10 < 2 else offset + 10) // 10 * 10


class _CountingDisk(MemoryDisk):
    read_bytes = 0

    def read_at(self, path: str, position: int, size_bytes: int) -> bytes:
        data = super().read_at(path, position, size_bytes)
        self.read_bytes += len(data)
        return data


def test_a_reader_that_goes_on_where_it_stopped_reads_no_more_than_it_is_given() -> None:
    disk = _CountingDisk()
    disk.make_directory("/data")
    log = open_log(disk, config=ONE_SEGMENT)
    fill(log, 1)
    offset = log.read(0, max_bytes=1 << 20, end_offset=2).next_offset
    for _ in range(20):
        fill(log, 5)
        disk.read_bytes = 0
        read = log.read(offset, max_bytes=1 << 20, end_offset=log.log_end_offset)
        assert (disk.read_bytes, read.next_offset) == (len(read.records), log.log_end_offset)
        offset = read.next_offset


def test_readers_of_old_segments_keep_working_while_indexes_come_and_go() -> None:
    _, log = new_log()
    fill(log, 200)
    assert len(log.segments) > 12
    for _ in range(2):
        assert read_offsets(log) == list(range(400))


def test_a_header_that_points_beyond_the_file_is_an_error_and_no_crash() -> None:
    disk, log = new_log(ONE_SEGMENT)
    fill(log, 3)
    disk.flip_bit(
        segment_path(0), read_batches(log)[0].size_bytes + 8, bit=6
    )  # the length of the second batch
    with pytest.raises(DamagedLog):
        open_log(disk, tearing=Tearing.NOTHING, config=ONE_SEGMENT)


def test_a_flipped_bit_is_found_by_the_readers_crc() -> None:
    disk, log = new_log(ONE_SEGMENT)
    fill(log, 3)
    disk.flip_bit(segment_path(0), read_batches(log)[0].size_bytes + 120)
    with pytest.raises(CorruptRecord, match=r"offset 2: CRC-32C expected"):
        read_batches(log)


# ---- File ranges ----


def test_file_ranges_name_the_same_bytes_as_reads() -> None:
    disk, log = new_log()
    fill(log, 60)
    for offset, max_bytes, end_offset in ((0, 1 << 20, 120), (31, 1, 120), (31, 5000, 100), (119, 100, 120)):
        local = fetch_data(log.spans(offset, max_bytes, end_offset, True), offset, range_bytes_min=0)
        mapped = [
            disk.map(each.path)[each.position : each.position + each.size_bytes] for each in local.file_ranges
        ]
        batches = [each for view in mapped for each in split_batches(view)]
        assert [each.base_offset for each in local.file_ranges] == [
            next(split_batches(v)).base_offset for v in mapped
        ]
        assert (batches[0].base_offset, local.next_offset) == (offset // 2 * 2, batches[-1].next_offset)
        assert sum(map(len, mapped)) <= max(max_bytes, batches[0].size_bytes)
        assert [each.inode for each in local.file_ranges] == [
            disk.identity(each.path).inode for each in local.file_ranges
        ]


def test_there_are_no_file_ranges_at_the_end() -> None:
    _, log = new_log()
    fill(log, 1)
    assert fetch_data(log.spans(2, 100, 2, True), 2, range_bytes_min=0) == FetchData(2)


# ---- Rolling ----


def test_a_segment_rolls_before_it_would_outgrow_its_size() -> None:  # F10
    disk, log = new_log()
    fill(log, 30)
    assert len(segment_bases(disk)) > 1
    assert all(disk.size(segment_path(base)) <= SMALL.segment_bytes for base in segment_bases(disk))


def test_an_append_larger_than_a_segment_is_split_between_batches() -> None:
    disk, log = new_log()
    log.append_as_leader([batch([b"x" * 700]) for _ in range(6)], 0, now_ms=0)
    assert (segment_bases(disk), read_offsets(log)) == ([0, 2, 4], list(range(6)))


def test_a_segment_rolls_when_record_time_has_passed() -> None:  # F10
    disk, log = new_log(TopicConfig(segment_ms=1000))
    for timestamp_ms in (10_000, 10_999, 11_000, 11_001):
        log.append_as_leader([batch([b"v"], timestamp_ms)], 0, now_ms=0)
    assert segment_bases(disk) == [0, 3]


def test_a_compacted_segment_rolls_when_its_records_wait_too_long_for_compaction() -> None:  # F10 F20
    def bases(policy: str) -> list[int]:
        config = TopicConfig(segment_ms=10_000, max_compaction_lag_ms=1000, cleanup_policy=policy)
        disk, log = new_log(config)
        for timestamp_ms in (10_000, 11_000, 11_001):
            log.append_as_leader([batch([b"v"], timestamp_ms)], 0, now_ms=0)
        return segment_bases(disk)

    assert bases("compact") == bases("compact,delete") == [0, 2]
    assert bases("delete") == [0]


def test_segments_roll_earlier_by_a_jitter_that_differs_between_them_and_never_changes() -> None:  # F10
    def waits_ms(jitter_ms: int) -> list[int]:
        """How much record time each segment spans before it is rolled."""
        disk, log = new_log(TopicConfig(segment_ms=100, segment_jitter_ms=jitter_ms))
        for timestamp_ms in range(2_000):
            log.append_as_leader([batch([b"v"], timestamp_ms)], 0, now_ms=0)
        bases = segment_bases(disk)
        return [after - before for before, after in pairwise(bases)]

    assert waits_ms(0) == [101] * 19
    drawn = waits_ms(50)
    assert drawn == waits_ms(50)
    assert len(set(drawn)) > 10
    assert all(51 < each <= 101 for each in drawn)
    assert min(waits_ms(10**9)) >= 1  # never more than `segment.ms` itself


def test_without_timestamps_a_segment_rolls_by_the_clock() -> None:  # F10
    disk, log = new_log(TopicConfig(segment_ms=1000))
    for now_ms in (0, 1000, 1001, 2001, 2002):
        log.append_as_leader([batch([b"v"], -1)], 0, now_ms=now_ms)
    assert segment_bases(disk) == [0, 2, 4]


def test_a_log_that_was_emptied_rolls_by_the_same_clock() -> None:
    disk, log = new_log(TopicConfig(segment_ms=1000))
    log.truncate_fully_and_start_at(50)  # B25
    for now_ms in (1000, 1001):
        log.append_as_leader([batch([b"v"], -1)], 0, now_ms=now_ms)
    assert segment_bases(disk) == [50, 51]


def test_a_segment_rolls_when_an_index_is_full() -> None:  # F10
    disk, log = new_log(TopicConfig(segment_index_bytes=96, index_interval_bytes=0))
    fill(log, 20)
    assert (
        segment_bases(disk)[1] == 16
    )  # 8 entries of 12 bytes, the last one kept for the seal: 7, and the first batch


def test_a_segment_rolls_when_offsets_would_not_fit_its_index() -> None:  # F10
    disk, log = new_log(ONE_SEGMENT)
    log.append_as_follower([placed(0)], now_ms=0)
    log.append_as_follower([placed(2**31 - 1)], now_ms=0)
    log.append_as_follower([placed(2**31)], now_ms=0)
    assert (segment_bases(disk), read_offsets(log)) == ([0, 2**31], [0, 2**31 - 1, 2**31])


def test_a_segment_may_be_filled_to_the_byte() -> None:  # F10
    given = batch([b"x" * 1000])
    disk, log = new_log(TopicConfig(segment_bytes=2 * given.size_bytes))
    for _ in range(5):
        log.append_as_leader([given], 0, now_ms=0)
    assert segment_bases(disk) == [0, 2, 4]


def test_a_batch_as_large_as_a_segment_is_taken() -> None:
    given = batch([b"x" * 2000])
    disk, log = new_log(TopicConfig(segment_bytes=given.size_bytes))
    for _ in range(3):
        log.append_as_leader([given], 0, now_ms=0)
    assert segment_bases(disk) == [0, 1, 2]


def test_a_gap_at_a_roll_lies_within_the_new_segment_so_that_none_lies_between_segments() -> None:
    disk, log = new_log(TopicConfig(segment_ms=10))
    log.append_as_follower([placed(0, timestamp_ms=0)], now_ms=0)
    log.append_as_follower([placed(50, timestamp_ms=100)], now_ms=0)
    assert (segment_bases(disk), read_offsets(log)) == ([0, 1], [0, 50])


def test_batches_with_a_gap_that_no_segment_spans_go_into_two() -> None:
    disk, log = new_log(ONE_SEGMENT)
    log.append_as_follower([placed(5), placed(2**31 + 5), placed(2**33)], now_ms=0)
    assert segment_bases(disk) == [0, 6, 2**33]
    assert read_offsets(open_log(disk, config=ONE_SEGMENT)) == [5, 2**31 + 5, 2**33]
    log.close()
    again = open_log(disk, config=ONE_SEGMENT, tearing=Tearing.NOTHING)
    assert read_offsets(again) == [5, 2**31 + 5, 2**33]
    read = again.read(2**31 + 5, max_bytes=1 << 20, end_offset=2**32)
    assert [each.base_offset for each in split_batches(read.records)] == [2**31 + 5]
    assert read.next_offset == 2**32  # goes on where the reader may read to, in the gap


def test_rolling_an_empty_segment_does_nothing() -> None:
    disk, log = new_log()
    log.roll(0)
    fill(log, 1)
    log.roll(0)
    log.roll(0)
    assert segment_bases(disk) == [0, 2]


def test_a_sealed_segment_has_its_indexes_on_disk() -> None:  # F5
    disk, log = new_log()
    fill(log, 6)
    log.roll(0)
    time_index = disk.read_at(segment_path(0, ".timeindex"), 0, 1000)
    the_last_entry_comes_at_roll = (1110).to_bytes(8, "big") + (11).to_bytes(4, "big")
    assert time_index[-12:] == the_last_entry_comes_at_roll
    assert disk.size(segment_path(0, ".index")) == 8 * (len(time_index) // 12)


def test_a_log_says_what_it_is() -> None:
    _, log = new_log()
    fill(log, 2, epoch=3)
    assert repr(log) == "<Log orders-0 start=0 flushed=0 leo=4 epoch=3 segments=1>"
    assert log.directory == DIRECTORY


@pytest.mark.parametrize("end_offset", [60, 40, 20])
def test_the_bytes_that_can_be_read_are_those_that_a_read_finds(end_offset: int) -> None:
    _, log = new_log()
    fill(log, 30)
    for offset in range(0, end_offset, 2):
        found, at = 0, offset
        while at < end_offset and (read := log.read(at, max_bytes=700, end_offset=end_offset)).records:
            found, at = found + len(read.records), read.next_offset
        assert readable_bytes(log, offset, max_bytes=1 << 20, end_offset=end_offset) == found
        assert readable_bytes(log, offset, max_bytes=100, end_offset=end_offset) == min(100, found)
        assert readable_bytes(log, offset, max_bytes=1, end_offset=end_offset) == min(1, found)
    assert readable_bytes(log, 60, max_bytes=1, end_offset=60) == 0
