"""One segment of a log: a file of whole batches and its two indexes (F4-F6); and the spans of it that a fetch gets.

The active segment is the last one of its log: appended to, its indexes in memory. The others are sealed: their indexes
are in files, loaded when needed. Sizes, positions and offsets describe the whole batches; the file may be longer during
a write or after one that failed.

Invariants: a position handed out is the begin of a batch. Bytes that a reader will read later are neither cut off nor
overwritten. Kafka: `LogSegment`, `FetchDataInfo`, `FileRecords.slice`. Left out: transaction index.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from rayka.errors import CorruptRecord, InvariantBroken
from rayka.ids import NO_TIMESTAMP
from rayka.log.log_files import LogFiles
from rayka.log.segment_file import BatchPosition, SegmentFile
from rayka.log.segment_indexes import SegmentIndexes
from rayka.ports import Buffer, FileSlice
from rayka.protocol.batch_format import MAGIC
from rayka.protocol.fetch import FileRange
from rayka.protocol.wire import NO_BYTES, Part

MAX_RELATIVE_OFFSET = 2**31 - 1
DELETED_SUFFIX = ".deleted"
# A wider gap does not fit into a segment, for no batch spans so many offsets.
GAP_MAX = MAX_RELATIVE_OFFSET // 2
_MAGIC_POSITION = 16
# More than this is not cut off in place: the kernel frees page by page, 1 GiB in 300 ms.
_CUT_BYTES_MAX = 16 << 20
_REMEMBERED_MAX = 64


class Span(NamedTuple):
    """Whole batches of a segment, one after another: the bytes in [position, stop). Reading goes on at
    `next_offset`.
    """

    position: int
    stop: int
    next_offset: int


class Segment:
    """Batches with offsets in [base_offset, next_offset)."""

    def __init__(
        self,
        files: LogFiles,
        base_offset: int,
        *,
        index_interval_bytes: int,
        created_ms: int = 0,
        suffix: str = "",
    ) -> None:
        self._files = files
        self._index_interval_bytes = index_interval_bytes
        self._first_timestamp_ms: int | None = None
        # Positions by offset, of offsets at which a reader will continue.
        self._positions: dict[int, int] = {}
        # No slice or file range of a reader reaches beyond this position.
        self._sliced_bytes = 0
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = 0
        self.created_ms = created_ms
        self.file = SegmentFile(files, base_offset, suffix)
        self.indexes = SegmentIndexes(files, self, index_interval_bytes, suffix)
        self.path = self.file.path

    def __repr__(self) -> str:
        return f"<Segment {self.base_offset}..{self.next_offset} bytes={self.size_bytes}>"

    # ---- Coming to life ------------------------------------------------------------------------------------

    def on_found(self) -> None:
        """The file is older than this process. An earlier process of this broker may have described all of it to
        readers.
        """
        self._sliced_bytes = self._files.disk.size(self.path)

    def open_sealed(self, next_offset: int) -> None:
        """Opens the file as it is; the next segment begins at `next_offset`. Indexes are loaded when needed."""
        self.size_bytes = self._files.disk.size(self.path)
        self.next_offset = next_offset
        self.indexes.use_files()

    def open_active(self) -> None:
        """Opens the file as it is, and walks from the last index entry to its end.

        Raises CorruptRecord when the file does not end with a whole batch: it needs recovery.
        """
        self.open_sealed(self.base_offset)
        self.next_offset = self.indexes.resume()

    def find_end(self) -> int | None:
        """The offset at which the whole batches in a sealed segment's file end, whatever `next_offset` says. Walks from
        the last index entry, or from the begin if that entry leads nowhere. None when a broken header hides the end:
        the file is not short then, and readers find the damage.
        """
        end_offset, position = self._end_behind(self.indexes.last_written_position())
        if position < self.size_bytes:
            end_offset, position = self._end_behind(0)
        magic = self._files.disk.read_at(self.path, position + _MAGIC_POSITION, 1)
        return None if magic and magic[0] != MAGIC else end_offset

    def _end_behind(self, position: int) -> tuple[int, int]:
        """The offset and the position at which the whole batches from this position on end."""
        end_offset = self.base_offset
        try:
            for batch in self.batches(position):
                end_offset, position = batch.last_offset + 1, batch.position + batch.size_bytes
        except CorruptRecord:
            pass
        return end_offset, position

    def reset(self) -> None:
        """Forgets the content of the file; `note` then adds it anew."""
        self.size_bytes, self.next_offset = 0, self.base_offset
        self.indexes.clear()
        self._positions.clear()

    # ---- Appending -----------------------------------------------------------------------------------------

    def append(self, buffers: Sequence[Buffer], batches: Sequence[BatchPosition]) -> None:
        """Writes whole batches in one call; the first of them is at the end of the segment.

        Raises StorageError when the disk fails. The file may end with a part of the batches then; the segment does not.
        """
        self.file.append(buffers, self.size_bytes)
        for batch in batches:
            self.note(batch)

    def note(self, batch: BatchPosition) -> None:
        """Adds a batch that is in the file: offsets, timestamp, perhaps an index entry (F5)."""
        if batch.position != self.size_bytes:
            raise InvariantBroken(f"{self!r}: {batch!r} is not at its end")
        if batch.base_offset < self.next_offset:
            raise InvariantBroken(f"{self!r}: {batch!r} goes back")
        self.indexes.note(batch)
        self.size_bytes += batch.size_bytes
        self.next_offset = batch.last_offset + 1

    @property
    def first_timestamp_ms(self) -> int:
        """The largest timestamp of the first batch; -1 without a batch. Time-based rolling counts from it (F10)."""
        if self._first_timestamp_ms is None:
            first = next(self.batches(0), None)
            if first is None:
                return NO_TIMESTAMP
            self._first_timestamp_ms = first.max_timestamp_ms
        return self._first_timestamp_ms

    # ---- Reading -------------------------------------------------------------------------------------------

    def batches(self, position: int) -> Iterator[BatchPosition]:
        """The batches from a position on, by their headers. Raises CorruptRecord where there is no whole batch."""
        return self.file.batches(position, self.size_bytes)

    def position_of(self, offset: int) -> int:
        """The begin of the batch that contains the offset, or of the first batch after it; the segment's end if there
        is none.
        """
        if offset >= self.next_offset:
            return self.size_bytes
        known = self._positions.get(offset)
        if known is not None:
            return known
        for batch in self.batches(self.indexes.by_offset.lookup(offset)):
            if batch.last_offset >= offset:
                return batch.position
        return self.size_bytes

    def span(self, offset: int, *, max_bytes: int, end_offset: int, min_one_batch: bool) -> Span:
        """Whole batches from the one that contains `offset`, up to `max_bytes` and `end_offset` (G4-G6).

        `min_one_batch` includes the first batch whatever its size.
        """
        position = self.position_of(offset)
        limit = position + max_bytes
        if limit >= self.size_bytes and end_offset >= self.next_offset:
            span = Span(position, self.size_bytes, self.next_offset)
        else:
            index = self.indexes.by_offset
            indexed = min(index.lookup_position(limit), index.lookup(end_offset))
            span = Span(position, self.size_bytes, min(self.next_offset, end_offset))
            for batch in self.batches(max(position, indexed)):
                if batch.last_offset >= end_offset or batch.position + batch.size_bytes > limit:
                    span = Span(position, batch.position, min(batch.base_offset, end_offset))
                    break
        if span.stop == position and min_one_batch:
            first = next(self.batches(position), None)
            if first is not None and first.last_offset < end_offset:
                span = Span(position, position + first.size_bytes, first.last_offset + 1)
        if len(self._positions) >= _REMEMBERED_MAX:
            self._positions.clear()
        # Readers continue where they stopped: their next look-up needs neither index nor walk.
        self._positions[span.next_offset] = span.stop
        return span

    def read(self, span: Span) -> bytes:
        """Reads the bytes of the span."""
        return self.file.read(span.position, span.stop - span.position)

    def slice(self, span: Span) -> FileSlice:
        """The span for a reader that reads or maps it later: the bytes are not cut off from now on."""
        self._sliced_bytes = max(self._sliced_bytes, span.stop)
        return self._files.disk.slice(self.path, span.position, span.stop - span.position)

    # ---- Cutting -------------------------------------------------------------------------------------------

    def can_be_cut(self, position: int) -> bool:
        """Whether the file may be cut here in place: no reader needs the bytes behind, and the kernel frees them at
        once.
        """
        return self._sliced_bytes <= position and self.size_bytes - position <= _CUT_BYTES_MAX

    def prefix(self, offset: int) -> "Segment":
        """A segment of the batches before the one that contains the offset, whether the file is cut in place next or
        replaced by a copy of that part. Replaces this segment.
        """
        kept = Segment(
            self._files,
            self.base_offset,
            created_ms=self.created_ms,
            index_interval_bytes=self._index_interval_bytes,
        )
        kept.size_bytes = self.position_of(offset)
        kept._sliced_bytes = min(self._sliced_bytes, kept.size_bytes)
        cut_off = next(self.batches(kept.size_bytes), None)
        kept.indexes.take_prefix(
            self.indexes, offset if cut_off is None else min(offset, cut_off.base_offset)
        )
        kept.next_offset = kept.indexes.resume()
        return kept

    def rename(self, suffix: str) -> None:
        """Gives the files this suffix, the log file last: while it has the old suffix, an index may be missing."""
        self.indexes.rename(suffix)
        self.file.rename(suffix)
        self.path = self.file.path

    def on_moved(self) -> None:
        """The log's directory was renamed."""
        self.file.on_moved()
        self.indexes.on_moved()
        self.path = self.file.path

    def retire(self) -> list[str]:
        """Renames the files out of the way, the log file first, and returns their new paths. Readers keep what they
        have open or mapped; the segment itself is not used any more.
        """
        retired = []
        for path in (self.path, *self.indexes.paths):
            if self._files.disk.exists(path):
                retired.append(path + DELETED_SUFFIX)
                self._files.rename(path, retired[-1])
        return retired

    def delete(self) -> None:
        """Removes the files, indexes last: an index without its log file is an orphan, which the next opening of the
        log removes.
        """
        for path in (self.path, *self.indexes.paths):
            if self._files.disk.exists(path):
                self._files.remove(path)


