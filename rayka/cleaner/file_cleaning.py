"""A cleaning's work on files: reads them, finds the records that stay, and writes those aside (F21-F25); and the dry
run.

The work is a job, so that the real disk can run it in another process: it knows paths and numbers instead of the log,
and can be pickled. The log's broker answers its steps (`Compaction.on_step`) and alone changes the log. A crash leaves
files that no log reads. Kafka: `Cleaner.buildOffsetMap`, `Cleaner.cleanInto`.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from struct import Struct
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from rayka.cleaner.kept_records import CleaningCounts, Horizon, KeptRecords, hashes_of, readable
from rayka.cleaner.key_hashes import KeyHasher
from rayka.cleaner.offset_map import OffsetMap
from rayka.errors import CorruptRecord
from rayka.log.log_files import LogFiles
from rayka.log.segment import MAX_RELATIVE_OFFSET, Segment
from rayka.log.segment_file import LOG_SUFFIX, SCANNED, BatchPosition, SegmentFile
from rayka.log.segment_removal import CLEANED_SUFFIX
from rayka.ports import Disk, Slice
from rayka.protocol.batch_columns import is_valid
from rayka.protocol.batch_decode import DecodedBatch
from rayka.protocol.batch_format import CRC_START, HEADER_BYTES, LENGTH_FIELD_END, RecordBatch

# Segments are read in chunks, because a map of the file would count as memory. Kafka: the read buffer of `Cleaner`,
# which also grows to the largest batch.

CHUNK_BYTES = 512 << 10
CHUNK_BATCHES = 100
_LARGE_BYTES = 16 << 20
_LENGTH = Struct(">8xi")


def chunks(file: SegmentFile, end: int) -> Iterator[list[RecordBatch]]:
    """The whole batches of a file up to `end`, in slices of a few milliseconds each.

    Raises CorruptRecord, with file and position, where there is no whole batch or a CRC is wrong.
    """
    position = 0
    while position < end:
        left = end - position
        first = _size_at(memoryview(file.read(position, min(HEADER_BYTES, left))), 0)
        if first > left:
            raise CorruptRecord(f"{file.path}: no whole batch at position {position}")
        try:
            if first > _LARGE_BYTES:
                _check_large(file, position, first)
            batches = _split(memoryview(file.read(position, min(max(CHUNK_BYTES, first), left))))
        except CorruptRecord as error:
            raise CorruptRecord(f"{file.path}, at position {position} or later: {error}") from error
        yield batches
        position += sum(each.size_bytes for each in batches)


def _check_large(file: SegmentFile, position: int, size_bytes: int) -> None:
    """Checks the CRC of a large batch piece by piece. A wrong length may claim a gigabyte, which is read at once only
    after this check. Raises CorruptRecord.
    """
    header = file.read(position, HEADER_BYTES)
    expected, found = SCANNED.unpack_from(header)[4], crc32c(header[CRC_START:])
    for begin in range(position + HEADER_BYTES, position + size_bytes, CHUNK_BYTES):
        found = crc32c(file.read(begin, min(CHUNK_BYTES, position + size_bytes - begin)), found)
    if found != expected:
        raise CorruptRecord(f"a batch of {size_bytes} bytes has CRC {found}, expected {expected}")


def _split(data: memoryview) -> list[RecordBatch]:
    """The whole batches at the begin of the data, at most one slice's worth."""
    batches: list[RecordBatch] = []
    position = 0
    while len(batches) < CHUNK_BATCHES:
        size_bytes = _size_at(data, position)
        if position + size_bytes > len(data):
            break
        batch = RecordBatch(data[position : position + size_bytes])
        batch.check_crc()
        batches.append(batch)
        position += size_bytes
    return batches


def _size_at(data: memoryview, position: int) -> int:
    """The size of the batch that begins there; that of a header if fewer bytes are left."""
    if len(data) - position < HEADER_BYTES:
        return HEADER_BYTES
    return max(HEADER_BYTES, LENGTH_FIELD_END + int(_LENGTH.unpack_from(data, position)[0]))


