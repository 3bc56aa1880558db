"""What the leader answers to a Fetch of the metadata log (A28, A30-A32). Pure: it changes neither log nor
leader.

Kafka: `KafkaRaftClient.handleFetchRequest`, `RaftLog.validateOffsetAndEpoch`. Left out: snapshots, and what a
voter's fetch acknowledges.
"""

from rayka.errors import ErrorCode
from rayka.ids import NO_EPOCH, OffsetAndEpoch
from rayka.log.log import Log
from rayka.protocol.fetch import FetchPartition


def epoch_error(current_leader_epoch: int, epoch: int) -> ErrorCode:
    """Whether the asker lives in this leader's epoch; -1 is not checked (A28)."""
    if current_leader_epoch in (NO_EPOCH, epoch):
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if current_leader_epoch < epoch else ErrorCode.UNKNOWN_LEADER_EPOCH


def diverging_epoch(log: Log, partition: FetchPartition) -> OffsetAndEpoch | None:
    """Where the asker's log and this one part ways at the latest; None when its position is one of this
    log (A30).
    """
    if partition.fetch_offset == 0:
        return None
    if partition.last_fetched_epoch > log.latest_epoch:
        end = OffsetAndEpoch(log.log_end_offset, log.latest_epoch)
    else:
        end = log.end_offset_for_epoch(partition.last_fetched_epoch)
    is_valid = end.epoch == partition.last_fetched_epoch and partition.fetch_offset <= end.offset
    return None if is_valid else end
