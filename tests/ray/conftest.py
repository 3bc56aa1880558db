"""Clusters on the Ray that all tests share, and processes of their own.

Tests that need a whole process to themselves (authentication, Ctrl-C, a Ray that stays) run it as a
subprocess with a home directory of its own, so that they neither find nor leave a Ray, a token or a cluster
of this machine's user.
"""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from rayka.actors.names import running_clusters
from rayka.cli.main import run as run_in_process
from rayka.cluster import Cluster
from tests.rays import RayNodes


@pytest.fixture(scope="session")
def ray_address(rays: RayNodes) -> str:
    """The Ray that this process is connected to."""
    return str(rays.address)


@pytest.fixture
def start(ray_address: str) -> Iterator[Callable[..., Cluster]]:
    """Starts clusters, each under a name of its own unless it is given one; stops those that are still there."""
    started: dict[str, Cluster] = {}

    def start_cluster(**fields: Any) -> Cluster:
        cluster = Cluster.start(**{"name": f"test-{secrets.token_hex(3)}", **fields})
        started[cluster.name] = cluster
        return cluster

    yield start_cluster
    for name in [each for each in started if each in running_clusters()]:
        started[name].stop()


class Said(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(ray_address: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Runs a `rayka` command in this process, on its Ray."""

    def run_command(*arguments: str) -> Said:
        capsys.readouterr()
        return Said(run_in_process(list(arguments)), *capsys.readouterr())

    return run_command


@pytest.fixture
def environment(forks: None) -> Iterator[dict[str, str]]:
    """A subprocess's environment: an empty home, no Ray known, and a short directory for the Ray that it starts."""
    home = tempfile.mkdtemp(prefix="h")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_A")}
    yield {**kept, "HOME": home, "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": home}
    shutil.rmtree(home)


@pytest.fixture
def run(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command in that environment to its end."""

    def run_command(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**environment, **variables},
            timeout=240,
            check=False,
        )

    return run_command
