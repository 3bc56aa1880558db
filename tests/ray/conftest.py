"""One Ray for all tests of a module, in the run's temporary directory.

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
from typing import Any

import pytest

# Ray reads it once, when it is imported; `disabled` makes no token in the user's home. Each mode has its smoke test.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray

from rayka.actors import ray_process
from rayka.actors.names import running_clusters
from rayka.cluster import Cluster


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """The Ray that this process is connected to."""
    directory = ray_process.make_temp_dir()
    ray.init(
        address="local",
        num_cpus=8,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        _temp_dir=directory,
    )
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def cluster(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for tests that leave it as it was; topics have names of their own."""
    with Cluster.start(name="shared", data_dir=str(tmp_path_factory.mktemp("shared"))) as cluster:
        yield cluster


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


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
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
            timeout=120,
            check=False,
        )

    return run_command
