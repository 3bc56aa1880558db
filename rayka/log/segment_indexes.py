"""The two indexes of one segment, by offset and by time, and the largest timestamp in it (F5).

Those of the active segment are in memory; those of a sealed one are in their files, loaded when asked for, until they
are dropped. Ones that do not fit the segment are built anew from its batches, and stay in memory: what is written below
the recovery point without a sync, a power cut may tear, and no recovery looks there. Kafka: the index part of
`LogSegment`.
"""

from collections.abc import Iterator
from typing import Protocol

from rayka.ids import NO_TIMESTAMP
from rayka.log.log_files import LogFiles
from rayka.log.offset_index import OffsetIndex
from rayka.log.segment_file import BatchPosition
from rayka.log.time_index import TimeIndex, TimestampedOffset
from rayka.protocol.batch_format import HEADER_BYTES

OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX = ".index", ".timeindex"


class Indexed(Protocol):
    """The segment that the indexes are of."""

    base_offset: int
    size_bytes: int

    def batches(self, position: int) -> Iterator[BatchPosition]: ...


class SegmentIndexes:
    """The indexes of one segment."""

    def __init__(self, files: LogFiles, segment: Indexed, interval_bytes: int, suffix: str = "") -> None:
        self._files = files
        self._disk = files.disk
        self._segment = segment
        self._interval_bytes = interval_bytes
        self._offset_path, self._time_path = self._named(suffix)
        self.clear()

    def __repr__(self) -> str:
        return f"<SegmentIndexes {self._offset_index!r} {self._time_index!r}>"

    def _named(self, suffix: str) -> tuple[str, str]:
        stem = self._files.path(f"{self._segment.base_offset:020d}")
        return stem + OFFSET_INDEX_SUFFIX + suffix, stem + TIME_INDEX_SUFFIX + suffix

    def rename(self, suffix: str) -> None:
        """The files have this suffix from now on."""
        before, (self._offset_path, self._time_path) = self.paths, self._named(suffix)
        for old, new in zip(before, self.paths, strict=True):
            if self._disk.exists(old):
                self._files.rename(old, new)

    def on_moved(self) -> None:
        """The log's directory has another name, and no swap of this segment is under way."""
        self._offset_path, self._time_path = self._named("")

    def clear(self) -> None:
        """The segment is empty."""
        base_offset = self._segment.base_offset
        self._offset_index: OffsetIndex | None = OffsetIndex(base_offset)
        self._time_index: TimeIndex | None = TimeIndex(base_offset)
        self._largest: TimestampedOffset | None = TimestampedOffset(NO_TIMESTAMP, base_offset)
        self._bytes_since_entry = 0
        self._are_in_files = False

    def find(self) -> None:
        """The segment was found, sealed and synced: all of this is in files."""
        self._are_in_files = True
        self.drop()
        self._largest = None

    def drop(self) -> None:
        """Lets go of the indexes of a sealed segment, where they are in their files."""
        if self._are_in_files:
            self._offset_index = self._time_index = None

    # ---- Growing and shrinking -------------------------------------------------------------------------------

    def note(self, batch: BatchPosition) -> None:
        """The segment has one batch more: perhaps it has an entry (F5)."""
        largest = self.largest
        if batch.max_timestamp_ms > largest.timestamp_ms:
            largest = self._largest = TimestampedOffset(batch.max_timestamp_ms, batch.last_offset)
        if self._bytes_since_entry > self._interval_bytes:
            self.by_offset.append(batch.base_offset, batch.position)
            self.by_time.maybe_append(*largest)
            self._bytes_since_entry = 0
        self._bytes_since_entry += batch.size_bytes

    def resume(self) -> int:
        """What is behind the last entries is noted anew; returns the offset at which the segment ends."""
        position, end_offset = self.by_offset.last_position, self._segment.base_offset
        self._largest = self.by_time.last
        self._bytes_since_entry = self._segment.size_bytes - position
        for batch in self._segment.batches(position):
            end_offset = batch.last_offset + 1
            if batch.max_timestamp_ms > self._largest.timestamp_ms:
                self._largest = TimestampedOffset(batch.max_timestamp_ms, batch.last_offset)
        return end_offset

    def take_prefix(self, whole: "SegmentIndexes", offset: int) -> None:
        """These are of the part of another segment that is below the offset, and take its entries over."""
        self._offset_index, self._time_index = whole.by_offset, whole.by_time
        self.by_offset.truncate_to(offset)
        self.by_time.truncate_to(offset)

    def are_full(self, max_index_bytes: int) -> bool:
        """Whether an index has no room for another entry and the last one (F10)."""
        offset_room = max_index_bytes // OffsetIndex.ENTRY.size - len(self.by_offset)
        time_room = max_index_bytes // TimeIndex.ENTRY.size - len(self.by_time)
        return offset_room < 1 or time_room < 2

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
        """The largest timestamp, and the last offset of the first batch that holds it; (-1, base offset) when
        empty.
        """
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
        """The last indexed position, from the file, which is not loaded; 0 when no entry points into the segment."""
        path, entry = self._offset_path, OffsetIndex.ENTRY
        if not self._disk.exists(path) or self._disk.size(path) < entry.size:
            return 0
        _, position = entry.unpack(self._disk.read_at(path, self._disk.size(path) - entry.size, entry.size))
        return int(position) if 0 < position < self._segment.size_bytes else 0

    def _last_written_time(self) -> TimestampedOffset | None:
        """The last entry by time, from the file, which is not loaded; None where the file cannot have it."""
        path, entry = self._time_path, TimeIndex.ENTRY
        size_bytes = self._disk.size(path) if self._disk.exists(path) else 0
        if self._time_index is not None or not size_bytes or size_bytes % entry.size:
            return None
        index = TimeIndex(
            self._segment.base_offset, self._disk.read_at(path, size_bytes - entry.size, entry.size)
        )
        return index.last if index.is_sane() else None

    def remove_files(self) -> None:
        """Makes room: the indexes are made anew when they are asked for."""
        for path in self.paths:
            if self._disk.exists(path):
                self._files.remove(path)

    @property
    def size_bytes(self) -> int:
        """How large the file of the larger one is; 0 when there is none, as after a crash."""
        return max(self._disk.size(path) if self._disk.exists(path) else 0 for path in self.paths)

    @property
    def paths(self) -> tuple[str, str]:
        return self._offset_path, self._time_path
