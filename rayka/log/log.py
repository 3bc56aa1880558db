"""The log of one partition: batches in offset order, in segments, with indexes by offset and time and a
lineage of epochs.

Invariants: neither log_start_offset nor flushed_offset is above log_end_offset; the last segment is the active one;
offsets rise and, but for gaps that compaction made, have none missing; nothing below flushed_offset is lost to a power
cut, nothing below log_end_offset to the end of the process. A change that fails half way is the last one: what it left
behind the log end offset is unknown, so the log only reads on, and opening it again recovers it. A new log has no files
before its first record: an empty directory says no more than none, and thousands of partitions are made at once.

Kafka: `UnifiedLog`, `LocalLog` (F4-F6, F10, F11, G4-G6, B18, B20, B21, B30-B32, C2-C10). Left out: transactions, tiered
storage; what compaction keeps is decided in `rayka.cleaner`, what expires in `retention`.
"""

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import NamedTuple

from rayka.config.topic_config import TopicConfig
from rayka.errors import InvariantBroken, OffsetOutOfRange, PassingStorageError, StorageError
from rayka.ids import OffsetAndEpoch
from rayka.log.appending import (
    Appender,
    AppendInfo,
    AppendOutcome,
    LeaderRun,
    placed_by_follower,
    runs_without_repeats,
)
from rayka.log.checkpoint_files import LOWERED_RECOVERY_POINT_FILE, lowered_recovery_point, raised_log_start
from rayka.log.leader_epoch_cache import LeaderEpochCache
from rayka.log.log_files import LogFiles, SyncPlan
from rayka.log.producer_state import ProducerSnapshots
from rayka.log.recovery import Recovery
from rayka.log.segment import Segment, Span
from rayka.log.segment_removal import Replacements, RetiredSegments
from rayka.log.segments import Segments
from rayka.protocol.batch_format import RecordBatch

NOTHING_DONE = Recovery()


class LogRead(NamedTuple):
    """Whole batches as they stand in the log, and where to continue."""

    records: bytes
    next_offset: int


class PrefixCopy(NamedTuple):
    """A copy that a truncation needs of the part of a file that stays: arguments of `Disk.copy_prefix`, and which
    truncation of the log it is for.
    """

    source: str
    target: str
    size_bytes: int
    truncation: int


