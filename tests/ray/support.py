"""What the tests on Ray share."""

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial

import psutil

from rayka.actors import supervisor_handle
from rayka.client import io_thread
from rayka.cluster import Cluster, ClusterDescription

_WAIT_S = 150
_PAUSE_S = 0.1
RAYKA = (sys.executable, "-c", "from rayka.cli.main import main; main()")


def kill(pid: int) -> None:
    """Ends a process with SIGKILL: nothing of its own end runs."""
    os.kill(pid, signal.SIGKILL)


def pid_of(cluster: Cluster, node_id: int) -> int:
    """The process that a node, which serves, is now."""
    node = next(each for each in cluster.describe().nodes if each.node_id == node_id)
    assert node.pid is not None, node
    return node.pid


def broker_pid(cluster: Cluster) -> int:
    """The process that the cluster's only broker, which serves, is now."""
    return pid_of(cluster, 1)


def end_supervisor(cluster: Cluster) -> None:
    """From now on nodes that have no actor are not brought back."""
    io_thread.run(partial(supervisor_handle.stop, cluster.name), 30)


def wait_until(holds: Callable[[], bool]) -> None:
    """Until the condition holds; asks for it ten times a second."""
    deadline = time.monotonic() + _WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {_WAIT_S} s"
        time.sleep(_PAUSE_S)


def running(cluster: Cluster) -> ClusterDescription:
    """What the cluster is once all of it runs; for a moment a busy machine may have no active controller."""
    description = cluster.describe()
    deadline = time.monotonic() + _WAIT_S
    while not (description.is_running and description.cluster_id):
        assert time.monotonic() < deadline, description
        time.sleep(_PAUSE_S)
        description = cluster.describe()
    return description


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
