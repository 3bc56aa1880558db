"""A follower of one partition on this broker: it appends the leader's records, and cuts its log where it has parted
from the leader's.

Invariants:
- Records are appended only if all of them are whole, in place, and of no later epoch than the follower's (B18, B26).
- The log is cut only where its *epochs* part from the leader's, never because of a high watermark. The high watermark
  known here may be older than the leader's, and the cut would remove committed records.

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
    """The follower of one leader, or of none. It knows no ISR."""

    isr = IsrState()

    def __init__(self, replica: ReplicaLog, state: PartitionImage) -> None:
        self._replica = replica
        self.state = state

    def append(self, records: Buffer, *, high_watermark: int, log_start_offset: int, now_ms: int) -> bool:
        """Appends the records of an answer, and takes over the leader's high watermark and log start offset (B3, B18).
        True if the high watermark moved.

        Raises CorruptRecord when a batch is damaged or out of place, UnknownLeaderEpoch for a batch of a later epoch;
        nothing is appended then.
        """
        batches = self._checked_batches(records, high_watermark)
        if batches:
            append_batches(self._replica.log, batches, now_ms)
        is_moved = self._follow_high_watermark(high_watermark)
        self._replica.log.increment_log_start_offset(min(log_start_offset, self._replica.high_watermark))
        return is_moved

    def _checked_batches(self, records: Buffer, high_watermark: int) -> list[RecordBatch]:
        """The batches, all whole and in place. The CRC covers neither offset nor epoch, so both must continue those of
        this log.

        Offsets may be missing in a compacted topic. They may also be missing in any topic below the leader's high
        watermark: the leader's log may be compacted from the time before the topic's policy was changed (F22). A
        compacted topic has gaps above the high watermark, too: a leader that has restarted may know a lower one, and
        raises it only with this follower's help.
        """
        log, leader_epoch = self._replica.log, self.state.leader_epoch
        where = str(self._replica.topic_partition)
        batches, is_compacted = list(split_batches(records)), log.config.is_compacted
        epoch, offset = log.latest_epoch, log.log_end_offset
        if batches and log.log_start_offset == offset:
            first = batches[0]
            # An empty log may begin inside a batch: the leader's log begins there since records were deleted.
            if first.base_offset < offset <= first.last_offset:
                offset = first.base_offset
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
        """Cuts off the records that the leader cannot have, because its log has parted from this one by the end of
        `diverging` (B22). Returns the copy to make first, with nothing changed, as `Log.truncate_to`.

        Cuts below the high watermark, too (B27): after an unclean election the leader's records are the committed ones.
        """
        log = self._replica.log
        try:
            return log.truncate_to(truncation_offset(log, diverging), copied)
        finally:
            # A truncation that meets a full disk half way may have shortened the log.
            self._follow_high_watermark(self._replica.high_watermark)

    def on_out_of_range(
        self, copied: PrefixCopy | None = None, *, leader_log_start_offset: int, leader_log_end_offset: int
    ) -> PrefixCopy | None:
        """The leader has no record at this log's end: its log ends earlier, or begins later. Truncates this log to
        where both can continue (B25). Returns as `truncate_to`.
        """
        log = self._replica.log
        try:
            if leader_log_end_offset < log.log_end_offset:
                return log.truncate_to(leader_log_end_offset, copied)
            if leader_log_start_offset > log.log_end_offset:
                log.truncate_fully_and_start_at(leader_log_start_offset)
            return None
        finally:
            self._follow_high_watermark(self._replica.high_watermark)

    def _follow_high_watermark(self, high_watermark: int) -> bool:
        """Sets the high watermark to the leader's, within this log; it may fall (B3). True if it moved."""
        replica, log = self._replica, self._replica.log
        before = replica.high_watermark
        replica.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        return replica.high_watermark != before


def append_batches(log: Log, batches: Sequence[RecordBatch], now_ms: int) -> None:
    """Appends checked batches. A log that begins inside the first one still begins there."""
    log_start_offset = log.log_start_offset
    if batches[0].base_offset < log.log_end_offset:
        log.truncate_fully_and_start_at(batches[0].base_offset)
    log.append_as_follower(batches, now_ms=now_ms)
    log.increment_log_start_offset(log_start_offset)


def truncation_offset(log: Log, diverging: OffsetAndEpoch) -> int:
    """The end of the records that the leader can have. `diverging` is the end of an epoch in the leader's log (B22).

    The epoch is looked up in this log, too: it may end earlier here, or be missing. If it is missing, the next fetch
    asks with the epoch before it: both sides step down until they agree (KIP-279).
    """
    own = log.end_offset_for_epoch(diverging.epoch)
    if own.epoch == NO_EPOCH:
        return min(diverging.offset, log.log_end_offset)
    if own.epoch < diverging.epoch:
        return min(own.offset, log.log_end_offset)
    return min(own.offset, diverging.offset, log.log_end_offset)
