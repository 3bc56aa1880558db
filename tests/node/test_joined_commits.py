"""Commits that come in one turn of a coordinator's loop: one request to the shard, an answer for each."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from rayka.errors import IllegalGeneration, NotCoordinator
from rayka.node.group_handler import JoinedCommits
from rayka.protocol.groups import (
    CommittedOffset,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
)
from rayka.protocol.topics import PartitionResult
from tests.node.group_callers import Caller
from tests.testing.virtual import VirtualCluster


class Shards:
    """Takes what is begun; answers it when the test says so."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, list[str]]] = []
        self.answers: list[asyncio.Future[Any]] = []
        self.refusal: Exception | None = None

    def begin(self, number: int, requests: tuple[OffsetCommitRequest, ...]) -> Any:
        if self.refusal is not None:
            raise self.refusal
        self.begun.append((number, [each.group_id for each in requests]))
        self.answers.append(asyncio.get_running_loop().create_future())
        return _awaited(self.answers[-1])


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def commit(group_id: str, *, partitions: int = 1, metadata: str = "") -> OffsetCommitRequest:
    offsets = (CommittedOffset("t", number, 1, metadata=metadata) for number in range(partitions))
    return OffsetCommitRequest(group_id, tuple(offsets))


def response(name: str) -> OffsetCommitResponse:
    return OffsetCommitResponse((PartitionResult(name, 0),))


def test_commits_of_one_turn_are_begun_together_and_answered_each() -> None:
    async def scenario() -> None:
        shards = Shards()
        commits = JoinedCommits(shards.begin)
        asked = [
            asyncio.ensure_future(commits.commit(number, commit(group_id)))
            for number, group_id in ((0, "a"), (1, "b"), (0, "c"))
        ]
        await asyncio.sleep(0.01)
        assert shards.begun == [(0, ["a", "c"]), (1, ["b"])]
        late = asyncio.ensure_future(commits.commit(0, commit("d")))
        await asyncio.sleep(0.01)
        assert shards.begun[2:] == [(0, ["d"])]
        asked[0].cancel()  # a caller that gives up takes no answer from the others
        shards.answers[0].set_result((response("a"), IllegalGeneration("c")))
        shards.answers[1].set_result((response("b"),))
        shards.answers[2].set_exception(NotCoordinator("gone"))
        with pytest.raises(IllegalGeneration):
            await asked[2]
        assert await asked[1] == response("b")
        with pytest.raises(NotCoordinator, match="gone"):
            await late

    asyncio.run(scenario())


def test_what_comes_behind_a_commit_is_handled_behind_it() -> None:
    async def scenario() -> None:
        shards = Shards()
        commits = JoinedCommits(shards.begin)
        waiting = commits.commit(0, commit("a"))
        commits.begin_those_of(1)
        assert shards.begun == []
        commits.begin_those_of(0)
        assert shards.begun == [(0, ["a"])]
        shards.answers[0].set_result((response("a"),))
        assert await waiting == response("a")
        assert len(shards.begun) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "larger",
    [commit("b", partitions=249), commit("b", metadata="x" * (1 << 20))],
    ids=["records", "metadata"],
)
def test_no_more_are_written_together_than_one_turn_replays_and_one_batch_takes(
    larger: OffsetCommitRequest,
) -> None:
    async def scenario() -> None:
        shards = Shards()
        commits = JoinedCommits(shards.begin)
        for each in (commit("a", metadata="y"), commit("a"), larger, commit("c", metadata="z")):
            asyncio.ensure_future(commits.commit(0, each))  # noqa: RUF006
        await asyncio.sleep(0.01)
        (_, first), (_, second), *rest = shards.begun
        assert (first, second[0]) == (["a", "a"], "b")
        assert [names for _, names in rest] in ([], [["c"]])
        for answer in shards.answers:
            answer.set_exception(NotCoordinator("the end"))
        await asyncio.sleep(0.01)

    asyncio.run(scenario())


@pytest.mark.parametrize("refusal", [NotCoordinator("elsewhere"), RuntimeError("a bug")])
def test_what_cannot_be_begun_is_told_to_all(refusal: Exception) -> None:
    async def scenario() -> None:
        shards = Shards()
        shards.refusal = refusal
        commits = JoinedCommits(shards.begin)
        asked = [commits.commit(0, commit("a")), commits.commit(0, commit("b"))]
        assert await asyncio.gather(*asked, return_exceptions=True) == [refusal, refusal]

    asyncio.run(scenario())


def test_many_groups_commit_at_once_and_each_finds_its_offset() -> None:  # E10
    cluster = VirtualCluster(default_replication_factor=3, offsets_topic_num_partitions=1)
    callers = [Caller(cluster) for _ in range(20)]

    async def scenario() -> list[int]:
        node_id = await callers[0].coordinator("g")
        await callers[0].ask(commit("g"))

        async def one(place: int) -> int:
            offsets = (CommittedOffset("t", 0, place),)
            await callers[place].to(node_id, OffsetCommitRequest(f"g{place}", offsets))
            found = await callers[place].to(node_id, OffsetFetchRequest(f"g{place}"))
            return int(found.partitions[0].offset)

        return await asyncio.gather(*(one(place) for place in range(20)))

    try:
        assert cluster.run(scenario()) == list(range(20))
    finally:
        cluster.sim.close()