class _Change:
    """The block is a change of the log: after one that failed half way, there is no other. One that `makes_room` is
    made also while a full disk has stopped the others.
    """

    __slots__ = ("_log", "_makes_room")

    def __init__(self, log: "Log", *, makes_room: bool = False) -> None:
        self._log = log
        self._makes_room = makes_room

    def __enter__(self) -> None:
        failure = self._log.failure
        if failure is not None and (not self._makes_room or _is_closed(self._log)):
            until = failure.until if isinstance(failure, PassingStorageError) else "its node restarts"
            raise type(failure)(f"{self._log.name} takes no appends until {until}: {failure}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, StorageError):
            self._log.failure = error


def _is_closed(log: "Log") -> bool:
    """Whether the log takes no change at all, not even one that makes room: it failed for good, or is opened again."""
    is_failed = log.failure is not None and not isinstance(log.failure, PassingStorageError)
    return is_failed or log.is_reopened


class Log:
    """One partition's log in one directory."""

    def __init__(
        self, files: LogFiles, config: TopicConfig, epochs: LeaderEpochCache, segments: Segments,
        snapshots: ProducerSnapshots, *, log_start_offset: int, flushed_offset: int, recovery: Recovery = NOTHING_DONE,
    ) -> None:  # fmt: skip
        self._files = files
        self._disk = files.disk
        self.epochs = epochs
        self._snapshots = snapshots
        self._appender = Appender(files, segments, epochs, snapshots)
        self.config = config  # counts from the next append on
        self.segments = segments
        self.producers = snapshots.states
        self.directory = files.directory
        self.name = posixpath.basename(files.directory)  # `orders-3`
        self.failure: StorageError | None = None  # why it takes no more changes; None while it does
        self.truncation_count = 0
        self.is_reopened = False  # from the files, so these do not change meanwhile
        self.cleaned_offset = 0  # below it compaction has seen everything
        self.replacements = Replacements(
            files, segments, snapshots, partial(_Change, self), partial(_Change, self, makes_room=True)
        )
        self.retired = RetiredSegments(files, segments, snapshots, self.replacements)
        self.log_start_offset = log_start_offset
        self.flushed_offset = flushed_offset
        self.recovery = recovery

    def __repr__(self) -> str:
        state = "" if self.failure is None else " failed"
        return (
            f"<Log {self.name} start={self.log_start_offset} flushed={self.flushed_offset}"
            f" leo={self.log_end_offset} epoch={self.latest_epoch} segments={len(self.segments)}{state}>"
        )

    # ---- State ---------------------------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.segments.active.next_offset

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch assigned, or -1."""
        return self.epochs.latest_epoch

    # ---- Appending -----------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        batches: Sequence[RecordBatch],
        leader_epoch: int,
        *,
        now_ms: int,
        log_append_time_ms: int | None = None,
    ) -> AppendInfo:
        """Gives the batches their offsets and the epoch and appends them, in one write (B18). They are valid
        already, but for their sequences. One with a producer id comes alone (C1); if it is here already, nothing is
        appended (C3).

        Raises RecordBatchTooLarge and what `ProducerStates.check` raises, with nothing written, and StorageError,
        after which nothing can be appended.
        """
        (outcome,) = self.append_all_as_leader(
            (batches,), leader_epoch, now_ms=now_ms, log_append_time_ms=log_append_time_ms
        )
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def append_all_as_leader(
        self,
        requests: Sequence[Sequence[RecordBatch]],
        leader_epoch: int,
        *,
        now_ms: int,
        log_append_time_ms: int | None = None,
        batch_bytes_max: int | None = None,
    ) -> list[AppendOutcome]:
        """As `append_as_leader` for each of several requests, in their order, almost always in one write. What that
        would raise is the request's outcome. `batch_bytes_max`: how large a batch may be, by default `segment.bytes`.
        """
        outcomes: list[AppendOutcome] = []
        for run_requests in runs_without_repeats(requests):
            run = LeaderRun(self.producers, self.log_end_offset, leader_epoch, log_append_time_ms)
            for batches in run_requests:
                run.add(batches, self.config.segment_bytes if batch_bytes_max is None else batch_bytes_max)
            try:
                if run.placed:
                    with _Change(self):
                        self._appender.append(run.placed, self.config, now_ms)
            except StorageError as error:
                run.fail(error)
            outcomes += run.outcomes
        return outcomes

    def append_as_follower(self, batches: Sequence[RecordBatch], *, now_ms: int) -> None:
        """Appends batches that have offsets and epochs. The first may leave a gap, none may go back (B18). One from
        before `segment.bytes` was lowered gets a segment that is larger.

        Raises CorruptRecord when offsets go back; otherwise as `append_as_leader`.
        """
        placed = placed_by_follower(self.name, batches, self.log_end_offset)
        with _Change(self):
            self._appender.append(placed, self.config, now_ms)

    def make_files(self) -> None:
        """The log has its directory from now on, whether there is a record or not."""
        with _Change(self):
            self._appender.make_files()

    def roll(self, now_ms: int) -> None:
        """Seals the active segment and begins another at the log end offset; an empty one stays as it is."""
        if self.segments.active.size_bytes:
            with _Change(self):
                self._appender.roll(self.log_end_offset, self.config, now_ms)

    # ---- Epochs --------------------------------------------------------------------------------------------

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """A leader epoch begins, perhaps without a record yet (B16, B20). Durable once a sync plan made now
        is, except in a log that never had a record.
        """
        with _Change(self):
            self.epochs.assign(epoch, start_offset)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The largest epoch known at or below this one, and its end offset; (-1, -1) when undefined (B21)."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    # ---- Reading -------------------------------------------------------------------------------------------

    def read(self, offset: int, *, max_bytes: int, end_offset: int, min_one_batch: bool = True) -> LogRead:
        """Whole batches of one segment from the one that contains the offset, none reaching `end_offset`
        (G4-G6).

        With `min_one_batch` the first is given even if it is larger than max_bytes. CRCs are the reader's
        business. Raises OffsetOutOfRange outside [log_start_offset, log_end_offset] (G3).
        """
        for segment, span in self.spans(offset, max_bytes, end_offset, min_one_batch):
            return LogRead(segment.read(span), span.next_offset)
        return LogRead(b"", offset)

    def spans(
        self, offset: int, max_bytes: int, end_offset: int, min_one: bool
    ) -> Iterator[tuple[Segment, Span]]:
        """The spans that together make one read, of consecutive segments, for `rayka.log.segment`."""
        log_end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end_offset:
            raise OffsetOutOfRange(
                f"{self.name}: offset {offset} is outside [{self.log_start_offset}, {log_end_offset}]"
            )
        return self.segments.spans(offset, max_bytes, min(end_offset, log_end_offset), min_one)

    # ---- Truncating, at the end and at the start ------------------------------------------------------------

    def truncate_to(self, offset: int, copied: PrefixCopy | None = None) -> PrefixCopy | None:
        """Removes the batch that contains the offset and all after it; readers keep what they mapped. None when that is
        done. Otherwise nothing has changed: this is to be copied first, and given here with the same offset.

        The log then ends after the last batch that lies wholly below the offset. An epoch that began there without
        a record is forgotten even when the log is no longer than that: another leader never had it (B20).
        """
        if offset >= self.log_end_offset:
            with _Change(self):
                self.epochs.truncate_from_end(self.log_end_offset)
            return None
        if offset < self.segments.first.base_offset:
            self.truncate_fully_and_start_at(offset)
            return None
        self.replacements.end_behind(offset)
        place = self.segments.prefix_to_copy(offset, self.flushed_offset)
        change_count = self.truncation_count + self.replacements.count
        needed = None if place is None else PrefixCopy(*place, change_count)
        if needed is not None and needed != copied:
            return needed
        with self._truncating(offset):
            self.segments.truncate_to(offset, is_copied=needed is not None)
            self._snapshots.on_truncated(self.segments)
        return None

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Removes everything; the log is empty and goes on at the offset (B25)."""
        self.replacements.end_behind(self.segments.first.base_offset)
        with self._truncating(self.segments.first.base_offset):
            self._appender.make_files()
            self._files.write({**lowered_recovery_point(0), **raised_log_start(offset)})
            self._snapshots.on_cleared()  # before the segments go: a killed process leaves none that is about them
            self.segments.replace_all(offset, self.config)
            self.log_start_offset = offset
            self.epochs.clear()

    def increment_log_start_offset(self, offset: int) -> None:
        """Whatever lies below the offset is not needed any more, durable or not: it is not read, and segments wholly
        below it are removed (A51), if there are many by `remove_below_start`. The offset lasts once the directory's
        checkpoint has it; until then a crash lets the log start at its first segment again, so all epochs from there on
        stay known. One that is not higher changes nothing. Raises as `remove_below_start`.
        """
        if offset <= self.log_start_offset:
            return
        if offset > self.log_end_offset:
            raise InvariantBroken(f"{self!r} cannot start at {offset}")
        before, self.log_start_offset = self.log_start_offset, offset
        try:
            self.remove_below_start()
        except StorageError:
            self.log_start_offset = max(before, self.segments.first.base_offset)
            raise

    def remove_below_start(self) -> bool:
        """Removes segments wholly below the log start offset, oldest first and so many as one turn of an event loop
        takes; whether any went. Their files are renamed, and `retired` has them. Raises PassingStorageError, with
        nothing changed, and other StorageErrors, which fail the log.
        """
        with self._shortening():
            is_shorter = self.retired.retire_below(self.log_start_offset)
            # More epochs on the disk than there need be are harmless.
            with suppress(PassingStorageError):
                self.epochs.truncate_from_start(self.segments.first.base_offset)
            return is_shorter

    @contextmanager
    def _shortening(self) -> Iterator[None]:
        """Within the block the log's start changes. The change makes room, so a full disk that has stopped appends does
        not stop the change. A disk that refuses the first step leaves all as it was; one that refuses a later step
        stops the log until it is opened again.
        """
        if _is_closed(self):
            raise StorageError(f"{self.name} cannot start later: {self.failure or 'it is opened again'}")
        try:
            yield
        except StorageError as error:
            if self.retired.is_half_way or not isinstance(error, PassingStorageError):
                self.failure = error
            raise

    @contextmanager
    def _truncating(self, offset: int) -> Iterator[None]:
        """Lowers the recovery point on disk first: the checkpoint may be higher, and what follows is unsynced.

        1. The checkpoint says 100. 2. The log is truncated to 50, appended to 120 and rolled in between.
        3. Power is lost, and the first segment's tail with it. 4. A scan from 100 would miss the hole.
        The name of this file is in the directory of the segments, so it is never lost before theirs.
        """
        with _Change(self):
            self.truncation_count += 1
            if offset < self.flushed_offset:
                self._files.write(lowered_recovery_point(self.segments.holding(offset).base_offset))
            yield
            self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
            self.flushed_offset = max(self.log_start_offset, min(self.flushed_offset, self.log_end_offset))
            self.epochs.truncate_from_end(self.log_end_offset)
            self.cleaned_offset = min(self.cleaned_offset, self.log_end_offset)

    # ---- Durability ----------------------------------------------------------------------------------------

    def unsynced(self, *, epochs_only: bool = False) -> SyncPlan:
        """What to hand to `Disk.sync`, and then to `on_synced`, so that everything up to now is durable; or the epochs
        alone: where a leader's epoch begins must be durable, and not at once what comes before it (B20).
        """
        unsynced = self._files.unsynced
        if epochs_only:
            return unsynced.plan_of(self.epochs.path, self.flushed_offset, self.truncation_count)
        return unsynced.plan(self.log_end_offset, self.truncation_count)

    def on_synced(self, plan: SyncPlan) -> None:
        """The plan was synced. One made before a truncation says nothing about the offsets after it."""
        self._files.unsynced.on_synced(plan)
        if plan.truncation == self.truncation_count:
            self.flushed_offset = max(self.flushed_offset, plan.up_to_offset)

    def on_recovery_point_saved(self, offset: int) -> None:
        """The data directory's checkpoint durably says this: a lower point written by a truncation is
        obsolete, unless that one ended half way.
        """
        path = self._files.path(LOWERED_RECOVERY_POINT_FILE)
        if self.failure is None and offset <= self.flushed_offset and self._disk.exists(path):
            self._disk.unlink(path)

    # ---- Copies --------------------------------------------------------------------------------------------

    def take_over(self, other: "Log") -> None:
        """This log holds the records of the other one, up to its end; now it also knows which epochs began without a
        record, and of producers whose records are gone (C8).
        """
        with _Change(self):
            self.epochs.replace(other.epochs.entries)
            self.producers.clear()
            self.producers.replace(dict(other.producers.items()))
            self._snapshots.take_last(self.log_end_offset)

    def move_to(self, directory: str) -> None:
        """Renames the directory of the log; durable once a sync plan made now is. Readers keep what they mapped."""
        with _Change(self):
            self._files.move_to(directory)
            self.segments.on_moved()
            self.directory, self.name = directory, posixpath.basename(directory)
            self.producers.name = self.name

    # ---- End -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Writes the active segment's indexes and the producers' state. Clean once the plan that `unsynced` gives now
        is synced.
        """
        if self.failure is None and not self._files.are_awaited:
            self.segments.active.indexes.write()
            self._snapshots.take_last(self.log_end_offset)
