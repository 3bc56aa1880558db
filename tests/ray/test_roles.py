"""Clusters of several brokers, and of nodes that are broker and controller at once, on a real Ray."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rayka
from rayka import TopicPartition
from rayka.cluster import Cluster
from rayka.coordinator.group_shard import OFFSETS_TOPIC
from rayka.ids import Role
from tests.ray.support import kill, pid_of, running, wait_until

pytestmark = pytest.mark.ray
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


@pytest.fixture(
    scope="module", params=[{"brokers": 3, "controllers": 3}, COMBINED], ids=["apart", "combined"]
)
def fields(
    request: pytest.FixtureRequest, ray_address: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """What declares a cluster, which runs; its data is deleted with it, and nothing stays behind."""
    data_dir = tmp_path_factory.mktemp("several")
    fields = {"name": "several", "data_dir": str(data_dir), **request.param}
    Cluster.start(**fields)
    yield fields
    Cluster.connect("several").stop(delete_data=True)
    assert list(data_dir.iterdir()) == []


def test_several_brokers_serve_stop_under_control_and_come_back_with_what_they_had(
    fields: dict[str, Any],
) -> None:
    cluster = Cluster.connect("several")
    description = running(cluster)
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

    again = Cluster.start(**fields)
    assert running(again).cluster_id == description.cluster_id
    assert read(again, "words") == sent


@pytest.mark.parametrize("fields", [COMBINED], ids=["combined"], indirect=True)
def test_a_combined_node_that_is_killed_comes_back_as_both(fields: dict[str, Any]) -> None:
    cluster = Cluster.connect(fields["name"])
    sent = send(cluster, "before", 50)
    description = running(cluster)
    active = next(each for each in description.nodes if each.node_id == description.controller_id)
    assert (active.roles, active.quorum_role) == (BOTH, "leader")
    kill(active.pid)
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("after", partitions=3)
        assert {"before", "after"} <= set(admin.list_topics())
        voters = admin.describe_quorum().voters
    assert [each.node_id for each in voters] == [1, 2, 3]
    assert read(cluster, "before") == sent
    again = next(each for each in running(cluster).nodes if each.node_id == active.node_id)
    assert again.roles == BOTH
    assert again.pid != active.pid


def test_nodes_that_coordinate_beside_their_other_roles_lead_the_groups_and_take_over(
    ray_address: str, tmp_path: Path
) -> None:
    """All lead partitions of topics; only two of three coordinate, so only they lead those of groups."""
    everything = ["broker", "coordinator", "controller"]
    cluster = Cluster.start(
        name="mixed",
        data_dir=str(tmp_path / "data"),
        nodes=[
            {"id": 1, "roles": everything},
            {"id": 2, "roles": everything},
            {"id": 3, "roles": ["broker", "controller"]},
        ],
        config={"offsets.topic.num.partitions": 6, "offsets.topic.replication.factor": 3},
    )

    def leaders() -> set[int]:
        return {each.leader_id for each in admin.describe_topic(OFFSETS_TOPIC).partitions}

    def is_in_sync() -> bool:
        return all(len(each.isr) == 3 for each in admin.describe_topic(OFFSETS_TOPIC).partitions)

    try:
        with (
            rayka.Admin(cluster=cluster) as admin,
            rayka.Consumer(cluster=cluster, group_id="g") as consumer,
        ):
            admin.create_topic("words", partitions=1, replication_factor=3)
            consumer.commit({TopicPartition("words", 0): 7})
            wait_until(lambda: leaders() == {1, 2} and is_in_sync())
            coordinator_id = admin.describe_group("g").coordinator_id
            kill(pid_of(cluster, coordinator_id))
            found = consumer.committed([TopicPartition("words", 0)])
            assert [each and each.offset for each in found.values()] == [7]
            assert leaders() <= {1, 2}
            wait_until(lambda: leaders() == {1, 2} and is_in_sync())
    finally:
        cluster.stop(delete_data=True)
