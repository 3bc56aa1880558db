"""Groups on a broker: which node coordinates a group, and the way to the group's shard on this node.

The leader of the partition of `__consumer_offsets` that a group's id hashes to is the coordinator; the topic is created
when a coordinator is asked for the first time (E1). Errors of the log under a shard become errors that a member
understands: try again, or look for the coordinator.

Every request is awaited, but commits of offsets. Commits that come in one turn of the event loop are written together,
because a batch of the log costs as much as ten of its records, and none of them has a task of its own. Invariants: each
caller is answered as if its commit were the only one; a commit is handled before any later request to its shard; no
commit waits longer than until the loop's next turn.

Kafka: `KafkaApis`, `GroupCoordinatorService`; for commits `CoordinatorRuntime`, whose batches of writes linger for
`group.coordinator.append.linger.ms`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
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

_METADATA_TIMEOUT_MS = 5_000
# At most 4 MB of a batch that may have 16.
_METADATA_CHARS_MAX = 1 << 20
_Answer = Later[OffsetCommitResponse]
_Begin = Callable[[int, tuple[OffsetCommitRequest, ...]], Any]


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

    @property
    def _partition_count(self) -> int:
        """The number of partitions of the topic; 0 while there is none."""
        topic = self._follower.image.topics.get(OFFSETS_TOPIC)
        return len(topic.partitions) if topic is not None else 0

    # ---- Coordinators ------------------------------------------------------------------------------------------------

    async def find(self, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        """Answers with the coordinator of each group. Raises CoordinatorNotAvailable when the topic cannot be
        created.
        """
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

    # ---- Deleted topics ----------------------------------------------------------------------------------------

    def forget_topics(self, topic_ids: Mapping[str, UUID]) -> None:
        """Lets the shards that are active here forget the offsets of deleted topics (E17). Shards elsewhere keep the
        topic's id with each offset, so a consumer of a new topic of that name ignores them.
        """
        for number in range(self._partition_count if topic_ids else 0):
            with suppress(NotCoordinator, CoordinatorLoadInProgress):
                self._shards.get(OFFSETS_TOPIC, number).run_request(ForgetTopics(topic_ids))

    # ---- Requests to the shard ---------------------------------------------------------------------------------------

    async def of_group(self, request: Any) -> Any:
        """Answers a request about one group, `request.group_id`. Raises NotCoordinator if its shard is elsewhere."""
        return await self._submit(self._number(request.group_id), request)

    def commit(self, request: OffsetCommitRequest) -> Later[OffsetCommitResponse]:
        """Answers a commit, beside the other commits of this turn of the event loop. Raises as `of_group`."""
        return self._commits.commit(self._number(request.group_id), request)

    async def list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """Lists the groups of all shards that are active here."""
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
        """Describes each group; groups of other coordinators are refused one by one."""
        return DescribeGroupsResponse(await self._of_each(request, DescribedGroup))

    async def delete_groups(self, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        """Deletes each group; groups of other coordinators are refused one by one."""
        return DeleteGroupsResponse(await self._of_each(request, GroupResult))

    async def _of_each(
        self,
        request: DescribeGroupsRequest | DeleteGroupsRequest,
        refused: type[DescribedGroup | GroupResult],
    ) -> tuple[Any, ...]:
        found: dict[str, Any] = {}
        parts: dict[int, list[str]] = {}
        for group_id in request.group_ids:
            parts.setdefault(self._number(group_id), []).append(group_id)
        for number, of_partition in parts.items():
            group_ids = tuple(of_partition)
            try:
                response = await self._submit(number, type(request)(group_ids))
                found |= {each.group_id: each for each in response.groups}
            except ApiError as error:
                code, message = error.code, str(error)
                found |= {each: refused(each, error_code=code, error_message=message) for each in group_ids}
        return tuple(found[each] for each in request.group_ids)

    def _number(self, group_id: str) -> int:
        """The partition of a group; -1, where no shard is, while there is no topic."""
        count = self._partition_count
        return partition_of_group(group_id, count) if count else -1

    async def _submit(self, number: int, request: Any) -> Any:
        """Runs the request on the shard, after the commits that came before it."""
        self._commits.begin_those_of(number)
        with _AsMembersSeeIt(number):
            return await self._shard(number).submit(request)

    def _begin_commits(self, number: int, requests: tuple[OffsetCommitRequest, ...]) -> Any:
        """Runs commits on the shard: returns their answers, or the coroutine that waits for them. They count only in
        the epoch in which the shard is active now.
        """
        with _AsMembersSeeIt(number):
            shard = self._shard(number)
            pending = shard.run_request(CommitTogether(requests, shard.active_epoch))
            if not pending.is_done:
                return self._answer_of_commits(number, shard.answer_of(pending))
            if pending.error is not None:
                raise pending.error
            return pending.response

    async def _answer_of_commits(self, number: int, answering: Coroutine[Any, Any, Any]) -> Any:
        with _AsMembersSeeIt(number):
            return await answering

    def _shard(self, number: int) -> ReplicatedShard[Any, Any]:
        if number < 0:
            raise NotCoordinator(f"there is no {OFFSETS_TOPIC} yet; find_coordinator creates it")
        return self._shards.get(OFFSETS_TOPIC, number)


class _AsMembersSeeIt:
    """Turns errors of the log under a shard into errors that members of a group understand."""

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


# ---- Commits ---------------------------------------------------------------------------------------------------------


class _Together:
    """Commits that are written together, and their callers. A commit beyond the bounds is alone."""

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
    """Collects commits by partition until the end of the turn. `begin` runs them on the shard and returns their
    answers, or a coroutine that waits for the answers.
    """

    def __init__(self, begin: _Begin) -> None:
        self._begin = begin
        # A loop keeps no task alive by itself.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._open: dict[int, _Together] = {}

    def commit(self, number: int, request: OffsetCommitRequest) -> Later[OffsetCommitResponse]:
        """Answers once the commit is replicated. Ends in the error that `begin` raises, or that refuses this commit
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
        """Hands the collected commits of this partition to its shard; they are handled when this returns."""
        together = self._open.pop(number, None)
        if together is not None:
            self._begin_these(number, together)

    def _begin_all(self) -> None:
        for number in list(self._open):
            self.begin_those_of(number)

    def _begin_these(self, number: int, together: _Together) -> None:
        try:
            answering = self._begin(number, tuple(together.requests))
        # Also an error that no code expected: the callers' requests fail with it.
        except Exception as error:
            for answer in together.answers:
                answer.end(error)
            return
        if isinstance(answering, Coroutine):
            task = asyncio.get_running_loop().create_task(self._answer(answering, together.answers))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)
        else:
            self._tell(together.answers, answering)

    async def _answer(self, answering: Coroutine[Any, Any, Any], answers: Sequence[_Answer]) -> None:
        try:
            self._tell(answers, await answering)
        # The process ends: no caller gets an answer.
        except asyncio.CancelledError:
            for answer in answers:
                answer.cancel()
            raise
        except Exception as error:
            for answer in answers:
                answer.end(error)

    def _tell(self, answers: Sequence[_Answer], outcomes: Sequence[OffsetCommitResponse | ApiError]) -> None:
        for answer, outcome in zip(answers, outcomes, strict=True):
            answer.end(outcome)


def _metadata_chars(request: OffsetCommitRequest) -> int:
    return sum([len(each.metadata) for each in request.partitions])
