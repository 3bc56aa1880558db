"""Several cores back to back: they elect, commit, and go on after losses. The scripts are those of Kafka's
`RaftEventSimulationTest` (kafka.md §3.1); the seeds make the delays.
"""

import pytest

from rayka.raft.election_state import ElectionState
from tests.raft.support import Cluster, Node, key

SEEDS = range(4)


def committed_everywhere(cluster: Cluster, values: list[bytes]) -> bool:
    return all(node.committed() == values for node in cluster.nodes.values())


def cluster_of(voters: int, seed: int, observers: int = 0) -> Cluster:
    cluster = Cluster(voters, observers=observers, seed=seed)
    cluster.delay_ms_max = (1, 20)[seed % 2]
    return cluster


def followers(cluster: Cluster) -> list[Node]:
    return [node for node in cluster.nodes.values() if not node.quorum.is_leader]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("voters", "observers"), [(1, 0), (1, 2), (2, 0), (3, 0), (3, 2), (5, 1)])
def test_voters_elect_one_leader_and_commit(voters: int, observers: int, seed: int) -> None:  # A2, A33, A40
    cluster = cluster_of(voters, seed, observers)
    cluster.commit(b"a", b"b")
    cluster.run_until(lambda: committed_everywhere(cluster, [b"a", b"b"]))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("voters", [3, 5])
def test_another_leads_when_the_leader_is_gone(voters: int, seed: int) -> None:  # A11
    cluster = cluster_of(voters, seed)
    cluster.commit(b"a")
    former = cluster.elected().local.node_id
    gone = cluster.kill(former)
    begun_ms = cluster.now_ms
    cluster.commit(b"b")
    assert cluster.now_ms - begun_ms < 6_000
    cluster.nodes[former] = gone
    cluster.restart(former)
    cluster.commit(b"c")
    cluster.run_until(lambda: committed_everywhere(cluster, [b"a", b"b", b"c"]))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("voters", [1, 3, 5])
def test_a_majority_that_comes_back_goes_on_where_all_were_killed(voters: int, seed: int) -> None:  # A9
    cluster = cluster_of(voters, seed)
    cluster.commit(b"a")
    killed = {node_id: cluster.kill(node_id) for node_id in sorted(cluster.nodes)}
    for node_id in list(killed)[: voters // 2 + 1]:
        cluster.nodes[node_id] = killed[node_id]
        cluster.restart(node_id)
    cluster.commit(b"b")
    cluster.run_until(lambda: committed_everywhere(cluster, [b"a", b"b"]))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_cut_off_resigns_and_comes_back_as_a_follower(seed: int) -> None:  # A12, A22
    cluster = cluster_of(3, seed)
    cluster.commit(b"a")
    former = cluster.elected()
    cluster.isolate(former.local.node_id)
    cluster.run_until(lambda: not former.quorum.is_leader)
    cluster.commit(b"b")
    cluster.heal()
    cluster.run_until(lambda: committed_everywhere(cluster, [b"a", b"b"]))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_side_with_a_majority_goes_on(seed: int) -> None:  # A40
    cluster = cluster_of(5, seed)
    cluster.commit(b"a")
    cluster.isolate(3001, 3002)
    minority = [cluster.nodes[3001], cluster.nodes[3002]]
    cluster.run_until(lambda: cluster.leader is not None and cluster.leader not in minority)
    cluster.commit(b"b")
    assert not any(b"b" in node.committed() for node in minority)
    cluster.heal()
    cluster.run_until(lambda: committed_everywhere(cluster, [b"a", b"b"]))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_that_cannot_reach_the_leader_disturbs_no_other_node(seed: int) -> None:  # A18
    cluster = cluster_of(3, seed)
    leader = cluster.elected()
    cluster.run_until(lambda: cluster.all_have(3))
    election = leader.quorum.election
    lonely = followers(cluster)[0].local.node_id
    cluster.cut[lonely, leader.local.node_id] = None
    cluster.run_for(30_000)
    assert (leader.quorum.is_leader, leader.quorum.election) == (True, election)
    cluster.heal()
    cluster.commit(b"a")
    cluster.run_until(lambda: committed_everywhere(cluster, [b"a"]))
    assert len(cluster.leaders) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_of_five_only_those_that_reach_a_majority_come_to_lead_and_only_once(seed: int) -> None:  # A18, A20
    cluster = cluster_of(5, seed)
    for lonely in (3001, 3005):  # each reaches 3003 alone
        for other in (3001, 3002, 3004, 3005):
            if other != lonely:
                cluster.cut[lonely, other] = None
    leader = cluster.elected()
    assert leader.local.node_id in (3002, 3003, 3004)
    cluster.run_for(30_000)
    assert leader.quorum.is_leader
    assert len(cluster.leaders) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_one_leader_after_another_may_be_cut_off(seed: int) -> None:  # A2
    cluster = cluster_of(3, seed)
    values = []
    for value in (b"a", b"b", b"c", b"d"):
        values.append(value)
        cluster.commit(value)
        former = cluster.elected()
        cluster.heal()
        cluster.isolate(former.local.node_id)
        cluster.run_until(lambda former=former: cluster.leader not in (None, former))
    cluster.heal()
    cluster.commit(b"e")
    cluster.run_until(lambda: committed_everywhere(cluster, [*values, b"e"]))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_voter_that_lost_its_log_but_not_its_name_is_filled_again(seed: int) -> None:  # A29, A33
    cluster = cluster_of(3, seed)
    cluster.commit(b"a")
    cluster.run_until(lambda: committed_everywhere(cluster, [b"a"]))
    node_id = followers(cluster)[0].local.node_id
    cluster.kill(node_id)
    empty = cluster.start(key(node_id - 3000), voters=cluster.keys)
    cluster.commit(b"b")
    cluster.run_until(lambda: empty.committed() == [b"a", b"b"])


def test_a_quorum_without_majority_commits_nothing() -> None:  # A40
    cluster = Cluster(3)
    leader = cluster.elected()
    for node in followers(cluster):
        cluster.kill(node.local.node_id)
    leader.quorum.leader_log.append([b"a"])
    cluster.run_for(10_000)
    assert leader.committed() == []
    assert not leader.quorum.is_leader


def test_an_idle_cluster_is_quiet() -> None:  # A32
    """Each follower fetches every half second, and little else is sent: the simulator is fast because of it."""
    cluster = Cluster(3)
    cluster.elected()
    cluster.run_for(5_000)
    sent = cluster.sent_count
    cluster.run_for(60_000)
    assert cluster.sent_count - sent <= 2 * 60 * 2 + 10
    assert cluster.elected().quorum.election == ElectionState(
        1, cluster.elected().local.node_id, cluster.elected().local
    )
