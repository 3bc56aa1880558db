"""Random runs of metadata records that make sense: what a controller could have written."""

from typing import Any
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
from rayka.protocol.replica_reports import LeaderRecoveryState
from tests.metadata.support import directory, registered

NAMES = ("orders", "payments", "events")
BROKERS = (1, 2, 3)
KEYS = ("retention.ms", "cleanup.policy")

_replicas = st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True).map(tuple)
_some_replicas = st.lists(st.sampled_from(BROKERS), max_size=3, unique=True).map(tuple)
_recovery_states = st.sampled_from(LeaderRecoveryState)


@st.composite
def record_runs(draw: st.DrawFn, max_size: int = 18) -> list[MetadataRecord]:
    """Each record is legal after the ones before it."""
    records: list[MetadataRecord] = []
    image = MetadataImage()
    for number in range(draw(st.integers(0, max_size))):
        record = draw(_next_record(image, number))
        delta = MetadataDelta(image)
        delta.replay(record)
        image = delta.apply(image.next_offset + 1)
        records.append(record)
    return records


def _next_record(image: MetadataImage, number: int) -> st.SearchStrategy[MetadataRecord]:
    ways: list[st.SearchStrategy[Any]] = [
        _registrations(number),
        _features(),
        _producer_ids(image),
        _configs(ResourceType.BROKER, ["", "1"]),
        st.just(NoOpRecord()),
    ]
    if image.brokers:
        ways += [_broker_changes(image), _unregistrations(image)]
    free = [name for name in NAMES if name not in image.topics]
    if free:
        names = st.sampled_from(free)
        ways.append(st.builds(TopicRecord, name=names, topic_id=st.just(UUID(int=100 + number))))
    if image.topics:
        topics = st.sampled_from(list(image.topics.values()))
        ways += [
            _configs(ResourceType.TOPIC, list(image.topics)),
            st.builds(ClearElrRecord, topic_name=st.sampled_from(("", *image.topics))),
            topics.map(lambda topic: RemoveTopicRecord(topic_id=topic.topic_id)),
            topics.flatmap(lambda topic: _partitions(topic.topic_id, len(topic.partitions))),
        ]
    with_partitions = [topic for topic in image.topics.values() if topic.partitions]
    if with_partitions:
        topics = st.sampled_from(with_partitions)
        ways.append(topics.flatmap(lambda topic: _partition_changes(topic.topic_id, len(topic.partitions))))
    return st.one_of(ways)


def _registrations(number: int) -> st.SearchStrategy[RegisterBrokerRecord]:
    return st.builds(
        lambda broker_id, count, is_fenced: registered(
            broker_id, epoch=number, directory_count=count, is_fenced=is_fenced
        ),
        st.sampled_from(BROKERS),
        st.integers(1, 2),
        st.booleans(),
    )


def _features() -> st.SearchStrategy[FeatureLevelRecord]:
    names = st.sampled_from((METADATA_VERSION, ELIGIBLE_LEADER_REPLICAS))
    return st.builds(FeatureLevelRecord, name=names, level=st.integers(1, 3))


def _producer_ids(image: MetadataImage) -> st.SearchStrategy[ProducerIdsRecord]:
    return st.builds(
        ProducerIdsRecord,
        broker_id=st.sampled_from(BROKERS),
        broker_epoch=st.just(0),
        next_producer_id=st.just(image.next_producer_id + 1000),
    )


def _broker_changes(image: MetadataImage) -> st.SearchStrategy[BrokerRegistrationChangeRecord]:
    maybe = st.sampled_from((None, True, False))
    return st.sampled_from(list(image.brokers.values())).flatmap(
        lambda broker: st.builds(
            BrokerRegistrationChangeRecord,
            broker_id=st.just(broker.broker_id),
            broker_epoch=st.just(broker.broker_epoch),
            is_fenced=maybe,
            is_in_controlled_shutdown=maybe,
            offline_directories=st.sampled_from((None, (), (directory(broker.broker_id).directory_id,))),
        )
    )


def _unregistrations(image: MetadataImage) -> st.SearchStrategy[UnregisterBrokerRecord]:
    return st.sampled_from(list(image.brokers.values())).map(
        lambda broker: UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
    )


def _configs(resource_type: ResourceType, names: list[str]) -> st.SearchStrategy[ConfigRecord]:
    return st.builds(
        ConfigRecord,
        resource_type=st.just(resource_type),
        resource_name=st.sampled_from(names),
        name=st.sampled_from(KEYS),
        value=st.sampled_from((None, "1", "2")),
    )


def _partitions(topic_id: UUID, next_number: int) -> st.SearchStrategy[PartitionRecord]:
    def made(
        replicas: tuple[int, ...], epoch: int, elr: tuple[int, ...], state: LeaderRecoveryState
    ) -> PartitionRecord:
        return PartitionRecord(
            topic_id=topic_id,
            partition=next_number,
            replicas=replicas,
            directories=_directories(replicas),
            isr=replicas,
            leader_id=replicas[0],
            leader_epoch=epoch,
            leader_recovery_state=state,
            eligible_leader_replicas=elr,
            last_known_elr=elr[:1],
        )

    return st.builds(made, _replicas, st.integers(0, 2), _some_replicas, _recovery_states)


def _partition_changes(topic_id: UUID, count: int) -> st.SearchStrategy[PartitionChangeRecord]:
    def made(replicas: tuple[int, ...] | None, **fields: object) -> PartitionChangeRecord:
        directories = None if replicas is None else _directories(replicas)
        return PartitionChangeRecord(topic_id=topic_id, replicas=replicas, directories=directories, **fields)  # type: ignore[arg-type]

    return st.builds(
        made,
        partition=st.integers(0, count - 1),
        replicas=st.none() | _replicas,
        isr=st.none() | _some_replicas,
        leader_id=st.sampled_from((NO_LEADER_CHANGE, -1, *BROKERS)),
        adding_replicas=st.none() | _some_replicas,
        removing_replicas=st.none() | _some_replicas,
        leader_recovery_state=st.none() | _recovery_states,
        eligible_leader_replicas=st.none() | _some_replicas,
        last_known_elr=st.none() | _some_replicas,
    )


def _directories(replicas: tuple[int, ...]) -> tuple[UUID, ...]:
    return tuple(directory(each).directory_id for each in replicas)
