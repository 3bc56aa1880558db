"""In which order and in how many requests one consumer's commits are sent; in virtual time (E10)."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any
from uuid import UUID

import pytest

from rayka.client.consumer.group_membership import GroupMetadata
from rayka.client.consumer.offset_commits import GroupOffsets, OffsetAndMetadata
from rayka.client.coordinator_calls import CoordinatorCalls
from rayka.client.metadata import ClusterMetadata
from rayka.config.client_config import ConsumerConfig
from rayka.errors import ErrorCode, IllegalGeneration, OffsetMetadataTooLarge, UnavailableError, error_for
from rayka.ids import TopicPartition
from rayka.protocol.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupCoordinator,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from rayka.protocol.later import Later
from rayka.protocol.membership import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from rayka.protocol.topics import PartitionResult
from rayka.sim.loop import VirtualLoop

BROKER, PARTITIONS, TIMEOUT_MS = 1, 1_000, 10_000


def at(partition: int) -> TopicPartition:
    return TopicPartition("orders", partition)


class Coordinator:
    """The network: one broker, which takes a tenth of a second for each commit."""

    def __init__(self) -> None:
        self.commits: list[OffsetCommitRequest] = []
        self.problems: list[ErrorCode] = []  # of the next commits
        self.too_large: list[int] = []  # partitions
        self.topic_id = UUID(int=1)

    async def node_ids(self) -> Sequence[int]:
        return [BROKER]

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if isinstance(request, MetadataRequest):
            partitions = tuple(
                MetadataPartition(each, BROKER, 1, (BROKER,), (BROKER,)) for each in range(PARTITIONS)
            )
            topics = (MetadataTopic("orders", self.topic_id, partitions),) if request.topics else ()
            return MetadataResponse("id", BROKER, (MetadataBroker(BROKER, "here", False, ()),), topics, 7)
        if isinstance(request, FindCoordinatorRequest):
            return FindCoordinatorResponse((GroupCoordinator("g", BROKER),))
        self.commits.append(request)
        await asyncio.sleep(0.1)
        if self.problems:
            raise error_for(self.problems.pop(0), "as the test says")
        return OffsetCommitResponse(tuple(self._result(each.partition) for each in request.partitions))

    def _result(self, partition: int) -> PartitionResult:
        is_refused = partition in self.too_large
        return PartitionResult(
            "orders", partition, ErrorCode.OFFSET_METADATA_TOO_LARGE if is_refused else ErrorCode.NONE
        )

    def offsets(self) -> list[list[int]]:
        return [[each.offset for each in request.partitions] for request in self.commits]


def play(coordinator: Coordinator, scene: Callable[[GroupOffsets], Coroutine[Any, Any, Any]]) -> None:
    loop = VirtualLoop()

    async def main() -> None:
        metadata = ClusterMetadata(coordinator, "scripted", ConsumerConfig(), Random(1))
        coordinators = CoordinatorCalls(metadata.nodes)
        await scene(GroupOffsets(coordinators, metadata, "g", TIMEOUT_MS, lambda topic: True))

    try:
        loop.run_until_complete(main())
    finally:
        loop.cancel_all()


def commit(
    offsets: GroupOffsets, partition: int, offset: int, generation_id: int = -1
) -> "asyncio.Task[None]":
    group = GroupMetadata("g", generation_id, "" if generation_id < 0 else "m")
    return asyncio.ensure_future(offsets.commit({at(partition): OffsetAndMetadata(offset)}, group))


def test_a_commit_of_a_thousand_partitions_is_one_request() -> None:  # E10
    coordinator = Coordinator()
    play(
        coordinator,
        lambda each: each.commit(
            {at(n): OffsetAndMetadata(n) for n in range(PARTITIONS)}, GroupMetadata("g")
        ),
    )
    assert coordinator.offsets() == [list(range(PARTITIONS))]


def test_commits_that_wait_for_one_become_one_with_the_newest_offsets() -> None:
    coordinator = Coordinator()

    async def scene(offsets: GroupOffsets) -> None:
        first = commit(offsets, 0, 1)
        await asyncio.sleep(0.05)
        await asyncio.gather(
            first, *(commit(offsets, 0, each) for each in range(2, 100)), commit(offsets, 1, 7)
        )

    play(coordinator, scene)
    assert coordinator.offsets() == [[1], [99, 7]]


def test_a_commit_that_is_retried_holds_up_the_ones_behind_it() -> None:
    coordinator = Coordinator()
    coordinator.problems = [ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_COORDINATOR]

    async def scene(offsets: GroupOffsets) -> None:
        first = commit(offsets, 0, 1)
        await asyncio.sleep(0.05)
        await asyncio.gather(first, commit(offsets, 0, 2))

    play(coordinator, scene)
    assert coordinator.offsets() == [[1], [1], [1], [2]]


def test_a_commit_is_made_as_the_member_that_asked_for_it() -> None:
    coordinator = Coordinator()
    coordinator.problems = [ErrorCode.NETWORK_EXCEPTION, ErrorCode.ILLEGAL_GENERATION]

    async def scene(offsets: GroupOffsets) -> None:
        first = commit(offsets, 0, 1, generation_id=1)
        await asyncio.sleep(0.05)
        second = commit(offsets, 0, 2, generation_id=1)
        third = commit(offsets, 1, 3, generation_id=2)
        with pytest.raises(IllegalGeneration):
            await first
        await asyncio.gather(second, third)

    play(coordinator, scene)
    assert [each.generation_id for each in coordinator.commits] == [1, 1, 1, 2]


def test_each_caller_is_told_of_its_own_partitions() -> None:
    coordinator = Coordinator()
    coordinator.too_large = [1]

    async def scene(offsets: GroupOffsets) -> None:
        first = commit(offsets, 0, 1)
        await asyncio.sleep(0.05)
        others = [commit(offsets, 0, 2), commit(offsets, 1, 3)]
        told = await asyncio.gather(first, *others, return_exceptions=True)
        assert [type(each) for each in told] == [type(None), type(None), OffsetMetadataTooLarge]

    play(coordinator, scene)


def test_what_was_read_of_a_topic_is_not_committed_of_its_successor() -> None:  # E17
    """Not when the commit waits, nor when it is repeated: of the new topic these records were never read."""
    coordinator = Coordinator()

    async def scene(offsets: GroupOffsets) -> None:
        await commit(offsets, 0, 1)
        coordinator.problems = [ErrorCode.NOT_COORDINATOR]
        repeated = commit(offsets, 0, 2)
        await asyncio.sleep(0.05)
        waiting = commit(offsets, 0, 3)
        await asyncio.sleep(0)
        coordinator.topic_id = UUID(int=2)
        await offsets._metadata.refresh(("orders",))
        await asyncio.gather(repeated, waiting)
        await commit(offsets, 0, 1)

    play(coordinator, scene)
    ids = [(each.partitions[0].offset, each.partitions[0].topic_id.int) for each in coordinator.commits]
    assert ids == [(1, 1), (2, 1), (2, 1), (3, 1), (1, 2)]


def test_a_commit_ends_with_its_time() -> None:
    coordinator = Coordinator()
    coordinator.problems = [ErrorCode.NETWORK_EXCEPTION] * 1_000

    async def scene(offsets: GroupOffsets) -> None:
        began_s = asyncio.get_running_loop().time()
        first = commit(offsets, 0, 1)
        await asyncio.sleep(0.05)
        second = commit(offsets, 0, 2)
        told = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(each) for each in told] == [UnavailableError, UnavailableError]
        assert asyncio.get_running_loop().time() - began_s <= TIMEOUT_MS / 1000 + 1

    play(coordinator, scene)


def test_what_ends_is_told_to_all_that_wait() -> None:
    coordinator = Coordinator()

    async def scene(offsets: GroupOffsets) -> None:
        first = commit(offsets, 0, 1)
        await asyncio.sleep(0.05)
        second = commit(offsets, 0, 2)
        await asyncio.sleep(0)
        await asyncio.gather(*offsets.abandon(), return_exceptions=True)
        told = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(each) for each in told] == [asyncio.CancelledError] * 2

    play(coordinator, scene)


def test_what_is_asked_for_after_the_end_is_given_up_at_once_and_never_sent() -> None:
    coordinator = Coordinator()

    async def scene(offsets: GroupOffsets) -> None:
        assert offsets.abandon() == []
        late = offsets.begin({at(0): OffsetAndMetadata(1)}, GroupMetadata("g"))
        assert late.cancelled()
        await asyncio.sleep(1)

    play(coordinator, scene)
    assert coordinator.commits == []


class DirectCoordinator(Coordinator):
    """Answers commits as a direct lane does: what the call gives ends in the step that brings the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Later[OffsetCommitResponse]] = []

    def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if not isinstance(request, OffsetCommitRequest):
            return super().call(node_id, request, timeout_ms)
        self.commits.append(request)
        self.answers.append(Later())
        return self.answers[-1]

    def answer(self) -> None:
        results = tuple(self._result(each.partition) for each in self.commits[-1].partitions)
        self.answers[-1].end(OffsetCommitResponse(results))


