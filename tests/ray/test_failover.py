"""Three brokers, three replicas: the leader's process is killed, paused, stopped, and writing goes on without loss."""

import os
import signal
import time
from collections.abc import Iterator

import pytest
import ray

import rayka
from rayka.actors import node_handles
from rayka.cluster import Cluster
from rayka.protocol.membership import NodeState
from tests.ray.sender import Sender
from tests.ray.support import kill, pid_of, wait_until
from tests.testing.lossy import LossyCluster

pytestmark = pytest.mark.ray
SESSION_S = 60  # so long that no slow machine takes another way for the end of a session
CONFIG = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "broker.session.timeout.ms": SESSION_S * 1_000,
}


@pytest.fixture(scope="module")
def brokers(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data_dir = str(tmp_path_factory.mktemp("brokers"))
    with Cluster.start(name="failover", brokers=3, data_dir=data_dir, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture
def sender(brokers: Cluster, request: pytest.FixtureRequest) -> Iterator[Sender]:
    """Writes to one partition of which every broker has a replica, in sync."""
    topic = request.node.name[:100]
    with rayka.Admin(cluster=brokers) as admin:
        admin.create_topic(topic, partitions=1)
        sender = Sender(brokers, topic, pause_s=0.002)
        sender.start()
        try:
            sender.await_acknowledged(300)
            yield sender
            await_in_sync(admin, topic)
        finally:
            sender.stop()
    sender.check()


def await_in_sync(admin: rayka.Admin, topic: str) -> None:
    """Until every replica of the topic is in sync."""
    wait_until(lambda: len(admin.describe_topic(topic).partitions[0].isr) == 3)


def leadership(cluster: Cluster, sender: Sender) -> tuple[int, int]:
    """The partition's leader and its epoch, as the controller knows them."""
    with rayka.Admin(cluster=cluster) as admin:
        partition = admin.describe_topic(sender.topic).partitions[0]
    return partition.leader_id, partition.leader_epoch


def test_a_leader_whose_process_ended_is_succeeded_long_before_its_session_ends(
    brokers: Cluster, sender: Sender
) -> None:
    """Ray's record of the exit is the evidence; its restart of the process is not waited for."""
    leader_id, epoch = leadership(brokers, sender)
    killed_at = time.monotonic()
    kill(pid_of(brokers, leader_id))
    sender.await_acknowledged(500)
    assert sender.longest_gap_s(killed_at) < SESSION_S / 2
    successor_id, next_epoch = leadership(brokers, sender)
    assert next_epoch > epoch, "led by another broker, or by the process that followed"
    assert successor_id in (1, 2, 3)


def test_a_leader_that_is_paused_is_not_dead(brokers: Cluster, sender: Sender) -> None:
    before = leadership(brokers, sender)
    pid = pid_of(brokers, before[0])
    os.kill(pid, signal.SIGSTOP)
    try:
        pause_until = time.monotonic() + 4
        while time.monotonic() < pause_until:
            assert leadership(brokers, sender) == before
    finally:
        os.kill(pid, signal.SIGCONT)
    sender.await_acknowledged(300)
    assert leadership(brokers, sender) == before


def test_a_leader_that_is_stopped_hands_over_first_and_comes_back_on_its_disk(
    brokers: Cluster, sender: Sender
) -> None:
    leader_id, _ = leadership(brokers, sender)
    handle = node_handles.find(brokers.name, leader_id)
    assert handle is not None
    began = time.monotonic()
    ray.get(handle.stop.remote())
    sender.await_acknowledged(300)
    assert sender.longest_gap_s(began) < SESSION_S / 2, "0.1 s on a quiet machine"
    assert leadership(brokers, sender)[0] != leader_id
    ray.kill(handle, no_restart=False)
    wait_until(lambda: brokers.describe().nodes[leader_id - 1].state == NodeState.RUNNING)


def test_lost_repeated_and_late_calls_and_killed_leaders_leave_each_record_once_and_in_order(
    brokers: Cluster,
) -> None:  # C3, C5, C9, C10, C11
    topic, partitions, rounds, count = "each-once", 3, 2, 4_000
    with rayka.Admin(cluster=brokers) as admin:
        admin.create_topic(topic, partitions=partitions)
        with rayka.Producer(LossyCluster(brokers, seed=5), linger_ms=1, batch_size=1_000) as producer:
            for each in range(rounds):
                sent = [
                    producer.send(topic, b"%d" % number, partition=number % partitions)
                    for number in range(each * count // rounds, (each + 1) * count // rounds)
                ]
                kill(pid_of(brokers, admin.describe_topic(topic).partitions[each].leader_id))
                sent[-1].result(60)
                wait_until(lambda: all(len(part.isr) == 3 for part in admin.describe_topic(topic).partitions))
    read = [(each.partition, int(each.value or b"")) for each in rayka.read(topic, cluster=brokers)]
    for partition in range(partitions):
        assert [number for place, number in read if place == partition] == list(
            range(partition, count, partitions)
        )
