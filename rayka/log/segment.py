"""One segment of a log: a file of whole batches, and its two indexes (F4-F6).

A segment is active (the last of its log, appended to, its indexes in memory) or sealed (its indexes written,
loaded when asked for). Sizes, positions and offsets are those of the batches known to be whole; the file may
be longer while a write is under way or after one failed. Invariants: positions handed out are begins of
batches; no byte of a range that was given to a reader is cut off or overwritten. Kafka: `LogSegment`. Left
out: transaction index, producer snapshots, the cleaner's part.
"""

import posixpath
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from rayka.errors import CorruptRecord, InvariantBroken, StorageError
from rayka.ids import NO_TIMESTAMP
from rayka.log.local_disk import TEMPORARY_SUFFIX
from rayka.log.offset_index import OffsetIndex
from rayka.log.time_index import TimeIndex, TimestampedOffset
from rayka.log.unsynced import Unsynced
from rayka.ports import Buffer, Disk
from rayka.protocol.batch_header import HEADER_BYTES, LENGTH_FIELD_END, MAGIC

LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX = ".log", ".index", ".timeindex"
CUT_SUFFIX = ".cut"  # what recovery cut off and an operator may want; never read, never removed
MAX_RELATIVE_OFFSET = 2**31 - 1
GAP_MAX = (
    MAX_RELATIVE_OFFSET // 2
)  # a gap that does not fit a segment is wider, for no batch spans as many offsets
SCANNED = Struct(
    ">qiibIhi8xq"
)  # base offset, length, epoch, magic, CRC, attributes, last offset delta, max timestamp
MAGIC_POSITION = 16
_WALK_BYTES = 4096  # read at once while walking from header to header
# More than this is not cut in place: the kernel frees page by page, 1 GiB in 300 ms.
_CUT_BYTES_MAX = 16 << 20


class SegmentFiles(NamedTuple):
    """Where the segments of one log live, and what of them is not synced."""

    disk: Disk
    directory: str
    unsynced: Unsynced


