"""How a log follows the leader's: what is appended to it, and where it is cut when the two have parted.

Invariants: nothing is appended unless all of it is whole, in place, and of no later epoch than the follower's (B18,
B26); a log is cut only where its *epochs* part from the leader's, never because of a high watermark: one that a leader
did not tell yet would take committed records along.
Kafka: `AbstractFetcherThread`, `Partition.doAppendRecordsToFollower` (B22, B23, B25; KIP-101, KIP-279, KIP-320).
"""

from collections.abc import Sequence
from typing import NamedTuple

from rayka.errors import CorruptRecord, UnknownLeaderEpoch
from rayka.ids import NO_EPOCH, OffsetAndEpoch
from rayka.log.log import Log, PrefixCopy
from rayka.ports import Buffer
from rayka.protocol.batch_header import RecordBatch, split_batches


class FollowerAppend(NamedTuple):
    """What a follower did with an answer: where to go on, and whether that may be asked for only after a sync."""

    next_offset: int
    needs_sync: bool
    is_high_watermark_moved: bool


def checked_batches(log: Log, records: Buffer, *, leader_epoch: int, where: str) -> list[RecordBatch]:
    """The batches, all good and in place. Raises CorruptRecord, or UnknownLeaderEpoch for a later epoch.

    Neither offset nor epoch is covered by a batch's CRC: that they go on from what is here shows that they are right.
    """
    batches = list(split_batches(records))
    epoch, offset = log.latest_epoch, log.log_end_offset
    if batches and _begins_within(batches[0], log):
        offset = batches[0].base_offset
    for batch in batches:
        batch.check_crc(where)
        if batch.base_offset != offset:
            raise CorruptRecord(f"{where}: expected a batch at offset {offset}, found {batch!r}; fetch again")
        if batch.leader_epoch < epoch:
            raise CorruptRecord(f"{where}: expected epoch {epoch} or later, found {batch!r}; fetch again")
        if batch.leader_epoch > leader_epoch:
            raise UnknownLeaderEpoch(
                f"{where}: expected no epoch after {leader_epoch}, in which it was fetched, found {batch!r}"
            )
        epoch, offset = batch.leader_epoch, batch.next_offset
    return batches


def _begins_within(batch: RecordBatch, log: Log) -> bool:
    """Whether an empty log is to begin inside this batch: the leader's begins there since records were deleted."""
    is_empty = log.log_start_offset == log.log_end_offset
    return is_empty and batch.base_offset < log.log_end_offset <= batch.last_offset


def append(log: Log, batches: Sequence[RecordBatch], now_ms: int) -> None:
    """Appends what `checked_batches` gave. A log that begins inside the first of them still begins there."""
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


def move_into_range(
    log: Log, copied: PrefixCopy | None, *, leader_log_start_offset: int, leader_log_end_offset: int
) -> PrefixCopy | None:
    """The leader has nothing at this log's end: it ends earlier there, or all of it was deleted there (B25). Returns
    what has to be copied first, as `Log.truncate_to`.
    """
    if leader_log_end_offset < log.log_end_offset:
        return log.truncate_to(leader_log_end_offset, copied)
    if leader_log_start_offset > log.log_end_offset:
        log.truncate_fully_and_start_at(leader_log_start_offset)
    return None
