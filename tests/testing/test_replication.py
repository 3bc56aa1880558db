"""Replicated partitions on real nodes: brokers die, are cut off, lose their disks and come back, and no acknowledged
record is lost (B1-B33, H7-H10).
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import rayka
import rayka.testing
from rayka.client import io_thread
from rayka.errors import ErrorCode, StorageError
from rayka.protocol.membership import MetadataPartition, MetadataRequest, StatusRequest
from rayka.protocol.produce import (
    ACKS_ALL,
    ACKS_LEADER,
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
)
from rayka.testing import InProcessCluster, MemoryDisk
from tests.node.broker_support import records

CONTROLLER, BROKERS = 3001, (1, 2, 3)
SESSION_MS = 800
FAST = {
    "broker.session.timeout.ms": str(SESSION_MS),
    "broker.heartbeat.interval.ms": "100",
    "replica.lag.time.max.ms": "1000",
    "replica.fetch.backoff.ms": "100",
    "replica.fetch.wait.max.ms": "100",
}
TOPIC, SEGMENT = "orders", "orders-0/00000000000000000000.log"
TIMEOUT_MS = 10_000


@contextmanager
def cluster_of_three(*, memory: bool = False, **config: str) -> Iterator[InProcessCluster]:
    """Three brokers; with `memory` each on a `MemoryDisk`, under `disk_of`."""
    options: dict[str, Any] = {}
    if memory:
        options = {"data_dir": "/data", "disks": {each: MemoryDisk() for each in (*BROKERS, CONTROLLER)}}
    with rayka.testing.cluster(brokers=3, config=FAST | config, **options) as cluster:
        yield cluster


def disk_of(cluster: InProcessCluster, node_id: int) -> MemoryDisk:
    disk = cluster.nodes.disks[node_id]
    assert isinstance(disk, MemoryDisk)
    return disk


def segment_of(cluster: InProcessCluster, node_id: int) -> bytes:
    """What the broker has in its log of partition 0."""
    disk = disk_of(cluster, node_id)
    path = f"{cluster.data_dirs(node_id)[0]}/{SEGMENT}"
    return disk.read_at(path, 0, disk.size(path)) if disk.exists(path) else b""


def create(
    cluster: InProcessCluster, *, partitions: int = 1, replication: int = 3, **configs: Any
) -> MetadataPartition:
    """The topic's first partition, all replicas in sync."""
    named = {key.replace("_", "."): str(value) for key, value in configs.items()}
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(TOPIC, partitions=partitions, replication_factor=replication, configs=named)
    return cluster.await_partition(TOPIC, 0, lambda state: len(state.isr) == replication)


def send(cluster: InProcessCluster, *values: bytes) -> None:
    """Returns when all replicas in sync have them."""
    with rayka.Producer(cluster=cluster, linger_ms=0) as producer:
        for value in values:
            producer.send(TOPIC, value=value, partition=0).result(30)


def values_of(cluster: InProcessCluster) -> list[bytes | None]:
    return [each.value for each in rayka.read(TOPIC, cluster=cluster)]


def others(node_id: int) -> tuple[int, ...]:
    return tuple(each for each in BROKERS if each != node_id)


def await_other_leader(cluster: InProcessCluster, than: int) -> MetadataPartition:
    return cluster.await_partition(TOPIC, 0, lambda state: state.leader_id not in (-1, than))


def is_led_by_the_first(state: MetadataPartition) -> bool:
    return state.leader_id == state.replicas[0]


def detail(cluster: InProcessCluster, node_id: int) -> str:
    return call(cluster, node_id, StatusRequest()).detail


def call(cluster: InProcessCluster, node_id: int, request: Any) -> Any:
    return io_thread.run(partial(cluster.network().call, node_id, request, TIMEOUT_MS), 20)


def produce(
    cluster: InProcessCluster,
    node_id: int,
    value: bytes,
    acks: int,
    *,
    timeout_ms: int = TIMEOUT_MS,
    partition: int = 0,
) -> ProducePartitionResult:
    """Straight to one broker, also where another leads."""
    (topic,) = call(cluster, node_id, MetadataRequest((TOPIC,))).topics
    data = ProducePartition(topic.topic_id, partition, records(value))
    return call(cluster, node_id, ProduceRequest(acks, timeout_ms, (data,))).partitions[0]


def eventually(condition: Callable[[], bool]) -> None:
    """Asks the cluster until it is so. Raises TimeoutError after a while."""
    deadline_s = time.monotonic() + TIMEOUT_MS / 1000
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError


