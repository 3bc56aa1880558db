"""A process that was stopped (SIGSTOP, a machine that stalls) makes nothing of what it could not hear meanwhile; in
virtual time.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from rayka.errors import ErrorCode
from rayka.ids import TopicPartition
from rayka.protocol.partition_admin import ElectionType, ElectLeadersRequest
from tests.testing.virtual import CONTROLLER, REPLICAS, TOPIC, VirtualCluster, virtual_cluster

STOP_MS = 200_000
SHORT_SESSION = {
    "broker_session_timeout_ms": 400,
    "broker_heartbeat_interval_ms": 50,
    "auto_leader_rebalance_enable": False,
}


@contextmanager
def stop(cluster: VirtualCluster, *node_ids: int) -> Iterator[None]:
    with ExitStack() as stopped:
        for node_id in node_ids:
            stopped.enter_context(cluster.paused(node_id))
        yield


@pytest.mark.parametrize("stopped", [(CONTROLLER,), (CONTROLLER, *REPLICAS)], ids=["controller", "all"])
def test_a_controller_that_was_stopped_fences_no_broker(stopped: tuple[int, ...]) -> None:  # H6
    with virtual_cluster() as cluster:
        before = cluster.partition
        with stop(cluster, *stopped):
            cluster.go_on(STOP_MS)
        cluster.go_on(5_000)
        assert cluster.partition == before
        cluster.silence(1)
        cluster.until(lambda: cluster.partition.leader_id == 2)  # one that is silent afterwards is fenced


def test_the_preferred_replica_is_elected_after_a_stop_of_all_nodes() -> None:  # B46, H6
    with virtual_cluster(**SHORT_SESSION) as cluster:
        cluster.sim.cluster.kill(1)
        cluster.until(lambda: cluster.partition.leader_id == 2)
        cluster.sim.cluster.start(1)
        cluster.until(lambda: 1 in cluster.partition.isr)
        with stop(cluster, CONTROLLER, *REPLICAS):
            cluster.go_on(1_000)
        request = ElectLeadersRequest(ElectionType.PREFERRED, (TopicPartition(TOPIC, 0),))
        (result,) = cluster.run(cluster.network().call(CONTROLLER, request, 10_000)).partitions
        assert result.error_code is ErrorCode.NONE, result.error_message
        assert cluster.partition.leader_id == 1
