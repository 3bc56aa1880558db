"""More and fewer voters while a cluster runs, in virtual time, under a producer: five, one, five again, with callers
that die in between and leaders that end. The simulator's checkers watch every step of the quorum.
"""

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from rayka.actors.quorum_changes import VoterStep, change_voters
from rayka.client.admin.admin_quorum import AsyncQuorumAdmin
from rayka.client.admin.async_admin import AsyncAdmin
from rayka.config.client_config import AdminConfig
from rayka.errors import UnavailableError
from tests.testing.virtual import VirtualCluster, VirtualProducer, virtual_cluster

ALL = [3001, 3002, 3003, 3004, 3005]
_TIMEOUT_S = 20


@pytest.fixture
def cluster() -> Iterator[VirtualCluster]:
    with virtual_cluster(voters=len(ALL)) as cluster:
        yield cluster


def quorum_of(cluster: VirtualCluster) -> AsyncQuorumAdmin:
    return AsyncAdmin(cluster, AdminConfig(), Random(1)).quorum


def voters(cluster: VirtualCluster) -> list[int]:
    return [each.node_id for each in cluster.run(quorum_of(cluster).describe()).voters]


def begin(cluster: VirtualCluster, wanted: list[int]) -> "asyncio.Task[list[VoterStep]]":
    removed = [each for each in ALL if each not in wanted]
    return cluster.start(change_voters(quorum_of(cluster), wanted, removed, _TIMEOUT_S))


def become(cluster: VirtualCluster, wanted: list[int]) -> list[VoterStep]:
    task = begin(cluster, wanted)
    cluster.until(task.done)
    assert voters(cluster) == wanted
    return task.result()


def test_five_voters_become_three_then_one_then_three_and_five_and_no_send_fails(  # A56 A57
    cluster: VirtualCluster,
) -> None:
    producer = VirtualProducer(cluster, 20)
    leader_id = cluster.run(quorum_of(cluster).describe()).leader_id
    kept = next(each for each in ALL if each != leader_id)
    three = sorted([leader_id, kept, next(each for each in ALL if each not in (leader_id, kept))])
    assert leader_id not in [each.node_id for each in become(cluster, three)]
    assert [each.node_id for each in become(cluster, [kept])][-1] == leader_id, "the leader goes last"
    assert [each.is_added for each in become(cluster, three)] == [True, True]
    assert len(become(cluster, ALL)) == 2
    assert become(cluster, ALL) == []
    producer.end()


def test_a_caller_that_dies_at_any_moment_is_followed_by_one_that_finishes(cluster: VirtualCluster) -> None:
    producer = VirtualProducer(cluster, 20)
    for after_ms in (1, 2, 4, 7, 11, 16, 23, 32, 50, 80):
        for wanted in ([3003], ALL):
            died = begin(cluster, wanted)
            cluster.go_on(after_ms)
            died.cancel()
            become(cluster, wanted)
    producer.end()


def test_a_leader_that_dies_meanwhile_is_followed_by_one_that_goes_on(cluster: VirtualCluster) -> None:
    producer = VirtualProducer(cluster, 20)
    wanted = [3001, 3002, 3003]
    for after_ms in (3, 9):
        leader_id = cluster.run(quorum_of(cluster).describe()).leader_id
        task = begin(cluster, wanted)
        cluster.go_on(after_ms)
        cluster.sim.cluster.kill(leader_id)
        cluster.until(task.done)
        assert voters(cluster) == wanted
        cluster.sim.cluster.start(leader_id)
        become(cluster, ALL)
    producer.end()


def test_votes_are_not_taken_while_those_left_have_no_majority(cluster: VirtualCluster) -> None:
    become(cluster, [3001, 3002, 3003])
    leader_id = cluster.run(quorum_of(cluster).describe()).leader_id
    silent, other = (each for each in (3001, 3002, 3003) if each != leader_id)
    cluster.silence(silent)
    cluster.go_on(5_000)
    task = begin(cluster, sorted([leader_id, silent]))
    cluster.until(task.done)
    with pytest.raises(
        UnavailableError, match=rf"controller-{other} did not lose its vote .* more than half"
    ):
        task.result()
    assert voters(cluster) == [3001, 3002, 3003]
