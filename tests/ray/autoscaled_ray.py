"""A Ray with its own autoscaler on one machine: machines are raylets, which Ray's fake provider starts and ends.

Only the processes that this starts are ended, by their ids: `ray stop` would end every Ray of the machine.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray

from rayka.actors import ray_process
from tests.forks import fork_server, kill_all, processes_of

_HEAD_ID, _HEAD_TYPE = "f" * 51 + "00000", "ray.head.default"
_PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
HEAD = {"head": 1.0}  # a resource that only the head has
_START_TIMEOUT_S = 150
_TRIES = 3
_LOG = "ray-start.log"
_END_TIMEOUT_S = 45
_POLL_S = 0.1
# What the head alone is told: a machine would take it for its own. An autoscaler that begins after the head's raylet
# has registered finds it as one that it did not start, and adds no machine while that has no type.
_OF_THE_HEAD = {
    "RAY_CLOUD_INSTANCE_ID": _HEAD_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD_ID,
    "RAY_NODE_TYPE_NAME": _HEAD_TYPE,
}
_OF_ALL = {
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_AUTH_MODE": "disabled",
    # A machine waits a moment for what has to run on it, and nothing runs on idle workers.
    "RAY_prestart_worker_first_driver": "0",
    # Nor does a busy machine hold up what starts there by Ray's niceness of 15.
    "RAY_worker_niceness": "0",
}


@contextmanager
def autoscaled_ray(machine: Mapping[str, float], *, machines_max: int, idle_s: float) -> Iterator[str]:
    """The address of a Ray whose head has two CPUs, and which adds machines with these resources as they are asked for;
    one that is idle for so long goes.
    """
    temp_dir = ray_process.make_temp_dir()
    head = None
    try:
        with fork_server(**_OF_ALL):
            try:
                for _ in range(_TRIES):
                    host, port = ray.util.get_node_ip_address(), _free_port()
                    config = Path(temp_dir, "autoscaling.json")
                    config.write_text(json.dumps(_config(f"{host}:{port}", machine, machines_max, idle_s)))
                    head = _start(temp_dir, host, port, config)
                    if _has_started(head, Path(temp_dir, _LOG)):
                        break
                else:
                    raise AssertionError(Path(temp_dir, _LOG).read_text(errors="replace"))
                yield f"{host}:{port}"
            finally:
                if head is not None:
                    _end(head)
    finally:
        shutil.rmtree(temp_dir, ignore_errors=True)


def _start(temp_dir: str, host: str, port: int, config: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
    command += [f"--node-ip-address={host}", f"--autoscaling-config={config}", "--num-cpus=2"]
    command += [f"--resources={json.dumps(HEAD)}"]
    command += ["--include-dashboard=false", "--disable-usage-stats", "--include-log-monitor=false"]
    command += ["--object-store-memory=200000000", "--temp-dir", temp_dir]
    with Path(temp_dir, _LOG).open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **_OF_THE_HEAD},
        )


def _config(address: str, machine: Mapping[str, float], machines_max: int, idle_s: float) -> dict[str, Any]:
    of_lists = ("cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands")
    commands = ("setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    return {
        "cluster_name": "autoscaled",
        "max_workers": machines_max,
        "available_node_types": {
            _HEAD_TYPE: {"resources": {"CPU": 2, **HEAD}, "node_config": {}, "max_workers": 0},
            "machine": {
                "resources": dict(machine),
                "node_config": {},
                "min_workers": 0,
                "max_workers": machines_max,
            },
        },
        "head_node_type": _HEAD_TYPE,
        "upscaling_speed": 10,
        "idle_timeout_minutes": idle_s / 60,
        "provider": {
            "type": "external",
            "module": _PROVIDER,
            "gcs_address": address,
            "head_node_id": _HEAD_ID,
            "launch_multiple": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "foreground_node_launch": True,
        },
        **{each: {} for each in ("auth", "docker", "file_mounts")},
        **{each: [] for each in of_lists},
        **{f"{each}_commands": [] for each in commands},
        "file_mounts_sync_continuously": False,
    }


def _has_started(head: "subprocess.Popen[bytes]", log: Path) -> bool:
    """False for one that Ray itself gave up: a busy machine may need more than the 15 s that Ray has for its agents."""
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while "Ray runtime started" not in log.read_text(errors="replace"):
        if head.poll() is not None:
            return False
        assert time.monotonic() < deadline_s, "Ray did not start in time"
        time.sleep(_POLL_S)
    return True


def _end(head: "subprocess.Popen[bytes]") -> None:
    """The head and what it started, its machines too: those would look for it a while."""
    started = processes_of(head.pid) if head.poll() is None else []
    head.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        head.wait(_END_TIMEOUT_S)
    _, alive = psutil.wait_procs(started, timeout=1)
    kill_all(alive)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])
