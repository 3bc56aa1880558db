"""Finding the segments of a log on disk, and after an unclean shutdown finding out how much of them is whole
(B31, B32).

Recovery scans the segments from the one that contains the recovery point, checks structure and CRC of every
batch, rebuilds indexes and leader epochs, and at the first batch that is not whole cuts the log: later
segments are removed, newest first, then the segment gets a new inode with the kept prefix. A crash in the
middle of that is recovered from again. What was cut is logged and reported. Base offset and leader epoch lie
outside the CRC, as in Kafka; of them only the order is checked. Kafka: `LogLoader`. Left out: `.swap` files,
which only the cleaner makes.
"""

import logging
import posixpath
import re
from itertools import pairwise
from typing import NamedTuple

from crc32c import crc32c

from rayka.config import TopicConfig
from rayka.errors import CorruptRecord
from rayka.log.disk import TEMPORARY_SUFFIX
from rayka.log.leader_epoch_cache import LeaderEpochCache
from rayka.log.segment import (
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    SCANNED,
    BatchPosition,
    Segment,
    SegmentFiles,
)
from rayka.protocol.batch_header import CRC_START, HEADER_BYTES, LENGTH_FIELD_END, MAGIC

_LEFTOVER_SUFFIXES = (".deleted", ".cleaned", TEMPORARY_SUFFIX)
_SEGMENT_FILE = re.compile(r"\d{20}(\.log|\.index|\.timeindex)")
_logger = logging.getLogger(__name__)


class Cut(NamedTuple):
    """What recovery took off one file: everything from this position, where the batch at this offset should
    be.
    """

    path: str
    offset: int
    position: int
    cut_bytes: int


class Recovery(NamedTuple):
    """What opening a log had to do."""

    scanned_bytes: int = 0
    cut: Cut | None = None
    removed_paths: tuple[str, ...] = ()


def find_segments(files: SegmentFiles, config: TopicConfig, now_ms: int) -> list[Segment]:
    """The segments in the directory, by offset, not yet opened. Leftovers and orphan indexes are removed
    (B32).
    """
    names = files.disk.list(files.directory)
    logs = [name for name in names if _SEGMENT_FILE.fullmatch(name) and name.endswith(LOG_SUFFIX)]
    for name in names:
        is_orphan = _SEGMENT_FILE.fullmatch(name) and posixpath.splitext(name)[0] + LOG_SUFFIX not in logs
        if is_orphan or name.endswith(_LEFTOVER_SUFFIXES):
            files.disk.unlink(posixpath.join(files.directory, name))
    return [
        Segment(files, int(name[:20]), created_ms=now_ms, index_interval_bytes=config.index_interval_bytes)
        for name in logs
    ]


def open_segments(
    segments: list[Segment], files: SegmentFiles, epochs: LeaderEpochCache, recovery_point: int | None
) -> Recovery:
    """Opens what `find_segments` found; what recovery cuts off is dropped from the list too.

    `recovery_point` None stands for a clean shutdown: nothing is scanned, unless the last segment turns out
    broken. A segment that ends exactly at the recovery point is scanned too: its indexes may not have been
    synced.
    """
    for segment, following in pairwise(segments):
        segment.open_sealed(following.base_offset)
    if not segments:
        return Recovery()
    if recovery_point is None:
        try:
            segments[-1].open_active()
        except CorruptRecord as error:
            _logger.warning("%s: shut down cleanly, yet: %s", files.directory, error)
            recovery_point = segments[-1].base_offset
        else:
            return Recovery()
    first = max(
        (number for number, each in enumerate(segments) if each.base_offset < recovery_point), default=0
    )
    return _recover(segments, first, files, epochs)


def _recover(segments: list[Segment], first: int, files: SegmentFiles, epochs: LeaderEpochCache) -> Recovery:
    scanned_bytes = 0
    for number in range(first, len(segments)):
        segment = segments[number]
        limit = segments[number + 1].base_offset if number + 1 < len(segments) else None
        size_bytes = _scan(segment, files, epochs, limit)
        scanned_bytes += size_bytes
        files.unsynced.file_replaced(segment.path)
        if segment.size_bytes < size_bytes:
            removed = _remove_after(segments, number)
            return Recovery(scanned_bytes, _cut(segment, size_bytes), removed)
        if limit is not None:
            segment.next_offset = limit
            segment.write_indexes()
            segment.drop_indexes()
    return Recovery(scanned_bytes)


def _scan(segment: Segment, files: SegmentFiles, epochs: LeaderEpochCache, limit: int | None) -> int:
    """Notes every whole batch from the begin on, and ends before the first that is not; returns the file's
    size.

    Written flat: it runs once for each batch of the log, and the CRC should be most of what it does.
    """
    view = files.disk.map(segment.path)
    size_bytes = len(view)
    segment.reset()
    max_offset = segment.base_offset + MAX_RELATIVE_OFFSET if limit is None else limit - 1
    position = 0
    while position + HEADER_BYTES <= size_bytes:
        base_offset, length, epoch, magic, crc, _, last_delta, max_timestamp_ms = SCANNED.unpack_from(
            view, position
        )
        stop = position + LENGTH_FIELD_END + length
        if magic != MAGIC or not position + HEADER_BYTES <= stop <= size_bytes:
            break
        if base_offset < segment.next_offset or not 0 <= last_delta <= max_offset - base_offset:
            break
        if crc32c(view[position + CRC_START : stop]) != crc:
            break
        if epoch > epochs.latest_epoch:
            epochs.assign(epoch, base_offset)
        segment.note(
            BatchPosition(position, stop - position, base_offset, base_offset + last_delta, max_timestamp_ms)
        )
        position = stop
    return size_bytes


def _remove_after(segments: list[Segment], number: int) -> tuple[str, ...]:
    """Removes the later segments, newest first: at any moment the log on disk has no hole."""
    removed = []
    while len(segments) > number + 1:
        segment = segments.pop()
        segment.delete()
        removed.append(segment.path)
        _logger.warning("removed %s: a batch before it is broken", segment.path)
    return tuple(removed)


def _cut(segment: Segment, size_bytes: int) -> Cut:
    cut = Cut(segment.path, segment.next_offset, segment.size_bytes, size_bytes - segment.size_bytes)
    segment.cut_file(segment.size_bytes)
    _logger.warning(
        "cut %d bytes off %s: no whole batch at offset %d, position %d",
        cut.cut_bytes, cut.path, cut.offset, cut.position,
    )  # fmt: skip
    return cut
