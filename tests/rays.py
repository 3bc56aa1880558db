"""A Ray that tests start: in a directory of its own, with a head to which further Ray nodes can be added.

Its workers and agents begin as forks of one process: see `tests/forks.py`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster as RayNodes

from rayka.actors import ray_process
from tests.forks import fork_server, processes_of

_END_TIMEOUT_S = 90
_QUIET: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}


@contextmanager
def connected_ray(head_cpus: int) -> Iterator[RayNodes]:
    """A Ray of one node, to which this process is connected; ends with all that it has started.

    Without what no test asks: autoscaler, dashboard, the workers' output.
    """
    directory = os.environ["RAY_TMPDIR"] = ray_process.make_temp_dir()
    head = {
        "num_cpus": head_cpus,
        "include_dashboard": False,
        "include_log_monitor": False,
        "no_monitor": True,
        "object_store_memory": 1 << 30,
    }
    started: list[psutil.Process] = []
    try:
        with fork_server():
            rays = RayNodes(initialize_head=True, head_node_args=head)
            try:
                ray.init(address=rays.address, **_QUIET)
                yield rays
            finally:
                started = processes_of(os.getpid())
                ray.shutdown()
                rays.shutdown()
    finally:
        psutil.wait_procs(started, timeout=_END_TIMEOUT_S)
        del os.environ["RAY_TMPDIR"]
        shutil.rmtree(directory, ignore_errors=True)
