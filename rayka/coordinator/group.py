"""The groups and committed offsets of one shard: members, generation, protocol, and the state of a rebalance.

Records hold a generation with its assignments, or a group without members; `replay` applies them. The active
coordinator also has soft state: members that have joined or left since, and requests that wait. The soft state is lost
with the coordinator. Members then find that their generation is unknown, and join again.

Invariants: the instance of a static member has one member id; while the group is STABLE or EMPTY, its members are those
of its last record; states follow each other as `_PREVIOUS` says (E2). Kafka: `ClassicGroup`, `ClassicGroupMember`; the
state of `GroupMetadataManager` and `OffsetMetadataManager`.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

from rayka.config.broker_config import BrokerConfig
from rayka.coordinator.group_records import VERSION, GroupValue, MemberValue, OffsetValue
from rayka.errors import CorruptRecord, FencedInstanceId, InvariantBroken, UnknownMemberId
from rayka.ids import NO_TIMESTAMP, TopicPartition, random_uuid
from rayka.protocol.groups import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerSubscription,
    GroupProtocol,
    GroupState,
    JoinedMember,
    JoinGroupRequest,
    decode_member_data,
)

EMPTY, PREPARING, COMPLETING, STABLE = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
)
_PREVIOUS = {
    EMPTY: (PREPARING,),
    PREPARING: (STABLE, COMPLETING, EMPTY),
    COMPLETING: (PREPARING,),
    STABLE: (COMPLETING,),
}


@dataclass(slots=True)
class Member:
    """A member of a group."""

    member_id: str
    group_instance_id: str
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes = b""
    # The keys of the member's JoinGroup and SyncGroup that wait; None without one.
    join_token: int | None = None
    sync_token: int | None = None

    def metadata(self, protocol_name: str) -> bytes:
        """The member's metadata for a protocol; empty if it does not offer the protocol."""
        return next((each.metadata for each in self.protocols if each.name == protocol_name), b"")

    def value(self, assignment: bytes) -> MemberValue:
        return MemberValue(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.protocols,
            assignment,
        )


def member_of(request: JoinGroupRequest, member_id: str) -> Member:
    """The member that a JoinGroup describes."""
    return Member(
        member_id,
        request.group_instance_id,
        request.client_id,
        request.client_host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        request.protocols,
    )


@dataclass(slots=True)
class InitialDelay:
    """The wait of a group that was empty for more members (E4). The wait is prolonged while members arrive."""

    # The time that prolongations may still add.
    left_ms: int
    # A member has joined since the last prolongation.
    has_new_members: bool = False


