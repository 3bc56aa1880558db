"""The two indexes of one segment, by offset and by time, and the largest timestamp in the segment (F5).

The indexes of the active segment are in memory. Those of a sealed segment are in their files, and in memory from the
first use until they are dropped. Indexes that do not fit the segment are built anew from its batches and stay in
memory: a file written below the recovery point without a sync could be torn by a power cut, and no recovery looks
there. Kafka: the index part of `LogSegment`.
"""

from bisect import bisect_right
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from rayka.errors import InvariantBroken
from rayka.ids import NO_TIMESTAMP
from rayka.log.log_files import LogFiles
from rayka.log.segment_file import BatchPosition
from rayka.protocol.batch_format import HEADER_BYTES

if TYPE_CHECKING:
    from rayka.log.segment import Segment


class TimestampedOffset(NamedTuple):
    """An entry of the time index: the largest timestamp so far, and an offset at or before which its record is."""

    timestamp_ms: int
    offset: int


class SparseIndex:
    """Entries of two integers, both rising, in one buffer as in the file. A look-up bisects the buffer, so only the
    entries on its way are unpacked.

    Kafka: `AbstractIndex`, which maps a preallocated file and trims it. Here the file is written when the segment is
    sealed or the log closed, and recovery rebuilds it.
    """

    ENTRY: ClassVar[Struct]

    def __init__(self, base_offset: int, data: bytes = b"") -> None:
        self.base_offset = base_offset
        # The content of the file.
        self.data = bytearray(data)

    def __len__(self) -> int:
        return len(self.data) // self.ENTRY.size

    def __repr__(self) -> str:
        return f"<{type(self).__name__} base={self.base_offset} entries={len(self)}>"

    @classmethod
    def load(cls, base_offset: int, data: bytes) -> Self | None:
        """The index in a file's content; None when a sanity check fails and the index must be rebuilt (F5)."""
        index = cls(base_offset, data)
        return index if len(data) % cls.ENTRY.size == 0 and index.is_sane() else None

    def is_sane(self) -> bool:
        """Whether this class could have written the last entry."""
        raise AssertionError("each kind of index has its own check")

    def _entry(self, number: int) -> tuple[int, int]:
        first, second = self.ENTRY.unpack_from(self.data, number * self.ENTRY.size)
        return first, second

    def _floor(self, field: int, value: int) -> int:
        """Number of the last entry whose field is at most the value; -1 without one."""
        return bisect_right(range(len(self)), value, key=lambda number: self._entry(number)[field]) - 1

    def _keep(self, count: int) -> None:
        del self.data[count * self.ENTRY.size :]


