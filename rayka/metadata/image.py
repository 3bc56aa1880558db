"""The cluster's metadata at one offset of `__cluster_metadata`, immutable; configurations in effect; answers from it.

**Image.** `MetadataDelta` makes the next image. Two images share every topic, broker and configuration that did not
change between them, so a new image costs a copy of the changed maps, not of their content. Maps keep the order in which
their entries were added; brokers are in the order of their ids.

**Configuration in effect.** One rule for brokers, controllers and callers that ask. A topic's key is the topic's own
value, else the broker's value of the synonym. A broker's key is the broker's own value, else the value of all brokers,
else the value with which the node was started, else the default. One exception: `segment.bytes` of
`__consumer_offsets`, if it is the default of earlier releases, counts as the broker's (decision 084). A value that this
release does not accept counts as not set, and the log names it: another release wrote it, and a node that ended because
of the value would end at each start. Kafka: `KafkaConfigSchema`.

**Answers.** To Metadata requests and requests for events, the same on brokers and controllers. A Metadata response is
made in steps, because one about all topics may name a hundred thousand partitions. Kafka: `KRaftMetadataCache`.

Kafka: `MetadataImage`, `TopicsImage`, `ClusterImage`, `ConfigurationsImage`, `ProducerIdsImage` (H9).
"""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from rayka.config.broker_config import BrokerConfig
from rayka.config.topic_config import TopicConfig
from rayka.errors import ConfigError, ErrorCode, UnknownTopicOrPartition
from rayka.ids import NO_NODE, Role, TopicIdPartition, TopicPartition, is_internal
from rayka.metadata.metadata_records import (
    ELIGIBLE_LEADER_REPLICAS,
    EVENTS_LEVEL,
    METADATA_VERSION,
    EventRecord,
    RegisterBrokerRecord,
)
from rayka.protocol.configs import ResourceType
from rayka.protocol.events import DescribeEventsRequest, DescribeEventsResponse, Event
from rayka.protocol.membership import (
    LeaderRecoveryState,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    RegisteredDirectory,
)


class PartitionImage(msgspec.Struct, frozen=True, gc=False):
    """One partition: its replicas, ISR and leader."""

    replicas: tuple[int, ...]
    # The replicas' directories, in the order of `replicas`.
    directories: tuple[UUID, ...]
    isr: tuple[int, ...]
    # NO_NODE: no leader.
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
        """Whether a reassignment of the partition is under way."""
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas after the end of the reassignment; all replicas without one."""
        return tuple(each for each in self.replicas if each not in self.removing_replicas)

    @property
    def original_replicas(self) -> tuple[int, ...]:
        """The replicas after a cancel of the reassignment; all replicas without one."""
        return tuple(each for each in self.replicas if each not in self.adding_replicas)

    def directory_of(self, broker_id: int) -> UUID | None:
        """The directory of the broker's replica; None: the broker has no replica."""
        return self.directories[self.replicas.index(broker_id)] if broker_id in self.replicas else None


class TopicImage(msgspec.Struct, frozen=True):
    """One topic."""

    name: str
    topic_id: UUID
    # By partition number.
    partitions: tuple[PartitionImage, ...] = ()

    def __repr__(self) -> str:
        return f"<TopicImage {self.name} id={self.topic_id} partitions={len(self.partitions)}>"


class BrokerImage(msgspec.Struct, frozen=True):
    """One registered broker."""

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
    def directories(self) -> tuple[RegisteredDirectory, ...]:
        return self.registration.directories

    @property
    def takes_user_partitions(self) -> bool:
        return Role.BROKER in self.registration.roles

    @property
    def is_coordinator(self) -> bool:
        """Whether the broker gets internal partitions before other brokers do."""
        return Role.COORDINATOR in self.registration.roles

    @property
    def is_active(self) -> bool:
        """Whether the broker may be elected leader and join an ISR (B40)."""
        return not self.is_fenced and not self.is_in_controlled_shutdown

    @property
    def online_directories(self) -> tuple[UUID, ...]:
        """Ids of the directories that have not failed, in the order of the registration."""
        ids = [directory.directory_id for directory in self.directories]
        return tuple(each for each in ids if each not in self.offline_directories)


