"""What stands at and behind a place of a segment where no whole batch is: looked for when recovery meets one.

Pure functions over a segment's bytes. A whole batch has a header that makes sense (`RecordBatch`), offsets that
may come next, and a good CRC; batches begin at multiples of 8. Kafka has no such thing.
"""

from collections.abc import Iterator

import numpy as np

from rayka.errors import CorruptRecord
from rayka.protocol.batch_format import (
    ALIGNMENT_BYTES,
    HEADER_BYTES,
    LENGTH_FIELD_END,
    MAGIC,
    RESERVED,
    RecordBatch,
)

_MAGIC_POSITION = 16
_SEARCHED_BYTES = 1 << 20  # at once: what is looked for is mostly near


def batch_at(view: memoryview, position: int) -> RecordBatch | None:
    """The batch that begins here, if a header that makes sense does and all its bytes are there."""
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
    """Where in [start, stop) the first whole batch begins whose offsets are not below `min_offset`."""
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
    """Whether of a broken batch at `position` just the body is bad: its header leads exactly to what follows.

    `next_offset` is where the batch before it ends, `end_offset` where the next segment begins. A torn write
    is never in place, because its bytes end early; nor is a broken length that steps over a whole batch.
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
    # Nothing follows: the header has to confirm itself.
    return batch.last_offset_delta == batch.record_count - 1