def isolate(cluster: InProcessCluster, node_id: int) -> None:
    """Cuts the broker off from every other node; clients still reach it."""
    for each in (*others(node_id), CONTROLLER):
        cluster.partition(node_id, each)


# ---- Nothing acknowledged is lost ------------------------------------------------------------------------------------


def test_what_is_acknowledged_by_all_is_on_every_replica_byte_for_byte() -> None:  # B1, B15, B18
    with cluster_of_three(memory=True) as cluster:
        create(cluster)
        send(cluster, *(b"%d" % number for number in range(50)))
        assert values_of(cluster) == [b"%d" % number for number in range(50)]
        assert len({segment_of(cluster, each) for each in BROKERS}) == 1


def test_when_the_leader_dies_another_takes_over_and_nothing_acknowledged_is_lost() -> None:  # B33, B44
    with cluster_of_three() as cluster:
        leader_id = create(cluster, min_insync_replicas=2).leader_id
        stopped, acknowledged = threading.Event(), []

        def send_on() -> None:
            with rayka.Producer(cluster=cluster, linger_ms=0) as producer:
                while not stopped.is_set():
                    value = b"%d" % len(acknowledged)
                    producer.send(TOPIC, value=value, partition=0).result(30)
                    acknowledged.append(value)

        sender = threading.Thread(target=send_on)
        sender.start()
        try:
            cluster.await_partition(TOPIC, 0, lambda _: len(acknowledged) > 20)
            cluster.kill(leader_id)
            await_other_leader(cluster, leader_id)
            count = len(acknowledged)
            cluster.await_partition(TOPIC, 0, lambda _: len(acknowledged) > count + 20)
        finally:
            stopped.set()
            sender.join()
        assert values_of(cluster) == acknowledged


def test_a_killed_follower_comes_back_fetches_what_it_missed_and_is_in_sync_again() -> None:  # B11, B17
    with cluster_of_three(memory=True) as cluster:
        follower_id = create(cluster).replicas[-1]
        send(cluster, b"a")
        cluster.kill(follower_id)
        send(cluster, b"b", b"c")  # waits until the follower counts no more
        cluster.restart(follower_id)
        cluster.await_isr(TOPIC, 0, BROKERS)
        send(cluster, b"d")
        assert len({segment_of(cluster, each) for each in BROKERS}) == 1
        assert values_of(cluster) == [b"a", b"b", b"c", b"d"]


def test_a_follower_whose_disk_was_replaced_starts_from_nothing_and_is_in_sync_again() -> None:  # B25, B33
    with cluster_of_three(memory=True) as cluster:
        follower_id = create(cluster).replicas[-1]
        send(cluster, b"a", b"b")
        cluster.kill(follower_id)
        cluster.replace_disk(follower_id)
        cluster.restart(follower_id)
        cluster.await_isr(TOPIC, 0, BROKERS)
        send(cluster, b"c")
        assert len({segment_of(cluster, each) for each in BROKERS}) == 1
        assert values_of(cluster) == [b"a", b"b", b"c"]
        assert detail(cluster, follower_id) == ""


def test_below_the_minimum_of_replicas_in_sync_nothing_is_written() -> None:  # B15
    with cluster_of_three() as cluster:
        leader_id = create(cluster, min_insync_replicas=2).leader_id
        assert produce(cluster, leader_id, b"a", ACKS_ALL).error_code is ErrorCode.NONE
        for each in others(leader_id):
            cluster.kill(each)
        cluster.await_isr(TOPIC, 0, [leader_id])
        (refused,) = {produce(cluster, leader_id, b"b", ACKS_ALL).error_code for _ in range(2)}
        assert refused is ErrorCode.NOT_ENOUGH_REPLICAS
        cluster.restart(others(leader_id)[0])
        cluster.await_partition(TOPIC, 0, lambda state: len(state.isr) == 2)
        send(cluster, b"c")
        assert values_of(cluster) == [b"a", b"c"]


# ---- Logs that part --------------------------------------------------------------------------------------------------


