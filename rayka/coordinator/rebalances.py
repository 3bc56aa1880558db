"""The phases of a rebalance, and the effects that requests to a group collect.

A rebalance has two phases: members join until all have joined or the time is over; then a generation begins, and its
members sync. A group that was empty waits a little for more members. A dynamic member that does not join in time is
removed; so is any member that joins and does not sync in time.

The removal of the last member writes a record, which the log may refuse. So it is left to a timer's request, which
the runtime tries again. Kafka: `GroupMetadataManager.prepareRebalance`, `completeClassicGroupJoin`,
`CoordinatorResult`, `CoordinatorTimer` (E4-E8).
"""

from typing import Any, NamedTuple

from rayka.coordinator.group import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    Group,
    GroupStore,
    InitialDelay,
    Member,
)
from rayka.coordinator.group_records import VERSION, GroupKey, GroupRecord, GroupValue
from rayka.errors import ApiError, RebalanceInProgress, UnknownMemberId
from rayka.protocol.groups import JoinGroupResponse
from rayka.shard.shard import Answer, Result, Timer


class EndSession(NamedTuple):
    """A timer's request: removes a member after its session timeout."""

    group_id: str
    member_id: str


class EndPending(NamedTuple):
    """A timer's request: forgets a member id that was given out and not used."""

    group_id: str
    member_id: str


class EndJoins(NamedTuple):
    """A timer's request: begins the next generation with the members that have joined."""

    group_id: str


class EndSyncs(NamedTuple):
    """A timer's request: removes the members of a generation that have not asked for their assignment."""

    group_id: str
    generation_id: int


class Effects:
    """Collects the effects of one request: records, timers, and answers to requests that wait."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.records: list[GroupRecord] = []
        self._timers: list[Timer] = []
        self._answers: list[Answer] = []

    def result(self, response: Any) -> Result[GroupRecord, Any]:
        """The result of the request."""
        return Result(self.records, response, self._timers, self._answers)

    def after(self, delay_ms: int, request: NamedTuple) -> None:
        """Sets the timer of a request, in place of its earlier timer."""
        self._timers.append(Timer(_key(request), self.now_ms + delay_ms, request))

    def cancel(self, request: NamedTuple) -> None:
        """Cancels the timer of a request."""
        self._timers.append(Timer(_key(request), 0, None))

    def begin_session(self, group_id: str, member: Member) -> None:
        """Restarts the session timeout of a member."""
        self.after(member.session_timeout_ms, EndSession(group_id, member.member_id))

    def answer_join(self, member: Member, response: Any = None, error: ApiError | None = None) -> None:
        """Answers the JoinGroup of a member, if one waits."""
        if member.join_token is not None:
            self._answers.append(Answer(member.join_token, response, error))
            member.join_token = None

    def answer_sync(self, token: int | None, response: Any = None, error: ApiError | None = None) -> None:
        """Answers the SyncGroup with this token; None: no SyncGroup waits."""
        if token is not None:
            self._answers.append(Answer(token, response, error))


def _key(request: NamedTuple) -> tuple[Any, ...]:
    """The key of a request's timer. A group has one timer for its syncs, whatever the generation."""
    name = type(request).__name__
    return (name, request[0]) if isinstance(request, EndSyncs) else (name, *request)


