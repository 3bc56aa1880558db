"""Compaction of one log: the part that may be cleaned, the groups of segments that become one, and one cleaning
(F20-F26).

A job (`file_cleaning`), which may run in another process, reads and writes the files; the log is changed here, between
two of its steps.

Invariants:
- Offsets never change. After each step the log is as it was, or holds the new segment.
- A log that is truncated, closed or given up during the cleaning is left alone, and the files written aside are
  removed.
- A swap that has begun ends before anything else is decided, unless a truncation ends it. Only a log that is not here
  any more, or has failed, keeps a swap; the next opening of the log ends it (`finish_swaps`).

Kafka: `Cleaner.clean`, `Cleaner.groupSegmentsBySize`, `LogCleanerManager.grabFilthiestCompactedLog`,
`cleanableOffsets`, `LogToClean`.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from math import inf
from typing import NamedTuple

from rayka.cleaner.file_cleaning import (
    CleaningAborted,
    CleaningSettings,
    Copied,
    FileCleaning,
    FilePlan,
    MapBuilt,
    SegmentGroup,
    SegmentPlan,
    Step,
)
from rayka.cleaner.kept_records import CleaningCounts
from rayka.config.topic_config import TopicConfig
from rayka.errors import ApiError, CorruptRecord, InvariantBroken, StorageError
from rayka.ids import NO_TIMESTAMP
from rayka.log.log import Log
from rayka.log.segment import MAX_RELATIVE_OFFSET, Segment
from rayka.ports import JobDied, Slice

# ---- Groups (F22) ----------------------------------------------------------------------------------------------
#
# One turn of the event loop looks at all segments of a group and removes their files, so their number is bounded; Kafka
# has no such bound. Many small segments make several groups, and the next cleaning joins those.

SEGMENTS_MAX = 25


def grouped(segments: Sequence[Segment], config: TopicConfig) -> Iterator[list[Segment]]:
    """Groups of consecutive segments that together fit one segment by bytes, size of indexes and offsets, at most 25
    each. Each group is looked for when it is asked for.
    """
    group: list[Segment] = []
    size_bytes = index_bytes = 0
    for segment in segments:
        own_index_bytes = segment.indexes.size_bytes
        size_bytes += segment.size_bytes
        index_bytes += own_index_bytes
        fits = (
            len(group) < SEGMENTS_MAX
            and size_bytes <= config.segment_bytes
            and index_bytes <= config.segment_index_bytes
            and segment.next_offset - (group or [segment])[0].base_offset <= MAX_RELATIVE_OFFSET
        )
        if group and not fits:
            yield group
            group, size_bytes, index_bytes = [], segment.size_bytes, own_index_bytes
        group.append(segment)
    if group:
        yield group


# ---- The part that may be cleaned (F20) ------------------------------------------------------------------------


# The default of `max.compaction.lag.ms`.
_UNLIMITED_MS = 2**63 - 1


class Cleanable(NamedTuple):
    """The part of a log that may be cleaned: [first_dirty_offset, end_offset), with whole segments at the end.

    Never cleaned: the active segment, records above the high watermark, unsynced records, and records younger than
    `min.compaction.lag.ms`. A log is due when the share of its never cleaned bytes exceeds `min.cleanable.dirty.ratio`,
    or when its oldest such record is older than `max.compaction.lag.ms`.
    """

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        """The never cleaned share of the bytes that may be cleaned, 0 to 1."""
        total_bytes = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total_bytes if total_bytes else 0.0

    def is_due(self, config: TopicConfig) -> bool:
        """Whether the log is worth a cleaning now."""
        if not self.cleanable_bytes:
            return False
        return self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio


def cleanable(log: Log, high_watermark: int, timestamp_ms: int) -> Cleanable:
    """The part of the log that may be cleaned at this time of the wall clock."""
    segments = log.segments.all
    first_dirty_offset = max(log.cleaned_offset, log.log_start_offset, segments[0].base_offset)
    if first_dirty_offset > log.log_end_offset:
        first_dirty_offset = log.log_start_offset
    clean = [each for each in segments[:-1] if each.next_offset <= first_dirty_offset]
    bound = min(high_watermark, log.flushed_offset)
    lag_ms = log.config.min_compaction_lag_ms
    dirty = _before(segments[len(clean) : -1], bound, timestamp_ms - lag_ms if lag_ms else inf)
    return Cleanable(
        first_dirty_offset=first_dirty_offset,
        end_offset=dirty[-1].next_offset if dirty else first_dirty_offset,
        clean_bytes=sum(each.size_bytes for each in clean),
        cleanable_bytes=sum(each.size_bytes for each in dirty),
        is_overdue=_is_overdue(dirty, timestamp_ms, log.config.max_compaction_lag_ms),
    )


def _is_overdue(dirty: Sequence[Segment], timestamp_ms: int, max_lag_ms: int) -> bool:
    """Whether a segment begins with a batch older than the lag. A segment without timestamps does not count; a damaged
    one is reported when it is cleaned.
    """
    if max_lag_ms >= _UNLIMITED_MS:
        return False
    for segment in dirty:
        with suppress(CorruptRecord):
            first_ms = segment.first_timestamp_ms
            if first_ms != NO_TIMESTAMP and timestamp_ms - first_ms > max_lag_ms:
                return True
    return False


def _before(segments: Sequence[Segment], bound: int, newest_ms: float) -> list[Segment]:
    """The first segments that lie wholly below the bound and are old enough."""

    def may_be_cleaned(segment: Segment) -> bool:
        return segment.next_offset <= bound and segment.indexes.largest.timestamp_ms <= newest_ms

    return list(takewhile(may_be_cleaned, segments))


class SyncNeeded(NamedTuple):
    """Files and directories that the driver makes durable before it goes on; an error of the sync ends the cleaning.
    With directories a swap is under way, and a failed sync is the last one of the log's directory (F13).
    """

    files: tuple[str, ...]
    directories: tuple[str, ...]


Turns = Generator[Slice | SyncNeeded, None, SegmentGroup | None]


class CleaningFailed(Exception):
    """The job ended with an unforeseen error."""


Failure = CleaningAborted | CleaningFailed | ApiError | StorageError | JobDied
FAILURES = (CleaningAborted, CleaningFailed, ApiError, StorageError, JobDied)


class Compaction:
    """One cleaning of one log. Asks after each step whether the cleaning `is_wanted`, and whether the log `is_here`,
    its files under the names that the log knows.

    Its driver runs `job`, makes the turns of `on_step` for each of its steps, calls `on_failed` when an error of
    `FAILURES` ends it, and `finish` at its end.
    """

    def __init__(
        self, log: Log, part: Cleanable, settings: CleaningSettings, *, is_wanted: Callable[[], bool],
        is_here: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._log = log
        self._part = part
        self._is_wanted = is_wanted
        self._is_here = is_here
        self._truncation_count = log.truncation_count
        # The dirty segments, then the group that is being copied.
        self._current: Sequence[Segment] = [
            each
            for each in log.segments.all[:-1]
            if each.next_offset > part.first_dirty_offset and each.base_offset < part.end_offset
        ]
        self._groups: Iterator[Sequence[Segment]] = iter(())
        # The copy of the group, not part of the log yet.
        self._aside: Segment | None = None
        self.directory = log.directory
        self.counts = CleaningCounts()
        # The map covers the records below this offset.
        self.end_offset = part.first_dirty_offset
        self.key_count = 0
        plan = FilePlan(
            log.directory,
            _plans(self._current),
            part.first_dirty_offset,
            part.end_offset,
            log.config.delete_retention_ms,
            log.config.index_interval_bytes,
        )
        self.job = FileCleaning(plan, settings)

    def __repr__(self) -> str:
        return f"<Compaction of {self._log.name} {self._part!r} keys={self.key_count}>"

    @property
    def copied_bytes(self) -> int:
        """The size of the segments that are being copied; 0 without any."""
        return 0 if self._aside is None else sum(each.size_bytes for each in self._current)

    def on_step(self, step: Step) -> Turns:
        """The work before the job goes on, in turns, and then the answer to the job. Raises CleaningAborted and errors
        of the disk.
        """
        if isinstance(step, Slice):
            self._check(self._current if self._aside is not None else ())
            yield step
            return None
        self._check_open()
        if isinstance(step, MapBuilt):
            self.end_offset, self.key_count = step.end_offset, step.key_count
            below = [each for each in self._log.segments.all[:-1] if each.base_offset < self.end_offset]
            self._groups = grouped(below, self._log.config)
        else:
            yield from self._swap(step)
        return self._next_group()

    def on_failed(self, error: Failure) -> Exception:
        """Removes the files written aside. Returns the error to report: CleaningAborted if the log has changed, which
        the job cannot know.
        """
        # Another log may have the name of a log that is not here any more.
        if self._aside is not None and self._is_here():
            # Files that stay go when the log opens.
            with suppress(StorageError):
                self._aside.delete()
        # The swap met the error.
        if error is self._log.failure:
            return error
        try:
            self._check(self._current)
        except CleaningAborted as aborted:
            return aborted
        return error

    def finish(self) -> None:
        """Marks the log as clean up to the end of the map. Raises CleaningAborted."""
        self._check(())
        self._log.cleaned_offset = self.end_offset

    def _next_group(self) -> SegmentGroup | None:
        group = next(self._groups, None)
        if group is None:
            return None
        self._check(group)
        self._current = group
        self._aside = self._log.replacements.new_segment(group[0], self._log.config.index_interval_bytes)
        return SegmentGroup(_plans(group), _needed_ends(self._log, group))

    # ---- Checks --------------------------------------------------------------------------------------------

    def _check(self, segments: Sequence[Segment]) -> None:
        """Raises CleaningAborted if the log has changed during a pause: it is not wanted or not here any more, was
        truncated, or has lost these segments.
        """
        self._check_open()
        if self._log.truncation_count != self._truncation_count:
            raise CleaningAborted(f"{self._log.name} was truncated")
        if segments and not self._log.segments.have(segments):
            raise CleaningAborted(f"segments of {self._log.name} were removed")

    def _check_open(self) -> None:
        if self._log.failure is not None or not self._is_here() or not self._is_wanted():
            raise CleaningAborted(f"{self._log.name} is not to be cleaned any more")

    # ---- The swap ------------------------------------------------------------------------------------------

    def _swap(self, step: Copied) -> Generator[SyncNeeded, None, None]:
        """Puts the copy in the place of its group."""
        group, new, directory = self._current, self._aside, (self._log.directory,)
        if new is None:
            raise InvariantBroken(f"{self!r} has no group that is copied")
        self.counts = step.counts
        self._check(group)
        yield SyncNeeded((new.path, *new.indexes.paths), ())
        self._check(group)
        new.open_sealed(group[-1].next_offset)
        replacements = self._log.replacements
        replacements.swap_in(group, new)
        self._current, self._aside = (), None
        for act in (replacements.remove_old, replacements.end):
            yield SyncNeeded((), directory)
            if not self._is_here():
                raise CleaningAborted(f"{self._log.name} is gone")
            act()
        yield SyncNeeded((), directory)


def _plans(segments: Sequence[Segment]) -> list[SegmentPlan]:
    return [SegmentPlan(each.base_offset, each.next_offset, each.size_bytes) for each in segments]


def _needed_ends(log: Log, group: Sequence[Segment]) -> frozenset[tuple[int, int]]:
    """The ends of the batches in the group by which producers are recognised (C2, F25). There may be a hundred thousand
    producers, most of them without a batch in the group.
    """
    begin, end = group[0].base_offset, group[-1].next_offset
    return frozenset(
        (producer_id, batch.last_offset)
        for producer_id, entry in log.producers.items()
        if entry.batches[-1].last_offset >= begin and entry.batches[0].last_offset < end
        for batch in entry.batches
        if begin <= batch.last_offset < end
    )
