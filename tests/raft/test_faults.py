"""Random faults on three and five cores, and what must hold after each: one leader per epoch, committed records that
stay and are the same everywhere, a high watermark that never falls, and progress once all is well (kafka.md §3.1).
"""

from random import Random

import pytest

from rayka.ids import OffsetAndEpoch
from rayka.protocol.quorum_messages import AddRaftVoterRequest, RemoveRaftVoterRequest
from tests.raft.support import CLUSTER_ID, Cluster, Node, contents

pytestmark = pytest.mark.apart


class Committed:
    """All records that a replica ever counted as committed, by offset."""

    def __init__(self) -> None:
        self._records: list[object] = []
        self._seen: dict[Node, int] = {}

    def check(self, node: Node) -> None:
        high_watermark = node.quorum.known_high_watermark
        seen = self._seen.get(node, 0)
        if high_watermark <= seen:
            return
        begin = max(seen, node.log.log_start_offset)
        for offset, record in enumerate(contents(node.log, begin, high_watermark), begin):
            if offset < len(self._records):
                assert self._records[offset] == record, f"{node} differs at {offset}"
            else:
                assert offset == len(self._records)
                self._records.append(record)
        self._seen[node] = high_watermark

    def check_all(self, cluster: Cluster) -> None:
        for node in cluster.nodes.values():
            self.check(node)

    def __len__(self) -> int:
        return len(self._records)


def fault(cluster: Cluster, random: Random) -> None:
    """Makes one fault, or heals one."""
    victim = random.choice(sorted(cluster.nodes))
    match random.randrange(7):
        case 0:
            cluster.isolate(victim)
        case 1 | 2:
            cluster.heal()
        case 3:
            cluster.restart(victim)
        case 4:
            cluster.restart(victim, has_lost_power=True)
        case 5:
            one, other = random.sample(sorted(cluster.nodes), 2)
            cluster.cut[one, other] = None
        case 6:
            cluster.nodes[victim].quorum.resign(cluster.now_ms)


def change(cluster: Cluster, random: Random) -> None:
    """A replica makes a snapshot and perhaps cleans up behind it, or a voter comes or goes."""
    node = cluster.nodes[random.choice(sorted(cluster.nodes))]
    end_offset = node.quorum.known_high_watermark
    match random.randrange(3):
        case 0 if end_offset > node.quorum.log.log_start_offset:
            snapshot_id = OffsetAndEpoch(end_offset, node.log.epochs.epoch_of(end_offset - 1))
            if node.quorum.create_snapshot_allowed(snapshot_id):
                node.write_snapshot(snapshot_id, b"everything below %d" % end_offset)
        case 1:
            node.quorum.clean_snapshots(retention_bytes=1, retention_ms=-1, timestamp_ms=0)
        case _:
            change_voters(cluster, random)


def change_voters(cluster: Cluster, random: Random) -> None:
    leader, now_ms = cluster.leader, cluster.now_ms
    if leader is None or leader.quorum.voters is None:
        return
    voters = leader.quorum.voters
    replica = cluster.nodes[random.choice(sorted(cluster.nodes))].local
    if replica not in voters:
        leader.quorum.changes.add_voter(AddRaftVoterRequest(CLUSTER_ID, replica, 1_000), now_ms)
    elif len(voters.voters) > 2:
        leader.quorum.changes.remove_voter(RemoveRaftVoterRequest(CLUSTER_ID, replica, 1_000))


def run_with_faults(seed: int, *, observers: int, has_changes: bool) -> Committed:
    random = Random(seed)
    cluster = Cluster(random.choice((3, 3, 5)), observers=observers, seed=seed)
    cluster.delay_ms_max, cluster.stalls = random.choice((1, 30, 300)), random.choice((0.0, 0.0, 0.3, 0.8))
    committed = Committed()
    for number in range(20):
        fault(cluster, random)
        end_ms = cluster.now_ms + random.choice((10, 300, 1_500, 6_000))
        while cluster.now_ms < end_ms:
            cluster.step()
            committed.check_all(cluster)
            if cluster.leader is not None and random.random() < 0.3:
                cluster.leader.quorum.leader_log.append([b"%d" % number])
            if has_changes and random.random() < 0.02:
                change(cluster, random)
    cluster.heal()
    cluster.delay_ms_max, cluster.stalls = 1, 0.0
    cluster.commit(b"end")
    cluster.run_until(lambda: cluster.all_have(len(committed) + 1))
    committed.check_all(cluster)
    return committed


@pytest.mark.parametrize("seed", range(6))
def test_what_is_committed_stays_whatever_happens(seed: int) -> None:
    assert len(run_with_faults(seed, observers=0, has_changes=False)) > 3


@pytest.mark.parametrize("seed", range(100, 106))
def test_what_is_committed_stays_while_voters_change_and_logs_are_cleaned(seed: int) -> None:
    assert len(run_with_faults(seed, observers=2, has_changes=True)) > 3
