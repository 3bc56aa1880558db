"""A Ray of two nodes, of which the driver's has no CPUs: jobs beside a disk, and nodes of a cluster far from
the driver.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

SCRIPT = """
import os, sys, tempfile
import ray
from ray.cluster_utils import Cluster as RayNodes
import rayka
from rayka.actors.names import actor_name
from rayka.actors.on_ray_node import live_ray_nodes, own_ray_node_id
from rayka.cluster import Cluster

rays = RayNodes(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
far = rays.add_node(num_cpus=2)
ray.init(address=rays.address, logging_level="ERROR", log_to_driver=False)
head, other = live_ray_nodes()
assert head == own_ray_node_id()
for is_last in (False, True):
    cluster = Cluster.start(name="far", data_dir=sys.argv[1])
    handle = ray.get_actor(actor_name("far", 1), namespace="rayka")
    assert ray.get(handle.process.remote()).placement.ray_node_id == other
    cluster.stop(delete_data=is_last)
assert os.listdir(sys.argv[1]) == []
try:
    Cluster.start(name="greedy", data_dir=sys.argv[1], resources={"broker": {"num_cpus": 99}})
except rayka.errors.UnavailableError as error:
    print(error)
ray.shutdown()
rays.shutdown()
"""


def test_nodes_live_on_the_ray_node_that_has_the_resources_and_their_disk(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = run(sys.executable, "-c", SCRIPT, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(
        "no Ray node has what the spec asks for a broker: {'CPU': 99"
    )
