"""Pools whose workers are threads of this process, on the real nodes in it: as users test their own functions."""

import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import rayka
import rayka.testing
from rayka import Record, TopicPartition
from rayka.errors import UnknownTopicOrPartition, WorkFailed
from rayka.testing import InProcessCluster
from tests.testing.waiting import wait_until

COUNT, PARTITIONS = 200, 4
_topics = (f"tasks-{number}" for number in count())


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster() as running:
        yield running


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    """With the numbers from 0 on."""
    name = next(_topics)
    with rayka.Admin(cluster=cluster) as admin, rayka.Producer(cluster=cluster) as producer:
        admin.create_topic(name, partitions=PARTITIONS)
        for number in range(COUNT):
            producer.send(name, b"%d" % number, partition=number % PARTITIONS)
    return name


def pool_of(cluster: InProcessCluster, topic: str, work: Any, **options: Any) -> Any:
    given = {
        "group_id": topic,
        "heartbeat_interval_ms": 50,
        "max_records": 10,
        "retry_backoff_ms": 1,
        **options,
    }
    return rayka.workers(work, topic, cluster=cluster, **given)


def committed_count(cluster: InProcessCluster, topic: str) -> int:
    with rayka.Consumer(cluster=cluster, group_id=topic) as consumer:
        found = consumer.committed([TopicPartition(topic, each) for each in range(PARTITIONS)])
    return sum(each.offset for each in found.values() if each is not None)


def test_several_workers_share_the_partitions_and_commit_all_that_they_handled(
    cluster: InProcessCluster, topic: str
) -> None:
    seen: Counter[bytes] = Counter()
    threads: set[str] = set()

    def work(batch: list[Record]) -> None:
        threads.add(threading.current_thread().name)
        seen.update(each.value for each in batch)

    with pool_of(cluster, topic, work, min=2) as pool:
        wait_until(
            lambda: len(pool.status().workers) == 2 and all(each.partitions for each in pool.status().workers)
        )
        with rayka.Producer(cluster=cluster) as producer:
            for number in range(COUNT, 2 * COUNT):
                producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
        wait_until(lambda: len(seen) == 2 * COUNT)
    assert len(threads) == 2
    assert pool.status().records >= 2 * COUNT
    assert committed_count(cluster, topic) == 2 * COUNT
    with rayka.Admin(cluster=cluster) as admin:
        wait_until(lambda: not admin.describe_group(topic).members)


def test_of_a_class_each_worker_makes_an_instance(cluster: InProcessCluster, topic: str) -> None:
    made: list[object] = []

    class Work:
        def __init__(self) -> None:
            made.append(self)
            self.count = 0

        def __call__(self, batch: list[Record]) -> None:
            self.count += len(batch)

    with pool_of(cluster, topic, Work, min=2):
        wait_until(lambda: sum(each.count for each in made) >= COUNT)  # type: ignore[attr-defined]
    assert len(made) == 2


def test_poison_ends_the_pool_and_is_raised(cluster: InProcessCluster, topic: str) -> None:
    def fail(batch: list[Record]) -> None:
        raise LookupError("never")

    with pytest.raises(WorkFailed, match="LookupError"), pool_of(cluster, topic, fail, retries=1) as pool:
        pool.wait()
    assert committed_count(cluster, topic) == 0


def test_a_worker_that_a_systemexit_ends_is_replaced(cluster: InProcessCluster, topic: str) -> None:
    seen: list[bytes] = []
    has_ended = threading.Event()

    def work(batch: list[Record]) -> None:
        if not has_ended.is_set():
            has_ended.set()
            raise SystemExit
        seen.extend(each.value for each in batch)

    with pool_of(cluster, topic, work) as pool:
        wait_until(lambda: len(set(seen)) == COUNT)
        wait_until(lambda: pool.status().replaced == 1)


def test_a_worker_that_hangs_holds_stop_up_no_longer_than_its_timeout(
    cluster: InProcessCluster, topic: str
) -> None:
    begun, released = threading.Event(), threading.Event()

    def hang(batch: list[Record]) -> None:
        begun.set()
        released.wait()

    pool = pool_of(cluster, topic, hang)
    assert begun.wait(60)
    pool.stop(timeout=0.1)
    assert pool.wait(60)
    released.set()
    with rayka.Admin(cluster=cluster) as admin:
        wait_until(lambda: not admin.describe_group(topic).members)


def test_a_topic_that_does_not_exist_is_told_at_once(cluster: InProcessCluster) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="nowhere"):
        pool_of(cluster, "nowhere", print)


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        ({"max": 2}, True),
        ({"max": 2, "target_lag_seconds": 5}, False),
        ({"min": 2, "max": 2}, False),
        ({}, False),
    ],
    ids=str,
)
def test_a_maximum_without_a_target_is_told_to_change_nothing(
    cluster: InProcessCluster,
    topic: str,
    options: dict[str, Any],
    is_told: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pool_of(cluster, topic, lambda batch: None, **options):
        pass
    said = [each.message for each in caplog.records if "has no effect" in each.message]
    assert len(said) == is_told
    assert not said or said[0].endswith(
        "max=2 has no effect without target_lag_seconds: there are min=1 workers; name a target, or min=2 for so many"
        " from the beginning"
    )
