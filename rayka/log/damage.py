"""Damage of segments: whole batches at and behind a broken place, and records that are missing between segments.

The functions on bytes are pure. A whole batch has a header that makes sense (`RecordBatch`), offsets that may come
next, and a good CRC; batches begin at multiples of 8.

A hole is a range of missing records: a segment was removed or shortened by hand. A follower also copies gaps that
compaction made on the leader (B18), which are no loss. A gap always lies *within* a segment: a segment is rolled at the
log end offset and not, as in Kafka, at the first offset appended (F10). So each segment begins where the one before it
ends, and anything else is a hole. The one exception is a gap too wide for a segment's indexes; nothing else makes a
step of more than `GAP_MAX` offsets.

The end of a sealed segment is found from the last entry of its index: a few small reads for each segment at every
start. Kafka has no such checks: it reads on behind the hole.
"""

import posixpath
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rayka.errors import CorruptRecord, DamagedLog
from rayka.log.checkpoint_files import LOWERED_RECOVERY_POINT_FILE, RAISED_LOG_START_FILE
from rayka.log.segment import GAP_MAX, Segment
from rayka.protocol.batch_format import (
    ALIGNMENT_BYTES,
    HEADER_BYTES,
    LENGTH_FIELD_END,
    MAGIC,
    RESERVED,
    RecordBatch,
)

_MAGIC_POSITION = 16
# Searched at once; the next batch is mostly near.
_SEARCHED_BYTES = 1 << 20


class DamagedBatch(NamedTuple):
    """A broken batch that stays in its place."""

    path: str
    position: int
    first_offset: int
    # Inclusive.
    last_offset: int


def batch_at(view: memoryview, position: int) -> RecordBatch | None:
    """The batch that begins here, if its header makes sense and all its bytes are there."""
    length_at = position + LENGTH_FIELD_END - 4
    size_bytes = LENGTH_FIELD_END + int.from_bytes(view[length_at : length_at + 4], "big", signed=True)
    if size_bytes < HEADER_BYTES or position + size_bytes > len(view):
        return None
    try:
        return RecordBatch(view[position : position + size_bytes])
    except CorruptRecord:
        return None


def is_whole_at(view: memoryview, position: int) -> bool:
    """Whether a batch with a good CRC begins here, whatever its offsets."""
    batch = batch_at(view, position)
    return batch is not None and batch.is_crc_valid()


def find_batch(view: memoryview, start: int, stop: int, min_offset: int) -> int | None:
    """The begin, in [start, stop), of the first whole batch with a base offset of `min_offset` or more."""
    for position in _candidates(view, start, stop):
        batch = batch_at(view, position)
        if batch is not None and batch.base_offset >= min_offset and batch.is_crc_valid():
            return position
    return None


def _candidates(view: memoryview, start: int, stop: int) -> Iterator[int]:
    """The multiples of 8 where magic and reserved bytes are those of a header."""
    start += -start % ALIGNMENT_BYTES
    while start < stop:
        size_bytes = (
            min(len(view) - start, _SEARCHED_BYTES + HEADER_BYTES) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        )
        words = np.frombuffer(view[start : start + size_bytes], dtype=np.uint8).reshape(-1, ALIGNMENT_BYTES)
        count = len(words) - HEADER_BYTES // ALIGNMENT_BYTES + 1
        if count <= 0:
            return
        magic = words[_MAGIC_POSITION // ALIGNMENT_BYTES :][:count, _MAGIC_POSITION % ALIGNMENT_BYTES]
        reserved = words[HEADER_BYTES // ALIGNMENT_BYTES - 1 :][:count, -len(RESERVED) :]
        for number in np.flatnonzero((magic == MAGIC) & ~reserved.any(axis=1)):
            position = start + int(number) * ALIGNMENT_BYTES
            if position < stop:
                yield position
        start += count * ALIGNMENT_BYTES


def is_in_place(view: memoryview, position: int, next_offset: int, end_offset: int | None) -> bool:
    """Whether only the body of the broken batch at `position` is bad: its header leads exactly to the next batch.

    `next_offset` is the end of the batch before it, `end_offset` the begin of the next segment. A torn write is never
    in place, because its bytes end early. Neither is a broken length that steps over a whole batch.
    """
    batch = batch_at(view, position)
    if batch is None or batch.base_offset != next_offset:
        return False
    stop = position + batch.size_bytes
    if find_batch(view, position + ALIGNMENT_BYTES, stop, next_offset) is not None:
        return False
    if stop < len(view):
        following = bytes(view[stop : stop + _MAGIC_POSITION + 1])
        return following[-1] == MAGIC and int.from_bytes(following[:8], "big") == batch.next_offset
    if end_offset is not None:
        return batch.next_offset == end_offset
    # Nothing follows: the header must confirm itself.
    return batch.last_offset_delta == batch.record_count - 1


# ---- Holes ---------------------------------------------------------------------------------------------------


def check_begin(segments: Sequence[Segment], log_start_offset: int) -> None:
    """Raises DamagedLog when records from the log start on are missing before the first segment."""
    if segments and segments[0].base_offset > log_start_offset:
        path = segments[0].path
        marker = posixpath.join(posixpath.dirname(path), RAISED_LOG_START_FILE)
        raise DamagedLog(
            f"{posixpath.dirname(path)}: offsets {log_start_offset} to {segments[0].base_offset - 1} are missing: the"
            f" first segment is {posixpath.basename(path)}, one before it was removed. Restore it from a copy; or, to"
            f" go on without these records, make an empty file {marker}; then restart the node"
        )


def check_sealed(segments: Sequence[Segment]) -> None:
    """Raises DamagedLog when a segment ends before the next one begins. Does not look at the end of the last one."""
    for segment, following in pairwise(segments):
        end_offset = segment.find_end()
        if end_offset is not None and is_hole(end_offset, following):
            raise hole(segment, end_offset, following)


def is_hole(end_offset: int, following: Segment) -> bool:
    """Whether records are missing between the end of a segment and the next one."""
    return 0 < following.base_offset - end_offset <= GAP_MAX


def hole(segment: Segment, end_offset: int, following: Segment) -> DamagedLog:
    """The error for missing records: which offsets, and what to do."""
    directory, name = posixpath.split(following.path)
    return DamagedLog(
        f"{directory}: offsets {end_offset} to {following.base_offset - 1} are missing: {segment.path} ends at offset"
        f" {end_offset}, and the next segment is {name}. A file was removed or shortened. Restore it from a copy; or,"
        f" to go on with what is before the hole, remove the segments from {name} on, and make an empty file"
        f" {posixpath.join(directory, LOWERED_RECOVERY_POINT_FILE)}; then restart the node"
    )
