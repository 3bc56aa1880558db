"""An image as records and back: what a snapshot of the metadata holds, and what it means to a node that had an older
image.

`image_of(image_records(image), image.next_offset) == image`, the order of its maps included, except that the
configurations come in the order of their topics: which order they had depended on how the records were grouped into
deltas, and a snapshot must not. So all nodes write the same snapshot of one offset, and loading it and replaying what
follows gives what replaying the whole log gives.

Kafka: `MetadataImage.write`, `ImageWriter`, `MetadataDelta.finishSnapshot` (A45, H9).
"""

from collections.abc import Iterable, Iterator

from rayka.ids import NO_EPOCH, NO_NODE
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import BrokerImage, ConfigResource, MetadataImage, PartitionImage, TopicImage
from rayka.metadata.metadata_records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from rayka.protocol.configs import ResourceType


def image_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """The records that make this image out of an empty one."""
    for name, level in image.features.items():
        yield FeatureLevelRecord(name=name, level=level)
    if image.next_producer_id:
        yield _producer_ids_record(image)
    for broker in image.brokers.values():
        yield from _broker_records(broker)
    for topic in image.topics.values():
        yield from _topic_records(topic)
    for resource in _resources(image):
        for key, value in image.configs[resource].items():
            yield _config_record(resource, key, value)
    yield from image.events


def image_of(records: Iterable[MetadataRecord], next_offset: int) -> MetadataImage:
    """The image that a snapshot's records make."""
    delta = MetadataDelta(MetadataImage())
    for record in records:
        delta.replay(record)
    return delta.apply(next_offset)


def _resources(image: MetadataImage) -> Iterator[ConfigResource]:
    """What has a configuration, in the order of the topics; then what is no topic's."""
    of_topics = [ConfigResource(ResourceType.TOPIC, name) for name in image.topics]
    yield from (resource for resource in of_topics if resource in image.configs)
    others = [
        each for each in image.configs if each.type is not ResourceType.TOPIC or each.name not in image.topics
    ]
    yield from sorted(others, key=lambda each: (each.type, each.name))


def _producer_ids_record(image: MetadataImage) -> ProducerIdsRecord:
    """Which broker got the last block is of no interest any more."""
    return ProducerIdsRecord(
        broker_id=NO_NODE, broker_epoch=NO_EPOCH, next_producer_id=image.next_producer_id
    )


def _broker_records(broker: BrokerImage) -> Iterator[MetadataRecord]:
    registration = broker.registration
    yield registration
    if broker != BrokerImage(registration, registration.is_fenced, registration.is_in_controlled_shutdown):
        yield BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id,
            broker_epoch=broker.broker_epoch,
            is_fenced=broker.is_fenced,
            is_in_controlled_shutdown=broker.is_in_controlled_shutdown,
            offline_directories=broker.offline_directories,
        )


def _topic_records(topic: TopicImage) -> Iterator[MetadataRecord]:
    yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
    for number, partition in enumerate(topic.partitions):
        yield _partition_record(topic, number, partition)


def _partition_record(topic: TopicImage, number: int, partition: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        topic_id=topic.topic_id,
        partition=number,
        replicas=partition.replicas,
        directories=partition.directories,
        isr=partition.isr,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        adding_replicas=partition.adding_replicas,
        removing_replicas=partition.removing_replicas,
        leader_recovery_state=partition.leader_recovery_state,
        eligible_leader_replicas=partition.eligible_leader_replicas,
        last_known_elr=partition.last_known_elr,
    )


def _config_record(resource: ConfigResource, name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)


# ---- From one image to a later one -----------------------------------------------------------------------------------


def difference(old: MetadataImage, new: MetadataImage) -> Iterator[MetadataRecord]:
    """The records that lead from one image of a cluster to a later one: as if those in between had been read, but for
    what came and went among them.
    """
    for topic_id in old.topics_by_id:
        if topic_id not in new.topics_by_id:
            yield RemoveTopicRecord(topic_id=topic_id)
    for name, level in new.features.items():
        if old.features.get(name) != level:
            yield FeatureLevelRecord(name=name, level=level)
    if new.next_producer_id != old.next_producer_id:
        yield _producer_ids_record(new)
    for broker_id, known in old.brokers.items():
        if broker_id not in new.brokers:
            yield UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=known.broker_epoch)
    for broker in new.brokers.values():
        if old.brokers.get(broker.broker_id) != broker:
            yield from _broker_records(broker)
    for topic in new.topics.values():
        yield from _topic_difference(old.topics_by_id.get(topic.topic_id), topic)
    yield from _config_difference(old, new)
    yield from (each for each in new.events if each.number >= old.next_event_number)


def _topic_difference(old: TopicImage | None, new: TopicImage) -> Iterator[MetadataRecord]:
    if old is None:
        yield from _topic_records(new)
        return
    for number, partition in enumerate(new.partitions):
        if number >= len(old.partitions) or old.partitions[number] != partition:
            yield _partition_record(new, number, partition)


def _config_difference(old: MetadataImage, new: MetadataImage) -> Iterator[MetadataRecord]:
    for resource in dict.fromkeys([*old.configs, *new.configs]):
        after = new.configs.get(resource, {})
        before = {} if _is_gone(resource, old, new) else old.configs.get(resource, {})
        for name in before:
            if name not in after:
                yield _config_record(resource, name, None)
        for name, value in after.items():
            if before.get(name) != value:
                yield _config_record(resource, name, value)


def _is_gone(resource: ConfigResource, old: MetadataImage, new: MetadataImage) -> bool:
    """Whether it was a topic's that is no more, whose configuration went with it; one of its name may be another."""
    topic = old.topics.get(resource.name) if resource.type is ResourceType.TOPIC else None
    return topic is not None and topic.topic_id not in new.topics_by_id
