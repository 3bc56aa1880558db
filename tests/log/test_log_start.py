"""The log start offset moves up: segments that go, segments that stay, and the state after a crash (A51)."""

from random import Random

import pytest

from rayka.errors import OffsetOutOfRange, StorageError
from rayka.ids import OffsetAndEpoch
from rayka.log.log import Log
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


def _filled(batch_count: int = 30) -> tuple[MemoryDisk, Log]:
    disk, log = new_log()
    fill(log, batch_count)
    sync(disk, log)
    return disk, log


@pytest.mark.parametrize("offset", [0, 1, 7, 20, 59, 60])
def test_only_segments_wholly_below_the_offset_go(offset: int) -> None:
    disk, log = _filled()
    bases = segment_bases(disk)
    assert len(bases) > 3
    log.increment_log_start_offset(offset)
    ends = [*bases[1:], 61]
    assert segment_bases(disk) == [base for base, end in zip(bases, ends, strict=True) if end > offset]
    assert (log.log_start_offset, log.log_end_offset) == (offset, 60)
    fill(log, 2)
    assert log.log_end_offset == 64


def test_the_segment_that_begins_at_the_offset_stays() -> None:
    disk, log = _filled()
    base = segment_bases(disk)[2]
    log.increment_log_start_offset(base)
    assert segment_bases(disk)[0] == base
    assert read_offsets(log) == list(range(base, 60))


def test_what_lies_below_is_not_read_any_more() -> None:
    _, log = _filled()
    log.increment_log_start_offset(21)
    with pytest.raises(OffsetOutOfRange, match=r"outside \[21, 60\]"):
        log.read(20, max_bytes=100, end_offset=60)
    assert read_batches(log)[0].base_offset == 20  # the batch that contains it
    found = result_of(first_at_or_after(log, 0, end_offset=60))
    assert found is not None
    assert found.offset == 21


