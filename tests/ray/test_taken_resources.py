"""An actor that Ray cannot make, because something else has the resources where it is pinned to: Ray would wait for
ever, though another Ray node that sees its disk has room.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayka.actors import node_handles
from rayka.actors.names import NAMESPACE, actor_name
from rayka.actors.ray_records import has_process, pending_actors
from rayka.cluster import Cluster
from tests.ray.conftest import Said
from tests.ray.machines import Machines, homes
from tests.ray.support import running, wait_until
from tests.rays import RayNodes

pytestmark = pytest.mark.ray
BROKER = actor_name("crowded", 1)
RESOURCES = {
    "broker": {"resources": {"machine": 0.6}},  # a machine has room for one
    "controller": {"resources": {"machine": 0.01}},
}


class Guest:
    """Something else that runs on this Ray."""


@pytest.fixture(scope="module")
def machines(rays: RayNodes) -> Iterator[Machines]:
    machines = Machines(rays, 2, labelled=())
    yield machines
    machines.close()


@pytest.fixture
def add_guest(machines: Machines) -> Iterator[Callable[[str], Any]]:
    """Adds an actor that takes, as soon as it can, the room for a broker on a machine."""
    added: list[Any] = []

    def add(ray_node_id: str) -> Any:
        pinned = NodeAffinitySchedulingStrategy(ray_node_id, soft=False)
        options = {"resources": {"machine": 0.6}, "num_cpus": 0, "scheduling_strategy": pinned}
        added.append(ray.remote(Guest).options(**options).remote())
        return added[-1]

    yield add
    for each in added:
        ray.kill(each)


def crowd_out(cluster: Cluster, machines: Machines, add_guest: Callable[[str], Any]) -> dict[str, Any]:
    """Fills the machines, so that Ray has no room for the broker any more; what has it, by Ray node."""
    home = homes(cluster)[1]
    guests = {each: add_guest(each) for each in sorted(machines.ray_node_ids, key=home.__eq__)}
    wait_until(lambda: any(has_process(each) for each in guests.values()))
    node_handles.end(node_handles.find("crowded", 1))  # and the guest that waits for its room is first
    wait_until(lambda: BROKER in pending_actors(NAMESPACE))
    return guests


def test_a_broker_whose_room_is_taken_goes_where_room_is_and_until_then_status_says_what_lacks(
    machines: Machines, add_guest: Callable[[str], Any], tmp_path: Path, command: Callable[..., Said]
) -> None:
    fields: dict[str, Any] = {"name": "crowded", "data_dir": str(tmp_path), "resources": RESOURCES}
    with Cluster.start(**fields) as cluster:
        guests = crowd_out(cluster, machines, add_guest)
        pinned = pending_actors(NAMESPACE)[BROKER].ray_node_id
        wait_until(lambda: "free of 0.6 asked" in command("status", "--cluster", "crowded").out)

        (other,) = set(machines.ray_node_ids) - {pinned}
        ray.kill(guests.pop(other))
        running(cluster)
        assert homes(cluster)[1] == other
        said = command("logs", "supervisor", "--cluster", "crowded").out
        assert f"broker-1 was pinned to Ray node {pinned}, where Ray cannot make it" in said
        assert f"broker-1 is made on Ray node {other}" in said
        assert said.count("Ray has not made broker-1") == 1, "said once a minute"


def test_a_stop_does_not_wait_for_a_broker_that_waits_for_room_and_deletes_its_data_too(
    machines: Machines,
    add_guest: Callable[[str], Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster.start(name="crowded", data_dir=str(tmp_path), resources=RESOURCES)
    crowd_out(cluster, machines, add_guest)
    cluster.stop(delete_data=True)
    assert list(tmp_path.iterdir()) == []
    assert "did not stop by itself" not in caplog.text
