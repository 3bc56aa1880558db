"""Administration of topics, partitions and replicas: the requests of operators.

DeleteRecords, DescribeLogDirs and AlterReplicaLogDirs go to brokers, the others to the active controller. Kafka:
CreateTopicsRequest, DeleteTopicsRequest, CreatePartitionsRequest, AlterPartitionReassignmentsRequest,
ListPartitionReassignmentsRequest, ElectLeadersRequest, UnregisterBrokerRequest, DeleteRecordsRequest,
DescribeLogDirsRequest, AlterReplicaLogDirsRequest (B45-B47, G11).
"""

from enum import IntEnum
from uuid import UUID

from rayka.errors import ErrorCode
from rayka.ids import NO_EPOCH, NO_NODE, NO_OFFSET, NO_TIMESTAMP, ZERO_ID, TopicPartition
from rayka.ports import Message, Request
from rayka.protocol.request_parts import (
    NamedPartitionMessage,
    PartitionAnswer,
    PartitionMessage,
    check_each_once,
)

# The cluster's `num.partitions` or `default.replication.factor`.
DEFAULT_COUNT = -1


# ---- Topics ----------------------------------------------------------------------------------------------------------


class NewTopic(Message, frozen=True, array_like=True):
    """A topic to create."""

    name: str
    partition_count: int = DEFAULT_COUNT
    replication_factor: int = DEFAULT_COUNT
    configs: dict[str, str] = {}
    # The replicas of each partition, in order, instead of the counts.
    assignments: tuple[tuple[int, ...], ...] | None = None


class TopicResult(Message, frozen=True, array_like=True):
    """The result for one topic of the request."""

    name: str
    topic_id: UUID = ZERO_ID
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


class TopicResults(Message, frozen=True, array_like=True):
    """Begins answers with one result for each topic, in order. It gets no new field: an answer gets new fields at its
    own end.
    """

    topics: tuple[TopicResult, ...]
    # A broker that has applied this offset knows the changes.
    metadata_offset: int = NO_OFFSET


class CreateTopicsResponse(TopicResults, frozen=True, array_like=True):
    """The result of creating topics."""


class CreateTopicsRequest(Request[CreateTopicsResponse], frozen=True, array_like=True):
    """Creates topics; the failure of one does not affect the others."""

    topics: tuple[NewTopic, ...]
    # A broker that creates internal topics, and its epoch.
    broker_id: int = NO_NODE
    broker_epoch: int = NO_EPOCH

    def check(self) -> None:
        check_each_once("topics", [topic.name for topic in self.topics])


class DeleteTopicsResponse(TopicResults, frozen=True, array_like=True):
    """The result of deleting topics."""


class DeleteTopicsRequest(Request[DeleteTopicsResponse], frozen=True, array_like=True):
    """Deletes topics with all their records."""

    names: tuple[str, ...]

    def check(self) -> None:
        check_each_once("names", self.names)


