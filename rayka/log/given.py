"""What a fetch is given of a log: bytes, a slice of a segment's file, or the ranges that a reader here maps or copies.

Few bytes are read at once, whatever the reader could do with a file: for them one read costs less than all else.
Invariant: what a reader reads later is marked in its segment, which then is not cut in place below its end; so a
truncation, a deletion or a replacement meanwhile changes none of it. Kafka: `FetchDataInfo`, `FileRecords.slice`.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from rayka.log.segment import Segment, Span
from rayka.protocol.fetch import FileRange
from rayka.protocol.wire import NO_BYTES, Part

# Processor time, with Python's: up to here a read and one send more cost less than a slice and a system call more.
SLICE_BYTES_MIN = 128 << 10
# Up to here a follower that gets bytes spends less than one that opens the file and reads them there.
COPIED_RANGE_BYTES_MIN = 64 << 10

Spans = Sequence[tuple[Segment, Span]]


class Given(NamedTuple):
    """Either records or file ranges, and where reading goes on."""

    next_offset: int
    records: Part = NO_BYTES
    file_ranges: tuple[FileRange, ...] = ()


def given(found: Iterable[tuple[Segment, Span]], offset: int, *, range_bytes_min: int | None = None) -> Given:
    """What a reader gets of these spans; one segment's, but for ranges, which it gets from so many bytes on."""
    spans = list(found if range_bytes_min is not None else islice(found, 1))
    if not spans:
        return Given(offset)
    if range_bytes_min is not None and sum(span.stop - span.position for _, span in spans) >= range_bytes_min:
        return Given(spans[-1][1].next_offset, file_ranges=file_ranges(spans))
    segment, span = spans[0]
    if span.stop - span.position >= SLICE_BYTES_MIN:
        return Given(span.next_offset, segment.give(span))
    return Given(span.next_offset, np.frombuffer(segment.read(span), dtype=np.uint8))


def file_ranges(spans: Spans) -> tuple[FileRange, ...]:
    """Where a reader on this machine finds them (design §3)."""
    return tuple(_file_range(segment, span) for segment, span in spans)


def _file_range(segment: Segment, span: Span) -> FileRange:
    piece = segment.give(span)
    identity = piece.identity()
    first = next(segment.batches(span.position))
    return FileRange(
        path=piece.path,
        device=identity.device,
        inode=identity.inode,
        position=piece.position,
        size_bytes=piece.size,
        base_offset=first.base_offset,
    )
