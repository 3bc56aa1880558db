"""A machine that Ray drains and that then goes, while a producer writes.

    python -m tests.ray.drained [--ignored] [--history MEGABYTES]

Three machines with a broker and controller each, two replicas of each partition; the machine of the active controller
goes. The last line says how long some partition had no acknowledgement, and how long each of some groups, which have
one member each, took no commit. `--ignored`: nothing is announced, so the machine just goes. `--history`: so much is in
the log of each group's commits before that.
"""

import json
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from itertools import pairwise
from typing import Any

import ray
from ray.cluster_utils import Cluster as RayNodes
from ray.core.generated import autoscaler_pb2

import rayka
from rayka import TopicPartition
from rayka.actors.ray_nodes import live_ray_nodes, open_ray_nodes
from rayka.cluster import Cluster
from rayka.errors import RaykaError
from tests.ray.machines import Machines, homes
from tests.ray.sender import Sender
from tests.ray.support import wait_until
from tests.rays import connected_ray

NAME, TOPIC, PARTITIONS = "drained", "clicks", 6
NOTICE_S = 15.0
GROUPS = ("g0", "g1", "g2", "g3")
HISTORY, HISTORY_PARTITIONS, _COMMIT_BYTES = "history", 200, 90
COMBINED = [{"id": each, "roles": ["broker", "controller"]} for each in (1, 2, 3)]


def spec(data_dir: str) -> dict[str, Any]:
    return {
        "name": NAME,
        "data_dir": data_dir,
        "nodes": COMBINED,
        "resources": {"broker": {"resources": {"machine": 0.6}}},
        "config": {"default.replication.factor": 2},
    }


def drain(ray_node_id: str, notice_s: float) -> int:
    """Announces by Ray's own means that the machine is preempted; when it goes, a wall clock in ms."""
    deadline_ms = int((time.time() + notice_s) * 1000)
    client = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    is_accepted, why = client.drain_node(ray_node_id, reason, "a test", deadline_ms)
    assert is_accepted, why
    return deadline_ms


