"""What retention may take out of a log, as seen from outside: committed records, oldest first, that are old enough or
that the bytes to keep leave no room for (F11).

It is looked at in the moment in which a log begins later: then age and size are those that the broker has decided by.
Offsets up to where any replica has begun rightly are free to go on all of them. Kafka: the oracle of
`UnifiedLogTest.shouldDeleteTimeBasedSegments...` and of `DeleteRecords` (G11).
"""

from collections.abc import Iterator

from rayka.sim.checks.compacted_logs import TOMBSTONE
from rayka.sim.checks.partition_truth import PartitionTruth
from rayka.sim.checks.replica_views import ReplicaView

_UNLIMITED = -1


def wrongly_gone(view: ReplicaView, wall_ms: int) -> str:
    """A record that this replica has deleted and has to have, by its broker's clock; empty when there is none."""
    truth, log = view.truth, view.partition.log
    start = log.log_start_offset
    if log.segments.first.base_offset > start:
        return f"it begins at {start}, and its files at {log.segments.first.base_offset}"
    if start <= truth.may_begin_at:
        return ""
    if start > truth.end:
        return f"it begins at {start}, and only what is below {truth.end} is committed"
    if not truth.is_deleted_to_the_end and not _is_surplus(view):
        return _too_young(view, wall_ms)
    return ""


def _is_surplus(view: ReplicaView) -> bool:
    """Whether what is left has the bytes that are to be kept."""
    config, log = view.partition.config, view.partition.log
    kept_bytes = config.retention_bytes
    return config.is_expiring and kept_bytes != _UNLIMITED and log.segments.size_bytes >= kept_bytes


def _too_young(view: ReplicaView, wall_ms: int) -> str:
    truth, config, start = view.truth, view.partition.config, view.partition.log.log_start_offset
    for offset, timestamp_ms in _kept(truth, truth.may_begin_at, start):
        age_ms = wall_ms - timestamp_ms
        if not config.is_expiring or config.retention_ms == _UNLIMITED or age_ms <= config.retention_ms:
            return f"the record at {offset} is gone at an age of {age_ms} ms"
    return ""


def _kept(truth: PartitionTruth, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Offsets and timestamps of records that compaction, if there is any, has left."""
    for batch in truth.committed:
        offsets = range(batch.base_offset, batch.next_offset)
        for offset, key, timestamp_ms in zip(offsets, batch.keys, batch.timestamps_ms, strict=True):
            if begin <= offset < end and not (truth.is_compacted and _may_be_compacted(truth, offset, key)):
                yield offset, timestamp_ms


def _may_be_compacted(truth: PartitionTruth, offset: int, key: bytes | None) -> bool:
    is_tombstone = key is not None and key.startswith(TOMBSTONE)
    return is_tombstone or truth.newest.get(key, offset) > offset
