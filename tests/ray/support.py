"""What the tests on Ray share."""

import os
import signal
import sys
from pathlib import Path

from rayka.cluster import Cluster

RAYKA = (sys.executable, "-c", "from rayka.cli.main import main; main()")


def kill(pid: int) -> None:
    """The end of a process without its end."""
    os.kill(pid, signal.SIGKILL)


def broker_pid(cluster: Cluster) -> int:
    """The process that the cluster's broker, which serves, is now."""
    broker = cluster.describe().nodes[0]
    assert broker.pid > 0, broker
    return broker.pid


def write_script(directory: Path, text: str) -> str:
    """A script in a file of its own."""
    path = directory / "script.py"
    path.write_text(text)
    return str(path)