class PartitionResult(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """The result for one partition of the request."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


# ---- Partitions ------------------------------------------------------------------------------------------------------


class NewPartitions(Message, frozen=True, array_like=True):
    """New partitions of a topic."""

    name: str
    # Old and new partitions.
    partition_count: int
    # The replicas of each new partition; None: the controller places them.
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitionsResponse(TopicResults, frozen=True, array_like=True):
    """The result of adding partitions."""


class CreatePartitionsRequest(Request[CreatePartitionsResponse], frozen=True, array_like=True):
    """Adds partitions to topics; the failure of one topic does not affect the others."""

    topics: tuple[NewPartitions, ...]

    def check(self) -> None:
        check_each_once("topics", [topic.name for topic in self.topics])


# ---- Reassignments ---------------------------------------------------------------------------------------------------


class Reassignment(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """New replicas for a partition (B45)."""

    # The preferred leader first; None: cancels the reassignment that is under way.
    replicas: tuple[int, ...] | None


class AlterPartitionReassignmentsResponse(Message, frozen=True, array_like=True):
    """One result for each partition, in order."""

    partitions: tuple[PartitionResult, ...]
    metadata_offset: int = NO_OFFSET


class AlterPartitionReassignmentsRequest(
    Request[AlterPartitionReassignmentsResponse], frozen=True, array_like=True
):
    """Begins or cancels reassignments. A reassignment ends when the new replicas are in sync."""

    partitions: tuple[Reassignment, ...]

    def check(self) -> None:
        check_each_once("partitions", [f"{each.topic}-{each.partition}" for each in self.partitions])


class OngoingReassignment(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """A reassignment that is under way."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


class ListPartitionReassignmentsResponse(Message, frozen=True, array_like=True):
    """The reassignments under way, by topic and partition."""

    reassignments: tuple[OngoingReassignment, ...]


class ListPartitionReassignmentsRequest(
    Request[ListPartitionReassignmentsResponse], frozen=True, array_like=True
):
    """Lists the reassignments that are under way."""

    # None: of all partitions.
    partitions: tuple[TopicPartition, ...] | None = None


class UnregisterBrokerResponse(Message, frozen=True, array_like=True):
    """Confirms that the broker is no longer registered."""


class UnregisterBrokerRequest(Request[UnregisterBrokerResponse], frozen=True, array_like=True):
    """Removes a broker that is fenced and has no replica."""

    broker_id: int


# ---- Elections -------------------------------------------------------------------------------------------------------


class ElectionType(IntEnum):
    """Kafka's `ElectionType`."""

    # Elects the first replica.
    PREFERRED = 0
    # Elects any live replica, if the ISR has none.
    UNCLEAN = 1


class ElectLeadersResponse(Message, frozen=True, array_like=True):
    """One result for each partition of the request. If the request names none, one for each election that was made or
    failed (B46).
    """

    partitions: tuple[PartitionResult, ...]
    metadata_offset: int = NO_OFFSET


class ElectLeadersRequest(Request[ElectLeadersResponse], frozen=True, array_like=True):
    """Elects leaders."""

    election_type: ElectionType
    # None: of all partitions.
    partitions: tuple[TopicPartition, ...] | None = None

    def check(self) -> None:
        check_each_once("partitions", map(repr, self.partitions or ()))


# ---- Requests to brokers ---------------------------------------------------------------------------------------------


class DeleteRecordsPartition(PartitionMessage, frozen=True, array_like=True):
    """Deletes the records of a partition below an offset (G11)."""

    # NO_OFFSET: the high watermark.
    before_offset: int


class DeleteRecordsResult(PartitionAnswer, frozen=True, array_like=True):
    """The result for one partition of the request."""

    # The lowest log start offset of all live replicas.
    low_watermark: int = NO_OFFSET


class DeleteRecordsResponse(Message, frozen=True, array_like=True):
    """One result for each partition of the request, in its order."""

    partitions: tuple[DeleteRecordsResult, ...]


class DeleteRecordsRequest(Request[DeleteRecordsResponse], frozen=True, array_like=True):
    """Asks a leader to delete records; answered when every live replica has moved its log start offset (G11)."""

    timeout_ms: int
    partitions: tuple[DeleteRecordsPartition, ...]


class LastCleaning(Message, frozen=True, array_like=True):
    """The last compaction of a log."""

    # By the broker's wall clock.
    timestamp_ms: int
    end_offset: int
    # Bytes of the rewritten segments, before and after.
    input_bytes: int
    output_bytes: int


class LogCleaning(Message, frozen=True, array_like=True):
    """The compaction of a log."""

    # Bytes that were compacted before, and bytes that may be compacted now (F20).
    clean_bytes: int
    cleanable_bytes: int
    # The reason why the log cannot be compacted; may be empty (F27).
    problem: str = ""
    # Since the broker started.
    last: LastCleaning | None = None


class LastRetention(Message, frozen=True, array_like=True):
    """The last deletion of segments by retention."""

    # By the broker's wall clock.
    timestamp_ms: int
    # The configuration key, or a text that the log starts later (F11).
    cause: str
    log_start_offset: int
    segment_count: int
    size_bytes: int


class ReplicaInfo(Message, frozen=True, array_like=True):
    """One replica on the broker. A follower's high watermark trails the leader's (B3)."""

    topic: str
    topic_id: UUID
    partition: int
    size_bytes: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    leader_epoch: int
    is_leader: bool
    # A copy that is moving into this directory.
    is_future: bool = False
    # Offsets that the copy lacks of the replica in the other directory.
    offset_lag: int = 0
    segment_count: int = 0
    # Of the oldest batch; NO_TIMESTAMP: there is no batch.
    oldest_timestamp_ms: int = NO_TIMESTAMP
    # None: the log is not compacted.
    cleaning: LogCleaning | None = None
    # None: retention has deleted nothing since the broker started.
    retention: LastRetention | None = None


class LogDirDescription(Message, frozen=True, array_like=True):
    """One data directory of the broker."""

    path: str
    directory_id: UUID
    # Empty while the disk works and has room.
    error: str
    free_bytes: int
    replicas: tuple[ReplicaInfo, ...]
    # The directory is still read.
    is_full: bool = False
    # The directory takes no new replicas.
    is_cordoned: bool = False


class DescribeLogDirsResponse(Message, frozen=True, array_like=True):
    """The broker's data directories, in the order of the broker's settings."""

    directories: tuple[LogDirDescription, ...]


class DescribeLogDirsRequest(Request[DescribeLogDirsResponse], frozen=True, array_like=True):
    """Describes a broker's data directories and replicas."""

    # Only replicas of these topics; None: of all.
    topics: tuple[str, ...] | None = None


class ReplicaLogDir(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """Moves one replica on the broker."""

    # Of the data directory to move to.
    path: str


class AlterReplicaLogDirsResponse(Message, frozen=True, array_like=True):
    """One result for each replica, in order. The moves have begun; DescribeLogDirs tells their progress."""

    partitions: tuple[PartitionResult, ...]


class AlterReplicaLogDirsRequest(Request[AlterReplicaLogDirsResponse], frozen=True, array_like=True):
    """Moves replicas between the broker's data directories. A move to the replica's own directory ends its current
    move.
    """

    replicas: tuple[ReplicaLogDir, ...]

    def check(self) -> None:
        check_each_once("replicas", [f"{each.topic}-{each.partition}" for each in self.replicas])
