"""One cleaning of one log: the map of its newest offsets, then its segments anew, group by group (F21-F26).

The files are the business of a job (`file_cleaning`), which may run elsewhere; the log is changed here, between two of
its steps. Invariants: offsets never change; the log is as it was, or holds the new segment, after each step; a log that
is truncated, closed or given up meanwhile is left alone, and what was written aside is removed. A swap that has begun
ends before anything else is decided, unless a truncation ends it: only a log that is not here any more or has failed
keeps one, for what opens it next to end (`finish_swaps`). Kafka: `Cleaner.clean`.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from rayka.cleaner.cleanable import Cleanable
from rayka.cleaner.file_cleaning import (
    CleaningAborted,
    CleaningSettings,
    Copied,
    FileCleaning,
    FilePlan,
    GroupPlan,
    MapBuilt,
    SegmentPlan,
    Step,
)
from rayka.cleaner.kept_records import CleaningCounts
from rayka.cleaner.segment_groups import grouped
from rayka.errors import ApiError, InvariantBroken, StorageError
from rayka.log.log import Log
from rayka.log.segment import Segment
from rayka.ports import JobDied, Slice


class SyncNeeded(NamedTuple):
    """The driver makes these durable before it goes on; what it raises ends the cleaning. Where directories are among
    them a swap is under way, and a sync that fails is the last one of the log's directory (F13).
    """

    files: tuple[str, ...]
    directories: tuple[str, ...]


Turns = Generator[Slice | SyncNeeded, None, GroupPlan | None]


class CleaningFailed(Exception):
    """The job ended with an error that was not foreseen."""


Failure = CleaningAborted | CleaningFailed | ApiError | StorageError | JobDied
FAILURES = (CleaningAborted, CleaningFailed, ApiError, StorageError, JobDied)


class Compaction:
    """One cleaning. After each step it asks whether it `is_wanted`, and whether the log `is_here`, its files under the
    names that the log knows.

    Its driver runs `job` and makes the turns of `on_step` for each of its steps, `on_failed` when one of `FAILURES`
    ends it, `finish` at its end.
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
        # The dirty ones, then the group that is copied.
        self._current: Sequence[Segment] = [
            each
            for each in log.segments.all[:-1]
            if each.next_offset > part.first_dirty_offset and each.base_offset < part.end_offset
        ]
        self._groups: Iterator[Sequence[Segment]] = iter(())
        self._aside: Segment | None = None
        self.directory = log.directory
        self.counts = CleaningCounts()
        self.end_offset = part.first_dirty_offset  # how far the map reaches
        self.key_count = 0
        self.job = FileCleaning(self._file_plan(), settings)

    def __repr__(self) -> str:
        return f"<Compaction of {self._log.name} {self._part!r} keys={self.key_count}>"

    @property
    def copied_bytes(self) -> int:
        """How large the segments are that are copied now; 0 while there are none."""
        return 0 if self._aside is None else sum(each.size_bytes for each in self._current)

    def on_step(self, step: Step) -> Turns:
        """What is to be done before the job goes on, and the answer to it. Raises CleaningAborted and what the disk
        fails with.
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
        """Removes what was written aside. Returns what the failure comes to: CleaningAborted where the log has changed
        meanwhile, for the job does not know of that.
        """
        # Of a log that is not here any more another one may have the name.
        if self._aside is not None and self._is_here():
            with suppress(StorageError):  # what is left of it goes when the log opens
                self._aside.delete()
        if error is self._log.failure:  # met in the swap
            return error
        try:
            self._check(self._current)
        except CleaningAborted as aborted:
            return aborted
        return error

    def finish(self) -> None:
        """The log is clean as far as the map reached. Raises CleaningAborted."""
        self._check(())
        self._log.cleaned_offset = self.end_offset

    # ---- Plans ---------------------------------------------------------------------------------------------

    def _file_plan(self) -> FilePlan:
        part, config = self._part, self._log.config
        return FilePlan(
            self._log.directory,
            _plans(self._current),
            part.first_dirty_offset,
            part.end_offset,
            config.delete_retention_ms,
            config.index_interval_bytes,
        )

    def _next_group(self) -> GroupPlan | None:
        group = next(self._groups, None)
        if group is None:
            return None
        self._check(group)
        self._current = group
        self._aside = self._log.swaps.new_segment(group[0], self._log.config.index_interval_bytes)
        return GroupPlan(_plans(group), _needed_ends(self._log, group))

    # ---- Checks --------------------------------------------------------------------------------------------

    def _check(self, segments: Sequence[Segment]) -> None:
        """After each pause: raises CleaningAborted when the log is not the one that the cleaning began with, or does
        not have these segments any more.
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
        """The copy of the group takes its place."""
        group, new, directory = self._current, self._aside, (self._log.directory,)
        if new is None:
            raise InvariantBroken(f"{self!r} has no group that is copied")
        self.counts = step.counts
        self._check(group)
        yield SyncNeeded((new.path, *new.indexes.paths), ())
        self._check(group)
        new.open_sealed(group[-1].next_offset)
        swaps = self._log.swaps
        swaps.swap_in(group, new)
        self._current, self._aside = (), None
        for act in (swaps.remove_old, swaps.end):
            yield SyncNeeded((), directory)
            if not self._is_here():
                raise CleaningAborted(f"{self._log.name} is gone")
            act()
        yield SyncNeeded((), directory)


def _plans(segments: Sequence[Segment]) -> list[SegmentPlan]:
    return [SegmentPlan(each.base_offset, each.next_offset, each.size_bytes) for each in segments]


def _needed_ends(log: Log, group: Sequence[Segment]) -> frozenset[tuple[int, int]]:
    """The ends of those batches of the group by which producers are recognised (C2, F25). There may be a hundred
    thousand producers, of which most have nothing in it.
    """
    begin, end = group[0].base_offset, group[-1].next_offset
    return frozenset(
        (producer_id, batch.last_offset)
        for producer_id, entry in log.producers.items()
        if entry.batches[-1].last_offset >= begin and entry.batches[0].last_offset < end
        for batch in entry.batches
        if begin <= batch.last_offset < end
    )
