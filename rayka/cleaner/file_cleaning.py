"""What a cleaning does with files: reads them, finds what stays, writes that aside (F21-F25).

A job, so that the real disk can run it in a process of its own: it knows paths and numbers, not the log, and pickles.
The log's broker drives it by its answers (`Compaction.on_step`) and alone changes the log. A crash of it, or its end,
leaves files that no log reads. Kafka: `Cleaner.buildOffsetMap`, `Cleaner.cleanInto`.
"""

from collections.abc import Generator, Sequence
from typing import NamedTuple

from rayka.cleaner.kept_records import CleaningCounts, Horizon, KeptRecords
from rayka.cleaner.key_hashes import KeyHasher
from rayka.cleaner.map_builder import MapBuilder
from rayka.cleaner.offset_map import OffsetMap
from rayka.cleaner.segment_chunks import chunks
from rayka.log.log_files import LogFiles
from rayka.log.segment import MAX_RELATIVE_OFFSET, Segment
from rayka.log.segment_file import BatchPosition, SegmentFile
from rayka.log.swap import CLEANED_SUFFIX
from rayka.ports import Disk, Slice
from rayka.protocol.batch_format import RecordBatch


class CleaningAborted(Exception):
    """The log has changed under the cleaning, or is not to be cleaned any more; nothing is wrong."""


class CleaningSettings(NamedTuple):
    """What a cleaning needs besides its log. The secret is random, 16 bytes or more (`key_hashes`)."""

    map_bytes: int
    timestamp_ms: int
    secret: bytes


class SegmentPlan(NamedTuple):
    """A sealed segment, by its file."""

    base_offset: int
    next_offset: int
    size_bytes: int


class GroupPlan(NamedTuple):
    """Segments that become one, and the ends of the batches by which producers are recognised (C2, F25)."""

    segments: Sequence[SegmentPlan]
    needed_ends: frozenset[tuple[int, int]]


class FilePlan(NamedTuple):
    """The log's directory, and what of it is dirty: [first_dirty_offset, end_offset)."""

    directory: str
    dirty: Sequence[SegmentPlan]
    first_dirty_offset: int
    end_offset: int
    delete_retention_ms: int
    index_interval_bytes: int


class MapBuilt(NamedTuple):
    """The map has the newest offsets up to here. The answer: the first group, or None."""

    end_offset: int
    key_count: int


class Copied(NamedTuple):
    """What stays of the group is in files with the suffix `.cleaned`, not synced. The answer: the next group, or
    None.
    """

    counts: CleaningCounts


Step = Slice | MapBuilt | Copied
Steps = Generator[Step, GroupPlan | None, None]


class FileCleaning:
    """The job of one cleaning."""

    def __init__(self, plan: FilePlan, settings: CleaningSettings) -> None:
        self._plan = plan
        self._settings = settings

    def __repr__(self) -> str:
        plan = self._plan
        return f"<FileCleaning {plan.directory} {plan.first_dirty_offset}..{plan.end_offset}>"

    def run(self, disk: Disk) -> Steps:
        """All of it. Raises CleaningAborted, CorruptRecord and what the disk fails with."""
        plan, settings = self._plan, self._settings
        offsets = OffsetMap(settings.map_bytes, plan.end_offset - plan.first_dirty_offset)
        try:
            yield from self._clean(LogFiles(disk, plan.directory), offsets)
        finally:
            offsets.release()

    def _clean(self, files: LogFiles, offsets: OffsetMap) -> Steps:
        plan, settings = self._plan, self._settings
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
        new.delete()  # a part of it may be left of a cleaning that was broken off
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
    """How many bytes were written."""
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
