"""How a client finds, calls and looks again for the coordinator of a group; in virtual time (E1, G18)."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

import pytest

from rayka.client.cluster_nodes import ClusterNodes
from rayka.client.coordinator_calls import CoordinatorCalls
from rayka.config.client_config import ConsumerConfig
from rayka.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    IllegalGeneration,
    InvalidGroupId,
    NetworkException,
    RequestTimedOut,
    UnavailableError,
    error_for,
)
from rayka.ids import NO_EPOCH, TopicPartition
from rayka.protocol.groups import (
    CommittedOffset,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupCoordinator,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from rayka.protocol.membership import MetadataBroker, MetadataRequest, MetadataResponse
from rayka.sim.loop import VirtualLoop
from tests.testing.virtual import VirtualCluster, virtual_cluster

A, B, CONTROLLER = 1, 2, 3001
TIMEOUT_MS = 10_000
FETCH = OffsetFetchRequest("g")
COMMIT = OffsetCommitRequest("g", (CommittedOffset("orders", 0, 7),))
JOIN = JoinGroupRequest("g", 45_000, 300_000, "m", "consumer", ())


class Brokers:
    """The network: two brokers, of which one coordinates all groups, and a controller that knows none."""

    def __init__(self) -> None:
        self.coordinator = GroupCoordinator("g", A)
        self.silent: list[int] = []
        self.problems: list[ErrorCode] = []  # of the next answers of coordinators
        self.asked: list[int] = []  # for the group, in order
        self.looked: list[int] = []  # for its coordinator
        self.epochs: list[int] = []  # that commits were meant for

    async def node_ids(self) -> Sequence[int]:
        return [CONTROLLER, A, B]

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if isinstance(request, MetadataRequest):
            brokers = (MetadataBroker(A, "here", False, ()), MetadataBroker(B, "here", False, ()))
            return MetadataResponse("id", CONTROLLER, brokers, (), 7)
        is_look = isinstance(request, FindCoordinatorRequest)
        (self.looked if is_look else self.asked).append(node_id)
        if isinstance(request, OffsetCommitRequest):
            self.epochs.append(request.coordinator_epoch)
        if node_id in self.silent:
            await asyncio.sleep(timeout_ms / 1000)
            raise RequestTimedOut(f"broker-{node_id} did not answer within {timeout_ms} ms")
        if is_look:
            return FindCoordinatorResponse((self.coordinator,))
        if self.problems:
            raise error_for(self.problems.pop(0), "as the test says")
        return OffsetFetchResponse(())


def play(brokers: Brokers, scene: Callable[[CoordinatorCalls], Coroutine[Any, Any, Any]]) -> int:
    """How long it takes, in milliseconds."""
    loop = VirtualLoop()

    async def main() -> None:
        await scene(CoordinatorCalls(ClusterNodes(brokers, "scripted", ConsumerConfig(), Random(1))))

    began_s = loop.time()
    try:
        loop.run_until_complete(main())
        return round((loop.time() - began_s) * 1000)
    finally:
        loop.cancel_all()


def test_a_coordinator_is_looked_for_once_and_remembered() -> None:  # E1
    brokers = Brokers()

    async def scene(calls: CoordinatorCalls) -> None:
        await asyncio.gather(*(calls.call("g", FETCH, TIMEOUT_MS) for _ in range(3)))
        await calls.call("g", FETCH, TIMEOUT_MS)

    play(brokers, scene)
    assert (brokers.looked, brokers.asked) == ([A], [A] * 4)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION],
)
def test_after_such_an_error_it_is_looked_for_again(code: ErrorCode) -> None:  # G18
    brokers = Brokers()
    brokers.problems = [code]
    assert play(brokers, lambda calls: calls.call("g", FETCH, TIMEOUT_MS)) >= 80  # it paused
    assert (len(brokers.looked), brokers.asked) == (2, [A, A])


def test_one_that_loads_is_asked_again() -> None:  # E1
    brokers = Brokers()
    brokers.problems = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3
    assert play(brokers, lambda calls: calls.call("g", FETCH, TIMEOUT_MS)) >= 500  # 100 + 200 + 400, jittered
    assert (brokers.looked, brokers.asked) == ([A], [A] * 4)


def test_what_no_retry_mends_is_raised_at_once() -> None:
    brokers = Brokers()
    brokers.problems = [ErrorCode.ILLEGAL_GENERATION]
    with pytest.raises(IllegalGeneration):
        play(brokers, lambda calls: calls.call("g", FETCH, TIMEOUT_MS))
    assert brokers.asked == [A]


def test_a_group_id_that_brokers_refuse_is_raised_at_once() -> None:
    brokers = Brokers()
    brokers.coordinator = GroupCoordinator(
        "g", error_code=ErrorCode.INVALID_GROUP_ID, error_message="too long"
    )
    with pytest.raises(InvalidGroupId, match="group 'g': too long"):
        play(brokers, lambda calls: calls.call("g", FETCH, TIMEOUT_MS))


def test_at_the_deadline_the_last_error_is_raised() -> None:
    brokers = Brokers()
    brokers.problems = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 1_000
    with pytest.raises(CoordinatorLoadInProgress):
        play(brokers, lambda calls: calls.call("g", FETCH, TIMEOUT_MS))


def test_without_a_coordinator_until_the_deadline_the_error_says_why() -> None:
    brokers = Brokers()
    why = "__consumer_offsets-3 has no leader"
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    brokers.coordinator = GroupCoordinator("g", error_code=error, error_message=why)
    with pytest.raises(CoordinatorNotAvailable, match=f"group 'g': {why}"):
        play(brokers, lambda calls: calls.call("g", FETCH, TIMEOUT_MS))


def test_where_no_node_answers_the_cluster_is_unavailable() -> None:
    brokers = Brokers()
    brokers.problems = [ErrorCode.NETWORK_EXCEPTION] * 1_000
    with pytest.raises(UnavailableError, match="the coordinator of group 'g' did not answer"):
        play(brokers, lambda calls: calls.call("g", FETCH, TIMEOUT_MS))


@pytest.mark.parametrize("may_park", [False, True])
def test_a_silent_coordinator_is_given_up_when_another_one_is_named(may_park: bool) -> None:  # G18
    brokers = Brokers()

    async def scene(calls: CoordinatorCalls) -> None:
        await calls.call("g", FETCH, TIMEOUT_MS)
        brokers.silent = [A]
        call = asyncio.ensure_future(calls.call("g", JOIN if may_park else FETCH, 300_000, may_park=may_park))
        await asyncio.sleep(3)
        assert not call.done()
        brokers.coordinator = GroupCoordinator("g", B)
        began_s = asyncio.get_running_loop().time()
        await call
        assert asyncio.get_running_loop().time() - began_s < 1.5

    play(brokers, scene)
    assert brokers.asked[-1] == B


def test_a_call_that_parks_may_take_as_long_as_it_likes_and_is_looked_at_once_a_second() -> None:  # E4
    brokers = Brokers()
    brokers.silent = [A]
    brokers.coordinator = GroupCoordinator("g", A)

    async def scene(calls: CoordinatorCalls) -> None:
        call = asyncio.ensure_future(calls.call("g", JOIN, 300_000, may_park=True))
        await asyncio.sleep(100)
        assert not call.done()
        brokers.silent = []

    play(brokers, scene)
    assert brokers.asked == [A]
    assert 80 <= len(brokers.looked) <= 110


def test_each_attempt_of_a_commit_names_the_epoch_of_its_coordinator() -> None:  # E10
    brokers = Brokers()
    brokers.coordinator = GroupCoordinator("g", A, leader_epoch=4)
    brokers.problems = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]

    async def scene(calls: CoordinatorCalls) -> None:
        await calls.call("g", COMMIT, TIMEOUT_MS)
        brokers.coordinator = GroupCoordinator("g", A, leader_epoch=6)
        brokers.problems = [ErrorCode.NOT_COORDINATOR]
        await calls.call("g", COMMIT, TIMEOUT_MS)
        answer = calls.begin("g", COMMIT, TIMEOUT_MS, lambda outcome: None)
        assert answer is not None
        await answer

    play(brokers, scene)
    assert brokers.epochs == [4, 4, 4, 6, 6]


def test_a_coordinator_whose_epoch_was_not_told_gets_commits_that_name_none() -> None:  # E10
    brokers = Brokers()
    play(brokers, lambda calls: calls.call("g", COMMIT, TIMEOUT_MS))
    assert brokers.epochs == [NO_EPOCH]


def test_an_error_within_a_response_is_mended_like_that_of_a_call() -> None:
    brokers = Brokers()
    problems = [NetworkException("within")]

    def check(response: OffsetFetchResponse) -> None:
        if problems:
            raise problems.pop()

    play(brokers, lambda calls: calls.call("g", FETCH, TIMEOUT_MS, check=check))
    assert len(brokers.asked) == 2


def test_a_coordinator_that_dies_is_replaced_within_the_call() -> None:  # E1
    with virtual_cluster(default_replication_factor=3, offsets_topic_num_partitions=1) as cluster:
        calls = CoordinatorCalls(ClusterNodes(cluster.network(), "virtual", ConsumerConfig(), Random(1)))
        cluster.run(calls.call("g", COMMIT, TIMEOUT_MS))
        cluster.silence(_coordinator(cluster))
        fetch = OffsetFetchRequest("g", (TopicPartition("orders", 0),))
        (found,) = cluster.run(calls.call("g", fetch, 60_000)).partitions
        assert found.offset == 7


def _coordinator(cluster: VirtualCluster) -> int:
    request = FindCoordinatorRequest(("g",))
    (found,) = cluster.run(cluster.network().call(1, request, TIMEOUT_MS)).coordinators
    return int(found.node_id)
