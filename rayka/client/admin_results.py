"""What an `Admin` answers: frozen values with designed reprs, and `to_dict` for programs."""

from dataclasses import asdict, dataclass
from typing import Any, Self
from uuid import UUID

from rayka.protocol.cluster import MetadataBroker, MetadataPartition, MetadataResponse, MetadataTopic


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
