"""Truncation: batches that go, batches that stay, old readers, and crashes in between (B20, B25, design §3)."""

import errno
from collections.abc import Sequence
from random import Random

import pytest

from rayka.config.topic_config import TopicConfig
from rayka.errors import DiskFull, StorageError
from rayka.log.local_disk import storage_error
from rayka.log.recovery import Tearing
from rayka.log.segments import first_at_or_after
from rayka.ports import Buffer
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import (
    fill,
    new_log,
    open_log,
    ranges_of,
    read_batches,
    read_offsets,
    result_of,
    segment_bases,
    segment_path,
    sync,
    truncate,
)


@pytest.mark.parametrize("offset", [0, 1, 2, 7, 16, 17, 30, 59, 60])
def test_truncation_removes_the_batch_that_contains_the_offset_and_all_after_it(offset: int) -> None:
    disk, log = new_log()
    fill(log, 30)
    truncate(disk, log, offset)
    assert (log.log_end_offset, read_offsets(log)) == (offset // 2 * 2, list(range(offset // 2 * 2)))
    fill(log, 5)
    assert read_offsets(log) == list(range(offset // 2 * 2 + 10))
    found = result_of(first_at_or_after(log, 1000 + 10 * (log.log_end_offset - 1), end_offset=99))
    assert found is not None
    assert found.offset == log.log_end_offset - 1
    assert open_log(disk).log_end_offset == log.log_end_offset


def test_an_offset_at_or_beyond_the_end_changes_nothing() -> None:
    disk, log = new_log()
    fill(log, 3)
    before = disk.identity(segment_path(0))
    truncate(disk, log, 6)
    truncate(disk, log, 100)
    assert (disk.identity(segment_path(0)), log.log_end_offset) == (before, 6)


def test_an_epoch_without_records_is_forgotten_although_the_log_is_no_longer() -> None:  # B20
    disk, log = new_log()
    fill(log, 2, epoch=1)
    log.assign_epoch(2, 4)
    truncate(disk, log, 9)
    assert (log.latest_epoch, log.log_end_offset) == (1, 4)


def test_a_log_that_ends_before_its_begin_begins_where_it_ends() -> None:  # B25
    disk, log = new_log()
    fill(log, 10)
    log.increment_log_start_offset(13)
    truncate(disk, log, 8)
    assert (log.log_start_offset, log.log_end_offset) == (8, 8)
    fill(log, 1)
    assert read_offsets(log) == [8, 9]


def test_a_reader_keeps_the_inode_it_mapped_and_the_name_gets_another() -> None:
    disk, log = new_log()
    fill(log, 6)
    ranges_of(log, 0, max_bytes=1 << 20, end_offset=12)
    before, view = disk.identity(segment_path(0)), disk.map(segment_path(0))
    kept = bytes(view)
    truncate(disk, log, 4)
    fill(log, 4, size_bytes=70)
    assert bytes(view) == kept
    assert disk.identity(segment_path(0)).inode != before.inode


def test_truncation_forgets_the_epochs_that_began_after_it() -> None:
    disk, log = new_log()
    for epoch in (1, 2, 3):
        fill(log, 2, epoch=epoch)
    truncate(disk, log, 8)  # B20
    assert (log.latest_epoch, log.end_offset_for_epoch(2).offset) == (2, 8)


def test_truncating_below_the_log_start_empties_the_log_there() -> None:
    disk, log = new_log()
    fill(log, 3)
    log.truncate_fully_and_start_at(100)  # B25
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset, log.latest_epoch) == (
        100,
        100,
        100,
        -1,
    )
    fill(log, 2, epoch=4)
    truncate(disk, log, 50)
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (50, 50, 1)


def test_truncation_lowers_what_is_known_to_be_durable() -> None:
    disk, log = new_log()
    fill(log, 5)
    sync(disk, log)
    assert log.flushed_offset == 10
    truncate(disk, log, 4)
    assert log.flushed_offset == 4


def test_a_sync_begun_before_a_truncation_says_nothing_about_what_was_appended_after_it() -> None:
    disk, log = new_log()
    fill(log, 5)
    plan = log.unsynced()
    truncate(disk, log, 4)
    fill(log, 3)
    disk.sync_now(plan.files, plan.directories)
    log.on_synced(plan)
    assert (log.flushed_offset, log.log_end_offset) == (0, 10)
    sync(disk, log)
    assert log.flushed_offset == 10


def test_after_truncate_append_and_roll_a_stale_recovery_point_hides_no_hole() -> None:
    for seed in range(80):
        disk, log = new_log()
        fill(log, 10)
        sync(disk, log)
        disk.sync_now([], ["/"])
        stale_recovery_point = log.flushed_offset
        truncate(disk, log, 6)
        fill(log, 12, epoch=1)
        log.roll(0)
        fill(log, 2, epoch=1)
        disk.power_loss(Random(seed))
        again = open_log(disk, recovery_point=stale_recovery_point, tearing=Tearing.ANYWHERE)
        offsets = read_offsets(again)
        assert offsets == list(range(len(offsets)))
        assert len(offsets) >= 6


def test_a_saved_recovery_point_makes_the_lowered_one_obsolete() -> None:
    disk, log = new_log()
    fill(log, 5)
    sync(disk, log)
    truncate(disk, log, 4)
    log.on_recovery_point_saved(10)  # a checkpoint of before: keeps it
    assert "recovery-point-lowered" in disk.list(log.directory)
    log.on_recovery_point_saved(4)
    assert "recovery-point-lowered" not in disk.list(log.directory)


def test_power_lost_during_truncation_keeps_what_was_below_it() -> None:
    for seed in range(60):
        disk, log = new_log()
        fill(log, 30)
        sync(disk, log)
        disk.sync_now([], ["/"])
        truncate(disk, log, 9)
        disk.power_loss(Random(seed))
        again = open_log(disk, recovery_point=60, tearing=Tearing.ANYWHERE)
        offsets = read_offsets(again)
        assert offsets == list(range(len(offsets)))
        assert len(offsets) >= 8
        assert [each.base_offset for each in read_batches(again)] == offsets[::2]


class Ended(BaseException):
    """The process is gone: no handler of an error runs."""


class EndingDisk(MemoryDisk):
    """Its process ends before one of its changes, the `ends_before`-th from now."""

    ends_before = -1

    def _count(self) -> None:
        self.ends_before -= 1
        if self.ends_before == 0:
            raise Ended

    def write(self, path: str, data: Buffer) -> None:
        self._count()
        super().write(path, data)

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)

    async def copy_prefix(self, source: str, target: str, size_bytes: int) -> None:
        self._count()
        await super().copy_prefix(source, target, size_bytes)
        self._count()


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_a_segment_is_replaced_whole_or_not_at_all_wherever_its_process_ends(seed: int | None) -> None:
    """`Segments.replace`: without a seed the process is killed, with one the power is cut, at each change in turn."""
    number, was_whole = 0, True
    while was_whole:
        number += 1
        disk = EndingDisk()
        log = open_log(disk)
        fill(log, 30)
        sync(disk, log)
        disk.sync_now([], ["/", "/data"])
        bases = segment_bases(disk)
        disk.ends_before = number
        try:
            truncate(disk, log, 9)
            was_whole = False
        except Ended:
            pass
        disk.ends_before = -1
        tearing = Tearing.SHORT_TAIL if seed is None else Tearing.ANYWHERE
        if seed is None:
            disk.process_crash()
        else:
            disk.power_loss(Random(seed))
        again = open_log(disk, recovery_point=60, tearing=tearing)  # the checkpoint is of before
        assert read_offsets(again) == list(range(again.log_end_offset))
        assert again.log_end_offset in (8, *bases[1:], 60)
        assert not [name for name in disk.list(again.directory) if name.endswith(".tmp")]
        fill(again, 1)
        assert read_offsets(again) == list(range(again.log_end_offset))
    assert number > 10  # the copy, the marker, the later segments and the rename


def test_truncation_removes_the_newest_segment_first() -> None:
    disk, log = new_log()
    fill(log, 40)
    bases = segment_bases(disk)
    assert len(bases) > 3
    disk.fail("write", segment_path(0))
    with pytest.raises(StorageError, match="cannot cut"):
        truncate(disk, log, 3)
    assert segment_bases(disk) == [0]
    assert open_log(disk).log_end_offset == bases[1]


# ---- In place, or by a copy ------------------------------------------------------------------------------------------


def test_what_no_reader_was_given_and_no_sync_covers_is_cut_in_place() -> None:
    disk, log = new_log()
    fill(log, 3)
    sync(disk, log)
    ranges_of(log, 0, max_bytes=1 << 20, end_offset=6)
    fill(log, 3)
    before = disk.identity(segment_path(0))
    disk.fill_up()
    assert log.truncate_to(8) is None
    assert (log.log_end_offset, disk.identity(segment_path(0)).inode) == (8, before.inode)
    assert log.truncate_to(6) is None  # exactly what was given and synced is left
    assert (log.log_end_offset, disk.identity(segment_path(0)).inode) == (6, before.inode)


@pytest.mark.parametrize(
    "why", ["a reader was given it", "it was synced", "another process may have given it"]
)
def test_otherwise_nothing_changes_before_what_stays_is_copied(why: str) -> None:
    disk, log = new_log()
    fill(log, 6)
    if why == "a reader was given it":
        ranges_of(log, 0, max_bytes=1 << 20, end_offset=12)
    elif why == "it was synced":
        sync(disk, log)
    else:
        log = open_log(disk)
    names, before = disk.list(log.directory), repr(log)
    copy = log.truncate_to(6)
    assert copy is not None
    assert (copy.source, copy.size_bytes) == (segment_path(0), disk.size(segment_path(0)) // 2)
    assert (disk.list(log.directory), repr(log), read_offsets(log)) == (names, before, list(range(12)))


def test_more_than_the_kernel_frees_at_once_is_not_cut_in_place() -> None:
    _, log = new_log(TopicConfig(segment_bytes=64 << 20))
    fill(log, 1)
    fill(log, 17, size_bytes=1 << 19)
    assert log.truncate_to(2) is not None
    assert log.truncate_to(6) is None


def test_a_copy_made_for_another_truncation_is_not_taken() -> None:
    disk, log = new_log()
    fill(log, 6)
    ranges_of(log, 0, max_bytes=1 << 20, end_offset=12)
    copy = log.truncate_to(6)
    truncate(disk, log, 4)
    fill(log, 4)
    ranges_of(log, 0, max_bytes=1 << 20, end_offset=12)
    again = log.truncate_to(6, copy)
    assert again not in (None, copy)
    assert log.log_end_offset == 12


def test_a_crash_after_the_copy_leaves_the_log_as_it_was() -> None:
    disk, log = new_log()
    fill(log, 6)
    sync(disk, log)
    copy = log.truncate_to(6)
    assert copy is not None
    disk.copy_prefix_now(copy.source, copy.target, copy.size_bytes)
    disk.process_crash()
    assert read_offsets(open_log(disk)) == list(range(12))
    assert not disk.exists(copy.target)


def test_power_lost_after_a_cut_in_place_and_appends_mixes_nothing() -> None:
    for seed in range(80):
        disk, log = new_log()
        fill(log, 3)
        sync(disk, log)
        disk.sync_now([], ["/", "/data"])
        fill(log, 6)
        assert log.truncate_to(10) is None
        fill(log, 1, epoch=1, size_bytes=70)
        disk.power_loss(Random(seed))
        again = open_log(disk, recovery_point=6, tearing=Tearing.ANYWHERE)
        offsets = read_offsets(again)
        assert offsets == list(range(len(offsets)))
        assert len(offsets) >= 6


def test_a_truncation_that_a_full_disk_stopped_half_way_is_found_by_the_next_process() -> None:  # B32
    class NoRoomForSegments(MemoryDisk):
        is_full = False

        def append(self, path: str, buffers: Sequence[Buffer]) -> int:
            if self.is_full:
                raise storage_error("append to", path, errno.ENOSPC)
            return super().append(path, buffers)

    disk = NoRoomForSegments()
    disk.make_directory("/data")
    log = open_log(disk, start=50)
    fill(log, 30)
    sync(disk, log)
    disk.is_full = True
    with pytest.raises(DiskFull):
        log.truncate_to(10)
    log.on_recovery_point_saved(log.flushed_offset)  # by a checkpoint that has nothing to do with it
    disk.is_full = False
    again = open_log(disk, recovery_point=log.flushed_offset)
    assert (again.log_start_offset, again.log_end_offset) == (10, 10)
