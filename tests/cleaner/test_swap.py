"""A swap of cleaned segments for the old ones: whatever ends the process, and whenever (F26, B32)."""

from random import Random

import pytest

from rayka.cleaner.compaction import Compaction, SyncNeeded
from rayka.cleaner.file_cleaning import CleaningAborted
from rayka.errors import CorruptRecord, DiskFull, StorageError
from rayka.log.log import Log
from rayka.log.recovery import Tearing
from rayka.log.swap import has_swap
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_header import split_batches
from rayka.testing.memory_disk import MemoryDisk
from tests.cleaner.support import COMPACTED, SETTINGS, Found, clean, part_of, put, records_of, table_of
from tests.log.support import new_log, open_log, ranges_of, truncate

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


def crash_after(step_count: int, *, is_power_cut: bool, seed: int) -> tuple[list[Found], Log, int]:
    """The records before, and the log after a crash behind so many steps of a cleaning; 0 steps: it ended first."""
    disk, log = filled()
    part = part_of(disk, log)
    before, flushed_offset = records_of(log), log.flushed_offset
    for done, step in enumerate(Compaction(log, part, SETTINGS, lambda: True).run(disk), 1):
        if done == step_count:
            break
        if isinstance(step, SyncNeeded):
            disk.sync_now(step.files, step.directories)
    else:
        step_count = 0
    if is_power_cut:
        disk.power_loss(Random(seed))
    else:
        disk.process_crash()
    tearing = Tearing.ANYWHERE if is_power_cut else Tearing.SHORT_TAIL
    return before, reopened(disk, flushed_offset, tearing), step_count


@pytest.mark.parametrize("is_power_cut", [False, True])
def test_a_crash_at_any_step_leaves_the_old_segments_or_the_new_one(*, is_power_cut: bool) -> None:  # F26
    step_count, seeds = 1, range(6 if is_power_cut else 1)
    while step_count:
        for seed in seeds:
            before, log, ended = crash_after(step_count, is_power_cut=is_power_cut, seed=seed)
            after = records_of(log)
            assert table_of(after) == table_of(before), (step_count, seed)
            assert set(after) <= set(before)
            assert log.log_end_offset == 3 * ROUNDS
            assert not [each for each in log._files.disk.list(log.directory) if each.endswith(".swap")]
        step_count = ended and step_count + 1
    assert len(after) == 3


@pytest.mark.parametrize("seed", range(5))
def test_a_second_power_cut_during_the_recovery_changes_nothing(seed: int) -> None:  # F26
    for step_count in range(1, 40):
        before, log, ended = crash_after(step_count, is_power_cut=True, seed=seed)
        disk = log._files.disk
        assert isinstance(disk, MemoryDisk)
        disk.power_loss(Random(seed))
        again = reopened(disk, log.flushed_offset, Tearing.ANYWHERE)
        assert table_of(records_of(again)) == table_of(before)
        if not ended:
            return


def test_a_reader_keeps_what_it_was_given_while_the_segment_is_replaced() -> None:  # F26
    disk, log = filled()
    spans = list(log.spans(0, 1 << 20, log.log_end_offset, True))
    slices = [segment.give(span) for segment, span in spans]
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
    for step in Compaction(log, part, SETTINGS, lambda: True).run(disk):
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
        list(Compaction(log, part, SETTINGS, lambda: True).run(disk))
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
            for step in Compaction(log, part, SETTINGS, lambda: True).run(disk):
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
            for step in Compaction(log, part, SETTINGS, lambda: True).run(disk):
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
