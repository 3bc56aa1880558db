"""The log of one partition: batches in offset order, in segments, with indexes by offset and time and a
lineage of epochs.

Invariants: neither log_start_offset nor flushed_offset is above log_end_offset; the last segment is the active one;
offsets rise and, but for gaps that compaction made, have none missing; nothing below flushed_offset is lost to a power
cut, nothing below log_end_offset to the end of the process. A change that fails half way is the last one: what it left
behind the log end offset is unknown, so the log only reads on, and opening it again recovers it. A new log has no files
before its first record: an empty directory says no more than none, and thousands of partitions are made at once.

Kafka: `UnifiedLog`, `LocalLog` (F4-F6, F10, G4-G6, B18, B20, B21, B30-B32, C2-C10). Left out: retention by size and
time, compaction, transactions, tiered storage.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple

from rayka.config import TopicConfig
from rayka.errors import (
    DamagedLog,
    DiskFull,
    InvariantBroken,
    OffsetNotAvailable,
    OffsetOutOfRange,
    StorageError,
)
from rayka.ids import NO_OFFSET, OffsetAndEpoch
from rayka.log.appending import (
    Appender,
    AppendInfo,
    PlacedBatch,
    check_sizes,
    placed_by_follower,
    placed_by_leader,
)
from rayka.log.holes import check_begin
from rayka.log.leader_epoch_cache import EpochStart, LeaderEpochCache
from rayka.log.markers import (
    LOWERED_RECOVERY_POINT_FILE,
    lowered_recovery_point,
    raised_log_start,
    read_lowered_recovery_point,
    read_raised_log_start,
)
from rayka.log.producer_snapshots import ProducerSnapshots
from rayka.log.producer_state import ProducerStates
from rayka.log.recovery import Recovery, Suspect, Tearing, find_segments, open_segments
from rayka.log.segment import Segment, SegmentFiles, Span
from rayka.log.segments import Segments, created_segment, planned_segment
from rayka.log.slices import Slices, run_to_end
from rayka.log.time_lookup import Search, TimestampAndOffset, first_in_log, largest_in_log
from rayka.log.unsynced import SyncPlan, Unsynced
from rayka.ports import Disk
from rayka.protocol.batch_header import RecordBatch
from rayka.protocol.fetch import FileRange

NO_FILES: Mapping[str, bytes] = MappingProxyType({})


class LogRead(NamedTuple):
    """Whole batches as they stand in the log, and where to continue. `base_offset` is the first batch's, -1
    when empty.
    """

    records: bytes
    base_offset: int
    next_offset: int


class PrefixCopy(NamedTuple):
    """A copy that a truncation needs of the part of a file that stays: arguments of `Disk.copy_prefix`, and which
    truncation of the log it is for.
    """

    source: str
    target: str
    size_bytes: int
    truncation: int


class LocalRead(NamedTuple):
    """Where a reader on this machine finds whole batches, and where to continue."""

    ranges: tuple[FileRange, ...]
    next_offset: int


class Left(NamedTuple):
    """How a log was left: the first two come from the data directory's checkpoints."""

    recovery_point: int
    log_start_offset: int = 0
    tearing: Tearing = Tearing.SHORT_TAIL