# Up to here a read and one more send cost less processor time than a slice and one more system call.
SLICE_BYTES_MIN = 128 << 10
# Up to here a follower spends less on bytes than on opening the file and reading them there.
COPIED_RANGE_BYTES_MIN = 64 << 10

Spans = Sequence[tuple[Segment, Span]]


def file_ranges(spans: Spans) -> tuple[FileRange, ...]:
    """Where a reader on this machine finds the spans (decision 046)."""
    ranges = []
    for segment, span in spans:
        piece = segment.slice(span)
        identity = piece.identity()
        ranges.append(
            FileRange(
                path=piece.path,
                device=identity.device,
                inode=identity.inode,
                position=piece.position,
                size_bytes=piece.size,
                base_offset=next(segment.batches(span.position)).base_offset,
            )
        )
    return tuple(ranges)


class FetchData(NamedTuple):
    """The part of a log that a fetch gets, records or file ranges, and the offset to continue at."""

    next_offset: int
    records: Part = NO_BYTES
    file_ranges: tuple[FileRange, ...] = ()


def fetch_data(
    found: Iterable[tuple[Segment, Span]], offset: int, *, range_bytes_min: int | None = None
) -> FetchData:
    """Chooses how a reader gets these spans: as file ranges, from `range_bytes_min` bytes on; else the first span
    alone, as a slice of the file, or as bytes if it is small. For few bytes one read costs less than everything else.

    A reader's slice or range is marked in its segment, so a later truncation, deletion or replacement changes none of
    its bytes.
    """
    spans = list(found if range_bytes_min is not None else islice(found, 1))
    if not spans:
        return FetchData(offset)
    if range_bytes_min is not None and sum(span.stop - span.position for _, span in spans) >= range_bytes_min:
        return FetchData(spans[-1][1].next_offset, file_ranges=file_ranges(spans))
    segment, span = spans[0]
    if span.stop - span.position >= SLICE_BYTES_MIN:
        return FetchData(span.next_offset, segment.slice(span))
    return FetchData(span.next_offset, np.frombuffer(segment.read(span), dtype=np.uint8))
