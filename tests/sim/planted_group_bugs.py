"""Bugs on purpose in groups, of the coordinator and of its members, in the form of `planted_bugs`."""

from dataclasses import replace
from typing import Any

import msgspec

from rayka.client.consumer import group_membership
from rayka.client.consumer.delivery import Delivery
from rayka.client.consumer.fetch_state import FetchState, FetchTicket
from rayka.client.consumer.fetcher import Fetcher
from rayka.client.consumer.offset_commits import GroupOffsets, OffsetAndMetadata
from rayka.coordinator import committed_offsets, group_members
from rayka.coordinator.committed_offsets import CommittedOffsets
from rayka.coordinator.group import Group, GroupStore
from rayka.coordinator.group_members import GroupMembers
from rayka.coordinator.group_records import GroupRecord, OffsetKey
from rayka.coordinator.group_shard import GroupShard
from rayka.coordinator.rebalances import Rebalances
from rayka.errors import ErrorCode
from rayka.ids import TopicPartition
from rayka.protocol.fetch import LATEST_TIMESTAMP
from rayka.protocol.groups import GroupHeartbeatResponse, GroupState, MemberAssignment
from rayka.shard.runtime import ShardRuntime
from rayka.shard.shard import Deferred
from rayka.sim.run_options import GroupPlan, LanePlan, TopicPlan
from rayka.sim.world.faults import FaultKind
from tests.sim.planting import SECONDS, SHORT, PlantedBug, planted

GROUP: dict[str, Any] = {
    "voters": 1,
    "brokers": 2,
    "coordinators": 2,
    "clients": 1,
    "members": 3,
    "group": GroupPlan(),
    "ops_per_second": 0.5,
    "topics": (TopicPlan("data0", 4, 2, {}),),
    "producers": 1,
    "consumers": 0,
    "records_per_second": 20.0,
    "operations_per_minute": 0.0,
    "voter_changes": False,
    "latency_ms": 2.0,
    "jitter_ms": 2.0,
    "loss": 0.0,
    "fault_kinds": (FaultKind.KILL, FaultKind.ISOLATE, FaultKind.CUT_LINK, FaultKind.PAUSE, FaultKind.STOP),
    "faults_per_minute": 40.0,
    "config": {
        "broker_session_timeout_ms": 800,
        "broker_heartbeat_interval_ms": 200,
        "replica_lag_time_max_ms": 2_000,
        "replica_fetch_wait_max_ms": 200,
    },
}


# Commits of the log take long, and leaders die meanwhile.
FAR_APART = GROUP | {
    "records_per_second": 60.0,
    "latency_ms": 40.0,
    "jitter_ms": 40.0,
    "fault_kinds": (FaultKind.KILL, FaultKind.CUT_LINK, FaultKind.ISOLATE),
    "faults_per_minute": 60.0,
}


# Calls wait on their way to nodes that receive nothing for a while, and arrive when these lead again.
DEAF = GROUP | {
    "lanes": LanePlan(share=1.0, latency_ms=0.1, jitter_ms=1.0, breaks=0.0, death_news_ms=100.0),
    "fault_kinds": (FaultKind.DEAFEN, FaultKind.CUT_ONE_WAY),
    "faults_per_minute": 30.0,
}


def gives_all_to_each(original: Any) -> Any:
    def assignments_of(*arguments: Any) -> tuple[MemberAssignment, ...]:
        made = original(*arguments)
        largest = max((each.assignment for each in made), key=len)
        return tuple(MemberAssignment(each.member_id, largest) for each in made)

    return assignments_of


def commits_one_more(original: Any) -> Any:
    def consumed(self: Fetcher, read: Any) -> dict[Any, OffsetAndMetadata]:
        return {tp: OffsetAndMetadata(at.offset + 1) for tp, at in original(self, read).items()}

    return consumed


def begins_later(original: Any) -> Any:
    async def fetch(self: GroupOffsets, partitions: Any) -> Any:
        found = await original(self, partitions)
        return {tp: at and replace(at, offset=at.offset + 3) for tp, at in found.items()}

    return fetch


def begins_anew(original: Any) -> Any:
    async def fetch(self: GroupOffsets, partitions: Any) -> Any:
        return dict.fromkeys(await original(self, partitions))

    return fetch


def passes_over_what_follows_a_gap(original: Any) -> Any:
    def next_records(self: Delivery, limit: int) -> Any:
        ends: dict[TopicPartition, int] = self.__dict__.setdefault("ends", {})
        kept = []
        for record in original(self, limit):
            end = ends.get(tp := TopicPartition(record.topic, record.partition), record.offset)
            ends[tp] = record.offset + 1
            if record.offset <= end:
                kept.append(record)
        return kept

    return next_records


