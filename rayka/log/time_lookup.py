"""Finding records by timestamp, in a log and in one segment (F6).

The time index says up to which offset nothing is late enough, the offset index where that is, batch headers
say which batch, and only that one is decoded. Kafka: `LogSegment.findOffsetByTimestamp`,
`UnifiedLog.fetchOffsetByTimestamp`.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rayka.ids import NO_TIMESTAMP
from rayka.log.segment import BatchPosition, Segment
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_header import RecordBatch


class TimestampAndOffset(NamedTuple):
    """One record found by time, and the leader epoch of its batch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


def first_in_log(
    segments: Iterable[Segment], timestamp_ms: int, start_offset: int, end_offset: int
) -> TimestampAndOffset | None:
    """The first record in [start_offset, end_offset) at or after a time; None when there is none (G12)."""
    for segment in segments:
        if segment.base_offset < end_offset and segment.largest_timestamp.timestamp_ms >= timestamp_ms:
            found = first_at_or_after(segment, timestamp_ms, start_offset)
            if found is not None:
                return found if found.offset < end_offset else None
    return None


def largest_in_log(
    segments: Iterable[Segment], start_offset: int, end_offset: int
) -> TimestampAndOffset | None:
    """The first record with the largest timestamp in [start_offset, end_offset); None when there is none."""
    best: TimestampAndOffset | None = None
    for segment in segments:
        if best is None or segment.largest_timestamp.timestamp_ms > best.timestamp_ms:
            found = largest_before(segment, start_offset, end_offset)
            if found is not None and (best is None or found.timestamp_ms > best.timestamp_ms):
                best = found
    return best


def first_at_or_after(segment: Segment, timestamp_ms: int, start_offset: int) -> TimestampAndOffset | None:
    """The first record from start_offset on whose timestamp is at or after the one given."""
    indexed_offset = segment.time_index.lookup(timestamp_ms).offset
    for batch in segment.batches(segment.position_of(max(indexed_offset, start_offset))):
        if batch.max_timestamp_ms >= timestamp_ms:
            found = _first_in(segment, batch, timestamp_ms, start_offset)
            if found is not None:
                return found
    return None


def largest_before(segment: Segment, start_offset: int, end_offset: int) -> TimestampAndOffset | None:
    """The first record with the largest timestamp in [start_offset, end_offset); None when none has a
    timestamp.
    """
    best = _batch_with_largest(segment, start_offset, end_offset)
    if best is None or best.max_timestamp_ms == NO_TIMESTAMP:
        return None
    return _first_in(segment, best, best.max_timestamp_ms, start_offset)


def _batch_with_largest(segment: Segment, start_offset: int, end_offset: int) -> BatchPosition | None:
    """The index knows the largest up to its last entry before the end; what comes after is walked."""
    best: BatchPosition | None = None
    indexed = segment.time_index.lookup_offset(end_offset - 1)
    position = segment.offset_index.lookup(end_offset - 1)
    if start_offset > segment.base_offset:
        position = segment.position_of(start_offset)
    elif indexed.timestamp_ms != NO_TIMESTAMP:
        best = next(segment.batches(segment.position_of(indexed.offset)))
    for batch in segment.batches(position):
        if batch.last_offset >= end_offset:
            break
        if best is None or batch.max_timestamp_ms > best.max_timestamp_ms:
            best = batch
    return best


def _first_in(
    segment: Segment, place: BatchPosition, timestamp_ms: int, start_offset: int
) -> TimestampAndOffset | None:
    """The first record of a batch from an offset on at or after a time. Raises CorruptRecord for a broken
    batch.
    """
    batch = RecordBatch(segment.read_batch(place))
    batch.check_crc(segment.path)
    records = decode(batch)
    timestamps_ms, offsets = records.timestamps_ms, records.offsets
    matches = np.flatnonzero((timestamps_ms >= timestamp_ms) & (offsets >= start_offset))
    if not len(matches):
        return None
    return TimestampAndOffset(int(timestamps_ms[matches[0]]), int(offsets[matches[0]]), batch.leader_epoch)
