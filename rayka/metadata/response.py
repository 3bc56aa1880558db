"""Answers from an image, the same on brokers and controllers: to a Metadata request, and to one for events.

The former is made in steps: one about all topics may name a hundred thousand partitions. Kafka: `KRaftMetadataCache`.
"""

from collections.abc import Generator

from rayka.errors import ErrorCode
from rayka.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from rayka.protocol.events import DescribeEventsRequest, DescribeEventsResponse, Event
from rayka.protocol.membership import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)

_PER_STEP = 32  # partitions and topics, a microsecond each


def metadata_steps(
    image: MetadataImage, request: MetadataRequest, *, cluster_id: str, controller_id: int
) -> Generator[None, int, MetadataResponse]:
    """What the image says of the topics asked for, in their order; all of them, by name, when none is named.

    A partition without a leader carries LEADER_NOT_AVAILABLE, an unknown topic UNKNOWN_TOPIC_OR_PARTITION.
    """
    names = sorted(image.topics) if request.topics is None else request.topics
    topics: list[MetadataTopic] = []
    looked_at = 0
    for name in names:
        partitions: list[MetadataPartition] = []
        for each in image.topics[name].partitions if name in image.topics else ():
            partitions.append(_partition(len(partitions), each))
            looked_at += 1
            if looked_at % _PER_STEP == 0:
                yield
        topics.append(_topic(image, name, tuple(partitions)))
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


def _topic(image: MetadataImage, name: str, partitions: tuple[MetadataPartition, ...]) -> MetadataTopic:
    topic: TopicImage | None = image.topics.get(name)
    if topic is None:
        return MetadataTopic(name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return MetadataTopic(name, topic.topic_id, partitions, dict(image.topic_configs(name)))


def _partition(number: int, partition: PartitionImage) -> MetadataPartition:
    error = ErrorCode.NONE if partition.has_leader else ErrorCode.LEADER_NOT_AVAILABLE
    return MetadataPartition(
        number,
        partition.leader_id,
        partition.leader_epoch,
        partition.replicas,
        partition.isr,
        error,
        partition.eligible_leader_replicas,
        partition.adding_replicas,
        partition.removing_replicas,
    )


def events_response(image: MetadataImage, request: DescribeEventsRequest) -> DescribeEventsResponse:
    """The newest of those after an event."""
    found = [each for each in image.events if each.number > request.since][-request.count :]
    events = (Event(each.number, each.timestamp_ms, each.kind, each.subjects, each.reason) for each in found)
    return DescribeEventsResponse(tuple(events))
