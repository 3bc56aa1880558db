"""One segment of a log: a file of whole batches, and its two indexes (F4-F6).

A segment is active (the last of its log, appended to, its indexes in memory) or sealed (its indexes written,
loaded when asked for). Sizes, positions and offsets are those of the batches known to be whole; the file may
be longer while a write is under way or after one failed. Invariants: positions handed out are begins of
batches; no byte that was given to a reader to read later is cut off or overwritten. Kafka: `LogSegment`. Left
out: transaction index, producer snapshots.
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
# A gap that does not fit a segment is wider, for no batch spans as many offsets.
GAP_MAX = MAX_RELATIVE_OFFSET // 2
_MAGIC_POSITION = 16
# More than this is not cut in place: the kernel frees page by page, 1 GiB in 300 ms.
_CUT_BYTES_MAX = 16 << 20
_REMEMBERED_MAX = 64


class Span(NamedTuple):
    """Whole batches of a segment, one after another: from `position` up to `stop`; then reading goes on at
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
        self._positions: dict[int, int] = {}  # offsets at which a reader is about to go on
        self._sliced_bytes = 0  # nothing that a reader was given to read later reaches further
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
        """The file was here before this process: another one of this broker may have given all of it to readers."""
        self._sliced_bytes = self._files.disk.size(self.path)

    def open_sealed(self, next_offset: int) -> None:
        """Takes the file as it is, up to where the next segment begins. Indexes are loaded when asked for."""
        self.size_bytes = self._files.disk.size(self.path)
        self.next_offset = next_offset
        self.indexes.find()

    def open_active(self) -> None:
        """Takes the file as it is, and walks from the last index entry to its end.

        Raises CorruptRecord when it does not end with a whole batch: then it needs recovery.
        """
        self.open_sealed(self.base_offset)
        self.next_offset = self.indexes.resume()

    def find_end(self) -> int | None:
        """The offset at which the whole batches in a sealed segment's file end, whatever `next_offset` says: walked
        from the last entry of the index, or from the begin when that leads nowhere. None when a broken header hides
        it: then the file is not short, and readers find the damage.
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
        """Forgets what is known of the file's content; `note` then adds it anew."""
        self.size_bytes, self.next_offset = 0, self.base_offset
        self.indexes.clear()
        self._positions.clear()

    # ---- Appending -----------------------------------------------------------------------------------------

    def append(self, buffers: Sequence[Buffer], batches: Sequence[BatchPosition]) -> None:
        """Writes whole batches in one call; the first of them is at the end of the segment.

        Raises StorageError when the disk fails; the file may then end with a part of them, the segment does
        not.
        """
        self.file.append(buffers, self.size_bytes)
        for batch in batches:
            self.note(batch)

    def note(self, batch: BatchPosition) -> None:
        """Takes in a batch that stands in the file: offsets, timestamp, perhaps an index entry (F5)."""
        if batch.position != self.size_bytes:
            raise InvariantBroken(f"{self!r}: {batch!r} is not at its end")
        if batch.base_offset < self.next_offset:
            raise InvariantBroken(f"{self!r}: {batch!r} goes back")
        self.indexes.note(batch)
        self.size_bytes += batch.size_bytes
        self.next_offset = batch.last_offset + 1

    @property
    def first_timestamp_ms(self) -> int:
        """The largest timestamp of the first batch, from which time-based rolling counts (F10); -1 when there
        is none.
        """
        if self._first_timestamp_ms is None:
            first = next(self.batches(0), None)
            if first is None:
                return NO_TIMESTAMP
            self._first_timestamp_ms = first.max_timestamp_ms
        return self._first_timestamp_ms

    # ---- Reading -------------------------------------------------------------------------------------------

    def batches(self, position: int) -> Iterator[BatchPosition]:
        """The batches from a position on, headers only. Raises CorruptRecord where no whole batch stands."""
        return self.file.batches(position, self.size_bytes)

    def position_of(self, offset: int) -> int:
        """Where the batch begins that contains the offset, or the first one after it; the segment's end if
        there is none.
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
        """Whole batches from the one that contains `offset`, up to max_bytes and `end_offset` (G4-G6).

        With `min_one_batch` the first one is in the span whatever its size.
        """
        position = self.position_of(offset)
        limit = position + max_bytes
        if limit >= self.size_bytes and end_offset >= self.next_offset:
            span = Span(position, self.size_bytes, self.next_offset)
        else:
            span = self._bounded_span(position, limit, end_offset)
        if span.stop == position and min_one_batch:
            first = next(self.batches(position), None)
            if first is not None and first.last_offset < end_offset:
                span = Span(position, position + first.size_bytes, first.last_offset + 1)
        if len(self._positions) >= _REMEMBERED_MAX:
            self._positions.clear()
        # Readers go on where they stopped: their next look-up needs neither index nor walk.
        self._positions[span.next_offset] = span.stop
        return span

    def _bounded_span(self, position: int, limit: int, end_offset: int) -> Span:
        index = self.indexes.by_offset
        indexed = min(index.lookup_position(limit), index.lookup(end_offset))
        for batch in self.batches(max(position, indexed)):
            if batch.last_offset >= end_offset or batch.position + batch.size_bytes > limit:
                return Span(position, batch.position, min(batch.base_offset, end_offset))
        return Span(position, self.size_bytes, min(self.next_offset, end_offset))

    def read(self, span: Span) -> bytes:
        """The span's bytes, as they are now."""
        return self.file.read(span.position, span.stop - span.position)

    def slice(self, span: Span) -> FileSlice:
        """The span for a reader that reads or maps it later: from now on it is not cut off."""
        self._sliced_bytes = max(self._sliced_bytes, span.stop)
        return self._files.disk.slice(self.path, span.position, span.stop - span.position)

    # ---- Cutting -------------------------------------------------------------------------------------------

    def can_be_cut(self, position: int) -> bool:
        """Whether the file may be cut here in place: no reader was given what is behind, and the kernel is done with it
        at once.
        """
        return self._sliced_bytes <= position and self.size_bytes - position <= _CUT_BYTES_MAX

    def prefix(self, offset: int) -> "Segment":
        """What is left of this segment without the batch that contains the offset and all after it, whether the file is
        cut in place then or replaced by a copy of that part. This one is not used any more.
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
        """Its files have this suffix from now on, the log's last: while it has the old one, an index may be missing."""
        self.indexes.rename(suffix)
        self.file.rename(suffix)
        self.path = self.file.path

    def on_moved(self) -> None:
        """The log's directory has another name."""
        self.file.on_moved()
        self.indexes.on_moved()
        self.path = self.file.path

    def retire(self) -> list[str]:
        """Takes the files out of the way by renaming, the log file first, and returns where they are; readers go on
        with what they have open or mapped. Its own paths lead nowhere then.
        """
        retired = []
        for path in (self.path, *self.indexes.paths):
            if self._files.disk.exists(path):
                retired.append(path + DELETED_SUFFIX)
                self._files.rename(path, retired[-1])
        return retired

    def delete(self) -> None:
        """Removes the files, indexes last: without its log file an index is an orphan and goes when the log
        opens.
        """
        for path in (self.path, *self.indexes.paths):
            if self._files.disk.exists(path):
                self._files.remove(path)


