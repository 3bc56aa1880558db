"""More partitions for topics that exist. Kafka: `ReplicationControlManager.createPartitions`."""

from collections.abc import Generator, Iterable

from rayka.controller.replica_placement import Placement, ReplicaPlacer, check_replica_counts, new_partition
from rayka.controller.request_context import RequestContext
from rayka.controller.topic_control import results_in_order
from rayka.errors import InvalidPartitions, InvalidReplicaAssignment, UnknownTopicOrPartition
from rayka.ids import is_internal
from rayka.metadata.image import MetadataImage, TopicImage
from rayka.metadata.metadata_records import MetadataRecord
from rayka.protocol.partition_admin import CreatePartitionsRequest, CreatePartitionsResponse, NewPartitions
from rayka.protocol.topics import TopicResult
from rayka.shard.shard import RECORDS_PER_BATCH_MAX, Result, Steps

# Of one topic: their numbers have five digits, for which a topic's longest name leaves room.
PARTITIONS_MAX = 100_000


def create_partitions(
    context: RequestContext, request: CreatePartitionsRequest
) -> Steps[MetadataRecord, CreatePartitionsResponse]:
    """Extends what can be extended, together; every other topic has its error in the response."""
    extension = _Extension(context.image, context.placer())
    results, next_offset = yield from results_in_order(request.topics, extension.extend)
    response = CreatePartitionsResponse(results, next_offset + len(extension.records))
    return Result(extension.records, response)


class _Extension:
    """The topics of one request, one after another: each placed where those before it are counted."""

    def __init__(self, image: MetadataImage, placer: ReplicaPlacer) -> None:
        self._image = image
        self._placer = placer
        self.records: list[MetadataRecord] = []

    def extend(self, wanted: NewPartitions) -> Generator[None, int, TopicResult]:
        """A step for each partition. Raises the ApiError that refuses this topic."""
        topic = self._image.topics.get(wanted.name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {wanted.name!r}")
        self._check_count(topic, wanted.partition_count)
        records: list[MetadataRecord] = []
        for number, placement in enumerate(self._placements(topic, wanted), len(topic.partitions)):
            records.append(new_partition(self._image, topic.topic_id, number, placement))
            yield None
        self.records += records
        return TopicResult(topic.name, topic.topic_id)

    def _check_count(self, topic: TopicImage, partition_count: int) -> None:
        count = len(topic.partitions)
        if not count < partition_count <= PARTITIONS_MAX:
            raise InvalidPartitions(
                f"topic {topic.name!r} has {count} partitions: expected more, up to {PARTITIONS_MAX:,}, "
                f"found {partition_count}; partitions cannot be taken away"
            )
        record_count = len(self.records) + partition_count - count
        if record_count > RECORDS_PER_BATCH_MAX:
            raise InvalidPartitions(
                f"topic {topic.name!r}: the request would add {record_count:,} partitions in all, expected at most "
                f"{RECORDS_PER_BATCH_MAX:,}, which are committed together; make several requests of it"
            )

    def _placements(self, topic: TopicImage, wanted: NewPartitions) -> Iterable[Placement]:
        added_count = wanted.partition_count - len(topic.partitions)
        replication_factor = len(topic.partitions[0].target_replicas)
        if wanted.assignments is None:
            return self._placer.place(added_count, replication_factor, is_internal=is_internal(topic.name))
        if len(wanted.assignments) != added_count:
            raise InvalidReplicaAssignment(
                f"topic {topic.name!r}: expected the replicas of {added_count} new partitions, found those of "
                f"{len(wanted.assignments)}"
            )
        check_replica_counts(wanted.assignments, replication_factor)
        return (
            self._placer.place_on(each, is_internal=is_internal(topic.name)) for each in wanted.assignments
        )