@dataclass(slots=True)
class Group:
    """One group."""

    group_id: str
    state: GroupState = EMPTY
    generation_id: int = 0
    protocol_type: str = ""
    protocol_name: str = ""
    leader_id: str = ""
    # Of the wall clock, when the last record was written.
    state_timestamp_ms: int = NO_TIMESTAMP
    # The log holds a record of the group.
    is_recorded: bool = False
    # By member id.
    members: dict[str, Member] = field(default_factory=dict)
    # Member ids by group_instance_id.
    static_members: dict[str, str] = field(default_factory=dict)
    # Member ids that were given out, and with which no member has joined yet; in order.
    pending_join_members: dict[str, None] = field(default_factory=dict)
    # Members of the new generation that have not asked for their assignment; in order.
    pending_sync_members: dict[str, None] = field(default_factory=dict)
    # Set while a group that was empty waits for more members.
    initial_delay: InitialDelay | None = None

    def __repr__(self) -> str:
        return f"<Group {self.group_id} {self.state} generation={self.generation_id} members={len(self.members)}>"

    # ---- Records -----------------------------------------------------------------------------------------------------

    def replay(self, value: GroupValue) -> None:
        """Replaces the state of the group by that of a record."""
        self.state = STABLE if value.members else EMPTY
        self.generation_id, self.is_recorded = value.generation_id, True
        self.protocol_type, self.protocol_name = value.protocol_type, value.protocol_name
        self.leader_id, self.state_timestamp_ms = value.leader_id, value.state_timestamp_ms
        self.members = {
            each.member_id: Member(*(getattr(each, name) for name in MemberValue.__struct_fields__))
            for each in value.members
        }
        self.static_members = {
            each.group_instance_id: each.member_id for each in value.members if each.group_instance_id
        }
        self.pending_sync_members = {each: None for each in self.pending_sync_members if each in self.members}
        self.initial_delay = None

    def value(self, members: Iterable[MemberValue], *, leader_id: str, timestamp_ms: int) -> GroupValue:
        """The record of this generation with the given members."""
        return GroupValue(
            VERSION,
            self.protocol_type,
            self.generation_id,
            self.protocol_name,
            leader_id,
            timestamp_ms,
            tuple(members),
        )

    # ---- Members -----------------------------------------------------------------------------------------------------

    def become(self, state: GroupState) -> None:
        """Changes the state. Raises InvariantBroken for a state that may not follow."""
        if self.state not in _PREVIOUS[state]:
            raise InvariantBroken(f"{self!r} cannot become {state}")
        self.state = state

    def add(self, member: Member, protocol_type: str) -> None:
        """Adds a member. The first member determines the protocol type of the group."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if member.group_instance_id:
            self.static_members[member.group_instance_id] = member.member_id

    def remove(self, member_id: str) -> Member:
        member = self.members.pop(member_id)
        if self.static_members.get(member.group_instance_id) == member_id:
            del self.static_members[member.group_instance_id]
        self.pending_sync_members.pop(member_id, None)
        return member

    def replaced(self, old_member_id: str, member: Member) -> "Group":
        """A copy of this group with another process as one of the static members (E7)."""
        members = [member if each == old_member_id else self.members[each] for each in self.members]
        return replace(
            self,
            members={each.member_id: each for each in members},
            static_members={**self.static_members, member.group_instance_id: member.member_id},
            leader_id=member.member_id if self.leader_id == old_member_id else self.leader_id,
            pending_sync_members={each: None for each in self.pending_sync_members if each != old_member_id},
        )

    @property
    def have_all_joined(self) -> bool:
        """True if all members wait for the next generation, and no member id that was given out is still unused."""
        return not self.pending_join_members and all(
            each.join_token is not None for each in self.members.values()
        )

    @property
    def joining_count(self) -> int:
        return sum(each.join_token is not None for each in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0)

    def elect_leader(self) -> bool:
        """Elects the previous leader if it has joined, else the first joined member. False if no member has joined."""
        joined = [each.member_id for each in self.members.values() if each.join_token is not None]
        if joined and self.leader_id not in joined:
            self.leader_id = joined[0]
        return bool(joined)

    # ---- Protocols ---------------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Iterable[GroupProtocol], without: str = "") -> bool:
        """True if a member that offers the protocols shares one with all members, except the member `without` (E3)."""
        others = [each for each in self.members.values() if each.member_id != without]
        if not others:
            return True
        common = _common_names(others)
        return self.protocol_type == protocol_type and any(each.name in common for each in protocols)

    def select_protocol(self) -> str:
        """The protocol that most members prefer among those that all members offer (E4)."""
        common = _common_names(list(self.members.values()))
        votes = Counter(
            next(each.name for each in member.protocols if each.name in common)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def joined_members(self, *, with_assignments: bool) -> tuple[JoinedMember, ...]:
        """The members as the response to the leader lists them, with their assignments if these stay."""
        return tuple(
            JoinedMember(
                each.member_id,
                each.metadata(self.protocol_name),
                each.group_instance_id,
                each.assignment if with_assignments else b"",
            )
            for each in self.members.values()
        )

    def subscribed_topics(self) -> set[str] | None:
        """The topics that the members of the generation subscribe to.

        None if they are unknown: the members are not consumers, or the group has no protocol yet.
        """
        if self.state is EMPTY:
            return set()
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or not self.protocol_name:
            return None
        try:
            return {
                topic
                for each in self.members.values()
                for topic in decode_member_data(
                    ConsumerSubscription, each.metadata(self.protocol_name)
                ).topics
            }
        except CorruptRecord:
            return None


def _common_names(members: list[Member]) -> set[str]:
    return set.intersection(*({each.name for each in member.protocols} for member in members))


@dataclass(slots=True, repr=False)
class GroupStore:
    """The groups and committed offsets of one shard, with the limits and clock that all requests share."""

    config: BrokerConfig
    random: Random
    # For timestamps in records, which outlive the process.
    wall_clock_ms: Callable[[], int]
    # By group id.
    groups: dict[str, Group] = field(default_factory=dict)
    # By group id; no group has an empty dictionary.
    offsets: dict[str, dict[TopicPartition, OffsetValue]] = field(default_factory=dict)
    _tokens: "count[int]" = field(default_factory=count)

    def new_token(self) -> int:
        """A new key for a request that waits."""
        return next(self._tokens)

    def new_member_id(self, prefix: str) -> str:
        return f"{prefix or 'member'}-{random_uuid(self.random)}"

    def get_or_create(self, group_id: str) -> Group:
        """The group, created if it is unknown. `maybe_forget` removes a group that stays empty."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id)
        return group

    def maybe_forget(self, group: Group) -> None:
        """Removes a group without members, offsets and record."""
        if not (
            group.members
            or group.pending_join_members
            or group.is_recorded
            or self.offsets.get(group.group_id)
        ):
            self.groups.pop(group.group_id, None)

    def member(self, group_id: str, member_id: str, group_instance_id: str) -> tuple[Group, Member]:
        """Finds the member that a request comes from, and its group.

        Raises UnknownMemberId; FencedInstanceId if another process has taken the place of the static member (E6, E7).
        """
        group = self.groups.get(group_id)
        if group is None:
            raise UnknownMemberId(f"group {group_id!r} has no members; join it")
        if group_instance_id:
            known = group.static_members.get(group_instance_id)
            if known is not None and known != member_id:
                raise FencedInstanceId(
                    f"group {group_id!r}: {group_instance_id!r} is {known!r} by now, found {member_id!r}; give each"
                    " process a group_instance_id of its own"
                )
        member = group.members.get(member_id)
        if member is None or member.group_instance_id != group_instance_id:
            raise UnknownMemberId(f"group {group_id!r} has no member {member_id!r} any more; join again")
        return group, member
