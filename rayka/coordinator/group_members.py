"""SyncGroup, Heartbeat and LeaveGroup: what members of a generation ask.

The leader's assignments are a record before any member is told them. Kafka: `GroupMetadataManager.classicGroupSync`,
`classicGroupHeartbeat`, `classicGroupLeave` (E5, E6).
"""

from rayka.coordinator.group import COMPLETING, PREPARING, STABLE, Group, Member
from rayka.coordinator.group_effects import Effects, EndSession, EndSyncs
from rayka.coordinator.group_records import GroupKey, GroupRecord
from rayka.coordinator.known_groups import KnownGroups
from rayka.coordinator.rebalances import Rebalances
from rayka.errors import (
    ApiError,
    ErrorCode,
    IllegalGeneration,
    InconsistentGroupProtocol,
    RebalanceInProgress,
    UnknownMemberId,
)
from rayka.protocol.groups import (
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from rayka.shard.shard import Later


class GroupMembers:
    """The members of all groups of a shard."""

    def __init__(self, known: KnownGroups, rebalances: Rebalances) -> None:
        self._known = known
        self._rebalances = rebalances

    def __repr__(self) -> str:
        return f"<GroupMembers of {self._known!r}>"

    def member_of_generation(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str
    ) -> tuple[Group, Member]:
        """The group and its member. Raises UnknownMemberId, FencedInstanceId, IllegalGeneration."""
        group, member = self._known.member(group_id, member_id, group_instance_id)
        if generation_id != group.generation_id:
            raise IllegalGeneration(
                f"group {group_id!r} has generation {group.generation_id}, found {generation_id}; join again"
            )
        return group, member

    # ---- Sync --------------------------------------------------------------------------------------------------------

    def sync(self, request: SyncGroupRequest, effects: Effects) -> SyncGroupResponse | Later:
        """The member's assignment, or the wait for it."""
        group, member = self.member_of_generation(
            request.group_id, request.generation_id, request.member_id, request.group_instance_id
        )
        _check_protocol(group, request)
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
        member.sync_token = self._known.new_token()
        return Later(member.sync_token)

    def _assign(
        self, group: Group, leader: Member, request: SyncGroupRequest, effects: Effects
    ) -> SyncGroupResponse:
        """The leader's assignments; a member that it has left out gets nothing."""
        assigned = {each.member_id: each.assignment for each in request.assignments}
        members = [each.value(assigned.get(each.member_id, b"")) for each in group.members.values()]
        value = group.value(members, leader_id=group.leader_id, timestamp_ms=self._known.wall_clock_ms())
        effects.records.append(GroupRecord(GroupKey(group.group_id), value))
        self._on_synced(group, leader, effects)
        for member in group.members.values():
            if member is leader or member.sync_token is not None:
                response = _sync_response(group, assigned.get(member.member_id, b""))
                effects.answer_sync(member.sync_token, response)
                effects.begin_session(group.group_id, member)
        return _sync_response(group, assigned.get(leader.member_id, b""))

    def _on_synced(self, group: Group, member: Member, effects: Effects) -> None:
        group.pending_sync.pop(member.member_id, None)
        if not group.pending_sync:
            effects.cancel(EndSyncs(group.group_id, group.generation_id))

    # ---- Heartbeat ---------------------------------------------------------------------------------------------------

    def heartbeat(self, request: GroupHeartbeatRequest, effects: Effects) -> GroupHeartbeatResponse:
        """The member is alive. During a rebalance the answer says so, and the session goes on all the same."""
        group, member = self.member_of_generation(
            request.group_id, request.generation_id, request.member_id, request.group_instance_id
        )
        self.touch(group, member, effects)
        is_over = group.state is PREPARING
        return GroupHeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS if is_over else ErrorCode.NONE)

    def touch(self, group: Group, member: Member, effects: Effects) -> None:
        """The member's session begins anew; one that waits for an answer has none."""
        if member.join_token is None and member.sync_token is None:
            effects.begin_session(group.group_id, member)

    # ---- Leave -------------------------------------------------------------------------------------------------------

    def leave(self, request: LeaveGroupRequest, effects: Effects) -> LeaveGroupResponse:
        """Each on its own."""
        return LeaveGroupResponse(
            tuple(self._leave(request.group_id, each, effects) for each in request.members)
        )

    def _leave(self, group_id: str, leaving: LeavingMember, effects: Effects) -> LeftMember:
        try:
            group, member_id = self._leaving(group_id, leaving)
        except ApiError as error:
            return LeftMember(leaving.member_id, leaving.group_instance_id, error.code, str(error))
        if member_id in group.pending:
            self._rebalances.remove_pending(group, member_id, effects)
        else:
            self._rebalances.remove(group, member_id, effects)
        return LeftMember(leaving.member_id, leaving.group_instance_id)

    def _leaving(self, group_id: str, leaving: LeavingMember) -> tuple[Group, str]:
        """An operator names a static member by its instance alone."""
        group, member_id = self._known.groups.get(group_id), leaving.member_id
        if group is not None and member_id in group.pending and not leaving.group_instance_id:
            return group, member_id
        if group is not None and leaving.group_instance_id and not member_id:
            member_id = group.statics.get(leaving.group_instance_id, "")
            if not member_id:
                raise UnknownMemberId(f"group {group_id!r} has no member {leaving.group_instance_id!r}")
        known = group.members.get(member_id) if group is not None else None
        instance_id = leaving.group_instance_id or (known.group_instance_id if known is not None else "")
        group, member = self._known.member(group_id, member_id, instance_id)
        return group, member.member_id


def _check_protocol(group: Group, request: SyncGroupRequest) -> None:
    """What a member names must be what was chosen; it need not name it."""
    for found, expected in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if found and found != expected:
            raise InconsistentGroupProtocol(f"group {group.group_id!r} has {expected!r}, found {found!r}")


def _sync_response(group: Group, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(group.protocol_type, group.protocol_name, assignment)
