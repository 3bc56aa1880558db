"""A cluster that grows with its load and shrinks again, on a Ray with its own autoscaler.

    python -m tests.ray.elastic

A load that three brokers are too few for ends at five, with data on them; then the load goes down until it is three
again. A producer and a group run throughout, and the supervisor is killed while a broker comes, and while one goes. The
last line says what was seen, as JSON; a problem ends it with an error.
"""

import json
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.autoscaler.sdk import request_resources

import rayka
from rayka.actors import supervise
from rayka.actors.scaling import rooms
from rayka.cluster import Cluster
from rayka.errors import RaykaError
from tests.ray.autoscaled_ray import HEAD, autoscaled_ray
from tests.ray.sender import Sender
from tests.ray.support import kill

NAME, TOPIC, PARTITIONS = "elastic", "clicks", 12
MACHINE = {"CPU": 1.0, "machine": 1.0}
BROKERS = {"min": 3, "max": 5}
BUSY_PAUSE_S, IDLE_PAUSE_S = 0.01, 0.2
_STEP_TIMEOUT_S = 200
_LOOK_S = 0.25


def spec(data_dir: str) -> dict[str, Any]:
    """Short windows, and a target that a hundred small records a second are above with four brokers."""
    return {
        "name": NAME,
        "data_dir": data_dir,
        "brokers": BROKERS,
        "scaling": {
            "bytes_in": 2_000,
            "disk_share": None,
            "processor_share": None,
            "partitions": None,
            "out_window_s": 2,
            "in_window_s": 3,
        },
        "resources": {
            "broker": {"num_cpus": 0.05, "resources": {"machine": 1.0}},
            "controller": {"num_cpus": 0.02, "resources": dict.fromkeys(HEAD, 0.01)},
        },
        "config": {
            "default.replication.factor": 2,
            "min.insync.replicas": 1,
            "broker.load.report.interval.ms": 300,
            "balancer.settle.ms": 500,
        },
    }


class Group(threading.Thread):
    """A member of a group that reads what is sent; it stops once it has read so many different values."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="group", daemon=True)
        self._consumer = rayka.Consumer(
            TOPIC, cluster=cluster, group_id="readers", auto_offset_reset="earliest"
        )
        self._is_stopping = threading.Event()
        self.values: list[bytes] = []

    def run(self) -> None:
        with self._consumer as consumer:
            while not self._is_stopping.is_set():
                self.values += [each.value or b"" for each in consumer.poll(timeout_ms=500)]

    def stop_after(self, count: int) -> None:
        """Waits until it has so many different ones."""
        await_that(lambda: len(set(self.values)) >= count, lambda: f"{len(set(self.values))} of {count} read")
        self._is_stopping.set()
        self.join(_STEP_TIMEOUT_S)


class Watch(threading.Thread):
    """Looks at the cluster all the time: how many brokers and machines there are, and whether a replica is missing."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="watch", daemon=True)
        self._cluster = cluster
        self._began_s = time.monotonic()
        self._is_stopping = threading.Event()
        self.seen: list[tuple[float, int, int]] = []
        self.factors: set[int] = set()
        self.problems: list[str] = []

    def run(self) -> None:
        with rayka.Admin(cluster=self._cluster) as admin:
            while not self._is_stopping.wait(_LOOK_S):
                try:
                    self._look(admin)
                except RaykaError as error:
                    self.problems.append(str(error))

    def _look(self, admin: rayka.Admin) -> None:
        found = admin.describe_cluster()
        active = sum(each.state == "active" for each in found.brokers)
        if not self.seen or self.seen[-1][1:] != (active, machines()):
            self.seen.append((round(time.monotonic() - self._began_s, 1), active, machines()))
            print(*self.seen[-1], flush=True)
        self.factors |= {
            len(set(each.replicas) - set(each.adding_replicas))
            for each in admin.describe_topic(TOPIC).partitions
        }

    def stop(self) -> None:
        self._is_stopping.set()
        self.join(_STEP_TIMEOUT_S)


def machines() -> int:
    """How many machines Ray has, beside its head."""
    return sum(each["Alive"] and "machine" in each["Resources"] for each in ray.nodes())


def await_that(holds: Callable[[], bool], said: Callable[[], object]) -> float:
    """How long it took. Raises AssertionError that says how it stands when it takes too long."""
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < _STEP_TIMEOUT_S, said()
        time.sleep(_LOOK_S)
    return round(time.monotonic() - began_s, 1)


