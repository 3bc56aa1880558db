"""A cluster that grows with its load and shrinks again, on a Ray with its own autoscaler.

    python -m tests.ray.elastic [--minutes N] [--picture FILE.svg] [--each-step]

A load that three brokers are too few for ends at five, with data on them; a machine dies for good, its replicas are
made anew, and another one comes for it until all are in sync; then the load goes down until it is three again. A
producer and a group run throughout, and the supervisor is killed while the second broker comes, and while one goes.
With `--each-step` the supervisor is killed at each of its steps, too: after each event of scaling.
With `--minutes`, on a machine that does nothing else, the load rises and falls until they are over, and how soon the
first broker came counts. The last line says what was seen, as JSON; a problem ends it with an error.
"""

import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import psutil
import ray
from ray.autoscaler.sdk import request_resources
from ray.autoscaler.v2.sdk import get_cluster_status

import rayka
from rayka.actors import scaling_rooms, supervisor_handle
from rayka.cluster import Cluster
from rayka.errors import RaykaError
from tests.forks import kill_all, processes_of, raylet_of
from tests.ray.autoscaled_ray import HEAD, autoscaled_ray
from tests.ray.elastic_picture import Look, Mark, picture
from tests.ray.sender import Sender
from tests.ray.support import kill, pid_of

NAME, TOPIC, PARTITIONS, FACTOR = "elastic", "clicks", 12, 2
MACHINE = {"CPU": 1.0, "machine": 1.0}
BROKERS = {"min": 3, "max": 5}
FIRST, LAST = BROKERS["min"] + 1, BROKERS["max"]  # the brokers that come
BUSY_PAUSE_S, IDLE_PAUSE_S = 0.01, 0.2
VALUE_BYTES, TARGET_BYTES = 1_000, 20_000
WINDOW_S, REACTION_MAX_S = 2.0, 15.0
_STEP_TIMEOUT_S = 200
_LOOK_S, _WATCH_S = 0.25, 0.5


def spec(data_dir: str) -> dict[str, Any]:
    """Short windows, and a target that a hundred records a second are above with four brokers."""
    return {
        "name": NAME,
        "data_dir": data_dir,
        "brokers": BROKERS,
        "scaling": {
            "bytes_in": TARGET_BYTES,
            "disk_share": None,
            "processor_share": None,
            "partitions": None,
            "out_window_s": WINDOW_S,
            "in_window_s": 3,
        },
        "resources": {
            "broker": {"num_cpus": 0.05, "resources": {"machine": 1.0}},
            "controller": {"num_cpus": 0.02, "resources": dict.fromkeys(HEAD, 0.01)},
        },
        "config": {
            "default.replication.factor": FACTOR,
            "min.insync.replicas": 1,
            "broker.load.report.interval.ms": 300,
            "broker.unavailable.timeout.ms": 8_000,
            "balancer.settle.ms": 500,
        },
    }


