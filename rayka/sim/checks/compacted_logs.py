"""The records that compaction may take out of a log, seen from outside: for each key all but the newest.

A record is known by its value, which is its own; one without a value by its key, which is its own then (`identity_of`).
Kafka: the oracle of `LogCleanerTest`, `LogCompactionTester` (F22, F23).
"""

from collections.abc import Iterator
from functools import lru_cache

from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import RecordBatch
from rayka.sim.checks.partition_truth import Batch, PartitionTruth
from rayka.sim.checks.replica_views import ReplicaView, batches_of

TOMBSTONE = b"t-"  # with it the key of a record begins that has no value
_KEPT_BATCHES = 1_000


def identity_of(key: bytes | None, value: bytes | None) -> bytes:
    """The value, or the key of a record without a value: unique in a run."""
    return value if value is not None else key or b""


def batch_of(batch: RecordBatch) -> Batch:
    """The batch as its leader wrote it; of one that is compacted already only the header is right."""
    return _batch_of(bytes(batch.view))


@lru_cache(maxsize=_KEPT_BATCHES)
def _batch_of(data: bytes) -> Batch:
    """Each replica shows the same bytes."""
    batch = RecordBatch(data)
    decoded = decode(batch, check_crc=False)
    keys = decoded.keys_list()
    values = map(identity_of, keys, decoded.values_list())
    return Batch(
        batch.base_offset, batch.next_offset, batch.leader_epoch, batch.crc, tuple(values), tuple(keys),
        batch.max_timestamp_ms, tuple(decoded.timestamps_ms.tolist()),
    )  # fmt: skip


def is_part_of(batch: RecordBatch, known: Batch) -> bool:
    """Whether a compacted batch has nothing but records of the one that its leader wrote, each at its offset."""
    decoded = decode(batch, check_crc=False)
    found = zip(decoded.offsets.tolist(), decoded.keys_list(), decoded.values_list(), strict=True)
    return batch.next_offset == known.next_offset and all(
        identity_of(key, value) == known.values[offset - known.base_offset] for offset, key, value in found
    )


def records_of(batch: Batch) -> Iterator[tuple[int, bytes | None, bytes]]:
    """Offset, key and identity of each record."""
    return zip(range(batch.base_offset, batch.next_offset), batch.keys, batch.values, strict=True)


def missing_offsets(view: ReplicaView) -> set[int]:
    """Offsets within this replica's log that have no record."""
    log, start = view.partition.log, view.partition.log.log_start_offset
    missing = set(range(start, log.log_end_offset))
    for batch in batches_of(log, start):
        missing.difference_update(decode(batch).offsets.tolist())
    return missing


def first_missing(view: ReplicaView, missing: set[int], wall_ms: int, *, has_clock_jumps: bool) -> str:
    """A record that this replica has to have, and which is `missing`; empty when there is none.

    It has the newest committed record of each key, and everything that is too young; one without a value until its time
    is over. A replica that copies from a compacted leader lacks what is newer, and what that has replaced there.
    """
    truth, log, config = view.truth, view.partition.log, view.partition.config
    start, end = log.log_start_offset, log.log_end_offset
    newest: dict[bytes | None, int] = {}
    for batch in truth.committed:
        age_ms = wall_ms - batch.timestamp_ms
        for offset, key, identity in records_of(batch):
            if offset in missing and age_ms < config.min_compaction_lag_ms and not has_clock_jumps:
                return f"{identity!r} at {offset} is gone at an age of {age_ms} ms"
            is_kept_time = age_ms <= config.delete_retention_ms and not has_clock_jumps
            if is_kept_time or not identity.startswith(TOMBSTONE):
                newest[key] = offset
    gone = sorted(each for each in newest.values() if each in missing)
    return f"the newest record of a key, at {gone[0]}, is gone from [{start}, {end})" if gone else ""


# What retention may take out of a log, as seen from outside: committed records, oldest first, that are old enough or
# that the bytes to keep leave no room for (F11).
#
# It is looked at in the moment in which a log begins later: then age and size are those that the broker has decided by.
# Offsets up to where any replica has begun rightly are free to go on all of them. Kafka: the oracle of
# `UnifiedLogTest.shouldDeleteTimeBasedSegments...` and of `DeleteRecords` (G11).


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
    """Whether the remaining batches hold as many bytes as retention keeps."""
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