class MapBuilder:
    """Puts the keys of batches into the map of one cleaning, while there is room (F21). Kafka:
    `Cleaner.buildOffsetMap`.
    """

    def __init__(self, hasher: KeyHasher, offsets: OffsetMap, first_offset: int) -> None:
        self._hasher = hasher
        self._first_offset = first_offset
        self.offsets = offsets
        # The map covers the records below this offset.
        self.end_offset = first_offset
        # Base offsets of batches that are not in the map, because their columns cannot be read.
        self.unreadable: set[int] = set()

    def put(self, batches: Sequence[RecordBatch]) -> bool:
        """Puts these batches into the map; False if it is full, and then ends before the first record without room."""
        decoded = []
        for batch in batches:
            records = None if batch.is_control else readable(batch)
            if records is not None:
                decoded.append(records)
            elif not batch.is_control:
                self.unreadable.add(batch.base_offset)
        if decoded:
            hashes, offsets = self._wanted(decoded)
            put = self.offsets.put(hashes, offsets)
            if put < len(offsets):
                self.end_offset = max(self.end_offset, int(offsets[put]))
                return False
        self.end_offset = max(self.end_offset, batches[-1].next_offset)
        return True

    def _wanted(self, decoded: Sequence[DecodedBatch]) -> tuple[np.ndarray, np.ndarray]:
        """Hash and offset of each record that belongs in the map: it has a key, and is not clean yet."""
        keys = [each.keys for each in decoded]
        hashes = hashes_of(self._hasher, keys)
        columns = [each.offsets for each in decoded]
        offsets = columns[0] if len(columns) == 1 else np.concatenate(columns)
        has_nulls = any(each.null_count for each in keys)
        if len(offsets) and offsets[0] >= self._first_offset and not has_nulls:
            return hashes, offsets
        is_wanted = offsets >= self._first_offset
        if has_nulls:
            is_wanted &= np.concatenate([is_valid(each) for each in keys])
        return hashes[is_wanted], offsets[is_wanted]


class CleaningAborted(Exception):
    """The log has changed during the cleaning, or is not to be cleaned any more. No error of the log."""


class CleaningSettings(NamedTuple):
    """The parameters of a cleaning besides its log. The secret is random, 16 bytes or more (`key_hashes`)."""

    map_bytes: int
    timestamp_ms: int
    secret: bytes


class SegmentPlan(NamedTuple):
    """A sealed segment, by its file."""

    base_offset: int
    next_offset: int
    size_bytes: int


class SegmentGroup(NamedTuple):
    """Segments that become one, and the ends of the batches by which producers are recognised (C2, F25)."""

    segments: Sequence[SegmentPlan]
    needed_ends: frozenset[tuple[int, int]]


class FilePlan(NamedTuple):
    """The log's directory, and its dirty segments: [first_dirty_offset, end_offset)."""

    directory: str
    dirty: Sequence[SegmentPlan]
    first_dirty_offset: int
    end_offset: int
    delete_retention_ms: int
    index_interval_bytes: int


class MapBuilt(NamedTuple):
    """The map has the newest offsets below `end_offset`. The answer is the first group, or None."""

    end_offset: int
    key_count: int


class Copied(NamedTuple):
    """The records of the group that stay are in files with the suffix `.cleaned`, not synced. The answer is the next
    group, or None.
    """

    counts: CleaningCounts


Step = Slice | MapBuilt | Copied
Steps = Generator[Step, SegmentGroup | None, None]