class Log:
    """One partition's log in one directory."""

    def __init__(
        self,
        files: SegmentFiles,
        config: TopicConfig,
        epochs: LeaderEpochCache,
        segments: list[Segment],
        now_ms: int,
    ) -> None:
        self._files = files
        self._disk = files.disk
        self._config = config
        self._epochs = epochs
        self._segments = Segments(files, segments)
        self.producers = ProducerStates(posixpath.basename(files.directory), now_ms)
        self._snapshots = ProducerSnapshots(files, self.producers)
        self._appender = Appender(self._segments, epochs, self.producers, self._snapshots)
        self._failure: StorageError | None = None
        self._awaited_files: Mapping[str, bytes] | None = None
        self.truncation_count = 0
        self.directory = files.directory
        self.log_start_offset = segments[0].base_offset
        self.flushed_offset = self.log_start_offset
        self.recovery = Recovery()

    @classmethod
    def open(
        cls, disk: Disk, directory: str, config: TopicConfig, *,
        recovery_point: int, log_start_offset: int = 0, tearing: Tearing = Tearing.SHORT_TAIL, now_ms: int,
    ) -> "Log":  # fmt: skip
        """As `opening`, at once."""
        left = Left(recovery_point, log_start_offset, tearing)
        return run_to_end(cls.opening(disk, directory, config, left, now_ms=now_ms))

    @classmethod
    def opening(
        cls, disk: Disk, directory: str, config: TopicConfig, left: Left, *, now_ms: int,
        new_files: Mapping[str, bytes] = NO_FILES,
    ) -> Slices["Log"]:  # fmt: skip
        """The log in this directory, new if there is none, recovered as `left.tearing` asks for (B31, B32), by slices:
        a recovery reads all batches from the recovery point on.

        `new_files` are to stand beside the segments, by name, and are made with the first of
        them. What recovery did is in `recovery`. Raises DamagedLog when it would have to cut off what nothing
        can have torn, or when records that were synced are not there; StorageError when the disk fails.
        """
        recovery_point, log_start_offset, tearing = left
        files = SegmentFiles(disk, directory, Unsynced())
        epochs = LeaderEpochCache(disk, directory, files.unsynced)
        if not disk.exists(directory):
            epochs.defer()
            planned = planned_segment(files, config, log_start_offset, now_ms)
            log = cls(files, config, epochs, [planned], now_ms)
            log._awaited_files = new_files
            return log
        recovery_point = read_lowered_recovery_point(disk, directory, recovery_point)
        first_offset = read_raised_log_start(disk, directory)
        is_clean = tearing is Tearing.NOTHING
        scan_from = None if is_clean else recovery_point
        segments = find_segments(files, config, now_ms)
        if first_offset is not None:
            check_begin(segments, max(log_start_offset, first_offset))
        recovery = yield from open_segments(
            segments,
            files,
            epochs,
            scan_from=scan_from if epochs.load() else 0,
            suspect=Suspect(recovery_point, tearing),
        )
        is_new = not segments
        if is_new:
            first_offset = max(log_start_offset, first_offset or 0)
            segments.append(created_segment(files, config, first_offset, now_ms))
        log = cls(files, config, epochs, segments, now_ms)
        if log.log_end_offset < recovery_point and log_start_offset < recovery_point:
            raise DamagedLog(
                f"{directory} ends at offset {log.log_end_offset}, but was synced up to {recovery_point}: a file in"
                " it is missing or was shortened. Restore it from a copy; or, to go on without its records, make an"
                f" empty file {posixpath.join(directory, LOWERED_RECOVERY_POINT_FILE)}; then restart the node"
            )
        if first_offset is None:
            new_files = {**new_files, **raised_log_start(segments[0].base_offset)}
        log._write_files(new_files)
        yield from log._on_opened(
            recovery, None if is_clean and not is_new else recovery_point, log_start_offset
        )
        return log

    def _on_opened(
        self, recovery: Recovery, recovery_point: int | None, log_start_offset: int
    ) -> Slices[None]:
        self.recovery = recovery
        self.log_start_offset = max(log_start_offset, self._segments.first.base_offset)
        self._epochs.truncate_from_end(self.log_end_offset)
        if recovery_point is None:
            self.flushed_offset = self.log_end_offset
        else:
            self.flushed_offset = max(self.log_start_offset, min(recovery_point, self.log_end_offset))
            self._files.unsynced.name_changed(self.directory)
            self._epochs.touch()
        if recovery_point is None and recovery.scanned_bytes:
            recovery_point = self.log_end_offset  # shut down cleanly, and yet damaged
        yield from self._snapshots.open(
            self._segments, trusted_offset=recovery_point, damaged=recovery.damaged
        )
        if self.log_start_offset > self.log_end_offset:
            self.truncate_fully_and_start_at(self.log_start_offset)

    def _make_files(self) -> None:
        """The log gets its files. A crash on the way leaves a directory without records, which is no loss."""
        if self._awaited_files is None:
            return
        self._disk.make_directory(self.directory)
        self._files.unsynced.name_changed(self.directory)
        start = raised_log_start(self.log_start_offset) if self.log_start_offset else {}
        self._write_files({**self._awaited_files, **start})
        self._epochs.write_deferred()
        self._segments.active.create()
        self._awaited_files = None

    def _write_files(self, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            path = posixpath.join(self.directory, name)
            self._disk.write(path, content)
            self._files.unsynced.file_replaced(path)

    def __repr__(self) -> str:
        state = "" if self._failure is None else " failed"
        return (
            f"<Log {self.name} start={self.log_start_offset} flushed={self.flushed_offset}"
            f" leo={self.log_end_offset} epoch={self.latest_epoch} segments={len(self._segments)}{state}>"
        )

    # ---- State ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The directory's name, `orders-3`."""
        return posixpath.basename(self.directory)

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._segments.active.next_offset

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch assigned, or -1."""
        return self._epochs.latest_epoch

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    def size_from(self, offset: int) -> int:
        """Bytes of the batch that contains the offset and of all after it."""
        return self._segments.size_from(offset)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def failure(self) -> StorageError | None:
        """Why the log takes no more changes; None while it does."""
        return self._failure

    def update_config(self, config: TopicConfig) -> None:
        """Counts from the next append on."""
        self._config = config

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
        for batch in batches:
            known = self.producers.check(batch)
            if known is not None:
                return AppendInfo(
                    known.first_offset, known.last_offset, known.timestamp_ms, 0, is_duplicate=True
                )
        placed = placed_by_leader(batches, leader_epoch, self.log_end_offset, log_append_time_ms)
        check_sizes(self.name, placed, self._config.segment_bytes)
        return self._append(placed, now_ms)

    def append_as_follower(self, batches: Sequence[RecordBatch], *, now_ms: int) -> AppendInfo:
        """Appends batches that have offsets and epochs. The first may leave a gap, none may go back (B18). One from
        before `segment.bytes` was lowered gets a segment that is larger.

        Raises CorruptRecord when offsets go back; otherwise as `append_as_leader`.
        """
        return self._append(placed_by_follower(self.name, batches, self.log_end_offset), now_ms)

    def _append(self, placed: Sequence[PlacedBatch], now_ms: int) -> AppendInfo:
        if not placed:
            raise InvariantBroken("an append has at least one batch")
        with self._changing():
            self._make_files()
            return self._appender.append(placed, self._config, now_ms)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A change of the log: after one that failed half way, there is no other."""
        if self._failure is not None:
            until = "there is room" if isinstance(self._failure, DiskFull) else "its node restarts"
            raise type(self._failure)(f"{self.name} takes no appends until {until}: {self._failure}")
        try:
            yield
        except StorageError as error:
            self._failure = error
            raise

    def roll(self, now_ms: int) -> None:
        """Seals the active segment and begins another at the log end offset; an empty one stays as it is."""
        if self._segments.active.size_bytes:
            with self._changing():
                self._appender.roll(self.log_end_offset, self._config, now_ms)

    # ---- Epochs --------------------------------------------------------------------------------------------

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """A leader epoch begins, perhaps without a record yet (B16, B20). Durable once a sync plan made now
        is, except in a log that never had a record.
        """
        with self._changing():
            self._epochs.assign(epoch, start_offset)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The largest epoch known at or below this one, and its end offset; (-1, -1) when undefined (B21)."""
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch of an offset below the log end offset; -1 when it is not known."""
        return self._epochs.epoch_of(offset)

    @property
    def epoch_starts(self) -> Sequence[EpochStart]:
        """The leader epochs that are known, in their order, each with its first offset."""
        return self._epochs.entries

    # ---- Reading -------------------------------------------------------------------------------------------

    def read(self, offset: int, *, max_bytes: int, end_offset: int, min_one_batch: bool = True) -> LogRead:
        """Whole batches of one segment from the one that contains the offset, none reaching `end_offset`
        (G4-G6).

        With `min_one_batch` the first is given even if it is larger than max_bytes. CRCs are the reader's
        business. Raises OffsetOutOfRange outside [log_start_offset, log_end_offset] (G3).
        """
        for segment, span in self._spans(offset, max_bytes, end_offset, min_one_batch):
            records = segment.read(span)
            return LogRead(records, int.from_bytes(records[:8], "big"), span.next_offset)
        return LogRead(b"", NO_OFFSET, offset)

    def file_ranges(
        self, offset: int, *, max_bytes: int, end_offset: int, min_one_batch: bool = True
    ) -> LocalRead:
        """As `read`, over several segments, as places in files instead of bytes (design §3)."""
        ranges = []
        for segment, span in self._spans(offset, max_bytes, end_offset, min_one_batch):
            identity = self._disk.identity(segment.path)
            first = next(segment.batches(span.position))
            offset = span.next_offset
            segment.on_given(span)
            ranges.append(
                FileRange(
                    path=segment.path,
                    device=identity.device,
                    inode=identity.inode,
                    position=span.position,
                    size_bytes=span.stop - span.position,
                    base_offset=first.base_offset,
                )
            )
        return LocalRead(tuple(ranges), offset)

    def readable_bytes(self, offset: int, *, max_bytes: int, end_offset: int) -> int:
        """How many bytes `read` would find, at most max_bytes; whether there is one at all costs no look at a file.

        Raises OffsetOutOfRange as `read` does.
        """
        spans = self._spans(offset, max_bytes, end_offset, min_one=True)
        if max_bytes == 1:
            return int(offset < min(end_offset, self.log_end_offset))
        return min(max_bytes, sum(span.stop - span.position for _, span in spans))

    def _spans(
        self, offset: int, max_bytes: int, end_offset: int, min_one: bool
    ) -> Iterator[tuple[Segment, Span]]:
        """The spans that together make one read."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"{self.name}: offset {offset} is outside [{self.log_start_offset}, {self.log_end_offset}]"
            )
        return self._segments.spans(offset, max_bytes, min(end_offset, self.log_end_offset), min_one)

    def offset_for_timestamp(self, timestamp_ms: int, *, end_offset: int) -> Search:
        """The first record at or after a time, below `end_offset`; None when there is none (F6, G12). Raises
        OffsetNotAvailable when between two slices of the search something was removed.
        """
        search = first_in_log(self._segments, timestamp_ms, self.log_start_offset, end_offset)
        return self._while_nothing_goes(search)

    def max_timestamp(self, *, end_offset: int) -> Search:
        """The first record with the largest timestamp below `end_offset`; None when there is none (F6). Raises as
        `offset_for_timestamp`.
        """
        return self._while_nothing_goes(largest_in_log(self._segments, self.log_start_offset, end_offset))

    def _while_nothing_goes(self, search: Search) -> Search:
        start_offset, truncation_count = self.log_start_offset, self.truncation_count
        while True:
            yield  # before the first slice, too: a request may ask for thousands of logs
            if (self.log_start_offset, self.truncation_count) != (start_offset, truncation_count):
                raise OffsetNotAvailable(
                    f"{self.name}: records were removed during a search by time; try again"
                )
            try:
                next(search)
            except StopIteration as end:
                found: TimestampAndOffset | None = end.value
                return found

    # ---- Truncating, at the end and at the start ------------------------------------------------------------

    def truncate_to(self, offset: int, copied: PrefixCopy | None = None) -> PrefixCopy | None:
        """Removes the batch that contains the offset and all after it; readers keep what they mapped. None when that is
        done. Otherwise nothing has changed: this is to be copied first, and given here with the same offset.

        The log then ends after the last batch that lies wholly below the offset. An epoch that began there without
        a record is forgotten even when the log is no longer than that: another leader never had it (B20).
        """
        if offset >= self.log_end_offset:
            with self._changing():
                self._epochs.truncate_from_end(self.log_end_offset)
            return None
        if offset < self._segments.first.base_offset:
            self.truncate_fully_and_start_at(offset)
            return None
        needed = self._needed_copy(offset)
        if needed is not None and needed != copied:
            return needed
        with self._changing():
            self._before_truncation(offset)
            self._segments.remove_after(offset)
            self._segments.active.truncate_to(offset, is_copied=needed is not None)
            self._snapshots.on_truncated(self._segments)
            self._after_truncation()
        return None

    def _needed_copy(self, offset: int) -> PrefixCopy | None:
        """What is kept of the segment that is to be cut; None where it can be cut in place.

        Never in place below the flushed offset: 1. The file is cut at 50 and appended to. 2. The block with the new
        bytes reaches the disk, and power is lost before the file system's journal does. 3. New and old batches are
        mixed in the file, below a recovery point from before.
        """
        segment = self._segments.holding(offset)
        position = segment.position_of(offset)
        is_untouched = position == segment.size_bytes
        if is_untouched or (offset >= self.flushed_offset and segment.can_be_cut(position)):
            return None
        return PrefixCopy(*segment.prefix_copy(position), self.truncation_count)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Removes everything; the log is empty and goes on at the offset (B25)."""
        with self._changing():
            self._make_files()
            self._before_truncation(self._segments.first.base_offset)
            self._write_files({**lowered_recovery_point(0), **raised_log_start(offset)})
            self._segments.replace_all(offset, self._config)
            self.log_start_offset = offset
            self._epochs.clear()
            self._snapshots.on_cleared()
            self._after_truncation()

    def increment_log_start_offset(self, offset: int) -> None:
        """Whatever lies below the offset is not needed any more, durable or not: it is not read, and segments wholly
        below it are removed (A51). The offset lasts once the directory's checkpoint has it; until then a crash lets the
        log start at its first segment again, so all epochs from there on stay known. One that is not higher changes
        nothing.
        """
        if offset <= self.log_start_offset:
            return
        if offset > self.log_end_offset:
            raise InvariantBroken(f"{self!r} cannot start at {offset}")
        with self._changing():
            self.log_start_offset = offset
            count, first_offset = self._segments.below(offset)
            if count:
                self._write_files(raised_log_start(first_offset))
                self._segments.remove_first(count)
                self._snapshots.remove_before(first_offset)
            self._epochs.truncate_from_start(first_offset)

    def _before_truncation(self, offset: int) -> None:
        """Lowers the recovery point on disk first: the checkpoint may be higher, and what follows is unsynced.

        1. The checkpoint says 100. 2. The log is truncated to 50, appended to 120 and rolled in between.
        3. Power is lost, and the first segment's tail with it. 4. A scan from 100 would miss the hole.
        The name of this file is in the directory of the segments, so it is never lost before theirs.
        """
        self.truncation_count += 1
        if offset < self.flushed_offset:
            scan_from = self._segments.holding(offset).base_offset
            self._write_files(lowered_recovery_point(scan_from))

    def _after_truncation(self) -> None:
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
        self.flushed_offset = max(self.log_start_offset, min(self.flushed_offset, self.log_end_offset))
        self._epochs.truncate_from_end(self.log_end_offset)

    @property
    def _lowered_path(self) -> str:
        return posixpath.join(self.directory, LOWERED_RECOVERY_POINT_FILE)

    # ---- Durability ----------------------------------------------------------------------------------------

    @property
    def has_unsynced(self) -> bool:
        """Whether there is anything to sync."""
        return not self._files.unsynced.is_empty

    def unsynced(self) -> SyncPlan:
        """What to hand to `Disk.sync`, and then to `on_synced`, so that everything up to now is durable."""
        return self._files.unsynced.plan(self.log_end_offset, self.truncation_count)

    def unsynced_epochs(self) -> SyncPlan:
        """As `unsynced`, but for the epochs alone: where a leader's epoch begins must be durable, and not at once what
        comes before it (B20).
        """
        return self._files.unsynced.plan_of(self._epochs.path, self.flushed_offset, self.truncation_count)

    def on_synced(self, plan: SyncPlan) -> None:
        """The plan was synced. One made before a truncation says nothing about the offsets after it."""
        self._files.unsynced.on_synced(plan)
        if plan.truncation == self.truncation_count:
            self.flushed_offset = max(self.flushed_offset, plan.up_to_offset)

    def on_recovery_point_saved(self, offset: int) -> None:
        """The data directory's checkpoint durably says this: a lower point written by a truncation is
        obsolete, unless that one ended half way.
        """
        if self._failure is None and offset <= self.flushed_offset and self._disk.exists(self._lowered_path):
            self._disk.unlink(self._lowered_path)

    # ---- End -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Writes the active segment's indexes and the producers' state. Clean once the plan that `unsynced` gives now
        is synced.
        """
        if self._failure is None and self._awaited_files is None:
            self._segments.active.write_indexes()
            self._snapshots.take_last(self.log_end_offset)

    def delete(self) -> None:
        """Removes the directory; readers keep what they mapped."""
        if self._awaited_files is None:
            self._disk.remove_directory(self.directory)
