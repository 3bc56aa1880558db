"""Opening a log after each kind of crash (B30-B32); the cases of Kafka's LogLoaderTest that apply."""

import logging
from random import Random

import pytest

from rayka.errors import DamagedLog, StorageError
from rayka.log.recovery import Tearing
from rayka.log.segments import first_at_or_after
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import (
    DIRECTORY,
    fill,
    new_log,
    open_log,
    read_batches,
    read_offsets,
    result_of,
    segment_bases,
    segment_path,
    sync,
)


def _filled(batch_count: int = 30) -> MemoryDisk:
    disk, log = new_log()
    fill(log, batch_count)
    disk.process_crash()
    return disk


def test_a_log_that_was_not_shut_down_comes_back_whole() -> None:
    log = open_log(_filled())
    assert (read_offsets(log), log.recovery.cut) == (list(range(60)), None)
    assert log.recovery.scanned_bytes == log.segments.size_bytes


def test_only_segments_from_the_recovery_point_on_are_scanned() -> None:
    disk = _filled()
    bases = segment_bases(disk)
    log = open_log(disk, recovery_point=bases[-1] + 1)  # B31
    assert log.recovery.scanned_bytes == disk.size(segment_path(bases[-1]))
    assert log.flushed_offset == bases[-1] + 1


def test_a_clean_log_is_not_scanned_and_counts_as_durable() -> None:
    disk, log = new_log()
    fill(log, 30, epoch=2)
    log.close()
    again = open_log(disk, tearing=Tearing.NOTHING)  # B30
    assert (again.recovery.scanned_bytes, again.flushed_offset, again.latest_epoch) == (0, 60, 2)
    fill(again, 5)
    assert read_offsets(again) == list(range(70))


def test_opening_twice_is_opening_once() -> None:
    disk = _filled()
    first = open_log(disk)
    second = open_log(disk)
    assert repr(first) == repr(second)


# ---- Torn tails ----


