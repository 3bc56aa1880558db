"""What the tests on Ray share."""

import os
import signal
import sys
import time
from collections.abc import Callable

import psutil

from rayka.actors import supervise
from rayka.client import io_thread
from rayka.cluster import Cluster

RAYKA = (sys.executable, "-c", "from rayka.cli.main import main; main()")


def kill(pid: int) -> None:
    """The end of a process without its end."""
    os.kill(pid, signal.SIGKILL)


def pid_of(cluster: Cluster, node_id: int) -> int:
    """The process that a node, which serves, is now."""
    node = next(each for each in cluster.describe().nodes if each.node_id == node_id)
    assert node.pid > 0, node
    return node.pid


def broker_pid(cluster: Cluster) -> int:
    """The process that the cluster's only broker, which serves, is now."""
    return pid_of(cluster, 1)


def end_supervisor(cluster: Cluster) -> None:
    """From now on nobody brings back nodes that have no actor."""
    io_thread.run(supervise.stop(cluster.name), 30)


def wait_until(holds: Callable[[], bool], timeout_s: float = 60) -> None:
    """Until the condition holds; asks for it ten times a second."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s"
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    """Whether the process runs; what is left of one that nobody waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
