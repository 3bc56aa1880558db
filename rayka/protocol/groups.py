"""Groups: coordinators, members, committed offsets, and the questions of operators.

A group's coordinator is the leader of the partition of `__consumer_offsets` to which the group's id hashes (E1). A
group's heartbeat has the name `group_heartbeat`, because `heartbeat` is a broker's.

Consumers exchange subscriptions and assignments through their coordinator, to which both are bytes: a member sends its
subscription with each join, and the leader of the group sends an assignment for each member with its sync.

Kafka: FindCoordinatorRequest, JoinGroupRequest, SyncGroupRequest, HeartbeatRequest, LeaveGroupRequest,
ListGroupsRequest, DescribeGroupsRequest, DeleteGroupsRequest (E3-E8), OffsetCommitRequest, OffsetFetchRequest,
OffsetDeleteRequest (E10), ConsumerProtocolSubscription, ConsumerProtocolAssignment. Left out: transactions, the
protocol of KIP-848.
"""

from enum import StrEnum
from typing import TypeVar
from uuid import UUID

import msgspec

from rayka.errors import CorruptRecord, ErrorCode, InconsistentGroupProtocol, InvalidGroupId
from rayka.ids import NO_EPOCH, NO_NODE, NO_OFFSET, ZERO_ID, TopicPartition
from rayka.ports import Message, Request, ResponseT
from rayka.protocol.request_parts import NamedPartitionMessage, check_each_once, require
from rayka.protocol.topics import PartitionResult

# The longest string of Kafka.
GROUP_ID_BYTES_MAX = 32_767
MEMBERS_PER_REQUEST_MAX = 10_000
# Of a group_instance_id, as of a topic.
NAME_BYTES_MAX = 249
_TIMEOUT_MS_MAX = 2**31 - 1
# Each partition is a record, and all of them are one batch.
PARTITIONS_PER_COMMIT_MAX = 10_000
CONSUMER_PROTOCOL_TYPE = "consumer"
NO_GENERATION = NO_EPOCH
_MemberDataT = TypeVar("_MemberDataT", bound=Message)


class GroupState(StrEnum):
    """A group's place in its life cycle (E2)."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupResult(Message, frozen=True, array_like=True):
    """The result for one group of the request."""

    group_id: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


def check_group_id(group_id: str) -> None:
    """Raises InvalidGroupId for an empty id, and for one that is too long."""
    if not 0 < len(group_id.encode()) <= GROUP_ID_BYTES_MAX:
        raise InvalidGroupId(
            f"group_id: expected 1 to {GROUP_ID_BYTES_MAX:,} bytes, found {len(group_id.encode()):,}"
        )


class _GroupsRequest(Request[ResponseT], frozen=True, array_like=True):
    """Begins requests about several groups. It gets no new field: a request gets new fields at its own end."""

    group_ids: tuple[str, ...]

    def check(self) -> None:
        check_each_once("group_ids", self.group_ids)
        for group_id in self.group_ids:
            check_group_id(group_id)


# ---- Coordinators ----------------------------------------------------------------------------------------------------


class GroupCoordinator(Message, frozen=True, array_like=True):
    """The node that coordinates a group. COORDINATOR_NOT_AVAILABLE: the group's partition has no leader."""

    group_id: str
    node_id: int = NO_NODE
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""
    # The epoch in which the node leads the group's partition.
    leader_epoch: int = NO_EPOCH


class FindCoordinatorResponse(Message, frozen=True, array_like=True):
    """One coordinator for each group, in order."""

    coordinators: tuple[GroupCoordinator, ...]


class FindCoordinatorRequest(_GroupsRequest[FindCoordinatorResponse], frozen=True, array_like=True):
    """Asks any broker for the coordinators of groups. The first such request creates `__consumer_offsets`."""


# ---- Joining ---------------------------------------------------------------------------------------------------------


class GroupProtocol(Message, frozen=True, array_like=True):
    """A protocol that a member supports. For consumers the name is an assignor's, the metadata a subscription."""

    name: str
    metadata: bytes


class JoinedMember(Message, frozen=True, array_like=True):
    """A member as the group's leader gets it."""

    member_id: str
    # For the chosen protocol.
    metadata: bytes
    group_instance_id: str = ""
    # With `skip_assignment`: the assignment that the member keeps.
    assignment: bytes = b""


class JoinGroupResponse(Message, frozen=True, array_like=True):
    """A generation and its leader. MEMBER_ID_REQUIRED: the member joins again, with the `member_id` of the response."""

    member_id: str
    generation_id: int = NO_EPOCH
    protocol_type: str = ""
    protocol_name: str = ""
    # The leader's member id.
    leader_id: str = ""
    # All members, for the leader; empty for the others.
    members: tuple[JoinedMember, ...] = ()
    # The leader does not assign: the members keep their assignments (E7).
    skip_assignment: bool = False
    error_code: ErrorCode = ErrorCode.NONE


