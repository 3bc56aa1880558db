"""Damage that is not a torn tail: recovery leaves it in place, refuses to open the log, or cuts and keeps the bytes.

Batches of `fill` are of one size, two records each; segments hold several.
"""

import logging
from random import Random

import pytest

from rayka.config.topic_config import TopicConfig
from rayka.errors import CorruptRecord, DamagedLog, StorageError
from rayka.log.damage import find_batch
from rayka.log.log import Log
from rayka.log.recovery import Tearing
from rayka.protocol.batch_format import RecordBatch
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import (
    DIRECTORY,
    batch,
    fill,
    new_log,
    open_log,
    placed,
    read_batches,
    read_offsets,
    segment_bases,
    segment_path,
    sync,
)

LENGTH, MAGIC, CRC, BODY = 8, 16, 17, 100  # positions within a batch


def _filled(batch_count: int = 30) -> tuple[MemoryDisk, int]:
    """A log whose process was killed, and the size of its batches."""
    disk, log = new_log()
    fill(log, batch_count)
    disk.process_crash()
    return disk, read_batches(log)[0].size_bytes


def _contents(disk: MemoryDisk) -> dict[str, bytes]:
    paths = [f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY) if name.endswith(".log")]
    return {path: disk.read_at(path, 0, disk.size(path)) for path in paths}


def _offsets_read_around_damage(log: Log) -> list[int]:
    """The offsets that a consumer reads which seeks past each damaged batch."""
    skipped = {offset for each in log.recovery.damaged for offset in range(each[2], each[3] + 1)}
    found, offset = [], 0
    while offset < log.log_end_offset:
        read = log.read(offset, max_bytes=1, end_offset=log.log_end_offset)
        given = RecordBatch(read.records)
        assert given.is_crc_valid() == (offset not in skipped)
        if offset not in skipped:
            found += range(given.base_offset, given.next_offset)
        offset = read.next_offset
    return found


# ---- The page cache was kept ----


@pytest.mark.parametrize("seed", range(30))
def test_a_flipped_bit_and_a_killed_process_cost_at_most_the_batch_it_is_in(seed: int) -> None:
    disk, _ = _filled()
    random = Random(seed)
    base = random.choice(segment_bases(disk)[:-1])
    disk.flip_bit(segment_path(base), random.randrange(disk.size(segment_path(base))), random.randrange(8))
    before = _contents(disk)
    try:
        log = open_log(disk)
    except DamagedLog:
        assert _contents(disk) == before
    else:
        assert (log.recovery.cut, log.log_end_offset, _contents(disk)) == (None, 60, before)
        assert len(log.recovery.damaged) <= 1
        assert len(_offsets_read_around_damage(log)) == 60 - 2 * len(log.recovery.damaged)


def test_a_damaged_body_stays_is_counted_and_logged_and_its_readers_can_seek_past_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, size_bytes = _filled(5)
    disk.flip_bit(segment_path(0), 2 * size_bytes + BODY)
    log = open_log(disk)
    assert log.recovery.damaged == ((segment_path(0), 2 * size_bytes, 4, 5),)
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.getMessage().startswith(
        f"{segment_path(0)}: the batch at position {2 * size_bytes}, offsets 4 to 5, is damaged and stays there"
    )
    with pytest.raises(CorruptRecord, match="offset 4"):
        read_batches(log)
    fill(log, 3)
    assert _offsets_read_around_damage(log) == [0, 1, 2, 3, *range(6, 16)]


def test_an_epoch_whose_first_batch_is_damaged_begins_with_that_batch() -> None:  # B20
    disk, log = new_log()
    fill(log, 2, epoch=1)
    fill(log, 2, epoch=3)
    size_bytes = log.segments.size_bytes // 4
    disk.process_crash()
    disk.flip_bit(segment_path(0), 2 * size_bytes + BODY)
    disk.unlink(f"{DIRECTORY}/leader-epoch-checkpoint")
    again = open_log(disk)
    assert [again.epochs.epoch_of(offset) for offset in (3, 4, 7)] == [1, 3, 3]
    assert again.end_offset_for_epoch(1).offset == 4