def resets_to_the_end(_: Any) -> Any:
    def reset(self: FetchState, ticket: FetchTicket) -> bool:
        self.seek_to_timestamp(ticket.topic_partition, LATEST_TIMESTAMP)
        return True

    return reset


def does_nothing(_: Any) -> Any:
    return lambda self, *arguments: None


def keeps_the_generation(original: Any) -> Any:
    def begin_generation(self: Rebalances, group: Group, effects: Any) -> None:
        if group.generation_id > 0:
            group.generation_id -= 1
        original(self, group, effects)

    return begin_generation


def keeps_the_first(original: Any) -> Any:
    def replay(self: GroupShard, record: GroupRecord, offset: int) -> None:
        key, known = record.key, self.store.offsets.get(record.key.group_id, {})
        if not isinstance(key, OffsetKey) or TopicPartition(key.topic, key.partition) not in known:
            original(self, record, offset)

    return replay


def forgets_its_offsets(original: Any) -> Any:
    def on_active(self: GroupShard, **moment: int) -> Any:
        self.store.offsets.clear()
        return original(self, **moment)

    return on_active


def commits_without_records(original: Any) -> Any:
    def commit(self: CommittedOffsets, *arguments: Any) -> Any:
        result = original(self, *arguments)
        arguments[-1].records.pop()
        return result

    return commit


def takes_any_commit(_: Any) -> Any:
    return lambda self, request, effects: None


def takes_any_process_for_the_instance(original: Any) -> Any:
    def member(self: GroupStore, group_id: str, member_id: str, group_instance_id: str) -> Any:
        group = self.groups.get(group_id)
        known_id = group.static_members.get(group_instance_id) if group is not None else None
        return original(self, group_id, known_id or member_id, group_instance_id)

    return member