class GroupMember(threading.Thread):
    """The only member of its group: reads, and commits after each read; `times` is when commits ended."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        super().__init__(name=group_id)
        self._cluster = cluster
        self._is_stopping = threading.Event()
        self.group_id = group_id
        self.times: list[float] = []
        self.refusals: list[str] = []

    def run(self) -> None:
        options: dict[str, Any] = {"group_id": self.group_id, "enable_auto_commit": False}
        with rayka.Consumer(
            TOPIC, cluster=self._cluster, auto_offset_reset="earliest", **options
        ) as consumer:
            while not self._is_stopping.is_set():
                consumer.poll(timeout_ms=50)
                try:
                    consumer.commit()
                    self.times.append(time.monotonic())
                except RaykaError as error:
                    self.refusals.append(repr(error))

    def stop(self) -> None:
        self._is_stopping.set()
        self.join(60)
        assert not self.is_alive()


def write_history(cluster: Cluster, admin: rayka.Admin, megabytes: float) -> None:
    """Commits of the groups, before they have members."""
    if not megabytes:
        return
    admin.create_topic(HISTORY, partitions=HISTORY_PARTITIONS)
    rounds = int(megabytes * 1e6 / (HISTORY_PARTITIONS * _COMMIT_BYTES))
    for group_id in GROUPS:
        with rayka.Consumer(cluster=cluster, group_id=group_id, enable_auto_commit=False) as consumer:
            for offset in range(rounds):
                consumer.commit({TopicPartition(HISTORY, each): offset for each in range(HISTORY_PARTITIONS)})
    admin.delete_topic(HISTORY)  # or its replicas are moved before others


def trial(
    machines: Machines, data_dir: str, *, is_announced: bool = True, history_megabytes: float = 0
) -> dict[str, Any]:
    """What was seen. Raises AssertionError where an acknowledged record is lost, or the machine was not emptied."""
    with Cluster.start(**spec(data_dir)) as cluster, rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS)
        sender = Sender(cluster, TOPIC, pause_s=0.005)
        members = [GroupMember(cluster, each) for each in GROUPS]
        write_history(cluster, admin, history_megabytes)
        sender.start()
        for each in members:
            each.start()
        try:
            wait_until(lambda: all(len(each.times) > 20 for each in members))
            sender.await_acknowledged(200)
            goes = cluster.describe().controller_id
            home = homes(cluster)[goes]
            before = time.monotonic()
            said = _empty(cluster, admin, goes, home) if is_announced else {}
            machines.lose(cluster, home)
            wait_until(lambda: {goes, -1}.isdisjoint(_leaders(cluster, admin)))
            sender.await_acknowledged(500)
            gap_s = _longest_gap_s(sender, before)
            groups = {each.group_id: round(_gap_s(each.times, before), 2) for each in members}
        finally:
            sender.stop()
            for each in members:
                each.stop()
        sender.check()
        return {"longest_gap_s": round(gap_s, 2), "groups_s": groups, **said}


def _empty(cluster: Cluster, admin: rayka.Admin, goes: int, home: str) -> dict[str, Any]:
    """Announces that the machine goes, and waits until it does."""
    began = time.monotonic()
    deadline_ms = drain(home, NOTICE_S)
    assert home in live_ray_nodes()
    assert home not in open_ray_nodes()
    wait_until(lambda: goes not in _leaders(cluster, admin))
    led_s = time.monotonic() - began
    (node,) = (each for each in cluster.describe().nodes if each.node_id == goes)
    assert node.drained_until_ms == deadline_ms
    wait_until(lambda: not _held(admin, goes))
    moved_s = time.monotonic() - began
    assert all(len(each.replicas) == 2 for each in admin.describe_topic(TOPIC).partitions)
    wait_until(lambda: time.time() * 1000 >= deadline_ms - 1_000)
    kinds = [each.kind for each in admin.events() if each.kind.startswith("drain")]
    assert kinds[:4] == ["drain-begun", "drain-resigned", "drain-moves", "drain-stopped"], kinds
    return {"led_elsewhere_s": round(led_s, 2), "moved_s": round(moved_s, 2)}


def _longest_gap_s(sender: Sender, since: float) -> float:
    """The longest time in which some partition had no acknowledgement."""
    acknowledged = list(zip(sender.times, list(sender.acknowledged.values()), strict=False))
    return max(
        _gap_s([at for at, each in acknowledged if each.partition == partition], since)
        for partition in range(PARTITIONS)
    )


def _gap_s(times: list[float], since: float) -> float:
    """The longest time between two of these moments since then."""
    moments = (since, *(at for at in times if at >= since), time.monotonic())
    return max(later - earlier for earlier, later in pairwise(moments))


def _leaders(cluster: Cluster, admin: rayka.Admin) -> set[int]:
    """Of the partitions and of the metadata; while that has no leader, every node."""
    controller_id = cluster.describe().controller_id
    if controller_id < 0:
        return {1, 2, 3}
    return {controller_id, *(each.leader_id for each in admin.describe_topic(TOPIC).partitions)}


def _held(admin: rayka.Admin, broker_id: int) -> int:
    return sum(broker_id in each.replicas for each in admin.describe_topic(TOPIC).partitions)


def main() -> None:
    parser = ArgumentParser(description=sys.modules[__name__].__doc__)
    parser.add_argument("--ignored", action="store_true")
    parser.add_argument("--history", type=float, default=0, metavar="MEGABYTES")
    arguments = parser.parse_args()
    with connected_ray(2) as rays, tempfile.TemporaryDirectory() as data_dir:
        print(json.dumps(_on(rays, data_dir, not arguments.ignored, arguments.history)))


def _on(rays: RayNodes, data_dir: str, is_announced: bool, history_megabytes: float) -> dict[str, Any]:
    machines = Machines(rays, 3, labelled=())
    try:
        return trial(machines, data_dir, is_announced=is_announced, history_megabytes=history_megabytes)
    finally:
        machines.close()


if __name__ == "__main__":
    main()
