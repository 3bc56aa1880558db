"""Writes snapshots of a replicated state, and deletes those, and the log before them, that are no longer needed.

A snapshot is due when the records since the last one reach `metadata.log.max.record.bytes.between.snapshots`, or when
`metadata.log.max.snapshot.interval.ms` have passed and there was any record: on the active node and on the standbys
alike, each on its own disk (A47). On the active node the newest state is not committed yet, therefore:

1. The state is captured when everything appended is in the log, so that it ends where a batch ends.
2. The snapshot is written when the high watermark has passed the state in the same epoch; otherwise it is forgotten.
3. It is encoded piece by piece, so that nothing waits for it. A captured state must not change, therefore.

The shard says which records stand for its state (`SnapshotShard`). A full disk costs the snapshot and nothing else, for
the log holds all of it. Kafka: `SnapshotGenerator`, `KafkaMetadataLog.maybeClean` (A46, A47, A51).
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from rayka.clock import now_ms
from rayka.config.broker_config import BrokerConfig
from rayka.errors import PassingStorageError
from rayka.ids import OffsetAndEpoch
from rayka.node.quorum_driver import QuorumDriver
from rayka.node.replicated_shard import ReplicatedShard
from rayka.node.settings import NodeSettings
from rayka.ports import Buffer
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import split_batches
from rayka.raft.snapshot import encode_snapshot
from rayka.shard.shard import RecordT, SnapshotShard
from rayka.shard.shard_records import RecordCodec

SnapshotShardT = TypeVar("SnapshotShardT", bound=SnapshotShard[Any])
CLEAN_INTERVAL_MS = 60_000
# About a millisecond's work; lists this short are encoded without Arrow.
_RECORDS_PER_BATCH = 96
_logger = logging.getLogger(__name__)


class SnapshotSchedule:
    """Says when the next snapshot is due. The interval counts from `now_ms`, when the node began."""

    def __init__(self, config: BrokerConfig, *, now_ms: int) -> None:
        self._bytes_max = config.metadata_log_max_record_bytes_between_snapshots
        self._interval_ms = config.metadata_log_max_snapshot_interval_ms
        self._last_ms = now_ms

    def __repr__(self) -> str:
        return f"<SnapshotSchedule every {self._bytes_max} bytes or {self._interval_ms} ms, last {self._last_ms}>"

    def is_due(self, record_bytes: int, now_ms: int) -> bool:
        """True if a snapshot is due, with this many bytes of records since the last one."""
        is_time = self._interval_ms > 0 and now_ms - self._last_ms >= self._interval_ms
        return record_bytes > 0 and (is_time or record_bytes >= self._bytes_max)

    def next_ms(self, record_bytes: int) -> int | None:
        """When a snapshot is due although nothing more is appended; None: never."""
        return self._last_ms + self._interval_ms if self._interval_ms and record_bytes else None

    def on_done(self, now_ms: int) -> None:
        """A snapshot was written, or could not be."""
        self._last_ms = now_ms


class SnapshotGenerator(Generic[SnapshotShardT, RecordT]):
    """The snapshots of one replica."""

    def __init__(
        self,
        settings: NodeSettings,
        driver: QuorumDriver,
        shard: ReplicatedShard[SnapshotShardT, RecordT],
        codec: RecordCodec[RecordT],
    ) -> None:
        self._settings = settings
        self._driver = driver
        self._quorum = driver.quorum
        self._directory = driver.directory
        self._shard = shard
        self._codec = codec
        self._schedule = SnapshotSchedule(settings.config, now_ms=now_ms())
        self._clean_ms = now_ms()
        self._counted_from: tuple[OffsetAndEpoch | None, int] | None = None
        self._bytes_before = 0

    def __repr__(self) -> str:
        return f"<SnapshotGenerator {self._schedule!r} {self._directory.snapshots.latest}>"

    async def run(self) -> None:
        """Goes on until the disk fails. Raises StorageError when it does."""
        while self._driver.failure is None:
            record_bytes = self._record_bytes()
            if self._schedule.is_due(record_bytes, now_ms()):
                await self._maybe_generate()
                record_bytes = self._record_bytes()
            time_ms = now_ms()
            if time_ms >= self._clean_ms:
                self._clean()
            await self._driver.news.wait(self._deadline_s(record_bytes, time_ms))

    def _record_bytes(self) -> int:
        """The bytes of records that no snapshot holds."""
        latest, log = self._directory.snapshots.latest, self._directory.log
        counted_from = (latest, log.log_start_offset)
        if counted_from != self._counted_from:
            begin = latest.offset if latest is not None else log.log_start_offset
            self._counted_from, self._bytes_before = (
                counted_from,
                log.segments.size_bytes - log.segments.size_from(begin),
            )
        return log.segments.size_bytes - self._bytes_before

    def _deadline_s(self, record_bytes: int, now_ms: int) -> float:
        """The time of the next look. A snapshot that is due already waits for news: no state could be captured."""
        due_ms = self._schedule.next_ms(record_bytes)
        if due_ms is None or due_ms <= now_ms:
            return self._clean_ms / 1000
        return min(self._clean_ms, due_ms) / 1000

    # ---- Writing -----------------------------------------------------------------------------------------------------

    async def _maybe_generate(self) -> None:
        offset, epoch = self._shard.replayed_offset, self._quorum.leading_epoch
        if offset <= self._quorum.log.snapshot_end_offset or not self._can_capture(offset):
            return
        records = self._shard.shard.snapshot(offset)
        while self._quorum.high_watermark < offset:
            await self._driver.news.wait(float("inf"))
            if self._quorum.leading_epoch != epoch or self._driver.failure is not None:
                return
        snapshot_id = OffsetAndEpoch(offset, self._quorum.log.epoch_of(offset - 1))
        if self._is_allowed(snapshot_id):
            await self._write(snapshot_id, records)

    def _can_capture(self, offset: int) -> bool:
        """False while the shard holds records that are not in the log yet, or has not noticed that it leads no more:
        then others may have written at its offsets.
        """
        if self._shard.is_active:
            return self._directory.log.log_end_offset == offset
        return self._shard.stands_by

    def _is_allowed(self, snapshot_id: OffsetAndEpoch) -> bool:
        try:
            return self._quorum.create_snapshot_allowed(snapshot_id)
        except ValueError as error:
            # The log was truncated, or began anew, behind a snapshot that was fetched.
            _logger.info("%r: %s", self, error)
            return False

    async def _write(self, snapshot_id: OffsetAndEpoch, records: Iterable[RecordT]) -> None:
        timestamp_ms = self._settings.wall_clock_ms()
        parts = encode_snapshot(
            snapshot_id,
            self._quorum.log.history.voters_at(snapshot_id.offset),
            data_batches(records, self._codec, timestamp_ms=timestamp_ms),
            timestamp_ms=timestamp_ms,
            last_contained_log_timestamp_ms=self._timestamp_ms(snapshot_id.offset - 1),
        )
        try:
            await self._directory.snapshots.write(snapshot_id, parts)
        except PassingStorageError as error:
            _logger.warning("no snapshot at offset %d: %s", snapshot_id.offset, error)
        else:
            self._on_written(snapshot_id)
        self._schedule.on_done(now_ms())

    def _on_written(self, snapshot_id: OffsetAndEpoch) -> None:
        directory = self._directory
        if snapshot_id.offset < directory.log.log_start_offset:
            # A snapshot that was fetched since has taken its place.
            directory.snapshots.delete(snapshot_id)
            return
        # So that the records that it stands for can be removed some day.
        directory.log.roll(now_ms())
        self._clean()
        self._driver.wake()

    def _timestamp_ms(self, offset: int) -> int:
        read = self._quorum.read_committed(offset, max_bytes=1)
        return next(split_batches(read.records)).max_timestamp_ms

    # ---- Deleting ----------------------------------------------------------------------------------------------------

    def _clean(self) -> None:
        config = self._settings.config
        if self._quorum.clean_snapshots(
            retention_bytes=config.metadata_max_retention_bytes,
            retention_ms=config.metadata_max_retention_ms,
            timestamp_ms=self._settings.wall_clock_ms(),
        ):
            self._driver.wake()
        self._clean_ms = now_ms() + CLEAN_INTERVAL_MS


def data_batches(
    records: Iterable[RecordT], codec: RecordCodec[RecordT], *, timestamp_ms: int
) -> Iterator[Buffer]:
    """The records as the batches of a snapshot, small enough for other work to have its turn in between."""
    remaining = iter(records)
    while batch := list(islice(remaining, _RECORDS_PER_BATCH)):
        columns = codec.columns(batch)
        yield encode_batch(columns.values, keys=columns.keys, timestamps_ms=timestamp_ms)
