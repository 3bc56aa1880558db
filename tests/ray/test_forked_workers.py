"""The workers of a Ray that tests start are forks, and such as Ray would have started."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from tests.rays import RayNodes, processes_of

pytestmark = pytest.mark.ray


def seen_inside() -> dict[str, Any]:
    """What a program can see of how its process began."""
    return {
        "pid": os.getpid(),
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
    program = Path(ray.__file__).parent / "_private/workers/default_worker.py"
    assert seen["program"] == str(program)
    assert not [each for each in seen["path"] if each.endswith("tests/forked")]
    assert seen["threads"] is None
    assert seen["a child's exit code"] == 3