# What a fetch is given of a log: bytes, a slice of a segment's file, or the ranges that a reader here maps or copies.
#
# Few bytes are read at once, whatever the reader could do with a file: for them one read costs less than all else.
# Invariant: what a reader reads later is marked in its segment, which then is not cut in place below its end; so a
# truncation, a deletion or a replacement meanwhile changes none of it. Kafka: `FetchDataInfo`, `FileRecords.slice`.


# Processor time, with Python's: up to here a read and one send more cost less than a slice and a system call more.
SLICE_BYTES_MIN = 128 << 10
# Up to here a follower that gets bytes spends less than one that opens the file and reads them there.
COPIED_RANGE_BYTES_MIN = 64 << 10

Spans = Sequence[tuple[Segment, Span]]


def file_ranges(spans: Spans) -> tuple[FileRange, ...]:
    """Where a reader on this machine finds them (design §3)."""
    return tuple(_file_range(segment, span) for segment, span in spans)


class FetchData(NamedTuple):
    """Either records or file ranges, and where reading goes on."""

    next_offset: int
    records: Part = NO_BYTES
    file_ranges: tuple[FileRange, ...] = ()


def fetch_data(
    found: Iterable[tuple[Segment, Span]], offset: int, *, range_bytes_min: int | None = None
) -> FetchData:
    """What a reader gets of these spans; one segment's, but for ranges, which it gets from so many bytes on."""
    spans = list(found if range_bytes_min is not None else islice(found, 1))
    if not spans:
        return FetchData(offset)
    if range_bytes_min is not None and sum(span.stop - span.position for _, span in spans) >= range_bytes_min:
        return FetchData(spans[-1][1].next_offset, file_ranges=file_ranges(spans))
    segment, span = spans[0]
    if span.stop - span.position >= SLICE_BYTES_MIN:
        return FetchData(span.next_offset, segment.slice(span))
    return FetchData(span.next_offset, np.frombuffer(segment.read(span), dtype=np.uint8))


def _file_range(segment: Segment, span: Span) -> FileRange:
    piece = segment.slice(span)
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
