"""What one worker does with its batches, on the real nodes in this process."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

import rayka
import rayka.testing
from rayka.config.client_config import WorkersConfig
from rayka.errors import ConfigError, SerializationError, WorkFailed
from rayka.testing import InProcessCluster
from rayka.worker_pool.work_loop import Worker
from rayka.worker_pool.worker_hosts import consumer_options
from tests.testing.waiting import WAIT_S

_topics = (f"work-{number}" for number in count())
COUNT = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(config={"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    """With the numbers from 0 on."""
    name = next(_topics)
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(name)
    with rayka.Producer(cluster=cluster) as producer:
        for number in range(COUNT):
            producer.send(name, b"%d" % number)
    return name


class Running:
    """A worker in a thread. `until` drains it once the condition holds, and raises what it ended with."""

    def __init__(
        self, cluster: InProcessCluster, topic: str, work: Callable[[Any], object], **options: Any
    ) -> None:
        given = {"group_id": topic, "retry_backoff_ms": 1, "max_records": 5, **options}
        config = WorkersConfig.parse(given, what="workers")
        consumer = rayka.Consumer(topic, cluster=cluster, config=consumer_options(config))
        self.worker = Worker(1, consumer, work, config)
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except Exception as error:
            self.error = error

    def until(self, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while self._thread.is_alive() and not holds():
            assert time.monotonic() < deadline_s, self.worker.status()
            time.sleep(0.01)
        self.worker.drain()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


def committed(cluster: InProcessCluster, topic: str) -> int | None:
    with rayka.Consumer(cluster=cluster, group_id=topic) as consumer:
        (found,) = consumer.committed([rayka.TopicPartition(topic, 0)]).values()
    return None if found is None else found.offset


def test_what_the_function_has_returned_from_is_committed(cluster: InProcessCluster, topic: str) -> None:
    seen: list[bytes] = []
    running = Running(cluster, topic, lambda batch: seen.extend(each.value for each in batch))
    running.until(lambda: len(seen) == COUNT)
    assert seen == [b"%d" % number for number in range(COUNT)]
    status = running.worker.status()
    assert (status.records, status.retries, status.poison) == (COUNT, 0, 0)
    assert committed(cluster, topic) == COUNT


def test_batches_have_at_most_so_many_records(cluster: InProcessCluster, topic: str) -> None:
    sizes: list[int] = []
    running = Running(cluster, topic, lambda batch: sizes.append(len(batch)), max_records=3)
    running.until(lambda: sum(sizes) == COUNT)
    assert max(sizes) == 3


def test_batches_may_be_of_arrow(cluster: InProcessCluster, topic: str) -> None:
    seen: list[pa.RecordBatch] = []
    running = Running(cluster, topic, seen.append, batch="arrow")
    running.until(lambda: sum(map(len, seen)) == COUNT)
    assert all(len(each) <= 5 for each in seen)
    assert [value for each in seen for value in each["value"].to_pylist()] == [
        b"%d" % n for n in range(COUNT)
    ]
    assert committed(cluster, topic) == COUNT


class Fails:
    """A function that fails on the value 7, the first so many times."""

    def __init__(self, times: int = 1_000) -> None:
        self.times = times
        self.seen: list[bytes] = []
        self.poison: list[Any] = []

    def __call__(self, batch: Any) -> None:
        is_arrow = isinstance(batch, pa.RecordBatch)
        values = batch["value"].to_pylist() if is_arrow else [each.value for each in batch]
        if b"7" in values and self.times:
            self.times -= 1
            raise LookupError("seven")
        self.seen += values

    def keep(self, record: Any, error: Exception) -> None:
        self.poison.append((record and record.value, str(error)))


def test_a_batch_that_fails_is_tried_again(cluster: InProcessCluster, topic: str) -> None:
    work = Fails(times=3)
    running = Running(cluster, topic, work)
    running.until(lambda: len(work.seen) == COUNT)
    assert running.worker.status().retries == 3
    assert committed(cluster, topic) == COUNT


@pytest.mark.parametrize("batch", ["records", "arrow"])
def test_a_batch_that_fails_for_good_ends_the_worker_and_is_not_committed(
    cluster: InProcessCluster, topic: str, batch: str
) -> None:
    work = Fails()
    running = Running(cluster, topic, work, retries=2, batch=batch)
    with pytest.raises(
        WorkFailed, match=rf"{topic}-0 offset 5 to {topic}-0 offset 9: the function failed 3 times"
    ):
        running.until(lambda: False)
    assert committed(cluster, topic) == 5
    assert len(work.seen) == 5


def test_only_the_record_that_fails_is_passed_over(cluster: InProcessCluster, topic: str) -> None:
    work = Fails()
    running = Running(cluster, topic, work, retries=1, on_poison=work.keep)
    running.until(lambda: len(work.seen) == COUNT - 1)
    assert work.poison == [(b"7", "seven")]
    assert running.worker.status().poison == 1
    assert committed(cluster, topic) == COUNT


def test_a_record_that_cannot_be_deserialized_is_poison(cluster: InProcessCluster, topic: str) -> None:
    with rayka.Producer(cluster=cluster) as producer:
        producer.send(topic, b"{")
        producer.send(topic, b"20")
    stopped = Running(cluster, topic, lambda batch: None, value_deserializer="json")
    with pytest.raises(SerializationError, match=f"offset {COUNT}"):
        stopped.until(lambda: False)
    work = Fails(times=0)
    skipping = Running(
        cluster, topic, work, value_deserializer="json", on_poison=work.keep, group_id=f"{topic}-skip"
    )
    skipping.until(lambda: len(work.seen) == COUNT + 1)
    assert work.seen[-1] == 20
    assert [record for record, _ in work.poison] == [None]


def test_a_record_that_cannot_be_deserialized_is_committed_where_none_follows(
    cluster: InProcessCluster, topic: str
) -> None:
    with rayka.Producer(cluster=cluster) as producer:
        producer.send(topic, b"{")
    running = Running(cluster, topic, lambda batch: None, value_deserializer="json", on_poison="skip")
    running.until(lambda: running.worker.status().poison == 1)
    assert committed(cluster, topic) == COUNT + 1


def test_a_worker_that_is_to_drain_does_not_wait_for_its_next_try(
    cluster: InProcessCluster, topic: str
) -> None:
    work = Fails()
    running = Running(cluster, topic, work, retry_backoff_ms=1_000_000)
    running.until(lambda: work.times < 1_000)
    assert committed(cluster, topic) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min": 3, "max": 2}, "max: expected min=3 or more"),
        ({"on_poison": "ignore"}, "on_poison: expected 'stop', 'skip' or a callable"),
        ({"batch": "rows"}, "batch"),
        ({"max_records": 0}, "max_records"),
        ({"target_lag_seconds": 0}, "target_lag_seconds"),
        ({"enable_auto_commit": True}, "enable_auto_commit: expected false"),
        ({"group_instance_id": "one"}, "group_instance_id: expected none"),
        ({"max_recrods": 5}, "the nearest known key is 'max_records'"),
    ],
    ids=lambda each: str(each)[:30],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkersConfig.parse({"group_id": "g", **options}, what="workers")
