"""Each record is in the log once and in order, whatever happens to calls and brokers (C3, C5, C11)."""

from typing import Any

import pytest

import rayka
import rayka.testing
from rayka import Admin, Producer
from rayka.testing import InProcessCluster
from tests.testing.lossy import LossyCluster

BROKER, CONTROLLER, WAIT_S, PARTITIONS = 1, 3001, 60, 3
QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 3, "linger_ms": 1}


def send_numbers(producer: Producer, count: int, topic: str = "orders") -> None:
    for number in range(count):
        producer.send(topic, b"%d" % number, partition=number % PARTITIONS)


def check_each_once(cluster: InProcessCluster, count: int, topic: str = "orders") -> None:
    read = [(each.partition, int(each.value or b"")) for each in rayka.read(topic, cluster=cluster)]
    for partition in range(PARTITIONS):
        assert [n for place, n in read if place == partition] == list(range(partition, count, PARTITIONS))


def create(cluster: InProcessCluster, **configs: Any) -> None:
    with Admin(cluster) as admin:
        admin.create_topic("orders", partitions=PARTITIONS, configs=configs)


def test_a_lost_answer_puts_nothing_into_the_log_twice() -> None:  # C3
    with rayka.testing.cluster() as cluster:
        create(cluster)
        with Producer(cluster, **QUICK) as producer:
            for number in range(6):
                cluster.fail_calls("produce", times=2, is_executed=True)
                metadata = producer.send("orders", b"%d" % number, partition=number % PARTITIONS).result(
                    WAIT_S
                )
                assert metadata.offset == number // PARTITIONS
        check_each_once(cluster, 6)


@pytest.mark.parametrize("seed", range(6))
def test_calls_that_are_lost_repeated_or_late_leave_each_record_once(seed: int) -> None:  # C3, C5, C11
    count = 4_000
    with rayka.testing.cluster() as cluster:
        create(cluster)
        with Producer(LossyCluster(cluster, seed), **QUICK, batch_size=1_000) as producer:
            send_numbers(producer, count)
        check_each_once(cluster, count)


@pytest.mark.parametrize("flush", ["none", "batch"])
def test_brokers_that_are_killed_and_restarted_leave_each_record_once(flush: str) -> None:  # C3, C9, C10, C11
    count, rounds = 3_000, 6
    with rayka.testing.cluster() as cluster:
        create(cluster, flush=flush, **{"segment.bytes": 20_000})
        with Producer(LossyCluster(cluster, 7), **QUICK, batch_size=1_000) as producer:
            for each in range(rounds):
                for number in range(each * count // rounds, (each + 1) * count // rounds):
                    future = producer.send("orders", b"%d" % number, partition=number % PARTITIONS)
                if each % 2:
                    cluster.kill(BROKER)
                cluster.restart(BROKER)
                future.result(WAIT_S)
        check_each_once(cluster, count)


def test_a_producer_outlives_the_controller_that_gave_its_id() -> None:  # C12
    with rayka.testing.cluster() as cluster:
        create(cluster)
        with Producer(cluster, **QUICK) as producer:
            cluster.kill(CONTROLLER)
            waiting = producer.send("orders", b"0", partition=0)
            cluster.restart(CONTROLLER)
            waiting.result(WAIT_S)
            for number in range(1, 3):
                producer.send("orders", b"%d" % number, partition=number).result(WAIT_S)
        check_each_once(cluster, 3)


def test_a_log_that_forgets_producers_at_once_still_takes_what_they_send() -> None:  # C5, C8
    expiry = {"producer.id.expiration.ms": 1, "producer.id.expiration.check.interval.ms": 1}
    with rayka.testing.cluster(config=expiry) as cluster:
        create(cluster)
        with Producer(cluster, **QUICK, batch_size=1_000) as producer:
            send_numbers(producer, 2_000)
        check_each_once(cluster, 2_000)


def test_two_producers_do_not_disturb_each_other() -> None:  # C2
    with rayka.testing.cluster() as cluster:
        create(cluster)
        with Admin(cluster) as admin:
            admin.create_topic("others", partitions=PARTITIONS)
        lossy = LossyCluster(cluster, 3)
        with (
            Producer(lossy, **QUICK, batch_size=1_000) as one,
            Producer(lossy, **QUICK, batch_size=1_000) as two,
        ):
            for number in range(900):
                for producer, topic in ((one, "orders"), (two, "others")):
                    producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
                two.send("orders", b"-1", partition=PARTITIONS - 1)
        check_each_once(cluster, 900, "others")
        mine = [int(each.value or b"") for each in rayka.read("orders", cluster=cluster)]
        assert sorted(mine) == [-1] * 900 + list(range(900))
