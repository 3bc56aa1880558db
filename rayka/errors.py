"""Every error that rayka raises or answers, in one tree.

`RaykaError` has two families. `ApiError`: the cluster said no; `.code` is Kafka's number and `.retriable` says whether
the same call may succeed later (`clients/.../common/protocol/Errors.java`). The rest happen on this side of the wire.
`InvariantBroken` is of neither: a bug, which ends the process.
No exception crosses an actor boundary: a response carries an `ErrorCode`, and the client raises what `error_for` gives.
"""

from collections.abc import Mapping
from typing import ClassVar, Self

from rayka.error_codes import ErrorCode as ErrorCode  # noqa: PLC0414 - given out from here
from rayka.ids import TopicPartition


class RaykaError(Exception):
    """Base of every error of rayka."""

    retriable: ClassVar[bool] = False


class InvariantBroken(AssertionError):
    """What the code itself guarantees does not hold: a bug, and no answer to a caller, so it is no `RaykaError`.

    The process ends with it before it writes what would follow. It is raised, not asserted: `python -O` takes asserts
    out, and these checks stand between a bug and the records on disk.
    """


# ---- The cluster said no -------------------------------------------------------------------------------------------


_BY_CODE: dict[ErrorCode, "type[ApiError]"] = {}


class ApiError(RaykaError):
    """The cluster said no. `code` is Kafka's error number; `retriable` says whether the same call may succeed later."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init_subclass__(cls, *, code: ErrorCode | None = None) -> None:
        """With a code, the class is what `error_for` makes of that code."""
        if code is not None:
            cls.code = code
            _BY_CODE[code] = cls


class RetriableApiError(ApiError):
    """The same call may succeed later; clients retry these by themselves within their timeouts."""

    retriable = True


class InvalidMetadataError(RetriableApiError):
    """The caller's picture of the cluster is stale: refresh the metadata, then retry."""


class UnknownServerError(ApiError, code=ErrorCode.UNKNOWN_SERVER_ERROR):
    """The node failed in a way that has no name; its log has the cause."""


