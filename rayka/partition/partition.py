"""One replica of one partition: who leads it in which epoch, its log, and how far that is committed.

Invariants: log_start_offset <= high_watermark <= log_end_offset; the high watermark of one leadership never
falls; an append happens only while this broker leads; with `flush=batch` the high watermark stays below
what a power cut would take, so nobody reads, and nobody was told of, a record that can vanish.

Kafka: `cluster/Partition.scala` (B1, B4, B15, B16, B18, B24; reads G1-G4, G12). Left out: other replicas
than this one, so followers, ISR changes and truncation.
"""

from typing import NamedTuple
from uuid import UUID

from rayka.config import FlushPolicy, TopicConfig
from rayka.errors import (
    ApiError,
    FencedLeaderEpoch,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    StorageError,
    UnknownLeaderEpoch,
)
from rayka.ids import NO_EPOCH, NO_NODE, NO_OFFSET, NO_TIMESTAMP, OffsetAndEpoch, TopicPartition
from rayka.log.log import LocalRead, Log
from rayka.metadata.image import PartitionImage
from rayka.partition.validation import is_stamped_by_broker, validate_batches
from rayka.ports import Buffer
from rayka.protocol.fetch import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    FetchPartition,
    FileRange,
)
from rayka.protocol.produce import ACKS_ALL


class Appended(NamedTuple):
    """An append that is to be acknowledged: where it is, in which epoch, and whether a sync must come
    first."""

    base_offset: int
    required_offset: int
    leader_epoch: int
    log_append_time_ms: int
    needs_sync: bool


class ReadResult(NamedTuple):
    """What a fetch gets of this partition: bytes, or places in files, or where the reader's log diverges
    (G2)."""

    high_watermark: int
    log_start_offset: int
    next_offset: int
    records: bytes = b""
    file_ranges: tuple[FileRange, ...] = ()
    diverging_epoch: OffsetAndEpoch | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.records) + sum(each.size_bytes for each in self.file_ranges)


class FoundOffset(NamedTuple):
    """The answer to ListOffsets; -1 when there is no such record."""

    timestamp_ms: int = NO_TIMESTAMP
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH


class Partition:
    """This broker's replica of one partition."""

    def __init__(
        self, topic_partition: TopicPartition, topic_id: UUID, broker_id: int, log: Log, config: TopicConfig
    ) -> None:
        self._broker_id = broker_id
        self._config = config
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.failure: StorageError | None = None
        self.leader_id = NO_NODE
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        self.leader_epoch_start_offset = NO_OFFSET
        self.high_watermark = log.log_start_offset
        self._isr: tuple[int, ...] = ()
        self._replica_count = 0

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else "follower"
        return (
            f"<Partition {self.topic_partition} {role} epoch={self.leader_epoch} hw={self.high_watermark}"
            f" leo={self.log.log_end_offset} isr={list(self._isr)}>"
        )

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self._broker_id

    @property
    def config(self) -> TopicConfig:
        return self._config

    # ---- Leadership ------------------------------------------------------------------------------------

    def load_high_watermark(self, saved: int | None) -> None:
        """What the checkpoint says, as far as the log can be that (B4)."""
        start = self.log.log_start_offset
        self.high_watermark = min(max(start if saved is None else saved, start), self.log.log_end_offset)

    def update_config(self, config: TopicConfig) -> None:
        """Counts from the next request on."""
        self._config = config
        self.log.update_config(config)

    def update_leadership(self, state: PartitionImage) -> None:
        """Takes over what the metadata says; an older state changes nothing (B16).

        A new epoch of this broker's leadership begins at its log end offset, also when it will own no record.
        """
        if state.partition_epoch < self.partition_epoch:
            return
        is_new_epoch = state.leader_epoch > self.leader_epoch
        self.leader_id, self.leader_epoch = state.leader_id, state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self._isr, self._replica_count = state.isr, len(state.replicas)
        if not self.is_leader:
            return
        if is_new_epoch:
            self.leader_epoch_start_offset = self.log.log_end_offset
            self.log.assign_epoch(state.leader_epoch, self.log.log_end_offset)
        self.maybe_increment_high_watermark()

    def maybe_increment_high_watermark(self) -> bool:
        """Whether the high watermark rose: to the lowest log end offset of the ISR, if that is large enough
        (B1)."""
        if not self.is_leader or len(self._isr) < self._effective_min_isr:
            return False
        committed = self._own_committed_offset
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        assert self.log.log_start_offset <= committed <= self.log.log_end_offset, self
        return True

    @property
    def _own_committed_offset(self) -> int:
        """How far this replica counts: with `flush=batch` only what is on the disk."""
        if self._config.flush is FlushPolicy.BATCH:
            return self.log.flushed_offset
        return self.log.log_end_offset

    @property
    def _effective_min_isr(self) -> int:
        return min(self._config.min_insync_replicas, self._replica_count)

    # ---- Producing -------------------------------------------------------------------------------------

    def append(self, records: Buffer, acks: int, *, now_ms: int, timestamp_ms: int) -> Appended:
        """Validates the batches and appends them (B18). `now_ms` is monotonic, `timestamp_ms` the wall
        clock's.

        A batch that its producer sent before is where it was (C3). Raises NotLeaderOrFollower, NotEnoughReplicas
        (B15, nothing written), what `validate_batches` raises, OutOfOrderSequence, InvalidProducerEpoch,
        RecordBatchTooLarge, and StorageError when the disk fails.
        """
        self._check_leader()
        if acks == ACKS_ALL and len(self._isr) < self._effective_min_isr:
            raise NotEnoughReplicas(self._too_few_replicas())
        batches = validate_batches(
            records, self._config, where=str(self.topic_partition), timestamp_ms=timestamp_ms
        )
        stamp_ms = timestamp_ms if is_stamped_by_broker(self._config) else None
        info = self.log.append_as_leader(
            batches, self.leader_epoch, now_ms=now_ms, log_append_time_ms=stamp_ms
        )
        if info.is_duplicate and stamp_ms is not None:
            stamp_ms = info.max_timestamp_ms
        self.maybe_increment_high_watermark()
        return Appended(
            base_offset=info.first_offset,
            required_offset=info.last_offset + 1,
            leader_epoch=self.leader_epoch,
            log_append_time_ms=NO_TIMESTAMP if stamp_ms is None else stamp_ms,
            needs_sync=self.needs_sync,
        )

    @property
    def needs_sync(self) -> bool:
        """Whether what was appended must reach the disk before it is acknowledged."""
        unflushed_count = self.log.log_end_offset - self.log.flushed_offset
        return unflushed_count > 0 and (
            self._config.flush is FlushPolicy.BATCH or unflushed_count >= self._config.flush_messages
        )

    def is_acknowledged(self, appended: Appended, acks: int) -> bool:
        """Whether the producer may be told of the append (B15).

        Raises NotLeaderOrFollower after a change of leadership, NotEnoughReplicasAfterAppend, and
        KafkaStorageError when the disk has failed meanwhile.
        """
        self._check_online()
        if not self.is_leader or self.leader_epoch != appended.leader_epoch:
            raise NotLeaderOrFollower(
                f"{self.topic_partition}: the leadership changed before the append was committed"
            )
        if appended.needs_sync and self.log.flushed_offset < appended.required_offset:
            return False
        if acks != ACKS_ALL:
            return True
        if self.high_watermark < appended.required_offset:
            return False
        if len(self._isr) < self._effective_min_isr:
            raise NotEnoughReplicasAfterAppend(self._too_few_replicas())
        return True

    # ---- Reading ---------------------------------------------------------------------------------------

    def read(
        self, fetch: FetchPartition, *, max_bytes: int, min_one_batch: bool, as_file_ranges: bool = False
    ) -> ReadResult:
        """Whole batches from the one that contains the fetch offset, below the high watermark (G1-G4).

        `next_offset` follows the last of them. Raises OffsetOutOfRange, what `check_readable` raises, and
        StorageError when the disk fails.
        """
        self.check_readable(fetch.current_leader_epoch)
        nothing = ReadResult(self.high_watermark, self.log.log_start_offset, fetch.fetch_offset)
        diverging_epoch = self._diverging_epoch(fetch)
        if diverging_epoch is not None:
            return nothing._replace(diverging_epoch=diverging_epoch)
        read = self.log.file_ranges if as_file_ranges else self.log.read
        data = read(
            fetch.fetch_offset,
            max_bytes=min(max_bytes, fetch.max_bytes),
            end_offset=self.high_watermark,
            min_one_batch=min_one_batch,
        )
        if isinstance(data, LocalRead):
            return nothing._replace(file_ranges=data.ranges, next_offset=data.next_offset)
        return nothing._replace(records=data.records, next_offset=data.next_offset)

    def available_bytes(self, offset: int, max_bytes: int) -> int:
        """How many bytes of whole batches stand between the offset and the high watermark, at most
        max_bytes."""
        local = self.log.file_ranges(
            offset, max_bytes=max_bytes, end_offset=self.high_watermark, min_one_batch=True
        )
        return min(max_bytes, sum(each.size_bytes for each in local.ranges))

    def _diverging_epoch(self, fetch: FetchPartition) -> OffsetAndEpoch | None:
        """Where the reader's log parts from this one (G2); None while it does not."""
        if fetch.last_fetched_epoch == NO_EPOCH:
            return None
        end = self.log.end_offset_for_epoch(fetch.last_fetched_epoch)
        if end.epoch == NO_EPOCH:
            raise OffsetOutOfRange(
                f"{self.topic_partition}: where epoch {fetch.last_fetched_epoch} ended is not known here"
            )
        is_diverging = end.epoch < fetch.last_fetched_epoch or end.offset < fetch.fetch_offset
        return end if is_diverging else None

    def find_offset(self, timestamp_ms: int, current_leader_epoch: int) -> FoundOffset:
        """The earliest, latest, or first offset at or after a time, below the high watermark (G12).

        Raises OffsetNotAvailable while the high watermark has not reached the leader's first offset.
        """
        self.check_readable(current_leader_epoch)
        if timestamp_ms == EARLIEST_TIMESTAMP:
            return self._found_at(self.log.log_start_offset)
        if self.high_watermark < self.leader_epoch_start_offset:
            raise OffsetNotAvailable(
                f"{self.topic_partition}: the high watermark {self.high_watermark} has not reached"
                f" {self.leader_epoch_start_offset}, where leader epoch {self.leader_epoch} began"
            )
        if timestamp_ms == LATEST_TIMESTAMP:
            return FoundOffset(NO_TIMESTAMP, self.high_watermark, self.leader_epoch)
        return self._found_by_time(timestamp_ms)

    def _found_at(self, offset: int) -> FoundOffset:
        return FoundOffset(NO_TIMESTAMP, offset, self.log.epoch_of(offset))

    def _found_by_time(self, timestamp_ms: int) -> FoundOffset:
        if timestamp_ms == MAX_TIMESTAMP:
            found = self.log.max_timestamp(end_offset=self.high_watermark)
        else:
            found = self.log.offset_for_timestamp(timestamp_ms, end_offset=self.high_watermark)
        return FoundOffset() if found is None else FoundOffset(*found)

    # ---- Checks ----------------------------------------------------------------------------------------

    def check_readable(self, current_leader_epoch: int) -> None:
        """Raises FencedLeaderEpoch when the caller's epoch is older, UnknownLeaderEpoch when it is newer (B24),
        NotLeaderOrFollower, and KafkaStorageError when the disk has failed. Epoch -1 is not checked.
        """
        if current_leader_epoch not in (NO_EPOCH, self.leader_epoch):
            is_older = current_leader_epoch < self.leader_epoch
            kind: type[ApiError] = FencedLeaderEpoch if is_older else UnknownLeaderEpoch
            raise kind(
                f"{self.topic_partition}: leader epoch is {self.leader_epoch}, found {current_leader_epoch}"
            )
        self._check_leader()

    def _check_leader(self) -> None:
        self._check_online()
        if not self.is_leader:
            raise NotLeaderOrFollower(
                f"{self.topic_partition}: broker {self._broker_id} does not lead it;"
                f" broker {self.leader_id} does, in epoch {self.leader_epoch}"
            )

    def _check_online(self) -> None:
        if self.failure is not None:
            raise KafkaStorageError(f"{self.topic_partition}: {self.failure}")

    def _too_few_replicas(self) -> str:
        return (
            f"{self.topic_partition}: in sync are {list(self._isr)},"
            f" min.insync.replicas={self._config.min_insync_replicas}"
        )
