"""Groups: their coordinators, their members, and what operators ask about them.

A group's coordinator is the leader of the partition of `__consumer_offsets` that its id hashes to (E1). Kafka:
FindCoordinatorRequest, JoinGroupRequest, SyncGroupRequest, HeartbeatRequest, LeaveGroupRequest, ListGroupsRequest,
DescribeGroupsRequest, DeleteGroupsRequest (E3-E8). A group's heartbeat has the name `group_heartbeat`, since
`heartbeat` is a broker's. Left out: coordinators of transactions, the protocol of KIP-848.
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

GROUP_ID_BYTES_MAX = 32_767  # Kafka's own strings end there
MEMBERS_PER_REQUEST_MAX = 10_000
NAME_BYTES_MAX = 249  # of a group_instance_id, as of a topic
_TIMEOUT_MS_MAX = 2**31 - 1


class GroupState(StrEnum):
    """Where a group is in its life (E2)."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupResult(Message, frozen=True, array_like=True):
    """What became of one group of the request."""

    group_id: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


def check_group_id(group_id: str) -> None:
    """Raises InvalidGroupId, of an empty id or of one that is too long."""
    if not 0 < len(group_id.encode()) <= GROUP_ID_BYTES_MAX:
        raise InvalidGroupId(
            f"group_id: expected 1 to {GROUP_ID_BYTES_MAX:,} bytes, found {len(group_id.encode()):,}"
        )


class _GroupsRequest(Request[ResponseT], frozen=True, array_like=True):
    """What a request about several groups begins with. It stays as it is: a request gets new fields at its own end."""

    group_ids: tuple[str, ...]

    def check(self) -> None:
        check_each_once("group_ids", self.group_ids)
        for group_id in self.group_ids:
            check_group_id(group_id)


# ---- Coordinators ----------------------------------------------------------------------------------------------------


class GroupCoordinator(Message, frozen=True, array_like=True):
    """The node that coordinates a group, and the epoch in which it leads the group's partition;
    COORDINATOR_NOT_AVAILABLE while that has no leader.
    """

    group_id: str
    node_id: int = NO_NODE
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""
    leader_epoch: int = NO_EPOCH


class FindCoordinatorResponse(Message, frozen=True, array_like=True):
    """One for each group, in order."""

    coordinators: tuple[GroupCoordinator, ...]


class FindCoordinatorRequest(_GroupsRequest[FindCoordinatorResponse], frozen=True, array_like=True):
    """Which nodes coordinate these groups; any broker knows. The first one creates `__consumer_offsets`."""


# ---- Joining ---------------------------------------------------------------------------------------------------------


class GroupProtocol(Message, frozen=True, array_like=True):
    """A way of sharing work that a member offers: for consumers an assignor, with the subscription as metadata."""

    name: str
    metadata: bytes


class JoinedMember(Message, frozen=True, array_like=True):
    """A member as the leader is told of it: its metadata for the chosen protocol; its assignment when that stays."""

    member_id: str
    metadata: bytes
    group_instance_id: str = ""
    assignment: bytes = b""


class JoinGroupResponse(Message, frozen=True, array_like=True):
    """A generation and its leader, which is told all members. MEMBER_ID_REQUIRED comes with the id to join with.
    `skip_assignment`: the leader need not assign, since the members have what they had (E7).
    """

    member_id: str
    generation_id: int = NO_EPOCH
    protocol_type: str = ""
    protocol_name: str = ""
    leader_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False
    error_code: ErrorCode = ErrorCode.NONE


class JoinGroupRequest(Request[JoinGroupResponse], frozen=True, array_like=True):
    """A member wants to be part of the next generation; answered when that has begun. The member id is empty the first
    time, `group_instance_id` is that of a static member.
    """

    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]
    group_instance_id: str = ""
    client_id: str = ""
    client_host: str = ""
    reason: str = ""

    def check(self) -> None:
        check_group_id(self.group_id)
        for what in ("group_instance_id", "client_id", "client_host"):
            found = len(getattr(self, what).encode())
            require(found <= NAME_BYTES_MAX, what, f"at most {NAME_BYTES_MAX} bytes", found)
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
    """What the leader has assigned to one member."""

    member_id: str
    assignment: bytes