@pytest.mark.parametrize("offset", [0, 1, 16, 17, 59, 60])
def test_the_bytes_from_an_offset_on_are_those_of_its_batch_and_all_after_it(offset: int) -> None:
    _, log = _filled()
    sizes = [each.size_bytes for each in read_batches(log)]
    assert log.segments.size_from(offset) == sum(sizes[offset // 2 :])


def test_it_never_moves_down() -> None:
    _, log = _filled()
    log.increment_log_start_offset(20)
    log.increment_log_start_offset(10)
    assert log.log_start_offset == 20


def test_it_does_not_move_beyond_the_end() -> None:
    _, log = _filled()
    with pytest.raises(AssertionError, match="cannot start at 61"):
        log.increment_log_start_offset(61)


@pytest.mark.parametrize("seed", range(20))
def test_records_given_up_before_they_were_synced_are_not_missed_after_a_power_cut(seed: int) -> None:
    disk, log = _filled()
    disk.sync_now([], ["/", "/data"])
    fill(log, 3)
    log.increment_log_start_offset(65)
    disk.power_loss(Random(seed))
    again = open_log(disk, recovery_point=log.flushed_offset, start=65, tearing=Tearing.ANYWHERE)
    assert (again.log_start_offset, read_offsets(again)) in ((65, []), (65, [64, 65]))


@pytest.mark.parametrize("seed", range(40))
def test_a_recovery_point_that_rests_on_the_log_start_says_of_no_byte_that_it_was_synced(
    seed: int,
) -> None:  # B31
    disk, log = new_log()
    fill(log, 30)
    disk.sync_now([], ["/", "/data", DIRECTORY])
    log.increment_log_start_offset(31)
    disk.process_crash()
    log = open_log(disk, start=31)
    assert (log.flushed_offset, read_offsets(log)[-1]) == (31, 59)
    disk.power_loss(Random(seed))
    again = open_log(disk, recovery_point=31, start=31, tearing=Tearing.ANYWHERE)
    offsets = read_offsets(again)
    assert again.log_start_offset == 31
    assert offsets == list(range(31, 31 + len(offsets)))


class _NothingIsKept(Random):
    """A disk of which a power cut keeps only synced files and directories."""

    def randint(self, a: int, _: int) -> int:
        return a


def test_segments_below_the_log_start_that_a_power_cut_brings_back_are_removed() -> None:  # B32
    disk, log = _filled()
    disk.sync_now([], ["/", "/data"])
    log.increment_log_start_offset(31)
    disk.power_loss(_NothingIsKept())
    assert segment_bases(disk)[0] == 0
    assert open_log(disk, recovery_point=60, start=31).log_start_offset == 31
    assert 0 < segment_bases(disk)[0] <= 31


def test_epochs_are_forgotten_with_their_last_segment_but_for_that_of_the_record_before() -> None:
    disk, log = new_log()
    for epoch in (1, 2, 3, 4):
        fill(log, 8, epoch=epoch)
    sync(disk, log)
    assert segment_bases(disk)[:3] == [0, 16, 32]
    log.increment_log_start_offset(31)
    assert [log.epochs.epoch_of(offset) for offset in (15, 16, 32)] == [1, 2, 3]
    assert log.end_offset_for_epoch(1) == OffsetAndEpoch(16, 1)
    log.increment_log_start_offset(32)
    assert [log.epochs.epoch_of(offset) for offset in (15, 31, 32)] == [-1, 2, 3]


def test_after_a_crash_a_log_that_starts_at_its_first_segment_again_knows_every_epoch() -> None:  # B20
    disk, log = new_log()
    for epoch in (1, 2, 3):
        fill(log, 5, epoch=epoch)
    sync(disk, log)
    log.increment_log_start_offset(28)
    again = open_log(disk, recovery_point=30)
    assert again.log_start_offset == segment_bases(disk)[0] < 20
    assert {each.leader_epoch for each in read_batches(again)} == {2, 3}
    for each in read_batches(again):
        assert again.epochs.epoch_of(each.base_offset) == each.leader_epoch


def test_a_log_that_starts_at_its_end_keeps_its_epoch() -> None:
    disk, log = new_log()
    fill(log, 5, epoch=4)
    sync(disk, log)
    log.increment_log_start_offset(10)
    assert (log.latest_epoch, open_log(disk).latest_epoch) == (4, 4)
    assert open_log(disk, start=10).latest_epoch == 4


def test_a_reader_keeps_what_it_mapped() -> None:
    disk, log = _filled()
    view = disk.map(segment_path(0))
    kept = bytes(view)
    log.increment_log_start_offset(60)
    assert bytes(view) == kept
    assert f"{0:020d}.log" not in disk.list(DIRECTORY)


def test_a_checkpoint_keeps_the_offset_and_without_one_the_first_segment_says_where_the_log_starts() -> None:
    disk, log = _filled()
    log.increment_log_start_offset(25)
    sync(disk, log)
    first = segment_bases(disk)[0]
    assert 0 < first < 25
    assert open_log(disk, recovery_point=60, start=25).log_start_offset == 25
    assert open_log(disk, recovery_point=60).log_start_offset == first


@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_keeps_every_record_from_the_offset_on(seed: int) -> None:
    disk, log = _filled()
    disk.sync_now([], ["/", "/data"])
    log.increment_log_start_offset(31)
    disk.power_loss(Random(seed))
    again = open_log(disk, recovery_point=60)
    assert again.log_start_offset <= 31
    assert read_offsets(again) == list(range(again.log_start_offset, 60))


def test_after_a_failure_the_log_takes_no_more_changes() -> None:
    disk, log = _filled()
    fill(log, 1, epoch=1)
    log.roll(now_ms=0)
    fill(log, 1, epoch=2)
    sync(disk, log)
    disk.fail("write", "leader-epoch-checkpoint")
    with pytest.raises(StorageError):
        log.increment_log_start_offset(63)
    assert log.failure is not None
