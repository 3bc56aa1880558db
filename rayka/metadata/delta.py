"""Collects metadata records on top of an image: makes the next image, and tells the changes.

Replaying costs as much as the records, whatever the size of the image; `apply` copies the changed maps. A record that
contradicts the image (a partition of an unknown topic, a gap in partition numbers) is a bug of its writer and raises
`InvariantBroken`: a node that went on would hold another image than the other nodes.

Kafka: `MetadataDelta`, `TopicsDelta`, `ClusterDelta`, `ConfigurationsDelta`, `ProducerIdsDelta` (H9, H12).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from rayka.errors import InvariantBroken
from rayka.ids import TopicIdPartition
from rayka.metadata.image import BrokerImage, ConfigResource, MetadataImage, PartitionImage, TopicImage
from rayka.metadata.metadata_records import (
    CHANGEABLE_FIELDS,
    NO_LEADER_CHANGE,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    EventRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from rayka.protocol.configs import ResourceType
from rayka.protocol.events import EVENTS_MAX

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
# A PartitionRecord has all fields of a PartitionImage.
_state_of = attrgetter(*PartitionImage.__struct_fields__)


@dataclass(slots=True, eq=False)
class _Topic:
    """A topic while its records are replayed."""

    name: str
    topic_id: UUID
    # The partitions of the image.
    base: tuple[PartitionImage, ...]
    # Changed and new partitions by number.
    changed: dict[int, PartitionImage] = field(default_factory=dict)

    def partition(self, number: int) -> PartitionImage | None:
        changed = self.changed.get(number)
        if changed is None and 0 <= number < len(self.base):
            return self.base[number]
        return changed

    def image(self) -> TopicImage:
        partitions = list(self.base)
        for number in sorted(self.changed):
            partitions[number : number + 1] = [self.changed[number]]
        return TopicImage(self.name, self.topic_id, tuple(partitions))


class MetadataDelta:
    """The changes that records make to an image. `replay` takes the records in, `apply` makes the new image."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        # None: removed.
        self._topics: dict[UUID, _Topic | None] = {}
        # The last topic of each name; may be removed since.
        self._added: dict[str, UUID] = {}
        # Names of topics.
        self._reconfigured: dict[str, None] = {}
        # Ids of brokers as text; empty: all brokers.
        self._reconfigured_brokers: dict[str, None] = {}
        # None: unregistered.
        self._brokers: dict[int, BrokerImage | None] = {}
        # All values of a resource; None: of a removed topic.
        self._configs: dict[ConfigResource, dict[str, str] | None] = {}
        self._features: dict[str, int] = {}
        self._next_producer_id = image.next_producer_id
        self._events: list[EventRecord] = []
        # Equal tuples, to share one of them.
        self._directories: dict[tuple[UUID, ...], tuple[UUID, ...]] = {}

    def __repr__(self) -> str:
        return f"<MetadataDelta of {self.image!r} topics={len(self._topics)} brokers={sorted(self._brokers)}>"

    @property
    def is_empty(self) -> bool:
        has_new_ids = self._next_producer_id != self.image.next_producer_id
        is_changed = self._topics or self._brokers or self._configs or self._features or self._events
        return not (is_changed or has_new_ids)

    # ---- Replaying ---------------------------------------------------------------------------------------------------

    def replay(self, record: MetadataRecord) -> None:
        """Adds one record's change."""
        _REPLAY[type(record)](self, record)

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        self._brokers[record.broker_id] = BrokerImage(
            record, is_fenced=record.is_fenced, is_in_controlled_shutdown=record.is_in_controlled_shutdown
        )

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._registered(record.broker_id, record.broker_epoch)
        names = ("is_fenced", "is_in_controlled_shutdown", "offline_directories")
        self._brokers[record.broker_id] = msgspec.structs.replace(broker, **_changed_fields(record, names))

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._registered(record.broker_id, record.broker_epoch)
        self._brokers[record.broker_id] = None

    def _registered(self, broker_id: int, broker_epoch: int) -> BrokerImage:
        known = self._brokers if broker_id in self._brokers else self.image.brokers
        broker = known.get(broker_id)
        expected = f"{self!r}: expected broker {broker_id} in epoch {broker_epoch}"
        if broker is None:
            raise InvariantBroken(f"{expected}, found none")
        if broker.broker_epoch != broker_epoch:
            raise InvariantBroken(f"{expected}, found {broker!r}")
        return broker

    def _add_topic(self, record: TopicRecord) -> None:
        if self._topic(record.topic_id) is not None:
            raise InvariantBroken(f"{record!r}: the id is taken")
        self._topics[record.topic_id] = _Topic(record.name, record.topic_id, ())
        self._added[record.name] = record.topic_id

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._known_topic(record)
        self._topics[record.topic_id] = None
        self._configs[ConfigResource(ResourceType.TOPIC, topic.name)] = None

    def _add_partition(self, record: PartitionRecord) -> None:
        topic = self._known_topic(record)
        before = topic.partition(record.partition - 1)
        if record.partition != 0 and before is None:
            raise InvariantBroken(f"{record!r}: there is none before it")
        replicas, directories, *others = _state_of(record)
        # Partitions on the same brokers share the tuple. Else these tuples are most of an image's memory, and most of
        # the garbage collector's work.
        shared = self._directories.setdefault(directories, directories)
        topic.changed[record.partition] = PartitionImage(replicas, shared, *others)

    def _change_partition(self, record: PartitionChangeRecord) -> None:
        topic = self._known_topic(record)
        partition = topic.partition(record.partition)
        if partition is None:
            raise InvariantBroken(f"{record!r}: no such partition")
        topic.changed[record.partition] = changed_partition(partition, record)

    def _clear_elr(self, record: ClearElrRecord) -> None:
        """Clears the eligible leader replicas, and raises every partition epoch; leader and ISR do not change.

        Without the new epoch: 1. The controller raises `min.insync.replicas` to two; the leader does not know that yet.
        2. The leader proposes itself alone as the ISR. 3. The controller agrees, and takes the replicas that leave for
        eligible. 4. The leader, for which one replica is still enough, commits records that those replicas lack.
        With it, the leader's proposals are refused until the leader has applied this record and the configuration.

        A partition with an empty ISR keeps its eligible replicas: nothing is committed until one of them leads, and no
        other replica has all committed records.
        """
        name = record.topic_name
        topic_ids: list[UUID] = []
        if not name:
            topic_ids = [*self.image.topics_by_id, *self._added.values()]
        elif name in self._added:
            topic_ids = [self._added[name]]
        elif name in self.image.topics:
            topic_ids = [self.image.topics[name].topic_id]
        for topic_id in topic_ids:
            topic = self._topic(topic_id)
            if topic is None:
                continue
            for number in range(max(len(topic.base), *(each + 1 for each in topic.changed), 0)):
                partition = topic.partition(number)
                if partition is None:
                    raise InvariantBroken(f"{record!r}: partition {number} is missing")
                cleared = {"eligible_leader_replicas": (), "last_known_elr": ()} if partition.isr else {}
                topic.changed[number] = msgspec.structs.replace(
                    partition, partition_epoch=partition.partition_epoch + 1, **cleared
                )

    def _set_config(self, record: ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        values = self._configs.get(resource)
        if values is None:
            known = {} if resource in self._configs else self.image.configs.get(resource, {})
            values = self._configs[resource] = dict(known)
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if record.resource_type is ResourceType.TOPIC:
            self._reconfigured[record.resource_name] = None
        else:
            self._reconfigured_brokers[record.resource_name] = None

    def _set_feature(self, record: FeatureLevelRecord) -> None:
        self._features[record.name] = record.level

    def _give_producer_ids(self, record: ProducerIdsRecord) -> None:
        if record.next_producer_id <= self._next_producer_id:
            raise InvariantBroken(f"{record!r} gives ids away again")
        self._next_producer_id = record.next_producer_id

    def _add_event(self, record: EventRecord) -> None:
        last = self._events[-1].number if self._events else self.image.next_event_number - 1
        # An event out of order is ignored: a record of history must not end a node, least of all every node.
        if record.number > last:
            self._events.append(record)

    def _topic(self, topic_id: UUID) -> _Topic | None:
        """The topic, to be changed; None: there is none, or it was removed."""
        if topic_id in self._topics:
            return self._topics[topic_id]
        known = self.image.topics_by_id.get(topic_id)
        if known is None:
            return None
        topic = self._topics[topic_id] = _Topic(known.name, topic_id, known.partitions)
        return topic

    def _known_topic(self, record: RemoveTopicRecord | PartitionRecord | PartitionChangeRecord) -> _Topic:
        topic = self._topic(record.topic_id)
        if topic is None:
            raise InvariantBroken(f"{record!r}: no such topic")
        return topic

    # ---- The outcome -------------------------------------------------------------------------------------------------

    def apply(self, next_offset: int) -> MetadataImage:
        """The image after the records; `next_offset` follows the last one."""
        if next_offset < self.image.next_offset:
            raise InvariantBroken(f"{self!r} cannot go back to {next_offset}")
        changed = {topic_id: topic.image() if topic else None for topic_id, topic in self._topics.items()}
        topics = dict(self.image.topics) if self._topics else {}
        for name in self.deleted_names():
            # A topic that was created again is last.
            del topics[name]
        topics |= {topic.name: topic for topic in changed.values() if topic is not None}
        return MetadataImage(
            next_offset=next_offset,
            topics=topics if self._topics else self.image.topics,
            topics_by_id=_merged(self.image.topics_by_id, changed),
            # By id: the place of a broker that was unregistered and is back would depend on the grouping of records.
            brokers=dict(sorted(_merged(self.image.brokers, self._brokers).items()))
            if self._brokers
            else self.image.brokers,
            configs=_merged(
                self.image.configs, {key: values or None for key, values in self._configs.items()}
            ),
            features=_merged(self.image.features, self._features),
            next_producer_id=self._next_producer_id,
            events=(*self.image.events, *self._events)[-EVENTS_MAX:] if self._events else self.image.events,
        )

    def deleted_names(self) -> dict[str, UUID]:
        """Ids of `deleted_topics` by name."""
        return {self.image.topics_by_id[topic_id].name: topic_id for topic_id in self.deleted_topics()}

    def deleted_topics(self) -> list[UUID]:
        """Topics of the image that were removed, in the order of removal."""
        return [
            key for key, topic in self._topics.items() if topic is None and key in self.image.topics_by_id
        ]

    def changed_partitions(self) -> list[TopicIdPartition]:
        """Partitions that are new or changed, and still exist."""
        return [
            TopicIdPartition(topic_id, number)
            for topic_id, topic in self._topics.items()
            if topic is not None
            for number in sorted(topic.changed)
        ]

    def reconfigured_topics(self) -> list[str]:
        """Names of topics whose configuration was written, in the order of the first write."""
        return list(self._reconfigured)

    def is_reconfigured(self, broker_id: int) -> bool:
        """Whether the configuration of the broker or of all brokers was written."""
        return "" in self._reconfigured_brokers or str(broker_id) in self._reconfigured_brokers


_REPLAY: Mapping[type[Any], Callable[[MetadataDelta, Any], None]] = {
    RegisterBrokerRecord: MetadataDelta._register_broker,
    BrokerRegistrationChangeRecord: MetadataDelta._change_broker,
    NoOpRecord: lambda _, __: None,
    UnregisterBrokerRecord: MetadataDelta._unregister_broker,
    ClearElrRecord: MetadataDelta._clear_elr,
    TopicRecord: MetadataDelta._add_topic,
    RemoveTopicRecord: MetadataDelta._remove_topic,
    PartitionRecord: MetadataDelta._add_partition,
    PartitionChangeRecord: MetadataDelta._change_partition,
    ConfigRecord: MetadataDelta._set_config,
    FeatureLevelRecord: MetadataDelta._set_feature,
    ProducerIdsRecord: MetadataDelta._give_producer_ids,
    EventRecord: MetadataDelta._add_event,
}


def changed_partition(partition: PartitionImage, change: PartitionChangeRecord) -> PartitionImage:
    """Applies the fields that a change sets (H12). The partition epoch always rises, the leader epoch if the change
    names a leader.
    """
    changes = _changed_fields(change, CHANGEABLE_FIELDS)
    if change.leader_id != NO_LEADER_CHANGE:
        changes |= {"leader_id": change.leader_id, "leader_epoch": partition.leader_epoch + 1}
    return msgspec.structs.replace(partition, partition_epoch=partition.partition_epoch + 1, **changes)


def _changed_fields(record: MetadataRecord, names: Sequence[str]) -> dict[str, Any]:
    """The fields of `names` that a record sets."""
    return {name: value for name in names if (value := getattr(record, name)) is not None}


def _merged(base: Mapping[KeyT, ValueT], changes: Mapping[KeyT, ValueT | None]) -> Mapping[KeyT, ValueT]:
    """The base with the changes; None removes an entry. The base itself if there are no changes."""
    if not changes:
        return base
    merged = dict(base)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged
