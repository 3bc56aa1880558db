"""A swap of cleaned segments for the old ones: whatever ends the process, and whenever (F26, B32)."""

from collections.abc import Generator
from contextlib import suppress
from itertools import pairwise
from random import Random

import pytest

from rayka.cleaner.compaction import Compaction, SyncNeeded
from rayka.cleaner.file_cleaning import CleaningAborted
from rayka.errors import CorruptRecord, DiskFull, StorageError
from rayka.log.log import Log
from rayka.log.recovery import Tearing
from rayka.log.segment_removal import has_swap
from rayka.ports import Slice
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import split_batches
from rayka.testing.memory_disk import MemoryDisk
from tests.cleaner.support import (
    COMPACTED,
    HERE,
    SETTINGS,
    Found,
    clean,
    part_of,
    put,
    records_of,
    steps_of,
    table_of,
)
from tests.log.support import EndingDisk, MachineEnded, new_log, open_log, ranges_of, sync, truncate

ROUNDS = 12


def filled() -> tuple[MemoryDisk, Log]:
    disk, log = new_log(COMPACTED)
    filled_log(log)
    disk.sync_now([], ["/", "/data"])
    return disk, log


def filled_log(log: Log) -> Log:
    for number in range(ROUNDS):
        put(log, *[(key, b"%d" % number * 20) for key in (b"a", b"b", b"c")])
    return log


def reopened(disk: MemoryDisk, flushed_offset: int, tearing: Tearing) -> Log:
    """The log as the next process opens it: its directory's names are durable first."""
    if has_swap(disk, "/data/orders-0"):
        disk.sync_now([], ["/data/orders-0"])
    return open_log(disk, config=COMPACTED, recovery_point=flushed_offset, tearing=tearing)


def crash_at(change: int, seed: int | None, *, joins: bool = False) -> tuple[list[Found], Log, bool]:
    """The records before, the log after a crash before that change of the disk by a cleaning, and whether there was
    one: else it came behind the cleaning. With a seed the power is cut. The second cleaning `joins` small segments.
    """
    disk = EndingDisk()
    disk.make_directory("/data")
    log = filled_log(open_log(disk, config=COMPACTED))
    disk.sync_now([], ["/", "/data"])
    if joins:
        clean(disk, log)
    part = part_of(disk, log)
    before, flushed_offset = records_of(log), log.flushed_offset
    disk.left = change
    with suppress(MachineEnded):
        for step in steps_of(Compaction(log, part, SETTINGS, **HERE), disk):
            if isinstance(step, SyncNeeded):
                disk.sync_now(step.files, step.directories)
    has_ended, disk.left = disk.has_ended, -1
    if seed is None:
        disk.process_crash()
    else:
        disk.power_loss(Random(seed))
    tearing = Tearing.SHORT_TAIL if seed is None else Tearing.ANYWHERE
    return before, reopened(disk, flushed_offset, tearing), has_ended


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("seed", [None, *range(6)])
def test_a_crash_at_any_change_of_the_disk_leaves_the_old_segments_or_the_new_one(
    seed: int | None, *, joins: bool
) -> None:  # F26
    change, has_ended = 0, True
    while has_ended:
        before, log, has_ended = crash_at(change, seed, joins=joins)
        after = records_of(log)
        assert table_of(after) == table_of(before), change
        assert set(after) <= set(before)
        assert log.log_end_offset == 3 * ROUNDS
        assert all(one.next_offset <= other.base_offset for one, other in pairwise(log.segments))
        left = log._files.disk.list(log.directory)
        assert not [each for each in left if each.endswith((".cleaned", ".swap"))]
        change += 1
    assert len(after) == 3
    assert change > 10


@pytest.mark.parametrize("seed", range(5))
def test_a_second_power_cut_behind_the_recovery_changes_nothing(seed: int) -> None:  # F26
    change, has_ended = 0, True
    while has_ended:
        before, log, has_ended = crash_at(change, seed)
        disk = log._files.disk
        assert isinstance(disk, MemoryDisk)
        disk.power_loss(Random(seed))
        again = reopened(disk, log.flushed_offset, Tearing.ANYWHERE)
        assert table_of(records_of(again)) == table_of(before)
        change += 1


def test_a_reader_keeps_what_it_was_given_while_the_segment_is_replaced() -> None:  # F26
    disk, log = filled()
    spans = list(log.spans(0, 1 << 20, log.log_end_offset, True))
    slices = [segment.slice(span) for segment, span in spans]
    expected = [bytes(each.read()) for each in slices]
    mapped = [disk.map(each.path) for each in slices]
    ranges = ranges_of(log, 0, max_bytes=1 << 20, end_offset=log.log_end_offset)
    clean(disk, log)
    assert [bytes(each.read()) for each in slices] == expected
    assert all(bytes(view).startswith(data) for view, data in zip(mapped, expected, strict=True))
    replaced = [
        each for each in ranges if disk.exists(each.path) and disk.identity(each.path).inode == each.inode
    ]
    assert len(replaced) < len(ranges)  # the others are asked for again


