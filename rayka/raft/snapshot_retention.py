"""Which snapshots are no longer needed: what they and the log before the next one hold, a later one holds too (A51).

The newest snapshot always stays. Kafka: `KafkaMetadataLog.maybeClean`.
"""

from rayka.ids import NO_TIMESTAMP, OffsetAndEpoch
from rayka.raft.snapshot_store import SnapshotStore

_UNLIMITED = -1


def earliest_to_keep(
    snapshots: SnapshotStore, *, log_bytes: int, retention_bytes: int, retention_ms: int, timestamp_ms: int
) -> OffsetAndEpoch | None:
    """The snapshot before which snapshots and log go; None when all stay.

    The oldest goes while log and snapshots together exceed `retention_bytes`, or its newest record is older than
    `retention_ms`; -1 is no limit.
    """
    total_bytes = log_bytes + sum(snapshots.size(each) for each in snapshots.ids)
    kept = 0
    for number, oldest in enumerate(snapshots.ids[:-1]):
        is_too_much = retention_bytes != _UNLIMITED and total_bytes > retention_bytes
        if not is_too_much and not _is_old(snapshots, oldest, retention_ms, timestamp_ms):
            break
        total_bytes -= snapshots.size(oldest)
        kept = number + 1
    return snapshots.ids[kept] if kept else None


def _is_old(
    snapshots: SnapshotStore, snapshot_id: OffsetAndEpoch, retention_ms: int, timestamp_ms: int
) -> bool:
    if retention_ms == _UNLIMITED:
        return False
    newest_ms = snapshots.last_contained_timestamp_ms(snapshot_id)
    return newest_ms != NO_TIMESTAMP and timestamp_ms - newest_ms > retention_ms
