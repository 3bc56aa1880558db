"""What an `Admin` answers: frozen values with designed reprs, and `to_dict` for programs."""

from dataclasses import asdict, dataclass
from typing import Any, Self
from uuid import UUID

from rayka.protocol.cluster import MetadataBroker, MetadataPartition, MetadataResponse, MetadataTopic
from rayka.protocol.quorum import DescribeQuorumResponse, QuorumReplica
from rayka.protocol.topics import DEFAULT_COUNT, NewTopic


@dataclass(frozen=True)
class PartitionDescription:
    """One partition: its leader (-1 while it has none), its replicas, and those in sync, by node id."""

    partition: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @classmethod
    def of(cls, partition: MetadataPartition) -> Self:
        each = partition
        return cls(each.partition, each.leader_id, each.leader_epoch, each.replicas, each.isr)


@dataclass(frozen=True)
class TopicDescription:
    """One topic. `configs`: what was set for it explicitly, by Kafka's dotted names."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionDescription, ...]
    configs: dict[str, str]

    def __repr__(self) -> str:
        return f"<TopicDescription {self.name} partitions={len(self.partitions)} configs={self.configs}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {**asdict(self), "topic_id": str(self.topic_id)}

    def is_as_asked(self, topic: NewTopic) -> bool:
        """Whether a request for that topic may have made this one."""
        counts = (len(self.partitions), len(self.partitions[0].replicas))
        asked = (topic.partition_count, topic.replication_factor)
        fits = all(wanted in (DEFAULT_COUNT, found) for wanted, found in zip(asked, counts, strict=True))
        return fits and self.configs == topic.configs

    @classmethod
    def of(cls, topic: MetadataTopic) -> Self:
        partitions = tuple(PartitionDescription.of(each) for each in topic.partitions)
        return cls(topic.name, topic.topic_id, partitions, dict(topic.configs))


@dataclass(frozen=True)
class BrokerDescription:
    """One registered broker. A fenced one leads nothing. `data_dirs` are paths on its machine."""

    node_id: int
    host: str
    is_fenced: bool
    data_dirs: tuple[str, ...]

    @classmethod
    def of(cls, broker: MetadataBroker) -> Self:
        directories = tuple(each.path for each in broker.directories)
        return cls(broker.node_id, broker.host, broker.is_fenced, directories)


@dataclass(frozen=True)
class ClusterSummary:
    """The cluster as its active controller sees it."""

    name: str
    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerDescription, ...]
    topic_count: int

    def __repr__(self) -> str:
        brokers = [each.node_id for each in self.brokers]
        return f"<ClusterSummary {self.name} controller={self.controller_id} brokers={brokers}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return asdict(self)

    @classmethod
    def of(cls, name: str, response: MetadataResponse) -> Self:
        brokers = tuple(BrokerDescription.of(each) for each in response.brokers)
        return cls(name, response.cluster_id, response.controller_id, brokers, len(response.topics))


@dataclass(frozen=True)
class ReplicaState:
    """One replica of the metadata log as the quorum's leader knows it; -1 where it knows nothing yet.

    `lag` counts the records that it is behind the leader's log end.
    """

    node_id: int
    directory_id: UUID
    log_end_offset: int
    lag: int
    last_fetch_ago_ms: int
    last_caught_up_ago_ms: int

    @classmethod
    def of(cls, replica: QuorumReplica, leader_log_end_offset: int) -> Self:
        end_offset = replica.log_end_offset
        return cls(
            node_id=replica.replica.node_id,
            directory_id=replica.replica.directory_id,
            log_end_offset=end_offset,
            lag=max(0, leader_log_end_offset - end_offset) if end_offset >= 0 else -1,
            last_fetch_ago_ms=replica.last_fetch_ago_ms,
            last_caught_up_ago_ms=replica.last_caught_up_ago_ms,
        )


@dataclass(frozen=True)
class QuorumInfo:
    """The metadata quorum as its leader, the active controller, sees it. Kafka: QuorumInfo."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[ReplicaState, ...]
    observers: tuple[ReplicaState, ...]

    def __repr__(self) -> str:
        voters = [each.node_id for each in self.voters]
        leader = f"leader={self.leader_id} epoch={self.leader_epoch}"
        return f"<QuorumInfo {leader} hw={self.high_watermark} voters={voters}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {
            **asdict(self),
            "voters": [_plain(each) for each in self.voters],
            "observers": [_plain(each) for each in self.observers],
        }

    @classmethod
    def of(cls, response: DescribeQuorumResponse) -> Self:
        replicas = (*response.voters, *response.observers)
        # A leader that has taken its own vote away is in neither list.
        known = [each.log_end_offset for each in replicas if each.replica.node_id == response.leader_id]
        end_offset = max(known or [each.log_end_offset for each in replicas], default=response.high_watermark)
        return cls(
            leader_id=response.leader_id,
            leader_epoch=response.leader_epoch,
            high_watermark=response.high_watermark,
            voters=tuple(ReplicaState.of(each, end_offset) for each in response.voters),
            observers=tuple(ReplicaState.of(each, end_offset) for each in response.observers),
        )


def _plain(replica: ReplicaState) -> dict[str, Any]:
    return {**asdict(replica), "directory_id": str(replica.directory_id)}
