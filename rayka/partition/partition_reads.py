"""Reads of a partition's log: records up to an end that depends on the reader, and offsets by place or time.

Kafka: `LocalLog.read`, `UnifiedLog.fetchOffsetByTimestamp` (G1-G4, G12).
"""

from collections.abc import Generator
from typing import NamedTuple

from rayka.errors import OffsetOutOfRange
from rayka.ids import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, OffsetAndEpoch
from rayka.log.log import Log
from rayka.log.segment import fetch_data
from rayka.log.segments import first_at_or_after, largest_before
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, MAX_TIMESTAMP, FetchPartition, FileRange
from rayka.protocol.wire import NO_BYTES, Part


class ReadResult(NamedTuple):
    """A fetch's result for one partition: records, or places in files, or the epoch at which the reader's log diverges
    (G2).
    """

    high_watermark: int
    log_start_offset: int
    next_offset: int
    records: Part = NO_BYTES
    file_ranges: tuple[FileRange, ...] = ()
    diverging_epoch: OffsetAndEpoch | None = None

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.file_ranges) if self.file_ranges else self.records.size


class FoundOffset(NamedTuple):
    """The answer to ListOffsets; -1 without such a record."""

    timestamp_ms: int = NO_TIMESTAMP
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH


class ReadLimits(NamedTuple):
    """The bounds of one read: an end offset, and bytes that the first batch may exceed with `min_one_batch` (G1, G5,
    G6).
    """

    end_offset: int
    max_bytes: int
    min_one_batch: bool


def read_log(
    log: Log, fetch: FetchPartition, limits: ReadLimits, *, high_watermark: int, range_bytes_min: int | None
) -> ReadResult:
    """Whole batches from the one that contains the fetch offset (G4), or the epoch at which the reader's log parts from
    this one. A reader of files gets ranges from `range_bytes_min` bytes on; with None it gets records.
    """
    nothing = ReadResult(high_watermark, log.log_start_offset, fetch.fetch_offset)
    diverging_epoch = _diverging_epoch(log, fetch)
    if diverging_epoch is not None:
        return nothing._replace(diverging_epoch=diverging_epoch)
    if fetch.fetch_offset == log.log_end_offset:
        return nothing
    max_bytes = min(limits.max_bytes, fetch.max_bytes)
    spans = log.spans(fetch.fetch_offset, max_bytes, limits.end_offset, limits.min_one_batch)
    read = fetch_data(spans, fetch.fetch_offset, range_bytes_min=range_bytes_min)
    return nothing._replace(records=read.records, file_ranges=read.file_ranges, next_offset=read.next_offset)


def readable_bytes(log: Log, offset: int, *, max_bytes: int, end_offset: int) -> int:
    """The bytes of whole batches that a reader would find, at most `max_bytes`. With a `max_bytes` of 1 no file is
    looked at. Raises OffsetOutOfRange as `Log.read` does.
    """
    spans = log.spans(offset, max_bytes, end_offset, min_one=True)
    if max_bytes == 1:
        return int(offset < min(end_offset, log.log_end_offset))
    return min(max_bytes, sum(span.stop - span.position for _, span in spans))


def _diverging_epoch(log: Log, fetch: FetchPartition) -> OffsetAndEpoch | None:
    """The epoch and offset at which the reader's log parts from this one (G2, B23); None while it does not."""
    if fetch.last_fetched_epoch == NO_EPOCH:
        return None
    end = log.end_offset_for_epoch(fetch.last_fetched_epoch)
    if end.epoch == NO_EPOCH:
        raise OffsetOutOfRange(
            f"{log.name}: where epoch {fetch.last_fetched_epoch} ended is not known here; epoch {log.latest_epoch}"
            " is the last one"
        )
    # Out of range, whatever the epochs say.
    if fetch.fetch_offset < log.log_start_offset:
        return None
    is_diverging = end.epoch < fetch.last_fetched_epoch or end.offset < fetch.fetch_offset
    return end if is_diverging else None


def find_by_time(log: Log, timestamp_ms: int, *, end_offset: int) -> Generator[None, None, FoundOffset]:
    """The log's begin, or the first record below the end with that time or later, or with the latest time (G12). Yields
    after each slice of work.
    """
    if timestamp_ms == EARLIEST_TIMESTAMP:
        return FoundOffset(NO_TIMESTAMP, log.log_start_offset, log.epochs.epoch_of(log.log_start_offset))
    if timestamp_ms == MAX_TIMESTAMP:
        found = yield from largest_before(log, end_offset=end_offset)
    else:
        found = yield from first_at_or_after(log, timestamp_ms, end_offset=end_offset)
    return FoundOffset() if found is None else FoundOffset(*found)
