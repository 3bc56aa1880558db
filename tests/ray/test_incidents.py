"""What happens to processes and machines is in the cluster's events, with its cause."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster as RayNodes

import rayka
from rayka.cluster import Cluster
from tests.ray.machines import ON_MACHINES, Machines, homes
from tests.ray.support import kill, wait_until

pytestmark = pytest.mark.ray


@pytest.fixture
def machines(rays: RayNodes) -> Iterator[Machines]:
    machines = Machines(rays, 3, labelled=())
    yield machines
    machines.close()


def test_the_history_of_an_incident_names_kills_fail_overs_and_lost_machines(
    machines: Machines, tmp_path: Path
) -> None:
    spec = {
        "name": "incidents",
        "data_dir": str(tmp_path),
        "brokers": 3,
        "controllers": 3,
        "resources": ON_MACHINES,
    }
    with Cluster.start(**spec) as cluster, rayka.Admin(cluster=cluster) as admin:

        def told(kind: str) -> list[tuple[str, str]]:
            return [("".join(each.subjects), each.reason) for each in admin.events() if each.kind == kind]

        pids = {each.node_id: each.pid or 0 for each in cluster.describe().nodes}
        active = cluster.describe().controller_id
        home = homes(cluster)[active]
        killed = next(each for each, where in homes(cluster).items() if each < 1000 and where != home)
        kill(pids[killed])
        wait_until(lambda: f"broker-{killed}" in dict(told("process-ended")))
        assert (
            f"process {pids[killed]} was killed or ended itself"
            in dict(told("process-ended"))[f"broker-{killed}"]
        )
        wait_until(lambda: dict(told("broker-unfenced")).keys() == {"broker-1", "broker-2", "broker-3"})
        wait_until(lambda: sum(name == f"broker-{killed}" for name, _ in told("broker-unfenced")) == 2)
        kill(pids[active])
        wait_until(lambda: f"controller-{active}" in dict(told("process-ended")))
        wait_until(lambda: len(told("controller-leads")) > 1)  # another one, or this one again
        wait_until(lambda: all(each.state == "running" for each in cluster.describe().nodes))
        lost = machines.lose(cluster, machines.ray_node_ids[0])
        names = {f"broker-{each}" if each < 1000 else f"controller-{each}" for each in lost}
        wait_until(lambda: names <= dict(told("machine-lost")).keys())
        wait_until(lambda: {each for each in names if each < "c"} <= dict(told("broker-fenced")).keys())
        wait_until(lambda: names <= dict(told("node-missing")).keys())
        numbers = [each.number for each in admin.events()]
        assert numbers == sorted(numbers)