class ConfigResource(msgspec.Struct, frozen=True):
    """A topic, a broker, or all brokers: the owner of a configuration."""

    type: ResourceType
    name: str


@dataclass(frozen=True, slots=True, repr=False)
class MetadataImage:
    """The metadata after every record below `next_offset`.

    Invariants: `topics` and `topics_by_id` hold the same topics; no map changes after construction.
    """

    next_offset: int = 0
    # By name.
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[UUID, TopicImage] = field(default_factory=dict)
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    # No broker has a producer id from here on.
    next_producer_id: int = 0
    # The newest ones, at most 1,000. Their numbers rise.
    events: tuple[EventRecord, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<MetadataImage offset={self.next_offset} topics={len(self.topics)} brokers={len(self.brokers)}>"
        )

    @property
    def metadata_version(self) -> int:
        """The version in which metadata records are written; 0 until the first controller has decided it."""
        return self.features.get(METADATA_VERSION, 0)

    @property
    def has_eligible_leader_replicas(self) -> bool:
        """Whether the cluster remembers replicas that left the ISR and have all committed records (B42)."""
        return self.features.get(ELIGIBLE_LEADER_REPLICAS, 0) > 0

    @property
    def has_events(self) -> bool:
        """Whether events may be written, because every node can read them."""
        return self.metadata_version >= EVENTS_LEVEL

    @property
    def next_event_number(self) -> int:
        return self.events[-1].number + 1 if self.events else 0

    def broker_configs(self, broker_id: int | None) -> Mapping[str, str]:
        """The values set for one broker; None: for all brokers."""
        name = "" if broker_id is None else str(broker_id)
        return self.configs.get(ConfigResource(ResourceType.BROKER, name), {})

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """The values set for one topic, by Kafka's dotted keys."""
        return self.configs.get(ConfigResource(ResourceType.TOPIC, name), {})

    def partition(self, key: TopicIdPartition) -> PartitionImage | None:
        """The partition; None: no topic of the id has it."""
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
    """The partition that a request names. Raises UnknownTopicOrPartition with the partitions that exist."""
    topic = image.topics.get(name.topic)
    if topic is None:
        raise UnknownTopicOrPartition(f"there is no topic {name.topic!r}")
    if not 0 <= name.partition < len(topic.partitions):
        raise UnknownTopicOrPartition(
            f"topic {name.topic!r} has partitions 0 to {len(topic.partitions) - 1}, found {name.partition}"
        )
    return TopicIdPartition(topic.topic_id, name.partition), topic.partitions[name.partition]


# ---- Configuration in effect ---------------------------------------------------------------------------------------


# Configurations that are remembered; of more topics with different ones, some are parsed each time.
_CACHED_MAX = 1024

_SEGMENT_BYTES, _EARLIER_DEFAULT = "segment.bytes", str(100 << 20)

_Items = tuple[tuple[str, str], ...]
ConfigT = TypeVar("ConfigT")
_logger = logging.getLogger(__name__)


def broker_config(image: MetadataImage, static: BrokerConfig, broker_id: int | None = None) -> BrokerConfig:
    """The configuration in effect on one broker; None: on brokers without values of their own."""
    own = {} if broker_id is None else image.broker_configs(broker_id)
    dynamic = {**image.broker_configs(None), **own}
    # A frozen pydantic model is hashable, which pyright does not know.
    return _with_dynamic(static, _items(dynamic)) if dynamic else static  # pyright: ignore[reportArgumentType]