def test_a_leader_that_was_cut_off_drops_what_it_alone_has_when_it_is_back() -> None:  # B22, B23, H7
    with cluster_of_three(memory=True) as cluster:
        old_id = create(cluster).leader_id
        send(cluster, b"a")
        isolate(cluster, old_id)
        assert produce(cluster, old_id, b"lost", ACKS_LEADER).error_code is ErrorCode.NONE
        timed_out = produce(cluster, old_id, b"never", ACKS_ALL, timeout_ms=100)
        assert timed_out.error_code is ErrorCode.REQUEST_TIMED_OUT
        new_id = await_other_leader(cluster, old_id).leader_id
        send(cluster, b"b")
        cluster.heal()
        cluster.await_isr(TOPIC, 0, BROKERS)
        assert values_of(cluster) == [b"a", b"b"]
        assert segment_of(cluster, old_id) == segment_of(cluster, new_id)


def test_a_restarted_follower_that_is_elected_at_once_has_not_cut_off_what_was_acknowledged() -> None:
    """KIP-101, the first scenario: it used to cut its log to its own high watermark, which lags the leader's."""
    with cluster_of_three(memory=True) as cluster:  # B22
        created = create(cluster, replication=2)
        leader_id, follower_id = created.replicas
        send(cluster, b"m1")
        produce(cluster, leader_id, b"m2", ACKS_ALL)
        cluster.kill(follower_id)
        cluster.kill(leader_id)
        cluster.restart(follower_id)
        cluster.restart(leader_id)
        cluster.await_partition(TOPIC, 0, lambda state: state.leader_id != -1)
        assert values_of(cluster) == [b"m1", b"m2"]
        cluster.await_isr(TOPIC, 0, created.replicas)
        assert segment_of(cluster, leader_id) == segment_of(cluster, follower_id)


def test_after_a_power_cut_of_both_replicas_their_logs_do_not_part() -> None:
    """KIP-101, the second scenario: each used to keep its own record at one offset."""
    with cluster_of_three(memory=True, **{"min.insync.replicas": "1"}) as cluster:  # B22
        created = create(cluster, replication=2)
        send(cluster, b"m1")
        for each in created.replicas:
            cluster.kill(each)
            disk_of(cluster, each).power_loss(Random(each))
        for each in created.replicas:
            cluster.restart(each)
        cluster.await_partition(TOPIC, 0, lambda state: state.leader_id != -1)
        send(cluster, b"m2")
        cluster.await_isr(TOPIC, 0, created.replicas)
        send(cluster, b"m3")
        assert values_of(cluster)[-2:] == [b"m2", b"m3"]
        assert len({segment_of(cluster, each) for each in created.replicas}) == 1


def test_with_flush_batch_a_power_cut_of_all_replicas_takes_nothing_acknowledged() -> None:
    with cluster_of_three(memory=True) as cluster:
        create(cluster, flush="batch", min_insync_replicas=2)
        send(cluster, b"a", b"b", b"c")
        for each in BROKERS:
            cluster.kill(each)
            disk_of(cluster, each).power_loss(Random(each))
        for each in BROKERS:
            cluster.restart(each)
        cluster.await_isr(TOPIC, 0, BROKERS)
        assert values_of(cluster) == [b"a", b"b", b"c"]


# ---- Brokers that are away -------------------------------------------------------------------------------------------


def test_a_broker_whose_session_is_over_is_fenced_and_follows_after_its_next_heartbeat() -> None:  # H6, H7
    with cluster_of_three(memory=True) as cluster:
        old_id = create(cluster).leader_id
        cluster.partition(old_id, CONTROLLER)
        changed = await_other_leader(cluster, old_id)
        assert old_id not in changed.isr
        assert produce(cluster, changed.leader_id, b"a", ACKS_ALL).error_code is ErrorCode.NONE
        refused = produce(cluster, old_id, b"b", ACKS_ALL, timeout_ms=200)
        assert refused.error_code is ErrorCode.REQUEST_TIMED_OUT
        cluster.heal()
        cluster.await_isr(TOPIC, 0, BROKERS)
        assert produce(cluster, old_id, b"c", ACKS_ALL).error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert values_of(cluster) == [b"a"]
        assert len({segment_of(cluster, each) for each in BROKERS}) == 1


def test_a_follower_that_cannot_reach_its_leader_leaves_the_isr_and_is_back_when_it_can() -> None:  # B10, B11
    with cluster_of_three() as cluster:
        leader_id = create(cluster).leader_id
        away_id = others(leader_id)[0]
        cluster.partition(leader_id, away_id)
        send(cluster, b"a")
        assert away_id not in cluster.await_partition(TOPIC, 0, lambda state: len(state.isr) == 2).isr
        cluster.heal()
        cluster.await_isr(TOPIC, 0, BROKERS)