def test_a_damaged_batch_is_found_again_by_each_recovery() -> None:
    disk, size_bytes = _filled(5)
    disk.flip_bit(segment_path(0), size_bytes + BODY)
    first = open_log(disk)
    assert open_log(disk).recovery.damaged == first.recovery.damaged


def test_neighbours_and_the_last_batch_of_a_segment_may_be_damaged_too() -> None:
    disk, size_bytes = _filled()
    last = segment_bases(disk)[1] // 2 - 1
    for number in (2, 3, last):
        disk.flip_bit(segment_path(0), number * size_bytes + BODY)
    log = open_log(disk)
    assert [each.first_offset for each in log.recovery.damaged] == [4, 6, 2 * last]
    assert len(_offsets_read_around_damage(log)) == 54


def test_a_batch_at_the_end_whose_bytes_are_all_there_is_not_torn() -> None:
    disk, size_bytes = _filled(5)
    disk.flip_bit(segment_path(0), 4 * size_bytes + BODY)
    log = open_log(disk)
    assert (log.recovery.cut, log.recovery.damaged[0].first_offset, log.log_end_offset) == (None, 8, 10)


def test_damage_before_a_torn_tail_stays_and_the_tail_is_cut() -> None:
    disk, size_bytes = _filled(5)
    disk.flip_bit(segment_path(0), size_bytes + BODY)
    disk.append(segment_path(0), [bytes(placed(10).view)[:90]])
    log = open_log(disk)
    assert log.recovery.cut == (segment_path(0), 10, 5 * size_bytes, 90)
    assert _offsets_read_around_damage(log) == [0, 1, *range(4, 10)]


@pytest.mark.parametrize(("position", "bit"), [(LENGTH, 6), (LENGTH + 3, 0), (MAGIC, 3)])
@pytest.mark.parametrize("number", [0, 2])
def test_a_header_that_leads_nowhere_makes_the_log_refuse_to_open_and_says_what_to_do(
    number: int, position: int, bit: int
) -> None:
    disk, size_bytes = _filled(5)
    disk.flip_bit(segment_path(0), number * size_bytes + position, bit)
    before = _contents(disk)
    found = disk.read_at(segment_path(0), number * size_bytes, 17).hex(" ")
    expected = (
        rf"{segment_path(0)}: expected a batch from offset {2 * number} on at position {number * size_bytes},"
        rf" found {found}\..*a whole batch stands at {(number + 1) * size_bytes}; so nothing was cut\. Restore.*restart"
    )
    for _ in range(2):
        with pytest.raises(DamagedLog, match=expected):
            open_log(disk)
    assert _contents(disk) == before


def test_an_end_of_a_sealed_segment_is_never_a_torn_tail() -> None:
    disk, size_bytes = _filled()
    end = disk.size(segment_path(0))
    disk.flip_bit(segment_path(0), end - size_bytes + MAGIC)
    with pytest.raises(DamagedLog, match="it was synced or has later segments"):
        open_log(disk)


def test_a_length_that_steps_over_a_whole_batch_is_not_followed() -> None:
    disk, log = new_log(TopicConfig())
    fill(log, 3)
    size_bytes = read_batches(log)[0].size_bytes
    content = bytearray(disk.read_at(segment_path(0), 0, 3 * size_bytes))
    content[size_bytes + LENGTH : size_bytes + LENGTH + 4] = (2 * size_bytes - 12).to_bytes(4, "big")
    disk.write(segment_path(0), bytes(content))
    with pytest.raises(DamagedLog, match=f"stands at {2 * size_bytes}"):
        open_log(disk)


def test_a_whole_batch_whose_offset_goes_back_is_not_torn() -> None:
    disk, _ = _filled(3)
    disk.append(segment_path(0), batch().stamped(base_offset=3, leader_epoch=0))
    with pytest.raises(DamagedLog, match="expected a batch from offset 6 on"):
        open_log(disk)


def test_a_segment_of_one_batch_behind_a_torn_end_shows_that_it_is_not_torn() -> None:
    """Each append was synced before the next: what stands behind was written after this was whole."""
    disk, log = new_log()
    fill(log, 3)
    size_bytes = log.segments.size_bytes // 3
    log.roll(0)
    fill(log, 1)
    disk.process_crash()
    disk.flip_bit(segment_path(0), 2 * size_bytes + MAGIC)
    with pytest.raises(DamagedLog, match="it was synced or has later segments"):
        open_log(disk, tearing=Tearing.TAIL)


