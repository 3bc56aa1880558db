"""The cluster's metadata at one offset of `__cluster_metadata`, immutable.

`MetadataDelta` makes the next one. Two images share every topic, broker and configuration that did not change
between them, so a new image costs a copy of the maps that changed, not of what they hold. Maps keep the order
in which their entries came, but for the brokers, which come by their ids.

Kafka: `MetadataImage`, `TopicsImage`, `ClusterImage`, `ConfigurationsImage`, `ProducerIdsImage` (H9).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from rayka.errors import UnknownTopicOrPartition
from rayka.ids import NO_NODE, Role, TopicIdPartition, TopicPartition
from rayka.metadata.metadata_records import (
    ELIGIBLE_LEADER_REPLICAS,
    EVENTS_LEVEL,
    METADATA_VERSION,
    EventRecord,
    RegisterBrokerRecord,
)
from rayka.protocol.configs import ResourceType
from rayka.protocol.membership import LogDirectory
from rayka.protocol.replica_reports import LeaderRecoveryState


class PartitionImage(msgspec.Struct, frozen=True, gc=False):
    """One partition's replicas, which are in sync, and which leads it in which epoch. `leader_id` -1: none."""

    replicas: tuple[int, ...]
    directories: tuple[UUID, ...]
    isr: tuple[int, ...]
    leader_id: int
    leader_epoch: int
    partition_epoch: int
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    def __repr__(self) -> str:
        elr = f" elr={list(self.eligible_leader_replicas)}" if self.eligible_leader_replicas else ""
        return (
            f"<PartitionImage leader={self.leader_id} epoch={self.leader_epoch} isr={list(self.isr)}{elr}"
            f" replicas={list(self.replicas)} partition_epoch={self.partition_epoch}>"
        )

    @property
    def has_leader(self) -> bool:
        return self.leader_id != NO_NODE

    @property
    def is_reassigned(self) -> bool:
        """Whether a reassignment of it is under way."""
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """What it has, or will have when its reassignment is over."""
        return tuple(each for each in self.replicas if each not in self.removing_replicas)

    @property
    def original_replicas(self) -> tuple[int, ...]:
        """What a cancel of its reassignment goes back to; all replicas while nothing is under way."""
        return tuple(each for each in self.replicas if each not in self.adding_replicas)

    def directory_of(self, broker_id: int) -> UUID | None:
        """The directory that holds this broker's replica; None when it holds none."""
        return self.directories[self.replicas.index(broker_id)] if broker_id in self.replicas else None


class TopicImage(msgspec.Struct, frozen=True):
    """One topic: partition number n is `partitions[n]`."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionImage, ...] = ()

    def __repr__(self) -> str:
        return f"<TopicImage {self.name} id={self.topic_id} partitions={len(self.partitions)}>"


class BrokerImage(msgspec.Struct, frozen=True):
    """One registered broker: the process of that epoch, and whether it may lead."""

    registration: RegisterBrokerRecord
    is_fenced: bool
    is_in_controlled_shutdown: bool
    offline_directories: tuple[UUID, ...] = ()

    def __repr__(self) -> str:
        state = (
            "fenced" if self.is_fenced else "shutting down" if self.is_in_controlled_shutdown else "active"
        )
        return f"<BrokerImage {self.broker_id} epoch={self.broker_epoch} {state}>"

    @property
    def broker_id(self) -> int:
        return self.registration.broker_id

    @property
    def broker_epoch(self) -> int:
        return self.registration.broker_epoch

    @property
    def directories(self) -> tuple[LogDirectory, ...]:
        return self.registration.directories

    @property
    def takes_user_partitions(self) -> bool:
        return Role.BROKER in self.registration.roles

    @property
    def is_coordinator(self) -> bool:
        """Whether internal partitions go to it before they go to other brokers."""
        return Role.COORDINATOR in self.registration.roles

    @property
    def is_active(self) -> bool:
        """Whether the broker may be elected leader and join an ISR (B40)."""
        return not self.is_fenced and not self.is_in_controlled_shutdown

    @property
    def online_directories(self) -> tuple[UUID, ...]:
        """Ids of its directories that have not failed, in the order of its registration."""
        ids = [directory.directory_id for directory in self.directories]
        return tuple(each for each in ids if each not in self.offline_directories)


class ConfigResource(msgspec.Struct, frozen=True):
    """What a configuration belongs to."""

    type: ResourceType
    name: str


@dataclass(frozen=True, slots=True, repr=False)
class MetadataImage:
    """The metadata after every record below `next_offset`. No broker has a producer id from `next_producer_id` on.
    `events` are the newest ones, at most 1,000.

    Invariants: `topics` (by name) and `topics_by_id` hold the same topics; no map is changed after
    construction; the numbers of events rise.
    """

    next_offset: int = 0
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[UUID, TopicImage] = field(default_factory=dict)
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    events: tuple[EventRecord, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<MetadataImage offset={self.next_offset} topics={len(self.topics)} brokers={len(self.brokers)}>"
        )

    @property
    def metadata_version(self) -> int:
        """The version at which metadata records are written; 0 before the first controller decided it."""
        return self.features.get(METADATA_VERSION, 0)

    @property
    def has_eligible_leader_replicas(self) -> bool:
        """Whether the cluster keeps track of replicas that left the ISR and are whole (B42)."""
        return self.features.get(ELIGIBLE_LEADER_REPLICAS, 0) > 0

    @property
    def has_events(self) -> bool:
        """Whether events may be written: every node can read them."""
        return self.metadata_version >= EVENTS_LEVEL

    @property
    def next_event_number(self) -> int:
        return self.events[-1].number + 1 if self.events else 0

    def broker_configs(self, broker_id: int | None) -> Mapping[str, str]:
        """What was set for this broker itself, or with None for all brokers."""
        name = "" if broker_id is None else str(broker_id)
        return self.configs.get(ConfigResource(ResourceType.BROKER, name), {})

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """What was set for this topic itself, by Kafka's dotted keys."""
        return self.configs.get(ConfigResource(ResourceType.TOPIC, name), {})

    def partition(self, key: TopicIdPartition) -> PartitionImage | None:
        """The partition, or None when no topic of that id has it."""
        topic = self.topics_by_id.get(key.topic_id)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            return None
        return topic.partitions[key.partition]

    def partitions(self) -> Iterator[tuple[TopicIdPartition, PartitionImage]]:
        """Every partition of every topic."""
        for topic in self.topics.values():
            for number, partition in enumerate(topic.partitions):
                yield TopicIdPartition(topic.topic_id, number), partition


def named_partition(image: MetadataImage, name: TopicPartition) -> tuple[TopicIdPartition, PartitionImage]:
    """The partition that a request names. Raises UnknownTopicOrPartition, saying which there are."""
    topic = image.topics.get(name.topic)
    if topic is None:
        raise UnknownTopicOrPartition(f"there is no topic {name.topic!r}")
    if not 0 <= name.partition < len(topic.partitions):
        raise UnknownTopicOrPartition(
            f"topic {name.topic!r} has partitions 0 to {len(topic.partitions) - 1}, found {name.partition}"
        )
    return TopicIdPartition(topic.topic_id, name.partition), topic.partitions[name.partition]
