"""When a snapshot of a replicated state is due, and writing it (A47).

One is due when the records committed since the last reach `metadata.log.max.record.bytes.between.snapshots`, or when
`metadata.log.max.snapshot.interval.ms` have passed and there was any record: on the active controller and on the
standbys alike, each on its own disk. A state is captured at once and encoded piece by piece, so that nobody waits for
it. A full disk costs the snapshot and nothing else: the log holds all of it. Kafka: `SnapshotGenerator`.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import islice

from rayka.config import BrokerConfig
from rayka.errors import DiskFull
from rayka.ids import OffsetAndEpoch
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import encode_record
from rayka.metadata.snapshot import image_records
from rayka.ports import Buffer
from rayka.raft.snapshot import encode_data, encode_snapshot
from rayka.raft.snapshot_store import SnapshotStore
from rayka.raft.voters import VoterSet

_RECORDS_PER_BATCH = 96  # about a millisecond's work; lists this short are encoded without Arrow
_logger = logging.getLogger(__name__)


class SnapshotGenerator:
    """Writes one node's snapshots. `now_ms` is when it began: the interval counts from there."""

    def __init__(self, snapshots: SnapshotStore, config: BrokerConfig, *, now_ms: int) -> None:
        self._snapshots = snapshots
        self._bytes_max = config.metadata_log_max_record_bytes_between_snapshots
        self._interval_ms = config.metadata_log_max_snapshot_interval_ms
        self._last_ms = now_ms
        self._committed_bytes = 0
        self._is_writing = False

    def __repr__(self) -> str:
        return f"<SnapshotGenerator {self._committed_bytes}/{self._bytes_max} bytes since {self._last_ms}>"

    def on_committed(self, size_bytes: int) -> None:
        """Batches of this many bytes were replayed, now or when the node began, that no snapshot holds."""
        self._committed_bytes += size_bytes

    def on_loaded(self, now_ms: int) -> None:
        """The state was replaced by that of a snapshot."""
        self._committed_bytes, self._last_ms = 0, now_ms

    def is_due(self, now_ms: int) -> bool:
        """Whether to write one now. It is not while one is being written."""
        if self._is_writing or not self._committed_bytes:
            return False
        is_time = self._interval_ms > 0 and now_ms - self._last_ms >= self._interval_ms
        return is_time or self._committed_bytes >= self._bytes_max

    def next_due_ms(self) -> int | None:
        """When to ask `is_due` again if nothing is committed until then; None when that changes nothing."""
        return self._last_ms + self._interval_ms if self._interval_ms and self._committed_bytes else None

    async def generate(
        self,
        snapshot_id: OffsetAndEpoch,
        voters: VoterSet | None,
        values: Iterable[bytes],
        *,
        now_ms: int,
        timestamp_ms: int,
        last_contained_log_timestamp_ms: int,
    ) -> bool:
        """Writes the state that the values are, which is committed and reaches up to the snapshot's end; whether it
        could. What is committed meanwhile counts for the next one. Raises StorageError when the disk fails.
        """
        assert not self._is_writing, f"{self!r} writes one already"
        counted_bytes, self._last_ms, self._is_writing = self._committed_bytes, now_ms, True
        parts = encode_snapshot(
            snapshot_id,
            voters,
            _batches(values, timestamp_ms),
            timestamp_ms=timestamp_ms,
            last_contained_log_timestamp_ms=last_contained_log_timestamp_ms,
        )
        try:
            await self._snapshots.write(snapshot_id, parts)
        except DiskFull as error:
            _logger.warning("no snapshot at offset %d: %s", snapshot_id.offset, error)
            return False
        finally:
            self._is_writing = False
            self._committed_bytes -= counted_bytes
        return True


def image_values(image: MetadataImage) -> Iterator[bytes]:
    """The metadata as values for `SnapshotGenerator.generate`, made as they are asked for."""
    return map(encode_record, image_records(image))


def _batches(values: Iterable[bytes], timestamp_ms: int) -> Iterator[Buffer]:
    remaining = iter(values)
    while batch := list(islice(remaining, _RECORDS_PER_BATCH)):
        yield encode_data(batch, timestamp_ms=timestamp_ms)