class FileCleaning:
    """The job of one cleaning."""

    def __init__(self, plan: FilePlan, settings: CleaningSettings) -> None:
        self._plan = plan
        self._settings = settings

    def __repr__(self) -> str:
        plan = self._plan
        return f"<FileCleaning {plan.directory} {plan.first_dirty_offset}..{plan.end_offset}>"

    def run(self, disk: Disk) -> Steps:
        """The whole job. Raises CleaningAborted, CorruptRecord and errors of the disk."""
        plan, settings, files = self._plan, self._settings, LogFiles(disk, self._plan.directory)
        offsets = OffsetMap(settings.map_bytes, plan.end_offset - plan.first_dirty_offset)
        try:
            hasher = KeyHasher(settings.secret)
            builder = MapBuilder(hasher, offsets, plan.first_dirty_offset)
            end_offset = yield from self._build_map(files, builder)
            offsets.seal()
            group = yield MapBuilt(end_offset, offsets.key_count)
            horizon = Horizon(
                plan.first_dirty_offset, end_offset, settings.timestamp_ms, plan.delete_retention_ms
            )
            counts = CleaningCounts()
            while group is not None:
                kept = KeptRecords(hasher, offsets, horizon, group.needed_ends, builder.unreadable, counts)
                yield from self._copy(files, group.segments, kept)
                group = yield Copied(counts)
        finally:
            offsets.release()

    def _build_map(self, files: LogFiles, builder: MapBuilder) -> Generator[Step, object, int]:
        for segment in self._plan.dirty:
            for batches in chunks(SegmentFile(files, segment.base_offset), segment.size_bytes):
                if not builder.put(batches):
                    return builder.end_offset
                yield Slice(sum(each.size_bytes for each in batches))
            builder.end_offset = segment.next_offset
        return builder.end_offset

    def _copy(
        self, files: LogFiles, group: Sequence[SegmentPlan], kept: KeptRecords
    ) -> Generator[Step, object, None]:
        new = Segment(
            files,
            group[0].base_offset,
            index_interval_bytes=self._plan.index_interval_bytes,
            suffix=CLEANED_SUFFIX,
        )
        # A cleaning that was broken off may have left a part of it.
        new.delete()
        new.file.create()
        for segment in group:
            position = 0
            for batches in chunks(SegmentFile(files, segment.base_offset), segment.size_bytes):
                position += sum(each.size_bytes for each in batches)
                is_end = segment is group[-1] and position == segment.size_bytes
                written = _append(new, kept.of(batches, batches[-1] if is_end else None))
                yield Slice(sum(each.size_bytes for each in batches) + written)
        new.indexes.write()


def _append(segment: Segment, batches: Sequence[RecordBatch]) -> int:
    """Appends the batches; returns how many bytes were written."""
    places, position = [], segment.size_bytes
    for each in batches:
        places.append(
            BatchPosition(
                position, each.size_bytes, each.base_offset, each.last_offset, each.max_timestamp_ms
            )
        )
        position += each.size_bytes
    if position > MAX_RELATIVE_OFFSET:
        raise CleaningAborted(f"{segment!r} would outgrow its index")
    if places:
        segment.append([each.view for each in batches], places)
    return position - (places[0].position if places else position)


@dataclass
class DryRun(CleaningCounts):
    """The result that a cleaning of all sealed segments would have, found without a change and without the log's node
    (F22). Producers that the node still knows may keep some more batches, without records.
    """

    path: str = ""
    segments: int = 0
    keys: int = 0
    # The map covers the records below this offset.
    end_offset: int = 0


def dry_run(
    disk: Disk, directory: str, *, map_bytes: int, delete_retention_ms: int, timestamp_ms: int, secret: bytes
) -> DryRun:
    """Reads the sealed segments of the log in the directory. Raises CorruptRecord and StorageError."""
    names = [each for each in disk.list(directory) if each.endswith(LOG_SUFFIX)][:-1]
    files = [SegmentFile(LogFiles(disk, directory), int(PurePosixPath(each).stem)) for each in names]
    hasher = KeyHasher(secret)
    builder = MapBuilder(hasher, OffsetMap(map_bytes, map_bytes), 0)
    is_full = False
    for file in files:
        for batches in chunks(file, disk.size(file.path)):
            is_full = is_full or not builder.put(batches)
    builder.offsets.seal()
    horizon = Horizon(0, builder.end_offset, timestamp_ms, delete_retention_ms)
    counts = CleaningCounts()
    kept = KeptRecords(hasher, builder.offsets, horizon, frozenset(), builder.unreadable, counts)
    for file in files:
        position, end = 0, disk.size(file.path)
        for batches in chunks(file, end):
            position += sum(each.size_bytes for each in batches)
            kept.of(batches, batches[-1] if position == end else None)
    return DryRun(
        **asdict(counts), path=directory, segments=len(files), keys=builder.offsets.key_count,
        end_offset=builder.end_offset,
    )  # fmt: skip
