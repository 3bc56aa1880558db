"""Workers on a real Ray: they share partitions, outlive the end of a process, scale by lag, and drain."""

import os
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import rayka
from rayka.cluster import Cluster
from rayka.errors import ConfigError, UnknownTopicOrPartition, WorkFailed
from rayka.worker_pool import scaling
from rayka.worker_pool.pool import WorkerPool
from tests.ray.support import wait_until

pytestmark = pytest.mark.ray
_numbers = count()
PARTITIONS, COUNT = 4, 400
WORKERS: dict[str, Any] = {"ray_options": {"num_cpus": 0}, "session_timeout_ms": 6_000}


class Copy:
    """Sends what it is given to another topic; made in each worker."""

    def __init__(self) -> None:
        self._producer = rayka.Producer(cluster="shared")

    def __call__(self, batch: list[rayka.Record]) -> None:
        for record in batch:
            self._producer.send(f"{record.topic}-copy", record.value)
        self._producer.flush()
        time.sleep(0.05)


def copy_slowly_until_told(batch: list[rayka.Record]) -> None:
    """Half a second a batch, so that another worker is asked for while there is much to do."""
    if not os.path.exists(os.environ["RAYKA_TEST_MARK"]):
        time.sleep(0.5)
    Copy()(batch)


def end_own_process(batch: list[rayka.Record]) -> None:
    """Half way, once: the group has nothing of it then."""
    if any(record.value == b"200" for record in batch) and not os.path.exists(os.environ["RAYKA_TEST_MARK"]):
        with open(os.environ["RAYKA_TEST_MARK"], "w") as mark:
            mark.write(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    Copy()(batch)


def fail(batch: list[rayka.Record]) -> None:
    raise LookupError("never")


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """With numbers in all partitions, and another one to copy them to."""
    name = f"work-{next(_numbers)}"
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(name, partitions=PARTITIONS)
        admin.create_topic(f"{name}-copy")
    with rayka.Producer(cluster=cluster) as producer:
        for number in range(COUNT):
            producer.send(name, b"%d" % number, partition=number % PARTITIONS)
    return name


def copied(cluster: Cluster, topic: str) -> set[bytes | None]:
    return {each.value for each in rayka.read(f"{topic}-copy", cluster=cluster)}


EXPECTED = {b"%d" % number for number in range(COUNT)}


def test_workers_come_and_go_by_lag_and_everything_is_worked_off(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records come while the worker that is too many is drained; it hands over what it has not done."""
    monkeypatch.setattr(scaling, "DOWN_AFTER_S", 3.0)
    mark = tmp_path / "mark"
    with rayka.workers(
        copy_slowly_until_told, topic, cluster=cluster, group_id=topic, max=2, target_lag_seconds=0.5, max_records=5,
        **_with_mark(mark),
    ) as pool:  # fmt: skip
        wait_until(lambda: sum(each.partitions > 0 for each in pool.status().workers) == 2)
        mark.touch()
        wait_until(lambda: copied(cluster, topic) == EXPECTED)
        wait_until(lambda: pool.status().lag_records == 0)
        sent = send_until(lambda: is_alone(pool), cluster, topic)
        assert len(_members(cluster, topic)) == 1
        wait_until(lambda: copied(cluster, topic) == EXPECTED | sent)
        wait_until(lambda: pool.status().records >= COUNT + len(sent))  # what the drained one did counts, too
        status = pool.status()
    assert (status.wanted, len(status.workers), status.poison, status.replaced) == (1, 1, 0, 0)
    assert _members(cluster, topic) == ()


def is_alone(pool: WorkerPool) -> bool:
    """Whether one worker is wanted and there, with all partitions."""
    status = pool.status()
    return status.wanted == 1 and [each.partitions for each in status.workers] == [PARTITIONS]


def send_until(holds: Callable[[], bool], cluster: Cluster, topic: str) -> set[bytes]:
    """Sends a few records to each partition, again and again, until the condition holds; their values."""
    numbers, sent = count(COUNT), set[bytes]()
    with rayka.Producer(cluster=cluster) as producer:

        def send() -> bool:
            number = next(numbers)
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS).result(30)
            sent.add(b"%d" % number)
            time.sleep(0.2)  # little enough for one worker
            return holds()

        wait_until(send)
    return sent


def _members(cluster: Cluster, group_id: str) -> tuple[Any, ...]:
    with rayka.Admin(cluster=cluster) as admin:
        return admin.describe_group(group_id).members


def _with_mark(mark: Path) -> dict[str, Any]:
    environment = {"env_vars": {"RAYKA_TEST_MARK": str(mark)}}
    return {**WORKERS, "ray_options": {"num_cpus": 0, "runtime_env": environment}}


def test_a_worker_whose_process_ends_is_replaced_and_nothing_is_lost(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    with rayka.workers(
        end_own_process, topic, cluster=cluster, group_id=topic, max_records=50, **_with_mark(mark)
    ) as pool:
        wait_until(lambda: copied(cluster, topic) == EXPECTED)
        assert pool.status().replaced == 1
    assert mark.exists()


def test_a_worker_that_ray_has_no_place_for_is_not_waited_for(cluster: Cluster, topic: str) -> None:
    options = {**WORKERS, "ray_options": {"num_cpus": 0, "resources": {"nowhere": 1}}}
    pool = rayka.workers(Copy, topic, cluster=cluster, group_id=topic, **options)
    wait_until(lambda: len(pool.status().workers) == 1)
    pool.stop()  # else it would be killed at the end of the timeout, and count as a process that ended
    status = pool.status()
    assert (status.workers, status.replaced) == ((), 0)


def test_a_function_that_always_fails_ends_the_pool(cluster: Cluster, topic: str) -> None:
    pool = rayka.workers(fail, topic, cluster=cluster, group_id=topic, retries=0, **WORKERS)
    with pytest.raises(WorkFailed, match="LookupError\\('never'\\)"):
        pool.wait(60)
    with pytest.raises(WorkFailed):
        pool.stop()


def test_what_cannot_be_run_is_refused(cluster: Cluster, topic: str) -> None:
    with pytest.raises(ConfigError, match="group_id: expected the name"):
        rayka.workers(fail, topic, cluster=cluster)
    with pytest.raises(TypeError, match="expected a function or a class, found int"):
        rayka.workers(5, topic, cluster=cluster, group_id="g")  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicOrPartition, match="nowhere"):
        rayka.workers(fail, "nowhere", cluster=cluster, group_id="g")
