"""Two machines as network namespaces, joined by a cable (veth), and a Ray over both."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil
import pytest

ADDRESSES = ("10.213.77.1", "10.213.77.2")
_PORT, _START_S, _END_S = 6399, 60, 30
_STARTED, _TOO_SLOW = (
    "Ray runtime started",
    "timed out during startup",
)  # Ray gives its own processes 30 s, no more
_RAY = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats")


@dataclass(frozen=True)
class TwoMachines:
    """The names of the namespaces, the address of the Ray whose head is on the first, and a directory for files."""

    names: tuple[str, str]
    ray_address: str
    directory: str

    def inside(self, number: int, *command: str) -> list[str]:
        """The command, to be run on one of the machines."""
        return ["ip", "netns", "exec", self.names[number], *command]


@contextmanager
def two_machines() -> Iterator[TwoMachines]:
    """Skips where this process may make no namespaces. All that runs in them ends with them."""
    directory = tempfile.mkdtemp(prefix="ns")
    unique = secrets.token_hex(3)
    machines = TwoMachines((f"rk{unique}a", f"rk{unique}b"), f"{ADDRESSES[0]}:{_PORT}", directory)
    rays: list[subprocess.Popen[bytes]] = []
    try:
        _make(machines)
        for each in _start_ray(machines):
            rays.append(each)  # each of them at once: the next one may not start
        yield machines
    finally:
        _remove(machines)
        for each in rays:
            each.wait(_END_S)
        shutil.rmtree(directory, ignore_errors=True)  # what was killed may still write there


def _make(machines: TwoMachines) -> None:
    near, far = machines.names
    cable = (f"{near}v", f"{far}v")
    commands = [f"netns add {near}", f"netns add {far}"]
    commands.append(f"-n {near} link add {cable[0]} type veth peer name {cable[1]} netns {far}")
    for name, end, address in zip(machines.names, cable, ADDRESSES, strict=True):
        commands.append(f"-n {name} addr add {address}/30 dev {end}")
        commands += [f"-n {name} link set {each} up" for each in (end, "lo")]
    for each in commands:
        try:
            subprocess.run(["ip", *each.split()], check=True, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("two machines need network namespaces: there is no command `ip` (package iproute2)")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"two machines need network namespaces: `ip {each}`: {error.stderr.strip()}")


def _start_ray(machines: TwoMachines) -> Iterator["subprocess.Popen[bytes]"]:
    head = ["--head", f"--port={_PORT}", "--include-dashboard=false", f"--temp-dir={machines.directory}/r"]
    joins = [f"--address={machines.ray_address}"]
    each_has = ["--num-cpus=4", f"--object-store-memory={100 << 20}"]
    for number, (how, resources) in enumerate(((head, '{"machine":1,"near":1}'), (joins, '{"machine":1}'))):
        where = [f"--node-ip-address={ADDRESSES[number]}", f"--resources={resources}"]
        command = machines.inside(number, *_RAY, *how, *each_has, *where)
        for is_last in (False, False, True):
            with open(f"{machines.directory}/ray-{number}", "w") as output:
                process = subprocess.Popen(
                    command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
            yield process
            said = _said_at_start(process, output.name)
            if _STARTED in said:
                break
            if is_last or _TOO_SLOW not in said:
                raise AssertionError(f"Ray did not start: {said}")
            _end_all(machines.names[number])


def _said_at_start(process: "subprocess.Popen[bytes]", path: str) -> str:
    """What Ray has said when it runs, has ended, or says nothing more for too long."""
    said = ""
    for _ in range(_START_S * 10):
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
        with open(path) as output:
            said = output.read()
        if _STARTED in said or process.returncode is not None:
            break
    return said


def _remove(machines: TwoMachines) -> None:
    for name in machines.names:
        _end_all(name)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _end_all(name: str) -> None:
    """What runs on the machine."""
    listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    processes = []
    for pid in map(int, listed.stdout.split()):
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
            os.kill(pid, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=_END_S)
