"""Creation, extension and deletion of topics. Kafka: `ReplicationControlManager.createTopics`, `createPartitions`,
`Topic.validate`.
"""

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from rayka.config.topic_config import TopicConfig
from rayka.controller.heartbeats import registered_broker
from rayka.controller.replica_placement import Placement, check_replica_counts, new_partition
from rayka.controller.request_context import RequestContext
from rayka.errors import (
    ApiError,
    ConfigError,
    ErrorCode,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidRequest,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from rayka.ids import INTERNAL_PREFIX, METADATA_TOPIC, NO_NODE, is_internal, random_uuid
from rayka.metadata.image import TopicImage
from rayka.metadata.metadata_records import MetadataRecord, RemoveTopicRecord, TopicRecord, config_record
from rayka.protocol.configs import ResourceType
from rayka.protocol.topics import (
    DEFAULT_COUNT,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    NewPartitions,
    NewTopic,
    TopicResult,
)
from rayka.shard.shard import RECORDS_PER_BATCH_MAX, Result, Steps

TopicT = TypeVar("TopicT", NewTopic, NewPartitions)
# The partitions of a new topic: they are committed in one batch, with the record of the topic.
PARTITIONS_MAX = RECORDS_PER_BATCH_MAX - 1
# The partitions of a topic after extensions: their numbers have five digits, so that a file name holds them.
TOPIC_PARTITIONS_MAX = 100_000
# The deletion of a partition costs less than a record.
PARTITIONS_DELETED_PER_STEP = 10
# A file name of 255 bytes, less "-" and five digits of a partition.
TOPIC_NAME_LENGTH_MAX = 249
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def create_topics(
    context: RequestContext, request: CreateTopicsRequest
) -> Steps[MetadataRecord, CreateTopicsResponse]:
    """Creates topics, in one batch; each topic has its own result or error in the response. Raises
    BrokerIdNotRegistered and StaleBrokerEpoch for internal topics (H3).
    """
    is_of_cluster = request.broker_id != NO_NODE
    if is_of_cluster:
        registered_broker(context.image, request.broker_id, request.broker_epoch)
    check_name = check_internal_name if is_of_cluster else check_topic_name
    creation = _Creation(context)
    results, next_offset = yield from results_in_order(request.topics, partial(creation.create, check_name))
    response = CreateTopicsResponse(results, next_offset + len(creation.records))
    return Result(creation.records, response)


def results_in_order(
    topics: Iterable[TopicT], attempt: Callable[[TopicT], Generator[None, int, TopicResult]]
) -> Generator[None, int, tuple[tuple[TopicResult, ...], int]]:
    """The result or error of each topic, in order, and the offset of the next record written."""
    results = []
    for topic in topics:
        try:
            results.append((yield from attempt(topic)))
        except ApiError as refusal:
            results.append(TopicResult(topic.name, error_code=refusal.code, error_message=str(refusal)))
    next_offset = yield None
    return tuple(results), next_offset


def delete_topics(
    context: RequestContext, request: DeleteTopicsRequest
) -> Steps[MetadataRecord, DeleteTopicsResponse]:
    """Deletes topics, one after another; each topic has its own result or error in the response."""
    results = []
    for name in request.names:
        topic = context.image.topics.get(name)
        results.append(_deleted(name, topic))
        if topic is not None:
            yield RemoveTopicRecord(topic_id=topic.topic_id)
            for _ in range(len(topic.partitions) // PARTITIONS_DELETED_PER_STEP):
                yield None
    next_offset = yield None
    return Result((), DeleteTopicsResponse(tuple(results), next_offset))


def check_topic_name(name: str) -> None:
    """Raises InvalidTopic for a name that a client may not give to a topic; the message names the broken rule."""
    _check_legal_name(name)
    if is_internal(name):
        raise InvalidTopic(
            f"names that begin with {INTERNAL_PREFIX!r} are for rayka's own topics, found {name!r}"
        )


def check_internal_name(name: str) -> None:
    """Raises InvalidTopic for a name that the cluster may not give to an internal topic."""
    _check_legal_name(name)
    if not is_internal(name) or name == METADATA_TOPIC:
        raise InvalidTopic(
            f"expected the name of an internal topic, which begins with {INTERNAL_PREFIX!r}, and not that of the"
            f" metadata, found {name!r}"
        )


def _check_legal_name(name: str) -> None:
    if not name or len(name) > TOPIC_NAME_LENGTH_MAX:
        raise InvalidTopic(
            f"a topic's name has 1 to {TOPIC_NAME_LENGTH_MAX} characters, found {len(name)}: {name[:300]!r}"
        )
    if name in (".", ".."):
        raise InvalidTopic(f"a topic cannot be named {name!r}")
    if not _LEGAL_NAME.fullmatch(name):
        raise InvalidTopic(f"a topic's name holds letters, digits, '.', '_' and '-' only, found {name!r}")


class _Placing:
    """Places the partitions of one request; each placement counts the earlier ones."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._placer = context.placer()
        self.records: list[MetadataRecord] = []


class _Creation(_Placing):
    def create(self, check_name: Callable[[str], None], topic: NewTopic) -> Generator[None, int, TopicResult]:
        """Takes one step for each partition. Raises the ApiError that refuses the topic."""
        check_name(topic.name)
        if topic.name in self._context.image.topics:
            raise TopicAlreadyExists(f"topic {topic.name!r} exists already")
        configs = checked_configs(topic.name, topic.configs)
        placements = []
        for placement in self._placements(topic):
            placements.append(placement)
            yield None
        record = TopicRecord(name=topic.name, topic_id=random_uuid(self._context.random))
        records: list[MetadataRecord] = [record]
        records += [
            config_record(ResourceType.TOPIC, topic.name, key, configs[key]) for key in sorted(configs)
        ]
        for number, placement in enumerate(placements):
            records.append(new_partition(self._context.image, record.topic_id, number, placement))
            yield None
        self.records += records
        return TopicResult(topic.name, record.topic_id)

    def _placements(self, topic: NewTopic) -> Iterable[Placement]:
        if topic.assignments is not None:
            return self._assigned(topic, topic.assignments)
        partition_count, replication_factor = topic.partition_count, topic.replication_factor
        if partition_count == DEFAULT_COUNT:
            partition_count = self._context.config.num_partitions
        if replication_factor == DEFAULT_COUNT:
            replication_factor = self._context.config.default_replication_factor
        self._check_partition_count(topic, partition_count)
        return self._placer.place(partition_count, replication_factor, is_internal=is_internal(topic.name))

    def _assigned(self, topic: NewTopic, assignments: Sequence[Sequence[int]]) -> Iterable[Placement]:
        counts = (topic.partition_count, topic.replication_factor)
        if counts != (DEFAULT_COUNT, DEFAULT_COUNT):
            raise InvalidRequest(
                f"topic {topic.name!r}: expected no counts beside the assignments, found {counts[0]} partitions with "
                f"{counts[1]} replicas; leave one or the other out"
            )
        if not assignments:
            raise InvalidReplicaAssignment(
                f"topic {topic.name!r}: expected the replicas of a partition or more, found none"
            )
        self._check_partition_count(topic, len(assignments))
        check_replica_counts(assignments, len(assignments[0]))
        return (self._placer.place_on(each, is_internal=is_internal(topic.name)) for each in assignments)

    def _check_partition_count(self, topic: NewTopic, count: int) -> None:
        if not 1 <= count <= PARTITIONS_MAX:
            raise InvalidPartitions(
                f"topic {topic.name!r}: expected 1 to {PARTITIONS_MAX:,} partitions, found {count}"
            )
        record_count = len(self.records) + 1 + len(topic.configs) + count
        if record_count > RECORDS_PER_BATCH_MAX:
            raise InvalidPartitions(
                f"topic {topic.name!r}: it and those before it make {record_count:,} records, expected at most "
                f"{RECORDS_PER_BATCH_MAX:,}, which are committed together; use another request for it"
            )


def checked_configs(name: str, configs: Mapping[str, str]) -> dict[str, str]:
    """The topic's own configuration by dotted key. Raises InvalidConfig; the message names key and expected value."""
    try:
        return TopicConfig.parse(configs, what=f"topic {name!r}").overrides()
    except ConfigError as error:
        raise InvalidConfig(str(error)) from error


def _deleted(name: str, topic: TopicImage | None) -> TopicResult:
    if topic is None:
        return TopicResult(
            name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message=f"there is no topic {name!r}"
        )
    return TopicResult(name, topic.topic_id)


# ---- More partitions of a topic that exists --------------------------------------------------------------------------


def create_partitions(
    context: RequestContext, request: CreatePartitionsRequest
) -> Steps[MetadataRecord, CreatePartitionsResponse]:
    """Adds partitions to topics, in one batch; each topic has its own result or error in the response."""
    extension = _Extension(context)
    results, next_offset = yield from results_in_order(request.topics, extension.extend)
    response = CreatePartitionsResponse(results, next_offset + len(extension.records))
    return Result(extension.records, response)


class _Extension(_Placing):
    def extend(self, wanted: NewPartitions) -> Generator[None, int, TopicResult]:
        """Takes one step for each partition. Raises the ApiError that refuses the topic."""
        topic = self._context.image.topics.get(wanted.name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {wanted.name!r}")
        self._check_count(topic, wanted.partition_count)
        records: list[MetadataRecord] = []
        for number, placement in enumerate(self._placements(topic, wanted), len(topic.partitions)):
            records.append(new_partition(self._context.image, topic.topic_id, number, placement))
            yield None
        self.records += records
        return TopicResult(topic.name, topic.topic_id)

    def _check_count(self, topic: TopicImage, partition_count: int) -> None:
        count = len(topic.partitions)
        if not count < partition_count <= TOPIC_PARTITIONS_MAX:
            raise InvalidPartitions(
                f"topic {topic.name!r} has {count} partitions: expected more, up to {TOPIC_PARTITIONS_MAX:,}, "
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
