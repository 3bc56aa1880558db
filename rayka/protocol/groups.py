"""Groups: their coordinators, their members, and what operators ask about them.

A group's coordinator is the leader of the partition of `__consumer_offsets` that its id hashes to (E1). Kafka:
FindCoordinatorRequest, JoinGroupRequest, SyncGroupRequest, HeartbeatRequest, LeaveGroupRequest, ListGroupsRequest,
DescribeGroupsRequest, DeleteGroupsRequest (E3-E8). A group's heartbeat has the name `group_heartbeat`, since
`heartbeat` is a broker's. Left out: coordinators of transactions, the protocol of KIP-848.
"""

from enum import StrEnum

from rayka.errors import ErrorCode, InconsistentGroupProtocol, InvalidGroupId
from rayka.ids import NO_EPOCH, NO_NODE
from rayka.ports import Message, Request, ResponseT
from rayka.protocol.request_checks import check_each_once, require

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


class _OfGroups(Request[ResponseT], frozen=True, array_like=True):
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


class FindCoordinatorRequest(_OfGroups[FindCoordinatorResponse], frozen=True, array_like=True):
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


class DescribeGroupsRequest(_OfGroups[DescribeGroupsResponse], frozen=True, array_like=True):
    """Groups that the node asked coordinates."""


class DeleteGroupsResponse(Message, frozen=True, array_like=True):
    """One result for each group, in order."""

    groups: tuple[GroupResult, ...]


class DeleteGroupsRequest(_OfGroups[DeleteGroupsResponse], frozen=True, array_like=True):
    """Forgets groups without members, and all their offsets."""
