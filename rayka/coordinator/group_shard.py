"""The groups of one partition of `__consumer_offsets`: a state machine for the host in `node`.

What must outlive the coordinator is in records: the members and assignments of each generation, groups without members,
offsets. Joins, waits and sessions are soft: a new coordinator begins sessions anew and finds groups as their last
records say. So a rebalance that was under way is begun again by the members, whose generation is not known any more.

Invariants: a request that writes records changes soft state of its group in no way that its refusal would have to take
back; replaying the records of a log twice gives the same state. Kafka: `GroupCoordinatorShard` (E1-E10, E17).
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from random import Random
from typing import Any

from rayka.config.broker_config import BrokerConfig
from rayka.coordinator.committed_offsets import CommittedOffsets, tombstone
from rayka.coordinator.group import EMPTY, STABLE, Group, GroupStore, Member
from rayka.coordinator.group_members import GroupMembers
from rayka.coordinator.group_records import (
    GROUP_CODEC,
    GroupKey,
    GroupRecord,
    GroupValue,
    OffsetKey,
    OffsetValue,
)
from rayka.coordinator.rebalances import (
    CommitTogether,
    Effects,
    EndJoins,
    EndPending,
    EndSession,
    EndSyncs,
    ExpireOffsets,
    ForgetTopics,
    Rebalances,
)
from rayka.errors import ApiError, CoordinatorLoadInProgress, ErrorCode, NotCoordinator
from rayka.ids import TopicPartition
from rayka.protocol.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupHeartbeatRequest,
    GroupResult,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from rayka.protocol.topics import NewTopic
from rayka.shard.shard import NotHere, Result, Steps, Timer
from rayka.shard.shard_records import ShardType

# ListGroups, DescribeGroups and DeleteGroups. Kafka: `GroupMetadataManager.listGroups`, `describeGroups`,
# `GroupCoordinatorShard.deleteGroups`.


class GroupAdminRequests:
    """What operators ask about the groups of a shard."""

    def __init__(self, store: GroupStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<GroupAdminRequests of {self._store!r}>"

    def list_groups(self, request: ListGroupsRequest, effects: Effects) -> ListGroupsResponse:
        """In the order of ids."""
        listed = [
            ListedGroup(each.group_id, each.protocol_type, each.state)
            for each in self._store.groups.values()
            if request.states is None or each.state in request.states
        ]
        return ListGroupsResponse(tuple(sorted(listed, key=lambda each: each.group_id)))

    def describe_groups(self, request: DescribeGroupsRequest, effects: Effects) -> DescribeGroupsResponse:
        """One for each id."""
        return DescribeGroupsResponse(tuple(self._describe(each) for each in request.group_ids))

    def _describe(self, group_id: str) -> DescribedGroup:
        group = self._store.groups.get(group_id)
        if group is None:
            message = f"group {group_id!r} is not known"
            return DescribedGroup(group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message)
        return DescribedGroup(
            group_id,
            group.state,
            group.generation_id,
            group.protocol_type,
            group.protocol_name if group.state is STABLE else "",
            tuple(_described(group, each) for each in group.members.values()),
        )

    def delete_groups(
        self, request: DeleteGroupsRequest, effects: Effects
    ) -> Steps[GroupRecord, DeleteGroupsResponse]:
        """Tombstones, of however many offsets the groups have."""
        results = []
        for group_id in request.group_ids:
            result = self._refusal(group_id)
            if result is None:
                for record in self._tombstones(group_id):  # noqa: UP028 - the runtime sends each yield an offset
                    yield record
            results.append(result or GroupResult(group_id))
        return effects.result(DeleteGroupsResponse(tuple(results)))

    def _refusal(self, group_id: str) -> GroupResult | None:
        group = self._store.groups.get(group_id)
        if group is None:
            return GroupResult(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r} is not known")
        if group.state is not EMPTY or group.pending_join_members:
            message = f"group {group_id!r} has members; stop them first"
            return GroupResult(group_id, ErrorCode.NON_EMPTY_GROUP, message)
        return None

    def _tombstones(self, group_id: str) -> list[GroupRecord]:
        """The group's own comes last, so that what is left after a failover is a group that can be deleted again."""
        offsets = [tombstone(group_id, each) for each in self._store.offsets.get(group_id, {})]
        is_recorded = self._store.groups[group_id].is_recorded
        return [*offsets, *([GroupRecord(GroupKey(group_id), None)] if is_recorded else [])]


def _described(group: Group, member: Member) -> DescribedMember:
    is_stable = group.state is STABLE
    return DescribedMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.metadata(group.protocol_name) if is_stable else b"",
        member.assignment if is_stable else b"",
    )


OFFSETS_TOPIC = "__consumer_offsets"
# A generation is one record, with what each of its members said and was assigned.
_RECORD_BYTES_MAX = 16 << 20
_Handler = Callable[[Any, Effects], Any]