def test_the_log_can_be_read_after_each_step() -> None:
    disk, log = filled()
    before = table_of(records_of(log))
    part = part_of(disk, log)
    for step in steps_of(Compaction(log, part, SETTINGS, **HERE), disk):
        assert table_of(records_of(log)) == before
        assert log.log_end_offset == 3 * ROUNDS
        if isinstance(step, SyncNeeded):
            disk.sync_now(step.files, step.directories)
    for each in log.segments:
        each.indexes.drop()
    assert table_of(records_of(log)) == before


def test_a_full_disk_ends_a_cleaning_and_leaves_a_whole_log() -> None:
    for room in range(0, 800, 50):
        disk, log = filled()
        part_of(disk, log)
        before = records_of(log)
        disk.fill_up(room)
        try:
            clean(disk, log)
        except DiskFull:
            assert not [each for each in disk.list(log.directory) if each.endswith((".cleaned", ".swap"))]
        assert log.failure is None
        assert table_of(records_of(log)) == table_of(before)


class FullDisk(MemoryDisk):
    """Has no room to remove files that end so, as a file system that never writes in place."""

    suffix = "nothing"

    def unlink(self, path: str) -> None:
        if path.endswith(self.suffix):
            raise DiskFull(f"cannot remove {path}: disk full")
        super().unlink(path)


def test_a_swap_that_finds_no_room_to_remove_a_file_is_ended_when_the_log_is_opened_again() -> None:  # F26
    disk = FullDisk()
    disk.make_directory("/data")
    log = filled_log(open_log(disk, config=COMPACTED))
    before = records_of(log)
    part_of(disk, log)
    disk.suffix = f"{log.segments.first.base_offset:020d}.log"
    with pytest.raises(DiskFull):
        clean(disk, log)
    assert isinstance(log.failure, DiskFull)
    assert table_of(records_of(log)) == table_of(before)
    disk.suffix = "nothing"
    again = reopened(disk, log.flushed_offset, Tearing.SHORT_TAIL)
    assert table_of(records_of(again)) == table_of(before)
    clean(disk, again)
    assert table_of(records_of(again)) == table_of(before)


def test_snapshots_of_producers_go_with_the_segments_that_become_one() -> None:  # C9, F26
    disk, log = filled()
    for _ in range(2):
        clean(disk, log)  # the second time there are small ones to join
    snapshots = {int(each[:20]) for each in disk.list(log.directory) if each.endswith(".snapshot")}
    assert snapshots == {each.base_offset for each in log.segments} - {0}


def test_a_failed_sync_is_told_and_changes_nothing() -> None:  # F13
    disk, log = filled()
    part_of(disk, log)
    before = records_of(log)
    disk.fail("sync", ".cleaned")
    with pytest.raises(StorageError):
        clean(disk, log)
    assert records_of(log) == before


def test_a_corrupt_batch_is_named_and_nothing_changes() -> None:  # F27
    disk, log = filled()
    part = part_of(disk, log)
    path = log.segments.first.path
    disk.flip_bit(path, 200)
    with pytest.raises(CorruptRecord, match=path):
        list(steps_of(Compaction(log, part, SETTINGS, **HERE), disk))
    assert not [each for each in disk.list(log.directory) if each.endswith(".cleaned")]


def test_what_a_killed_cleaning_left_is_in_no_later_ones_way() -> None:  # F26
    disk, log = filled()
    for suffix in (".log", ".index", ".timeindex"):
        disk.append(f"{log.directory}/{0:020d}{suffix}.cleaned", [b"a part"])
    before = table_of(records_of(log))
    clean(disk, log)
    assert table_of(records_of(log)) == before
    assert table_of(records_of(open_log(disk, config=COMPACTED))) == before
    assert not [each for each in disk.list(log.directory) if each.endswith(".cleaned")]