def test_a_controlled_stop_moves_the_leader_away_first() -> None:  # H8
    with cluster_of_three() as cluster:
        leader_id = create(cluster, min_insync_replicas=2).leader_id
        send(cluster, b"a")
        cluster.restart(leader_id)
        assert await_other_leader(cluster, leader_id).leader_id != leader_id
        send(cluster, b"b")
        assert values_of(cluster) == [b"a", b"b"]


def test_a_controlled_stop_waits_for_no_heartbeat_of_other_brokers(caplog: pytest.LogCaptureFixture) -> None:
    rare = {"broker.session.timeout.ms": "180000", "broker.heartbeat.interval.ms": "60000"}
    with cluster_of_three(**rare) as cluster:  # H5, H8
        leader_id = create(cluster).leader_id
        cluster.restart(leader_id)
        assert "without the controller's consent" not in caplog.text
        cluster.await_isr(TOPIC, 0, BROKERS)


@pytest.mark.parametrize("is_killed", [False, True])
def test_when_a_whole_cluster_is_back_leaders_are_spread_without_waiting_for_the_timer(
    tmp_path: Path, is_killed: bool
) -> None:  # decision 027
    numbers = range(6)
    with rayka.testing.cluster(brokers=3, config=FAST, data_dir=str(tmp_path)) as cluster:
        create(cluster, partitions=len(numbers))
        if is_killed:
            for node_id in (*BROKERS, CONTROLLER):
                cluster.kill(node_id)
    with rayka.testing.cluster(brokers=3, config=FAST, data_dir=str(tmp_path)) as cluster:
        states = [cluster.await_partition(TOPIC, number, is_led_by_the_first) for number in numbers]
    assert sorted({each.leader_id for each in states}) == list(BROKERS)


# ---- Damage ----------------------------------------------------------------------------------------------------------


def test_a_batch_that_is_damaged_on_the_leaders_disk_is_reported_and_not_spread() -> None:
    with cluster_of_three(memory=True) as cluster:
        created = create(cluster, partitions=1, replication=2)
        leader_id, follower_id = created.replicas
        send(cluster, b"whole")
        cluster.kill(follower_id)
        whole = segment_of(cluster, leader_id)
        assert produce(cluster, leader_id, b"damaged", ACKS_LEADER).error_code is ErrorCode.NONE
        path = f"{cluster.data_dirs(leader_id)[0]}/{SEGMENT}"
        disk_of(cluster, leader_id).flip_bit(path, len(whole) + 65)
        cluster.restart(follower_id)
        eventually(lambda: "cannot be copied" in detail(cluster, follower_id))
        assert f"orders-0 cannot be copied from broker-{leader_id}" in detail(cluster, follower_id)
        assert segment_of(cluster, follower_id) == whole


def test_a_follower_whose_log_is_damaged_keeps_it_aside_and_copies_it_again() -> None:
    with cluster_of_three(memory=True) as cluster:
        created = create(cluster)
        follower_id = created.replicas[-1]
        send(cluster, *(b"%d" % number for number in range(6)))
        cluster.kill(follower_id)
        cluster.await_isr(TOPIC, 0, created.replicas[:-1])
        path = f"{cluster.data_dirs(follower_id)[0]}/{SEGMENT}"
        disk_of(cluster, follower_id).flip_bit(path, len(records(b"0")) + 16)  # the magic
        cluster.restart(follower_id)
        cluster.await_isr(TOPIC, 0, BROKERS)
        assert len({segment_of(cluster, each) for each in BROKERS}) == 1
        names = disk_of(cluster, follower_id).list(cluster.data_dirs(follower_id)[0])
        assert [each for each in names if each.endswith("-stray")] != []


def test_a_data_directory_of_another_broker_is_refused_naming_both() -> None:
    with cluster_of_three(memory=True) as cluster:
        first, second = cluster.data_dirs(1)[0], cluster.data_dirs(2)[0]
        for each in (1, 2):
            cluster.kill(each)
        properties = [
            disk_of(cluster, each).read_at(f"{path}/meta.properties", 0, 1000)
            for each, path in ((1, first), (2, second))
        ]
        disk_of(cluster, 1).write(f"{first}/meta.properties", properties[1])
        disk_of(cluster, 2).write(f"{second}/meta.properties", properties[0])
        for each, other, path in ((1, 2, first), (2, 1, second)):
            with pytest.raises(StorageError, match=f"{path}.*broker-{other}, expected broker-{each}"):
                cluster.restart(each)
