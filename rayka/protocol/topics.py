"""Topics created and deleted. Kafka: CreateTopicsRequest, DeleteTopicsRequest."""

from uuid import UUID

from rayka.errors import ErrorCode
from rayka.ids import NO_EPOCH, NO_NODE, NO_OFFSET, ZERO_ID
from rayka.ports import Message, Request
from rayka.protocol.request_checks import check_each_once

DEFAULT_COUNT = -1  # the cluster's `num.partitions` or `default.replication.factor`


class NewTopic(Message, frozen=True, array_like=True):
    """A topic to create; -1 asks for the cluster's default count. `assignments`: the replicas of each partition, in
    order, instead of the counts.
    """

    name: str
    partition_count: int = DEFAULT_COUNT
    replication_factor: int = DEFAULT_COUNT
    configs: dict[str, str] = {}
    assignments: tuple[tuple[int, ...], ...] | None = None


class TopicResult(Message, frozen=True, array_like=True):
    """What became of one topic of the request."""

    name: str
    topic_id: UUID = ZERO_ID
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


class TopicResults(Message, frozen=True, array_like=True):
    """What answers begin with: one result for each topic, in order; a broker that has applied up to `metadata_offset`
    knows of the changes. It stays as it is: an answer gets new fields at its own end.
    """

    topics: tuple[TopicResult, ...]
    metadata_offset: int = NO_OFFSET


class CreateTopicsResponse(TopicResults, frozen=True, array_like=True):
    """Of the topics that were to be made."""


class CreateTopicsRequest(Request[CreateTopicsResponse], frozen=True, array_like=True):
    """Creates topics, each on its own: one that is refused does not stop the others. A broker that names itself and its
    epoch creates internal topics.
    """

    topics: tuple[NewTopic, ...]
    broker_id: int = NO_NODE
    broker_epoch: int = NO_EPOCH

    def check(self) -> None:
        check_each_once("topics", [topic.name for topic in self.topics])


class DeleteTopicsResponse(TopicResults, frozen=True, array_like=True):
    """Of the topics that were to go."""


class DeleteTopicsRequest(Request[DeleteTopicsResponse], frozen=True, array_like=True):
    """Deletes topics with all their records."""

    names: tuple[str, ...]

    def check(self) -> None:
        check_each_once("names", self.names)
