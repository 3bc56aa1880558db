"""A Ray that tests start: in a directory of its own, with a head to which further Ray nodes can be added.

Its workers begin as forks of one process: see `tests/forked/fork_server.py`.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

from rayka.actors import ray_process
from tests.forked.fork_client import SERVER

_FORKED = Path(__file__).parent / "forked"
_END_TIMEOUT_S = 90
_SOCKET = "forks"
_QUIET: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}


class RayNodes(Cluster):
    """Ray nodes whose workers ask the server of forks that the environment names; see there for what has to be alike.

    `add_node` takes what `ray.cluster_utils.Cluster` takes.
    """

    def add_node(self, wait: bool = True, **node_args: Any) -> Any:
        programs = {
            "worker_path": str(_FORKED / "default_worker.py"),
            "setup_worker_path": str(_FORKED / "setup_worker.py"),
        }
        return super().add_node(wait, **{**programs, **node_args})


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
        with _fork_server(Path(directory)):
            rays = RayNodes(initialize_head=True, head_node_args=head)
            try:
                ray.init(address=rays.address, **_QUIET)
                yield rays
            finally:
                started = psutil.Process().children(recursive=True)
                ray.shutdown()
                rays.shutdown()
    finally:
        psutil.wait_procs(started, timeout=_END_TIMEOUT_S)
        del os.environ["RAY_TMPDIR"]
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _fork_server(directory: Path) -> Iterator[None]:
    """Meanwhile what this process starts finds a server of forks."""
    address = str(directory / _SOCKET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(128)  # they wait while it imports
        command = [sys.executable, str(_FORKED / "fork_server.py"), str(listener.fileno()), str(directory)]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
    os.environ[SERVER] = address
    try:
        yield
    finally:
        del os.environ[SERVER]
        with server:  # the end of its input ends it
            pass


def processes_of(raylet_pid: int) -> list[psutil.Process]:
    """The processes that a raylet has started, those that were forked for it included; one that Ray drains may end by
    itself when nothing is left on it.
    """
    forked = {int(each.suffix[1:]) for each in Path(os.environ["RAY_TMPDIR"]).glob(f"{raylet_pid}.*")}
    found = [each for each in psutil.Process().children(recursive=True) if each.pid in forked]
    with suppress(psutil.NoSuchProcess):
        found += psutil.Process(raylet_pid).children(recursive=True)
    return found
