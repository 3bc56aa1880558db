"""Reading file ranges of a log on the same machine, and noticing when they are no longer there (design §3)."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from rayka.config.topic_config import TopicConfig
from rayka.errors import TooManyOpenFiles
from rayka.log.local_disk import LocalDisk
from rayka.log.log import Log
from rayka.log.mapped_reader import MappedReader, copy_range, is_local_directory
from rayka.log.meta_properties import MetaProperties, encode_meta_properties
from rayka.log.partition_directories import PARTITION_METADATA_FILE, encode_partition_metadata
from rayka.protocol.batch_format import split_batches
from rayka.protocol.fetch import FileRange
from tests.descriptors import none_free
from tests.log.support import batch, fill, opened_log, ranges_of, truncate

CONFIG = TopicConfig(segment_bytes=4000, index_interval_bytes=200)


@pytest.fixture
def disk() -> Iterator[LocalDisk]:
    disk = LocalDisk()
    yield disk
    disk.close()


@pytest.fixture
def log(disk: LocalDisk) -> Iterator[Log]:
    root = tempfile.mkdtemp()
    yield opened_log(disk, f"{root}/orders-0", CONFIG)
    shutil.rmtree(root)


def _local(log: Log, offset: int = 0, max_bytes: int = 1 << 20) -> tuple[FileRange, ...]:
    return ranges_of(log, offset, max_bytes=max_bytes, end_offset=log.log_end_offset)


def _offsets(views: list[memoryview | None]) -> list[int]:
    return [batch.base_offset for view in views if view is not None for batch in split_batches(view)]


def test_mapped_ranges_are_the_log(log: Log) -> None:
    fill(log, 60)
    reader = MappedReader()
    views = [reader.read(each) for each in _local(log)]
    assert (len(views), _offsets(views)) == (len(log.segments), list(range(0, 120, 2)))


def test_copied_ranges_are_the_log_and_what_was_replaced_is_not_copied(disk: LocalDisk, log: Log) -> None:
    fill(log, 60)
    ranges = _local(log)
    copies = [copy_range(each) for each in ranges]
    assert [copy is not None and bytes(copy) for copy in copies] == [
        bytes(MappedReader().read(each)) for each in ranges
    ]  # type: ignore[arg-type]
    truncate(disk, log, 2)
    fill(log, 1, epoch=1)
    assert [copy_range(each) for each in ranges] == [None] * len(ranges)


def test_however_many_reads_of_a_growing_segment_are_kept_it_is_mapped_few_times(log: Log) -> None:
    reader = MappedReader()
    log.config = TopicConfig()
    kept, chunk = [], batch([bytes(1 << 20)])
    for _ in range(80):
        log.append_as_leader([chunk], 0, now_ms=0)
        [last] = _local(log, log.log_end_offset - 1)
        kept.append(reader.read(last))
    assert _offsets(kept) == list(range(80))
    assert _open_files(last.path) == (4, 4)  # at 1, 17, 34 and 68 MiB; the log's own descriptor apart
    assert repr(reader) == "<MappedReader maps=1/64>"


def _open_files(path: str) -> tuple[int, int]:
    """How many descriptors and maps of the file this process has, but for one descriptor to append to it."""
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(path)]
    return links.count(path) - 1, len(maps)


def test_a_file_of_another_topic_is_not_read_for_one_that_was_there_before(log: Log) -> None:
    """Deleted and created again, with an inode number that was given away again."""
    fill(log, 5)
    [file_range] = _local(log)
    beside = Path(file_range.path).with_name(PARTITION_METADATA_FILE)
    beside.write_bytes(encode_partition_metadata(UUID(int=2)))
    assert MappedReader().read(file_range, UUID(int=1)) is None
    assert MappedReader().read(file_range, UUID(int=2)) is not None


def test_what_was_mapped_stays_as_it_was_through_truncation_and_deletion(disk: LocalDisk, log: Log) -> None:
    fill(log, 5)
    reader = MappedReader()
    view = reader.read(_local(log)[0])
    assert view is not None
    before = bytes(view)
    truncate(disk, log, 2)
    fill(log, 10, epoch=1)
    shutil.rmtree(log.directory)
    reader.close()
    assert bytes(view) == before


def test_a_range_of_a_truncated_segment_is_read_from_the_old_map_or_not_at_all(
    disk: LocalDisk, log: Log
) -> None:
    fill(log, 5)
    [old] = _local(log)
    truncate(disk, log, 4)
    fill(log, 10, epoch=1)
    assert MappedReader().read(old) is None


def test_a_range_whose_file_is_gone_or_shorter_or_another_is_not_read(log: Log) -> None:
    fill(log, 5)
    [given] = _local(log)
    reader = MappedReader()
    fields = {name: getattr(given, name) for name in given.__struct_fields__}
    for change in (
        {"path": given.path + "x"},
        {"inode": given.inode + 1},
        {"device": given.device + 1},
        {"size_bytes": given.size_bytes + 1},
        {"base_offset": 2},
        {"position": 8},
    ):
        changed = type(given)(**{**fields, **change})
        assert (reader.read(changed), copy_range(changed)) == (None, None)
    assert reader.read(given) is not None


def test_no_more_segments_are_kept_mapped_than_allowed(log: Log) -> None:
    fill(log, 60)
    reader = MappedReader(max_maps=2)
    views = [reader.read(each) for each in _local(log)]
    assert (len(views) > 2, repr(reader)) == (True, "<MappedReader maps=2/2>")
    assert _offsets(views) == list(range(0, 120, 2))


def test_the_segment_that_was_not_read_for_longest_is_let_go(log: Log) -> None:
    fill(log, 60)
    first, second, third = _local(log)[:3]
    reader = MappedReader(max_maps=2)
    for each in (first, second, first, third):
        assert reader.read(each) is not None
    assert [_open_files(each.path)[1] for each in (first, second, third)] == [1, 0, 1]


def test_a_map_in_use_is_shared_also_when_many_other_segments_were_read_meanwhile(log: Log) -> None:
    fill(log, 60)
    ranges = _local(log)
    reader = MappedReader(max_maps=2)
    kept = [reader.read(each) for _ in range(3) for each in ranges]
    assert len(ranges) > 2
    assert _offsets(kept[:2]) == _offsets(kept[len(ranges) : len(ranges) + 2])
    assert [_open_files(each.path)[1] for each in ranges] == [1] * len(ranges)


def test_a_directory_is_local_when_it_can_be_opened_and_has_that_id() -> None:
    root = tempfile.mkdtemp()
    LocalDisk().write(f"{root}/meta.properties", encode_meta_properties(MetaProperties(1, UUID(int=5))))
    assert is_local_directory(root, UUID(int=5))
    assert not is_local_directory(root, UUID(int=6))
    assert not is_local_directory(root + "x", UUID(int=5))
    shutil.rmtree(root)


def test_a_reader_without_a_descriptor_says_so_and_reads_once_there_is_one(log: Log) -> None:
    fill(log, 10)
    wanted = _local(log)[0]
    reader = MappedReader()
    for read in (reader.read, copy_range):
        with none_free(), pytest.raises(TooManyOpenFiles, match=r"cannot read .*: Too many open files"):
            read(wanted)
        assert read(wanted) is not None