class Group(threading.Thread):
    """A member of a group that reads what is sent; it stops once it has read so many different values."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="group", daemon=True)
        self._consumer = rayka.Consumer(cluster=cluster, group_id="readers", auto_offset_reset="earliest")
        self._is_stopping = threading.Event()
        self.values: list[int] = []
        self.lost_count = 0  # times that the member was taken for dead: its last records come again then

    def run(self) -> None:
        with self._consumer as consumer:
            consumer.subscribe(TOPIC, on_lost=self._on_lost)
            while not self._is_stopping.is_set():
                self.values += [int(each.value or b"-1") for each in consumer.poll(timeout_ms=500)]

    def _on_lost(self, _: object) -> None:
        self.lost_count += 1

    def twice(self) -> list[int]:
        """Values that were given more than once. A member that lives commits what it was given before its partitions
        go, and goes on where it was when its coordinator moves, so there is none unless the group took it for dead.
        """
        return sorted(value for value, times in Counter(self.values).items() if times > 1)

    def stop_after(self, count: int) -> None:
        """Waits until it has so many different ones."""
        await_that(lambda: len(set(self.values)) >= count, lambda: f"{len(set(self.values))} of {count} read")
        self._is_stopping.set()
        self.join(_STEP_TIMEOUT_S)


class Watch(threading.Thread):
    """Looks at the cluster all the time: what there is of it, and whether a replica is missing."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="watch", daemon=True)
        self._cluster = cluster
        self._is_stopping = threading.Event()
        self.began_s = time.monotonic()
        self.looks: list[Look] = []
        self.marks: list[Mark] = []
        self.factors: set[int] = set()
        self.problems: list[str] = []

    def run(self) -> None:
        with rayka.Admin(cluster=self._cluster) as admin:
            while not self._is_stopping.wait(_WATCH_S):
                try:
                    self._look(admin)
                except RaykaError as error:
                    self.problems.append(str(error))

    def mark(self, text: str) -> None:
        """Something was done now."""
        self.marks.append(Mark(time.monotonic() - self.began_s, text))
        print(*self.marks[-1], flush=True)

    def _look(self, admin: rayka.Admin) -> None:
        brokers = admin.describe_cluster().brokers
        loads = admin.describe_load(topics=[TOPIC]).brokers
        moves = admin.list_partition_reassignments()
        look = Look(
            at_s=time.monotonic() - self.began_s,
            brokers=sum(each.state == "active" for each in brokers),
            machines=machines(),
            moves=len(moves),
            sizes={each.node_id: each.size_bytes for each in loads if each.size_bytes >= 0},
            bytes_in=sum(each.bytes_in for each in loads),
            leaders=tuple(each.node_id for each in brokers if each.leader_count),
        )
        if not self.looks or self.looks[-1].counts != look.counts:
            print(round(look.at_s, 1), *look.counts, flush=True)
        self.looks.append(look)
        self.factors |= {
            len(set(each.replicas) - set(each.adding_replicas))
            for each in admin.describe_topic(TOPIC).partitions
        }

    @property
    def seen(self) -> list[tuple[float, int, int]]:
        """When there was another number of brokers or machines, and how many of each."""
        found: list[tuple[float, int, int]] = []
        for each in self.looks:
            if not found or found[-1][1:] != each.counts:
                found.append((round(each.at_s, 1), *each.counts))
        return found

    def reaction_s(self) -> float:
        """From when the load was above the target of three brokers to when the fourth one led partitions."""
        above_s = next(each.at_s for each in self.looks if each.bytes_in > BROKERS["min"] * TARGET_BYTES)
        return round(next(each.at_s for each in self.looks if FIRST in each.leaders) - above_s, 1)

    def stop(self) -> None:
        self._is_stopping.set()
        self.join(_STEP_TIMEOUT_S)


class StepKiller(threading.Thread):
    """Ends the supervisor after each step of scaling that it tells of, once for each kind and broker."""

    def __init__(self, cluster: Cluster, watch: Watch) -> None:
        super().__init__(name="step killer", daemon=True)
        self._cluster = cluster
        self._watch = watch
        self._is_stopping = threading.Event()
        self.steps: dict[tuple[str, tuple[str, ...]], None] = {}

    def run(self) -> None:
        last = None
        with rayka.Admin(cluster=self._cluster) as admin:
            while not self._is_stopping.wait(_LOOK_S):
                for each in admin.events(since=last):
                    last, step = each.number, (each.kind, each.subjects)
                    if each.kind.startswith("scale-") and step not in self.steps:
                        self.steps[step] = None
                        kill_supervisor(self._watch)

    def stop(self) -> None:
        self._is_stopping.set()
        self.join(_STEP_TIMEOUT_S)


def kill_supervisor(watch: Watch) -> None:
    """Ends its process; Ray starts another one."""
    handle = supervisor_handle.find(NAME)
    assert handle is not None
    while True:
        try:
            kill(ray.get(handle.pid.remote(), timeout=_STEP_TIMEOUT_S))
            break
        except ray.exceptions.ActorUnavailableError:  # it is being started anew
            time.sleep(_LOOK_S)
    watch.mark("supervisor killed")


