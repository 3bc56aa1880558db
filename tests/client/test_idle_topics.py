"""A producer forgets topics that it does not use, and nothing of what they need when they are used again (KIP-526)."""

import time
from collections.abc import Callable, Iterator

import pytest

import rayka
import rayka.testing
from rayka import Admin, Consumer, Producer, TopicPartition
from rayka.client.producer.partition_queue import Limits
from rayka.testing import InProcessCluster
from tests.client.support import QUICK, ScriptedCluster, new_accumulator

WAIT_S = 60
IDLE = {"metadata_max_age_ms": 20, "metadata_max_idle_ms": 20}


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster() as running:
        with Admin(running) as admin:
            admin.create_topic("steady")
            admin.create_topic("orders")
        yield running


def test_a_producer_forgets_what_is_gone_and_what_is_idle():
    names = [f"job-{number}" for number in range(30)]
    cluster = ScriptedCluster(dict.fromkeys(["orders", *names], 3))
    with Producer(cluster, **QUICK, metadata_max_age_ms=20) as producer:
        for name in names:
            producer.send(name, b"x", key=b"k").result(WAIT_S)
            del cluster.topics[name]

        def are_forgotten() -> bool:
            producer.send("orders", b"x").result(WAIT_S)
            topics = producer._accumulator.topics
            return list(topics._topics) == list(topics.by_key) == ["orders"]

        until(are_forgotten)


def test_a_record_after_its_topic_was_forgotten_is_a_new_one_for_the_log(cluster: InProcessCluster):  # C3, C5
    """Its sequence would be that of the first record, which the log still knows."""
    with Producer(cluster, **QUICK, **IDLE) as producer:
        for number in range(4):
            assert producer.send("orders", b"%d" % number, partition=0).result(WAIT_S).offset == number

            def is_forgotten() -> bool:
                producer.send("steady", b"x").result(WAIT_S)
                return producer._accumulator.topics.get("orders") is None

            until(is_forgotten)
    found = [each.value for each in rayka.read("orders", cluster=cluster) if each.partition == 0]
    assert found == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_topic_that_a_thread_has_just_looked_for_stays(is_wanted: bool):
    accumulator = new_accumulator(Limits(10_000, 1 << 20, 5, 1_000), partitions=3)
    known = accumulator.topics.get("orders")
    assert known is not None
    known.is_wanted = is_wanted
    assert accumulator.forget_idle("orders") is not is_wanted
    assert (accumulator.topics.get("orders") is known) is is_wanted
    assert accumulator.forget_idle("orders")


def test_a_consumer_forgets_topics_that_it_reads_no_more(cluster: InProcessCluster):
    names = [f"hour-{number}" for number in range(5)]
    with Admin(cluster) as admin:
        for name in names:
            admin.create_topic(name)
    with Consumer(cluster=cluster, **IDLE) as consumer:
        for name in names:
            consumer.assign([TopicPartition(name, 0)])
            consumer.poll(0)

        def are_forgotten() -> bool:
            consumer.poll(10)
            return list(consumer._core.fetcher.metadata._topics) == names[-1:]

        until(are_forgotten)
        consumer.assign([TopicPartition(names[0], 0)])
        assert consumer.position(TopicPartition(names[0], 0)) == 0
