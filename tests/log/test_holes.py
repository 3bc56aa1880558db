"""Files of a log that were removed or shortened from outside: no record goes missing in silence (B30-B32)."""

from collections.abc import Callable
from random import Random

import pytest

from rayka.errors import CorruptRecord, DamagedLog
from rayka.log.log import Log
from rayka.log.recovery import Tearing
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import (
    DIRECTORY,
    fill,
    new_log,
    open_log,
    placed,
    read_batches,
    read_offsets,
    segment_bases,
    segment_path,
    sync,
    truncate,
)

HOW_IT_ENDED = [Tearing.NOTHING, Tearing.SHORT_TAIL, Tearing.TAIL]


def _closed(batch_count: int = 30) -> tuple[MemoryDisk, list[int]]:
    disk, log = new_log()
    fill(log, batch_count)
    sync(disk, log)
    log.close()
    return disk, segment_bases(disk)


def _shorten(disk: MemoryDisk, base_offset: int, size_bytes: int) -> None:
    path = segment_path(base_offset)
    disk.write(path, disk.read_at(path, 0, size_bytes))


@pytest.mark.parametrize("tearing", HOW_IT_ENDED)
@pytest.mark.parametrize("recovery_point", [0, 60])
@pytest.mark.parametrize("has_indexes", [True, False])
def test_a_segment_that_was_removed_is_named_with_the_offsets_that_are_missing(
    tearing: Tearing, recovery_point: int, has_indexes: bool
) -> None:
    disk, bases = _closed()
    disk.unlink(segment_path(bases[1]))
    if not has_indexes:
        disk.unlink(segment_path(bases[0], ".index"))
    expected = (
        rf"^{DIRECTORY}: offsets {bases[1]} to {bases[2] - 1} are missing: {segment_path(bases[0])} ends at offset"
        rf" {bases[1]}, .*Restore it from a copy; or, to go on"
    )
    for _ in range(2):
        with pytest.raises(DamagedLog, match=expected):
            open_log(disk, recovery_point=recovery_point, tearing=tearing)


@pytest.mark.parametrize("tearing", HOW_IT_ENDED)
@pytest.mark.parametrize("recovery_point", [0, 60])
@pytest.mark.parametrize("kept_batches", [0, 1, 2])
def test_a_sealed_segment_that_was_shortened_between_batches_leaves_a_hole(
    tearing: Tearing, recovery_point: int, kept_batches: int
) -> None:
    disk, bases = _closed()
    size_bytes = read_batches(open_log(disk))[0].size_bytes
    _shorten(disk, bases[1], kept_batches * size_bytes)
    missing = f"offsets {bases[1] + 2 * kept_batches} to {bases[2] - 1} are missing"
    with pytest.raises(DamagedLog, match=missing):
        open_log(disk, recovery_point=recovery_point, tearing=tearing)


@pytest.mark.parametrize("tearing", HOW_IT_ENDED)
@pytest.mark.parametrize("recovery_point", [0, 60])
def test_a_sealed_segment_that_was_shortened_within_a_batch_is_named(
    tearing: Tearing, recovery_point: int
) -> None:
    disk, bases = _closed()
    _shorten(disk, bases[1], disk.size(segment_path(bases[1])) - 9)
    with pytest.raises(DamagedLog, match=segment_path(bases[1])):
        open_log(disk, recovery_point=recovery_point, tearing=tearing)


@pytest.mark.parametrize("tearing", list(Tearing))
def test_a_first_segment_that_was_removed_is_missed(tearing: Tearing) -> None:
    disk, bases = _closed()
    disk.unlink(segment_path(0))
    with pytest.raises(
        DamagedLog,
        match=rf"offsets 0 to {bases[1] - 1} are missing: the first segment is {bases[1]:020d}\.log, .*Restore it",
    ):
        open_log(disk, recovery_point=60, tearing=tearing)


