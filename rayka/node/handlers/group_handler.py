"""Groups on a broker: which node coordinates a group, and the way to the shard here that does.

The leader of the partition of `__consumer_offsets` that a group's id hashes to is its coordinator; the topic is created
when a coordinator is asked for the first time (E1). Errors of the log under a shard become what they mean to a
member: try again, or look for the coordinator. Kafka: `KafkaApis`, `GroupCoordinatorService`.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any
from uuid import UUID

from rayka.coordinator.group_shard import OFFSETS_TOPIC, partition_of_group
from rayka.coordinator.rebalances import CommitTogether, ForgetTopics
from rayka.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    RequestTimedOut,
)
from rayka.node.broker_lifecycle import BrokerLifecycle
from rayka.node.handlers.joined_commits import JoinedCommits
from rayka.node.hosting.hosted_shards import HostedShards
from rayka.node.hosting.replicated_shard import ReplicatedShard
from rayka.node.metadata_follower import MetadataFollower
from rayka.protocol.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupCoordinator,
    GroupResult,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from rayka.protocol.later import Later
from rayka.protocol.topics import NewTopic

_METADATA_TIMEOUT_MS = 5_000


class GroupHandler:
    """Answers the APIs of groups."""

    def __init__(
        self,
        topic: NewTopic,
        shards: HostedShards,
        lifecycle: BrokerLifecycle,
        follower: MetadataFollower,
    ) -> None:
        self._topic = topic
        self._shards = shards
        self._lifecycle = lifecycle
        self._follower = follower
        self._one_at_a_time = asyncio.Lock()
        self._commits = JoinedCommits(self._begin_commits)

    def __repr__(self) -> str:
        return f"<GroupHandler {self._topic.name} partitions={self._partition_count}>"

    @property
    def _partition_count(self) -> int:
        """0 while there is no topic."""
        topic = self._follower.image.topics.get(OFFSETS_TOPIC)
        return len(topic.partitions) if topic is not None else 0

    # ---- Coordinators ------------------------------------------------------------------------------------------------

    async def find(self, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        """One for each group. Raises CoordinatorNotAvailable when there is no topic and none can be created."""
        async with self._one_at_a_time:
            if not self._partition_count:
                await self._create()
        return FindCoordinatorResponse(tuple(self._coordinator(each) for each in request.group_ids))

    async def _create(self) -> None:
        try:
            offset = await self._lifecycle.create_internal_topic(self._topic)
            await self._follower.wait_for(offset, _METADATA_TIMEOUT_MS)
        except ApiError as error:
            raise CoordinatorNotAvailable(f"{OFFSETS_TOPIC} is not there yet: {error}") from error

    def _coordinator(self, group_id: str) -> GroupCoordinator:
        topic = self._follower.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            error, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} is not known here yet"
            return GroupCoordinator(group_id, error_code=error, error_message=message)
        number = partition_of_group(group_id, len(topic.partitions))
        partition = topic.partitions[number]
        if not partition.has_leader:
            error, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC}-{number} has no leader"
            return GroupCoordinator(group_id, error_code=error, error_message=message)
        return GroupCoordinator(group_id, partition.leader_id, leader_epoch=partition.leader_epoch)

    # ---- Topics that are gone ----------------------------------------------------------------------------------------

    def forget_topics(self, topic_ids: Mapping[str, UUID]) -> None:
        """The shards that are active here forget the offsets of deleted topics. Others have the topic's id with each
        offset, by which a consumer of another topic of that name sees that it is not meant (E17).
        """
        for number in range(self._partition_count if topic_ids else 0):
            with suppress(NotCoordinator, CoordinatorLoadInProgress):
                self._shards.get(OFFSETS_TOPIC, number).run_request(ForgetTopics(topic_ids))

    # ---- To the shard ------------------------------------------------------------------------------------------------

    async def of_group(self, request: Any) -> Any:
        """The answer of the shard of `request.group_id`. Raises NotCoordinator where that is elsewhere."""
        return await self._submit(self._number(request.group_id), request)

    def commit(self, request: OffsetCommitRequest) -> Later[OffsetCommitResponse]:
        """As `of_group`; those that come in one turn of the event loop are written together, with no task for each."""
        return self._commits.commit(self._number(request.group_id), request)

    async def list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """Those of all shards that are active here."""
        groups: list[ListedGroup] = []
        is_loading = False
        for number in range(self._partition_count):
            try:
                response: ListGroupsResponse = await self._submit(number, request)
                groups += response.groups
            except CoordinatorLoadInProgress:
                is_loading = True
            except NotCoordinator:
                continue
        return ListGroupsResponse(tuple(sorted(groups, key=lambda each: each.group_id)), is_loading)

    async def describe_groups(self, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        """One for each group; those of other coordinators are refused one by one."""
        return DescribeGroupsResponse(await self._of_each(request, DescribedGroup))

    async def delete_groups(self, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        """One result for each group; those of other coordinators are refused one by one."""
        return DeleteGroupsResponse(await self._of_each(request, GroupResult))

    async def _of_each(
        self,
        request: DescribeGroupsRequest | DeleteGroupsRequest,
        refused: type[DescribedGroup | GroupResult],
    ) -> tuple[Any, ...]:
        found: dict[str, Any] = {}
        for number, group_ids in self._by_partition(request.group_ids):
            try:
                response = await self._submit(number, type(request)(group_ids))
                found |= {each.group_id: each for each in response.groups}
            except ApiError as error:
                code, message = error.code, str(error)
                found |= {each: refused(each, error_code=code, error_message=message) for each in group_ids}
        return tuple(found[each] for each in request.group_ids)

    def _by_partition(self, group_ids: Iterable[str]) -> list[tuple[int, tuple[str, ...]]]:
        parts: dict[int, list[str]] = {}
        for group_id in group_ids:
            parts.setdefault(self._number(group_id), []).append(group_id)
        return [(number, tuple(each)) for number, each in parts.items()]

    def _number(self, group_id: str) -> int:
        """The partition of a group; no shard is on -1."""
        count = self._partition_count
        return partition_of_group(group_id, count) if count else -1

    async def _submit(self, number: int, request: Any) -> Any:
        """After the commits that came before it."""
        self._commits.begin_those_of(number)
        answer = self._begin(number, request)
        return await answer if isinstance(answer, Coroutine) else answer

    def _begin(self, number: int, request: Any) -> Any:
        """Runs the request on the shard: its answer, or the coroutine that waits for that."""
        with _ToldToMembers(number):
            return _begin_on(self._shard(number), number, request)

    def _begin_commits(self, number: int, requests: tuple[OffsetCommitRequest, ...]) -> Any:
        """As `_begin`, in the epoch that the shard is active in now: a commit for another one is refused."""
        with _ToldToMembers(number):
            shard = self._shard(number)
            return _begin_on(shard, number, CommitTogether(requests, shard.active_epoch))

    def _shard(self, number: int) -> ReplicatedShard[Any, Any]:
        if number < 0:
            raise NotCoordinator(f"there is no {OFFSETS_TOPIC} yet; find_coordinator creates it")
        return self._shards.get(OFFSETS_TOPIC, number)


def _begin_on(shard: ReplicatedShard[Any, Any], number: int, request: Any) -> Any:
    pending = shard.run_request(request)
    if not pending.is_done:
        return _answer(number, shard.answer_of(pending))
    if pending.error is not None:
        raise pending.error
    return pending.response


async def _answer(number: int, answering: Coroutine[Any, Any, Any]) -> Any:
    with _ToldToMembers(number):
        return await answering


class _ToldToMembers:
    """What goes wrong in the log of a shard, as its callers understand it."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, (NotEnoughReplicas, RequestTimedOut)):
            raise CoordinatorNotAvailable(f"{OFFSETS_TOPIC}-{self._number}: {error}") from error
        if isinstance(error, (NotLeaderOrFollower, KafkaStorageError)):
            raise NotCoordinator(f"{OFFSETS_TOPIC}-{self._number}: {error}") from error