class Rebalances:
    """The rebalances of all groups of a shard."""

    def __init__(self, store: GroupStore) -> None:
        self._store = store

    # ---- Joins -------------------------------------------------------------------------------------------------------

    def prepare_or_complete_join(self, group: Group, effects: Effects) -> None:
        """Begins a rebalance after a change of the group, unless one is under way; ends its joins if all have joined.

        Kafka: `maybePrepareRebalanceOrCompleteJoin`.
        """
        if group.state is not PREPARING:
            if group.state is EMPTY:
                delay_ms = self._store.config.group_initial_rebalance_delay_ms
                group.initial_delay = InitialDelay(max(0, group.rebalance_timeout_ms - delay_ms))
            else:
                delay_ms = group.rebalance_timeout_ms
                self._end_waiting_syncs(group, effects)
            effects.after(delay_ms, EndJoins(group.group_id))
            group.become(PREPARING)
        if group.initial_delay is None and group.have_all_joined:
            if group.members:
                self._end_joins(group, effects)
            else:
                effects.after(0, EndJoins(group.group_id))

    def _end_waiting_syncs(self, group: Group, effects: Effects) -> None:
        for member in group.members.values():
            if member.sync_token is not None:
                error = RebalanceInProgress(f"group {group.group_id!r} begins another generation; join it")
                effects.answer_sync(member.sync_token, error=error)
                effects.begin_session(group.group_id, member)
                member.sync_token = None
        group.pending_sync_members = {}
        effects.cancel(EndSyncs(group.group_id, group.generation_id))

    def end_joins(self, request: EndJoins, effects: Effects) -> None:
        """Ends the joins when their time is over. A group that was empty waits longer while members arrive (E4)."""
        group = self._store.groups.get(request.group_id)
        if group is None or group.state is not PREPARING:
            return
        delay = group.initial_delay
        if delay is not None and delay.has_new_members and delay.left_ms > 0:
            more_ms = min(self._store.config.group_initial_rebalance_delay_ms, delay.left_ms)
            group.initial_delay = InitialDelay(delay.left_ms - more_ms)
            effects.after(more_ms, request)
        else:
            self._end_joins(group, effects)

    def _end_joins(self, group: Group, effects: Effects) -> None:
        group.initial_delay = None
        effects.cancel(EndJoins(group.group_id))
        for member in list(group.members.values()):
            if member.join_token is None and not member.group_instance_id:
                group.remove(member.member_id)
                effects.cancel(EndSession(group.group_id, member.member_id))
        if not group.members:
            value = GroupValue(
                VERSION,
                group.protocol_type,
                group.generation_id + 1,
                protocol_name="",
                leader_id="",
                state_timestamp_ms=self._store.wall_clock_ms(),
            )
            effects.records.append(GroupRecord(GroupKey(group.group_id), value))
        elif group.elect_leader():
            self._begin_generation(group, effects)
        else:
            # All members are static, and none has come back yet.
            effects.after(group.rebalance_timeout_ms, EndJoins(group.group_id))

    def _begin_generation(self, group: Group, effects: Effects) -> None:
        group.generation_id += 1
        group.protocol_name = group.select_protocol()
        group.become(COMPLETING)
        group.pending_sync_members = dict.fromkeys(group.members)
        for member in group.members.values():
            effects.begin_session(group.group_id, member)
            effects.answer_join(member, join_response(group, member))
        effects.after(group.rebalance_timeout_ms, EndSyncs(group.group_id, group.generation_id))

    # ---- Removals ----------------------------------------------------------------------------------------------------

    def end_syncs(self, request: EndSyncs, effects: Effects) -> None:
        """Removes the members that have not asked for their assignment in time (E5)."""
        group = self._store.groups.get(request.group_id)
        if group is None or group.generation_id != request.generation_id or not group.pending_sync_members:
            return
        if group.state in (COMPLETING, STABLE):
            for member_id in list(group.pending_sync_members):
                self._remove_member(group, member_id, effects)
            self.prepare_or_complete_join(group, effects)

    def end_session(self, request: EndSession, effects: Effects) -> None:
        """Removes a member that was silent for its session timeout (E6)."""
        group = self._store.groups.get(request.group_id)
        if group is not None and request.member_id in group.members:
            self.remove(group, request.member_id, effects)

    def end_pending(self, request: EndPending, effects: Effects) -> None:
        """Forgets a member id with which no member has joined in time (E3)."""
        group = self._store.groups.get(request.group_id)
        if group is not None and request.member_id in group.pending_join_members:
            self.remove_pending(group, request.member_id, effects)

    def remove_pending(self, group: Group, member_id: str, effects: Effects) -> None:
        """Forgets a member id that was given out. The joins may be complete without it."""
        del group.pending_join_members[member_id]
        effects.cancel(EndPending(group.group_id, member_id))
        if group.state is PREPARING:
            self.prepare_or_complete_join(group, effects)
        self._store.maybe_forget(group)

    def remove(self, group: Group, member_id: str, effects: Effects) -> None:
        """Removes a member; the others share its partitions in a rebalance."""
        self._remove_member(group, member_id, effects)
        self.prepare_or_complete_join(group, effects)

    def _remove_member(self, group: Group, member_id: str, effects: Effects) -> None:
        error = UnknownMemberId(f"group {group.group_id!r}: {member_id!r} is no member any more; join again")
        end_requests(group.remove(member_id), effects, error)
        effects.cancel(EndSession(group.group_id, member_id))


def end_requests(member: Member, effects: Effects, error: ApiError) -> None:
    """Refuses the waiting requests of a member that was removed or replaced."""
    effects.answer_join(member, error=error)
    effects.answer_sync(member.sync_token, error=error)
    member.sync_token = None


def join_response(group: Group, member: Member, *, skip_assignment: bool = False) -> JoinGroupResponse:
    """The response to a member that has joined the generation. Only the leader's response lists the members."""
    is_leader = member.member_id == group.leader_id
    return JoinGroupResponse(
        member_id=member.member_id,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader_id=group.leader_id,
        members=group.joined_members(with_assignments=skip_assignment) if is_leader else (),
        skip_assignment=skip_assignment and is_leader,
    )