class Trial:
    """A running cluster, a producer, a group and what watches them."""

    def __init__(self, cluster: Cluster, admin: rayka.Admin, *, kills_each_step: bool) -> None:
        self._cluster = cluster
        self._admin = admin
        self._kills_each_step = kills_each_step
        self.sender = Sender(cluster, TOPIC, pause_s=IDLE_PAUSE_S, width=VALUE_BYTES)
        self.group = Group(cluster)
        self.watch = Watch(cluster)
        self.killer = StepKiller(cluster, self.watch)
        self.times_s: list[float] = []
        self.whole_s: list[
            float
        ] = []  # from when there were enough brokers again to when all replicas were in sync

    def run(self, minutes: float) -> None:
        """The load rises and falls, once or until the minutes are over."""
        until_s = time.monotonic() + 60 * minutes
        for each in (self.sender, self.group, self.watch):
            each.start()
        if self._kills_each_step:
            self.killer.start()
        try:
            self._cycle(lambda: kill_supervisor(self.watch))
            while time.monotonic() < until_s:
                self._cycle(lambda: None)
        finally:
            self.sender.stop()
            if self._kills_each_step:
                self.killer.stop()
        self.group.stop_after(len(self.sender.acknowledged))
        self.watch.stop()
        assert is_small(self._cluster, self._admin), told(self._cluster)

    def _cycle(self, disturb: Callable[[], None]) -> None:
        self._rise(disturb)
        self._lose_machine()
        self._fall(disturb)

    def _rise(self, disturb: Callable[[], None]) -> None:
        self.watch.mark("load rises")
        self.sender.pause_s = BUSY_PAUSE_S
        self._await(lambda: LAST in scaling_rooms.find(NAME))
        disturb()  # the next supervisor finds what was asked of Ray
        self.times_s.append(self._await(lambda: is_large(self._admin)))

    def _fall(self, disturb: Callable[[], None]) -> None:
        self.watch.mark("load falls")
        self.sender.pause_s = IDLE_PAUSE_S
        self._await(lambda: is_shrinking(self._cluster))
        disturb()  # the next supervisor finds which broker is to go
        self.times_s.append(self._await(lambda: is_small(self._cluster, self._admin)))

    def _lose_machine(self) -> None:
        """That of the last broker, with its disk; what it held is made anew, and another one comes for it."""
        (node,) = (each for each in self._cluster.describe().nodes if each.node_id == LAST)
        raylet = raylet_of(pid_of(self._cluster, LAST))
        kill_all([psutil.Process(raylet), *processes_of(raylet)])
        for path in node.data_dirs:
            shutil.rmtree(path)
        known = self._admin.events()[-1].number
        self.watch.mark("machine lost")
        self._await(lambda: not is_large(self._admin))
        self.times_s.append(self._await(lambda: is_large(self._admin)))
        self.whole_s.append(self._await(lambda: is_whole(self._admin)))
        healing = [
            each.kind
            for each in self._admin.events(since=known)
            if each.kind.startswith("heal") and f"broker-{LAST}" in each.subjects
        ]
        assert healing == ["heal-begun", "heal-ended"], healing

    def _await(self, holds: Callable[[], bool]) -> float:
        return await_that(holds, lambda: told(self._cluster))


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


