"""A consumer whose cluster answers nothing says so, and one of an idle cluster does not; mostly in virtual time."""

from collections.abc import Callable
from typing import Any

import pytest

import rayka
import rayka.testing
from rayka import Admin, Consumer, Producer
from rayka.errors import UnavailableError
from rayka.protocol.topics import CreatePartitionsRequest, NewPartitions
from tests.testing.virtual import CONTROLLER, TOPIC, VirtualConsumer, VirtualProducer, virtual_cluster
from tests.testing.waiting import wait_until

LIMIT_MS = 60_000
AT_ONCE = {"group.initial.rebalance.delay.ms": 0}  # a join that waits is as silent as a cluster that is down


def test_a_cluster_that_answers_nothing_is_told_within_the_limit_and_then_once_in_as_long() -> None:
    with virtual_cluster() as cluster:
        producer = VirtualProducer(cluster, pause_ms=100)
        consumer = VirtualConsumer(cluster)
        cluster.go_on(5_000)
        producer.end()
        cluster.go_on(5_000)
        with cluster.cut_off():
            cut_off_ms = cluster.now_ms
            cluster.go_on(3 * LIMIT_MS + 5_000)
        first_ms, *later_ms = consumer.unavailable_ms
        assert LIMIT_MS - 1_000 <= first_ms - cut_off_ms <= LIMIT_MS + 500
        assert len(later_ms) == 2


def test_reading_goes_on_when_the_cluster_answers_again() -> None:
    with virtual_cluster() as cluster:
        consumer = VirtualConsumer(cluster)
        cluster.go_on(1_000)
        with cluster.cut_off():
            cluster.go_on(LIMIT_MS + 5_000)
        assert len(consumer.unavailable_ms) == 1
        producer = VirtualProducer(cluster, pause_ms=100)
        cluster.go_on(5_000)
        producer.end()
        cluster.until(lambda: len(consumer.values) == producer.count)
        assert consumer.values == [b"%d" % number for number in range(producer.count)]
        cluster.go_on(2 * LIMIT_MS)
        assert len(consumer.unavailable_ms) == 1


@pytest.mark.parametrize("fetch_max_wait_ms", [500, 100_000])
def test_an_idle_topic_is_no_silence(fetch_max_wait_ms: int) -> None:
    with virtual_cluster() as cluster:
        consumer = VirtualConsumer(cluster, fetch_max_wait_ms=fetch_max_wait_ms, request_timeout_ms=200_000)
        cluster.go_on(5 * LIMIT_MS)
        assert consumer.unavailable_ms == []


def test_a_partition_without_a_leader_is_no_silence_while_its_metadata_are_answered() -> None:
    with virtual_cluster() as cluster:
        consumer = VirtualConsumer(cluster)
        cluster.go_on(1_000)
        for broker_id in (1, 2, 3):
            cluster.silence(broker_id)
        cluster.go_on(3 * LIMIT_MS)
        assert consumer.unavailable_ms == []


def test_partitions_that_are_added_are_found_within_the_age_of_metadata() -> None:
    with virtual_cluster() as cluster:
        consumer = VirtualConsumer(cluster, metadata_max_age_ms=90_000)
        cluster.go_on(10_000)
        request = CreatePartitionsRequest((NewPartitions(TOPIC, 2, assignments=((1, 2, 3),)),))
        cluster.run(cluster.network().call(CONTROLLER, request, 10_000))
        added_ms = cluster.now_ms
        cluster.sim.run_until_ms(added_ms + 200_000, lambda: len(consumer.partitions) == 2)
        assert cluster.now_ms - added_ms <= 92_000


WAYS: dict[str, Callable[[Consumer], Any]] = {
    "loop": lambda consumer: next(iter(consumer)),
    "poll": lambda consumer: consumer.poll(timeout_ms=60_000),
    "arrow": lambda consumer: consumer.poll_arrow(timeout_ms=60_000),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("group_id", [None, "readers"])
def test_a_consumer_of_a_stopped_cluster_says_so_and_goes_on_when_it_is_back(
    way: str, group_id: str | None
) -> None:
    with rayka.testing.cluster(config=AT_ONCE) as cluster, Admin(cluster=cluster) as admin:
        admin.create_topic("orders")
        options = {"default_api_timeout_ms": 300, "fetch_max_wait_ms": 50, "auto_offset_reset": "earliest"}
        with Consumer("orders", cluster=cluster, group_id=group_id, **options) as consumer:
            wait_until(lambda: poll_again(consumer, 1) == [] and len(consumer.assignment()) == 1)
            consumer.position(next(iter(consumer.assignment())))
            for node_id in (1, 3001):
                cluster.kill(node_id)
            with pytest.raises(
                UnavailableError, match="no node of cluster 'testing' has answered for 300 ms"
            ):
                WAYS[way](consumer)
            for node_id in (3001, 1):
                cluster.restart(node_id)
            with Producer(cluster=cluster) as producer:
                producer.send("orders", b"back").result(30)
            read: list[rayka.Record] = []
            wait_until(lambda: bool(read.extend(poll_again(consumer)) or read))
            assert [record.value for record in read] == [b"back"]


def poll_again(consumer: Consumer, timeout_ms: int = 1_000) -> list[rayka.Record]:
    """It may not have asked the cluster that is there, or back, yet."""
    try:
        return consumer.poll(timeout_ms)
    except UnavailableError:
        return []
