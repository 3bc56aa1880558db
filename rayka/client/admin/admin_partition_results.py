"""Results of `Admin` about partitions, directories and configurations: frozen values with `to_dict` for JSON."""

from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

from rayka.client.admin.admin_results import AdminResult
from rayka.errors import ApiError, ErrorCode
from rayka.ids import NO_TIMESTAMP, TopicPartition
from rayka.protocol.configs import ConfigSource
from rayka.protocol.topics import LogCleaning, LogDirDescription, OngoingReassignment, ReplicaInfo


@dataclass(frozen=True)
class ElectionOutcome(AdminResult):
    """The outcome of one partition's election."""

    topic_partition: TopicPartition
    # None: the wanted replica was elected.
    error: ApiError | None

    @property
    def is_needless(self) -> bool:
        """Whether the wanted replica led before the election."""
        return self.error is not None and self.error.code is ErrorCode.ELECTION_NOT_NEEDED

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        code = ErrorCode.NONE if self.error is None else self.error.code
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "error": code.name,
            "message": "" if self.error is None else str(self.error),
        }


@dataclass(frozen=True)
class PartitionReassignment(AdminResult):
    """A reassignment of a partition that is under way."""

    topic_partition: TopicPartition
    # All current replicas, with the adding and the removing ones.
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(each for each in self.replicas if each not in self.removing_replicas)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {**super().to_dict(), "target": self.target}

    @classmethod
    def of(cls, ongoing: OngoingReassignment) -> Self:
        return cls.taken_from(ongoing, topic_partition=TopicPartition(ongoing.topic, ongoing.partition))


@dataclass(frozen=True)
class LastCleaningInfo(AdminResult):
    """The last compaction of a log by its broker."""

    # By the broker's clock.
    timestamp_ms: int
    # Records below it were compacted.
    end_offset: int
    # Bytes of the compacted segments before and after.
    input_bytes: int
    output_bytes: int


@dataclass(frozen=True)
class LogCleaningInfo(AdminResult):
    """The state of a compacted log."""

    # Bytes already compacted, and bytes that may be compacted now.
    clean_bytes: int
    cleanable_bytes: int
    # cleanable_bytes / (clean_bytes + cleanable_bytes)
    dirty_ratio: float
    # Why the log cannot be compacted; empty: nothing prevents it.
    problem: str = ""
    # None: the broker has not compacted the log yet.
    last: LastCleaningInfo | None = None

    @classmethod
    def of(cls, cleaning: LogCleaning) -> Self:
        total_bytes = cleaning.clean_bytes + cleaning.cleanable_bytes
        return cls.taken_from(
            cleaning,
            dirty_ratio=cleaning.cleanable_bytes / total_bytes if total_bytes else 0.0,
            last=cleaning.last and LastCleaningInfo.taken_from(cleaning.last),
        )


@dataclass(frozen=True)
class LastRetentionInfo(AdminResult):
    """The last deletion of whole segments from a log by its broker."""

    # By the broker's clock.
    timestamp_ms: int
    # The configuration key that required it, or that the log start offset was raised.
    cause: str
    log_start_offset: int
    segment_count: int
    size_bytes: int


@dataclass(frozen=True)
class ReplicaLogInfo(AdminResult):
    """One replica in a data directory of a broker, as its broker reports it."""

    topic: str
    partition: int
    topic_id: UUID
    size_bytes: int
    log_start_offset: int
    # A follower's high watermark trails the leader's.
    high_watermark: int
    log_end_offset: int
    is_leader: bool
    # A copy that a move between directories writes here; `offset_lag` behind the replica in the other directory.
    is_future: bool = False
    offset_lag: int = 0
    segment_count: int = 0
    # Of the oldest batch; -1: the log is empty.
    oldest_timestamp_ms: int = NO_TIMESTAMP
    # None: the log is not compacted.
    cleaning: LogCleaningInfo | None = None
    # None: retention has deleted nothing since the broker started.
    retention: LastRetentionInfo | None = None

    @classmethod
    def of(cls, log: ReplicaInfo) -> Self:
        return cls.taken_from(
            log,
            cleaning=log.cleaning and LogCleaningInfo.of(log.cleaning),
            retention=log.retention and LastRetentionInfo.taken_from(log.retention),
        )


@dataclass(frozen=True)
class LogDir(AdminResult):
    """One data directory of a broker and the replicas in it."""

    path: str
    directory_id: UUID
    # Empty: the disk works and has room.
    error: str
    free_bytes: int
    replicas: tuple[ReplicaLogInfo, ...]
    # A full directory still serves reads, and takes records again as soon as it has room.
    is_full: bool = False
    # A cordoned directory takes no new replicas.
    is_cordoned: bool = False

    @property
    def replica_count(self) -> int:
        """The number of replicas here, future ones not counted."""
        return sum(not each.is_future for each in self.replicas)

    @property
    def size_bytes(self) -> int:
        """The bytes of all replicas here, future ones included."""
        return sum(each.size_bytes for each in self.replicas)

    @classmethod
    def of(cls, described: LogDirDescription) -> Self:
        replicas = tuple(ReplicaLogInfo.of(each) for each in described.replicas)
        return cls.taken_from(described, replicas=replicas)


@dataclass(frozen=True)
class BrokerLogDirs(AdminResult):
    """The data directories of one broker."""

    broker_id: int
    # Empty if the broker did not answer; `error` says why.
    directories: tuple[LogDir, ...]
    error: str = ""


@dataclass(frozen=True)
class ConfigValue(AdminResult):
    """One configuration key in force: its value as text, where it comes from, and whether it can be altered."""

    name: str
    value: str
    source: ConfigSource
    is_read_only: bool = False

    @property
    def is_default(self) -> bool:
        """Whether it was never set."""
        return self.source is ConfigSource.DEFAULT

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {**super().to_dict(), "source": self.source.name.lower()}