def commits_what_was_fetched(_: Any) -> Any:
    def consumed(self: Fetcher, read: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        positions = {tp: self.state.position(tp) for tp in self.subscription.partitions}
        return {
            tp: OffsetAndMetadata(at.fetch_offset)
            for tp, at in positions.items()
            if isinstance(at, FetchTicket)
        }

    return consumed


def commits_one_less(original: Any) -> Any:
    def consumed(self: Fetcher, read: Any) -> dict[Any, OffsetAndMetadata]:
        return {tp: OffsetAndMetadata(max(at.offset - 1, 0)) for tp, at in original(self, read).items()}

    return consumed


def sends_no_commit(_: Any) -> Any:
    async def send_some(*_: Any) -> dict[Any, Any]:
        return {}

    return send_some


def expires_at_once(_: Any) -> Any:
    return lambda self, group: list(self._store.offsets.get(group.group_id, {}))


def tells_of_no_rebalance(original: Any) -> Any:
    def heartbeat(*arguments: Any) -> GroupHeartbeatResponse:
        return msgspec.structs.replace(original(*arguments), error_code=ErrorCode.NONE)

    return heartbeat


def gives_the_share_of_the_leader(original: Any) -> Any:
    def sync_response(group: Group, assignment: bytes) -> Any:
        leader = group.members.get(group.leader_id)
        is_stable = group.state is GroupState.STABLE and leader is not None
        return original(group, leader.assignment if is_stable and leader else assignment)

    return sync_response


def answers_an_early_sync(original: Any) -> Any:
    def sync(self: GroupMembers, request: Any, effects: Any) -> Any:
        result = original(self, request, effects)
        group = self._store.groups[request.group_id]
        member = group.members[request.member_id]
        if group.state is not GroupState.COMPLETING_REBALANCE or not isinstance(result, Deferred):
            return result
        member.sync_token = None
        effects.begin_session(group.group_id, member)
        return group_members._sync_response(group, member.assignment)

    return sync


def answers_before_the_high_watermark(original: Any) -> Any:
    def finish(self: ShardRuntime[Any, Any], pending: Any, response: Any, error: Any) -> None:
        original(self, pending, response, error)
        if isinstance(self.shard, GroupShard):
            pending.required_offset = 0

    return finish


def begins_no_sessions(_: Any) -> Any:
    return lambda self, **moment: iter(())


def with_plan(**fields: Any) -> dict[str, Any]:
    """A run with another group."""
    return GROUP | {"group": GroupPlan(**fields)}


STATIC = with_plan(static_count=3, has_zombies=True)
DYING = with_plan(has_death=True)
# Gaps that compaction and retention have made excuse no other gap.
COMPACTED = GROUP | {"compacts": True}
LOSING = GROUP | {"compacts": True, "expires": True}
EXPIRING = GROUP | {"config": GROUP["config"] | {"offsets_retention_check_interval_ms": 2_000}}


def _bug(
    name: str,
    checker: str,
    owner: Any,
    attribute: str,
    make: Any,
    seed: int = 1,
    *,
    chosen: dict[str, Any] = GROUP,
    seconds: float = SECONDS,
) -> PlantedBug:
    return PlantedBug(name, checker, planted(owner, attribute, make), seed, chosen, seconds)


GROUP_BUGS = [
    _bug("the leader gives all to each", "group-owners", group_membership, "assignments_of", gives_all_to_each,
         seconds=SHORT),
    _bug("a rebalance keeps the generation", "group-owners", Rebalances, "_begin_generation", keeps_the_generation),
    _bug("a member commits one record more than it was given", "group-skipped", Fetcher, "consumed",
         commits_one_more, 3),
    _bug("a member begins behind what was committed", "group-skipped", GroupOffsets, "fetch", begins_later, 6),
    _bug("a member begins anew", "group-went-back", GroupOffsets, "fetch", begins_anew, 2),
    _bug("a coordinator writes no offset", "group-went-back", CommittedOffsets, "_commit", commits_without_records),
    _bug("only a partition's first offset counts", "group-went-back", GroupShard, "replay", keeps_the_first),
    _bug("a new coordinator knows no offsets", "group-went-back", GroupShard, "on_active", forgets_its_offsets, 11),
    _bug("a rebalance waits for ever", "group-unsettled", Rebalances, "end_joins", does_nothing),
    _bug("any process commits", "group-fenced", CommittedOffsets, "_check_commit", takes_any_commit,
         chosen=with_plan(has_zombies=True)),
    _bug("no process of an instance is fenced", "group-fenced", GroupStore, "member",
         takes_any_process_for_the_instance, 4, chosen=STATIC),
    _bug("a member commits what was fetched", "group-skipped", Fetcher, "consumed", commits_what_was_fetched, 18),
    _bug("a member commits one record less than it was given", "group-redelivered", Fetcher, "consumed",
         commits_one_less, 2),
    _bug("a commit is never sent", "group-went-back", GroupOffsets, "_send_some", sends_no_commit, 6),
    _bug("offsets expire under a group", "group-went-back", CommittedOffsets, "_expired", expires_at_once,
         chosen=EXPIRING),
    _bug("no member is told of a rebalance", "group-unsettled", GroupMembers, "heartbeat", tells_of_no_rebalance, 6,
         seconds=SHORT),
    _bug("a late member is given the leader's share", "group-owners", group_members, "_sync_response",
         gives_the_share_of_the_leader, 18),
    _bug("an early sync is given the last generation's assignment", "group-owners", GroupMembers, "sync",
         answers_an_early_sync, 2),
    _bug("a session never ends", "group-unsettled", Rebalances, "end_session", does_nothing, 10, chosen=DYING,
         seconds=SHORT),
    _bug("a new coordinator begins no sessions", "group-unsettled", GroupShard, "on_active", begins_no_sessions, 10,
         chosen=DYING, seconds=2 * SHORT),
    _bug("a coordinator answers before its records are committed", "group-went-back", ShardRuntime, "_finish",
         answers_before_the_high_watermark, 12, chosen=FAR_APART),
    _bug("a coordinator takes commits that were meant for a former epoch", "group-went-back", committed_offsets,
         "_check_coordinator_epoch", does_nothing, 11, chosen=DEAF),
    _bug("a member commits more than it was given of a compacted topic", "group-skipped", Fetcher, "consumed",
         commits_one_more, chosen=COMPACTED),
    _bug("a member passes over what follows a gap", "group-skipped", Delivery, "next_records",
         passes_over_what_follows_a_gap, chosen=COMPACTED),
    _bug("a member begins behind what was committed and has not expired", "group-skipped", GroupOffsets, "fetch",
         begins_later, 3, chosen=LOSING),
    _bug("a member whose offset has expired begins at the end", "group-skipped", FetchState, "reset",
         resets_to_the_end, chosen=LOSING),
    _bug("a consumer passes over what follows a gap", "poll-skip", Delivery, "next_records",
         passes_over_what_follows_a_gap, chosen=COMPACTED | {"members": 0, "consumers": 1}),
]  # fmt: skip
