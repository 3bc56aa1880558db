"""No step of a cleaning holds the event loop up for long: counted are steps and what they do, not time."""

import subprocess
import sys
from contextlib import suppress
from itertools import pairwise

import pytest

from rayka.cleaner.compaction import SEGMENTS_MAX, Compaction, SyncNeeded, Turns, grouped
from rayka.cleaner.file_cleaning import CHUNK_BYTES, SegmentGroup
from rayka.config.topic_config import TopicConfig
from rayka.errors import CorruptRecord
from rayka.protocol.batch_format import HEADER_BYTES, LENGTH_FIELD_END, ProducerSequence
from rayka.testing.memory_disk import MemoryDisk
from tests.cleaner.support import COMPACTED, HERE, SETTINGS, keyed, part_of, put, steps_of
from tests.log.support import new_log, open_log

LARGE = TopicConfig(segment_bytes=1 << 20, cleanup_policy="compact", min_cleanable_dirty_ratio=0)


class CountingDisk(MemoryDisk):
    """Knows how many bytes were read."""

    read_bytes = 0
    most_bytes = 0  # at once

    def read_at(self, path: str, position: int, size_bytes: int) -> bytes:
        data = super().read_at(path, position, size_bytes)
        self.read_bytes += len(data)
        self.most_bytes = max(self.most_bytes, len(data))
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
    for step in steps_of(Compaction(log, part, SETTINGS, **HERE), disk):
        if isinstance(step, SyncNeeded):
            disk.sync_now(step.files, step.directories)
    assert disk.read_bytes == 2 * (size_bytes + 3 * HEADER_BYTES)


@pytest.mark.parametrize("bit", [1, 6])
def test_what_a_wrong_length_says_is_not_read_at_once(bit: int) -> None:  # F27
    disk = CountingDisk()
    disk.make_directory("/data")
    log = open_log(disk, config=LARGE.model_copy(update={"segment_bytes": 64 << 20}))
    put(log, (b"a", b"1"))
    put(log, (b"a", bytes(40 << 20)))
    part = part_of(disk, log)
    disk.flip_bit(log.segments.first.path, LENGTH_FIELD_END - 4, bit)  # 32 MiB more, or 1 GiB
    disk.most_bytes = 0
    with pytest.raises(CorruptRecord, match=f"{log.segments.first.path}.* at position 0"):
        list(steps_of(Compaction(log, part, SETTINGS, **HERE), disk))
    assert disk.most_bytes <= CHUNK_BYTES


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


def test_as_many_segments_become_one_as_fit_and_no_more() -> None:  # F22
    _, log = new_log(COMPACTED)
    for number in range(40):
        for _ in range(1 + number % 3):
            put(log, (b"a", b"1"))
        log.roll(0)
    groups = list(grouped(log.segments.all[:-1], COMPACTED))
    sizes = [sum(each.size_bytes for each in group) for group in groups]
    assert len(groups) > 3
    assert max(sizes) <= COMPACTED.segment_bytes
    assert all(
        size + following[0].size_bytes > COMPACTED.segment_bytes
        for size, following in zip(sizes, groups[1:], strict=False)
    )


def test_a_group_is_told_of_the_producers_that_wrote_to_it_and_of_no_others() -> None:  # C2, F25
    disk, log = new_log(COMPACTED)
    for number in range(30):
        sequence = ProducerSequence(number // 3, 0, 2 * (number % 3))
        log.append_as_leader([keyed([(b"a", b"1" * 50), (b"b", b"2")], sequence=sequence)], 0, now_ms=0)
    compaction = Compaction(log, part_of(disk, log), SETTINGS, **HERE)
    steps, answer, told = compaction.job.run(disk), None, set[tuple[int, int]]()
    with suppress(StopIteration):
        while True:
            turns = compaction.on_step(steps.send(answer))
            answer = run_to_end(turns)
            if answer is not None:
                begin, end = answer.segments[0].base_offset, answer.segments[-1].next_offset
                assert all(begin <= last_offset < end for _, last_offset in answer.needed_ends)
                told |= answer.needed_ends
    assert told == {(number // 3, 2 * number + 1) for number in range(30)}


def run_to_end(turns: Turns) -> SegmentGroup | None:
    while True:
        try:
            next(turns)
        except StopIteration as end:
            answer: SegmentGroup | None = end.value
            return answer


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
