"""Coordinators on a real Ray: actors of a class of their own that lead groups, are killed, come and go."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import rayka
from rayka.actors import node_handles
from rayka.client import io_thread
from rayka.client.cluster_nodes import ClusterNodes
from rayka.client.coordinator_calls import CoordinatorCalls
from rayka.cluster import Cluster
from rayka.config.client_config import ConsumerConfig
from rayka.coordinator.group_shard import OFFSETS_TOPIC
from rayka.errors import ErrorCode
from rayka.ids import Role
from rayka.protocol.groups import CommittedOffset, OffsetCommitRequest, OffsetFetchRequest
from tests.ray.conftest import Said
from tests.ray.support import kill, pid_of, running, wait_until

pytestmark = pytest.mark.ray
TIMEOUT_MS = 60_000


class Group:
    """A simple group, which commits and reads its offset."""

    def __init__(self, cluster: Cluster) -> None:
        self._calls = CoordinatorCalls(
            ClusterNodes(cluster.network(), cluster.name, ConsumerConfig(), Random(1))
        )

    def _ask(self, request: Any) -> Any:
        return io_thread.run(partial(self._calls.call, "g", request, TIMEOUT_MS), TIMEOUT_MS / 1000 + 10)

    def commit(self, offset: int) -> None:
        (result,) = self._ask(OffsetCommitRequest("g", (CommittedOffset("orders", 0, offset),))).partitions
        assert result.error_code is ErrorCode.NONE

    @property
    def offset(self) -> int:
        (result,) = self._ask(OffsetFetchRequest("g")).partitions
        return int(result.offset)


def leaders(cluster: Cluster) -> set[int]:
    with rayka.Admin(cluster=cluster) as admin:
        return {each.leader_id for each in admin.describe_topic(OFFSETS_TOPIC).partitions}


def goes_and_comes_again(declared: dict[str, Any]) -> None:
    """Coordinator 1002, by the load that it has while nothing is done: below any target, then above any."""
    ranged = {**declared, "coordinators": {"min": 1, "max": 2}}
    windows = {"out_window_s": 0, "in_window_s": 0}
    cluster = Cluster.start(**ranged, scaling={**windows, "coordinator_processor_share": 1.0})
    wait_until(lambda: decided(cluster) == ["scale-in-begun", "scale-in-ended"])
    assert [each.node_id for each in running(cluster).nodes] == [1, 2, 1001, 3001]
    assert leaders(cluster) == {1001}
    cluster = Cluster.start(**ranged, scaling={**windows, "coordinator_processor_share": 0.0001})
    wait_until(lambda: leaders(cluster) == {1001, 1002})
    wait_until(lambda: counts(cluster) == (2, 2, 1, 2))
    assert decided(cluster)[2:] == ["scale-out-begun", "scale-out-ended"]


def counts(cluster: Cluster) -> tuple[int, ...]:
    """Of coordinators: those that should be and are, min and max."""
    found = cluster.describe().coordinator_scaling
    return (found.desired, found.actual, found.min, found.max) if found else ()


def decided(cluster: Cluster) -> list[str]:
    """The decisions of scaling about coordinator 1002; other events tell of its process and its registration."""
    with rayka.Admin(cluster=cluster) as admin:
        events = [each for each in admin.events() if "coordinator-1002" in each.subjects]
    return [each.kind for each in events if each.kind.startswith("scale-")]


def test_groups_live_on_coordinators_which_are_killed_added_and_removed(
    start: Callable[..., Cluster], command: Callable[..., Said], tmp_path: Path
) -> None:
    declared: dict[str, Any] = {
        "name": "coordinated", "brokers": 2, "coordinators": 1, "data_dir": str(tmp_path / "data"),
        "config": {
            "default.replication.factor": 2, "offsets.topic.num.partitions": 4,
            "broker.load.report.interval.ms": 300,
        },
    }  # fmt: skip
    cluster = start(**declared)
    (node,) = (each for each in running(cluster).nodes if each.node_id == 1001)
    assert (node.roles, node.actor_name) == ((Role.COORDINATOR,), "coordinated/coordinator-1001")
    assert repr(node_handles.find("coordinated", 1001)).startswith("Actor(Coordinator,")
    group = Group(cluster)
    group.commit(1)
    assert leaders(cluster) == {1001}

    kill(pid_of(cluster, 1001))
    group.commit(2)
    assert group.offset == 2
    wait_until(lambda: leaders(cluster) == {1001})
    assert Group(cluster).offset == 2

    larger = tmp_path / "cluster.yaml"
    larger.write_text("".join(f"{key}: {value}\n" for key, value in {**declared, "coordinators": 2}.items()))
    said = command("start", str(larger))
    assert (said.code, "Added coordinator 1002 to the running cluster" in said.out) == (0, True), said
    wait_until(lambda: leaders(cluster) == {1001, 1002})
    assert group.offset == 2

    goes_and_comes_again(declared)
    assert group.offset == 2
    assert command("start", str(larger)).code == 0

    assert command("broker", "drain", "1001", "--cluster", "coordinated").code == 0
    assert command("broker", "remove", "1001", "--yes", "--cluster", "coordinated").code == 0
    assert [each.node_id for each in running(cluster).nodes] == [1, 2, 1002, 3001]
    assert leaders(cluster) == {1002}
    group.commit(3)