def test_wherever_a_sealed_segment_was_shortened_the_missing_offsets_are_named() -> None:
    """Also where its last index entry points to the end that is left."""
    disk, bases = _closed()
    size_bytes = read_batches(open_log(disk))[0].size_bytes
    for kept_batches in reversed(range((bases[2] - bases[1]) // 2)):
        _shorten(disk, bases[1], kept_batches * size_bytes)
        with pytest.raises(DamagedLog, match=f"offsets {bases[1] + 2 * kept_batches} to {bases[2] - 1} are"):
            open_log(disk, recovery_point=60, tearing=Tearing.NOTHING)


def test_a_broken_header_at_the_end_of_a_sealed_segment_makes_no_hole_and_readers_find_it() -> None:
    disk, bases = _closed()
    size_bytes = read_batches(open_log(disk))[0].size_bytes
    disk.flip_bit(segment_path(bases[1]), disk.size(segment_path(bases[1])) - size_bytes + 16)
    log = open_log(disk, recovery_point=60, tearing=Tearing.NOTHING)
    assert log.log_end_offset == 60
    with pytest.raises(CorruptRecord):
        read_batches(log)


@pytest.mark.parametrize(
    "garbage", [b"", b"\xff" * 24, bytes(8), (7).to_bytes(4, "big") + (100).to_bytes(4, "big")]
)
def test_an_index_that_leads_nowhere_makes_no_hole(garbage: bytes) -> None:
    disk, bases = _closed()
    disk.write(segment_path(bases[1], ".index"), garbage)
    assert open_log(disk, recovery_point=60, tearing=Tearing.NOTHING).log_end_offset == 60


@pytest.mark.parametrize("tearing", HOW_IT_ENDED)
def test_gaps_that_a_follower_copied_are_no_holes(tearing: Tearing) -> None:
    disk, log = new_log()
    for base_offset in range(0, 1000, 10):
        log.append_as_follower([placed(base_offset + 3, count=2)], now_ms=0)  # B18
    log.close()
    assert len(log.segments) > 3
    for recovery_point in (0, 1000 - 5):
        again = open_log(disk, recovery_point=recovery_point, tearing=tearing)
        assert read_offsets(again) == read_offsets(log)


def _truncated_fully(_: MemoryDisk, log: Log) -> None:
    log.truncate_fully_and_start_at(90)
    fill(log, 20)


def _moved_up(_: MemoryDisk, log: Log) -> None:
    log.increment_log_start_offset(40)


def _truncated(disk: MemoryDisk, log: Log) -> None:
    truncate(disk, log, 31)
    log.append_as_follower([placed(55)], now_ms=0)
    fill(log, 20)


@pytest.mark.parametrize("change", [_truncated_fully, _moved_up, _truncated])
def test_what_was_removed_on_purpose_is_not_missed(change: Callable[[MemoryDisk, Log], None]) -> None:
    disk, log = new_log()
    fill(log, 30)
    sync(disk, log)
    change(disk, log)
    expected = read_batches(log)
    disk.process_crash()
    again = open_log(disk, recovery_point=60)  # the checkpoints are of before
    assert [each.base_offset for each in read_batches(again) if each.base_offset >= log.log_start_offset] == [
        each.base_offset for each in expected
    ]


@pytest.mark.parametrize("change", [_truncated_fully, _moved_up, _truncated])
def test_a_power_cut_during_a_change_makes_no_hole_that_is_refused(
    change: Callable[[MemoryDisk, Log], None],
) -> None:
    for seed in range(40):
        disk, log = new_log()
        disk.sync_now([], ["/", "/data"])
        fill(log, 30)
        sync(disk, log)
        change(disk, log)
        disk.power_loss(Random(seed))
        offsets = read_offsets(open_log(disk, recovery_point=60, tearing=Tearing.ANYWHERE))
        assert offsets == sorted(offsets)


def test_a_power_cut_that_made_a_hole_ends_the_log_there_and_what_is_behind_it_is_kept() -> None:
    disk, bases = _closed()
    size_bytes = read_batches(open_log(disk))[0].size_bytes
    _shorten(disk, bases[1], size_bytes)
    log = open_log(disk, tearing=Tearing.ANYWHERE)  # B31
    assert read_offsets(log) == list(range(bases[1] + 2))
    assert len(log.recovery.kept_paths) == len(bases) - 2


def test_an_operator_can_go_on_without_what_is_missing() -> None:
    disk, bases = _closed()
    for base in bases[1:]:
        disk.unlink(segment_path(base))
    with pytest.raises(DamagedLog, match=f"make an empty file {DIRECTORY}/recovery-point-lowered"):
        open_log(disk, recovery_point=60)
    disk.write(f"{DIRECTORY}/recovery-point-lowered", b"")
    assert read_offsets(open_log(disk, recovery_point=60)) == list(range(bases[1]))

    disk, bases = _closed()
    disk.unlink(segment_path(0))
    with pytest.raises(DamagedLog, match=f"make an empty file {DIRECTORY}/log-start-raised"):
        open_log(disk, recovery_point=60)
    disk.write(f"{DIRECTORY}/log-start-raised", b"")
    assert read_offsets(open_log(disk, recovery_point=60)) == list(range(bases[1], 60))
    disk.unlink(segment_path(bases[1]))
    with pytest.raises(DamagedLog, match=f"offsets {bases[1]} to {bases[2] - 1} are missing"):
        open_log(disk, recovery_point=60)


class _CountingDisk(MemoryDisk):
    """Counts what is read; nothing is mapped at a clean start."""

    read_bytes = 0

    def read_at(self, path: str, position: int, size_bytes: int) -> bytes:
        data = super().read_at(path, position, size_bytes)
        self.read_bytes += len(data)
        return data

    def map(self, path: str) -> memoryview:
        raise AssertionError(path)


def test_a_clean_start_reads_no_more_of_a_sealed_segment_than_its_end() -> None:
    disk = _CountingDisk()
    disk.make_directory("/data")
    log = open_log(disk)
    fill(log, 400)
    log.close()
    disk.read_bytes = 0
    again = open_log(disk, recovery_point=800, tearing=Tearing.NOTHING)
    assert (len(again.segments), again.log_end_offset) == (len(log.segments), 800)
    assert disk.read_bytes < log.segments.size_bytes / 3
