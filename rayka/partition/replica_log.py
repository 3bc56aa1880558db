"""The log of one replica with its high watermark, as both roles of a partition use it; and the replica's traffic.

Invariant: log_start_offset <= high_watermark <= log_end_offset. Kafka: `UnifiedLog` with its high watermark (B4),
`BrokerTopicMetrics`.
"""

from typing import NamedTuple
from uuid import UUID

from rayka.config.topic_config import FlushPolicy, TopicConfig
from rayka.errors import KafkaStorageError, StorageError
from rayka.ids import TopicPartition
from rayka.log.log import Log


class TrafficCounts(NamedTuple):
    """Bytes and records since the counts were last taken. Those of followers are apart, because they follow from the
    producers' records.
    """

    bytes_in: int = 0
    records_in: int = 0
    bytes_out: int = 0
    records_out: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0


NO_TRAFFIC = TrafficCounts()


class Traffic:
    """The traffic of one replica, counted by the requests that carry it and taken by the broker's load meter. Plain
    attributes, because each request adds to some of them.

    A batch that its producer sent twice counts twice, as in Kafka. A reader's records are counted by offsets, so
    records that compaction has removed count, too.
    """

    __slots__ = TrafficCounts._fields

    def __init__(self) -> None:
        self.take()

    def take(self) -> TrafficCounts:
        """Returns the counts, and begins anew."""
        counts = TrafficCounts(*(getattr(self, name, 0) for name in TrafficCounts._fields))
        self.bytes_in = self.records_in = self.bytes_out = self.records_out = 0
        self.replication_bytes_in = self.replication_bytes_out = 0
        return counts


class ReplicaLog:
    """This broker's log of one partition. A `failure` of its directory ends all use of it."""

    def __init__(
        self, topic_partition: TopicPartition, topic_id: UUID, broker_id: int, log: Log, config: TopicConfig
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.broker_id = broker_id
        self.log = log
        self.config = config
        self.failure: StorageError | None = None
        self.high_watermark = log.log_start_offset
        self.traffic = Traffic()

    def __repr__(self) -> str:
        return f"<ReplicaLog {self.topic_partition} hw={self.high_watermark} leo={self.log.log_end_offset}>"

    @property
    def is_flushed_in_batches(self) -> bool:
        """Whether a record counts only once it is on the disk."""
        return self.config.flush is FlushPolicy.BATCH

    @property
    def needs_sync(self) -> bool:
        """Whether the records appended must reach the disk before they are acknowledged."""
        unflushed_count = self.log.log_end_offset - self.log.flushed_offset
        return unflushed_count > 0 and (
            self.is_flushed_in_batches or unflushed_count >= self.config.flush_messages
        )

    def load_high_watermark(self, saved: int | None) -> None:
        """Takes over the checkpoint's high watermark, within the log (B4)."""
        start = self.log.log_start_offset
        self.high_watermark = min(max(start if saved is None else saved, start), self.log.log_end_offset)

    def update_config(self, config: TopicConfig) -> None:
        """Applies the configuration from the next request on."""
        self.config = config
        self.log.config = config

    def check_online(self) -> None:
        """Raises KafkaStorageError when the disk has failed."""
        if self.failure is not None:
            raise KafkaStorageError(f"{self.topic_partition}: {self.failure}")
