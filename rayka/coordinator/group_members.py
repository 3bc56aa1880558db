"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the requests of members, from the first join on.

JoinGroup comes from a new member, from a member that was given its id, from a known member, or from a process that
takes the place of a static member. A join that changes nothing in a stable generation is answered with the generation.
Any other join begins a rebalance, and its answer waits for the next generation. The assignments are written as a record
before any member hears of them. Kafka: `GroupMetadataManager.classicGroupJoin`, `classicGroupSync`,
`classicGroupHeartbeat`, `classicGroupLeave` (E3-E8). Unlike in Kafka, a member that is alone may change all its
protocols.
"""

from contextlib import suppress

from rayka.coordinator.group import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    Group,
    GroupStore,
    Member,
    member_of,
)
from rayka.coordinator.group_records import GroupKey, GroupRecord
from rayka.coordinator.rebalances import (
    Effects,
    EndPending,
    EndSession,
    EndSyncs,
    Rebalances,
    end_requests,
    join_response,
)
from rayka.errors import (
    ApiError,
    CorruptRecord,
    ErrorCode,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    RebalanceInProgress,
    UnknownMemberId,
)
from rayka.protocol.groups import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerAssignment,
    ConsumerSubscription,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
    SyncGroupResponse,
    decode_member_data,
)
from rayka.shard.shard import Deferred

# Member ids of one group that were given out, and with which no member has joined yet.
PENDING_MAX = 10_000


class GroupMembers:
    """The members of all groups of a shard."""

    def __init__(self, store: GroupStore, rebalances: Rebalances) -> None:
        self._store = store
        self._rebalances = rebalances

    def member_of_generation(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str
    ) -> tuple[Group, Member]:
        """Finds a member of the current generation, and its group.

        Raises UnknownMemberId, FencedInstanceId, IllegalGeneration.
        """
        group, member = self._store.member(group_id, member_id, group_instance_id)
        if generation_id != group.generation_id:
            raise IllegalGeneration(
                f"group {group_id!r} has generation {group.generation_id}, found {generation_id}; join again"
            )
        return group, member

    # ---- Join --------------------------------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, effects: Effects) -> JoinGroupResponse | Deferred:
        """Answers with the generation, or defers the answer until the next one."""
        config = self._store.config
        least, most = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not least <= request.session_timeout_ms <= most:
            raise InvalidSessionTimeout(
                f"session_timeout_ms: expected {least} to {most}, found {request.session_timeout_ms}"
            )
        group = self._store.groups.get(request.group_id)
        if group is None and request.member_id:
            raise UnknownMemberId(f"group {request.group_id!r} has no members; join it without a member id")
        group = group or self._store.get_or_create(request.group_id)
        known_id = request.member_id or group.static_members.get(request.group_instance_id, "")
        self._check_size(group, known_id)
        if not group.supports(request.protocol_type, request.protocols, without=known_id):
            raise InconsistentGroupProtocol(
                f"group {group.group_id!r} is of type {group.protocol_type!r} and its members share no protocol with"
                f" {[each.name for each in request.protocols]} of type {request.protocol_type!r}; offer one that all"
                " other members have"
            )
        if request.member_id:
            return self._join_again(group, request, effects)
        return self._join_first(group, request, effects)

    def _check_size(self, group: Group, known_id: str) -> None:
        most, known = self._store.config.group_max_size, group.members.get(known_id)
        if group.state is EMPTY:
            return
        if group.state is PREPARING:
            has_room = group.joining_count < most or (known is not None and known.join_token is not None)
        else:
            has_room = known is not None or len(group.members) < most
        if not has_room:
            raise GroupMaxSizeReached(f"group {group.group_id!r} has {most} members, which is group.max.size")

    # ---- Without a member id -----------------------------------------------------------------------------------------

    def _join_first(
        self, group: Group, request: JoinGroupRequest, effects: Effects
    ) -> JoinGroupResponse | Deferred:
        member_id = self._store.new_member_id(request.group_instance_id or request.client_id)
        if request.group_instance_id in group.static_members:
            return self._replace(group, member_of(request, member_id), request, effects)
        if request.group_instance_id:
            return self._add(group, member_of(request, member_id), request, effects)
        if len(group.pending_join_members) >= PENDING_MAX:
            raise GroupMaxSizeReached(
                f"group {group.group_id!r} has given out {PENDING_MAX:,} member ids that no member has joined with;"
                " try again when the session timeout of some is over"
            )
        group.pending_join_members[member_id] = None
        effects.after(request.session_timeout_ms, EndPending(group.group_id, member_id))
        return JoinGroupResponse(member_id, error_code=ErrorCode.MEMBER_ID_REQUIRED)

    def _add(self, group: Group, member: Member, request: JoinGroupRequest, effects: Effects) -> Deferred:
        deferred = self._defer(member)
        group.add(member, request.protocol_type)
        if group.initial_delay is not None:
            group.initial_delay.has_new_members = True
        self._rebalances.prepare_or_complete_join(group, effects)
        return deferred

    def _defer(self, member: Member) -> Deferred:
        member.join_token = self._store.new_token()
        return Deferred(member.join_token)

    def _replace(
        self, group: Group, member: Member, request: JoinGroupRequest, effects: Effects
    ) -> JoinGroupResponse | Deferred:
        """Puts another process in the place of a static member (E7).

        The generation goes on if the new process says the same as the old one; else a rebalance begins.
        """
        old = group.members[group.static_members[member.group_instance_id]]
        member.assignment = old.assignment
        new_group = group.replaced(old.member_id, member)
        if len(new_group.members) == 1:
            new_group.protocol_type = request.protocol_type
        if group.state is STABLE and _is_unchanged(group, new_group, old, member):
            timestamp_ms = group.state_timestamp_ms
            values = [each.value(each.assignment) for each in new_group.members.values()]
            value = new_group.value(values, leader_id=new_group.leader_id, timestamp_ms=timestamp_ms)
            effects.records.append(GroupRecord(GroupKey(group.group_id), value))
            effects.cancel(EndSession(group.group_id, old.member_id))
            effects.begin_session(group.group_id, member)
            return join_response(new_group, member, skip_assignment=True)
        fenced = FencedInstanceId(
            f"group {group.group_id!r}: another process has joined as {member.group_instance_id!r}; give each process"
            " a group_instance_id of its own"
        )
        end_requests(old, effects, fenced)
        effects.cancel(EndSession(group.group_id, old.member_id))
        self._store.groups[group.group_id] = new_group
        deferred = self._defer(member)
        self._rebalances.prepare_or_complete_join(new_group, effects)
        return deferred

    # ---- With a member id --------------------------------------------------------------------------------------------

    def _join_again(
        self, group: Group, request: JoinGroupRequest, effects: Effects
    ) -> JoinGroupResponse | Deferred:
        if request.member_id in group.pending_join_members and not request.group_instance_id:
            del group.pending_join_members[request.member_id]
            effects.cancel(EndPending(group.group_id, request.member_id))
            return self._add(group, member_of(request, request.member_id), request, effects)
        group, member = self._store.member(request.group_id, request.member_id, request.group_instance_id)
        has_changed = member.protocols != request.protocols
        is_leader = member.member_id == group.leader_id
        if not has_changed and (group.state is COMPLETING or (group.state is STABLE and not is_leader)):
            effects.begin_session(group.group_id, member)
            return join_response(group, member)
        error = RebalanceInProgress(f"{member.member_id!r} has joined again with a later request")
        effects.answer_join(member, error=error)
        member.protocols = request.protocols
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        if len(group.members) == 1:
            group.protocol_type = request.protocol_type
        effects.cancel(EndSession(group.group_id, member.member_id))
        deferred = self._defer(member)
        self._rebalances.prepare_or_complete_join(group, effects)
        return deferred

    # ---- Sync --------------------------------------------------------------------------------------------------------

    def sync(self, request: SyncGroupRequest, effects: Effects) -> SyncGroupResponse | Deferred:
        """Answers with the member's assignment, or defers the answer until the leader has sent the assignments."""
        group, member = self.member_of_generation(
            request.group_id, request.generation_id, request.member_id, request.group_instance_id
        )
        for what, found, expected in (
            ("protocol type", request.protocol_type, group.protocol_type),
            ("protocol", request.protocol_name, group.protocol_name),
        ):
            # A member need not name the protocol.
            if found and found != expected:
                raise InconsistentGroupProtocol(
                    f"member {member.member_id!r} of group {group.group_id!r} in generation {group.generation_id}:"
                    f" expected {what} {expected!r}, found {found!r}; join the group again and sync with the protocol"
                    " that the response names"
                )
        if group.state is PREPARING:
            raise RebalanceInProgress(f"group {group.group_id!r} begins another generation; join it")
        if group.state is COMPLETING and member.member_id == group.leader_id:
            return self._assign(group, member, request, effects)
        self._on_synced(group, member, effects)
        if group.state is STABLE:
            effects.begin_session(group.group_id, member)
            return _sync_response(group, member.assignment)
        error = RebalanceInProgress(f"{member.member_id!r} has asked again with a later request")
        effects.answer_sync(member.sync_token, error=error)
        effects.cancel(EndSession(group.group_id, member.member_id))
        member.sync_token = self._store.new_token()
        return Deferred(member.sync_token)

    def _assign(
        self, group: Group, leader: Member, request: SyncGroupRequest, effects: Effects
    ) -> SyncGroupResponse:
        """Writes the assignments of the leader and answers all waiting members. A member without one gets nothing."""
        assigned = {each.member_id: each.assignment for each in request.assignments}
        members = [each.value(assigned.get(each.member_id, b"")) for each in group.members.values()]
        value = group.value(members, leader_id=group.leader_id, timestamp_ms=self._store.wall_clock_ms())
        effects.records.append(GroupRecord(GroupKey(group.group_id), value))
        self._on_synced(group, leader, effects)
        for member in group.members.values():
            if member is leader or member.sync_token is not None:
                response = _sync_response(group, assigned.get(member.member_id, b""))
                effects.answer_sync(member.sync_token, response)
                effects.begin_session(group.group_id, member)
        return _sync_response(group, assigned.get(leader.member_id, b""))

    def _on_synced(self, group: Group, member: Member, effects: Effects) -> None:
        group.pending_sync_members.pop(member.member_id, None)
        if not group.pending_sync_members:
            effects.cancel(EndSyncs(group.group_id, group.generation_id))

    # ---- Heartbeat ---------------------------------------------------------------------------------------------------

    def heartbeat(self, request: GroupHeartbeatRequest, effects: Effects) -> GroupHeartbeatResponse:
        """Restarts the session of a member. The response tells of a rebalance that waits for joins."""
        group, member = self.member_of_generation(
            request.group_id, request.generation_id, request.member_id, request.group_instance_id
        )
        self.touch(group, member, effects)
        is_rebalancing = group.state is PREPARING
        return GroupHeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS if is_rebalancing else ErrorCode.NONE)

    def touch(self, group: Group, member: Member, effects: Effects) -> None:
        """Restarts the session of a member. A member that waits for an answer has no session."""
        if member.join_token is None and member.sync_token is None:
            effects.begin_session(group.group_id, member)

    # ---- Leave -------------------------------------------------------------------------------------------------------

    def leave(self, request: LeaveGroupRequest, effects: Effects) -> LeaveGroupResponse:
        """Removes members; one result for each."""
        return LeaveGroupResponse(
            tuple(self._leave(request.group_id, each, effects) for each in request.members)
        )

    def _leave(self, group_id: str, leaving: LeavingMember, effects: Effects) -> LeftMember:
        try:
            group, member_id = self._find_leaving(group_id, leaving)
        except ApiError as error:
            return LeftMember(leaving.member_id, leaving.group_instance_id, error.code, str(error))
        if member_id in group.pending_join_members:
            self._rebalances.remove_pending(group, member_id, effects)
        else:
            self._rebalances.remove(group, member_id, effects)
        return LeftMember(leaving.member_id, leaving.group_instance_id)

    def _find_leaving(self, group_id: str, leaving: LeavingMember) -> tuple[Group, str]:
        """Finds the member that leaves. An operator may name a static member by its instance alone."""
        group, member_id = self._store.groups.get(group_id), leaving.member_id
        if group is not None and member_id in group.pending_join_members and not leaving.group_instance_id:
            return group, member_id
        if group is not None and leaving.group_instance_id and not member_id:
            member_id = group.static_members.get(leaving.group_instance_id, "")
            if not member_id:
                raise UnknownMemberId(f"group {group_id!r} has no member {leaving.group_instance_id!r}")
        known = group.members.get(member_id) if group is not None else None
        instance_id = leaving.group_instance_id or (known.group_instance_id if known is not None else "")
        group, member = self._store.member(group_id, member_id, instance_id)
        return group, member.member_id


