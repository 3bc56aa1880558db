"""The log of the quorum and its snapshots as one sequence of records: positions, divergence, truncation, and the voters
that control records name (A24, A29, A30, A33, A45, A46, A49, A51).

A batch is decoded when it is appended, and only if its header says that it is a control batch; nothing is scanned
twice. Invariants: the log start offset is at most the end of the earliest snapshot, and equal to it once above 0;
nothing below the latest snapshot is truncated. Kafka: `RaftLog`, `KafkaRaftLog`, `KRaftControlRecordStateMachine`.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rayka.errors import CorruptRecord, InvariantBroken
from rayka.ids import OffsetAndEpoch
from rayka.log.log import Log, LogRead, PrefixCopy
from rayka.protocol.batch_format import RecordBatch, split_batches
from rayka.raft.control_records import KRaftVersionRecord, VotersRecord, decode_control_batch
from rayka.raft.election_state import LogPosition
from rayka.raft.snapshot import SnapshotStore
from rayka.raft.voters import KRAFT_VERSION, VoterSetHistory

_SCAN_BYTES = 1 << 20


class ValidatedPosition(NamedTuple):
    """The position of another replica, compared with this log; valid if neither field is set (A30)."""

    # The last place where the two logs can agree.
    diverging_epoch: OffsetAndEpoch | None = None
    # The position lies before this log: the replica needs this snapshot.
    snapshot_id: OffsetAndEpoch | None = None

    @property
    def is_valid(self) -> bool:
        return self.diverging_epoch is None and self.snapshot_id is None


VALID = ValidatedPosition()


class RaftLog:
    """Wraps the log and the snapshot store. The driver owns both and syncs them."""

    def __init__(self, log: Log, snapshots: SnapshotStore) -> None:
        self._log = log
        self.snapshots = snapshots
        self.history = VoterSetHistory(snapshots.bootstrap_voters())
        self._recover_snapshots()
        # The control records that the log holds already.
        offset, end = max(self.log_start_offset, self.snapshot_end_offset), self.log_end_offset
        while offset < end:
            read = self._log.read(offset, max_bytes=_SCAN_BYTES, end_offset=end)
            for batch in split_batches(read.records):
                if batch.is_control and batch.base_offset >= offset:
                    self._take_control(batch.base_offset, decode_control_batch(batch))
            offset = read.next_offset

    def __repr__(self) -> str:
        return f"<RaftLog {self._log!r} {self.snapshots!r}>"

    # ---- State -------------------------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def is_flushed(self) -> bool:
        """True if all records, and all truncations, are durable; only then may a fetch promise it (A34)."""
        return self._log.flushed_offset >= self._log.log_end_offset and self._log.unsynced().is_empty

    @property
    def size_bytes(self) -> int:
        return self._log.segments.size_bytes

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, in the log or else in the snapshot before it; 0 without records."""
        if self._log.latest_epoch >= 0:
            return self._log.latest_epoch
        latest = self.snapshots.latest
        return latest.epoch if latest is not None else 0

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.last_epoch, self._log.log_end_offset)

    @property
    def snapshot_end_offset(self) -> int:
        """The end of the latest snapshot, which holds committed records only; 0 without a snapshot."""
        latest = self.snapshots.latest
        return latest.offset if latest is not None else 0

    # ---- Positions ---------------------------------------------------------------------------------------------------

    def validate_position(self, offset: int, epoch: int) -> ValidatedPosition:
        """Compares this log with a log that ends at the offset and has the epoch last. Valid: that log is a prefix.

        Kafka: `validateOffsetAndEpoch`.
        """
        latest, earliest, start = self.snapshots.latest, self.snapshots.earliest, self._log.log_start_offset
        if offset == 0:
            # A29
            return VALID if latest is None else ValidatedPosition(snapshot_id=latest)
        if earliest is not None:
            is_of_another_epoch = offset == start and epoch != earliest.epoch
            if offset < start or is_of_another_epoch or epoch < earliest.epoch:
                return ValidatedPosition(snapshot_id=latest)
        end = self.end_offset_for_epoch(epoch)
        return (
            VALID if end.epoch == epoch and offset <= end.offset else ValidatedPosition(diverging_epoch=end)
        )

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The largest epoch of this log at or below the given one, and its end offset."""
        end = self._log.end_offset_for_epoch(epoch)
        if end.epoch < 0:
            return OffsetAndEpoch(self._log.log_end_offset, self.last_epoch)
        earliest = self.snapshots.earliest
        if earliest is not None and end.offset == earliest.offset == self._log.log_start_offset:
            return earliest
        return end

    def epoch_of(self, offset: int) -> int:
        """The leader epoch of an offset below the log end offset, as the id of a snapshot needs it."""
        return self._log.epochs.epoch_of(offset)

    def read(self, offset: int, *, max_bytes: int, end_offset: int) -> LogRead:
        return self._log.read(offset, max_bytes=max_bytes, end_offset=end_offset)

    # ---- Appends -----------------------------------------------------------------------------------------------------

    def append_as_leader(self, batches: Sequence[RecordBatch], epoch: int, now_ms: int) -> None:
        """Appends batches of the accumulator. Their control records take effect at once (A56)."""
        offset = self._log.log_end_offset
        self._log.append_as_leader(batches, epoch, now_ms=now_ms)
        for batch in batches:
            if batch.is_control:
                self._take_control(offset, decode_control_batch(batch))
            offset += batch.last_offset_delta + 1

    def append_as_follower(self, batches: Iterable[RecordBatch], epoch: int, now_ms: int) -> bool:
        """Appends the batches up to the first that is damaged, out of order, or of an epoch above `epoch` (A33).

        False if a batch was refused. Raises UnsupportedVersion for control records of a later version of Rayka.
        """
        good: list[RecordBatch] = []
        expected = LogPosition(self.last_epoch, self._log.log_end_offset)
        control: list[tuple[int, list[object]]] = []
        is_whole = True
        try:
            for batch in batches:
                if batch.base_offset != expected.end_offset:
                    raise CorruptRecord(f"expected offset {expected.end_offset}, found {batch!r}")
                if not expected.last_epoch <= batch.leader_epoch <= epoch:
                    raise CorruptRecord(
                        f"expected an epoch from {expected.last_epoch} to {epoch}, found {batch!r}"
                    )
                # Offset and epoch lie outside the CRC, so they were compared above.
                batch.check_crc()
                expected = LogPosition(batch.leader_epoch, batch.next_offset)
                if batch.is_control:
                    control.append((batch.base_offset, list(decode_control_batch(batch))))
                good.append(batch)
        except CorruptRecord:
            is_whole = False
        if good:
            self._log.append_as_follower(good, now_ms=now_ms)
            for offset, records in control:
                self._take_control(offset, records)
        return is_whole

    def _take_control(self, offset: int, records: Iterable[object]) -> None:
        for at, record in enumerate(records, offset):
            if isinstance(record, VotersRecord):
                self.history.add_voters(at, record.voters)
            elif isinstance(record, KRaftVersionRecord):
                self.history.add_kraft_version(at, record.kraft_version)

    # ---- Truncation --------------------------------------------------------------------------------------------------

    def truncate_to(
        self, end: OffsetAndEpoch, copied: PrefixCopy | None = None, *, committed_offset: int
    ) -> PrefixCopy | None:
        """Drops the records that the leader does not have; the two logs part at `end` at the latest (A33).

        Returns a copy that the driver must make first, and then pass as `copied`; nothing has changed until then. None:
        the log is truncated.

        Raises InvariantBroken, which ends the process, if a committed record would go: two leaders have committed
        different records then, and nothing that follows could be right.
        """
        local = self.end_offset_for_epoch(end.epoch)
        offset = min(local.offset, end.offset) if local.epoch == end.epoch else local.offset
        committed_offset = max(committed_offset, self.snapshot_end_offset)
        if offset < committed_offset:
            raise InvariantBroken(f"{self!r}: {end!r} would truncate committed records to {offset}")
        needed = self._log.truncate_to(offset, copied)
        if needed is not None:
            return needed
        if self._log.log_end_offset < committed_offset:
            raise InvariantBroken(f"{self!r}: truncated below {committed_offset}")
        self.history.truncate_to(self._log.log_end_offset)
        return None

    # ---- Snapshots ---------------------------------------------------------------------------------------------------

    def truncate_to_latest_snapshot(self) -> bool:
        """Restarts the log at the end of the latest snapshot if the snapshot reaches further (A49). True if it did."""
        latest = self.snapshots.latest
        if latest is None or LogPosition(latest.epoch, latest.offset) <= self.position:
            return False
        self._log.truncate_fully_and_start_at(latest.offset)
        for older in self.snapshots.ids[:-1]:
            self.snapshots.delete(older)
        self._restart_history(latest)
        return True

    def _restart_history(self, snapshot_id: OffsetAndEpoch) -> None:
        voters = self.snapshots.load(snapshot_id).voters
        self.history.restart_at(snapshot_id.offset, voters, kraft_version=KRAFT_VERSION if voters else 0)

    def _recover_snapshots(self) -> None:
        """Completes changes that a crash interrupted or undid.

        The crash may have come between a new snapshot and the restart of the log at its end. A power cut may bring back
        a deleted snapshot, or the deleted log before a snapshot.
        """
        if self.truncate_to_latest_snapshot() or self.snapshots.latest is None:
            return
        self._restart_history(self.snapshots.latest)
        start = self._log.log_start_offset
        if start > 0:
            self.delete_before(next(each for each in self.snapshots.ids if each.offset >= start))

    def may_create_snapshot(self, snapshot_id: OffsetAndEpoch, *, high_watermark: int, epoch: int) -> bool:
        """True if a snapshot of everything below the id may be written; False if it exists (A46).

        Raises ValueError if the id fits no place of this log: it is not committed, not at the end of a batch, before
        the log's start, or of an epoch that the log does not have there.
        """
        if snapshot_id in self.snapshots.ids:
            return False
        if snapshot_id.offset > high_watermark:
            raise ValueError(f"{snapshot_id!r} is not committed: the high watermark is {high_watermark}")
        if snapshot_id.epoch > epoch:
            raise ValueError(f"{snapshot_id!r} is of a later epoch than {epoch}, the newest")
        if snapshot_id.offset < self.log_start_offset:
            raise ValueError(f"{snapshot_id!r} is before the log's start, {self.log_start_offset}")
        offset = snapshot_id.offset
        is_end_of_batch = False
        if offset > self.log_start_offset and self.epoch_of(offset - 1) == snapshot_id.epoch:
            read = self._log.read(offset - 1, max_bytes=1, end_offset=self.log_end_offset)
            is_end_of_batch = read.next_offset == offset
        if not is_end_of_batch:
            raise ValueError(f"{snapshot_id!r} is not where a batch of that epoch ends in {self!r}")
        return True

    def delete_before(self, snapshot_id: OffsetAndEpoch) -> None:
        """Deletes the snapshots older than this one, and the log before its end (A51)."""
        for older in self.snapshots.ids:
            if older.offset < snapshot_id.offset:
                self.snapshots.delete(older)
        if snapshot_id.offset > self._log.log_start_offset:
            self._log.increment_log_start_offset(snapshot_id.offset)
            while self._log.remove_below_start():
                pass
            self._log.retired.remove()
        self.history.forget_before(snapshot_id.offset)