def run(data_dir: str, address: str) -> dict[str, Any]:
    """See the module."""
    request_resources(
        bundles=[{"machine": 1.0}] * BROKERS["min"]
    )  # so many machines stay, whatever runs on them
    await_that(lambda: machines() == BROKERS["min"], machines)
    cluster = Cluster.start(ray={"address": address}, **spec(data_dir))
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS)
        sender, group, watch = Sender(cluster, TOPIC, pause_s=IDLE_PAUSE_S), Group(cluster), Watch(cluster)
        for each in (sender, group, watch):
            each.start()
        times = []
        try:
            sender.pause_s = BUSY_PAUSE_S
            await_that(lambda: bool(rooms.find(NAME)), lambda: told(cluster))
            kill_supervisor()  # the next one finds what was asked of Ray
            times.append(await_that(lambda: is_large(admin), lambda: told(cluster)))
            sender.pause_s = IDLE_PAUSE_S
            await_that(lambda: is_shrinking(cluster), lambda: told(cluster))
            kill_supervisor()  # the next one finds which broker is to go
            times.append(await_that(lambda: is_small(cluster, admin), lambda: told(cluster)))
        finally:
            sender.stop()
        group.stop_after(len(sender.acknowledged))
        watch.stop()
        assert is_small(cluster, admin), told(cluster)
        decided = [(each.kind, *each.subjects) for each in admin.events() if each.kind.startswith("scale")]
    read = len(sender.check())
    assert {int(each) for each in group.values} >= set(sender.acknowledged)
    assert min(watch.factors) == spec(data_dir)["config"]["default.replication.factor"], watch.factors
    left = sorted(os.listdir(os.path.join(data_dir, NAME)))
    cluster.stop()
    gap_s = round(sender.longest_gap_s(sender.times[0], sender.times[-1]), 1)
    return {
        "times_s": times, "records": read, "failed": len(sender.failed), "gap_s": gap_s,
        "problems": watch.problems, "directories": left, "seen": watch.seen,
        "decided": decided,
    }  # fmt: skip


def check(result: dict[str, Any]) -> None:
    """Raises AssertionError unless the cluster followed its load and nothing was refused."""
    counts = [brokers for _, brokers, _ in result["seen"]]
    assert (counts[0], max(counts), counts[-1]) == (3, 5, 3), result
    assert result["seen"][-1][2] == 3, f"Ray takes the machines of brokers that have gone: {result}"
    assert (result["failed"], result["problems"]) == (0, []), result
    assert result["directories"] == ["broker-1", "broker-2", "broker-3", "controller-3001"], result
    begun = [tuple(each) for each in result["decided"] if each[0] == "scale-out-begun"]
    assert begun == [("scale-out-begun", "broker-4"), ("scale-out-begun", "broker-5")], result
    ended = {name for kind, name in result["decided"] if kind == "scale-in-ended"}
    assert ended == {"broker-4", "broker-5"}, result


def is_large(admin: rayka.Admin) -> bool:
    """Whether there are as many brokers as may be, and each leads partitions."""
    leaders = [each.node_id for each in admin.describe_cluster().brokers if each.leader_count]
    return len(leaders) == BROKERS["max"]


def is_shrinking(cluster: Cluster) -> bool:
    """Whether a broker is being emptied."""
    scaling = cluster.describe().scaling
    return scaling is not None and scaling.desired < scaling.actual


def kill_supervisor() -> None:
    """Ends its process; Ray starts another one."""
    handle = supervise.find(NAME)
    assert handle is not None
    kill(ray.get(handle.pid.remote(), timeout=_STEP_TIMEOUT_S))


def is_small(cluster: Cluster, admin: rayka.Admin) -> bool:
    """Whether the brokers that came have gone, and their machines."""
    scaling = cluster.describe().scaling
    count = BROKERS["min"]
    return (
        scaling is not None
        and (scaling.desired, scaling.actual) == (count, count)
        and len(admin.describe_cluster().brokers) == count == machines()
    )


def told(cluster: Cluster) -> str:
    """How the cluster stands."""
    return f"{cluster.describe().scaling}, {machines()} machines"


def main() -> None:
    """See the module."""
    logging.basicConfig(level=logging.ERROR)
    data_dir = tempfile.mkdtemp()
    try:
        with autoscaled_ray(MACHINE, machines_max=BROKERS["max"], idle_s=6) as address:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
            try:
                result = run(data_dir, address)
            finally:
                ray.shutdown()
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)
    print(json.dumps(result))
    check(result)


if __name__ == "__main__":
    main()