def _sync_response(group: Group, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(group.protocol_type, group.protocol_name, assignment)


def _is_unchanged(group: Group, new_group: Group, old: Member, member: Member) -> bool:
    """True if the generation can go on with a new process in the place of a static member."""
    name, protocol_type = group.protocol_name, group.protocol_type
    says_the_same = _subscription(protocol_type, old, name) == _subscription(protocol_type, member, name)
    is_same_protocol = new_group.protocol_type == protocol_type and new_group.select_protocol() == name
    return says_the_same and is_same_protocol and not _is_revoking(group, old)


def _is_revoking(group: Group, old: Member) -> bool:
    """True if the generation waits until the old process gives up partitions that it claimed.

    No member was assigned these partitions. The new process reads none of them and would not join again, so they would
    stay without an owner.
    """
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return False
    with suppress(CorruptRecord):
        claimed = decode_member_data(ConsumerSubscription, old.metadata(group.protocol_name)).owned_partitions
        if claimed:
            assigned = {
                topic_partition
                for each in group.members.values()
                if each.assignment
                for topic_partition in decode_member_data(ConsumerAssignment, each.assignment).partitions
            }
            return not assigned.issuperset(claimed)
    return False


def _subscription(protocol_type: str, member: Member, protocol_name: str) -> object:
    """The metadata of a member that the assignment depends on; for a consumer its topics and rack, not its claims."""
    metadata = member.metadata(protocol_name)
    if protocol_type == CONSUMER_PROTOCOL_TYPE:
        with suppress(CorruptRecord):
            subscription = decode_member_data(ConsumerSubscription, metadata)
            return subscription.topics, subscription.rack
    return metadata