def test_a_log_that_was_refused_opens_when_the_bit_is_back() -> None:
    disk, size_bytes = _filled(5)
    for _ in range(2):
        disk.flip_bit(segment_path(0), size_bytes + MAGIC)
        if disk.read_at(segment_path(0), size_bytes + MAGIC, 1) != b"R":
            with pytest.raises(DamagedLog):
                open_log(disk)
    assert read_offsets(open_log(disk)) == list(range(10))


def test_a_synced_batch_is_no_torn_tail_though_nothing_stands_behind_it() -> None:
    disk, size_bytes = _filled(5)
    disk.flip_bit(segment_path(0), 4 * size_bytes + LENGTH)
    for tearing in Tearing:
        with pytest.raises(DamagedLog, match="it was synced"):
            open_log(disk, recovery_point=10, tearing=tearing)
    assert open_log(disk, recovery_point=8).log_end_offset == 8


# ---- The power may have been cut ----


def test_after_a_power_cut_what_is_behind_the_damage_is_cut_and_kept_beside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, size_bytes = _filled()
    bases = segment_bases(disk)
    disk.flip_bit(segment_path(bases[1]), size_bytes + BODY)
    before = _contents(disk)
    log = open_log(disk, tearing=Tearing.ANYWHERE)  # B31
    assert read_offsets(log) == list(range(bases[1] + 2))
    assert segment_bases(disk) == bases[:2]
    kept = {path.removesuffix(".cut"): path for path in log.recovery.kept_paths}
    assert list(kept) == [segment_path(base) for base in (*reversed(bases[2:]), bases[1])]
    before[segment_path(bases[1])] = before[segment_path(bases[1])][
        size_bytes:
    ]  # the other part is in the log
    assert all(disk.read_at(path, 0, 1 << 20) == before[name] for name, path in kept.items())
    assert all(path in caplog.text for path in kept.values())
    again = open_log(disk)
    assert (again.recovery.cut, again.log_end_offset) == (None, bases[1] + 2)
    assert set(kept.values()) <= {f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY)}


def test_a_second_cut_of_a_segment_leaves_the_first_ones_file_alone() -> None:
    disk, size_bytes = _filled(5)
    for expected in (f"{segment_path(0)}.cut", f"{segment_path(0)}.cut.2"):
        disk.flip_bit(segment_path(0), size_bytes + BODY)
        log = open_log(disk, tearing=Tearing.ANYWHERE)
        assert log.recovery.kept_paths == (expected,)
        fill(log, 4)


def _header_that_leads_to(length: int) -> bytes:
    """A header whose CRC is that of no bytes, and with it a length that no batch has."""
    header = bytearray(bytes(placed(10).view))
    header[LENGTH : LENGTH + 4] = length.to_bytes(4, "big", signed=True)
    header[CRC : CRC + 4] = bytes(4)
    return bytes(header)


@pytest.mark.parametrize(
    "tail",
    [
        bytes(4096),
        b"garbage",
        bytes(placed(10).view)[:80] + bytes(24),
        _header_that_leads_to(0),
        _header_that_leads_to(-12),  # to itself
        _header_that_leads_to(-40),
    ],
)
def test_a_tail_torn_by_a_power_cut_is_cut_and_not_kept(tail: bytes) -> None:
    for tearing in (Tearing.TAIL, Tearing.ANYWHERE):
        disk, _ = _filled(5)
        disk.append(segment_path(0), [tail])
        log = open_log(disk, tearing=tearing)
        assert (read_offsets(log), log.recovery.kept_paths) == (list(range(10)), ())


def test_a_whole_batch_whose_offset_goes_back_is_cut_and_kept_when_a_power_cut_may_have_brought_it() -> None:
    disk, _ = _filled(3)
    disk.append(segment_path(0), batch().stamped(base_offset=3, leader_epoch=0))
    log = open_log(disk, tearing=Tearing.ANYWHERE)
    assert (read_offsets(log), len(log.recovery.kept_paths)) == (list(range(6)), 1)


