"""Recovery: finds the segments of a log on disk and, after an unclean shutdown, how much of them is whole (B31, B32).

Recovery scans the segments from the one that contains the recovery point, checks structure and CRC of every batch, and
rebuilds indexes and leader epochs. What happens to a batch that is not whole depends on the bytes behind it and on what
may have broken it (`damage`):

- A torn tail: no whole batch behind it, not below the recovery point, and either its bytes end early or the power was
  cut. Recovery cuts it off: it removes later segments, newest first, and cuts the file in place. No reader was given a
  batch that is not whole, and a power cut ended all readers. The cut takes no room, for the disk may be full. A crash
  in the middle is recovered from again.
- A batch that a truncation in place had taken off and a power cut brought back: its epoch is earlier than that of the
  batch before it, or than `leader-epoch-checkpoint` has at its offset. Recovery cuts it off, and keeps the bytes as in
  the next case.
- Whole batches behind it, and a power cut may have torn the log anywhere: recovery cuts them off, too, but keeps the
  bytes as `<segment>.log.cut`, which Rayka neither reads nor removes.
- Bit rot in all other cases: nothing is cut. The batch stays in its place, and readers find it broken. If its header
  does not lead to the next batch, DamagedLog is raised.

A segment that ends before the next one begins is a hole, scanned or not (`damage`). The segments behind a hole are cut
off if a power cut can have made it; otherwise the log is not opened.

Base offset and leader epoch lie outside the CRC, as in Kafka; recovery checks only their order. Kafka: `LogLoader`,
which cuts in every case.
"""

import logging
import posixpath
import re
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from crc32c import crc32c

from rayka.config.topic_config import TopicConfig
from rayka.errors import CorruptRecord, DamagedLog, InvariantBroken
from rayka.ids import NO_EPOCH
from rayka.log.damage import (
    DamagedBatch,
    batch_at,
    check_sealed,
    find_batch,
    hole,
    is_hole,
    is_in_place,
    is_whole_at,
)
from rayka.log.leader_epoch_cache import LeaderEpochCache
from rayka.log.local_disk import TEMPORARY_SUFFIX
from rayka.log.log_files import SLICE_BATCHES, SLICE_BYTES, LogFiles, Slices
from rayka.log.segment import DELETED_SUFFIX, MAX_RELATIVE_OFFSET, Segment
from rayka.log.segment_file import LOG_SUFFIX, SCANNED, BatchPosition
from rayka.log.segment_removal import finish_swaps
from rayka.ports import Disk
from rayka.protocol.batch_format import CRC_START, HEADER_BYTES, LENGTH_FIELD_END, MAGIC

_LEFTOVER_SUFFIXES = (DELETED_SUFFIX, TEMPORARY_SUFFIX)
_SEGMENT_FILE = re.compile(r"\d{20}(\.log|\.index|\.timeindex)")
# No record has so large an offset.
_BEYOND_ALL = (1 << 63) - 1
_logger = logging.getLogger(__name__)


class Tearing(Enum):
    """What the end of the last process may have done to a log."""

    NOTHING = "it was shut down cleanly, everything synced"
    SHORT_TAIL = "a killed process tears only its last write, which then ends early"
    TAIL = "a power cut tears what was not synced: the last write, where each is synced before the next"
    ANYWHERE = "a power cut tears what was not synced, and pages reach the disk in any order"


POWER_CUTS = (Tearing.TAIL, Tearing.ANYWHERE)


class Cut(NamedTuple):
    """The bytes that recovery took off one file."""

    path: str
    # The next batch should have been at this offset and position.
    offset: int
    position: int
    cut_bytes: int


class Recovery(NamedTuple):
    """What recovery did while the log was opened."""

    scanned_bytes: int = 0
    cut: Cut | None = None
    damaged: tuple[DamagedBatch, ...] = ()
    # The `.cut` files that it made.
    kept_paths: tuple[str, ...] = ()