class GroupShard:
    """The state machine."""

    def __init__(self, config: BrokerConfig, random: Random, wall_clock_ms: Callable[[], int]) -> None:
        self.store = store = GroupStore(config, random, wall_clock_ms)
        rebalances = Rebalances(store)
        members = GroupMembers(store, rebalances)
        offsets = self._offsets = CommittedOffsets(store, members)
        admin = self._admin = GroupAdminRequests(store)
        self._handlers: Mapping[type[Any], _Handler] = {
            JoinGroupRequest: members.join,
            SyncGroupRequest: members.sync,
            GroupHeartbeatRequest: members.heartbeat,
            LeaveGroupRequest: members.leave,
            OffsetCommitRequest: offsets.commit,
            CommitTogether: offsets.commit_together,
            OffsetFetchRequest: offsets.fetch,
            OffsetDeleteRequest: offsets.delete,
            ListGroupsRequest: admin.list_groups,
            DescribeGroupsRequest: admin.describe_groups,
            EndJoins: rebalances.end_joins,
            EndSyncs: rebalances.end_syncs,
            EndSession: rebalances.end_session,
            EndPending: rebalances.end_pending,
        }

    def __repr__(self) -> str:
        return f"<GroupShard {len(self.store.groups)} groups>"

    def handle(
        self, request: Any, *, now_ms: int, next_offset: int
    ) -> Result[GroupRecord, Any] | Steps[GroupRecord, Any]:
        effects = Effects(now_ms)
        if isinstance(request, ExpireOffsets):
            return self._offsets.expire(effects)
        if isinstance(request, ForgetTopics):
            return self._offsets.forget_topics(request, effects)
        if isinstance(request, DeleteGroupsRequest):
            return self._admin.delete_groups(request, effects)
        return effects.result(self._handlers[type(request)](request, effects))

    # ---- Records -----------------------------------------------------------------------------------------------------

    def replay(self, record: GroupRecord, offset: int) -> None:
        key, value = record.key, record.value
        if isinstance(key, GroupKey):
            if isinstance(value, GroupValue):
                self.store.get_or_create(key.group_id).take(value)
            else:
                self._forget(key)
            return
        offsets = self.store.offsets.get(key.group_id)
        if not isinstance(value, OffsetValue):
            self._forget_offset(key, offsets or {})
            return
        if offsets is None:
            self.store.get_or_create(key.group_id)
            offsets = self.store.offsets[key.group_id] = {}
        offsets[TopicPartition(key.topic, key.partition)] = value

    def _forget_offset(self, key: OffsetKey, offsets: dict[TopicPartition, OffsetValue]) -> None:
        offsets.pop(TopicPartition(key.topic, key.partition), None)
        if not offsets:
            self.store.offsets.pop(key.group_id, None)
        if (group := self.store.groups.get(key.group_id)) is not None:
            self.store.maybe_forget(group)

    def _forget(self, key: GroupKey) -> None:
        group = self.store.groups.get(key.group_id)
        if group is not None:
            group.is_recorded = False
            self.store.maybe_forget(group)

    # ---- Leading -----------------------------------------------------------------------------------------------------

    def on_active(self, *, now_ms: int, next_offset: int) -> Iterator[Timer]:
        """Every member gets a whole session to find this coordinator."""
        effects = Effects(now_ms)
        for group in self.store.groups.values():
            for member in group.members.values():
                effects.begin_session(group.group_id, member)
        effects.after(self.store.config.offsets_retention_check_interval_ms, ExpireOffsets())
        return iter(effects.result(None).timers)

    def not_here(self, why: NotHere) -> ApiError:
        return (CoordinatorLoadInProgress if why.is_loading else NotCoordinator)(why.reason)


def group_shard_type(config: BrokerConfig, random: Random, wall_clock_ms: Callable[[], int]) -> ShardType:
    """Groups on the partitions of `__consumer_offsets`."""
    topic = NewTopic(
        OFFSETS_TOPIC,
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        {
            "max.message.bytes": str(_RECORD_BYTES_MAX),
            "cleanup.policy": "compact",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
    )
    return ShardType(topic, GROUP_CODEC, lambda number: GroupShard(config, random, wall_clock_ms))


@lru_cache(maxsize=10_000)
def partition_of_group(group_id: str, partition_count: int) -> int:
    """The partition of `__consumer_offsets` that a group is on: Java's hash of the id, as Kafka has it (E1)."""
    hashed = 0
    data = group_id.encode("utf-16-be", "surrogatepass")
    for place in range(0, len(data), 2):
        hashed = (31 * hashed + int.from_bytes(data[place : place + 2], "big")) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed >> 31 else hashed
    return 0 if signed == -(1 << 31) else abs(signed) % partition_count
