"""What an `Admin` answers about partitions, directories and configurations: frozen values, plain enough for JSON."""

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
    """What became of one partition's election; `error` is None when it has the leader that was wanted."""

    topic_partition: TopicPartition
    error: ApiError | None

    @property
    def is_needless(self) -> bool:
        """Whether the wanted leader led already."""
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
    """A partition on its way to other replicas: `replicas` are all of now, the adding and the removing ones too."""

    topic_partition: TopicPartition
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that it will have."""
        return tuple(each for each in self.replicas if each not in self.removing_replicas)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {**super().to_dict(), "target": self.target}

    @classmethod
    def of(cls, ongoing: OngoingReassignment) -> Self:
        return cls.taken_from(ongoing, topic_partition=TopicPartition(ongoing.topic, ongoing.partition))


@dataclass(frozen=True)
class LastCleaningInfo(AdminResult):
    """What the last compaction of a log by its broker did, and when, by that broker's clock: up to which offset, and
    how many bytes of segments became how many.
    """

    timestamp_ms: int
    end_offset: int
    input_bytes: int
    output_bytes: int


@dataclass(frozen=True)
class LogCleaningInfo(AdminResult):
    """How a compacted log stands: its bytes that were compacted before, and those that may be compacted now. `problem`
    says why it cannot be compacted, empty when nothing is in the way; `last` is None until its broker has compacted it.
    """

    clean_bytes: int
    cleanable_bytes: int
    dirty_ratio: float
    problem: str = ""
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
    """What retention last took out of a log on its broker, and when, by that broker's clock: whole segments, for the
    configuration key in `cause`, or because the log starts later.
    """

    timestamp_ms: int
    cause: str
    log_start_offset: int
    segment_count: int
    size_bytes: int


@dataclass(frozen=True)
class ReplicaLogInfo(AdminResult):
    """One replica on a broker's disk, as far as it is; a follower's high watermark trails the leader's. A future one is
    a copy on its way into this directory: it lacks `offset_lag` offsets of the replica in the other one.
    `oldest_timestamp_ms` is that of the oldest batch, -1 where there is none. `cleaning` is None for a log that is not
    compacted, `retention` for one that has lost nothing to it since its broker started.
    """

    topic: str
    partition: int
    topic_id: UUID
    size_bytes: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    is_leader: bool
    is_future: bool = False
    offset_lag: int = 0
    segment_count: int = 0
    oldest_timestamp_ms: int = NO_TIMESTAMP
    cleaning: LogCleaningInfo | None = None
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
    """One data directory of a broker and the replicas in it. `error` is empty while the disk works and has room; a full
    one is still read, and goes on by itself when there is room. A cordoned one takes no new replicas.
    """

    path: str
    directory_id: UUID
    error: str
    free_bytes: int
    replicas: tuple[ReplicaLogInfo, ...]
    is_full: bool = False
    is_cordoned: bool = False

    @property
    def replica_count(self) -> int:
        """How many replicas are here, those not counted that are on their way into it."""
        return sum(not each.is_future for each in self.replicas)

    @property
    def size_bytes(self) -> int:
        """What the replicas take up."""
        return sum(each.size_bytes for each in self.replicas)

    @classmethod
    def of(cls, described: LogDirDescription) -> Self:
        replicas = tuple(ReplicaLogInfo.of(each) for each in described.replicas)
        return cls.taken_from(described, replicas=replicas)


@dataclass(frozen=True)
class BrokerLogDirs(AdminResult):
    """The data directories of one broker; `error` says why there are none when it did not answer."""

    broker_id: int
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
