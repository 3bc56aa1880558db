"""Clusters of several brokers, and of nodes that are broker and controller at once, on a real Ray."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rayka
from rayka.cluster import Cluster
from rayka.ids import Role
from rayka.protocol.cluster import NodeState
from tests.ray.support import kill

pytestmark = pytest.mark.ray
Start = Callable[..., Cluster]
BOTH = (Role.BROKER, Role.CONTROLLER)
COMBINED: dict[str, Any] = {"nodes": [{"id": each, "roles": ["controller", "broker"]} for each in (1, 2, 3)]}


def send(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    """Creates a topic with a partition for each broker, and sends so many records to it."""
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(topic, partitions=3)
    values = [b"%03d" % number for number in range(count)]
    with rayka.Producer(cluster=cluster) as producer:
        for value in values:
            producer.send(topic, value, key=value)
    return values


def read(cluster: Cluster, topic: str) -> list[bytes | None]:
    return sorted(record.value for record in rayka.read(topic, cluster=cluster))


@pytest.mark.parametrize("fields", [{"brokers": 3, "controllers": 3}, COMBINED], ids=["apart", "combined"])
def test_several_brokers_serve_stop_under_control_and_come_back_with_what_they_had(
    start: Start, tmp_path: Path, fields: dict[str, Any]
) -> None:
    cluster = start(name="several", data_dir=str(tmp_path), **fields)
    description = cluster.describe()
    assert description.is_running
    brokers = [each for each in description.nodes if Role.BROKER in each.roles]
    controllers = [each for each in description.nodes if Role.CONTROLLER in each.roles]
    assert [each.node_id for each in brokers] == [1, 2, 3]
    assert len(controllers) == 3
    assert sorted(each.quorum_role for each in controllers) == ["leader", "voter", "voter"]
    assert {each.actor_name for each in brokers} == {f"several/broker-{each}" for each in (1, 2, 3)}
    sent = send(cluster, "words", 100)
    cluster.stop()
    for each in brokers:
        assert Path(each.data_dirs[0], ".kafka_cleanshutdown").exists(), f"{each.actor_name} was not asked"

    again = start(name="several", data_dir=str(tmp_path), **fields)
    assert again.describe().cluster_id == description.cluster_id
    assert read(again, "words") == sent
    again.stop(delete_data=True)
    assert list(tmp_path.iterdir()) == []


def test_a_combined_node_that_is_killed_comes_back_as_both(start: Start, tmp_path: Path) -> None:
    cluster = start(data_dir=str(tmp_path), **COMBINED)
    sent = send(cluster, "words", 50)
    description = cluster.describe()
    active = next(each for each in description.nodes if each.node_id == description.controller_id)
    assert (active.roles, active.quorum_role) == (BOTH, "leader")
    kill(active.pid)
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("more", partitions=3)
        assert sorted(admin.list_topics()) == ["more", "words"]
        voters = admin.describe_quorum().voters
    assert [each.node_id for each in voters] == [1, 2, 3]
    assert read(cluster, "words") == sent
    again = next(each for each in cluster.describe().nodes if each.node_id == active.node_id)
    assert (again.state, again.roles) == (NodeState.RUNNING, BOTH)
    assert again.pid != active.pid