class OffsetOutOfRange(ApiError, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """The offset lies outside the partition's log: [log start offset, high watermark]."""


class LogTruncation(OffsetOutOfRange):
    """Records that a consumer has read are not in the log any more: a replica without them became the leader.

    `divergent_offsets`: for each partition the first offset that is known to differ from what was read.
    """

    def __init__(
        self, message: str = "", divergent_offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        super().__init__(message)
        self.divergent_offsets = dict(divergent_offsets or {})


class CorruptRecord(RetriableApiError, code=ErrorCode.CORRUPT_MESSAGE):
    """A batch failed its CRC or its structure contradicts itself."""


class UnknownTopicOrPartition(InvalidMetadataError, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
    """No such topic, or no such partition of it."""


class NoSuchTopic(UnknownTopicOrPartition):
    """The active controller knows no such topic (or partition), so asking again is no use."""

    retriable = False


class LeaderNotAvailable(InvalidMetadataError, code=ErrorCode.LEADER_NOT_AVAILABLE):
    """The partition has no leader just now."""


class NotLeaderOrFollower(InvalidMetadataError, code=ErrorCode.NOT_LEADER_OR_FOLLOWER):
    """The node asked does not lead the partition."""


class RequestTimedOut(RetriableApiError, code=ErrorCode.REQUEST_TIMED_OUT):
    """No answer in time; the request may or may not have been executed."""


class BrokerNotAvailable(RetriableApiError, code=ErrorCode.BROKER_NOT_AVAILABLE):
    """The node is not serving: starting, fenced or shutting down."""


class RecordTooLarge(ApiError, code=ErrorCode.MESSAGE_TOO_LARGE):
    """A record or batch exceeds `max.request.size` of the producer or `max.message.bytes` of the topic."""


class NetworkException(InvalidMetadataError, code=ErrorCode.NETWORK_EXCEPTION):
    """The call broke off; the request may or may not have been executed."""


class InvalidTopic(ApiError, code=ErrorCode.INVALID_TOPIC_EXCEPTION):
    """The topic's name is not allowed."""


class RecordBatchTooLarge(ApiError, code=ErrorCode.RECORD_LIST_TOO_LARGE):
    """A batch is larger than a segment may be."""


class NotEnoughReplicas(RetriableApiError, code=ErrorCode.NOT_ENOUGH_REPLICAS):
    """Fewer replicas in sync than `min.insync.replicas`; nothing was written."""


class NotEnoughReplicasAfterAppend(RetriableApiError, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
    """Written, but fewer replicas in sync than `min.insync.replicas` hold it."""


class InvalidRequiredAcks(ApiError, code=ErrorCode.INVALID_REQUIRED_ACKS):
    """`acks` is none of 0, 1 and all."""


class RecordsRefused(ApiError):
    """Records broke a rule of their topic. `refusals` has the error of each refused record, by its index in the
    request; empty if all records are meant. Only set on brokers.
    """

    def __init__(self, message: str, refusals: "Mapping[int, ApiError] | None" = None) -> None:
        super().__init__(message)
        self.refusals = refusals or {}


class InvalidTimestamp(RecordsRefused, code=ErrorCode.INVALID_TIMESTAMP):
    """A record's timestamp is outside what the topic accepts."""


class UnsupportedVersion(ApiError, code=ErrorCode.UNSUPPORTED_VERSION):
    """The node does not know this version of the request."""


class TopicAlreadyExists(ApiError, code=ErrorCode.TOPIC_ALREADY_EXISTS):
    """A topic of that name exists."""


class InvalidPartitions(ApiError, code=ErrorCode.INVALID_PARTITIONS):
    """The partition count is not allowed."""


class InvalidReplicationFactor(ApiError, code=ErrorCode.INVALID_REPLICATION_FACTOR):
    """The replication factor is below 1 or above the number of usable brokers."""


class InvalidConfig(ApiError, code=ErrorCode.INVALID_CONFIG):
    """A configuration key or value was refused by the cluster."""


class NotController(InvalidMetadataError, code=ErrorCode.NOT_CONTROLLER):
    """The node asked is not the active controller. `leader_id` is the one that it knows of, -1 for none, in that epoch.

    `may_have_run`: it was the active one when the request came, and what it appended may be committed yet.
    """

    def __init__(
        self, message: str = "", leader_id: int = -1, leader_epoch: int = -1, *, may_have_run: bool = False
    ) -> None:
        super().__init__(message)
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.may_have_run = may_have_run


class InvalidRequest(ApiError, code=ErrorCode.INVALID_REQUEST):
    """The request contradicts itself or the protocol."""


class OutOfOrderSequence(ApiError, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
    """The sequence of a batch does not follow the one before it in the log: something in between is missing."""


class DuplicateSequence(ApiError, code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
    """The batch is in the log already."""


class InvalidProducerEpoch(ApiError, code=ErrorCode.INVALID_PRODUCER_EPOCH):
    """A later epoch of this producer id has written to the partition."""


class UnknownProducerId(OutOfOrderSequence, code=ErrorCode.UNKNOWN_PRODUCER_ID):
    """The partition's leader knows nothing of this producer id any more."""


class KafkaStorageError(InvalidMetadataError, code=ErrorCode.KAFKA_STORAGE_ERROR):
    """The disk that holds the data failed or is full."""


class LogDirNotFound(ApiError, code=ErrorCode.LOG_DIR_NOT_FOUND):
    """The broker has no such data directory."""


class ReplicaNotAvailable(InvalidMetadataError, code=ErrorCode.REPLICA_NOT_AVAILABLE):
    """The broker has no replica of the partition, or not yet."""


class FencedLeaderEpoch(InvalidMetadataError, code=ErrorCode.FENCED_LEADER_EPOCH):
    """The caller's leader epoch is older than the node's."""


class UnknownLeaderEpoch(RetriableApiError, code=ErrorCode.UNKNOWN_LEADER_EPOCH):
    """The caller's leader epoch is newer than the node's."""


class UnsupportedCompressionType(ApiError, code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE):
    """The codec is none of none, gzip, lz4 and zstd."""


class StaleBrokerEpoch(ApiError, code=ErrorCode.STALE_BROKER_EPOCH):
    """The broker's registration was replaced by a newer one."""


class OffsetNotAvailable(RetriableApiError, code=ErrorCode.OFFSET_NOT_AVAILABLE):
    """A new leader does not know yet how far the log is committed."""


class InvalidRecord(RecordsRefused, code=ErrorCode.INVALID_RECORD):
    """A record broke a rule of its topic."""


class TooManyRequests(RetriableApiError, code=ErrorCode.THROTTLING_QUOTA_EXCEEDED):
    """The node has as many waiting requests of this kind as it admits."""


class UnknownTopicId(InvalidMetadataError, code=ErrorCode.UNKNOWN_TOPIC_ID):
    """No topic has that id: it was deleted, or this node does not know it yet."""


class DuplicateBrokerRegistration(ApiError, code=ErrorCode.DUPLICATE_BROKER_REGISTRATION):
    """Another live process is registered under this broker id."""


class BrokerIdNotRegistered(ApiError, code=ErrorCode.BROKER_ID_NOT_REGISTERED):
    """No broker of that id is registered."""


class InconsistentTopicId(InvalidMetadataError, code=ErrorCode.INCONSISTENT_TOPIC_ID):
    """The topic has another id than the log directory, or the reader, that met it before: it was created again."""


class InconsistentClusterId(ApiError, code=ErrorCode.INCONSISTENT_CLUSTER_ID):
    """The caller belongs to another cluster."""


class TopicRecreated(InconsistentTopicId):
    """The topic is another one than before: deleted, and created again under its name. Asking again is no use."""

    retriable = False


class SnapshotNotFound(ApiError, code=ErrorCode.SNAPSHOT_NOT_FOUND):
    """The replica does not have that snapshot, or no longer."""


class PositionOutOfRange(ApiError, code=ErrorCode.POSITION_OUT_OF_RANGE):
    """The position lies outside the snapshot."""


class FetchSessionIdNotFound(RetriableApiError, code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
    """The broker does not know this fetch session any more; begin another one."""


class InvalidFetchSessionEpoch(RetriableApiError, code=ErrorCode.INVALID_FETCH_SESSION_EPOCH):
    """The request does not follow the last one of its fetch session; begin another one."""


class FetchSessionTopicIdError(RetriableApiError, code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR):
    """A topic of the fetch session has another id now; begin another one."""


class InvalidReplicaAssignment(ApiError, code=ErrorCode.INVALID_REPLICA_ASSIGNMENT):
    """The replicas asked for are not brokers of the cluster, or one is named twice."""


class PolicyViolation(ApiError, code=ErrorCode.POLICY_VIOLATION):
    """The topic's configuration does not allow it."""


class OperationNotAttempted(ApiError, code=ErrorCode.OPERATION_NOT_ATTEMPTED):
    """Something before it failed, so this was not tried."""


class PreferredLeaderNotAvailable(InvalidMetadataError, code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE):
    """The first replica is not in sync or not running."""


class EligibleLeadersNotAvailable(InvalidMetadataError, code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE):
    """No replica can lead."""


class ElectionNotNeeded(InvalidMetadataError, code=ErrorCode.ELECTION_NOT_NEEDED):
    """The partition has the leader that was asked for."""


class NoReassignmentInProgress(ApiError, code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
    """There is no reassignment to cancel."""


class InvalidUpdateVersion(ApiError, code=ErrorCode.INVALID_UPDATE_VERSION):
    """The partition has changed since: its partition epoch is higher."""


class IneligibleReplica(ApiError, code=ErrorCode.INELIGIBLE_REPLICA):
    """The replica must not join the ISR: its broker is fenced, shutting down, or another process by now."""


class NewLeaderElected(ApiError, code=ErrorCode.NEW_LEADER_ELECTED):
    """The change of the ISR made another broker the leader."""


class InvalidVoterKey(ApiError, code=ErrorCode.INVALID_VOTER_KEY):
    """The request names another replica than the one that got it: the node has another directory now."""


class DuplicateVoter(ApiError, code=ErrorCode.DUPLICATE_VOTER):
    """A node of that id votes already."""


class VoterNotFound(ApiError, code=ErrorCode.VOTER_NOT_FOUND):
    """No such voter, or the last one, which cannot be removed."""


class CoordinatorLoadInProgress(RetriableApiError, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
    """The coordinator has yet to read what its predecessor has written."""


class CoordinatorNotAvailable(RetriableApiError, code=ErrorCode.COORDINATOR_NOT_AVAILABLE):
    """No node coordinates the group just now."""


class NotCoordinator(RetriableApiError, code=ErrorCode.NOT_COORDINATOR):
    """The node asked does not coordinate the group: find its coordinator."""


class InvalidGroupId(ApiError, code=ErrorCode.INVALID_GROUP_ID):
    """The group's id is empty or too long."""


class GroupIdNotFound(ApiError, code=ErrorCode.GROUP_ID_NOT_FOUND):
    """No group has that id."""


class NonEmptyGroup(ApiError, code=ErrorCode.NON_EMPTY_GROUP):
    """The group has members."""


class GroupSubscribedToTopic(ApiError, code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
    """A member of the group subscribes to the topic, so its offsets stay."""


class GroupMaxSizeReached(ApiError, code=ErrorCode.GROUP_MAX_SIZE_REACHED):
    """The group has as many members as `group.max.size` allows."""


class InconsistentGroupProtocol(ApiError, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
    """The member offers no protocol that all other members support, or a protocol of another type."""


class InvalidSessionTimeout(ApiError, code=ErrorCode.INVALID_SESSION_TIMEOUT):
    """The session timeout is outside what the cluster allows."""


class MemberIdRequired(ApiError, code=ErrorCode.MEMBER_ID_REQUIRED):
    """The member joins again with the id that it was given."""


class UnknownMemberId(ApiError, code=ErrorCode.UNKNOWN_MEMBER_ID):
    """The group has no such member: its session has ended, or it has left."""


class IllegalGeneration(ApiError, code=ErrorCode.ILLEGAL_GENERATION):
    """The group has another generation than the caller's."""


class RebalanceInProgress(ApiError, code=ErrorCode.REBALANCE_IN_PROGRESS):
    """The group is about to have another generation: join it."""


class FencedInstanceId(ApiError, code=ErrorCode.FENCED_INSTANCE_ID):
    """Another member has joined with the same `group_instance_id`."""


class OffsetMetadataTooLarge(ApiError, code=ErrorCode.OFFSET_METADATA_TOO_LARGE):
    """The text beside a committed offset is longer than `offset.metadata.max.bytes`."""


# ---- This side of the wire -----------------------------------------------------------------------------------------


class ClientError(RaykaError):
    """The client itself refuses or gave up."""


class BufferExhausted(ClientError):
    """`buffer_memory` stayed full for `max_block_ms`; the record was not accepted."""


class NoDiskRoom(ClientError):
    """What a broker holds would leave too little room on the disks of the others; nothing was begun."""


class DeliveryTimeout(ClientError):
    """A record was not acknowledged within `delivery_timeout_ms`; it may or may not be in the log."""


class ClosedError(ClientError):
    """The client was closed."""


class SerializationError(ClientError):
    """A key, a value or a header could not be turned into bytes, or back.

    Where a record could not be read, `topic_partition` and `offset` say which: `seek` behind it to go on.
    """

    topic_partition: TopicPartition | None = None
    offset: int | None = None

    @classmethod
    def of_record(cls, topic_partition: TopicPartition, offset: int, why: object) -> Self:
        """Of the record there."""
        error = cls(f"{topic_partition}, offset {offset}: {why}; seek to {offset + 1} to go on behind it")
        error.topic_partition, error.offset = topic_partition, offset
        return error


class WorkFailed(ClientError):
    """A function of `rayka.workers` failed for good; the message names the records, none of which are committed."""


class UnavailableError(RaykaError):
    """Something that the call needs cannot be reached: Ray, every broker, Java."""


class ConfigError(RaykaError):
    """A configuration key or value is wrong; the message names the nearest known key or what is allowed."""


class InvalidArgument(ClientError, ValueError):
    """A value is none of those that the argument takes; the message names them."""


class RayEnded(NetworkException, UnavailableError):
    """The Ray that this process is connected to has ended, and no other one is found: no retry mends that."""

    retriable = False


class ClusterNotFound(RaykaError):
    """No cluster of that name runs on that Ray."""


class ClusterExists(RaykaError):
    """A cluster of that name runs already, with another data directory or specification."""


class StorageError(RaykaError):
    """A data directory cannot be used: missing, locked, of another node or cluster, failed or full.

    On the wire it is KAFKA_STORAGE_ERROR.
    """


class PassingStorageError(StorageError):
    """A data directory takes no writes for now, and nothing is broken: what was written before is whole, and can be
    read. `until` says what ends it.
    """

    until: ClassVar[str] = "that has passed"


class DiskFull(PassingStorageError):
    """A write found no room. What was written before is whole, and can be read."""

    until = "there is room"


class DiskReadOnly(PassingStorageError):
    """The file system is mounted read-only. What it holds can be read."""

    until = "its disk is writable"


class TooManyOpenFiles(PassingStorageError):
    """No descriptor was left for a file, in the process (EMFILE) or on the machine (ENFILE). The call did nothing."""

    until = "descriptors are free"


class DiskNotResponding(StorageError):
    """A call of a disk made no progress for too long: the disk hangs. The call may still be executed."""


class DirectoryTaken(StorageError):
    """A data directory is another process's, node's or cluster's: a mistake that a node does not pass over."""


class DamagedLog(StorageError):
    """A log cannot be opened without cutting off whole batches behind a damaged one; the directory is fine."""


def error_for(code: int, message: str) -> ApiError:
    """The exception that stands for an error code of a response, with the message given."""
    known = _BY_CODE.get(ErrorCode(code)) if code in ErrorCode._value2member_map_ else None
    return known(message) if known else UnknownServerError(f"{message} (error code {code})")


def is_retriable(code: ErrorCode) -> bool:
    """Whether the same request may succeed later."""
    # G18
    return code is not ErrorCode.NONE and _BY_CODE[code].retriable


def needs_metadata(code: ErrorCode) -> bool:
    """Whether the error says that the caller's metadata is stale."""
    # G18
    return code is not ErrorCode.NONE and issubclass(_BY_CODE[code], InvalidMetadataError)
