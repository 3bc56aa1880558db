"""What this broker does as a follower of one partition: what it appends, and where its log is cut when it has parted
from the leader's.

Invariants: nothing is appended unless all of it is whole, in place, and of no later epoch than the follower's (B18,
B26); a log is cut only where its *epochs* part from the leader's, never because of a high watermark: the one
known here may be older than the leader's, and the cut would take committed records along.
Kafka: `AbstractFetcherThread`, `Partition.doAppendRecordsToFollower` (B3, B22, B23, B25; KIP-101, KIP-279, KIP-320).
"""

from collections.abc import Sequence

from rayka.errors import CorruptRecord, UnknownLeaderEpoch
from rayka.ids import NO_EPOCH, OffsetAndEpoch
from rayka.log.log import Log, PrefixCopy
from rayka.metadata.image import PartitionImage
from rayka.partition.follower_states import IsrState
from rayka.partition.replica_log import ReplicaLog
from rayka.ports import Buffer
from rayka.protocol.batch_format import RecordBatch, split_batches


class PartitionFollower:
    """The follower of one leader, or of none; it knows no ISR."""

    isr = IsrState()

    def __init__(self, replica: ReplicaLog, state: PartitionImage) -> None:
        self._replica = replica
        self.state = state

    def __repr__(self) -> str:
        return f"<PartitionFollower {self._replica.topic_partition} {self.state!r}>"

    def append(self, records: Buffer, *, high_watermark: int, log_start_offset: int, now_ms: int) -> bool:
        """Takes the records of an answer, and how far they are committed (B3, B18); whether the high watermark moved.

        Raises CorruptRecord when a batch is damaged or out of place, UnknownLeaderEpoch for a batch of a later epoch;
        then nothing is appended.
        """
        batches = self._checked_batches(records, high_watermark)
        if batches:
            append_batches(self._replica.log, batches, now_ms)
        is_moved = self._follow_high_watermark(high_watermark)
        self._replica.log.increment_log_start_offset(min(log_start_offset, self._replica.high_watermark))
        return is_moved

    def _checked_batches(self, records: Buffer, high_watermark: int) -> list[RecordBatch]:
        """The batches, all good and in place. A batch's CRC covers neither offset nor epoch: that they go on from what
        is here shows that they are right. Offsets may be missing in a compacted topic, and below the leader's high
        watermark, where its log may be compacted from before the topic's policy was changed (F22). In a compacted one
        also above: a leader that has restarted may know a lower one, and raise it only with this follower's help.
        """
        log, leader_epoch, where = (
            self._replica.log,
            self.state.leader_epoch,
            str(self._replica.topic_partition),
        )
        batches, is_compacted = list(split_batches(records)), log.config.is_compacted
        epoch, offset = log.latest_epoch, log.log_end_offset
        if batches and _begins_within(batches[0], log):
            offset = batches[0].base_offset
        for batch in batches:
            batch.check_crc(where)
            is_gap = offset < batch.base_offset and (is_compacted or batch.base_offset <= high_watermark)
            if batch.base_offset != offset and not is_gap:
                raise CorruptRecord(
                    f"{where}: expected a batch at offset {offset}, found {batch!r}; fetch again"
                )
            if batch.leader_epoch < epoch:
                raise CorruptRecord(f"{where}: expected epoch {epoch} or later, found {batch!r}; fetch again")
            if batch.leader_epoch > leader_epoch:
                raise UnknownLeaderEpoch(
                    f"{where}: expected no epoch after {leader_epoch}, in which it was fetched, found {batch!r}"
                )
            epoch, offset = batch.leader_epoch, batch.next_offset
        return batches

    def truncate_to(self, diverging: OffsetAndEpoch, copied: PrefixCopy | None = None) -> PrefixCopy | None:
        """The leader's log has parted from this one by the end of that epoch: what it cannot have is cut off (B22).
        What is returned has to be copied first, and given here then; nothing has changed yet.

        Also below the high watermark (B27): after an unclean election, committed records are what the leader has.
        """
        log = self._replica.log
        try:
            return log.truncate_to(truncation_offset(log, diverging), copied)
        finally:  # one that met a full disk half way may have shortened the log all the same
            self._follow_high_watermark(self._replica.high_watermark)

    def on_out_of_range(
        self, copied: PrefixCopy | None = None, *, leader_log_start_offset: int, leader_log_end_offset: int
    ) -> PrefixCopy | None:
        """The leader has nothing at this log's end: it ends earlier there, or all of it was deleted there. The log goes
        on where both of them can (B25). Returns as `truncate_to`.
        """
        log = self._replica.log
        try:
            if leader_log_end_offset < log.log_end_offset:
                return log.truncate_to(leader_log_end_offset, copied)
            if leader_log_start_offset > log.log_end_offset:
                log.truncate_fully_and_start_at(leader_log_start_offset)
            return None
        finally:  # as above
            self._follow_high_watermark(self._replica.high_watermark)

    def _follow_high_watermark(self, high_watermark: int) -> bool:
        """Whether it moved: to the leader's, as far as this log has it; it may be lower than before (B3)."""
        replica, log = self._replica, self._replica.log
        before = replica.high_watermark
        replica.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        return replica.high_watermark != before


def _begins_within(batch: RecordBatch, log: Log) -> bool:
    """Whether an empty log is to begin inside this batch: the leader's begins there since records were deleted."""
    is_empty = log.log_start_offset == log.log_end_offset
    return is_empty and batch.base_offset < log.log_end_offset <= batch.last_offset


def append_batches(log: Log, batches: Sequence[RecordBatch], now_ms: int) -> None:
    """Appends batches that were checked. A log that begins inside the first of them still begins there."""
    log_start_offset = log.log_start_offset
    if batches[0].base_offset < log.log_end_offset:
        log.truncate_fully_and_start_at(batches[0].base_offset)
    log.append_as_follower(batches, now_ms=now_ms)
    log.increment_log_start_offset(log_start_offset)


def truncation_offset(log: Log, diverging: OffsetAndEpoch) -> int:
    """How much of the log can be the leader's, which says that its epoch ends there (B22).

    The epoch is looked up in this log too, since it may end earlier here, or be missing. When it is missing, the next
    fetch asks with the epoch before it: both sides step down until they agree (KIP-279).
    """
    own = log.end_offset_for_epoch(diverging.epoch)
    if own.epoch == NO_EPOCH:
        return min(diverging.offset, log.log_end_offset)
    if own.epoch < diverging.epoch:
        return min(own.offset, log.log_end_offset)
    return min(own.offset, diverging.offset, log.log_end_offset)
