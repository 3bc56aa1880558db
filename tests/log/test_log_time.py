"""Offsets by time (F6, G12), against a look at every record."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.config.topic_config import TopicConfig
from rayka.errors import CorruptRecord, OffsetNotAvailable
from rayka.log.log import Log
from rayka.log.recovery import Tearing
from rayka.log.segments import Search, TimestampAndOffset, first_at_or_after, largest_before
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import batch, fill, new_log, open_log, read_batches, result_of, segment_path


def _log_with(times: Sequence[Sequence[int]], interval_bytes: int) -> Log:
    _, log = new_log(TopicConfig(segment_bytes=1024, index_interval_bytes=interval_bytes))
    for each in times:
        log.append_as_leader([batch([b"v"] * len(each), each)], 3, now_ms=0)
    return log


def _first_at_or_after(records: list[int], timestamp_ms: int, end_offset: int) -> int | None:
    found = next((offset for offset, each in enumerate(records) if each >= timestamp_ms), None)
    return found if found is not None and found < end_offset else None


TIMES = st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), min_size=1, max_size=25)


@given(times=TIMES, interval_bytes=st.sampled_from([0, 150, 4096]), is_reopened=st.booleans())
@settings(max_examples=60)
def test_every_look_up_by_time_finds_what_a_scan_finds(
    times: list[list[int]], interval_bytes: int, is_reopened: bool
) -> None:  # F6
    log = _log_with(times, interval_bytes)
    if is_reopened:
        log.close()
        log = open_log(log._disk, tearing=Tearing.NOTHING, config=log.config)
    records = [each for given in times for each in given]
    ends = [each.next_offset for each in read_batches(log)]
    for timestamp_ms in range(62):
        for end_offset in (ends[-1], ends[len(ends) // 2]):
            found = result_of(first_at_or_after(log, timestamp_ms, end_offset=end_offset))
            expected = _first_at_or_after(records, timestamp_ms, end_offset)
            assert (found.offset if found else None) == expected
            assert found is None or (found.timestamp_ms, found.leader_epoch) == (records[found.offset], 3)


@given(times=TIMES, interval_bytes=st.sampled_from([0, 150, 4096]))
@settings(max_examples=40)
def test_the_maximal_timestamp_is_the_first_of_the_largest_below_the_end(
    times: list[list[int]], interval_bytes: int
) -> None:  # F6
    log = _log_with(times, interval_bytes)
    records = [each for given in times for each in given]
    for end_offset in [0] + [each.next_offset for each in read_batches(log)]:
        found = result_of(largest_before(log, end_offset=end_offset))
        committed = records[:end_offset]
        assert (found.offset if found else None) == (committed.index(max(committed)) if committed else None)


@given(times=TIMES, interval_bytes=st.sampled_from([0, 150, 4096]), data=st.data())
@settings(max_examples=60)
def test_records_below_the_log_start_are_found_at_no_time(
    times: list[list[int]], interval_bytes: int, data: st.DataObject
) -> None:
    """The start may lie within a batch, and the index of its segment knows what is before it."""
    log = _log_with(times, interval_bytes)
    records = [each for given in times for each in given]
    start = data.draw(st.integers(0, len(records)), "start")
    log.increment_log_start_offset(start)
    left = records[start:]
    largest = result_of(largest_before(log, end_offset=len(records)))
    assert (largest and largest.offset) == (start + left.index(max(left)) if left else None)
    for timestamp_ms in range(62):
        found = result_of(first_at_or_after(log, timestamp_ms, end_offset=len(records)))
        expected = next((n for n, each in enumerate(records) if n >= start and each >= timestamp_ms), None)
        assert (found.offset if found else None) == expected


class _CountingDisk(MemoryDisk):
    read_bytes = 0

    def read_at(self, path: str, position: int, size_bytes: int) -> bytes:
        data = super().read_at(path, position, size_bytes)
        self.read_bytes += len(data)
        return data


@pytest.mark.parametrize("timestamp_ms", [None, 5], ids=["largest", "at or after"])
def test_no_slice_of_a_search_reads_more_than_a_part_of_a_segment(timestamp_ms: int | None) -> None:
    """The oldest record, which had the largest timestamp, was deleted."""
    disk = _CountingDisk()
    disk.make_directory("/data")
    log = open_log(disk, config=TopicConfig())
    for each in [100, *[1] * 5_000, 5]:
        log.append_as_leader([batch([bytes(4_000)], each)], 0, now_ms=0)
    log.increment_log_start_offset(1)
    end_offset = log.log_end_offset
    if timestamp_ms is None:
        search = largest_before(log, end_offset=end_offset)
    else:
        search = first_at_or_after(log, timestamp_ms, end_offset=end_offset)
    slices, before = [], disk.read_bytes

    def slice_by_slice() -> Search:
        nonlocal before
        while True:
            try:
                next(search)
            except StopIteration as end:
                found: TimestampAndOffset | None = end.value
                return found
            slices.append(disk.read_bytes - before)
            before = disk.read_bytes
            yield

    assert result_of(slice_by_slice()) == (5, 5_001, 0)
    assert len(slices) > 10
    assert max(slices) <= 3 << 20


@pytest.mark.parametrize("remove", [Log.increment_log_start_offset, Log.truncate_to])
def test_a_search_ends_when_records_go_that_it_may_have_seen(remove: Callable[[Log, int], None]) -> None:
    _, log = new_log(TopicConfig())
    fill(log, 100)
    search = largest_before(log, end_offset=200)
    next(search)
    remove(log, 50)
    with pytest.raises(OffsetNotAvailable, match="try again"):
        result_of(search)


def test_records_without_timestamps_are_found_at_no_time() -> None:
    log = _log_with([[-1], [-1]], 4096)
    assert result_of(first_at_or_after(log, 0, end_offset=2)) is None
    assert result_of(largest_before(log, end_offset=2)) is None


def test_a_missing_or_bogus_index_is_rebuilt_when_it_is_asked_for() -> None:
    disk, log = new_log()
    fill(log, 40)
    log.close()
    whole = {suffix: disk.read_at(segment_path(0, suffix), 0, 9999) for suffix in (".index", ".timeindex")}
    disk.unlink(segment_path(0, ".index"))
    disk.write(segment_path(0, ".timeindex"), b"nonsense")
    again = open_log(disk, tearing=Tearing.NOTHING)
    found = result_of(first_at_or_after(again, 1070, end_offset=80))
    assert found is not None
    assert found.offset == 7
    indexes = again.segments.first.indexes
    assert {".index": indexes.by_offset.data, ".timeindex": indexes.by_time.data} == whole


def test_indexes_that_are_whole_are_used_as_they_are() -> None:
    disk, log = new_log()
    fill(log, 40)
    log.close()
    paths = [segment_path(0, suffix) for suffix in (".index", ".timeindex")]
    before = [disk.identity(path) for path in paths]
    again = open_log(disk, tearing=Tearing.NOTHING)
    found = result_of(first_at_or_after(again, 1070, end_offset=80))
    assert found is not None
    assert (found.offset, [disk.identity(path) for path in paths]) == (7, before)


def test_no_record_of_a_batch_that_reaches_beyond_the_end_is_the_largest() -> None:  # F6, G12
    log = _log_with([[1, 5, 9]], 4096)
    log.increment_log_start_offset(1)
    assert result_of(largest_before(log, end_offset=2)) is None


def test_of_equal_timestamps_the_first_from_the_log_start_on_is_the_largest() -> None:  # F6
    log = _log_with([[9, 5], [5], [5]], 4096)
    log.increment_log_start_offset(1)  # within the first batch
    assert result_of(largest_before(log, end_offset=4)) == (5, 1, 3)


def test_a_broken_batch_is_an_error_of_the_look_up() -> None:
    disk, log = new_log()
    fill(log, 3)
    disk.flip_bit(segment_path(0), 120)
    with pytest.raises(CorruptRecord):
        result_of(first_at_or_after(log, 1000, end_offset=6))
