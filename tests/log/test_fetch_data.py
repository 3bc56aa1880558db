"""The part of a log that a fetch gets: bytes, or a slice that stays the same until it is read (design §3)."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayka.config.topic_config import TopicConfig
from rayka.errors import StorageError
from rayka.log.local_disk import LocalDisk
from rayka.log.log import Log
from rayka.log.segment import COPIED_RANGE_BYTES_MIN, SLICE_BYTES_MIN, FetchData, fetch_data
from rayka.ports import Disk, FileSlice
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import batch, opened_log, truncate

VALUE = bytes(SLICE_BYTES_MIN)


@pytest.fixture(params=["local", "memory"])
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    if request.param == "memory":
        yield MemoryDisk()
    else:
        local = LocalDisk()
        yield local
        local.close()


@pytest.fixture
def log(disk: Disk, tmp_path: Path) -> Log:
    return opened_log(disk, f"{tmp_path}/orders-0", TopicConfig())


def _append(log: Log, *values: bytes, epoch: int = 0) -> None:
    for each in values:
        log.append_as_leader([batch([each])], epoch, now_ms=0)


def _given(log: Log, offset: int = 0, range_bytes_min: int | None = None) -> FetchData:
    return fetch_data(
        log.spans(offset, 1 << 30, log.log_end_offset, True), offset, range_bytes_min=range_bytes_min
    )


def _bytes(log: Log, offset: int = 0) -> bytes:
    return log.read(offset, max_bytes=1 << 30, end_offset=log.log_end_offset).records


def _slice(log: Log) -> FileSlice:
    records = _given(log).records
    assert isinstance(records, FileSlice)
    return records


def test_few_bytes_are_read_at_once_and_many_later(log: Log) -> None:
    _append(log, b"few")
    assert bytes(_given(log).records) == _bytes(log)  # type: ignore[arg-type]
    _append(log, VALUE)
    piece = _slice(log)
    assert (bytes(piece.read()), _given(log).next_offset) == (_bytes(log), 2)


@pytest.mark.parametrize(
    ("size", "is_range"), [(COPIED_RANGE_BYTES_MIN // 2, False), (COPIED_RANGE_BYTES_MIN, True)]
)
def test_a_reader_of_files_gets_few_bytes_as_they_are_and_many_as_ranges(
    log: Log, size: int, is_range: bool
) -> None:
    _append(log, bytes(size))
    found = _given(log, range_bytes_min=COPIED_RANGE_BYTES_MIN)
    assert (bool(found.file_ranges), bool(found.records.size)) == (is_range, not is_range)
    assert _given(log, range_bytes_min=0).file_ranges


def test_a_slice_stays_what_it_was_through_a_truncation_and_other_records_in_its_place(
    disk: Disk, log: Log
) -> None:
    _append(log, VALUE, VALUE)
    piece, before = _slice(log), _bytes(log)
    truncate(disk, log, 1)
    _append(log, b"other", VALUE, epoch=1)
    assert bytes(piece.read()) == before != _bytes(log)


def test_a_log_is_not_cut_in_place_within_a_slice_and_is_behind_it(log: Log) -> None:
    _append(log, VALUE, VALUE)
    log.flushed_offset = 0
    piece = _slice(log)
    assert log.truncate_to(1) is not None, "a copy is asked for"
    _append(log, b"behind")
    assert log.truncate_to(2) is None
    assert bytes(piece.read()) == _bytes(log)


def test_what_was_read_at_once_does_not_keep_a_log_from_being_cut_in_place(log: Log) -> None:
    _append(log, b"a", b"b")
    _given(log)
    assert log.truncate_to(1) is None


def test_a_slice_stays_what_it_was_when_its_file_is_removed(disk: Disk, log: Log) -> None:
    _append(log, VALUE)
    piece, before = _slice(log), _bytes(log)
    disk.rename(piece.path, piece.path + ".deleted")
    disk.unlink(piece.path + ".deleted")
    assert bytes(piece.read()) == before


def test_a_slice_of_a_file_that_became_shorter_is_an_error(disk: Disk, log: Log) -> None:
    _append(log, VALUE)
    piece = _slice(log)
    disk.cut(piece.path, 10)
    with pytest.raises(StorageError):
        piece.read()
    with pytest.raises(StorageError):
        disk.slice(piece.path, 0, 11)


def test_a_file_is_open_as_long_as_a_slice_of_it_and_no_longer(tmp_path: Path) -> None:
    disk = LocalDisk(max_open_files=1)
    path, other = f"{tmp_path}/a", f"{tmp_path}/b"
    disk.append(path, [b"0123456789"])
    piece = disk.slice(path, 2, 3)
    disk.append(other, [b"x"])  # only one is kept open
    disk.unlink(path)
    assert (bytes(piece.read()), _open_files(path)) == (b"234", 1)
    del piece
    assert _open_files(path) == 0
    disk.close()
    assert _open_files(other) == 0


def test_a_large_file_that_a_slice_was_the_last_to_hold_is_closed_on_a_thread(tmp_path: Path) -> None:
    disk, path = LocalDisk(), f"{tmp_path}/a"
    disk.append(path, [bytes(5 << 20)])
    piece = disk.slice(path, 0, 1)
    disk.unlink(path)
    del piece
    disk.close()  # waits for the thread
    assert _open_files(path) == 0


def test_a_slice_outlives_its_disk(tmp_path: Path) -> None:
    disk, path = LocalDisk(), f"{tmp_path}/a"
    disk.append(path, [bytes(5 << 20)])
    piece = disk.slice(path, 0, 1)
    disk.unlink(path)
    disk.close()
    assert bytes(piece.read()) == b"\0"
    del piece
    assert _open_files(path) == 0


def _open_files(path: str) -> int:
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return sum(each.startswith(path) for each in links)