@pytest.mark.parametrize("kept_bytes", [1, 11, 27, 63, 64, 65, 200])
def test_a_torn_tail_is_cut_counted_and_logged_and_nothing_before_it_is_lost(
    kept_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk, log = new_log()
    fill(log, 5)
    size_bytes = log.segments.size_bytes
    disk.tear_next_append(segment_path(0), kept_bytes)
    with pytest.raises(StorageError):
        fill(log, 1)
    disk.process_crash()
    again = open_log(disk)  # B31
    assert again.recovery.cut == (segment_path(0), 10, size_bytes, kept_bytes)
    assert (read_offsets(again), disk.size(segment_path(0))) == (list(range(10)), size_bytes)
    assert again.recovery.scanned_bytes == size_bytes + kept_bytes
    [record] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert record.getMessage() == (
        f"cut {kept_bytes} bytes off {segment_path(0)}: no whole batch at offset 10, position {size_bytes}"
    )


def test_a_tail_of_zeros_is_cut() -> None:
    disk = _filled(5)
    disk.append(segment_path(0), [bytes(4096)])
    log = open_log(disk)
    assert (read_offsets(log), log.recovery.cut is not None) == (list(range(10)), True)


def test_a_torn_write_in_front_of_a_segment_without_batches_is_cut() -> None:  # B31
    """The log was rolled before its last write was synced; the power cut left zeros of it, and the new name."""
    disk, log = new_log()
    fill(log, 3)
    sync(disk, log)
    path, synced_bytes = segment_path(0), disk.size(segment_path(0))
    fill(log, 1)
    log.roll(0)
    torn_bytes = disk.size(path) - synced_bytes
    disk.write(path, disk.read_at(path, 0, synced_bytes) + bytes(torn_bytes))
    found = open_log(disk, recovery_point=6, tearing=Tearing.TAIL)
    assert read_offsets(found) == list(range(6))
    fill(found, 1)
    assert read_offsets(found) == list(range(8))


def test_a_torn_tail_is_cut_in_place_and_needs_no_room() -> None:
    """A disk that is full tore it, and may be full still."""
    disk = _filled(5)
    before = disk.identity(segment_path(0))
    disk.append(segment_path(0), [b"garbage"])
    disk.fill_up()
    assert read_offsets(open_log(disk)) == list(range(10))
    assert disk.identity(segment_path(0)) == before


def test_a_segment_of_nothing_but_garbage_becomes_empty() -> None:
    disk = _filled(5)
    disk.write(segment_path(0), b"x" * 500)
    log = open_log(disk)
    assert (log.log_end_offset, log.segments.size_bytes, log.recovery.cut) == (
        0,
        0,
        (segment_path(0), 0, 0, 500),
    )
    fill(log, 1)
    assert read_offsets(log) == [0, 1]


def test_appends_after_a_cut_are_recovered_in_their_turn() -> None:
    disk = _filled(5)
    disk.append(segment_path(0), [b"garbage"])
    fill(open_log(disk), 5)
    assert read_offsets(open_log(disk)) == list(range(20))


# ---- Clean shutdowns ----


def test_a_clean_log_whose_end_is_broken_all_the_same_is_recovered() -> None:
    disk, log = new_log()
    fill(log, 5)
    log.close()
    disk.append(segment_path(0), [b"garbage"])
    again = open_log(disk, tearing=Tearing.NOTHING)
    assert (read_offsets(again), again.recovery.cut is not None) == (list(range(10)), True)


@pytest.mark.parametrize("tearing", list(Tearing))
@pytest.mark.parametrize("kept_batches", [0, 2])
def test_records_that_were_synced_and_are_not_there_are_damage(tearing: Tearing, kept_batches: int) -> None:
    disk, log = new_log()
    fill(log, 5)
    log.close()
    content = bytes(disk.map(segment_path(0)))
    disk.write(segment_path(0), content[: kept_batches * len(content) // 5])
    with pytest.raises(DamagedLog, match=f"ends at offset {kept_batches * 2}, but was synced up to 10"):
        open_log(disk, recovery_point=10, tearing=tearing)


# ---- Indexes, epochs, leftovers ----


@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "torn"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_recovery_rebuilds_every_index(damage: str, suffix: str) -> None:
    disk = _filled(30)
    paths = [segment_path(base, suffix) for base in segment_bases(disk)[:-1]]
    whole = [disk.read_at(path, 0, 9999) for path in paths]
    for path in paths:
        if damage == "missing":
            disk.unlink(path)
        else:
            content = {"empty": b"", "garbage": b"\xff" * 24, "torn": disk.read_at(path, 0, 5)}[damage]
            disk.write(path, content)
    log = open_log(disk)
    assert [disk.read_at(path, 0, 9999) for path in paths] == whole
    assert read_offsets(log) == list(range(60))


@pytest.mark.parametrize("content", [None, b"", b"0\n3\n1 0\n", b"0\n1\n1 0\n"])
def test_recovery_mends_the_epochs_from_the_batches(content: bytes | None) -> None:
    disk, log = new_log()
    for epoch in (1, 2, 5):
        fill(log, 4, epoch=epoch)
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    disk.unlink(path)
    if content is not None:
        disk.write(path, content)
    again = open_log(disk, recovery_point=23 if content != b"0\n1\n1 0\n" else 0)
    assert [again.end_offset_for_epoch(epoch).offset for epoch in (1, 2, 5)] == [8, 16, 24]


def test_indexes_below_the_recovery_point_stay_as_they_were_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all is read for its epochs: power lost before a sync tears what is written then, and no recovery looks
    at it again."""
    disk = _filled(30)
    bases = segment_bases(disk)
    disk.unlink(f"{DIRECTORY}/leader-epoch-checkpoint")
    written, write = list[str](), disk.write

    def noted(path: str, content: bytes) -> None:
        written.append(path)
        write(path, content)

    monkeypatch.setattr(disk, "write", noted)
    log = open_log(disk, recovery_point=bases[3])
    indexes = [each for each in written if each.endswith("index")]
    assert indexes == [
        segment_path(each, suffix) for each in bases[2:-1] for suffix in (".index", ".timeindex")
    ]
    assert result_of(first_at_or_after(log, 1000, end_offset=60)) == (1000, 0, 0)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_below_the_recovery_point_that_makes_no_sense_is_built_in_memory_once(
    suffix: str,
) -> None:
    disk = _filled(60)
    path = segment_path(0, suffix)
    whole = disk.read_at(path, 0, 9999)
    disk.write(path, b"\xff" * 24)
    log = open_log(disk, recovery_point=120)
    assert read_offsets(log) == list(range(120))
    assert disk.read_at(path, 0, 9999) == b"\xff" * 24
    disk.write(path, b"")  # as power that is lost before a sync may leave it
    for _ in range(2):
        assert read_offsets(log) == list(range(120)), "others are dropped from memory meanwhile"
        assert result_of(first_at_or_after(log, 1010, end_offset=120)) == (1010, 1, 0)
    segment = log.segments.first.indexes
    assert {".index": segment.by_offset, ".timeindex": segment.by_time}[suffix].data == whole


def test_epochs_beyond_the_end_are_forgotten() -> None:
    disk, log = new_log()
    fill(log, 2, epoch=1)
    log.assign_epoch(7, 4)
    assert open_log(disk).latest_epoch == 1  # B20: stale entries are truncated against the log end offset


def test_a_foreign_file_is_left_alone() -> None:
    disk = _filled(5)
    names = {"notes.log", "notes.index", "quorum-state", "00000000000000000003.log.cut"}
    for name in sorted(names):
        disk.write(f"{DIRECTORY}/{name}", b"mine")
    assert read_offsets(open_log(disk)) == list(range(10))
    assert names <= set(disk.list(DIRECTORY))


def test_leftovers_and_orphan_indexes_are_removed() -> None:  # B32
    disk = _filled(5)
    leftovers = [
        "00000000000000000000.log.deleted",
        "00000000000000000000.log.cleaned",
        "00000000000000000000.log.tmp",
        "00000000000000000777.index",
        "00000000000000000777.timeindex",
    ]
    for name in leftovers:
        disk.write(f"{DIRECTORY}/{name}", b"left over")
    log = open_log(disk)  # B32
    assert set(leftovers).isdisjoint(disk.list(DIRECTORY))
    assert read_offsets(log) == list(range(10))


# ---- Log start offset ----


def test_a_log_start_beyond_the_end_empties_the_log_there() -> None:
    disk = _filled(5)
    log = open_log(disk, start=500)  # B32
    assert (log.log_start_offset, log.log_end_offset, segment_bases(disk)) == (500, 500, [500])


def test_records_that_were_given_up_are_not_missed_although_they_were_synced() -> None:  # A51
    disk = _filled(5)
    content = disk.read_at(segment_path(0), 0, 9999)
    disk.write(segment_path(0), content[: 4 * len(content) // 5])
    log = open_log(disk, recovery_point=10, start=10)
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)


def test_nothing_below_the_log_start_waits_for_a_sync() -> None:
    assert open_log(_filled(5), start=4).flushed_offset == 4


def test_a_log_start_within_the_log_hides_what_is_below_it() -> None:
    log = open_log(_filled(5), start=4)
    assert (log.log_start_offset, read_offsets(log)) == (4, list(range(4, 10)))


def test_a_new_log_begins_at_the_start_it_is_given() -> None:
    disk = MemoryDisk()
    disk.make_directory("/data")
    log = open_log(disk, start=40)
    fill(log, 1)
    assert read_offsets(log) == [40, 41]
    disk.process_crash()  # before a checkpoint says where it begins
    assert read_offsets(open_log(disk)) == [40, 41]


# ---- Durability ----


def test_what_was_synced_survives_power_loss_whenever_it_happens() -> None:
    for seed in range(60):
        disk, log = new_log()
        disk.sync_now([], ["/"])
        fill(log, 10, epoch=1)
        sync(disk, log)
        fill(log, 10, epoch=2)
        disk.power_loss(Random(seed))
        again = open_log(disk, recovery_point=20, tearing=Tearing.ANYWHERE)
        offsets = read_offsets(again)
        assert offsets == list(range(len(offsets)))
        assert len(offsets) >= 20
        assert [again.epochs.epoch_of(each.base_offset) for each in read_batches(again)] == [
            each.leader_epoch for each in read_batches(again)
        ]


def test_a_sync_covers_what_was_there_when_its_plan_was_made() -> None:
    disk, log = new_log()
    fill(log, 2)
    plan = log.unsynced()
    fill(log, 2)
    disk.sync_now(plan.files, plan.directories)
    log.on_synced(plan)
    assert (log.flushed_offset, log.unsynced().files) == (4, (segment_path(0),))
    sync(disk, log)
    assert (log.flushed_offset, log.unsynced().is_empty) == (8, True)


def test_a_sync_that_fails_makes_nothing_durable() -> None:
    disk, log = new_log()
    fill(log, 2)
    disk.fail("sync")
    with pytest.raises(StorageError, match=r"cannot sync .*Input/output error"):
        sync(disk, log)
    assert log.flushed_offset == 0


def test_after_a_crash_all_that_was_scanned_counts_as_unsynced() -> None:
    disk, log = new_log()
    fill(log, 3, epoch=1)
    disk.process_crash()
    plan = open_log(disk).unsynced()
    assert {segment_path(0), f"{DIRECTORY}/leader-epoch-checkpoint"} <= set(plan.files)
    assert {DIRECTORY, "/data"} <= set(plan.directories)


def test_a_disk_that_cannot_be_read_is_an_error_and_cuts_nothing() -> None:
    disk = _filled(5)
    size_bytes = disk.size(segment_path(0))
    disk.fail("read", ".log")
    with pytest.raises(StorageError, match="Input/output error"):
        open_log(disk)
    assert disk.size(segment_path(0)) == size_bytes


def test_the_epochs_alone_can_be_made_durable() -> None:  # B20
    disk, log = new_log()
    fill(log, 2, epoch=1)
    sync(disk, log)
    fill(log, 2, epoch=1)
    log.assign_epoch(2, log.log_end_offset)
    plan = log.unsynced(epochs_only=True)
    assert (plan.files, plan.directories) == ((f"{DIRECTORY}/leader-epoch-checkpoint",), (DIRECTORY,))
    disk.sync_now(plan.files, plan.directories)
    log.on_synced(plan)
    assert (log.unsynced(epochs_only=True).is_empty, not log.unsynced().is_empty, log.flushed_offset) == (
        True,
        True,
        4,
    )
    log.assign_epoch(3, log.log_end_offset)
    assert not log.unsynced(epochs_only=True).is_empty


@pytest.mark.parametrize("tearing", [Tearing.TAIL, Tearing.ANYWHERE])
@pytest.mark.parametrize("kept_batches", [1, 2])
def test_old_batches_behind_those_that_took_their_place_are_cut(tearing: Tearing, kept_batches: int) -> None:
    """A power cut brings back what a truncation in place had cut off, exactly where a new batch ends."""
    disk, log = new_log()
    fill(log, 2, epoch=1)
    sync(disk, log)
    fill(log, 3, epoch=3)
    old = disk.read_at(segment_path(0), 0, disk.size(segment_path(0)))
    assert log.truncate_to(4) is None
    fill(log, kept_batches, epoch=4)
    new = disk.read_at(segment_path(0), 0, disk.size(segment_path(0)))
    disk.process_crash()
    disk.append(segment_path(0), [old[len(new) :]])
    again = open_log(disk, recovery_point=4, tearing=tearing)
    assert (again.log_end_offset, again.latest_epoch) == (4 + 2 * kept_batches, 4)
    assert again.recovery.kept_paths
