"""What compaction may take out of a log, as seen from outside: for each key everything but the newest record.

A record is known by its value, which is its own; one without a value by its key, which is its own then (`identity_of`).
Kafka: the oracle of `LogCleanerTest`, `LogCompactionTester` (F22, F23).
"""

from collections.abc import Iterator
from functools import lru_cache

from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import RecordBatch
from rayka.sim.checks.partition_truth import Batch
from rayka.sim.checks.replica_views import ReplicaView, batches_of

TOMBSTONE = b"t-"  # with it the key of a record begins that has no value
_KEPT_BATCHES = 1_000


def identity_of(key: bytes | None, value: bytes | None) -> bytes:
    """What no other record has."""
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
