"""Expired segments, the order in which they go, and the state after a crash (F11)."""

from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.config.topic_config import TopicConfig
from rayka.errors import DiskFull, StorageError
from rayka.ids import NO_TIMESTAMP
from rayka.log.log import Log
from rayka.log.recovery import Tearing
from rayka.log.retention import Clock, DeletionReason, Expired, ahead_ms, expire
from rayka.log.segment_removal import SEGMENTS_PER_TURN
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import (
    DIRECTORY,
    EndingDisk,
    MachineEnded,
    batch,
    new_log,
    open_log,
    read_batches,
    read_offsets,
    segment_bases,
    sync,
)

SMALL = TopicConfig(
    segment_bytes=1024,
    index_interval_bytes=200,
    segment_index_bytes=1000,
    retention_ms=-1,
    retention_bytes=-1,
)
HOUR = 3_600_000


def config(**changes: int | str) -> TopicConfig:
    return SMALL.model_copy(update=changes)


def put(log: Log, *timestamps_ms: int, size_bytes: int = 700) -> None:
    """One batch, so large that the next one gets a segment of its own."""
    values = [b"." * (size_bytes // len(timestamps_ms))] * len(timestamps_ms)
    log.append_as_leader([batch(values, list(timestamps_ms))], 0, now_ms=0)


def log_of(*batches: tuple[int, ...], **changes: int | str) -> tuple[MemoryDisk, Log]:
    """A log of one segment for each batch, all of it on disk."""
    disk, log = new_log(config(**changes))
    for timestamps_ms in batches:
        put(log, *timestamps_ms)
    sync(disk, log)
    return disk, log


def look(
    log: Log, timestamp_ms: int = 0, high_watermark: int | None = None, now_ms: int = 0
) -> list[Expired]:
    """All that goes, with the sync that a roll waits for."""
    bound = log.log_end_offset if high_watermark is None else high_watermark
    done, disk = [], log._files.disk
    while True:
        while (expired := expire(log, bound, Clock(timestamp_ms, now_ms))) is not None:
            done.append(expired)
        if not log.retired.waits_for_sync:
            return done
        assert isinstance(disk, MemoryDisk)
        sync(disk, log)


# ---- By time ----


def test_a_segment_expires_by_its_largest_timestamp_not_its_first_or_last() -> None:  # F11
    _, log = log_of((100, 900, 300), (1000,), (2000,), retention_ms=500)
    assert look(log, 1400) == []
    (expired,) = look(log, 1401)
    assert expired == Expired(DeletionReason.TIME, 3, 1, expired.size_bytes)
    assert (log.log_start_offset, read_offsets(log)) == (3, [3, 4])


def test_nothing_expires_before_an_older_segment_that_has_to_stay() -> None:  # F11
    _, log = log_of((5000,), (100,), (200,), retention_ms=500)
    assert look(log, 2000) == []
    assert log.log_start_offset == 0


def test_a_timestamp_in_the_future_keeps_its_segment_until_then() -> None:  # F11
    _, log = log_of((10 * HOUR,), (100,), (200,), retention_ms=500)
    assert ahead_ms(log, HOUR) == 9 * HOUR
    assert look(log, HOUR) == []
    look(log, 10 * HOUR + 501)
    assert log.log_start_offset == 3
    assert ahead_ms(log_of((10 * HOUR,), (1,))[1], 0) == 0  # nothing expires by time


def test_a_clock_that_jumps_back_deletes_nothing() -> None:
    _, log = log_of((1000,), (1000,), retention_ms=500)
    assert look(log, 0) == look(log, -HOUR) == []


def test_records_without_timestamps_expire_by_the_time_that_the_process_knows_them() -> None:
    _, log = log_of((NO_TIMESTAMP,), (NO_TIMESTAMP,), (NO_TIMESTAMP,), retention_ms=500)
    assert look(log, HOUR * 1000, now_ms=500) == []
    look(log, HOUR * 1000, now_ms=501)
    assert log.log_start_offset == 3


def test_without_a_bound_nothing_expires() -> None:
    _, log = log_of((1,), (2,), (3,))
    assert look(log, 1 << 60) == []


def test_what_is_only_compacted_expires_neither_by_time_nor_by_size() -> None:  # F28
    for policy, start_offset in (("compact", 0), ("compact,delete", 3), ("delete", 3)):
        _, log = log_of((1,), (2,), (3,), retention_ms=5, retention_bytes=100, cleanup_policy=policy)
        look(log, 1000)
        assert log.log_start_offset == start_offset, policy


# ---- The active segment ----


def test_the_active_segment_is_sealed_when_it_has_expired_whole() -> None:  # F11
    disk, log = log_of((1,), (2,), retention_ms=500)
    look(log, 1000)
    assert (log.log_start_offset, log.log_end_offset, segment_bases(disk)) == (2, 2, [2])
    assert look(log, 1 << 50) == []  # a lone empty one is kept
    put(log, 5000)
    assert read_offsets(log) == [2]


def test_the_active_segment_stays_for_one_young_or_uncommitted_record() -> None:  # F11
    disk, log = log_of((1,), (2,), retention_ms=500)
    put(log, 600, size_bytes=70)
    look(log, 1000, high_watermark=3)
    assert (log.log_start_offset, segment_bases(disk)) == (1, [1])
    look(log, 2000, high_watermark=2)
    assert (log.log_start_offset, segment_bases(disk)) == (1, [1])


def test_nothing_above_the_high_watermark_expires() -> None:  # F11
    _, log = log_of(*[(each,) for each in range(10)], retention_ms=5)
    look(log, 1000, high_watermark=4)
    assert (log.log_start_offset, log.log_end_offset) == (4, 10)
    look(log, 1000, high_watermark=0)
    assert log.log_start_offset == 4


# ---- By size, and by the start ----


@pytest.mark.parametrize("kept_count", [0, 1, 3, 5, 9])
def test_the_oldest_go_while_the_rest_has_the_bytes_that_are_kept(kept_count: int) -> None:  # F11
    _, log = log_of(*[(1,)] * 5)
    size_bytes = log.segments.first.size_bytes
    log.config = config(retention_bytes=kept_count * size_bytes + (kept_count > 0))
    look(log)
    assert log.log_start_offset == max(0, 5 - kept_count - (kept_count > 0))


def test_segments_below_the_log_start_go_whatever_the_policy_says() -> None:  # F11
    disk, log = log_of(*[(1,)] * 5, cleanup_policy="compact")
    log.log_start_offset = 3  # as a checkpoint says after a crash
    (expired,) = look(log)
    assert (expired.cause, expired.segment_count, segment_bases(disk)[0]) == (DeletionReason.START, 3, 3)


def test_one_turn_removes_a_bounded_number_of_segments_and_the_rest_follows() -> None:
    count = 2 * SEGMENTS_PER_TURN + 7
    disk, log = log_of(*[(1,)] * (count + 1), retention_bytes=1)
    assert [each.segment_count for each in look(log)] == [SEGMENTS_PER_TURN, SEGMENTS_PER_TURN, 7]
    _, other = log_of(*[(1,)] * (count + 1))
    other.increment_log_start_offset(count)
    assert len(other.segments) == count + 1 - SEGMENTS_PER_TURN
    look(other)
    assert len(other.segments) == 1
    assert segment_bases(disk) == [count]


# ---- Files ----


def test_files_are_renamed_oldest_first_and_their_names_are_given_once_for_removal() -> None:  # F11
    disk, log = log_of((1,), (2,), (3,), retention_ms=1, retention_bytes=-1)
    look(log, 4)
    retired = log.retired.take()
    assert retired[0] == f"{DIRECTORY}/{0:020d}.log.deleted"
    assert list(retired) == sorted(retired, key=lambda each: each.split("/")[-1][:20])
    assert all(disk.exists(each) for each in retired)
    assert log.retired.take() == ()
    open_log(disk, recovery_point=3, start=log.log_start_offset)
    assert not any(disk.exists(each) for each in retired)


def test_snapshots_of_producers_go_the_same_way() -> None:
    disk, log = log_of((1,), (2,), (3,), retention_ms=1)
    before = [name for name in disk.list(DIRECTORY) if name.endswith(".snapshot")]
    look(log, 4)
    retired = [each.split("/")[-1] for each in log.retired.take() if ".snapshot" in each]
    assert retired == [f"{name}.deleted" for name in before if int(name[:20]) < log.log_start_offset]
    assert retired


def test_a_reader_keeps_what_it_has_mapped_or_open() -> None:
    disk, log = log_of((1,), (2,), (3,), retention_ms=1)
    path = f"{DIRECTORY}/{0:020d}.log"
    view, piece = disk.map(path), disk.slice(path, 0, 100)
    kept = bytes(view)
    look(log, 1000)
    for each in log.retired.take():
        disk.unlink(each)
    assert bytes(view) == kept
    assert bytes(piece.read()) == kept[:100]


def test_the_newest_timestamp_of_a_sealed_segment_is_read_without_its_index() -> None:
    disk, log = log_of(*[(each,) for each in range(1, 30)], retention_ms=500)
    again = open_log(disk, recovery_point=log.log_end_offset, config=log.config, tearing=Tearing.NOTHING)
    read: list[int] = []
    original = disk.read_at
    disk.read_at = lambda *of: read.append(of[2]) or original(*of)  # type: ignore[method-assign, func-returns-value]
    assert look(again, 510)
    assert max(read) <= 12


# ---- Crashes, and disks that fail ----


def _crashes(then: Callable[[EndingDisk, int], None]) -> Iterator[tuple[EndingDisk, int, int]]:
    """A log whose expiry ends at each of its steps, one after another: the disk, where it begins, where it ends."""
    for step in range(1 << 10):
        disk = EndingDisk()
        disk.make_directory("/data")
        log = open_log(disk, config=config(retention_ms=500))
        for number in range(6):
            put(log, number * 400)
        disk.sync_now([], ["/", "/data"])
        sync(disk, log)
        disk.left, is_over = step, False
        try:
            look(log, 1600)
            is_over = True
        except MachineEnded:
            pass
        disk.left = -1
        then(disk, step)
        yield disk, log.log_start_offset, log.log_end_offset
        if is_over:
            return


@pytest.mark.parametrize("seed", [None, *range(10)])
def test_a_crash_at_any_step_costs_nothing_that_has_to_stay(seed: int | None) -> None:  # B32, B33, F11
    def crash(disk: EndingDisk, step: int) -> None:
        if seed is None:
            disk.process_crash()
        else:
            disk.power_loss(Random(seed * 1000 + step))

    tearing = Tearing.SHORT_TAIL if seed is None else Tearing.ANYWHERE
    count = 0
    for disk, _, end_offset in _crashes(crash):
        count += 1
        again = open_log(disk, recovery_point=end_offset, config=config(retention_ms=500), tearing=tearing)
        found = read_offsets(again)
        assert found == list(range(found[0], 6))
        assert found[0] <= 3
        assert not any(name.endswith(".deleted") for name in disk.list(DIRECTORY))
        look(again, 1600)
        assert read_offsets(again) == [3, 4, 5]
    assert count > 10


def test_a_full_disk_does_not_stop_what_makes_room() -> None:
    disk, log = log_of((1,), (2,), (3,), retention_ms=500)
    disk.fill_up(after_bytes=10)
    with pytest.raises(DiskFull):
        put(log, 4)
    disk.fill_up(after_bytes=100)
    look(log, 502)
    assert (log.log_start_offset, len(log.retired.take())) == (1, 3)


def test_the_indexes_of_what_goes_make_room_for_the_name_of_what_stays() -> None:
    disk, log = log_of((1,), (2,), (3,), retention_ms=500)
    written, write = [], disk.write

    def refuse_once(path: str, data: object) -> None:
        written.append(path)
        if len(written) == 1:
            raise DiskFull(f"{path}: no space left on device")
        write(path, data)  # type: ignore[arg-type]

    disk.write = refuse_once  # type: ignore[method-assign, assignment]
    look(log, 502)
    assert log.log_start_offset == 1
    assert log.retired.take() == (f"{DIRECTORY}/{0:020d}.log.deleted",)


def test_where_not_even_that_helps_nothing_has_changed_and_all_is_read() -> None:
    disk, log = log_of((1,), (2,), (3,), retention_ms=500)
    disk.fill_up()
    with pytest.raises(DiskFull):
        look(log, 1000)
    assert (log.failure, read_batches(log)[0].base_offset, len(log.segments)) == (None, 0, 3)
    assert log.segments.first.indexes.by_offset is not None  # made anew in memory
    disk.fill_up(after_bytes=1 << 20)
    look(log, 1000)
    assert log.log_start_offset == 3


def test_a_disk_that_fails_ends_the_log() -> None:
    disk, log = log_of((1,), (2,), (3,), retention_ms=500)
    disk.fail("write", "log-start-raised")
    with pytest.raises(StorageError):
        look(log, 1000)
    assert log.failure is not None
    with pytest.raises(StorageError, match="cannot start later"):
        look(log, 1000)


# ---- A model ----


@settings(max_examples=60, deadline=None)
@given(
    ages=st.lists(st.integers(0, 100), min_size=1, max_size=12),
    retention_ms=st.integers(-1, 100),
    kept_bytes=st.one_of(st.just(-1), st.integers(0, 9000)),
    high_watermark=st.integers(0, 12),
    deleted_up_to=st.integers(0, 12),
)
def test_what_goes_is_the_longest_expired_prefix(
    ages: list[int], retention_ms: int, kept_bytes: int, high_watermark: int, deleted_up_to: int
) -> None:  # F11
    _, log = log_of(*[(1000 - age,) for age in ages], retention_ms=retention_ms, retention_bytes=kept_bytes)
    end = len(ages)
    high_watermark, deleted_up_to = min(high_watermark, end), min(deleted_up_to, high_watermark, end)
    sizes = [each.size_bytes for each in log.segments.all]
    log.increment_log_start_offset(deleted_up_to)
    look(log, 1000, high_watermark)

    expected = min(deleted_up_to, end)
    begin = min(expected, end - 1)
    while begin < high_watermark and (
        0 <= retention_ms < ages[begin] or 0 <= kept_bytes <= sum(sizes[begin + 1 :])
    ):
        begin += 1
    assert log.log_start_offset == max(expected, begin)
    assert read_offsets(log) == list(range(log.log_start_offset, end))
    assert log.log_end_offset == end