@pytest.mark.parametrize("offset", [0, 1, 10, 20, 35])
def test_a_truncation_at_any_step_of_a_cleaning_wins(offset: int) -> None:
    step_count, is_over = 0, False
    while not is_over:
        step_count, is_over = step_count + 1, True
        disk, log = filled()
        part, done = part_of(disk, log), 0
        before = records_of(log)
        try:
            for step in steps_of(Compaction(log, part, SETTINGS, **HERE), disk):
                done += 1
                if isinstance(step, SyncNeeded):
                    disk.sync_now(step.files, step.directories)
                if done == step_count:
                    truncate(disk, log, offset)
                    is_over = False
        except CleaningAborted:
            pass
        assert log.log_end_offset <= (offset if not is_over else 3 * ROUNDS)
        assert log.cleaned_offset <= log.log_end_offset
        assert not [each for each in disk.list(log.directory) if each.endswith(".cleaned")]
        after = records_of(log)
        assert set(after) <= set(before)
        put(log, (b"z", b"1"))
        log.roll(0)
        assert records_of(open_log(disk, config=COMPACTED)) == [*after, (log.log_end_offset - 1, b"z", b"1")]


def test_segments_that_retention_removed_meanwhile_stay_removed() -> None:
    for stop in range(1, 60):
        disk, log = filled()
        part, done = part_of(disk, log), 0
        try:
            for step in steps_of(Compaction(log, part, SETTINGS, **HERE), disk):
                done += 1
                if isinstance(step, SyncNeeded):
                    disk.sync_now(step.files, step.directories)
                if done == stop:
                    log.increment_log_start_offset(30)
        except (CleaningAborted, StorageError):
            pass
        assert [each[0] for each in records_of(log) if each[0] >= 33] == [33, 34, 35]
        reader = log.read(30, max_bytes=1 << 20, end_offset=36)
        assert all(len(decode(each)) >= 0 for each in split_batches(reader.records))


# ---- What gives up between two steps ----

GIVING_UP = ["not wanted", "deleted", "truncated", "full", "stopped", "failed"]
SYNCS = 3  # of a swap: before the old files are removed, before the new ones get their names, after that


def broken_off(way: str, at: int, step: int) -> tuple[MemoryDisk, Log, bool]:
    """The log when the cleaning is over, which `way` gave up while the swap numbered `at` waited for its sync numbered
    `step`; and whether there was one.
    """
    disk, log = filled()
    part, wanted, here, sync_count = part_of(disk, log), [True], [True], -1
    steps = steps_of(
        Compaction(log, part, SETTINGS, is_wanted=lambda: wanted[0], is_here=lambda: here[0]), disk
    )
    try:
        for each in steps:
            if not isinstance(each, SyncNeeded):
                continue
            sync_count += bool(each.directories)
            if sync_count == SYNCS * at + step and each.directories:
                if way == "not wanted":
                    wanted[0] = False
                elif way == "deleted":
                    here[0] = False
                    disk.rename(log.directory, f"{log.directory}.deleted")
                    return disk, put_again(disk, steps), True
                elif way == "truncated":
                    truncate(disk, log, 1)
                elif way == "full":
                    log.failure = DiskFull("no room for an append")
                else:
                    steps.close()
                    return disk, log, True
            disk.sync_now(each.files, each.directories)
    except CleaningAborted:
        pass
    return disk, log, sync_count >= SYNCS * at + step


def put_again(disk: MemoryDisk, steps: Generator[Slice | SyncNeeded, None, None]) -> Log:
    """Another log of the same name, made while the cleaning of the deleted one goes on."""
    log = filled_log(open_log(disk, config=COMPACTED))
    before = records_of(log)
    with suppress(CleaningAborted):
        list(steps)
    assert records_of(log) == before
    return log


@pytest.mark.parametrize("way", GIVING_UP)
@pytest.mark.parametrize("step", range(SYNCS))
def test_whatever_gives_up_between_the_steps_of_a_swap_leaves_a_log_that_goes_on(
    way: str, step: int
) -> None:  # F26
    at, was_there = 0, True
    while was_there:
        disk, log, was_there = broken_off(way, at, step)
        expected = table_of(records_of(log))
        if way == "stopped":
            log.close()
            sync(disk, log)
            log = reopened(disk, log.flushed_offset, Tearing.NOTHING)
        elif way == "failed":
            log = reopened(disk, log.flushed_offset, Tearing.SHORT_TAIL)
        assert not [each for each in disk.list(log.directory) if each.endswith((".cleaned", ".swap"))]
        assert log.replacements.removable(log.log_end_offset) == log.log_end_offset
        assert table_of(records_of(log)) == expected
        if way == "full":
            log = reopened(disk, log.flushed_offset, Tearing.SHORT_TAIL)
        put(log, (b"d", b"new"))
        clean(disk, log)
        assert table_of(records_of(log)) == {**expected, b"d": b"new"}
        log.increment_log_start_offset(log.log_end_offset)
        assert len(log.segments) == 1
        at += 1
    assert at > 1
