"""A machine that Ray drains is emptied before it goes, and writers hardly notice."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster as RayNodes

from tests.ray.drained import trial
from tests.ray.machines import Machines

pytestmark = pytest.mark.ray
SESSION_S = 9.0  # for so long a partition of a machine that goes without a word has no leader


@pytest.fixture
def machines(rays: RayNodes) -> Iterator[Machines]:
    machines = Machines(rays, 3, labelled=())
    yield machines
    machines.close()


def test_leads_then_replicas_leave_a_machine_that_ray_drains_before_it_goes(
    machines: Machines, tmp_path: Path
) -> None:
    assert trial(machines, str(tmp_path))["longest_gap_s"] < SESSION_S / 2
