"""The state machine of the groups on one partition of `__consumer_offsets`, for the host in `node`.

Records hold the state that must outlive the coordinator: the members and assignments of each generation, groups without
members, offsets. Joins, waits and sessions are soft. A new coordinator finds the groups of the last records and begins
all sessions anew. The members begin an interrupted rebalance again, because their generation is unknown.

Invariants: a request that writes records makes no change of soft state that its refusal would have to undo; replaying
the records of a log twice gives the same state. Kafka: `GroupCoordinatorShard`, `GroupMetadataManager.listGroups`,
`describeGroups` (E1-E10, E17).
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from random import Random
from typing import Any

from rayka.config.broker_config import BrokerConfig
from rayka.coordinator.committed_offsets import (
    CommittedOffsets,
    CommitTogether,
    ExpireOffsets,
    ForgetTopics,
    tombstone,
)
from rayka.coordinator.group import EMPTY, STABLE, GroupStore
from rayka.coordinator.group_members import GroupMembers
from rayka.coordinator.group_records import (
    GROUP_CODEC,
    GroupKey,
    GroupRecord,
    GroupValue,
    OffsetValue,
)
from rayka.coordinator.rebalances import (
    Effects,
    EndJoins,
    EndPending,
    EndSession,
    EndSyncs,
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

OFFSETS_TOPIC = "__consumer_offsets"
# A generation is one record, with the metadata and assignments of all members.
_RECORD_BYTES_MAX = 16 << 20


class GroupAdminRequests:
    """ListGroups, DescribeGroups and DeleteGroups on the groups of a shard."""

    def __init__(self, store: GroupStore) -> None:
        self._store = store

    def list_groups(self, request: ListGroupsRequest, effects: Effects) -> ListGroupsResponse:
        """Lists groups in the order of their ids."""
        listed = [
            ListedGroup(each.group_id, each.protocol_type, each.state)
            for each in self._store.groups.values()
            if request.states is None or each.state in request.states
        ]
        return ListGroupsResponse(tuple(sorted(listed, key=lambda each: each.group_id)))

    def describe_groups(self, request: DescribeGroupsRequest, effects: Effects) -> DescribeGroupsResponse:
        """Describes groups, one result for each id. Assignments are described while a group is STABLE only."""
        return DescribeGroupsResponse(tuple(self._describe(each) for each in request.group_ids))

    def _describe(self, group_id: str) -> DescribedGroup:
        group = self._store.groups.get(group_id)
        if group is None:
            message = f"group {group_id!r} is not known"
            return DescribedGroup(group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message)
        is_stable = group.state is STABLE
        members = tuple(
            DescribedMember(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                each.metadata(group.protocol_name) if is_stable else b"",
                each.assignment if is_stable else b"",
            )
            for each in group.members.values()
        )
        return DescribedGroup(
            group_id,
            group.state,
            group.generation_id,
            group.protocol_type,
            group.protocol_name if is_stable else "",
            members,
        )

    def delete_groups(
        self, request: DeleteGroupsRequest, effects: Effects
    ) -> Steps[GroupRecord, DeleteGroupsResponse]:
        """Deletes groups without members, with their offsets, in steps; one result for each id.

        The tombstone of a group follows those of its offsets. So the group still exists after a failover that
        interrupts the deletion, and can be deleted again.
        """
        results: list[GroupResult] = []
        for group_id in request.group_ids:
            group = self._store.groups.get(group_id)
            if group is None:
                message = f"group {group_id!r} is not known"
                results.append(GroupResult(group_id, ErrorCode.GROUP_ID_NOT_FOUND, message))
                continue
            if group.state is not EMPTY or group.pending_join_members:
                message = f"group {group_id!r} has members; stop them first"
                results.append(GroupResult(group_id, ErrorCode.NON_EMPTY_GROUP, message))
                continue
            records = [tombstone(group_id, each) for each in self._store.offsets.get(group_id, {})]
            if group.is_recorded:
                records.append(GroupRecord(GroupKey(group_id), None))
            for record in records:  # noqa: UP028 - the runtime sends each yield an offset
                yield record
            results.append(GroupResult(group_id))
        return effects.result(DeleteGroupsResponse(tuple(results)))


class GroupShard:
    """The state machine of the groups and offsets of one partition."""

    def __init__(self, config: BrokerConfig, random: Random, wall_clock_ms: Callable[[], int]) -> None:
        self.store = store = GroupStore(config, random, wall_clock_ms)
        rebalances = Rebalances(store)
        members = GroupMembers(store, rebalances)
        offsets = self._offsets = CommittedOffsets(store, members)
        admin = self._admin = GroupAdminRequests(store)
        self._handlers: Mapping[type[Any], Callable[[Any, Effects], Any]] = {
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
                self.store.get_or_create(key.group_id).replay(value)
            elif (group := self.store.groups.get(key.group_id)) is not None:
                group.is_recorded = False
                self.store.maybe_forget(group)
            return
        topic_partition = TopicPartition(key.topic, key.partition)
        offsets = self.store.offsets.get(key.group_id)
        if isinstance(value, OffsetValue):
            if offsets is None:
                self.store.get_or_create(key.group_id)
                offsets = self.store.offsets[key.group_id] = {}
            offsets[topic_partition] = value
            return
        if offsets is not None:
            offsets.pop(topic_partition, None)
        if not offsets:
            self.store.offsets.pop(key.group_id, None)
        if (group := self.store.groups.get(key.group_id)) is not None:
            self.store.maybe_forget(group)

    # ---- Leadership --------------------------------------------------------------------------------------------------

    def on_active(self, *, now_ms: int, next_offset: int) -> Iterator[Timer]:
        """Begins a whole session for every member, so that all have the time to find this coordinator."""
        effects = Effects(now_ms)
        for group in self.store.groups.values():
            for member in group.members.values():
                effects.begin_session(group.group_id, member)
        effects.after(self.store.config.offsets_retention_check_interval_ms, ExpireOffsets())
        return iter(effects.result(None).timers)

    def not_here(self, why: NotHere) -> ApiError:
        return (CoordinatorLoadInProgress if why.is_loading else NotCoordinator)(why.reason)


def group_shard_type(config: BrokerConfig, random: Random, wall_clock_ms: Callable[[], int]) -> ShardType:
    """The kind of shard that holds groups, on the partitions of `__consumer_offsets`."""
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
    """The partition of `__consumer_offsets` that holds a group, by Java's hash of the id like in Kafka (E1)."""
    hashed = 0
    data = group_id.encode("utf-16-be", "surrogatepass")
    for place in range(0, len(data), 2):
        hashed = (31 * hashed + int.from_bytes(data[place : place + 2], "big")) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed >> 31 else hashed
    return 0 if signed == -(1 << 31) else abs(signed) % partition_count