class SyncGroupResponse(Message, frozen=True, array_like=True):
    """The member's assignment of this generation."""

    protocol_type: str
    protocol_name: str
    assignment: bytes


class SyncGroupRequest(Request[SyncGroupResponse], frozen=True, array_like=True):
    """A member asks for its assignment, and the leader brings those of all; answered when the leader's has come."""

    group_id: str
    generation_id: int
    member_id: str
    assignments: tuple[MemberAssignment, ...] = ()
    protocol_type: str = ""
    protocol_name: str = ""
    group_instance_id: str = ""

    def check(self) -> None:
        check_group_id(self.group_id)
        check_each_once("assignments", [each.member_id for each in self.assignments])


class GroupHeartbeatResponse(Message, frozen=True, array_like=True):
    """The member is known. REBALANCE_IN_PROGRESS: its generation ends, so it joins the next one."""

    error_code: ErrorCode = ErrorCode.NONE


class GroupHeartbeatRequest(Request[GroupHeartbeatResponse], frozen=True, array_like=True):
    """A member of this generation is alive."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str = ""

    def check(self) -> None:
        check_group_id(self.group_id)


# ---- Leaving ---------------------------------------------------------------------------------------------------------


class LeavingMember(Message, frozen=True, array_like=True):
    """A member by its id, or a static one by its instance id, then with or without the member id."""

    member_id: str
    group_instance_id: str = ""
    reason: str = ""


class LeftMember(Message, frozen=True, array_like=True):
    """What became of one member of the request."""

    member_id: str
    group_instance_id: str = ""
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


class LeaveGroupResponse(Message, frozen=True, array_like=True):
    """One for each member, in order."""

    members: tuple[LeftMember, ...]


class LeaveGroupRequest(Request[LeaveGroupResponse], frozen=True, array_like=True):
    """Members leave at once, each on its own."""

    group_id: str
    members: tuple[LeavingMember, ...]

    def check(self) -> None:
        check_group_id(self.group_id)
        found = len(self.members)
        require(found <= MEMBERS_PER_REQUEST_MAX, "members", f"at most {MEMBERS_PER_REQUEST_MAX:,}", found)


# ---- What operators ask ----------------------------------------------------------------------------------------------


class ListedGroup(Message, frozen=True, array_like=True):
    """A group in a few words; the protocol type of one that has only offsets is empty."""

    group_id: str
    protocol_type: str
    state: GroupState


class ListGroupsResponse(Message, frozen=True, array_like=True):
    """The groups of the coordinator asked. `is_loading`: it has yet to load some, and does not list those."""

    groups: tuple[ListedGroup, ...]
    is_loading: bool = False


class ListGroupsRequest(Request[ListGroupsResponse], frozen=True, array_like=True):
    """The groups that the node asked coordinates, those in these states or, with None, all."""

    states: tuple[GroupState, ...] | None = None


class DescribedMember(Message, frozen=True, array_like=True):
    """A member; metadata and assignment are empty during a rebalance."""

    member_id: str
    group_instance_id: str
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


class DescribedGroup(Message, frozen=True, array_like=True):
    """One group with its members; GROUP_ID_NOT_FOUND with the state DEAD when there is none."""

    group_id: str
    state: GroupState = GroupState.DEAD
    generation_id: int = NO_EPOCH
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


class DescribeGroupsResponse(Message, frozen=True, array_like=True):
    """One for each group, in order."""

    groups: tuple[DescribedGroup, ...]


class DescribeGroupsRequest(_GroupsRequest[DescribeGroupsResponse], frozen=True, array_like=True):
    """Groups that the node asked coordinates."""


class DeleteGroupsResponse(Message, frozen=True, array_like=True):
    """One result for each group, in order."""

    groups: tuple[GroupResult, ...]


class DeleteGroupsRequest(_GroupsRequest[DeleteGroupsResponse], frozen=True, array_like=True):
    """Forgets groups without members, and all their offsets."""


# The offsets that a group has committed: written, read, deleted.
#
# Kafka: OffsetCommitRequest, OffsetFetchRequest, OffsetDeleteRequest (E10). Left out: offsets of transactions.


PARTITIONS_PER_COMMIT_MAX = 10_000  # each is a record, and all of them are one batch


class CommittedOffset(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """The next record that the group is to read of a partition, and the leader epoch of the one before, if known. The
    offset means nothing in a topic of that name with another id; ZERO_ID where the caller does not know it.
    """

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    topic_id: UUID = ZERO_ID


class OffsetCommitResponse(Message, frozen=True, array_like=True):
    """One result for each partition, in order."""

    partitions: tuple[PartitionResult, ...]


class OffsetCommitRequest(Request[OffsetCommitResponse], frozen=True, array_like=True):
    """Commits offsets. Without a generation: of a group that has no members, which a commit creates (E10).

    `coordinator_epoch` is the `GroupCoordinator.leader_epoch` of the coordinator that is meant: one that leads in
    another epoch refuses the commit, which may be late. NO_EPOCH is not checked.
    """

    group_id: str
    partitions: tuple[CommittedOffset, ...]
    generation_id: int = NO_EPOCH
    member_id: str = ""
    group_instance_id: str = ""
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
    """Raises InvalidRequest of too many partitions, of one named twice, and of one that cannot be."""
    found = len(partitions)
    require(found <= PARTITIONS_PER_COMMIT_MAX, "partitions", f"at most {PARTITIONS_PER_COMMIT_MAX:,}", found)
    if found > 1:
        check_each_once("partitions", [f"{each.topic}-{each.partition}" for each in partitions])
    for each in partitions:
        if each.topic == "" or not 0 <= each.partition < 2**31:
            expected = "topics with a name and numbers from 0"
            require(False, "partitions", expected, (each.topic, each.partition))


class FetchedOffset(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """What the group has committed of a partition; the offset is -1 where it has committed none."""

    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""
    topic_id: UUID = ZERO_ID


class OffsetFetchResponse(Message, frozen=True, array_like=True):
    """One for each partition, in order; with None, for each that has a committed offset."""

    partitions: tuple[FetchedOffset, ...]


class OffsetFetchRequest(Request[OffsetFetchResponse], frozen=True, array_like=True):
    """The committed offsets of these partitions or, with None, of all; a group that is not known has none."""

    group_id: str
    partitions: tuple[TopicPartition, ...] | None = None

    def check(self) -> None:
        check_group_id(self.group_id)
        check_partitions(self.partitions or ())


class OffsetDeleteResponse(Message, frozen=True, array_like=True):
    """One result for each partition, in order."""

    partitions: tuple[PartitionResult, ...]


class OffsetDeleteRequest(Request[OffsetDeleteResponse], frozen=True, array_like=True):
    """Forgets offsets, of topics that no member of the group subscribes to."""

    group_id: str
    partitions: tuple[TopicPartition, ...]

    def check(self) -> None:
        check_group_id(self.group_id)
        check_partitions(self.partitions)


# What consumers say to each other through their coordinator, which passes it on: subscriptions and assignments.
#
# A member sends its subscription with each join; the leader of the group sends an assignment for each member with its
# sync. Both are bytes to the protocol of groups. Kafka: ConsumerProtocolSubscription, ConsumerProtocolAssignment.


CONSUMER_PROTOCOL_TYPE = "consumer"
NO_GENERATION = NO_EPOCH
_MemberDataT = TypeVar("_MemberDataT", bound=Message)


class ConsumerSubscription(Message, frozen=True, array_like=True):
    """What a member wants to read, and what it reads since the assignment of that generation."""

    topics: tuple[str, ...]
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    rack: str = ""
    user_data: bytes = b""


class ConsumerAssignment(Message, frozen=True, array_like=True):
    """What a member is to read from now on."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes = b""


def encode_member_data(said: Message) -> bytes:
    """The bytes of a subscription or of an assignment; no partition is none."""
    return msgspec.msgpack.encode(said)


def decode_member_data(said_type: type[_MemberDataT], data: bytes) -> _MemberDataT:
    """A subscription or an assignment from its bytes. Raises CorruptRecord that says what was expected."""
    try:
        return msgspec.msgpack.decode(data, type=said_type)
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"expected a {said_type.__name__}, found {data[:40]!r}: {error}") from error
