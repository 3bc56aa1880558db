"""What a cleaning of a log would keep, found without a change and without the log's node (F22)."""

from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

from rayka.cleaner.kept_records import CleaningCounts, Horizon, KeptRecords
from rayka.cleaner.key_hashes import KeyHasher
from rayka.cleaner.map_builder import MapBuilder
from rayka.cleaner.offset_map import OffsetMap
from rayka.cleaner.segment_chunks import chunks
from rayka.log.log_files import LogFiles
from rayka.log.segment_file import LOG_SUFFIX, SegmentFile
from rayka.ports import Disk


@dataclass
class DryRun(CleaningCounts):
    """What a cleaning of all sealed segments would come to. Producers that the node still knows may keep some batches
    more, without records.
    """

    path: str = ""
    segments: int = 0
    keys: int = 0
    end_offset: int = 0  # how far the map reaches


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