class JoinGroupRequest(Request[JoinGroupResponse], frozen=True, array_like=True):
    """A member joins the next generation of a group. Answered when the generation has begun."""

    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    # Empty for the first join.
    member_id: str
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]
    # Of a static member; empty for others.
    group_instance_id: str = ""
    client_id: str = ""
    client_host: str = ""
    reason: str = ""

    def check(self) -> None:
        check_group_id(self.group_id)
        for name in ("group_instance_id", "client_id", "client_host"):
            found = len(getattr(self, name).encode())
            require(found <= NAME_BYTES_MAX, name, f"at most {NAME_BYTES_MAX} bytes", found)
        timeout_ms = self.rebalance_timeout_ms
        require(
            0 < timeout_ms <= _TIMEOUT_MS_MAX, "rebalance_timeout_ms", f"1 to {_TIMEOUT_MS_MAX}", timeout_ms
        )
        if not self.protocol_type or not self.protocols:
            raise InconsistentGroupProtocol(
                "protocols: expected a type and at least one protocol, found none"
            )
        check_each_once("protocols", [each.name for each in self.protocols])


# ---- Assignments -----------------------------------------------------------------------------------------------------


class MemberAssignment(Message, frozen=True, array_like=True):
    """The leader's assignment for one member."""

    member_id: str
    assignment: bytes


class SyncGroupResponse(Message, frozen=True, array_like=True):
    """The member's assignment in this generation."""

    protocol_type: str
    protocol_name: str
    assignment: bytes


class SyncGroupRequest(Request[SyncGroupResponse], frozen=True, array_like=True):
    """A member asks for its assignment. Answered when the leader's request has arrived."""

    group_id: str
    generation_id: int
    member_id: str
    # The assignments of all members, from the leader; empty from others.
    assignments: tuple[MemberAssignment, ...] = ()
    protocol_type: str = ""
    protocol_name: str = ""
    group_instance_id: str = ""

    def check(self) -> None:
        check_group_id(self.group_id)
        check_each_once("assignments", [each.member_id for each in self.assignments])


class GroupHeartbeatResponse(Message, frozen=True, array_like=True):
    """Confirms a member. REBALANCE_IN_PROGRESS: the generation ends, and the member joins the next one."""

    error_code: ErrorCode = ErrorCode.NONE


class GroupHeartbeatRequest(Request[GroupHeartbeatResponse], frozen=True, array_like=True):
    """Tells that a member of this generation is alive."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str = ""

    def check(self) -> None:
        check_group_id(self.group_id)


# ---- Leaving ---------------------------------------------------------------------------------------------------------


class LeavingMember(Message, frozen=True, array_like=True):
    """A member by its member id, or a static member by its instance id."""

    # May be empty beside a `group_instance_id`.
    member_id: str
    group_instance_id: str = ""
    reason: str = ""


class LeftMember(Message, frozen=True, array_like=True):
    """The result for one member of the request."""

    member_id: str
    group_instance_id: str = ""
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


class LeaveGroupResponse(Message, frozen=True, array_like=True):
    """One result for each member, in order."""

    members: tuple[LeftMember, ...]


class LeaveGroupRequest(Request[LeaveGroupResponse], frozen=True, array_like=True):
    """Removes members from a group; the failure of one does not affect the others."""

    group_id: str
    members: tuple[LeavingMember, ...]

    def check(self) -> None:
        check_group_id(self.group_id)
        found = len(self.members)
        require(found <= MEMBERS_PER_REQUEST_MAX, "members", f"at most {MEMBERS_PER_REQUEST_MAX:,}", found)


# ---- Administration --------------------------------------------------------------------------------------------------


class ListedGroup(Message, frozen=True, array_like=True):
    """A short description of a group."""

    group_id: str
    # Empty for a group that has only offsets.
    protocol_type: str
    state: GroupState


class ListGroupsResponse(Message, frozen=True, array_like=True):
    """The groups of the coordinator that was asked."""

    groups: tuple[ListedGroup, ...]
    # Groups are missing here: the coordinator has not loaded them yet.
    is_loading: bool = False


class ListGroupsRequest(Request[ListGroupsResponse], frozen=True, array_like=True):
    """Lists the groups that the node coordinates."""

    # None: all states.
    states: tuple[GroupState, ...] | None = None


class DescribedMember(Message, frozen=True, array_like=True):
    """A member of a described group."""

    member_id: str
    group_instance_id: str
    client_id: str
    client_host: str
    # Metadata and assignment are empty during a rebalance.
    metadata: bytes = b""
    assignment: bytes = b""


class DescribedGroup(Message, frozen=True, array_like=True):
    """A group with its members. GROUP_ID_NOT_FOUND and the state DEAD: there is no such group."""

    group_id: str
    state: GroupState = GroupState.DEAD
    generation_id: int = NO_EPOCH
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


class DescribeGroupsResponse(Message, frozen=True, array_like=True):
    """One description for each group, in order."""

    groups: tuple[DescribedGroup, ...]


class DescribeGroupsRequest(_GroupsRequest[DescribeGroupsResponse], frozen=True, array_like=True):
    """Describes groups that the node coordinates."""


class DeleteGroupsResponse(Message, frozen=True, array_like=True):
    """One result for each group, in order."""

    groups: tuple[GroupResult, ...]


class DeleteGroupsRequest(_GroupsRequest[DeleteGroupsResponse], frozen=True, array_like=True):
    """Deletes groups that have no members, with all their offsets."""


# ---- Committed offsets -----------------------------------------------------------------------------------------------


class CommittedOffset(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """A group's position in one partition."""

    # Of the next record that the group reads.
    offset: int
    # Of the record before it, if known.
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    # ZERO_ID if the caller does not know the id. The offset is meaningless in a topic of this name with another id.
    topic_id: UUID = ZERO_ID


