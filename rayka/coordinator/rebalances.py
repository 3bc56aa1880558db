"""The phases of a rebalance: members join until all have or the time is up, then a generation begins and they sync.

A group that was empty waits a little for more members. A member that does not join in time is no member any more,
unless it is static; one that joins and does not sync in time is none either. The last member's leaving writes a
record, so that ends in the timer's request, which is tried again when the log refuses it. Kafka:
`GroupMetadataManager.prepareRebalance`, `completeClassicGroupJoin` (E4-E8).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

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
from rayka.protocol.groups import JoinGroupResponse, OffsetCommitRequest
from rayka.shard.shard import Answer, Result, Timer

# What a request to a group leads to, collected step by step: timers, answers to requests that wait, records.
#
# Kafka: `CoordinatorResult`, `CoordinatorTimer`.


class EndSession(NamedTuple):
    """A timer's request: a member has been silent for its session timeout."""

    group_id: str
    member_id: str


class EndPending(NamedTuple):
    """A timer's request: an id that was given out has not been used."""

    group_id: str
    member_id: str


class EndJoins(NamedTuple):
    """A timer's request: the next generation begins with those that have joined."""

    group_id: str


class EndSyncs(NamedTuple):
    """A timer's request: members of the generation that have not asked for their assignment are gone."""

    group_id: str
    generation_id: int


class ExpireOffsets(NamedTuple):
    """A timer's request: offsets that were kept for long enough are forgotten."""


class ForgetTopics(NamedTuple):
    """A request of the node: these topics, by name, are deleted."""

    topic_ids: Mapping[str, UUID]


class CommitTogether(NamedTuple):
    """A request of the node: commits that have come one after another are one batch of the log. The node leads in this
    epoch.
    """

    requests: tuple[OffsetCommitRequest, ...]
    leader_epoch: int


class Effects:
    """The result of one request, until `result` makes it one."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.records: list[GroupRecord] = []
        self._timers: list[Timer] = []
        self._answers: list[Answer] = []

    def __repr__(self) -> str:
        return f"<Effects {self.records} {self._timers} {self._answers}>"

    def result(self, response: Any) -> Result[GroupRecord, Any]:
        return Result(self.records, response, self._timers, self._answers)

    def after(self, delay_ms: int, request: NamedTuple) -> None:
        """Sets the timer of a request, in place of the one it had."""
        self._timers.append(Timer(_key(request), self.now_ms + delay_ms, request))

    def cancel(self, request: NamedTuple) -> None:
        self._timers.append(Timer(_key(request), 0, None))

    def begin_session(self, group_id: str, member: Member) -> None:
        """The member's session begins anew."""
        self.after(member.session_timeout_ms, EndSession(group_id, member.member_id))

    def answer_join(self, member: Member, response: Any = None, error: ApiError | None = None) -> None:
        """Ends the wait of the member's join, if one waits."""
        if member.join_token is not None:
            self._answers.append(Answer(member.join_token, response, error))
            member.join_token = None

    def answer_sync(self, token: int | None, response: Any = None, error: ApiError | None = None) -> None:
        """Ends the wait of a sync, if that is one's token."""
        if token is not None:
            self._answers.append(Answer(token, response, error))


def _key(request: NamedTuple) -> tuple[Any, ...]:
    """A group has one timer of a kind for its joins and syncs, and one for each member."""
    name = type(request).__name__
    return (name, request[0]) if isinstance(request, EndSyncs) else (name, *request)


