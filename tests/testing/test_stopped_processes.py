"""A process that was stopped (SIGSTOP, a machine that stalls) draws no conclusion from what it could not receive
meanwhile; in virtual time.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import pytest

from rayka.errors import ErrorCode
from rayka.ids import TopicPartition
from rayka.protocol.topics import ElectionType, ElectLeadersRequest
from rayka.sim.run_options import CLIENT_ID
from tests.testing.virtual import (
    CONTROLLER,
    REPLICAS,
    TOPIC,
    VirtualCluster,
    VirtualConsumer,
    VirtualProducer,
    virtual_cluster,
)

STOP_MS = 200_000
LIMIT_MS = 60_000
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


@pytest.mark.parametrize("stopped", [(CLIENT_ID,), (CLIENT_ID, CONTROLLER, *REPLICAS)], ids=["client", "all"])
@pytest.mark.parametrize("is_cut_off", [False, True])
def test_a_consumer_that_was_stopped_takes_no_cluster_for_gone(
    stopped: tuple[int, ...], is_cut_off: bool
) -> None:
    """Also where what was under way is lost, as connections are by a laptop that slept."""
    with virtual_cluster() as cluster:
        consumer = VirtualConsumer(cluster)
        cluster.go_on(5_000)
        with stop(cluster, *stopped), cluster.cut_off() if is_cut_off else nullcontext():
            cluster.go_on(STOP_MS)
        producer = VirtualProducer(cluster, pause_ms=100)
        cluster.go_on(5_000)
        producer.end()
        cluster.until(lambda: len(consumer.values) == producer.count)
        assert consumer.unavailable_ms == []


def test_the_silence_after_a_stop_is_told_within_the_limit() -> None:
    with virtual_cluster() as cluster:
        consumer = VirtualConsumer(cluster)
        cluster.go_on(5_000)
        with cluster.cut_off():
            with stop(cluster, CLIENT_ID):
                cluster.go_on(STOP_MS)
            went_on_ms = cluster.now_ms
            cluster.go_on(LIMIT_MS + 5_000)
        (told_ms,) = consumer.unavailable_ms
        assert LIMIT_MS - 2_000 <= told_ms - went_on_ms <= LIMIT_MS + 500
