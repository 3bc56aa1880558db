"""Turns an image into records and back, for snapshots of the metadata; tells how two images differ, in records.

`image_of(image_records(image), image.next_offset) == image`, including the order of the maps. One exception:
configurations come in the order of their topics, because their order in an image depends on the grouping of records
into deltas, and a snapshot must not. So all nodes write the same snapshot of one offset, and a node that loads a
snapshot and replays the records behind it gets the image of a node that replays the whole log.

Kafka: `MetadataImage.write`, `ImageWriter`, `MetadataDelta.finishSnapshot` (A45, H9).
"""

from collections.abc import Iterable, Iterator

import msgspec

from rayka.ids import NO_EPOCH, NO_NODE
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import BrokerImage, ConfigResource, MetadataImage, TopicImage
from rayka.metadata.metadata_records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    config_record,
)
from rayka.protocol.configs import ResourceType


def image_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """The records that make the image from an empty one."""
    return difference(MetadataImage(), image)


def image_of(records: Iterable[MetadataRecord], next_offset: int) -> MetadataImage:
    """The image that the records of a snapshot make."""
    delta = MetadataDelta(MetadataImage())
    for record in records:
        delta.replay(record)
    return delta.apply(next_offset)


def _resources(image: MetadataImage) -> Iterator[ConfigResource]:
    """Configured resources: topics in the order of the image, then all others."""
    of_topics = [ConfigResource(ResourceType.TOPIC, name) for name in image.topics]
    yield from (resource for resource in of_topics if resource in image.configs)
    others = [
        each for each in image.configs if each.type is not ResourceType.TOPIC or each.name not in image.topics
    ]
    yield from sorted(others, key=lambda each: (each.type, each.name))


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


# ---- From one image to a later one -----------------------------------------------------------------------------------


def difference(old: MetadataImage, new: MetadataImage) -> Iterator[MetadataRecord]:
    """The records that lead from one image of a cluster to a later one. Topics and brokers that came and went between
    the images are left out.
    """
    for topic_id in old.topics_by_id:
        if topic_id not in new.topics_by_id:
            yield RemoveTopicRecord(topic_id=topic_id)
    for name, level in new.features.items():
        if old.features.get(name) != level:
            yield FeatureLevelRecord(name=name, level=level)
    if new.next_producer_id != old.next_producer_id:
        # The broker that got the last block no longer matters.
        yield ProducerIdsRecord(
            broker_id=NO_NODE, broker_epoch=NO_EPOCH, next_producer_id=new.next_producer_id
        )
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
        yield TopicRecord(name=new.name, topic_id=new.topic_id)
    known = () if old is None else old.partitions
    for number, partition in enumerate(new.partitions):
        if number >= len(known) or known[number] != partition:
            state = msgspec.structs.asdict(partition)
            yield PartitionRecord(topic_id=new.topic_id, partition=number, **state)


def _config_difference(old: MetadataImage, new: MetadataImage) -> Iterator[MetadataRecord]:
    for resource in dict.fromkeys([*old.configs, *_resources(new)]):
        after = new.configs.get(resource, {})
        before = {} if _is_gone(resource, old, new) else old.configs.get(resource, {})
        for name in dict.fromkeys([*before, *after]):
            if before.get(name) != after.get(name):
                yield config_record(resource.type, resource.name, name, after.get(name))


def _is_gone(resource: ConfigResource, old: MetadataImage, new: MetadataImage) -> bool:
    """Whether a resource was a topic that was removed, and its configuration with it. A topic of the same name in the
    later image is another topic.
    """
    topic = old.topics.get(resource.name) if resource.type is ResourceType.TOPIC else None
    return topic is not None and topic.topic_id not in new.topics_by_id
