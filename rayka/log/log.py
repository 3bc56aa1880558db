"""The log of one partition: batches in offset order, in segments, with indexes by offset and time and a lineage of
epochs.

Invariants:
- log_start_offset <= log_end_offset and flushed_offset <= log_end_offset.
- The last segment is the active one.
- Offsets rise without gaps, except for the gaps that compaction made.
- A power cut loses nothing below flushed_offset; the end of the process loses nothing below log_end_offset.
- A change that fails half way is the last change: the files behind the log end offset are unknown, so the log is only
  read until it is opened again and recovered.
- A new log has no files before its first record. An empty directory says no more than no directory, and thousands of
  partitions are made at once.

Kafka: `UnifiedLog`, `LocalLog` (F4-F6, F10, F11, G4-G6, B18, B20, B21, B30-B32, C2-C10). Left out: transactions, tiered
storage. `rayka.cleaner` decides what compaction keeps, `retention` what expires.
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
    """Whole batches, byte for byte as in the log, and the offset to continue at."""

    records: bytes
    next_offset: int


class PrefixCopy(NamedTuple):
    """A copy that a truncation needs: the part of a file that stays. The first three fields are arguments of
    `Disk.copy_prefix`.
    """

    source: str
    target: str
    size_bytes: int
    # The truncations and replacements of the log so far; a copy from before another one is not used.
    change_count: int


class _Change:
    """A block that changes the log. A change that fails half way is the last one. A change that `makes_room` is allowed
    while a full disk refuses the others.
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
    """Whether the log refuses every change, also those that make room: the log failed for good, or is being opened
    again.
    """
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
        # A new configuration counts from the next append on.
        self.config = config
        self.segments = segments
        self.producers = snapshots.states
        self.directory = files.directory
        # `orders-3`
        self.name = posixpath.basename(files.directory)
        # Why the log takes no more changes; None while it takes them.
        self.failure: StorageError | None = None
        self.truncation_count = 0
        # Another object is being opened from the files, so they must not change.
        self.is_reopened = False
        # Compaction has seen every record below this offset.
        self.cleaned_offset = 0
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
        """The offset of the next record."""
        return self.segments.active.next_offset

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch, or -1."""
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
        """Gives the batches offsets and the epoch, and appends them in one write (B18). The batches are validated
        already, except for their sequences. A batch with a producer id comes alone (C1); a duplicate is not appended
        (C3).

        Raises RecordBatchTooLarge and the errors of `ProducerStates.check`, with nothing written; and StorageError,
        which fails the log.
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
        """Appends several requests as `append_as_leader` does, in their order, almost always in one write. An error of
        a request is the outcome of that request. `batch_bytes_max`: the limit of a batch, by default `segment.bytes`.
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
        """Appends batches that have offsets and epochs already. Offsets may leave a gap before the first batch and
        never go back (B18). A batch that was written before `segment.bytes` was lowered gets a larger segment.

        Raises CorruptRecord when offsets go back, and the errors of `append_as_leader`.
        """
        placed = placed_by_follower(self.name, batches, self.log_end_offset)
        with _Change(self):
            self._appender.append(placed, self.config, now_ms)

    def make_files(self) -> None:
        """Makes the directory of the log, whether there is a record or not."""
        with _Change(self):
            self._appender.make_files()

    def roll(self, now_ms: int) -> None:
        """Seals the active segment, unless it is empty, and begins another at the log end offset."""
        if self.segments.active.size_bytes:
            with _Change(self):
                self._appender.roll(self.log_end_offset, self.config, now_ms)

    # ---- Epochs --------------------------------------------------------------------------------------------

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Begins a leader epoch, perhaps without a record yet (B16, B20). Durable once a sync plan made now is done,
        except in a log that never had a record.
        """
        with _Change(self):
            self.epochs.assign(epoch, start_offset)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The largest known epoch at or below this one, and its end offset; (-1, -1) when undefined (B21)."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    # ---- Reading -------------------------------------------------------------------------------------------

    def read(self, offset: int, *, max_bytes: int, end_offset: int, min_one_batch: bool = True) -> LogRead:
        """Reads whole batches of one segment, from the batch that contains `offset` to the last one that ends before
        `end_offset` (G4-G6).

        `min_one_batch` returns the first batch even if it is larger than `max_bytes`. The reader checks CRCs. Raises
        OffsetOutOfRange outside [log_start_offset, log_end_offset] (G3).
        """
        for segment, span in self.spans(offset, max_bytes, end_offset, min_one_batch):
            return LogRead(segment.read(span), span.next_offset)
        return LogRead(b"", offset)

    def spans(
        self, offset: int, max_bytes: int, end_offset: int, min_one: bool
    ) -> Iterator[tuple[Segment, Span]]:
        """The spans of consecutive segments that together make one read, for `segment.fetch_data`. Raises as `read`."""
        log_end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end_offset:
            raise OffsetOutOfRange(
                f"{self.name}: offset {offset} is outside [{self.log_start_offset}, {log_end_offset}]"
            )
        return self.segments.spans(offset, max_bytes, min(end_offset, log_end_offset), min_one)

    # ---- Truncating, at the end and at the start ------------------------------------------------------------

    def truncate_to(self, offset: int, copied: PrefixCopy | None = None) -> PrefixCopy | None:
        """Removes the batch that contains the offset and all batches after it; readers keep their maps. Returns None
        when that is done. Else nothing has changed, and the caller makes the copy returned and calls again with the
        same offset and that copy.

        The log then ends after the last batch that lies wholly below the offset. An epoch that began there without a
        record is forgotten even when the log was no longer than that: another leader never had the epoch (B20).
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
        needed = None
        if place is not None:
            needed = PrefixCopy(*place, self.truncation_count + self.replacements.count)
        if needed is not None and needed != copied:
            return needed
        with self._truncating(offset):
            self.segments.truncate_to(offset, is_copied=needed is not None)
            self._snapshots.on_truncated(self.segments)
        return None

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Removes all records and continues, empty, at the offset (B25)."""
        self.replacements.end_behind(self.segments.first.base_offset)
        with self._truncating(self.segments.first.base_offset):
            self._appender.make_files()
            self._files.write({**lowered_recovery_point(0), **raised_log_start(offset)})
            # Before the segments go: a killed process leaves no snapshot of records that are gone.
            self._snapshots.on_cleared()
            self.segments.replace_all(offset, self.config)
            self.log_start_offset = offset
            self.epochs.clear()

    def increment_log_start_offset(self, offset: int) -> None:
        """Raises the log start offset. Records below it are no longer readable, whether they are durable or not; whole
        segments below it are removed (A51), at most one turn's worth now and the rest by `remove_below_start`. A lower
        offset is ignored.

        The offset is durable with the directory's next checkpoint. Until then a crash restores the start of the first
        segment, so the epochs behind it stay known. Raises as `remove_below_start`.
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
        """Removes segments wholly below the log start offset, oldest first and at most one turn's worth; True if any
        went. Their files are only renamed: `retired` lists them.

        The removal makes room, so it works while a full disk has stopped appends. Raises PassingStorageError when the
        disk refuses the first step, with nothing changed; a StorageError of a later step fails the log until it is
        opened again.
        """
        if _is_closed(self):
            raise StorageError(f"{self.name} cannot start later: {self.failure or 'it is opened again'}")
        try:
            is_shorter = self.retired.retire_below(self.log_start_offset)
            # Superfluous epochs on the disk are harmless.
            with suppress(PassingStorageError):
                self.epochs.truncate_from_start(self.segments.first.base_offset)
        except StorageError as error:
            if self.retired.is_half_way or not isinstance(error, PassingStorageError):
                self.failure = error
            raise
        return is_shorter

    @contextmanager
    def _truncating(self, offset: int) -> Iterator[None]:
        """Lowers the recovery point on disk first: the checkpoint may be higher, and the records appended next are
        unsynced.

        1. The checkpoint says 100.
        2. The log is truncated to 50, appended to 120 and rolled in between.
        3. Power is lost, and the first segment's tail with it.
        4. A scan from 100 would miss the hole.

        The file's name is in the directory of the segments, so a power cut never takes it before theirs.
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
        """The plan for `Disk.sync` and then `on_synced` that makes everything durable; or the epochs alone. The begin
        of a leader's epoch must be durable at once, the records before it need not be (B20).
        """
        unsynced = self._files.unsynced
        if epochs_only:
            return unsynced.plan_of(self.epochs.path, self.flushed_offset, self.truncation_count)
        return unsynced.plan(self.log_end_offset, self.truncation_count)

    def on_synced(self, plan: SyncPlan) -> None:
        """The plan was synced. A plan from before a truncation says nothing about offsets."""
        self._files.unsynced.on_synced(plan)
        if plan.truncation == self.truncation_count:
            self.flushed_offset = max(self.flushed_offset, plan.up_to_offset)

    def on_recovery_point_saved(self, offset: int) -> None:
        """The checkpoint durably has this recovery point. Removes the lower one that a truncation wrote, unless that
        truncation ended half way.
        """
        path = self._files.path(LOWERED_RECOVERY_POINT_FILE)
        if self.failure is None and offset <= self.flushed_offset and self._disk.exists(path):
            self._disk.unlink(path)

    # ---- Copies --------------------------------------------------------------------------------------------

    def take_over(self, other: "Log") -> None:
        """Takes epochs and producers from `other`, whose records this log holds up to its end. `other` also knows
        epochs that began without a record, and producers whose records are gone (C8).
        """
        with _Change(self):
            self.epochs.replace(other.epochs.entries)
            self.producers.clear()
            self.producers.replace(dict(other.producers.items()))
            self._snapshots.take_last(self.log_end_offset)

    def move_to(self, directory: str) -> None:
        """Renames the directory of the log, durably once a sync plan made now is done. Readers keep their maps."""
        with _Change(self):
            self._files.move_to(directory)
            self.segments.on_moved()
            self.directory, self.name = directory, posixpath.basename(directory)
            self.producers.name = self.name

    # ---- End -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Writes the active segment's indexes and the producers' state. The shutdown is clean once the plan of
        `unsynced` is synced.
        """
        if self.failure is None and not self._files.are_awaited:
            self.segments.active.indexes.write()
            self._snapshots.take_last(self.log_end_offset)