class Rebalances:
    """Those of all groups of a shard."""

    def __init__(self, store: GroupStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<Rebalances of {self._store!r}>"

    # ---- Joining -----------------------------------------------------------------------------------------------------

    def prepare_or_complete_join(self, group: Group, effects: Effects) -> None:
        """Something has changed: a rebalance begins, unless one does, and its first phase ends if all have joined."""
        if group.state is not PREPARING:
            self._begin(group, effects)
        if group.initial_delay is None and group.have_all_joined:
            if group.members:
                self._end_joins(group, effects)
            else:
                effects.after(0, EndJoins(group.group_id))

    def _begin(self, group: Group, effects: Effects) -> None:
        if group.state is EMPTY:
            delay_ms = self._store.config.group_initial_rebalance_delay_ms
            group.initial_delay = InitialDelay(max(0, group.rebalance_timeout_ms - delay_ms))
        else:
            delay_ms = group.rebalance_timeout_ms
            self._give_up_syncs(group, effects)
        effects.after(delay_ms, EndJoins(group.group_id))
        group.become(PREPARING)

    def _give_up_syncs(self, group: Group, effects: Effects) -> None:
        for member in group.members.values():
            if member.sync_token is not None:
                error = RebalanceInProgress(f"group {group.group_id!r} begins another generation; join it")
                effects.answer_sync(member.sync_token, error=error)
                effects.begin_session(group.group_id, member)
                member.sync_token = None
        group.pending_sync_members = {}
        effects.cancel(EndSyncs(group.group_id, group.generation_id))

    def end_joins(self, request: EndJoins, effects: Effects) -> None:
        """The time to join is up, or has been waited for long enough by a group that was empty (E4)."""
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
            self._become_empty(group, effects)
        elif group.elect_leader():
            self._begin_generation(group, effects)
        else:  # static members only, none of which has come back yet
            effects.after(group.rebalance_timeout_ms, EndJoins(group.group_id))

    def _become_empty(self, group: Group, effects: Effects) -> None:
        value = GroupValue(
            VERSION,
            group.protocol_type,
            group.generation_id + 1,
            protocol_name="",
            leader_id="",
            state_timestamp_ms=self._store.wall_clock_ms(),
        )
        effects.records.append(GroupRecord(GroupKey(group.group_id), value))

    def _begin_generation(self, group: Group, effects: Effects) -> None:
        group.generation_id += 1
        group.protocol_name = group.select_protocol()
        group.become(COMPLETING)
        group.pending_sync_members = dict.fromkeys(group.members)
        for member in group.members.values():
            effects.begin_session(group.group_id, member)
            effects.answer_join(member, join_response(group, member))
        effects.after(group.rebalance_timeout_ms, EndSyncs(group.group_id, group.generation_id))

    # ---- Members that are gone ---------------------------------------------------------------------------------------

    def end_syncs(self, request: EndSyncs, effects: Effects) -> None:
        """Members of the generation that have not asked for their assignment are gone (E5)."""
        group = self._store.groups.get(request.group_id)
        if group is None or group.generation_id != request.generation_id or not group.pending_sync_members:
            return
        if group.state in (COMPLETING, STABLE):
            for member_id in list(group.pending_sync_members):
                self._take_out(group, member_id, effects)
            self.prepare_or_complete_join(group, effects)

    def end_session(self, request: EndSession, effects: Effects) -> None:
        """A member has been silent for too long (E6)."""
        group = self._store.groups.get(request.group_id)
        if group is not None and request.member_id in group.members:
            self.remove(group, request.member_id, effects)

    def end_pending(self, request: EndPending, effects: Effects) -> None:
        """An id that was given out is not waited for any more (E3)."""
        group = self._store.groups.get(request.group_id)
        if group is not None and request.member_id in group.pending_join_members:
            self.remove_pending(group, request.member_id, effects)

    def remove_pending(self, group: Group, member_id: str, effects: Effects) -> None:
        del group.pending_join_members[member_id]
        effects.cancel(EndPending(group.group_id, member_id))
        if group.state is PREPARING:
            self.prepare_or_complete_join(group, effects)
        self._store.maybe_forget(group)

    def remove(self, group: Group, member_id: str, effects: Effects) -> None:
        """A member is none any more, and the others share its work."""
        self._take_out(group, member_id, effects)
        self.prepare_or_complete_join(group, effects)

    def _take_out(self, group: Group, member_id: str, effects: Effects) -> None:
        error = UnknownMemberId(f"group {group.group_id!r}: {member_id!r} is no member any more; join again")
        end_requests(group.remove(member_id), effects, error)
        effects.cancel(EndSession(group.group_id, member_id))


def end_requests(member: Member, effects: Effects, error: ApiError) -> None:
    """Ends the waits of a member that is none any more."""
    effects.answer_join(member, error=error)
    effects.answer_sync(member.sync_token, error=error)
    member.sync_token = None


def join_response(group: Group, member: Member, *, skip_assignment: bool = False) -> JoinGroupResponse:
    """The generation, as the member is told of it; its leader is told the members."""
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
