"""Machines beside the driver's: nodes live where the resources are, and one that is lost for good comes back empty,
elsewhere, when a person says so and not before.

The machines are labelled, so Ray keeps the name of the lost broker for the machine that might return.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

import rayka
from rayka.actors import supervisor_handle
from rayka.actors.cluster_description import UNREACHABLE, NodeDescription
from rayka.actors.names import NAMESPACE, supervisor_name
from rayka.actors.ray_nodes import own_ray_node_id
from rayka.actors.ray_records import LastProcess, has_process, last_places
from rayka.cluster import Cluster
from rayka.errors import ConfigError, UnavailableError
from rayka.protocol.membership import NodeState
from tests.ray.machines import ON_MACHINES, Machines, homes
from tests.ray.support import kill, wait_until
from tests.rays import RayNodes

pytestmark = pytest.mark.ray
VALUES = [b"%03d" % number for number in range(100)]


@pytest.fixture(scope="module")
def machines(rays: RayNodes) -> Iterator[Machines]:
    machines = Machines(rays, 2, labelled=range(2))
    yield machines
    machines.close()


def node(cluster: Cluster, node_id: int) -> NodeDescription:
    return next(each for each in cluster.describe().nodes if each.node_id == node_id)


def state(cluster: Cluster, node_id: int) -> str:
    return node(cluster, node_id).state


def supervisor_process(cluster_name: str) -> LastProcess:
    name = supervisor_name(cluster_name)
    return last_places(NAMESPACE, [name])[name].processes[-1]


def test_nodes_live_on_a_ray_node_that_has_the_resources_and_their_disk(
    machines: Machines, tmp_path: Path
) -> None:
    assert own_ray_node_id() not in machines.ray_node_ids
    for is_last in (False, True):
        cluster = Cluster.start(name="far", data_dir=str(tmp_path), resources=ON_MACHINES)
        assert set(homes(cluster)) == {1, 3001}
        assert set(homes(cluster).values()) <= set(machines.ray_node_ids)
        cluster.stop(delete_data=is_last)
    assert list(tmp_path.iterdir()) == []


def test_the_supervisor_runs_where_it_was_started_and_so_do_those_that_follow_it(
    machines: Machines, tmp_path: Path
) -> None:
    with Cluster.start(name="kept", data_dir=str(tmp_path), resources=ON_MACHINES):
        supervisor = supervisor_handle.find("kept")
        assert supervisor is not None
        seen = set[LastProcess]()
        for _ in range(3):
            wait_until(lambda: has_process(supervisor) and supervisor_process("kept") not in seen)
            seen.add(supervisor_process("kept"))
            kill(ray.get(supervisor.pid.remote()))
        assert {each.ray_node_id for each in seen} == {own_ray_node_id()}


def test_resources_that_no_ray_node_has_are_named(machines: Machines, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"asks for a broker: \{'CPU': 99"):
        Cluster.start(name="greedy", data_dir=str(tmp_path), resources={"broker": {"num_cpus": 99}})


def test_a_lost_broker_is_replaced_by_an_empty_one_only_when_told_and_copies_what_it_had(
    machines: Machines, tmp_path: Path
) -> None:
    fields = {
        "name": "lost",
        "brokers": 2,
        "data_dir": str(tmp_path),
        "resources": ON_MACHINES,
        "config": {"default.replication.factor": 2},
    }
    cluster = Cluster.start(**fields)
    assert len({homes(cluster)[each] for each in (1, 2)}) == 2, "spread over the machines"
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("kept", partitions=2)
    with rayka.Producer(cluster=cluster) as producer:
        for value in VALUES:
            producer.send("kept", value)

    survivor = homes(cluster)[3001]
    (lost,) = set(machines.ray_node_ids) - {survivor}
    lost_ms, described = time.time() * 1000, {each.node_id: each for each in cluster.describe().nodes}
    (broker_id,) = machines.lose(cluster, lost)
    before = described[broker_id]
    wait_until(lambda: machines.is_missed(lost))
    gone = node(cluster, broker_id)
    assert (gone.state, gone.host, gone.rack) == (UNREACHABLE, before.host, before.rack)
    assert gone.data_dirs == before.data_dirs
    assert lost_ms <= gone.gone_since_ms <= time.time() * 1000
    with pytest.raises(ConfigError, match="controller-3001 runs"):
        Cluster.start(**fields, replace=[3001])
    assert sorted(record.value or b"" for record in rayka.read("kept", cluster=cluster)) == VALUES
    assert not Path(tmp_path, "lost", f"broker-{broker_id}").exists(), (
        "no empty disk in place of the lost one"
    )

    Cluster.start(**fields, replace=[broker_id])
    assert homes(cluster)[broker_id] == survivor
    assert state(cluster, broker_id) == NodeState.RUNNING
    with rayka.Admin(cluster=cluster) as admin:
        wait_until(lambda: all(len(each.isr) == 2 for each in admin.describe_topic("kept").partitions))
    assert sorted(record.value or b"" for record in rayka.read("kept", cluster=cluster)) == VALUES
    cluster.stop()
