"""Finding records by timestamp, in a log and in one segment (F6).

The time index says up to which offset nothing is late enough, the offset index where that is, batch headers
say which batch, and only that one is decoded. The index of a segment also counts records below the log's start;
where those decide, the rest of the segment is walked. So a search is a generator: it yields after each slice of
work, and others get their turn. Kafka: `LogSegment.findOffsetByTimestamp`, `UnifiedLog.fetchOffsetByTimestamp`.
"""

from collections.abc import Generator
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rayka.errors import OffsetNotAvailable
from rayka.ids import NO_TIMESTAMP
from rayka.log.segment import Segment
from rayka.log.segment_file import BatchPosition
from rayka.protocol.batch_decode import DecodedBatch, decode
from rayka.protocol.batch_format import HEADER_BYTES, RecordBatch

if TYPE_CHECKING:
    from rayka.log.log import Log

_RECORD_COUNT = Struct(">57xi3x")
# A larger batch has records.
_EMPTIED_BYTES_MAX = 128
SLICE_BATCHES = 500  # the header of each is at most one read of 4 KiB: a few milliseconds


class TimestampAndOffset(NamedTuple):
    """One record found by time, and the leader epoch of its batch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


Search = Generator[None, None, TimestampAndOffset | None]


def first_at_or_after(log: "Log", timestamp_ms: int, *, end_offset: int) -> Search:
    """The first record at or after a time, below `end_offset`; None when there is none (F6, G12). Raises
    OffsetNotAvailable when between two slices of the search something was removed.
    """
    return _while_nothing_goes(log, _first_in_segments(log, timestamp_ms, end_offset))


def largest_before(log: "Log", *, end_offset: int) -> Search:
    """The first record with the largest timestamp below `end_offset`; None when there is none (F6). Raises as
    `first_at_or_after`.
    """
    return _while_nothing_goes(log, _largest_in_segments(log, end_offset))


def _while_nothing_goes(log: "Log", search: Search) -> Search:
    """The search, as long as nothing is removed from the log between its slices; else it raises OffsetNotAvailable."""
    before = log.log_start_offset, log.truncation_count, log.swaps.count
    while True:
        yield  # before the first slice, too: a request may ask for thousands of logs
        if (log.log_start_offset, log.truncation_count, log.swaps.count) != before:
            raise OffsetNotAvailable(f"{log.name}: records were removed during a search by time; try again")
        try:
            next(search)
        except StopIteration as end:
            found: TimestampAndOffset | None = end.value
            return found


def _first_in_segments(log: "Log", timestamp_ms: int, end_offset: int) -> Search:
    start_offset = log.log_start_offset
    for segment in log.segments:
        if segment.base_offset < end_offset and segment.indexes.largest.timestamp_ms >= timestamp_ms:
            found = yield from _first_in_segment(segment, timestamp_ms, start_offset)
            if found is not None:
                return found if found.offset < end_offset else None
        yield
    return None


def _largest_in_segments(log: "Log", end_offset: int) -> Search:
    best: TimestampAndOffset | None = None
    start_offset = log.log_start_offset
    for segment in log.segments:
        if best is None or segment.indexes.largest.timestamp_ms > best.timestamp_ms:
            found = yield from _largest_in_segment(segment, start_offset, end_offset)
            if found is not None and (best is None or found.timestamp_ms > best.timestamp_ms):
                best = found
        yield
    return best


def _first_in_segment(segment: Segment, timestamp_ms: int, start_offset: int) -> Search:
    """The first record from start_offset on whose timestamp is at or after the one given."""
    indexed_offset = segment.indexes.by_time.lookup(timestamp_ms).offset
    position = segment.position_of(max(indexed_offset, start_offset))
    while position < segment.size_bytes:
        for batch in islice(segment.batches(position), SLICE_BATCHES):
            position = batch.position + batch.size_bytes
            if batch.max_timestamp_ms >= timestamp_ms:
                found = _first_in(segment, batch, timestamp_ms, start_offset)
                if found is not None:
                    return found
        yield
    return None


def _largest_in_segment(segment: Segment, start_offset: int, end_offset: int) -> Search:
    """The first record with the largest timestamp in [start_offset, end_offset); None when none has a
    timestamp.
    """
    best = _indexed_largest(segment, start_offset, end_offset)
    first = None
    if best is not None:
        position = segment.indexes.by_offset.lookup(end_offset - 1)
    else:
        position = segment.position_of(start_offset)
        first, position = _largest_in_cut_batch(segment, position, start_offset, end_offset)
    while position < segment.size_bytes:
        for batch in islice(segment.batches(position), SLICE_BATCHES):
            position = batch.position + batch.size_bytes
            if batch.last_offset >= end_offset:
                position = segment.size_bytes
                break
            is_larger = best is None or batch.max_timestamp_ms > best.max_timestamp_ms
            if is_larger and _has_records(segment, batch):
                best = batch
        yield
    if best is None or (first is not None and first.timestamp_ms >= best.max_timestamp_ms):
        return first
    if best.max_timestamp_ms == NO_TIMESTAMP:
        return None
    return _first_in(segment, best, best.max_timestamp_ms, start_offset)


def _indexed_largest(segment: Segment, start_offset: int, end_offset: int) -> BatchPosition | None:
    """The batch with the largest timestamp up to the last index entry before the end, as the index knows it; None when
    it knows none, one that does not lie wholly behind the start, or one that compaction has emptied.
    """
    indexed = segment.indexes.by_time.lookup_offset(end_offset - 1)
    if indexed.timestamp_ms == NO_TIMESTAMP or indexed.offset < start_offset:
        return None
    batch = next(segment.batches(segment.position_of(indexed.offset)))
    return batch if batch.base_offset >= start_offset and _has_records(segment, batch) else None


def _has_records(segment: Segment, batch: BatchPosition) -> bool:
    """Whether compaction has left a record of the batch; an emptied batch keeps its timestamp."""
    if batch.size_bytes > _EMPTIED_BYTES_MAX:
        return True
    (record_count,) = _RECORD_COUNT.unpack(segment.file.read(batch.position, HEADER_BYTES))
    return bool(record_count)


def _largest_in_cut_batch(
    segment: Segment, position: int, start_offset: int, end_offset: int
) -> tuple[TimestampAndOffset | None, int]:
    """The largest among the records from start_offset on of a batch that begins before it, and where the next batch is;
    None where no batch does. Its header counts the records before, too.
    """
    batch = next(segment.batches(position), None)
    if batch is None or batch.base_offset >= start_offset or batch.last_offset >= end_offset:
        return None, position
    _, records = _decoded(segment, batch)
    largest_ms = int(records.timestamps_ms[records.offsets >= start_offset].max(initial=NO_TIMESTAMP))
    found = None if largest_ms == NO_TIMESTAMP else _first_in(segment, batch, largest_ms, start_offset)
    return found, position + batch.size_bytes


def _first_in(
    segment: Segment, place: BatchPosition, timestamp_ms: int, start_offset: int
) -> TimestampAndOffset | None:
    """The first record of a batch from an offset on at or after a time. Raises CorruptRecord for a broken
    batch.
    """
    batch, records = _decoded(segment, place)
    timestamps_ms, offsets = records.timestamps_ms, records.offsets
    matches = np.flatnonzero((timestamps_ms >= timestamp_ms) & (offsets >= start_offset))
    if not len(matches):
        return None
    return TimestampAndOffset(int(timestamps_ms[matches[0]]), int(offsets[matches[0]]), batch.leader_epoch)


def _decoded(segment: Segment, place: BatchPosition) -> tuple[RecordBatch, DecodedBatch]:
    batch = RecordBatch(segment.file.read(place.position, place.size_bytes))
    batch.check_crc(segment.path)
    return batch, decode(batch)
