"""Leaders that die under load: every record is in the log once and in order, and writes go on without the dead one
(B15, B40, C3, C11).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from random import Random
from typing import Any

import pytest

import rayka
import rayka.testing
from rayka import Admin, Producer
from rayka.client.producer.delivery_future import DeliveryFuture
from rayka.errors import TooManyRequests
from rayka.protocol.produce import ProduceRequest
from rayka.testing import InProcessCluster
from tests.testing.lossy import LossyCluster
from tests.testing.virtual import VirtualConsumer, VirtualProducer, virtual_cluster
from tests.testing.waiting import WAIT_S, wait_until

BROKERS, CONTROLLER, PARTITIONS = (1, 2, 3), 3001, 3
CONFIG = {
    "broker.session.timeout.ms": 400,
    "broker.heartbeat.interval.ms": 50,
    "replica.lag.time.max.ms": 1_000,
    "replica.fetch.backoff.ms": 20,
}
SHORT_SESSION = {"broker_session_timeout_ms": 600, "broker_heartbeat_interval_ms": 100}
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
    """It knows of the leader's end by its silence alone, and asks ten times a second whether another leads."""
    with virtual_cluster(**SHORT_SESSION) as cluster:
        producer = VirtualProducer(cluster, pause_ms=2)
        cluster.go_on(1_000)
        cluster.silence(1)
        cluster.until(lambda: cluster.partition.leader_id == 2)
        led_ms = cluster.now_ms
        assert led_ms - producer.acknowledged_ms[-1] > 500  # a gap there was
        cluster.until(lambda: producer.acknowledged_ms[-1] >= led_ms)
        assert cluster.now_ms - led_ms <= 120
        producer.end()
        assert producer.offsets == {number: number for number in range(producer.count)}  # once, and in order


def test_a_lead_that_moves_costs_clients_a_refusal_and_no_question() -> None:  # G18
    with virtual_cluster() as cluster:
        producer = VirtualProducer(cluster, pause_ms=2)
        consumer = VirtualConsumer(cluster)
        cluster.go_on(1_000)
        cluster.questions_ms.clear()
        for node_id in (2, 3, 1):
            cluster.move_lead(node_id)
            cluster.go_on(1_000)
        producer.end()
        cluster.until(lambda: len(consumer.values) == producer.count)
        assert cluster.questions_ms == []
        for times_ms in (producer.acknowledged_ms, consumer.read_ms):
            assert max(later - earlier for earlier, later in pairwise(times_ms[100:])) <= 50


@pytest.mark.parametrize("options", [{}, {"enable_idempotence": False}], ids=str)
def test_a_leader_that_was_given_up_and_comes_back_changes_nothing(
    options: dict[str, Any],
) -> None:  # B22, C3
    """What it was sent before is executed and answered when no caller waits for it any more."""
    with virtual_cluster(**SHORT_SESSION) as cluster:
        producer = VirtualProducer(cluster, pause_ms=2)
        cluster.go_on(1_000)
        with cluster.paused(1):
            cluster.until(lambda: cluster.partition.leader_id == 2)
            acknowledged = len(producer.offsets)
            cluster.until(lambda: len(producer.offsets) > acknowledged + 100)
        cluster.until(lambda: len(cluster.partition.isr) == 3)
        producer.end()
        assert producer.offsets == {number: number for number in range(producer.count)}


def test_a_producer_that_met_the_bound_of_waiting_bytes_delivers_all_in_the_end() -> None:
    """Its followers stand still: the leader takes one request, and refuses the others until that is acknowledged."""
    with virtual_cluster(queued_max_request_bytes=1) as cluster:
        producer = VirtualProducer(cluster, pause_ms=2)
        cluster.go_on(1_000)
        with cluster.paused(2), cluster.paused(3):
            acknowledged = len(producer.offsets)
            cluster.go_on(1_000)
            assert len(producer.offsets) <= acknowledged + 5  # what the followers had fetched already
            with pytest.raises(TooManyRequests, match="bytes in waiting produce requests"):
                cluster.run(cluster.network().call(1, ProduceRequest(-1, 1_000, ()), 1_000))
        producer.end()
        assert producer.offsets == {number: number for number in range(producer.count)}  # once, and in order


def test_a_consumer_goes_on_with_the_next_leader_as_soon_as_there_is_one() -> None:  # G18
    """A leader without news answers after `fetch_max_wait_ms`: only behind that it is silent."""
    with virtual_cluster(**SHORT_SESSION) as cluster:
        producer = VirtualProducer(cluster, pause_ms=2)
        consumer = VirtualConsumer(cluster, fetch_max_wait_ms=200)
        cluster.go_on(1_000)
        cluster.silence(1)
        cluster.until(lambda: cluster.partition.leader_id == 2)
        led_ms = cluster.now_ms
        assert led_ms - consumer.read_ms[-1] > 500
        cluster.until(lambda: consumer.read_ms[-1] >= led_ms)
        assert cluster.now_ms - led_ms <= 300  # until it asks, and the pause after a failure
        producer.end()
        cluster.until(lambda: len(consumer.values) == producer.count)
        assert consumer.values == [b"%d" % number for number in range(producer.count)]


def test_where_all_answer_no_client_asks_for_metadata() -> None:
    with virtual_cluster(**SHORT_SESSION) as cluster:
        producer = VirtualProducer(cluster, pause_ms=10)
        consumer = VirtualConsumer(cluster, fetch_max_wait_ms=200)
        cluster.go_on(1_000)
        cluster.questions_ms.clear()
        cluster.go_on(5_000)
        producer.end()
        cluster.go_on(5_000)  # nothing is sent, and fetches end without news
        assert len(consumer.values) == producer.count
        assert cluster.questions_ms == []


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
