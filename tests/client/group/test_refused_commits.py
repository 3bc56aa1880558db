"""Commits of a member whose group goes on without it, on the real nodes in this process (E10).

A rival that speaks the protocol joins the group just before the commit reaches its coordinator: later, heartbeats would
have told the member.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

import rayka.testing
from rayka import TopicPartition
from rayka.client import io_thread
from rayka.errors import ApiError, ErrorCode, FencedInstanceId, IllegalGeneration, RaykaError
from rayka.ports import Network
from rayka.protocol.groups import (
    GroupProtocol,
    GroupState,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberAssignment,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from rayka.testing import InProcessCluster
from tests.client.group.consumer_support import QUICK, Told, new_topic, poll_until
from tests.testing.waiting import WAIT_S, wait_until

TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(config=QUICK) as running:
        yield running


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    return new_topic(cluster)


class Interposed:
    """The cluster to one consumer. `before_commit` is awaited before a commit leaves; `joins` have been sent, and
    commits were `refused` with these errors.
    """

    def __init__(self, cluster: InProcessCluster) -> None:
        self.name = cluster.name
        self.before_commit: Callable[[], Awaitable[object]] | None = None
        self.joins = 0
        self.refused: list[ErrorCode] = []
        self._network = cluster.network()
        self.node_ids = self._network.node_ids

    def network(self, transport: str = "auto") -> "Interposed":
        return self

    def call(self, node_id: int, request: Any, timeout_ms: int) -> Awaitable[Any]:
        self.joins += isinstance(request, JoinGroupRequest)
        if isinstance(request, OffsetCommitRequest):
            return self._commit(node_id, request, timeout_ms)
        return self._network.call(node_id, request, timeout_ms)

    async def _commit(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if self.before_commit is not None:
            await self.before_commit()
        try:
            return await self._network.call(node_id, request, timeout_ms)
        except ApiError as error:
            self.refused.append(error.code)
            raise


async def join(
    network: Network, group_id: str, member_id: str = "", instance_id: str = ""
) -> JoinGroupResponse:
    """Joins by the protocol; a second time where the coordinator gives an id first."""
    protocols = (GroupProtocol("range", b""),)
    request = JoinGroupRequest(
        group_id, TIMEOUT_MS, TIMEOUT_MS, member_id, "consumer", protocols, instance_id
    )
    response = await network.call(1, request, TIMEOUT_MS)
    if response.generation_id < 0:
        return await join(network, group_id, response.member_id, instance_id)
    return response


async def sync(network: Network, group_id: str, joined: JoinGroupResponse) -> None:
    """As the leader, which gives nothing to itself, nor to the others."""
    assignments = tuple(MemberAssignment(each.member_id, b"") for each in joined.members)
    request = SyncGroupRequest(group_id, joined.generation_id, joined.member_id, assignments)
    await network.call(1, request, TIMEOUT_MS)


@pytest.mark.parametrize(("instance_id", "error"), [("", IllegalGeneration), ("one", FencedInstanceId)])
def test_a_commit_is_refused_when_another_process_has_taken_the_members_place(
    cluster: InProcessCluster, topic: str, instance_id: str, error: type[RaykaError]
) -> None:  # E7 E10
    interposed, tp = Interposed(cluster), TopicPartition(topic, 0)
    options = {"group_instance_id": instance_id or None, "partition_assignment_strategy": "range"}
    made = Told(interposed, topic, topic=topic, enable_auto_commit=False, **options)  # type: ignore[arg-type]
    poll_until(lambda: len(made.owned) == 4, made)
    made.consumer.commit({tp: 1})
    member_id = "" if instance_id else made.consumer.group_metadata().member_id
    interposed.before_commit = partial(join, cluster.network(), topic, member_id, instance_id)
    with pytest.raises(error):
        made.consumer.commit({tp: 2})
    found = made.consumer.committed([tp])[tp]
    assert found is not None
    assert found.offset == 1
    made.consumer.close()


def test_a_commit_waits_while_the_group_waits_for_its_assignments(
    cluster: InProcessCluster, topic: str
) -> None:  # E10
    network, tp, interposed = cluster.network(), TopicPartition(topic, 0), Interposed(cluster)
    first = io_thread.run(partial(join, network, topic), WAIT_S)
    io_thread.run(partial(sync, network, topic, first), WAIT_S)
    options = {"partition_assignment_strategy": "range", "enable_auto_commit": False}
    made = Told(interposed, topic, topic=topic, **options)  # type: ignore[arg-type]
    with ThreadPoolExecutor(2) as pool, rayka.Admin(cluster=cluster) as admin:
        poll_until(lambda: admin.describe_group(topic).state is GroupState.PREPARING_REBALANCE, made)
        joining = pool.submit(io_thread.run, partial(join, network, topic, first.member_id), WAIT_S)
        poll_until(lambda: made.consumer.group_metadata().generation_id == 2, made)
        committing = pool.submit(made.consumer.commit, {tp: 1})
        wait_until(lambda: ErrorCode.REBALANCE_IN_PROGRESS in interposed.refused)
        assert not committing.done()
        io_thread.run(partial(sync, network, topic, joining.result(WAIT_S)), WAIT_S)
        committing.result(WAIT_S)
    found = made.consumer.committed([tp])[tp]
    assert found is not None
    assert found.offset == 1
    made.consumer.close()


def test_a_commit_of_a_cooperative_member_that_meets_the_next_generation_goes_on_in_that(
    cluster: InProcessCluster, topic: str
) -> None:  # E9 E10
    interposed = Interposed(cluster)
    options = {"partition_assignment_strategy": "cooperative-sticky", "enable_auto_commit": False}
    made = Told(interposed, topic, topic=topic, **options)  # type: ignore[arg-type]
    others = [Told(cluster, topic, topic=topic, **options) for _ in range(2)]
    poll_until(lambda: len(made.owned) == len(others[0].owned) == 2, made, others[0])
    tp, former, joins = made.consumer.assignment()[0], others[0].consumer.group_metadata(), interposed.joins
    held = asyncio.Event()

    async def hold() -> None:
        """The commit arrives when the coordinator has begun the next generation."""
        interposed.before_commit = None
        await held.wait()

    with ThreadPoolExecutor(1) as pool:
        poll_until(lambda: interposed.joins > joins, made, others[1])  # it waits for the first of the others
        interposed.before_commit = hold
        committing = pool.submit(made.consumer.commit, {tp: 7})
        wait_until(lambda: interposed.before_commit is None)
        poll_until(lambda: others[0].consumer.group_metadata() != former, *others)
        io_thread.call_soon(held.set)
        committing.result(WAIT_S)
    assert interposed.refused[0] is ErrorCode.ILLEGAL_GENERATION
    found = made.consumer.committed([tp])[tp]
    assert found is not None
    assert found.offset == 7
    for each in (made, *others):
        each.consumer.close()
