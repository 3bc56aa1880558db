"""The segments of one log, oldest first: the one that holds an offset, spans of batches across several, and the search
for records by timestamp.

Invariants: there is at least one segment, and the last is the active one. Each begins where the one before it ends. Of
the sealed segments only the few in use keep their indexes in memory. Kafka: `LogSegments`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rayka.config.topic_config import TopicConfig
from rayka.errors import InvariantBroken, OffsetNotAvailable
from rayka.ids import NO_TIMESTAMP
from rayka.log.log_files import LogFiles
from rayka.log.segment import Segment, Span
from rayka.log.segment_file import BatchPosition
from rayka.protocol.batch_decode import DecodedBatch, decode
from rayka.protocol.batch_format import HEADER_BYTES, RecordBatch

if TYPE_CHECKING:
    from rayka.log.log import Log


# Sealed segments whose indexes stay in memory.
_WARM_SEGMENTS = 8


class Segments:
    """The segments of one log."""

    def __init__(self, files: LogFiles, segments: list[Segment]) -> None:
        self._files = files
        # At least one; each begins where the one before it ends.
        self._segments = segments
        # The last one.
        self.active = segments[-1]
        # Sealed segments with their indexes in memory.
        self._warm: list[Segment] = []

    def __repr__(self) -> str:
        return f"<Segments {self._segments}>"

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        """Oldest first, each with its indexes at hand."""
        for segment in self._segments:
            self._warm_up(segment)
            yield segment

    @property
    def first(self) -> Segment:
        return self._segments[0]

    @property
    def all(self) -> tuple[Segment, ...]:
        """Oldest first. Their indexes may have to be loaded."""
        return tuple(self._segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    # ---- Looking -------------------------------------------------------------------------------------------

    def holding(self, offset: int) -> Segment:
        """The segment that contains the offset, or the first one."""
        return self._segments[self.count_below(offset)]

    def size_from(self, offset: int) -> int:
        """Bytes of the batch that contains the offset and of all batches after it."""
        number = self.count_below(offset)
        holding = self._segments[number]
        self._warm_up(holding)
        later = self._segments[number + 1 :]
        return holding.size_bytes - holding.position_of(offset) + sum(each.size_bytes for each in later)

    def spans(
        self, offset: int, max_bytes: int, end_offset: int, min_one: bool
    ) -> Iterator[tuple[Segment, Span]]:
        """The non-empty spans of consecutive segments that together make one read (G4-G6)."""
        number = self.count_below(offset)
        while offset < end_offset and (max_bytes > 0 or min_one) and number < len(self._segments):
            segment = self._segments[number]
            self._warm_up(segment)
            span = segment.span(offset, max_bytes=max_bytes, end_offset=end_offset, min_one_batch=min_one)
            if span.stop > span.position:
                yield segment, span
                min_one, max_bytes = False, max_bytes - (span.stop - span.position)
            if span.stop < segment.size_bytes:
                return
            offset, number = span.next_offset, number + 1

    def _warm_up(self, segment: Segment) -> None:
        """Keeps the indexes of the sealed segments used last, and drops those of the others."""
        if segment is self.active or segment in self._warm:
            return
        self._warm.append(segment)
        if len(self._warm) > _WARM_SEGMENTS:
            self._warm.pop(0).indexes.drop()

    # ---- Coming and going ----------------------------------------------------------------------------------

    def roll(self, base_offset: int, config: TopicConfig, now_ms: int) -> None:
        """Seals the active segment and begins another."""
        sealed = self.active
        sealed.indexes.write()
        self.active = created_segment(self._files, config, base_offset, now_ms)
        self._segments.append(self.active)
        sealed.next_offset = base_offset
        self._warm_up(sealed)

    def prefix_to_copy(self, offset: int, flushed_offset: int) -> tuple[str, str, int] | None:
        """Arguments of the copy that `truncate_to` needs: source, target and bytes. None where the file can be cut in
        place.

        A file is never cut in place below the flushed offset:

        1. The file is cut at 50 and appended to.
        2. The block with the new bytes reaches the disk, and power is lost before the file system's journal does.
        3. New and old batches are mixed in the file, below a recovery point from before.
        """
        segment = self.holding(offset)
        position = segment.position_of(offset)
        is_untouched = position == segment.size_bytes
        if is_untouched or (offset >= flushed_offset and segment.can_be_cut(position)):
            return None
        return segment.path, segment.file.replacement_path, position

    def truncate_to(self, offset: int, *, is_copied: bool) -> None:
        """Drops the batch that contains the offset and all batches after it: in place, or by the copy of
        `prefix_to_copy`. Later segments go first, so the log on disk never has a hole.
        """
        while len(self) > 1 and self.active.base_offset > offset:
            later = self._segments.pop()
            self.active = self._segments[-1]
            later.delete()
        segment = self.active
        kept = segment.prefix(offset)
        if is_copied:
            self.replace(segment, kept)
            return
        if kept.size_bytes < segment.size_bytes:
            segment.file.cut(kept.size_bytes)
        self._put(segment, kept)

    def replace(self, old: Segment, new: Segment) -> None:
        """Puts the new segment in the place of the old one, which begins at the same offset. Readers keep their maps.

        A crash leaves one of them, whole:

        1. The new file is complete and synced under a temporary name. A file left there is removed when the log opens.
        2. The log's lowered recovery point is in the directory before this call. So a recovery scans the segment
           whatever the checkpoint says, and builds its indexes anew: the index files may still belong to the old file.
        3. One rename exchanges the files.
        """
        if old.base_offset != new.base_offset:
            raise InvariantBroken(f"{new!r} cannot replace {old!r}")
        new.file.replace()
        self._put(old, new)

    def have(self, segments: Sequence[Segment]) -> bool:
        """Whether all of these are still sealed segments of the log, one behind the other."""
        begin = bisect_left(self._segments, segments[0].base_offset, key=attrgetter("base_offset"))
        return self._segments[:-1][begin : begin + len(segments)] == list(segments)

    def swap(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Puts the segments `new` in the place of `old`, in memory; `Swap` handles their files."""
        ends = [(each[0].base_offset, each[-1].next_offset) for each in (old, new)]
        if not self.have(old) or ends[0] != ends[1]:
            raise InvariantBroken(f"{new!r} cannot take the place of {old!r} in {self!r}")
        begin = self._segments.index(old[0])
        self._segments[begin : begin + len(old)] = new
        self._warm = [segment for segment in self._warm if segment in self._segments[:-1]]

    def _put(self, old: Segment, new: Segment) -> None:
        self._segments[self._segments.index(old)] = new
        self.active = self._segments[-1]
        self._warm = [segment for segment in self._warm if segment in self._segments[:-1]]

    def on_moved(self) -> None:
        """The log's directory was renamed."""
        for segment in self._segments:
            segment.on_moved()

    def count_below(self, offset: int) -> int:
        """How many segments lie wholly below the offset. Never counts the active one."""
        return bisect_right(self._segments, offset, lo=1, key=attrgetter("base_offset")) - 1

    def retire_first(self, count: int) -> list[str]:
        """Takes so many segments out, oldest first, and renames their files; returns the new paths. Never the active
        one.
        """
        if count >= len(self):
            raise InvariantBroken(f"{self!r} keeps one segment at least, and {count} are to go")
        retired: list[str] = []
        while count:
            # Out of the list before the rename: if the rename fails half way, no reader meets a file without its name.
            removed, count = self._segments.pop(0), count - 1
            self._warm = [segment for segment in self._warm if segment is not removed]
            retired += removed.retire()
        return retired

    def replace_all(self, base_offset: int, config: TopicConfig) -> None:
        """Removes all segments, newest first, and begins an empty one."""
        created_ms = self.active.created_ms
        while self._segments:
            removed = self._segments.pop()
            self.active = self._segments[-1] if self._segments else removed
            removed.delete()
        self._warm = []
        self.active = created_segment(self._files, config, base_offset, created_ms)
        self._segments.append(self.active)


