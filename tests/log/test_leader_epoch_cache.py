"""The lineage of epochs (B20, B21), its file, and entries that contradict it."""

import pytest

from rayka.log.leader_epoch_cache import (
    LEADER_EPOCH_FILE,
    EpochStart,
    LeaderEpochCache,
    decode_epochs,
    encode_epochs,
)
from rayka.log.log_files import LogFiles
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import DIRECTORY, GOLDEN, fill, new_log, open_log


def _cache(*entries: tuple[int, int]) -> LeaderEpochCache:
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    cache = LeaderEpochCache(LogFiles(disk, DIRECTORY))
    for epoch, start_offset in entries:
        cache.assign(epoch, start_offset)
    return cache


def test_the_file_is_kafkas() -> None:  # B20
    golden = (GOLDEN / LEADER_EPOCH_FILE).read_bytes()
    assert encode_epochs(list(_cache((1, 0), (4, 100), (9, 2500)).entries)) == golden
    assert decode_epochs(golden) == [(1, 0), (4, 100), (9, 2500)]


@pytest.mark.parametrize("entries", [[(1, 0), (1, 5)], [(2, 0), (1, 5)], [(1, 5), (2, 5)], [(1, 5), (2, 4)]])
def test_epochs_that_do_not_rise_with_their_offsets_are_damage(entries: list[tuple[int, int]]) -> None:
    assert decode_epochs(encode_epochs([EpochStart(*each) for each in entries])) is None


@pytest.mark.parametrize(
    ("assigned", "entries"),
    [
        ((5, 200), [(1, 0), (4, 100), (5, 200)]),
        ((4, 150), [(1, 0), (4, 100)]),  # known already
        ((5, 100), [(1, 0), (5, 100)]),  # an epoch that began where this one does has no records
        ((5, 50), [(1, 0), (5, 50)]),
        ((3, 150), [(1, 0), (3, 150)]),
        ((4, 90), [(1, 0), (4, 90)]),
        ((1, 0), [(1, 0)]),
    ],
)
def test_assign_removes_what_contradicts_it(
    assigned: tuple[int, int], entries: list[tuple[int, int]]
) -> None:  # B20
    cache = _cache((1, 0), (4, 100))
    cache.assign(*assigned)
    assert list(cache.entries) == entries


@pytest.mark.parametrize(
    ("epoch", "end_offset", "found"),
    [
        (-1, -1, -1),  # undefined
        (0, 10, 0),  # before the first: where the first begins
        (2, 100, 2),
        (3, 100, 2),  # unknown: the floor
        (4, 250, 4),
        (6, 250, 4),
        (7, 999, 7),  # the latest ends at the log's end
        (8, -1, -1),  # from the future
    ],
)
def test_end_offset_of_an_epoch(epoch: int, end_offset: int, found: int) -> None:  # B21
    answer = _cache((2, 10), (4, 100), (7, 250)).end_offset_for(epoch, 999)  # B21
    assert (answer.offset, answer.epoch) == (end_offset, found)


def test_an_empty_cache_knows_no_end_offset() -> None:  # B21
    assert _cache().end_offset_for(3, 999).offset == -1  # B21


@pytest.mark.parametrize(("offset", "epoch"), [(9, -1), (10, 2), (99, 2), (100, 4), (5000, 4)])
def test_the_epoch_of_an_offset(offset: int, epoch: int) -> None:
    assert _cache((2, 10), (4, 100)).epoch_of(offset) == epoch


def test_truncation_forgets_epochs_that_begin_at_or_after_the_offset() -> None:
    cache = _cache((1, 0), (2, 50), (3, 100))
    cache.truncate_from_end(50)
    assert cache.entries == ((1, 0),)


def test_every_change_is_in_the_file() -> None:  # B20
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    files = LogFiles(disk, DIRECTORY)
    LeaderEpochCache(files).assign(3, 7)
    again = LeaderEpochCache(LogFiles(disk, DIRECTORY))
    assert again.load()
    assert again.entries == ((3, 7),)
    assert files.unsynced.plan(0, 0).files == (again.path,)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0\n",
        b"0\n1\n3 7",
        b"0\n2\n3 7\n",
        b"1\n1\n3 7\n",
        b"0\n1\nx 7\n",
        b"0\n2\n3 7\n2 9\n",
        b"\0" * 9,
        b"\xff\xfe",
    ],
)
def test_a_damaged_file_is_known_as_one(data: bytes) -> None:
    assert decode_epochs(data) is None


def test_what_the_log_has_to_say_is_written_when_it_has_said_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the epochs of a recovery that a crash ended would be believed by the next one, which begins later."""
    disk, log = new_log()
    for epoch in range(3):
        fill(log, 2, epoch=epoch)
    disk.write(log.epochs.path, b"0\n3\n0 0\n")  # torn
    written, write = list[bytes](), disk.write

    def noted(path: str, content: bytes) -> None:
        written.extend([content] if path == log.epochs.path else [])
        write(path, content)

    monkeypatch.setattr(disk, "write", noted)
    assert open_log(disk, recovery_point=log.log_end_offset).epochs.entries == log.epochs.entries
    assert written == [encode_epochs(list(log.epochs.entries))]