class TimeIndex(SparseIndex):
    """The time index: up to which offset a timestamp has been reached (F5, F6).

    An entry of 12 bytes, (timestamp as i64, offset - base offset as i32), says that the largest timestamp so far is
    this, and that its record is at or before this offset, the last one of the first batch with that timestamp. Entries
    are added together with those of the offset index, the last one when the segment is sealed. Invariant: timestamps
    rise strictly, offsets rise. Kafka: `TimeIndex`.
    """

    ENTRY = Struct(">qi")

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Adds an entry unless the last one has this timestamp or a later one."""
        last = self.last
        if timestamp_ms <= last.timestamp_ms:
            return
        if offset < last.offset:
            raise InvariantBroken(f"{self!r}: offset {offset} of timestamp {timestamp_ms} goes back")
        self.data += self.ENTRY.pack(timestamp_ms, offset - self.base_offset)

    def lookup(self, timestamp_ms: int) -> TimestampedOffset:
        """The last entry at or before a timestamp: no batch before the one at its offset has this timestamp or a later
        one.
        """
        return self._at(self._floor(0, timestamp_ms))

    def lookup_offset(self, offset: int) -> TimestampedOffset:
        """The last entry at or before an offset."""
        return self._at(self._floor(1, offset - self.base_offset))

    @property
    def last(self) -> TimestampedOffset:
        """The last entry; (-1, base offset) without one."""
        return self._at(len(self) - 1)

    def truncate_to(self, offset: int) -> None:
        """Drops the entries at and above an offset."""
        self._keep(self._floor(1, offset - self.base_offset - 1) + 1)

    def is_sane(self) -> bool:
        return not self or (self._entry(len(self) - 1)[1] >= 0 and self.last.timestamp_ms >= len(self) - 1)

    def _at(self, number: int) -> TimestampedOffset:
        if number < 0:
            return TimestampedOffset(NO_TIMESTAMP, self.base_offset)
        timestamp_ms, relative_offset = self._entry(number)
        return TimestampedOffset(timestamp_ms, self.base_offset + relative_offset)


class OffsetIndex(SparseIndex):
    """The offset index: where batches begin (F5).

    An entry of 8 bytes, (offset - base offset as i32, position as i32), is the base offset and the position of one
    batch; one for every `index.interval.bytes` of log. The batch at position 0 has no entry. Invariant: both fields
    rise strictly. Kafka: `OffsetIndex`, whose entries hold a batch's last offset; a base offset finds the batch that
    begins there at once.
    """

    ENTRY = Struct(">ii")

    def append(self, offset: int, position: int) -> None:
        """Adds an entry for a batch behind the last one."""
        relative_offset = offset - self.base_offset
        last_offset, last_position = self._entry(len(self) - 1) if self else (-1, 0)
        if relative_offset <= last_offset:
            raise InvariantBroken(f"{self!r}: offset {offset} goes back")
        if position <= last_position:
            raise InvariantBroken(f"{self!r}: position {position} goes back")
        self.data += self.ENTRY.pack(relative_offset, position)

    def lookup(self, offset: int) -> int:
        """Position of the last indexed batch that begins at or before the offset; 0 without one."""
        number = self._floor(0, offset - self.base_offset)
        return self._entry(number)[1] if number >= 0 else 0

    def lookup_position(self, position: int) -> int:
        """The last indexed position at or before this one; 0 without one."""
        number = self._floor(1, position)
        return self._entry(number)[1] if number >= 0 else 0

    @property
    def last_position(self) -> int:
        """Position of the last entry; 0 without one."""
        return self._entry(len(self) - 1)[1] if self else 0

    def truncate_to(self, offset: int) -> None:
        """Drops the entries at and above an offset."""
        self._keep(self._floor(0, offset - self.base_offset - 1) + 1)

    def is_sane(self) -> bool:
        if not self:
            return True
        relative_offset, position = self._entry(len(self) - 1)
        return relative_offset >= len(self) - 1 and position >= len(self)


OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX = ".index", ".timeindex"


class SegmentIndexes:
    """The indexes of one segment."""

    def __init__(self, files: LogFiles, segment: "Segment", interval_bytes: int, suffix: str = "") -> None:
        self._files = files
        self._disk = files.disk
        self._segment = segment
        self._interval_bytes = interval_bytes
        self._offset_path, self._time_path = self._named(suffix)
        self.clear()

    def _named(self, suffix: str) -> tuple[str, str]:
        stem = self._files.path(f"{self._segment.base_offset:020d}")
        return stem + OFFSET_INDEX_SUFFIX + suffix, stem + TIME_INDEX_SUFFIX + suffix

    def rename(self, suffix: str) -> None:
        """Gives the files this suffix."""
        before, (self._offset_path, self._time_path) = self.paths, self._named(suffix)
        for old, new in zip(before, self.paths, strict=True):
            if self._disk.exists(old):
                self._files.rename(old, new)

    def on_moved(self) -> None:
        """The log's directory was renamed. Precondition: no swap of this segment is under way."""
        self._offset_path, self._time_path = self._named("")

    def clear(self) -> None:
        """The segment is empty."""
        base_offset = self._segment.base_offset
        self._offset_index: OffsetIndex | None = OffsetIndex(base_offset)
        self._time_index: TimeIndex | None = TimeIndex(base_offset)
        self._largest: TimestampedOffset | None = TimestampedOffset(NO_TIMESTAMP, base_offset)
        self._bytes_since_entry = 0
        self._are_in_files = False

    def use_files(self) -> None:
        """The segment is sealed and synced: the indexes are read from their files when needed."""
        self._are_in_files = True
        self.drop()
        self._largest = None

    def drop(self) -> None:
        """Frees the memory of a sealed segment's indexes, if they are in files."""
        if self._are_in_files:
            self._offset_index = self._time_index = None

    # ---- Growing and shrinking -------------------------------------------------------------------------------

    def note(self, batch: BatchPosition) -> None:
        """Adds a batch to the segment, and an index entry if the last one is far enough behind (F5)."""
        largest = self.largest
        if batch.max_timestamp_ms > largest.timestamp_ms:
            largest = self._largest = TimestampedOffset(batch.max_timestamp_ms, batch.last_offset)
        if self._bytes_since_entry > self._interval_bytes:
            self.by_offset.append(batch.base_offset, batch.position)
            self.by_time.maybe_append(*largest)
            self._bytes_since_entry = 0
        self._bytes_since_entry += batch.size_bytes

    def resume(self) -> int:
        """Adds the batches behind the last entries of the files; returns the offset at which the segment ends."""
        position, end_offset = self.by_offset.last_position, self._segment.base_offset
        self._largest = self.by_time.last
        self._bytes_since_entry = self._segment.size_bytes - position
        for batch in self._segment.batches(position):
            end_offset = batch.last_offset + 1
            if batch.max_timestamp_ms > self._largest.timestamp_ms:
                self._largest = TimestampedOffset(batch.max_timestamp_ms, batch.last_offset)
        return end_offset

    def take_prefix(self, whole: "SegmentIndexes", offset: int) -> None:
        """Takes over the entries of `whole` below the offset. `whole` is not used any more."""
        self._offset_index, self._time_index = whole.by_offset, whole.by_time
        self.by_offset.truncate_to(offset)
        self.by_time.truncate_to(offset)

    def are_full(self, max_index_bytes: int) -> bool:
        """Whether an index has no room for one more entry, the time index also for its last one (F10)."""
        offset_room = max_index_bytes - len(self.by_offset.data)
        time_room = max_index_bytes - len(self.by_time.data)
        return offset_room < OffsetIndex.ENTRY.size or time_room < 2 * TimeIndex.ENTRY.size

    # ---- Looking ---------------------------------------------------------------------------------------------

    @property
    def by_offset(self) -> OffsetIndex:
        if self._offset_index is None:
            self._load()
        assert self._offset_index is not None
        return self._offset_index

    @property
    def by_time(self) -> TimeIndex:
        if self._time_index is None:
            self._load()
        assert self._time_index is not None
        return self._time_index

    @property
    def largest(self) -> TimestampedOffset:
        """The largest timestamp, and the last offset of the first batch that has it; (-1, base offset) when empty."""
        if self._largest is None:
            self._largest = self._last_written_time() or self.by_time.last
        return self._largest

    # ---- Files -----------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Writes both files, the time index with its last entry (F5)."""
        self.by_time.maybe_append(*self.largest)
        for path, data in ((self._offset_path, self.by_offset.data), (self._time_path, self.by_time.data)):
            self._disk.write(path, data)
            self._files.unsynced.file_replaced(path)

    def _load(self) -> None:
        base_offset = self._segment.base_offset
        last_begin = max(0, self._segment.size_bytes - HEADER_BYTES)
        self._offset_index = OffsetIndex.load(base_offset, self._read(self._offset_path))
        self._time_index = TimeIndex.load(base_offset, self._read(self._time_path))
        is_sane = self._offset_index is not None and self._time_index is not None
        if not is_sane or self.by_offset.last_position > last_begin:
            batches = list(self._segment.batches(0))
            self.clear()
            for batch in batches:
                self.note(batch)

    def _read(self, path: str) -> bytes:
        return self._disk.read_at(path, 0, self._disk.size(path)) if self._disk.exists(path) else b"missing"

    def last_written_position(self) -> int:
        """The last indexed position, read from the file without loading the index; 0 when no entry points into the
        segment.
        """
        path, entry = self._offset_path, OffsetIndex.ENTRY
        if not self._disk.exists(path) or self._disk.size(path) < entry.size:
            return 0
        _, position = entry.unpack(self._disk.read_at(path, self._disk.size(path) - entry.size, entry.size))
        return int(position) if 0 < position < self._segment.size_bytes else 0

    def _last_written_time(self) -> TimestampedOffset | None:
        """The last entry by time, read from the file without loading the index; None where the file cannot have it."""
        path, entry = self._time_path, TimeIndex.ENTRY
        size_bytes = self._disk.size(path) if self._disk.exists(path) else 0
        if self._time_index is not None or not size_bytes or size_bytes % entry.size:
            return None
        index = TimeIndex(
            self._segment.base_offset, self._disk.read_at(path, size_bytes - entry.size, entry.size)
        )
        return index.last if index.is_sane() else None

    def remove_files(self) -> None:
        """Removes the files to make room. The indexes are built anew when needed."""
        for path in self.paths:
            if self._disk.exists(path):
                self._files.remove(path)

    @property
    def size_bytes(self) -> int:
        """Size of the larger file; 0 without files, as after a crash."""
        return max(self._disk.size(path) if self._disk.exists(path) else 0 for path in self.paths)

    @property
    def paths(self) -> tuple[str, str]:
        return self._offset_path, self._time_path