async def begin_known(offsets: GroupOffsets, coordinator: DirectCoordinator) -> "asyncio.Task[None]":
    """A first commit has found the coordinator and the topic; the second one is under way."""
    first = commit(offsets, 0, 1)
    await asyncio.sleep(1)
    coordinator.answer()
    await first
    return commit(offsets, 0, 2)


def test_where_coordinator_and_partitions_are_known_a_commit_is_sent_at_once_and_needs_no_task() -> None:
    coordinator = DirectCoordinator()

    async def scene(offsets: GroupOffsets) -> None:
        await begin_known(offsets, coordinator)
        await asyncio.sleep(0)
        coordinator.answer()
        await offsets.settle()
        before = asyncio.all_tasks()
        third = offsets.begin({at(0): OffsetAndMetadata(3)}, GroupMetadata("g"))
        fourth = offsets.begin({at(0): OffsetAndMetadata(4)}, GroupMetadata("g"))
        assert coordinator.offsets() == [[1], [2], [3]]
        coordinator.answer()
        assert coordinator.offsets() == [[1], [2], [3], [4]]
        coordinator.answer()
        assert asyncio.all_tasks() == before
        assert (await third, await fourth) == ({}, {})

    play(coordinator, scene)


def test_a_commit_whose_coordinator_says_nothing_is_told_of_after_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    coordinator = DirectCoordinator()

    async def scene(offsets: GroupOffsets) -> None:
        second = await begin_known(offsets, coordinator)
        await asyncio.sleep(2.9)
        assert not caplog.records
        await asyncio.sleep(3)
        assert "the coordinator of group 'g'" in caplog.text
        coordinator.answer()
        await second

    play(coordinator, scene)


def test_what_is_under_way_at_once_is_given_up_with_the_rest() -> None:
    coordinator = DirectCoordinator()

    async def scene(offsets: GroupOffsets) -> None:
        second = await begin_known(offsets, coordinator)
        await asyncio.sleep(0)
        third = commit(offsets, 0, 3)
        await asyncio.sleep(0)
        assert offsets.abandon() == []
        assert coordinator.answers[-1].cancelled()
        told = await asyncio.gather(second, third, return_exceptions=True)
        assert [type(each) for each in told] == [asyncio.CancelledError] * 2
        await offsets.settle()

    play(coordinator, scene)
    assert coordinator.offsets() == [[1], [2]]