def run(
    data_dir: str, address: str, minutes: float, picture_path: Path | None, *, kills_each_step: bool
) -> dict[str, Any]:
    """See the module."""
    request_resources(
        bundles=[{"machine": 1.0}] * BROKERS["min"]
    )  # so many machines stay, whatever runs on them
    await_that(lambda: machines() == BROKERS["min"], machines)
    cluster = Cluster.start(ray={"address": address}, **spec(data_dir))
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS)
        trial = Trial(cluster, admin, kills_each_step=kills_each_step)
        trial.run(minutes)
        decided = [(each.kind, *each.subjects) for each in admin.events() if each.kind.startswith("scale")]
    sender, watch = trial.sender, trial.watch
    read = len(sender.check())
    group = trial.group
    assert {*group.values} >= set(sender.acknowledged)
    assert group.lost_count or not group.twice(), group.twice()
    assert min(watch.factors) == FACTOR, watch.factors
    left = sorted(os.listdir(os.path.join(data_dir, NAME)))
    cluster.stop()
    if picture_path is not None:
        acknowledged = [
            (at - watch.began_s, taken) for at, taken in zip(sender.times, sender.taken_s, strict=True)
        ]
        picture_path.write_text(picture(watch.looks, watch.marks, acknowledged))
    return {
        "times_s": trial.times_s, "whole_s": trial.whole_s, "reaction_s": watch.reaction_s(), "records": read,
        "failed": len(sender.failed), "given_twice": len(group.twice()), "member_lost": group.lost_count,
        "gap_s": round(sender.longest_gap_s(sender.times[0], sender.times[-1]), 1),
        "steps_killed_at": list(trial.killer.steps), "problems": watch.problems, "directories": left,
        "seen": watch.seen, "decided": decided,
    }  # fmt: skip


def check(result: dict[str, Any]) -> None:
    """Raises AssertionError unless the cluster followed its load and nothing was refused."""
    counts = [brokers for _, brokers, _ in result["seen"]]
    assert (counts[0], max(counts), counts[-1]) == (3, 5, 3), result
    assert result["seen"][-1][2] == 3, f"Ray takes the machines of brokers that have gone: {result}"
    assert (result["failed"], result["problems"]) == (0, []), result
    assert result["directories"] == ["broker-1", "broker-2", "broker-3", "controller-3001"], result
    begun = [tuple(each) for each in result["decided"] if each[0] == "scale-out-begun"]
    assert begun[:2] == [("scale-out-begun", "broker-4"), ("scale-out-begun", "broker-5")], result
    ended = {name for kind, name in result["decided"] if kind == "scale-in-ended"}
    assert ended >= {"broker-4", "broker-5"}, result


def is_large(admin: rayka.Admin) -> bool:
    """Whether there are as many brokers as may be, and each leads partitions."""
    leaders = [each.node_id for each in admin.describe_cluster().brokers if each.leader_count]
    return len(leaders) == BROKERS["max"]


def is_whole(admin: rayka.Admin) -> bool:
    """Whether all replicas of all partitions are there and in sync, and none moves."""
    partitions = admin.describe_topic(TOPIC).partitions
    return all(len(each.isr) == len(each.replicas) == FACTOR for each in partitions)


def is_shrinking(cluster: Cluster) -> bool:
    """Whether a broker is being emptied."""
    scaling = cluster.describe().scaling
    return scaling is not None and scaling.desired < scaling.actual


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
    """How the cluster stands, and why each machine is not idle."""
    nodes = get_cluster_status(ray.get_runtime_context().gcs_address).active_nodes
    activity = {str(each.node_id)[-2:]: each.node_activity for each in nodes}
    return f"{cluster.describe().scaling}, {machines()} machines: {activity}"


@click.command()
@click.option("--minutes", default=0.0, help="For how long the load rises and falls; once at least.")
@click.option(
    "--picture", "picture_path", type=click.Path(dir_okay=False, path_type=Path), help="Draw it over time."
)
@click.option("--each-step", "kills_each_step", is_flag=True, help="Kill the supervisor at each step.")
def main(minutes: float, picture_path: Path | None, kills_each_step: bool) -> None:
    """See the module."""
    logging.basicConfig(level=logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # and leaves no Ray behind
    data_dir, began_s = tempfile.mkdtemp(), time.monotonic()
    try:
        with autoscaled_ray(MACHINE, machines_max=BROKERS["max"], idle_s=6) as address:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
            try:
                result = run(data_dir, address, minutes, picture_path, kills_each_step=kills_each_step)
            finally:
                ray.shutdown()
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)
    print(json.dumps({"seconds": round(time.monotonic() - began_s, 1), **result}))
    check(result)
    if minutes:
        assert result["reaction_s"] <= WINDOW_S + REACTION_MAX_S, result


if __name__ == "__main__":
    main()
