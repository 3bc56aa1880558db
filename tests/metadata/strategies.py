"""Random runs of metadata records that make sense: what a controller could have written."""

from collections.abc import Callable, Collection
from typing import TypeVar
from uuid import UUID

from hypothesis import strategies as st

from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage
from rayka.metadata.metadata_records import (
    ELIGIBLE_LEADER_REPLICAS,
    METADATA_VERSION,
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
from rayka.protocol.membership import LeaderRecoveryState
from tests.metadata.support import directory, registered

NAMES = ("orders", "payments", "events")
BROKERS = (1, 2, 3)
KEYS = ("retention.ms", "cleanup.policy")
T = TypeVar("T")

# Strategies are made once: to make one for each record takes most of the time of a run.
_choices = st.integers(0, 59)
_flags = st.booleans()
_replicas = st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True).map(tuple)
_some_replicas = st.lists(st.sampled_from(BROKERS), max_size=3, unique=True).map(tuple)
_recovery_states = st.sampled_from(LeaderRecoveryState)
_maybe_replicas = st.none() | _replicas
_maybe_some_replicas = st.none() | _some_replicas
_maybe_recovery_states = st.none() | _recovery_states


@st.composite
def record_runs(draw: st.DrawFn, max_size: int = 18) -> list[MetadataRecord]:
    """Each record is legal after the ones before it."""
    records: list[MetadataRecord] = []
    image = MetadataImage()
    for number in range(draw(st.integers(0, max_size))):
        record = _Next(draw, image, number).record()
        delta = MetadataDelta(image)
        delta.replay(record)
        image = delta.apply(image.next_offset + 1)
        records.append(record)
    return records


class _Next:
    """Draws the record that comes after those of which the image is."""

    def __init__(self, draw: st.DrawFn, image: MetadataImage, number: int) -> None:
        self._draw = draw
        self._image = image
        self._number = number

    def _one_of(self, options: Collection[T]) -> T:
        return list(options)[self._draw(_choices) % len(options)]

    def record(self) -> MetadataRecord:
        image = self._image
        ways: list[Callable[[], MetadataRecord]] = [
            self._registration,
            self._feature,
            self._producer_ids,
            lambda: self._config(ResourceType.BROKER, ("", "1")),
            NoOpRecord,
            self._event,
        ]
        if image.brokers:
            ways += [self._broker_change, self._unregistration]
        if len(image.topics) < len(NAMES):
            ways.append(self._topic)
        if image.topics:
            ways += [
                lambda: self._config(ResourceType.TOPIC, image.topics),
                lambda: ClearElrRecord(topic_name=self._one_of(("", *image.topics))),
                lambda: RemoveTopicRecord(topic_id=self._one_of(image.topics.values()).topic_id),
                *[self._partition] * 3,
            ]
        if any(each.partitions for each in image.topics.values()):
            ways += [self._partition_change] * 4
        return self._one_of(ways)()

    def _registration(self) -> RegisterBrokerRecord:
        count, is_fenced = self._one_of((1, 2)), self._draw(_flags)
        return registered(
            self._one_of(BROKERS), epoch=self._number, directory_count=count, is_fenced=is_fenced
        )

    def _feature(self) -> FeatureLevelRecord:
        name = self._one_of((METADATA_VERSION, ELIGIBLE_LEADER_REPLICAS))
        return FeatureLevelRecord(name=name, level=self._one_of((1, 2, 3)))

    def _event(self) -> EventRecord:
        number = self._image.next_event_number + self._one_of((0, 0, 3))
        return EventRecord(
            number=number, timestamp_ms=5, kind="heal-begun", subjects=("broker-1",), reason="gone"
        )

    def _producer_ids(self) -> ProducerIdsRecord:
        next_producer_id = self._image.next_producer_id + 1000
        return ProducerIdsRecord(
            broker_id=self._one_of(BROKERS), broker_epoch=0, next_producer_id=next_producer_id
        )

    def _broker_change(self) -> BrokerRegistrationChangeRecord:
        broker, maybe = self._one_of(self._image.brokers.values()), (None, True, False)
        return BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id,
            broker_epoch=broker.broker_epoch,
            is_fenced=self._one_of(maybe),
            is_in_controlled_shutdown=self._one_of(maybe),
            offline_directories=self._one_of((None, (), (directory(broker.broker_id).directory_id,))),
        )

    def _unregistration(self) -> UnregisterBrokerRecord:
        broker = self._one_of(self._image.brokers.values())
        return UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)

    def _config(self, resource_type: ResourceType, names: Collection[str]) -> ConfigRecord:
        return ConfigRecord(
            resource_type=resource_type,
            resource_name=self._one_of(names),
            name=self._one_of(KEYS),
            value=self._one_of((None, "1", "2")),
        )

    def _topic(self) -> TopicRecord:
        free = [name for name in NAMES if name not in self._image.topics]
        return TopicRecord(name=self._one_of(free), topic_id=UUID(int=100 + self._number))

    def _partition(self) -> PartitionRecord:
        topic = self._one_of(self._image.topics.values())
        replicas, elr = self._draw(_replicas), self._draw(_some_replicas)
        return PartitionRecord(
            topic_id=topic.topic_id,
            partition=len(topic.partitions),
            replicas=replicas,
            directories=_directories(replicas),
            isr=replicas,
            leader_id=replicas[0],
            leader_epoch=self._one_of((0, 1, 2)),
            leader_recovery_state=self._draw(_recovery_states),
            eligible_leader_replicas=elr,
            last_known_elr=elr[:1],
        )

    def _partition_change(self) -> PartitionChangeRecord:
        topic = self._one_of([each for each in self._image.topics.values() if each.partitions])
        replicas = self._draw(_maybe_replicas)
        return PartitionChangeRecord(
            topic_id=topic.topic_id,
            partition=self._one_of(range(len(topic.partitions))),
            replicas=replicas,
            directories=None if replicas is None else _directories(replicas),
            isr=self._draw(_maybe_some_replicas),
            leader_id=self._one_of((NO_LEADER_CHANGE, -1, *BROKERS)),
            adding_replicas=self._draw(_maybe_some_replicas),
            removing_replicas=self._draw(_maybe_some_replicas),
            leader_recovery_state=self._draw(_maybe_recovery_states),
            eligible_leader_replicas=self._draw(_maybe_some_replicas),
            last_known_elr=self._draw(_maybe_some_replicas),
        )


def _directories(replicas: tuple[int, ...]) -> tuple[UUID, ...]:
    return tuple(directory(each).directory_id for each in replicas)
