"""What an `Admin` answers about partitions, directories and configurations: frozen values, plain enough for JSON."""

from dataclasses import asdict, dataclass
from typing import Any, Self
from uuid import UUID

from rayka.errors import ApiError, ErrorCode
from rayka.ids import TopicPartition
from rayka.protocol.configs import ConfigEntry, ConfigSource
from rayka.protocol.partition_admin import (
    LogDirDescription,
    OngoingReassignment,
    ReplicaLog,
)


@dataclass(frozen=True)
class ElectionOutcome:
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
class PartitionReassignment:
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
        plain = asdict(self)
        del plain["topic_partition"]
        topic, partition = self.topic_partition.topic, self.topic_partition.partition
        return {"topic": topic, "partition": partition, **plain, "target": self.target}

    @classmethod
    def of(cls, ongoing: OngoingReassignment) -> Self:
        return cls(
            topic_partition=TopicPartition(ongoing.topic, ongoing.partition),
            replicas=ongoing.replicas,
            adding_replicas=ongoing.adding_replicas,
            removing_replicas=ongoing.removing_replicas,
        )


@dataclass(frozen=True)
class ReplicaLogInfo:
    """One replica on a broker's disk, as far as it is; a follower's high watermark trails the leader's."""

    topic: str
    partition: int
    topic_id: UUID
    size_bytes: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    is_leader: bool

    @classmethod
    def of(cls, log: ReplicaLog) -> Self:
        return cls(
            topic=log.topic,
            partition=log.partition,
            topic_id=log.topic_id,
            size_bytes=log.size_bytes,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
            log_end_offset=log.log_end_offset,
            is_leader=log.is_leader,
        )


@dataclass(frozen=True)
class LogDir:
    """One data directory of a broker and the replicas in it. `error` is empty while the disk works and has room; a full
    one is still read, and goes on by itself when there is room.
    """

    path: str
    directory_id: UUID
    error: str
    free_bytes: int
    replicas: tuple[ReplicaLogInfo, ...]
    is_full: bool = False

    @property
    def size_bytes(self) -> int:
        """What the replicas take up."""
        return sum(each.size_bytes for each in self.replicas)

    @classmethod
    def of(cls, described: LogDirDescription) -> Self:
        replicas = tuple(ReplicaLogInfo.of(each) for each in described.replicas)
        return cls(
            described.path,
            described.directory_id,
            described.error,
            described.free_bytes,
            replicas,
            described.is_full,
        )


@dataclass(frozen=True)
class BrokerLogDirs:
    """The data directories of one broker; `error` says why there are none when it did not answer."""

    broker_id: int
    directories: tuple[LogDir, ...]
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON once UUIDs are written as text."""
        return asdict(self)


@dataclass(frozen=True)
class ConfigValue:
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
        return {**asdict(self), "source": self.source.name.lower()}

    @classmethod
    def of(cls, entry: ConfigEntry) -> Self:
        return cls(entry.name, entry.value, entry.source, entry.is_read_only)
