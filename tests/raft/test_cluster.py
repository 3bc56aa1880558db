"""Several cores back to back: they elect, commit, and go on after losses."""

import pytest

from tests.raft.support import Cluster


@pytest.mark.parametrize("voters", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_voters_elect_one_leader_and_commit(voters: int, seed: int) -> None:
    cluster = Cluster(voters, seed=seed)
    cluster.commit(b"a", b"b")
    cluster.run_until(lambda: all(node.committed() == [b"a", b"b"] for node in cluster.nodes.values()))
    assert len(cluster.leaders) >= 1