class OffsetCommitResponse(Message, frozen=True, array_like=True):
    """One result for each partition, in order."""

    partitions: tuple[PartitionResult, ...]


class OffsetCommitRequest(Request[OffsetCommitResponse], frozen=True, array_like=True):
    """Commits offsets."""

    group_id: str
    partitions: tuple[CommittedOffset, ...]
    # NO_EPOCH: the group has no members; the commit creates the group if there is none (E10).
    generation_id: int = NO_EPOCH
    member_id: str = ""
    group_instance_id: str = ""
    # The `GroupCoordinator.leader_epoch` of the coordinator that the member knows. A coordinator that leads in another
    # epoch refuses the commit, because the commit may be late. NO_EPOCH is not checked.
    coordinator_epoch: int = NO_EPOCH

    def check(self) -> None:
        check_group_id(self.group_id)
        if self.coordinator_epoch < NO_EPOCH:
            require(False, "coordinator_epoch", f"{NO_EPOCH} or more", self.coordinator_epoch)
        check_partitions(self.partitions)
        for each in self.partitions:
            if each.offset < 0:
                require(False, f"the offset of {each.topic}-{each.partition}", "0 or more", each.offset)


def check_partitions(partitions: tuple[CommittedOffset, ...] | tuple[TopicPartition, ...]) -> None:
    """Raises InvalidRequest for too many partitions, for one named twice, and for an impossible name or number."""
    found = len(partitions)
    require(found <= PARTITIONS_PER_COMMIT_MAX, "partitions", f"at most {PARTITIONS_PER_COMMIT_MAX:,}", found)
    if found > 1:
        check_each_once("partitions", [f"{each.topic}-{each.partition}" for each in partitions])
    for each in partitions:
        if each.topic == "" or not 0 <= each.partition < 2**31:
            expected = "topics with a name and numbers from 0"
            require(False, "partitions", expected, (each.topic, each.partition))


class FetchedOffset(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """A group's committed offset of one partition."""

    # NO_OFFSET: the group has committed none.
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""
    topic_id: UUID = ZERO_ID


class OffsetFetchResponse(Message, frozen=True, array_like=True):
    """One committed offset for each partition, in order; all committed offsets if the request names no partitions."""

    partitions: tuple[FetchedOffset, ...]


class OffsetFetchRequest(Request[OffsetFetchResponse], frozen=True, array_like=True):
    """Asks for a group's committed offsets. An unknown group has none."""

    group_id: str
    # None: all partitions with a committed offset.
    partitions: tuple[TopicPartition, ...] | None = None

    def check(self) -> None:
        check_group_id(self.group_id)
        check_partitions(self.partitions or ())


class OffsetDeleteResponse(Message, frozen=True, array_like=True):
    """One result for each partition, in order."""

    partitions: tuple[PartitionResult, ...]


class OffsetDeleteRequest(Request[OffsetDeleteResponse], frozen=True, array_like=True):
    """Deletes committed offsets of topics to which no member of the group subscribes."""

    group_id: str
    partitions: tuple[TopicPartition, ...]

    def check(self) -> None:
        check_group_id(self.group_id)
        check_partitions(self.partitions)


# ---- Data of consumers -----------------------------------------------------------------------------------------------


class ConsumerSubscription(Message, frozen=True, array_like=True):
    """A member's subscription."""

    topics: tuple[str, ...]
    # The member reads these partitions since the assignment of `generation_id`.
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    rack: str = ""
    user_data: bytes = b""


class ConsumerAssignment(Message, frozen=True, array_like=True):
    """The partitions that a member reads in a generation."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes = b""


def encode_member_data(message: ConsumerSubscription | ConsumerAssignment) -> bytes:
    """The bytes of a subscription or an assignment."""
    return msgspec.msgpack.encode(message)


def decode_member_data(message_type: type[_MemberDataT], data: bytes) -> _MemberDataT:
    """A subscription or an assignment from its bytes. Raises CorruptRecord with the type that was expected."""
    try:
        return msgspec.msgpack.decode(data, type=message_type)
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"expected a {message_type.__name__}, found {data[:40]!r}: {error}") from error
