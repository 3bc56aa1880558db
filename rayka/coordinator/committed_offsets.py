"""OffsetCommit, OffsetFetch, OffsetDelete, and the expiry of offsets that are not used any more.

All offsets of a commit are records of one batch. Kafka: `OffsetMetadataManager` (E10, E17). Left out: offsets of
transactions, and expiry times in commits.
"""

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from rayka.coordinator.group import COMPLETING, EMPTY, Group, GroupStore
from rayka.coordinator.group_members import GroupMembers
from rayka.coordinator.group_records import (
    NO_TOPIC_ID,
    VERSION,
    GroupKey,
    GroupRecord,
    OffsetKey,
    OffsetValue,
)
from rayka.coordinator.rebalances import Effects
from rayka.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    ErrorCode,
    GroupIdNotFound,
    IllegalGeneration,
    NonEmptyGroup,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from rayka.ids import NO_EPOCH, TopicPartition
from rayka.protocol.groups import (
    CommittedOffset,
    FetchedOffset,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from rayka.protocol.topics import PartitionResult
from rayka.shard.shard import Steps

_MS_PER_MINUTE = 60_000


class ExpireOffsets(NamedTuple):
    """A timer's request: forgets offsets after their retention time."""


class ForgetTopics(NamedTuple):
    """A request of the node: forgets the offsets of deleted topics."""

    # By the name of the topic.
    topic_ids: Mapping[str, UUID]


class CommitTogether(NamedTuple):
    """A request of the node: writes several commits as one batch of the log."""

    requests: tuple[OffsetCommitRequest, ...]
    # The epoch in which the node leads.
    leader_epoch: int


class CommittedOffsets:
    """The committed offsets of all groups of a shard."""

    def __init__(self, store: GroupStore, members: GroupMembers) -> None:
        self._store = store
        self._members = members

    # ---- Commit ------------------------------------------------------------------------------------------------------

    def commit(self, request: OffsetCommitRequest, effects: Effects) -> OffsetCommitResponse:
        """Commits offsets; one result for each partition. Too much metadata of one partition stops no other."""
        self._check_commit(request, effects)
        timestamp_ms = self._store.wall_clock_ms()
        return OffsetCommitResponse(
            tuple(self._commit(request.group_id, each, timestamp_ms, effects) for each in request.partitions)
        )

    def commit_together(
        self, together: CommitTogether, effects: Effects
    ) -> tuple[OffsetCommitResponse | ApiError, ...]:
        """Commits several requests; one response or error for each.

        The answers equal those of one request after another, because no commit reads the records of another.
        """
        answers: list[OffsetCommitResponse | ApiError] = []
        for request in together.requests:
            try:
                _check_coordinator_epoch(request, together.leader_epoch)
                answers.append(self.commit(request, effects))
            except ApiError as refusal:
                answers.append(refusal)
        return tuple(answers)

    def _check_commit(self, request: OffsetCommitRequest, effects: Effects) -> None:
        """Raises ApiError if the caller may not commit. A commit restarts the session of its member (E10)."""
        group = self._store.groups.get(request.group_id)
        if group is None:
            if request.generation_id >= 0:
                raise IllegalGeneration(
                    f"group {request.group_id!r} is not known, found generation {request.generation_id}; join it"
                )
            return
        if request.generation_id < 0 and not request.member_id and not request.group_instance_id:
            if group.state is not EMPTY:
                raise UnknownMemberId(
                    f"group {request.group_id!r} has members, and only they commit offsets; stop them first"
                )
            return
        group, member = self._members.member_of_generation(
            request.group_id, request.generation_id, request.member_id, request.group_instance_id
        )
        if group.state is COMPLETING:
            raise RebalanceInProgress(f"group {request.group_id!r} waits for its assignments; try again")
        self._members.touch(group, member, effects)

    def _commit(
        self, group_id: str, committed: CommittedOffset, timestamp_ms: int, effects: Effects
    ) -> PartitionResult:
        most, found = self._store.config.offset_metadata_max_bytes, len(committed.metadata)
        if found > most:
            message = f"metadata: expected at most {most} characters, found {found}"
            code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            return PartitionResult(committed.topic, committed.partition, code, message)
        epoch, metadata, topic_id = committed.leader_epoch, committed.metadata, committed.topic_id.bytes
        value = OffsetValue(VERSION, committed.offset, epoch, metadata, timestamp_ms, topic_id)
        key = OffsetKey(group_id, committed.topic, committed.partition)
        effects.records.append(GroupRecord(key, value))
        return PartitionResult(committed.topic, committed.partition)

    # ---- Fetch and delete --------------------------------------------------------------------------------------------

    def fetch(self, request: OffsetFetchRequest, effects: Effects) -> OffsetFetchResponse:
        """The committed offsets of the group; none for an unknown group."""
        offsets = self._store.offsets.get(request.group_id, {})
        fetched: list[FetchedOffset] = []
        for partition in sorted(offsets) if request.partitions is None else request.partitions:
            value = offsets.get(partition)
            if value is None:
                fetched.append(FetchedOffset(partition.topic, partition.partition))
                continue
            fetched.append(
                FetchedOffset(
                    partition.topic,
                    partition.partition,
                    value.offset,
                    value.leader_epoch,
                    value.metadata,
                    topic_id=UUID(bytes=value.topic_id),
                )
            )
        return OffsetFetchResponse(tuple(fetched))

    def delete(self, request: OffsetDeleteRequest, effects: Effects) -> OffsetDeleteResponse:
        """Deletes offsets; one result for each partition. Offsets of topics that members subscribe to stay."""
        group = self._store.groups.get(request.group_id)
        if group is None:
            raise GroupIdNotFound(f"group {request.group_id!r} is not known")
        topics = group.subscribed_topics()
        if topics is None:
            raise NonEmptyGroup(f"group {request.group_id!r} has members; stop them first")
        results: list[PartitionResult] = []
        for partition in request.partitions:
            code, message = ErrorCode.NONE, ""
            if partition.topic in topics:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                message = f"group {group.group_id!r} reads {partition.topic!r}; stop its members first"
            elif partition in self._store.offsets.get(group.group_id, {}):
                effects.records.append(tombstone(group.group_id, partition))
            results.append(PartitionResult(partition.topic, partition.partition, code, message))
        return OffsetDeleteResponse(tuple(results))

    # ---- Deleted topics and expiry -----------------------------------------------------------------------------------

    def forget_topics(self, request: ForgetTopics, effects: Effects) -> Steps[GroupRecord, None]:
        """Forgets the offsets of deleted topics in all groups. A group without anything else is forgotten with its last
        offset.
        """
        for group_id, offsets in list(self._store.offsets.items()):
            yield None
            for partition, value in list(offsets.items()):
                topic_id = request.topic_ids.get(partition.topic)
                if topic_id is not None and value.topic_id in (topic_id.bytes, NO_TOPIC_ID):
                    yield tombstone(group_id, partition)
        return effects.result(None)

    def expire(self, effects: Effects) -> Steps[GroupRecord, None]:
        """Forgets offsets after their retention time, and groups without anything left (E17)."""
        for group in list(self._store.groups.values()):
            expired = [tombstone(group.group_id, each) for each in self._expired(group)]
            # One step for each group bounds a turn, also where nothing expires.
            yield None
            offset_count = len(self._store.offsets.get(group.group_id, {}))
            has_nothing = group.state is EMPTY and not group.pending_join_members
            is_over = group.is_recorded and has_nothing and len(expired) == offset_count
            for tombstone_of_offset in expired:  # noqa: UP028 - the runtime sends each yield an offset
                yield tombstone_of_offset
            if is_over:
                yield GroupRecord(GroupKey(group.group_id), None)
        effects.after(self._store.config.offsets_retention_check_interval_ms, ExpireOffsets())
        return effects.result(None)

    def _expired(self, group: Group) -> list[TopicPartition]:
        """The partitions whose offsets are older than the retention time and whose topics no member subscribes to.

        An empty group that had members keeps all offsets for the retention time, from the removal of the last member
        on. A group whose subscriptions are unknown keeps all offsets.
        """
        offsets = self._store.offsets.get(group.group_id)
        if not offsets:
            return []
        retention_ms = self._store.config.offsets_retention_minutes * _MS_PER_MINUTE
        before_ms = self._store.wall_clock_ms() - retention_ms
        topics = group.subscribed_topics()
        is_kept = group.state is EMPTY and group.protocol_type and group.state_timestamp_ms > before_ms
        if topics is None or is_kept:
            return []
        return [
            partition
            for partition, value in offsets.items()
            if value.commit_timestamp_ms <= before_ms and partition.topic not in topics
        ]


def tombstone(group_id: str, partition: TopicPartition) -> GroupRecord:
    """The record that deletes a committed offset."""
    return GroupRecord(OffsetKey(group_id, partition.topic, partition.partition), None)


def _check_coordinator_epoch(request: OffsetCommitRequest, leader_epoch: int) -> None:
    """Raises ApiError for a commit that was meant for another leader epoch.

    A commit for a former epoch may be late, and would overwrite a newer commit that another leader has accepted.
    """
    asked = request.coordinator_epoch
    if asked in (leader_epoch, NO_EPOCH):
        return
    refusal = NotCoordinator if asked < leader_epoch else CoordinatorLoadInProgress
    raise refusal(
        f"the commit of group {request.group_id!r} is for leader epoch {asked}, found {leader_epoch} here"
    )