def created_segment(files: LogFiles, config: TopicConfig, base_offset: int, now_ms: int) -> Segment:
    """A new segment, with its file."""
    segment = planned_segment(files, config, base_offset, now_ms)
    segment.file.create()
    return segment


def planned_segment(files: LogFiles, config: TopicConfig, base_offset: int, now_ms: int) -> Segment:
    """A new segment that has no file yet."""
    return Segment(files, base_offset, created_ms=now_ms, index_interval_bytes=config.index_interval_bytes)


# ---- Search by timestamp (F6) ----------------------------------------------------------------------------------
#
# The time index says up to which offset no record is late enough, the offset index where that offset is, and batch
# headers which batch holds the record; only that batch is decoded. A segment's index also counts records below the log
# start offset; where they decide, the rest of the segment is walked. So a search is a generator that yields after each
# slice of work, and the event loop serves others in between. Kafka: `LogSegment.findOffsetByTimestamp`,
# `UnifiedLog.fetchOffsetByTimestamp`.

_RECORD_COUNT = Struct(">57xi3x")
# A larger batch has records.
_EMPTIED_BYTES_MAX = 128
# The header of each is at most one read of 4 KiB: a slice takes a few milliseconds.
SLICE_BATCHES = 500


class TimestampAndOffset(NamedTuple):
    """One record found by time, and the leader epoch of its batch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


Search = Generator[None, None, TimestampAndOffset | None]


def first_at_or_after(log: "Log", timestamp_ms: int, *, end_offset: int) -> Search:
    """The first record at or after a time, below `end_offset`; None when there is none (F6, G12). Raises
    OffsetNotAvailable when records were removed between two slices of the search.
    """
    return _guarded(log, _first_in_segments(log, timestamp_ms, end_offset))


def largest_before(log: "Log", *, end_offset: int) -> Search:
    """The first record with the largest timestamp below `end_offset`; None when there is none (F6). Raises as
    `first_at_or_after`.
    """
    return _guarded(log, _largest_in_segments(log, end_offset))


def _guarded(log: "Log", search: Search) -> Search:
    """Runs the search; raises OffsetNotAvailable if records were removed from the log between two slices."""
    before = log.log_start_offset, log.truncation_count, log.replacements.count
    while True:
        # Before the first slice, too: a request may ask for thousands of logs.
        yield
        if (log.log_start_offset, log.truncation_count, log.replacements.count) != before:
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
    """The first record at or after both `start_offset` and the timestamp."""
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
    """The first record with the largest timestamp in [start_offset, end_offset); None when no record has a
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
    """The batch with the largest timestamp up to the last index entry before the end, by the index alone. None when the
    index has no such batch, when the batch does not lie wholly behind the start, or when compaction has emptied it.
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
    """The record with the largest timestamp in a batch that begins before `start_offset`, from that offset on, and the
    position of the next batch. None when no batch does. The header cannot tell: it counts the records before, too.
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
    """The first record of the batch at or after both `start_offset` and the timestamp. Raises CorruptRecord for a
    broken batch.
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
