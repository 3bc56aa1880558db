"""Leaders that die under load: every record is in the log once and in order, and writes go on without the dead one
(B15, B40, C3, C11).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

import rayka
import rayka.testing
from rayka import Admin, Producer
from rayka.client.delivery_future import DeliveryFuture
from rayka.testing import InProcessCluster
from tests.testing.lossy import LossyCluster
from tests.testing.waiting import WAIT_S, wait_until

BROKERS, CONTROLLER, PARTITIONS = (1, 2, 3), 3001, 3
SESSION_MS = 400
CONFIG = {
    "broker.session.timeout.ms": SESSION_MS,
    "broker.heartbeat.interval.ms": 50,
    "replica.lag.time.max.ms": 1_000,
    "replica.fetch.backoff.ms": 20,
}
QUICK: dict[str, Any] = {
    "linger_ms": 1,
    "batch_size": 1_000,
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 50,
}


@contextmanager
def replicated(**configs: Any) -> Iterator[InProcessCluster]:
    """Three brokers and a topic that all of them have; two must have a record before it is acknowledged."""
    with rayka.testing.cluster(brokers=3, config=CONFIG) as cluster, Admin(cluster) as admin:
        configs = {"min.insync.replicas": 2, **configs}
        admin.create_topic("orders", partitions=PARTITIONS, replication_factor=3, configs=configs)
        yield cluster


class Numbers:
    """Sends numbers, one after the other, over all partitions."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.count = 0

    def send(self, count: int) -> DeliveryFuture:
        for number in range(self.count, self.count + count):
            future = self._producer.send("orders", b"%d" % number, partition=number % PARTITIONS)
        self.count += count
        return future


def check_each_once(cluster: InProcessCluster, count: int) -> None:
    read = [(each.partition, int(each.value or b"")) for each in rayka.read("orders", cluster=cluster)]
    for partition in range(PARTITIONS):
        assert [n for place, n in read if place == partition] == list(range(partition, count, PARTITIONS))


def wait_until_in_sync(admin: Admin) -> None:
    wait_until(lambda: all(len(each.isr) == 3 for each in admin.describe_topic("orders").partitions))


def leader_of(admin: Admin, partition: int) -> int:
    return admin.describe_topic("orders").partitions[partition].leader_id


@pytest.mark.parametrize("seed", range(4))
def test_brokers_that_are_killed_under_load_lose_repeat_and_reorder_nothing(
    seed: int,
) -> None:  # B15, C3, C11
    random = Random(seed)
    with replicated() as cluster, Admin(cluster) as admin:
        with Producer(LossyCluster(cluster, seed), **QUICK) as producer:
            numbers = Numbers(producer)
            for _ in range(4):
                numbers.send(300)
                killed = random.choice(BROKERS)
                cluster.kill(killed)
                numbers.send(300).result(WAIT_S)  # without the dead one
                cluster.restart(killed)
                numbers.send(300)
                if random.random() < 0.7:  # else the next one dies while this one catches up
                    wait_until_in_sync(admin)
        check_each_once(cluster, numbers.count)


def test_a_producer_goes_on_with_the_next_leader_as_soon_as_there_is_one() -> None:  # G18, B40
    with replicated() as cluster, Admin(cluster) as admin:
        with Producer(cluster, **QUICK) as producer:
            numbers = Numbers(producer)
            numbers.send(PARTITIONS).result(WAIT_S)
            cluster.kill(leader_of(admin, 0))
            started_s = time.monotonic()
            numbers.send(PARTITIONS)
            producer.flush(WAIT_S)
            gap_s = time.monotonic() - started_s
        assert gap_s < SESSION_MS / 1000 + 1  # until it is known to be dead, and what the election takes
        check_each_once(cluster, numbers.count)


def test_a_leader_that_is_cut_off_from_all_other_nodes_is_left_for_its_successor() -> None:  # B22, C3
    with replicated() as cluster, Admin(cluster) as admin:
        with Producer(cluster, **QUICK, request_timeout_ms=WAIT_S * 1000) as producer:
            numbers = Numbers(producer)
            numbers.send(PARTITIONS).result(WAIT_S)
            cut_off = leader_of(admin, 0)
            for other in (*BROKERS, CONTROLLER):
                if other != cut_off:
                    cluster.partition(cut_off, other)
            numbers.send(100)  # it takes them, can never acknowledge them, and knows of no other leader
            producer.flush(WAIT_S / 2)
            cluster.heal()
            numbers.send(100)
            wait_until_in_sync(admin)
        check_each_once(cluster, numbers.count)


def test_a_controlled_stop_of_the_leader_loses_repeats_and_reorders_nothing() -> None:  # H8, C11
    with replicated() as cluster, Admin(cluster) as admin:
        with Producer(cluster, **QUICK) as producer:
            numbers = Numbers(producer)
            for broker_id in BROKERS:
                numbers.send(500)
                cluster.restart(broker_id)
                numbers.send(500).result(WAIT_S)
                wait_until_in_sync(admin)
        check_each_once(cluster, numbers.count)


def test_answers_lost_while_leaders_move_leave_each_record_once() -> None:  # C3, C9
    with replicated() as cluster, Admin(cluster) as admin:
        with Producer(cluster, **QUICK) as producer:
            numbers = Numbers(producer)
            for round_number in range(6):
                cluster.fail_calls("produce", times=4, is_executed=True)
                numbers.send(200)
                broker_id = BROKERS[round_number % 3]
                cluster.kill(broker_id)
                cluster.fail_calls("produce", times=2, is_executed=True)
                numbers.send(200).result(WAIT_S)
                cluster.restart(broker_id)
                wait_until_in_sync(admin)
        check_each_once(cluster, numbers.count)


def test_below_min_isr_writes_wait_and_go_on_when_a_replica_is_back() -> None:  # B15, G18
    with replicated() as cluster, Admin(cluster) as admin:
        with Producer(cluster, **QUICK) as producer:
            numbers = Numbers(producer)
            numbers.send(PARTITIONS).result(WAIT_S)
            cluster.kill(2)
            cluster.kill(3)
            wait_until(lambda: all(len(each.isr) < 2 for each in admin.describe_topic("orders").partitions))
            waiting = numbers.send(PARTITIONS)
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
            cluster.restart(2)
            cluster.restart(3)
            waiting.result(WAIT_S)
        check_each_once(cluster, numbers.count)
