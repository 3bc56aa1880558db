"""Topics created and deleted. Kafka: CreateTopicsRequest, DeleteTopicsRequest."""

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


# What an operator asks about partitions: more of them, other replicas, another leader, fewer records.
#
# The first five go to the active controller, the last three to brokers. Kafka: CreatePartitionsRequest,
# AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest, ElectLeadersRequest, UnregisterBrokerRequest,
# DeleteRecordsRequest, DescribeLogDirsRequest, AlterReplicaLogDirsRequest (B45-B47, G11).


class PartitionResult(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """What became of one partition of the request."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


# ---- More partitions -------------------------------------------------------------------------------------------------


class NewPartitions(Message, frozen=True, array_like=True):
    """A topic is to have so many partitions in all. `assignments`: the replicas of each new one, or None: placed."""

    name: str
    partition_count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitionsResponse(TopicResults, frozen=True, array_like=True):
    """One result for each topic, in order; a broker that has applied up to `metadata_offset` knows them."""


class CreatePartitionsRequest(Request[CreatePartitionsResponse], frozen=True, array_like=True):
    """Adds partitions to topics, each topic on its own."""

    topics: tuple[NewPartitions, ...]

    def check(self) -> None:
        check_each_once("topics", [topic.name for topic in self.topics])


# ---- Other replicas --------------------------------------------------------------------------------------------------


class Reassignment(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """The replicas that a partition is to have, the preferred leader first; None cancels what is under way (B45)."""

    replicas: tuple[int, ...] | None


class AlterPartitionReassignmentsResponse(Message, frozen=True, array_like=True):
    """One result for each partition, in order."""

    partitions: tuple[PartitionResult, ...]
    metadata_offset: int = NO_OFFSET


class AlterPartitionReassignmentsRequest(
    Request[AlterPartitionReassignmentsResponse], frozen=True, array_like=True
):
    """Begins or cancels reassignments; each ends by itself once the new replicas are in sync."""

    partitions: tuple[Reassignment, ...]

    def check(self) -> None:
        check_each_once("partitions", [f"{each.topic}-{each.partition}" for each in self.partitions])


class OngoingReassignment(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """A partition on its way to other replicas."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


class ListPartitionReassignmentsResponse(Message, frozen=True, array_like=True):
    """The reassignments under way, by topic and partition."""

    reassignments: tuple[OngoingReassignment, ...]


class ListPartitionReassignmentsRequest(
    Request[ListPartitionReassignmentsResponse], frozen=True, array_like=True
):
    """Which reassignments are under way, of these partitions or, with None, of all."""

    partitions: tuple[TopicPartition, ...] | None = None


class UnregisterBrokerResponse(Message, frozen=True, array_like=True):
    """The broker is forgotten."""


class UnregisterBrokerRequest(Request[UnregisterBrokerResponse], frozen=True, array_like=True):
    """Forgets a broker that is fenced and holds no replica."""

    broker_id: int


# ---- Another leader --------------------------------------------------------------------------------------------------


class ElectionType(IntEnum):
    """Kafka's `ElectionType`: the first replica, or any live one where the ISR has none."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectLeadersResponse(Message, frozen=True, array_like=True):
    """One result for each partition asked for; with None, one for each that was elected or could not be (B46)."""

    partitions: tuple[PartitionResult, ...]
    metadata_offset: int = NO_OFFSET


class ElectLeadersRequest(Request[ElectLeadersResponse], frozen=True, array_like=True):
    """Elects leaders of these partitions or, with None, of all."""

    election_type: ElectionType
    partitions: tuple[TopicPartition, ...] | None = None

    def check(self) -> None:
        check_each_once("partitions", map(repr, self.partitions or ()))


# ---- Asked of brokers ------------------------------------------------------------------------------------------------


class DeleteRecordsPartition(PartitionMessage, frozen=True, array_like=True):
    """Records below the offset are to go; -1 is the high watermark (G11)."""

    before_offset: int


class DeleteRecordsResult(PartitionAnswer, frozen=True, array_like=True):
    """The lowest log start offset of all live replicas, or an error."""

    low_watermark: int = NO_OFFSET


class DeleteRecordsResponse(Message, frozen=True, array_like=True):
    """One result for each partition of the request, in its order."""

    partitions: tuple[DeleteRecordsResult, ...]


class DeleteRecordsRequest(Request[DeleteRecordsResponse], frozen=True, array_like=True):
    """Asked of the leader; answered when every live replica has moved its log start offset (G11)."""

    timeout_ms: int
    partitions: tuple[DeleteRecordsPartition, ...]


class LastCleaning(Message, frozen=True, array_like=True):
    """What the last compaction of a log did, and when, by the broker's wall clock; bytes of the segments rewritten."""

    timestamp_ms: int
    end_offset: int
    input_bytes: int
    output_bytes: int


class LogCleaning(Message, frozen=True, array_like=True):
    """A compacted log: its bytes that were compacted before and those that may be compacted now (F20); why it cannot be
    compacted, or empty (F27); the last compaction since the broker started.
    """

    clean_bytes: int
    cleanable_bytes: int
    problem: str = ""
    last: LastCleaning | None = None


class LastRetention(Message, frozen=True, array_like=True):
    """What retention last took out of a log, and when, by the broker's wall clock; the cause is the configuration key,
    or that the log starts later (F11).
    """

    timestamp_ms: int
    cause: str
    log_start_offset: int
    segment_count: int
    size_bytes: int


class ReplicaInfo(Message, frozen=True, array_like=True):
    """One replica on the broker asked, as far as it is; a follower's high watermark trails (B3). A future one is a copy
    on its way into this directory, and lacks so many offsets of the replica in the other one. `oldest_timestamp_ms` is
    that of the oldest batch, -1 where there is none. `cleaning` is None for a log that is not compacted,
    `retention` for one that has lost nothing to it since the broker started.
    """

    topic: str
    topic_id: UUID
    partition: int
    size_bytes: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    leader_epoch: int
    is_leader: bool
    is_future: bool = False
    offset_lag: int = 0
    segment_count: int = 0
    oldest_timestamp_ms: int = NO_TIMESTAMP
    cleaning: LogCleaning | None = None
    retention: LastRetention | None = None


class LogDirDescription(Message, frozen=True, array_like=True):
    """One data directory of the broker asked, and the replicas in it. `error` is empty while the disk works and has
    room; a full one is still read, and a cordoned one takes no new replicas.
    """

    path: str
    directory_id: UUID
    error: str
    free_bytes: int
    replicas: tuple[ReplicaInfo, ...]
    is_full: bool = False
    is_cordoned: bool = False


class DescribeLogDirsResponse(Message, frozen=True, array_like=True):
    """The broker's data directories, in the order of its settings."""

    directories: tuple[LogDirDescription, ...]


class DescribeLogDirsRequest(Request[DescribeLogDirsResponse], frozen=True, array_like=True):
    """What the broker asked holds, of these topics or, with None, of all."""

    topics: tuple[str, ...] | None = None


class ReplicaLogDir(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """The replica on the broker asked is to be in the data directory with this path."""

    path: str


class AlterReplicaLogDirsResponse(Message, frozen=True, array_like=True):
    """One result for each replica, in order. The moves have begun; DescribeLogDirs says how far they are."""

    partitions: tuple[PartitionResult, ...]


class AlterReplicaLogDirsRequest(Request[AlterReplicaLogDirsResponse], frozen=True, array_like=True):
    """Moves replicas of the broker asked between its data directories; the one where a replica is ends its move."""

    replicas: tuple[ReplicaLogDir, ...]

    def check(self) -> None:
        check_each_once("replicas", [f"{each.topic}-{each.partition}" for each in self.replicas])