class BatchPosition(NamedTuple):
    """Where one batch of a segment stands."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int


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
        self, files: SegmentFiles, base_offset: int, *, created_ms: int, index_interval_bytes: int
    ) -> None:
        self._disk = files.disk
        self._unsynced = files.unsynced
        self._stem = posixpath.join(files.directory, f"{base_offset:020d}")
        self._index_interval_bytes = index_interval_bytes
        self._offset_index: OffsetIndex | None = OffsetIndex(base_offset)
        self._time_index: TimeIndex | None = TimeIndex(base_offset)
        self._largest: TimestampedOffset | None = TimestampedOffset(NO_TIMESTAMP, base_offset)
        self._bytes_since_entry = 0
        self._first_timestamp_ms: int | None = None
        self._positions: dict[int, int] = {}  # offsets at which a reader is about to go on
        self._given_bytes = 0  # no range that a local reader was given reaches further
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = 0
        self.created_ms = created_ms

    def __repr__(self) -> str:
        return f"<Segment {self.base_offset}..{self.next_offset} bytes={self.size_bytes}>"

    @property
    def path(self) -> str:
        return self._stem + LOG_SUFFIX

    @property
    def index_paths(self) -> tuple[str, str]:
        return self._stem + OFFSET_INDEX_SUFFIX, self._stem + TIME_INDEX_SUFFIX

    # ---- Coming to life ------------------------------------------------------------------------------------

    def create(self) -> None:
        """Makes the empty file."""
        self._disk.append(self.path, ())
        self._unsynced.file_replaced(self.path)

    def on_found(self) -> None:
        """The file was here before this process: another one of this broker may have given all of it to readers."""
        self._given_bytes = self._disk.size(self.path)

    def open_sealed(self, next_offset: int) -> None:
        """Takes the file as it is, up to where the next segment begins. Indexes are loaded when asked for."""
        self.size_bytes = self._disk.size(self.path)
        self.next_offset = next_offset
        self._largest = None
        self.drop_indexes()

    def open_active(self) -> None:
        """Takes the file as it is, and walks from the last index entry to its end.

        Raises CorruptRecord when it does not end with a whole batch: then it needs recovery.
        """
        self.open_sealed(self.base_offset)
        self._resume()

    def find_end(self) -> int | None:
        """The offset at which the whole batches in a sealed segment's file end, whatever `next_offset` says: walked
        from the last entry of the index, or from the begin when that leads nowhere. None when a broken header hides
        it: then the file is not short, and readers find the damage.
        """
        end_offset, position = self._end_behind(self._last_indexed_position())
        if position < self.size_bytes:
            end_offset, position = self._end_behind(0)
        magic = self._disk.read_at(self.path, position + MAGIC_POSITION, 1)
        return None if magic and magic[0] != MAGIC else end_offset

    def _last_indexed_position(self) -> int:
        """Read from the index's file without loading it; 0 when there is no entry that points into the segment."""
        path, entry = self.index_paths[0], OffsetIndex.ENTRY
        if not self._disk.exists(path) or self._disk.size(path) < entry.size:
            return 0
        _, position = entry.unpack(self._disk.read_at(path, self._disk.size(path) - entry.size, entry.size))
        return int(position) if 0 < position < self.size_bytes else 0

    def _end_behind(self, position: int) -> tuple[int, int]:
        """The offset and the position at which the whole batches from this position on end."""
        end_offset = self.base_offset
        try:
            for batch in self.batches(position):
                end_offset, position = batch.last_offset + 1, batch.position + batch.size_bytes
        except CorruptRecord:
            pass
        return end_offset, position

    def _resume(self) -> None:
        """Continues from the indexes: everything after the last entry is walked."""
        start = self.offset_index.last_position
        self._largest = self.time_index.last
        self._bytes_since_entry = self.size_bytes - start
        for batch in self.batches(start):
            self.next_offset = batch.last_offset + 1
            self._raise_largest(batch.max_timestamp_ms, batch.last_offset)

    # ---- Appending -----------------------------------------------------------------------------------------

    def append(self, buffers: Sequence[Buffer], batches: Sequence[BatchPosition]) -> None:
        """Writes whole batches in one call; their positions count from the end of the segment.

        Raises StorageError when the disk fails; the file may then end with a part of them, the segment does
        not.
        """
        begin = self._disk.append(self.path, buffers)
        self._unsynced.content_changed(self.path)
        if begin != self.size_bytes:
            raise StorageError(
                f"{self.path}: expected {self.size_bytes} bytes, found {begin}; restart the node"
            )
        for batch in batches:
            self.note(batch._replace(position=begin + batch.position))

    def note(self, batch: BatchPosition) -> None:
        """Takes in a batch that stands in the file: offsets, timestamp, perhaps an index entry (F5)."""
        if batch.position != self.size_bytes:
            raise InvariantBroken(f"{self!r}: {batch!r} is not at its end")
        if batch.base_offset < self.next_offset:
            raise InvariantBroken(f"{self!r}: {batch!r} goes back")
        self._raise_largest(batch.max_timestamp_ms, batch.last_offset)
        if self._bytes_since_entry > self._index_interval_bytes:
            self.offset_index.append(batch.base_offset, batch.position)
            self.time_index.maybe_append(*self.largest_timestamp)
            self._bytes_since_entry = 0
        self._bytes_since_entry += batch.size_bytes
        self.size_bytes += batch.size_bytes
        self.next_offset = batch.last_offset + 1

    def _raise_largest(self, timestamp_ms: int, offset: int) -> None:
        if timestamp_ms > self.largest_timestamp.timestamp_ms:
            self._largest = TimestampedOffset(timestamp_ms, offset)

    def has_full_index(self, max_index_bytes: int) -> bool:
        """Whether an index has no room for another entry and the last one (F10)."""
        offset_room = max_index_bytes // OffsetIndex.ENTRY.size - len(self.offset_index)
        time_room = max_index_bytes // TimeIndex.ENTRY.size - len(self.time_index)
        return offset_room < 1 or time_room < 2

    def write_indexes(self) -> None:
        """Writes both index files, the time index with its last entry (F5)."""
        self.time_index.maybe_append(*self.largest_timestamp)
        for path, index in zip(self.index_paths, (self.offset_index, self.time_index), strict=True):
            self._disk.write(path, index.data)
            self._unsynced.file_replaced(path)

    def drop_indexes(self) -> None:
        """Lets go of the indexes of a sealed segment; they are in their files."""
        self._offset_index = self._time_index = None

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

    # ---- Indexes -------------------------------------------------------------------------------------------

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._load_indexes()
        assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._load_indexes()
        assert self._time_index is not None
        return self._time_index

    @property
    def largest_timestamp(self) -> TimestampedOffset:
        """The largest timestamp, and the last offset of the first batch that holds it; (-1, base offset) when
        empty.
        """
        if self._largest is None:
            self._largest = self.time_index.last
        return self._largest

    def _load_indexes(self) -> None:
        offset_path, time_path = self.index_paths
        self._offset_index = OffsetIndex.load(self.base_offset, self._read_index(offset_path))
        self._time_index = TimeIndex.load(self.base_offset, self._read_index(time_path))
        if self._offset_index is None or self._time_index is None or not self._agree():
            self._rebuild_indexes()

    def _read_index(self, path: str) -> bytes:
        return self._disk.read_at(path, 0, self._disk.size(path)) if self._disk.exists(path) else b"missing"

    def _agree(self) -> bool:
        """Whether the last entry points into the file."""
        return self.offset_index.last_position <= max(0, self.size_bytes - HEADER_BYTES)

    def _rebuild_indexes(self) -> None:
        batches, next_offset = list(self.batches(0)), self.next_offset
        self.reset()
        for batch in batches:
            self.note(batch)
        self.next_offset = max(next_offset, self.next_offset)
        self.write_indexes()

    def reset(self) -> None:
        """Forgets what is known of the file's content; `note` then tells it anew."""
        self._offset_index, self._time_index = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self._largest = TimestampedOffset(NO_TIMESTAMP, self.base_offset)
        self._bytes_since_entry, self.size_bytes, self.next_offset = 0, 0, self.base_offset
        self._positions.clear()

    # ---- Reading -------------------------------------------------------------------------------------------

    def batches(self, position: int) -> Iterator[BatchPosition]:
        """The batches from a position on, headers only. Raises CorruptRecord where no whole batch stands."""
        chunk, begin = b"", position
        while position < self.size_bytes:
            if position + HEADER_BYTES > begin + len(chunk):
                chunk, begin = (
                    self._disk.read_at(self.path, position, min(_WALK_BYTES, self.size_bytes - position)),
                    position,
                )
            batch = self._batch_in(chunk, begin, position)
            yield batch
            position += batch.size_bytes

    def _batch_in(self, chunk: bytes, begin: int, position: int) -> BatchPosition:
        if position + HEADER_BYTES > begin + len(chunk):
            raise CorruptRecord(f"{self.path}: the file ends within a batch at position {position}")
        base_offset, length, _, magic, _, _, last_delta, max_timestamp_ms = SCANNED.unpack_from(
            chunk, position - begin
        )
        size_bytes = LENGTH_FIELD_END + length
        if magic != MAGIC or size_bytes < HEADER_BYTES or position + size_bytes > self.size_bytes:
            raise CorruptRecord(
                f"{self.path}: no whole batch at position {position}: magic {magic}, {size_bytes} bytes"
            )
        return BatchPosition(position, size_bytes, base_offset, base_offset + last_delta, max_timestamp_ms)

    def position_of(self, offset: int) -> int:
        """Where the batch begins that contains the offset, or the first one after it; the segment's end if
        there is none.
        """
        if offset >= self.next_offset:
            return self.size_bytes
        known = self._positions.get(offset)
        if known is not None:
            return known
        for batch in self.batches(self.offset_index.lookup(offset)):
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
            span = self._one_batch(position, end_offset, span)
        self._remember(span)
        return span

    def _bounded_span(self, position: int, limit: int, end_offset: int) -> Span:
        index = self.offset_index
        indexed = min(index.lookup_position(limit), index.lookup(end_offset))
        for batch in self.batches(max(position, indexed)):
            if batch.last_offset >= end_offset or batch.position + batch.size_bytes > limit:
                return Span(position, batch.position, min(batch.base_offset, end_offset))
        return Span(position, self.size_bytes, min(self.next_offset, end_offset))

    def _one_batch(self, position: int, end_offset: int, nothing: Span) -> Span:
        first = next(self.batches(position), None)
        if first is None or first.last_offset >= end_offset:
            return nothing
        return Span(position, position + first.size_bytes, first.last_offset + 1)

    def _remember(self, span: Span) -> None:
        """Readers go on where they stopped: their next look-up needs neither index nor walk."""
        if len(self._positions) >= 64:
            self._positions.clear()
        self._positions[span.next_offset] = span.stop

    def read(self, span: Span) -> bytes:
        """The bytes of a span, in one read."""
        data = self._disk.read_at(self.path, span.position, span.stop - span.position)
        if len(data) < span.stop - span.position:
            raise CorruptRecord(
                f"{self.path}: {len(data)} bytes at {span.position}, expected up to {span.stop}"
            )
        return data

    def read_batch(self, batch: BatchPosition) -> bytes:
        """The bytes of one batch."""
        return self.read(Span(batch.position, batch.position + batch.size_bytes, batch.last_offset + 1))

    # ---- Cutting -------------------------------------------------------------------------------------------

    def on_given(self, span: Span) -> None:
        """A reader on this machine may map the span from now on."""
        self._given_bytes = max(self._given_bytes, span.stop)

    def can_be_cut(self, position: int) -> bool:
        """Whether the file may be cut here in place: no reader was given what is behind, and the kernel is done with it
        at once.
        """
        return self._given_bytes <= position and self.size_bytes - position <= _CUT_BYTES_MAX

    def prefix_copy(self, position: int) -> tuple[str, str, int]:
        """What to copy, where to and how much, so that `truncate_to` can put it in the place of the file."""
        return self.path, self.path + TEMPORARY_SUFFIX, position

    def truncate_to(self, offset: int, *, is_copied: bool) -> None:
        """Drops the batch that contains the offset and all after it: in place, or by the copy of what is kept, so that
        a reader that mapped the old inode keeps it whole (design §3).
        """
        position = self.position_of(offset)
        offset_index, time_index = self.offset_index, self.time_index
        cut = next(self.batches(position), None)
        if cut is not None:
            offset = min(offset, cut.base_offset)
            if is_copied:
                self._replace_by_copy()
            else:
                self.cut_file(position)
        self.size_bytes, self.next_offset = position, self.base_offset
        self._positions.clear()
        self._first_timestamp_ms = None
        offset_index.truncate_to(offset)
        time_index.truncate_to(offset)
        self._resume()

    def _replace_by_copy(self) -> None:
        self._disk.rename(self.path + TEMPORARY_SUFFIX, self.path)
        self._unsynced.name_changed(self.path)
        self._given_bytes = 0

    def cut_file(self, size_bytes: int) -> None:
        """Cuts the file in place."""
        self._disk.cut(self.path, size_bytes)
        self._unsynced.content_changed(self.path)

    def copy_aside(self, view: memoryview) -> str:
        """Copies what is behind the segment's end, of a view of the whole file, to a name that nothing here reads;
        returns it.
        """
        aside, target = self.path + TEMPORARY_SUFFIX, self._cut_path()
        if self._disk.exists(aside):
            self._disk.unlink(aside)
        self._disk.append(aside, [view[self.size_bytes :]])
        self._disk.rename(aside, target)
        self._unsynced.file_replaced(target)
        return target

    def set_aside(self) -> str:
        """Gives the file that name instead of its own; only its indexes are left to `delete`."""
        target = self._cut_path()
        self._disk.rename(self.path, target)
        self._unsynced.name_changed(target)
        return target

    def _cut_path(self) -> str:
        """`<segment>.log.cut`, or with a number when there is one from an earlier time."""
        path, number = self.path + CUT_SUFFIX, 1
        while self._disk.exists(path):
            number += 1
            path = f"{self.path}{CUT_SUFFIX}.{number}"
        return path

    def delete(self) -> None:
        """Removes the files, indexes last: without its log file an index is an orphan and goes when the log
        opens.
        """
        for path in (self.path, *self.index_paths):
            if self._disk.exists(path):
                self._disk.unlink(path)
                self._unsynced.name_changed(path)
