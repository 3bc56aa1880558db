"""No step of a cleaning holds the event loop up for long: counted are steps and what they do, not time."""

import subprocess
import sys
from itertools import pairwise

import pytest

from rayka.cleaner.compaction import HEAVY_BATCHES, HEAVY_BYTES, Compaction, SyncNeeded, Work, is_heavy
from rayka.cleaner.segment_chunks import CHUNK_BYTES
from rayka.cleaner.segment_groups import SEGMENTS_MAX, grouped
from rayka.config import TopicConfig
from rayka.errors import CorruptRecord
from rayka.log.log import Log
from rayka.protocol.batch_header import HEADER_BYTES, Codec
from rayka.testing.memory_disk import MemoryDisk
from tests.cleaner.support import COMPACTED, SETTINGS, keyed, part_of, put, records_of, table_of
from tests.log.support import new_log, open_log

LARGE = TopicConfig(segment_bytes=1 << 20, cleanup_policy="compact", min_cleanable_dirty_ratio=0)


def filled() -> tuple[MemoryDisk, Log]:
    """Batches that are small on the disk; decompressed, all but the last are large."""
    disk, log = new_log(LARGE)
    value = bytes(HEAVY_BYTES // 100)
    for number in range(3):
        records = [(b"%d" % each, b"%d" % number + value) for each in range(110)]
        log.append_as_leader([keyed(records, codec=Codec.ZSTD)], 0, now_ms=0)
        log.roll(0)
    put(log, (b"0", b"the last"))
    return disk, log


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_what_decompresses_to_megabytes_is_work_to_be_done_off_the_loop(is_elsewhere: bool) -> None:
    disk, log = filled()
    newest = table_of(records_of(log))
    compaction = Compaction(log, part_of(disk, log), SETTINGS._replace(map_bytes=1 << 20), lambda: True)
    work_count = 0
    for step in compaction.run():
        if isinstance(step, Work):
            work_count += 1
            if is_elsewhere:
                step.perform()
        elif isinstance(step, SyncNeeded):
            disk.sync_now(step.files, step.directories)
    assert work_count == 2 * 3  # the map, and the copy
    assert table_of(records_of(log)) == newest
    assert compaction.counts.input_records == 331
    assert compaction.counts.kept_records == 110


def test_what_fails_off_the_loop_ends_the_cleaning_as_it_does_on_it() -> None:
    def fail() -> bool:
        raise CorruptRecord("a bad batch")

    work = Work(fail)
    work.perform()
    with pytest.raises(CorruptRecord, match="a bad batch"):
        work.outcome()


def test_many_small_batches_are_heavy_together_when_their_columns_are() -> None:
    batch = keyed([(b"k", bytes(HEAVY_BYTES // 4))], codec=Codec.LZ4)
    assert batch.size_bytes < HEAVY_BYTES // 20
    assert [is_heavy([batch] * count) for count in (1, 3, 4)] == [False, False, True]


def test_many_batches_are_heavy_however_small_they_are() -> None:
    batch = keyed([(b"k", b"v")])
    assert [is_heavy([batch] * count) for count in (1, HEAVY_BATCHES, HEAVY_BATCHES + 1)] == [
        False,
        False,
        True,
    ]


class CountingDisk(MemoryDisk):
    """Knows how many bytes were read."""

    read_bytes = 0

    def read_at(self, path: str, position: int, size_bytes: int) -> bytes:
        data = super().read_at(path, position, size_bytes)
        self.read_bytes += len(data)
        return data


def test_batches_larger_than_a_chunk_are_read_once_in_each_pass() -> None:
    disk = CountingDisk()
    disk.make_directory("/data")
    log = open_log(disk, config=LARGE)
    for number in range(3):
        put(log, (b"a", b"%d" % number + bytes(CHUNK_BYTES)))
    part = part_of(disk, log)
    size_bytes = sum(each.size_bytes for each in log.segments)
    disk.read_bytes = 0
    for step in Compaction(log, part, SETTINGS, lambda: True).run():
        if isinstance(step, SyncNeeded):
            disk.sync_now(step.files, step.directories)
    assert disk.read_bytes == 2 * (size_bytes + 3 * HEADER_BYTES)


def test_very_many_small_segments_become_several() -> None:
    _, log = new_log(COMPACTED)
    count = 2 * SEGMENTS_MAX + 10
    for number in range(count):
        put(log, (b"k%d" % (number % 3), b"%d" % number))
        log.roll(0)
    groups = list(grouped(log.segments.all[:-1], LARGE))
    assert [len(each) for each in groups] == [SEGMENTS_MAX, SEGMENTS_MAX, 10]
    flat = [segment for group in groups for segment in group]
    assert all(one.next_offset == other.base_offset for one, other in pairwise(flat))
    assert list(grouped([], LARGE)) == []


PANDAS = """
import sys
from tests.cleaner.support import COMPACTED, clean, put
from tests.log.support import new_log

disk, log = new_log(COMPACTED)
for number in range(9):
    put(log, (b"a", b"1"), (b"b", None), (b"k%d" % number, b"2"))
assert clean(disk, log).counts.kept_records > 9
assert "pandas" not in sys.modules
"""


def test_a_cleaning_does_not_import_pandas() -> None:
    """The import takes more than a second, on the event loop of the broker."""
    subprocess.run([sys.executable, "-c", PANDAS], check=True, timeout=60)