@pytest.mark.parametrize("tearing", [Tearing.TAIL, Tearing.ANYWHERE])
def test_a_batch_of_an_earlier_epoch_right_behind_what_was_synced_is_cut_and_kept(tearing: Tearing) -> None:
    """A truncation in place took it off, and the power cut brought it back."""
    disk, log = new_log()
    fill(log, 3, epoch=2)
    sync(disk, log)
    disk.append(segment_path(0), [bytes(placed(6, epoch=1).view)])
    again = open_log(disk, recovery_point=6, tearing=tearing)
    assert (read_offsets(again), again.latest_epoch) == (list(range(6)), 2)
    assert len(again.recovery.kept_paths) == 1


@pytest.mark.parametrize("tearing", [Tearing.TAIL, Tearing.ANYWHERE])
def test_a_batch_from_before_an_epoch_that_had_begun_at_its_offset_is_cut_and_kept(tearing: Tearing) -> None:
    """The truncation in place was lost, and what had followed it, but not the file of the epochs (B20)."""
    disk, log = new_log()
    fill(log, 3, epoch=1)
    sync(disk, log)
    log.assign_epoch(2, 6)
    disk.append(segment_path(0), [bytes(placed(6, epoch=1).view)])
    again = open_log(disk, recovery_point=6, tearing=tearing)
    assert (read_offsets(again), again.latest_epoch) == (list(range(6)), 1)
    assert len(again.recovery.kept_paths) == 1


def test_a_batch_that_contradicts_the_file_of_the_epochs_stays_where_no_power_cut_can_have_brought_it() -> (
    None
):
    disk, log = new_log()
    fill(log, 3, epoch=1)
    log.assign_epoch(2, 4)
    disk.process_crash()
    again = open_log(disk)
    assert (read_offsets(again), again.recovery.kept_paths) == (list(range(6)), ())


def test_a_crash_in_the_middle_of_cutting_is_recovered_from() -> None:
    disk, _ = _filled()
    bases = segment_bases(disk)
    disk.flip_bit(segment_path(bases[1]), BODY)
    disk.fail("write", segment_path(bases[1]))  # the copy of what is cut
    with pytest.raises(StorageError):
        open_log(disk, tearing=Tearing.ANYWHERE)
    log = open_log(disk, tearing=Tearing.ANYWHERE)
    assert (segment_bases(disk), log.log_end_offset) == (bases[:2], bases[1])
    assert sum(".cut" in name for name in disk.list(DIRECTORY)) == len(bases) - 1


def test_no_power_cut_tears_what_was_synced() -> None:
    disk, log = new_log()
    fill(log, 5)
    sync(disk, log)
    fill(log, 5)
    size_bytes = read_batches(log)[0].size_bytes
    disk.flip_bit(segment_path(0), size_bytes + BODY)
    again = open_log(disk, recovery_point=10, tearing=Tearing.ANYWHERE)
    assert (again.recovery.cut, len(again.recovery.damaged), again.log_end_offset) == (None, 1, 20)
    disk.flip_bit(segment_path(0), MAGIC)
    with pytest.raises(DamagedLog):
        open_log(disk, recovery_point=10, tearing=Tearing.ANYWHERE)


def test_a_log_whose_appends_are_all_synced_is_not_cut_in_the_middle_by_a_power_cut_either() -> None:
    disk, size_bytes = _filled(5)
    disk.flip_bit(segment_path(0), size_bytes + MAGIC)
    before = _contents(disk)
    with pytest.raises(DamagedLog):
        open_log(disk, tearing=Tearing.TAIL)
    assert _contents(disk) == before


# ---- Looking for batches ----


def test_a_batch_is_found_wherever_it_stands_and_no_other_bytes_are_taken_for_one() -> None:
    given = bytes(placed(7, count=3).view)
    for before in (0, 8, 4096, (1 << 20) - 16, (1 << 20) + 8, 3 << 20):
        noise = Random(before).randbytes(before)
        assert find_batch(memoryview(noise + given), 0, before + 1, 0) == before
        assert find_batch(memoryview(noise + given[:-1]), 0, before + 1, 0) is None
        assert find_batch(memoryview(noise + given), 0, before + 1, 8) is None  # its offsets lie below


def test_a_batch_that_begins_before_the_place_looked_at_is_not_found() -> None:
    given = bytes(placed(7, count=3).view)
    assert find_batch(memoryview(given * 2), 1, 2 * len(given), 0) == len(given)
