"""The workers and agents of a Ray that tests start are forks, and such as Ray would have started."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from tests.forks import processes_of, raylet_of
from tests.ray.support import wait_until
from tests.rays import RayNodes

pytestmark = pytest.mark.ray


def seen_inside() -> dict[str, Any]:
    """What a program can see of how its process began."""
    return {
        "pid": os.getpid(),
        "group": os.getpgrp(),
        "program": sys.argv[0],
        "path": sys.path,
        "threads": os.environ.get("OPENBLAS_NUM_THREADS"),
        "raylet": int(os.environ["RAY_RAYLET_PID"]),
        "a child's exit code": subprocess.run(["sh", "-c", "exit 3"], check=False).returncode,
    }


# What a Ray node hands to its workers that was added by a process with a connection to Ray.
ADDED = {"PYTHONBREAKPOINT": "ray.util.rpdb._driver_set_trace"}


@pytest.mark.parametrize(
    "runtime_env",
    [{}, {"py_executable": sys.executable}, {"env_vars": ADDED}],
    ids=["plain", "named", "added"],
)
def test_workers_are_forks_and_look_as_if_ray_had_started_them(
    rays: RayNodes, runtime_env: dict[str, Any]
) -> None:
    inside = ray.remote(num_cpus=0, runtime_env=runtime_env)(seen_inside)
    seen = ray.get(inside.remote(), timeout=150)
    raylet = psutil.Process(seen["raylet"])
    assert seen["pid"] not in [each.pid for each in raylet.children(recursive=True)]
    assert seen["pid"] in [each.pid for each in processes_of(raylet.pid)]
    assert raylet_of(seen["pid"]) == raylet.pid
    assert seen["group"] == seen["pid"]  # Ray kills the groups of workers
    program = Path(ray.__file__).parent / "_private/workers/default_worker.py"
    assert seen["program"] == str(program)
    assert str(program.parent) in seen["path"]
    assert [each.endswith("tests/forked") for each in seen["path"]].count(True) == 1  # as in any Python here
    assert seen["threads"] is None
    assert seen["a child's exit code"] == 3


def test_the_agents_of_a_ray_node_are_forks_and_end_with_it(rays: RayNodes) -> None:
    node = rays.add_node(num_cpus=0)
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    wait_until(lambda: set(AGENTS) <= names(processes_of(raylet.pid)))
    assert not set(AGENTS) & names(raylet.children(recursive=True))
    started = processes_of(raylet.pid)
    rays.remove_node(node, allow_graceful=False)
    _, alive = psutil.wait_procs(started, timeout=60)
    assert not alive


AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


def names(processes: list[psutil.Process]) -> set[str]:
    """The first words of their commands; of those that end meanwhile, none."""
    found = set()
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            found.update(each.cmdline()[:1])
    return found
