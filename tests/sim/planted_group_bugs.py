"""Bugs on purpose in groups, of the coordinator and of its members, in the form of `planted_bugs`."""

from dataclasses import replace
from typing import Any

from rayka.client.consumer.fetcher import Fetcher
from rayka.client.group import group_membership
from rayka.client.group.committing import GroupOffsets
from rayka.client.group.offset_values import OffsetAndMetadata
from rayka.coordinator.committed_offsets import CommittedOffsets
from rayka.coordinator.group import Group
from rayka.coordinator.group_records import OffsetKey
from rayka.coordinator.group_shard import GroupShard
from rayka.coordinator.rebalances import Rebalances
from rayka.ids import TopicPartition
from rayka.protocol.groups import MemberAssignment
from rayka.sim.group_plan import GroupPlan
from rayka.sim.run_options import TopicPlan
from rayka.sim.world.faults import FaultKind
from tests.sim.planting import PlantedBug, planted

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


def does_nothing(_: Any) -> Any:
    return lambda self, *arguments: None


def keeps_the_generation(original: Any) -> Any:
    def begin_generation(self: Rebalances, group: Group, effects: Any) -> None:
        if group.generation_id > 0:
            group.generation_id -= 1
        original(self, group, effects)

    return begin_generation


def keeps_the_first(original: Any) -> Any:
    def replay_offset(self: GroupShard, key: OffsetKey, value: Any) -> None:
        known = self.known.offsets.get(key.group_id, {})
        if TopicPartition(key.topic, key.partition) not in known:
            original(self, key, value)

    return replay_offset


def forgets_its_offsets(original: Any) -> Any:
    def on_active(self: GroupShard, **moment: int) -> Any:
        self.known.offsets.clear()
        return original(self, **moment)

    return on_active


def commits_without_records(original: Any) -> Any:
    def commit(self: CommittedOffsets, *arguments: Any) -> Any:
        result = original(self, *arguments)
        arguments[-1].records.pop()
        return result

    return commit


def _bug(name: str, checker: str, owner: Any, attribute: str, make: Any, seed: int = 1) -> PlantedBug:
    return PlantedBug(name, checker, planted(owner, attribute, make), seed, GROUP)


GROUP_BUGS = [
    _bug("the leader gives all to each", "group-owners", group_membership, "assignments_of", gives_all_to_each),
    _bug("a rebalance keeps the generation", "group-owners", Rebalances, "_begin_generation", keeps_the_generation),
    _bug("a member commits one record more than it was given", "group-skipped", Fetcher, "consumed", commits_one_more),
    _bug("a member begins behind what was committed", "group-skipped", GroupOffsets, "fetch", begins_later),
    _bug("a member begins anew", "group-went-back", GroupOffsets, "fetch", begins_anew),
    _bug("a coordinator writes no offset", "group-went-back", CommittedOffsets, "_commit", commits_without_records),
    _bug("only a partition's first offset counts", "group-went-back", GroupShard, "_replay_offset", keeps_the_first),
    _bug("a new coordinator knows no offsets", "group-went-back", GroupShard, "on_active", forgets_its_offsets),
    _bug("a rebalance waits for ever", "group-unsettled", Rebalances, "end_joins", does_nothing),
]  # fmt: skip