def find_segments(files: LogFiles, config: TopicConfig, now_ms: int) -> list[Segment]:
    """The segments in the directory, by offset, not yet opened. Finishes swaps that a crash broke off (F26); removes
    leftovers and orphan indexes (B32).
    """
    finish_swaps(files, config.index_interval_bytes)
    names = files.disk.list(files.directory)
    logs = [name for name in names if _SEGMENT_FILE.fullmatch(name) and name.endswith(LOG_SUFFIX)]
    for name in names:
        is_orphan = _SEGMENT_FILE.fullmatch(name) and posixpath.splitext(name)[0] + LOG_SUFFIX not in logs
        if is_orphan or name.endswith(_LEFTOVER_SUFFIXES):
            files.disk.unlink(posixpath.join(files.directory, name))
    segments = [
        Segment(files, int(name[:20]), created_ms=now_ms, index_interval_bytes=config.index_interval_bytes)
        for name in logs
    ]
    for segment in segments:
        segment.on_found()
    return segments


def has_segments(disk: Disk, directory: str) -> bool:
    """Whether the directory exists and has a segment's file."""
    names = disk.list(directory) if disk.exists(directory) else []
    return any(_SEGMENT_FILE.fullmatch(name) and name.endswith(LOG_SUFFIX) for name in names)


def open_segments(
    segments: list[Segment],
    files: LogFiles,
    epochs: LeaderEpochCache,
    *,
    scan_from: int | None,
    synced_offset: int,
    tearing: Tearing,
) -> Slices[Recovery]:
    """Opens the segments of `find_segments`, by slices. Segments that recovery cuts off leave the list.

    `scan_from` is the recovery point; None stands for a clean shutdown: nothing is scanned, unless the last segment
    turns out broken. A segment that ends exactly there is scanned, too: its indexes may be unsynced. Segments below are
    only asked for their ends. Records below `synced_offset` cannot be torn. Raises DamagedLog.
    """
    for segment, following in pairwise(segments):
        segment.open_sealed(following.base_offset)
    if not segments:
        return Recovery()
    if scan_from is None:
        try:
            segments[-1].open_active()
        except CorruptRecord as error:
            _logger.warning("%s: shut down cleanly, yet: %s", files.directory, error)
            scan_from = segments[-1].base_offset
        else:
            check_sealed(segments)
            return Recovery()
    first = _number_of(segments, scan_from)
    check_sealed(segments[: first + 1])
    return (yield from _Scan(segments, files, epochs, synced_offset, tearing).run(first))


def _number_of(segments: list[Segment], offset: int) -> int:
    """The last segment that begins below the offset, or the first one."""
    return max((number for number, each in enumerate(segments) if each.base_offset < offset), default=0)


