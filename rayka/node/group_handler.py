"""Groups on a broker: which node coordinates a group, and the way to the shard here that does.

The leader of the partition of `__consumer_offsets` that a group's id hashes to is its coordinator; the topic is created
when a coordinator is asked for the first time (E1). Errors of the log under a shard become what they mean to a
member: try again, or look for the coordinator. Kafka: `KafkaApis`, `GroupCoordinatorService`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any
from uuid import UUID

from rayka.coordinator.committed_offsets import CommitTogether, ForgetTopics
from rayka.coordinator.group_shard import OFFSETS_TOPIC, partition_of_group
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
from rayka.node.hosted_shards import HostedShards
from rayka.node.metadata_follower import MetadataFollower
from rayka.node.replicated_shard import ReplicatedShard
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
from rayka.shard.runtime import STEPS_PER_TURN

# Commits of offsets that come in one turn of the event loop, written together.
#
# A batch of the log costs as much as ten of its records: groups that commit at the same time share one. Invariants:
# each caller is answered as if its commit were the only one; a commit is handled before any request to its shard that
# came after it; no request waits longer than until the loop's next turn. Kafka: `CoordinatorRuntime`, whose batches of
# writes linger for `group.coordinator.append.linger.ms`.


_METADATA_CHARS_MAX = 1 << 20  # at most 4 MB of a batch that may have 16
_Answer = Later[OffsetCommitResponse]
_Begin = Callable[[int, tuple[OffsetCommitRequest, ...]], Any]


class _Together:
    """Commits that are to be written together, and their callers. A larger one is alone."""

    def __init__(self) -> None:
        self.requests: list[OffsetCommitRequest] = []
        self.answers: list[_Answer] = []
        self._record_count = 0
        self._metadata_chars = 0

    def add(self, request: OffsetCommitRequest, metadata_chars: int) -> _Answer:
        answer: _Answer = Later()
        self.requests.append(request)
        self.answers.append(answer)
        self._record_count += len(request.partitions)
        self._metadata_chars += metadata_chars
        return answer

    def has_room(self, request: OffsetCommitRequest, metadata_chars: int) -> bool:
        is_short = self._record_count + len(request.partitions) <= STEPS_PER_TURN
        return is_short and self._metadata_chars + metadata_chars <= _METADATA_CHARS_MAX


class JoinedCommits:
    """See the module. `begin` runs commits on a shard: their answers, or a coroutine that waits for them."""

    def __init__(self, begin: _Begin) -> None:
        self._begin = begin
        self._tasks: dict[asyncio.Task[None], None] = {}  # a loop keeps no task alive by itself
        self._open: dict[int, _Together] = {}

    def __repr__(self) -> str:
        return f"<JoinedCommits open={ {number: len(each.requests) for number, each in self._open.items()} }>"

    def commit(self, number: int, request: OffsetCommitRequest) -> Later[OffsetCommitResponse]:
        """The answer of the shard, once it is committed. Ends in what `begin` raises, and in what refuses this commit
        alone.
        """
        together, metadata_chars = self._open.get(number), _metadata_chars(request)
        if together is not None and not together.has_room(request, metadata_chars):
            self.begin_those_of(number)
            together = None
        if together is None:
            if not self._open:
                asyncio.get_running_loop().call_soon(self._begin_all)
            together = self._open[number] = _Together()
        return together.add(request, metadata_chars)

    def begin_those_of(self, number: int) -> None:
        """The shard of this partition has handled all commits that came before, when this returns."""
        together = self._open.pop(number, None)
        if together is not None:
            self._begin_these(number, together)

    def _begin_all(self) -> None:
        for number in list(self._open):
            self.begin_those_of(number)

    def _begin_these(self, number: int, together: _Together) -> None:
        try:
            answering = self._begin(number, tuple(together.requests))
        except Exception as error:  # also one that no code expected: the callers' requests fail with it
            _refuse(together.answers, error)
            return
        if not isinstance(answering, Coroutine):
            _tell(together.answers, answering)
            return
        task = asyncio.get_running_loop().create_task(_answer_of_joined_commits(answering, together.answers))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)


async def _answer_of_joined_commits(answering: Coroutine[Any, Any, Any], answers: Sequence[_Answer]) -> None:
    try:
        found = await answering
    except asyncio.CancelledError:  # the process ends: no caller gets an answer
        for answer in answers:
            answer.cancel()
        raise
    except Exception as error:
        _refuse(answers, error)
        return
    _tell(answers, found)


def _tell(answers: Sequence[_Answer], found: Sequence[OffsetCommitResponse | ApiError]) -> None:
    for answer, outcome in zip(answers, found, strict=True):
        answer.end(outcome)


def _refuse(answers: Sequence[_Answer], error: Exception) -> None:
    for answer in answers:
        answer.end(error)


def _metadata_chars(request: OffsetCommitRequest) -> int:
    return sum([len(each.metadata) for each in request.partitions])


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
