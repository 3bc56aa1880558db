"""The log of the quorum with its snapshots, as one sequence of records: positions in it, divergence, truncation, and
the voters that its control records name (A24, A29, A30, A33, A45, A46, A49, A51).

Nothing is scanned twice: a batch is looked into when it is appended, and only if its header says that it is a control
batch. Invariants: log start offset <= end of the earliest snapshot, equal once it is above 0; nothing below the latest
snapshot is truncated. Kafka: `RaftLog`, `KafkaRaftLog`, `KRaftControlRecordStateMachine`.
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
from rayka.raft.voters import VoterSetHistory

_SCAN_BYTES = 1 << 20


class ValidatedPosition(NamedTuple):
    """How a replica's position stands to this log: valid when neither is set (A30)."""

    diverging_epoch: OffsetAndEpoch | None = None
    snapshot_id: OffsetAndEpoch | None = None

    @property
    def is_valid(self) -> bool:
        return self.diverging_epoch is None and self.snapshot_id is None


VALID = ValidatedPosition()


class RaftLog:
    """Wraps the log and the store; both are the driver's, which syncs them."""

    def __init__(self, log: Log, snapshots: SnapshotStore) -> None:
        self._log = log
        self.snapshots = snapshots
        self.history = VoterSetHistory(snapshots.bootstrap_voters())
        self._recover_snapshots()
        self._scan()

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
        """Whether everything in it is durable, what was cut off too: only then may a fetch say so (A34)."""
        return self._log.flushed_offset >= self._log.log_end_offset and self._log.unsynced().is_empty

    @property
    def size_bytes(self) -> int:
        return self._log.segments.size_bytes

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record, in the log or else in the snapshot before it; 0 when there is none."""
        if self._log.latest_epoch >= 0:
            return self._log.latest_epoch
        latest = self.snapshots.latest
        return latest.epoch if latest is not None else 0

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.last_epoch, self._log.log_end_offset)

    @property
    def snapshot_end_offset(self) -> int:
        """Everything below is in a snapshot, and so committed; 0 without one."""
        latest = self.snapshots.latest
        return latest.offset if latest is not None else 0

    # ---- Positions ---------------------------------------------------------------------------------------------------

    def validate_position(self, offset: int, epoch: int) -> ValidatedPosition:
        """Whether a replica whose log ends at the offset, with this epoch last, has a prefix of this log."""
        latest = self.snapshots.latest
        if offset == 0:
            return VALID if latest is None else ValidatedPosition(snapshot_id=latest)  # A29
        if latest is not None and self._is_before_log(offset, epoch):
            return ValidatedPosition(snapshot_id=latest)
        end = self.end_offset_for_epoch(epoch)
        return (
            VALID if end.epoch == epoch and offset <= end.offset else ValidatedPosition(diverging_epoch=end)
        )

    def _is_before_log(self, offset: int, epoch: int) -> bool:
        earliest, start = self.snapshots.earliest, self._log.log_start_offset
        assert earliest is not None
        return offset < start or (offset == start and epoch != earliest.epoch) or epoch < earliest.epoch

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The largest epoch here at or below this one, and where it ends."""
        end = self._log.end_offset_for_epoch(epoch)
        if end.epoch < 0:
            return OffsetAndEpoch(self._log.log_end_offset, self.last_epoch)
        earliest = self.snapshots.earliest
        if earliest is not None and end.offset == earliest.offset == self._log.log_start_offset:
            return earliest
        return end

    def epoch_of(self, offset: int) -> int:
        """The leader epoch of an offset below the log end offset: half of the id of a snapshot that ends there."""
        return self._log.epochs.epoch_of(offset)

    def read(self, offset: int, *, max_bytes: int, end_offset: int) -> LogRead:
        return self._log.read(offset, max_bytes=max_bytes, end_offset=end_offset)

    # ---- Appending ---------------------------------------------------------------------------------------------------

    def append_as_leader(self, batches: Sequence[RecordBatch], epoch: int, now_ms: int) -> None:
        """Appends what the accumulator gave; control records count at once (A56)."""
        offset = self._log.log_end_offset
        self._log.append_as_leader(batches, epoch, now_ms=now_ms)
        for batch in batches:
            if batch.is_control:
                self._take(offset, decode_control_batch(batch))
            offset += batch.last_offset_delta + 1

    def append_as_follower(self, batches: Iterable[RecordBatch], epoch: int, now_ms: int) -> bool:
        """Appends the batches up to the first that is damaged, out of order, or of an epoch above this one (A33).

        Whether all were appended. Raises UnsupportedVersion for control records of a later version of this program.
        """
        good: list[RecordBatch] = []
        expected = LogPosition(self.last_epoch, self._log.log_end_offset)
        control: list[tuple[int, list[object]]] = []
        is_whole = True
        try:
            for batch in batches:
                _check(batch, expected, epoch)
                expected = LogPosition(batch.leader_epoch, batch.next_offset)
                if batch.is_control:
                    control.append((batch.base_offset, list(decode_control_batch(batch))))
                good.append(batch)
        except CorruptRecord:
            is_whole = False
        if good:
            self._log.append_as_follower(good, now_ms=now_ms)
            for offset, records in control:
                self._take(offset, records)
        return is_whole

    def _take(self, offset: int, records: Iterable[object]) -> None:
        for at, record in enumerate(records, offset):
            if isinstance(record, VotersRecord):
                self.history.add_voters(at, record.voters)
            elif isinstance(record, KRaftVersionRecord):
                self.history.add_kraft_version(at, record.kraft_version)

    def _scan(self) -> None:
        """What the control records say that are in the log already."""
        offset, end = max(self.log_start_offset, self.snapshot_end_offset), self.log_end_offset
        while offset < end:
            read = self._log.read(offset, max_bytes=_SCAN_BYTES, end_offset=end)
            for batch in split_batches(read.records):
                if batch.is_control and batch.base_offset >= offset:
                    self._take(batch.base_offset, decode_control_batch(batch))
            offset = read.next_offset

    # ---- Truncating --------------------------------------------------------------------------------------------------

    def truncate_to(
        self, end: OffsetAndEpoch, copied: PrefixCopy | None = None, *, committed_offset: int
    ) -> PrefixCopy | None:
        """Drops what the leader, whose log parted from this one at `end` at the latest, does not have (A33). What is
        returned has to be copied first, and given here then; nothing has changed yet.

        That something committed should go is the end of this process: then two leaders have committed different
        records, and nothing that follows could be right.
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
        """When the latest snapshot reaches further than the log, the log begins anew at its end (A49). Whether."""
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
        self.history.restart_at(snapshot_id.offset, voters, kraft_version=1 if voters else 0)

    def _recover_snapshots(self) -> None:
        """A crash may have come between a snapshot and the log that begins with it, or have brought back what was
        deleted: a snapshot, or the log before one.
        """
        if self.truncate_to_latest_snapshot() or self.snapshots.latest is None:
            return
        self._restart_history(self.snapshots.latest)
        start = self._log.log_start_offset
        if start > 0:
            self.delete_before(next(each for each in self.snapshots.ids if each.offset >= start))

    def may_create_snapshot(self, snapshot_id: OffsetAndEpoch, *, high_watermark: int, epoch: int) -> bool:
        """Whether a snapshot of everything below the id is to be written; False when there is one (A46).

        Raises ValueError when it can be none of this log: not committed, not at the end of a batch, before the log's
        start, or of an epoch that the log does not have there.
        """
        if snapshot_id in self.snapshots.ids:
            return False
        if snapshot_id.offset > high_watermark:
            raise ValueError(f"{snapshot_id!r} is not committed: the high watermark is {high_watermark}")
        if snapshot_id.epoch > epoch:
            raise ValueError(f"{snapshot_id!r} is of a later epoch than {epoch}, the newest")
        if snapshot_id.offset < self.log_start_offset:
            raise ValueError(f"{snapshot_id!r} is before the log's start, {self.log_start_offset}")
        if not self._is_end_of_batch(snapshot_id):
            raise ValueError(f"{snapshot_id!r} is not where a batch of that epoch ends in {self!r}")
        return True

    def _is_end_of_batch(self, snapshot_id: OffsetAndEpoch) -> bool:
        offset = snapshot_id.offset
        if offset <= self.log_start_offset or self.epoch_of(offset - 1) != snapshot_id.epoch:
            return False
        read = self._log.read(offset - 1, max_bytes=1, end_offset=self.log_end_offset)
        return read.next_offset == offset

    def delete_before(self, snapshot_id: OffsetAndEpoch) -> None:
        """Snapshots older than this one go, and the log before its end (A51)."""
        for older in self.snapshots.ids:
            if older.offset < snapshot_id.offset:
                self.snapshots.delete(older)
        if snapshot_id.offset > self._log.log_start_offset:
            self._log.increment_log_start_offset(snapshot_id.offset)
            while self._log.remove_below_start():
                pass
            self._log.retired.remove()
        self.history.forget_before(snapshot_id.offset)


def _check(batch: RecordBatch, expected: LogPosition, epoch: int) -> None:
    """Raises CorruptRecord for a batch that a follower in this epoch does not append next. Offset and epoch lie outside
    the CRC.
    """
    if batch.base_offset != expected.end_offset:
        raise CorruptRecord(f"expected offset {expected.end_offset}, found {batch!r}")
    if not expected.last_epoch <= batch.leader_epoch <= epoch:
        raise CorruptRecord(f"expected an epoch from {expected.last_epoch} to {epoch}, found {batch!r}")
    batch.check_crc()