class _Scan:
    """One recovery under way."""

    def __init__(
        self, segments: list[Segment], files: LogFiles, epochs: LeaderEpochCache, synced_offset: int,
        tearing: Tearing,
    ) -> None:  # fmt: skip
        self._segments = segments
        self._disk = files.disk
        self._unsynced = files.unsynced
        self._epochs = epochs
        # Everything below this offset was synced, so nothing can have torn it.
        self._synced_offset = synced_offset
        self._tearing = tearing
        # The epoch of the last batch noted.
        self._last_epoch = NO_EPOCH
        self._damaged: list[DamagedBatch] = []

    def run(self, first: int) -> Slices[Recovery]:
        scanned_bytes, unsynced = 0, _number_of(self._segments, self._synced_offset)
        for number in range(first, len(self._segments)):
            segment = self._segments[number]
            view = self._disk.map(segment.path)
            scanned_bytes += len(view)
            is_whole = yield from self._scan(number, view)
            self._unsynced.file_replaced(segment.path)
            if not is_whole:
                cut, kept = self._cut(number, view)
                return Recovery(scanned_bytes, cut, tuple(self._damaged), kept)
            if number + 1 < len(self._segments):
                segment.next_offset = self._segments[number + 1].base_offset
                # A synced segment was read for its epochs alone, and keeps its indexes.
                if number < unsynced:
                    segment.indexes.use_files()
                else:
                    segment.indexes.write()
                    segment.indexes.drop()
                yield
        return Recovery(scanned_bytes, damaged=tuple(self._damaged))

    def _scan(self, number: int, view: memoryview) -> Slices[bool]:
        """Scans the segment. False if everything behind its `size_bytes` must be cut off."""
        segment = self._segments[number]
        is_last = number + 1 == len(self._segments)
        end_offset = None if is_last else self._segments[number + 1].base_offset
        segment.reset()
        while True:
            if self._note_whole_batches(segment, view, end_offset):
                yield
                continue
            if segment.size_bytes == len(view):
                return self._is_complete(number)
            may_cut = self._may_cut(number, view)
            if may_cut and self._tearing in POWER_CUTS:
                return False
            if is_in_place(view, segment.size_bytes, segment.next_offset, end_offset):
                self._leave(segment, view)
            elif may_cut:
                return False
            else:
                raise _damaged_log(segment, view)

    def _note_whole_batches(self, segment: Segment, view: memoryview, end_offset: int | None) -> bool:
        """Notes whole batches from the segment's end on, until one is not whole or goes back in epochs. True if the
        slice is over first.

        Written flat: it runs once for each batch of the log, and the CRC should be most of its work.
        """
        size_bytes = len(view)
        max_offset = segment.base_offset + MAX_RELATIVE_OFFSET if end_offset is None else end_offset - 1
        position = segment.size_bytes
        epochs, rising_from = self._epochs, self._rising_from
        slice_end = position + SLICE_BYTES
        for _ in range(SLICE_BATCHES):
            if position >= slice_end:
                break
            if position + HEADER_BYTES > size_bytes:
                return False
            base_offset, length, epoch, magic, crc, _, last_delta, max_timestamp_ms = SCANNED.unpack_from(
                view, position
            )
            stop = position + LENGTH_FIELD_END + length
            if magic != MAGIC or not position + HEADER_BYTES <= stop <= size_bytes:
                return False
            if base_offset < segment.next_offset or not 0 <= last_delta <= max_offset - base_offset:
                return False
            if crc32c(view[position + CRC_START : stop]) != crc:
                return False
            if epoch > epochs.latest_epoch:
                epochs.assign(epoch, base_offset)
            elif (
                epoch < epochs.latest_epoch
                and segment.next_offset >= rising_from
                and epoch < max(self._last_epoch, epochs.epoch_of(base_offset))
            ):
                return False
            self._last_epoch = epoch
            segment.note(
                BatchPosition(
                    position, stop - position, base_offset, base_offset + last_delta, max_timestamp_ms
                )
            )
            position = stop
        return True

    @property
    def _rising_from(self) -> int:
        """From this offset on, a batch of an earlier epoch than had begun there counts as cut off.

        1. A truncation in place takes off batches that were never synced.
        2. A later epoch begins, and new batches may be appended.
        3. Power is lost before the file system's journal has the cut, and the file keeps its old size.
        4. Where the log ended, an old batch begins: whole, its offsets in order, and of records that no leader has.
        """
        return self._synced_offset if self._tearing in POWER_CUTS else _BEYOND_ALL

    def _is_complete(self, number: int) -> bool:
        """Whether the next segment begins where this one ends; False if the segments behind the hole must be cut off.
        Raises DamagedLog for a hole that no power cut made.
        """
        segment, following = self._segments[number], self._segments[number + 1 : number + 2]
        if not following or not is_hole(segment.next_offset, following[0]):
            return True
        may_be_torn = self._tearing is Tearing.ANYWHERE or self._is_end(number)
        if may_be_torn and segment.next_offset >= self._synced_offset:
            return False
        raise hole(segment, segment.next_offset, following[0])

    def _may_cut(self, number: int, view: memoryview) -> bool:
        """Whether the broken bytes at the segment's end can be a torn write."""
        segment = self._segments[number]
        if segment.next_offset < self._synced_offset:
            return False
        batch = batch_at(view, segment.size_bytes) if segment.next_offset >= self._rising_from else None
        if batch is not None:
            newest_epoch = max(self._last_epoch, self._epochs.epoch_of(batch.base_offset))
            if batch.leader_epoch < newest_epoch:
                return True
        is_last = number + 1 == len(self._segments)
        is_tail = (is_last or self._is_end(number)) and _whole_behind(segment, view) is None
        return is_tail or self._tearing is Tearing.ANYWHERE

    def _is_end(self, number: int) -> bool:
        """Whether a power cut can have torn this segment's last write although there are later segments. True if no
        later segment holds a batch: the log was rolled before that write was synced, and nothing followed.
        """
        return self._tearing is Tearing.TAIL and all(
            find_batch(content, 0, len(content), each.base_offset) is None
            for each in self._segments[number + 1 :]
            for content in [self._disk.map(each.path)]
        )

    def _leave(self, segment: Segment, view: memoryview) -> None:
        """Steps over a broken batch, of which only the header is used."""
        batch = batch_at(view, segment.size_bytes)
        if batch is None:
            raise InvariantBroken(f"{segment!r} lost its first batch while it was read")
        found = DamagedBatch(segment.path, segment.size_bytes, batch.base_offset, batch.last_offset)
        self._damaged.append(found)
        _logger.error(
            "%s: the batch at position %d, offsets %d to %d, is damaged and stays there; its readers get"
            " CorruptRecord and may seek past it",
            *found,
        )
        if batch.leader_epoch > self._epochs.latest_epoch:
            self._epochs.assign(batch.leader_epoch, batch.base_offset)
        segment.note(
            BatchPosition(
                found.position, batch.size_bytes, batch.base_offset, batch.last_offset, batch.max_timestamp_ms
            )
        )

    def _cut(self, number: int, view: memoryview) -> tuple[Cut, tuple[str, ...]]:
        """Takes off everything from the segment's end on. Later segments go first, so the log on disk never has a
        hole.
        """
        segment, kept = self._segments[number], list[str]()
        while len(self._segments) > number + 1:
            later = self._segments.pop()
            content = self._disk.map(later.path)
            if find_batch(content, 0, len(content), later.base_offset) is not None:
                kept.append(later.file.set_aside())
            later.delete()
            _logger.warning("removed %s: a batch before it is broken", later.path)
        if _whole_behind(segment, view) is not None:
            kept.append(segment.file.copy_aside(view[segment.size_bytes :]))
        cut = Cut(segment.path, segment.next_offset, segment.size_bytes, len(view) - segment.size_bytes)
        segment.file.cut(segment.size_bytes)
        _logger.warning(
            "cut %d bytes off %s: no whole batch at offset %d, position %d%s",
            cut.cut_bytes, cut.path, cut.offset, cut.position,
            f"; whole batches behind it are kept in {', '.join(kept)}" if kept else "",
        )  # fmt: skip
        return cut, tuple(kept)


def _whole_behind(segment: Segment, view: memoryview) -> int | None:
    """The position of a whole batch in this file, at the damage or behind it."""
    if is_whole_at(view, segment.size_bytes):
        # The batch is whole, and its offsets do not follow.
        return segment.size_bytes
    return find_batch(view, segment.size_bytes, len(view), segment.next_offset)


def _damaged_log(segment: Segment, view: memoryview) -> DamagedLog:
    position, behind = segment.size_bytes, _whole_behind(segment, view)
    found = bytes(view[position : position + LENGTH_FIELD_END + 5]).hex(" ")
    return DamagedLog(
        f"{segment.path}: expected a batch from offset {segment.next_offset} on at position {position}, found"
        f" {found or 'the end of the file'}. This is damage and no torn write, because "
        + ("it was synced or has later segments" if behind is None else f"a whole batch stands at {behind}")
        + "; so nothing was cut. Restore the file from a copy; or, to give up what it holds from there on, cut"
        f" it to {position} bytes; then restart the node"
    )