def topic_config(
    image: MetadataImage, static: BrokerConfig, name: str, broker_id: int | None = None
) -> TopicConfig:
    """The configuration in effect of one topic on one broker; None: on brokers without values of their own."""
    config = broker_config(image, static, broker_id)
    own = image.topic_configs(name)
    if is_internal(name) and own.get(_SEGMENT_BYTES) == _EARLIER_DEFAULT:
        own = {**own, _SEGMENT_BYTES: str(config.offsets_topic_segment_bytes)}
    return _topic_config(config, _items(own))  # pyright: ignore[reportArgumentType]


def _items(values: Mapping[str, str]) -> _Items:
    return tuple(sorted(values.items()))


@lru_cache(_CACHED_MAX)
def _with_dynamic(static: BrokerConfig, dynamic: _Items) -> BrokerConfig:
    return _with_valid(static.with_dynamic, dynamic)


@lru_cache(_CACHED_MAX)
def _topic_config(config: BrokerConfig, own: _Items) -> TopicConfig:
    return _with_valid(config.topic_config, own)


def _with_valid(make: Callable[[Mapping[str, Any]], ConfigT], items: _Items) -> ConfigT:
    """Makes a configuration from the valid values, and logs the others."""
    try:
        return make(dict(items))
    except ConfigError:
        valid: dict[str, str] = {}
        for key, value in items:
            try:
                make({key: value})
                valid[key] = value
            except ConfigError as error:
                _logger.warning(
                    "the metadata have %s=%s, which counts as not set: %s; set it anew", key, value, error
                )
        return make(valid)


# ---- Answers -------------------------------------------------------------------------------------------------------


# Partitions and topics, a microsecond each.
_PER_STEP = 32


def metadata_steps(
    image: MetadataImage, request: MetadataRequest, *, cluster_id: str, controller_id: int
) -> Generator[None, int, MetadataResponse]:
    """Answers a Metadata request in steps: the topics in the order of the request, or all topics by name.

    A partition without a leader has the error LEADER_NOT_AVAILABLE, an unknown topic UNKNOWN_TOPIC_OR_PARTITION.
    """
    names = sorted(image.topics) if request.topics is None else request.topics
    topics: list[MetadataTopic] = []
    looked_at = 0
    for name in names:
        topic = image.topics.get(name)
        partitions: list[MetadataPartition] = []
        for each in topic.partitions if topic is not None else ():
            partitions.append(
                MetadataPartition(
                    len(partitions),
                    each.leader_id,
                    each.leader_epoch,
                    each.replicas,
                    each.isr,
                    ErrorCode.NONE if each.has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
                    each.eligible_leader_replicas,
                    each.adding_replicas,
                    each.removing_replicas,
                )
            )
            looked_at += 1
            if looked_at % _PER_STEP == 0:
                yield
        if topic is None:
            topics.append(MetadataTopic(name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        else:
            configs = dict(image.topic_configs(name))
            topics.append(MetadataTopic(name, topic.topic_id, tuple(partitions), configs))
        looked_at += 1
        if looked_at % _PER_STEP == 0:
            yield
    return MetadataResponse(
        cluster_id=cluster_id,
        controller_id=controller_id,
        brokers=tuple(_broker(image.brokers[broker_id]) for broker_id in sorted(image.brokers)),
        topics=tuple(topics),
        metadata_offset=image.next_offset,
    )


def _broker(broker: BrokerImage) -> MetadataBroker:
    return MetadataBroker(
        broker.broker_id,
        broker.registration.host,
        broker.is_fenced,
        broker.directories,
        rack=broker.registration.rack,
        broker_epoch=broker.broker_epoch,
        incarnation_id=broker.registration.incarnation_id,
        is_in_controlled_shutdown=broker.is_in_controlled_shutdown,
        offline_directories=broker.offline_directories,
        roles=broker.registration.roles,
    )


def events_response(image: MetadataImage, request: DescribeEventsRequest) -> DescribeEventsResponse:
    """Answers a request for events."""
    found = [each for each in image.events if each.number > request.since][-request.count :]
    events = (Event(each.number, each.timestamp_ms, each.kind, each.subjects, each.reason) for each in found)
    return DescribeEventsResponse(tuple(events))
