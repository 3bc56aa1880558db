"""Workers and agents of Rays that tests start begin as forks of one process that has imported what they do.

A worker computes for two seconds before it can take an actor, nearly all of it imports: of Ray, of pyarrow, of rayka.
Tests start hundreds of workers, and each Ray node has two agents. So this program imports all that once, connects to
nothing, has one thread, and forks itself for each of these that Ray wants; in the child Ray's own program runs from its
first line. A Python that is started for such a program asks here first: see `sitecustomize.py`. It has to be this
Python, with the same modules and the same settings of Ray, in the same network; else it runs the program itself.

`fork_server.py LISTENER DIRECTORY`: the descriptor of a socket that listens, and where a file is made for each fork,
named after the raylet that wanted it. Prints something when it is ready, and ends when its standard input does.
"""

import fcntl
import gc
import importlib
import marshal
import mmap
import os
import re
import runpy
import select
import signal
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sitecustomize import FORKED, REFUSED, WATCHED, network

# Ray's core reads these two variables when it is imported, and keeps them as strings of eight letters.
_JOB, _RAYLET = b"the-job:", b"the-pid:"
os.environ.update(RAY_JOB_ID=_JOB.decode(), RAY_RAYLET_PID=_RAYLET.decode())
os.environ.update(
    OPENBLAS_NUM_THREADS="1", JE_ARROW_MALLOC_CONF="background_thread:false"
)  # no further threads
import ray  # noqa: E402

_NO_JOB, _NO_RAYLET = "ffffffff", "0"  # of what a head starts beside its raylet
_RAY = Path(ray.__file__).parent
_RUNTIME_ENV_AGENT = "_private/runtime_env/agent/main.py"
_IMPORTED = (
    "ray._private.workers.default_worker",
    "ray._private.workers.setup_worker",
    "ray._private.log_monitor",
    "ray.dashboard.agent",
    "ray.dashboard.dashboard",
    "pyarrow.json",
    "pydantic.v1",
    "pydantic.deprecated.class_validators",
    "rayka.actors.node_actor",
    "rayka.actors.shell",
    "rayka.actors.supervisor",
    "rayka.node.broker_node",
    "rayka.node.combined_node",
    "rayka.node.controller_node",
    "rayka.worker_pool.worker_hosts",
)
_REQUEST_BYTES_MAX = 1 << 18


class _Wanted(NamedTuple):
    """One of Ray's programs, and what its process has to be like."""

    path: str
    program: str
    arguments: list[str]
    directory: str
    prefix: str
    network: str
    environment: dict[str, str]

    @property
    def job(self) -> str:
        return self.environment.get("RAY_JOB_ID", _NO_JOB)

    @property
    def raylet(self) -> str:
        return self.environment.get("RAY_RAYLET_PID", _NO_RAYLET)

    def fits(self) -> bool:
        """Whether this process's modules and what these have read of the environment are what the program's own Python
        would have.
        """
        return (
            _read_by_imports(self.environment) == _read_by_imports(os.environ)
            and (self.prefix, self.network) == (sys.prefix, network())
            and self.path == str(_RAY / self.program)
            and len(self.job) == len(_JOB)
            and self.raylet.isdigit()
        )


def _read_by_imports(environment: "dict[str, str] | os._Environ[str]") -> dict[str, str]:
    """Where modules are looked for, and Ray's settings proper, whose names go on in small letters, but for one. Not
    what Python reads at each breakpoint: a process that is connected to Ray hands it to the Ray nodes that it adds.
    """
    return {
        name: value
        for name, value in environment.items()
        if (name.startswith("PYTHON") and name != "PYTHONBREAKPOINT")
        or (name.startswith("RAY_") and name[4:5].islower())
        or name == "RAY_AUTH_MODE"
    }


def _place_of(text: bytes) -> int:
    """Where in this process Ray's core keeps that text: as a C++ string of libstdc++'s older form. That is its
    length, its capacity, by how many more it is shared, four bytes for nothing, and its letters.
    """
    head = struct.pack("@QQi", len(text), len(text), 0)
    string = re.compile(re.escape(head) + b"...." + re.escape(text), re.DOTALL)
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        (heap,) = (line.split()[0] for line in maps if line.endswith("[heap]\n"))
        begin, end = (int(each, 16) for each in heap.split("-"))
        memory.seek(begin)
        with mmap.mmap(-1, end - begin) as copy:  # outside of the heap, or the text would be there twice
            memory.readinto(copy)  # type: ignore[arg-type]
            (found,) = (each.end() for each in string.finditer(copy))
    return begin + found - len(text)


def _write(place: int, text: bytes) -> None:
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(place)
        memory.write(text)


def main() -> None:
    """Forks until the standard input ends; returns in forks only, when their program has."""
    listener, directory = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    modules = _import_all()
    places = [_place_of(each) for each in (_JOB, _RAYLET)]
    for place, text in zip(places, (_JOB, _RAYLET), strict=True):
        _write(place, text)  # it fails here, rather than in forks, where that is not allowed
    assert len(os.listdir("/proc/self/task")) == 1, "no fork takes other threads along"
    gc.collect()
    gc.freeze()  # else the first collection of each fork would copy all pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    print(end=".", flush=True)
    while listener in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        request, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_BYTES_MAX, 3)
        wanted = _Wanted(*marshal.loads(request)) if request else None  # nothing: its sender was killed
        child = os.fork() if wanted is not None and wanted.fits() else None
        if wanted is not None and child == 0:
            listener.close()
            if wanted.program in WATCHED:
                _end_with(connection)
            else:
                connection.close()
            if wanted.program != _RUNTIME_ENV_AGENT:
                for each in modules:
                    del sys.modules[each]
            _run(wanted, descriptors, places)
            return
        if wanted is not None and child is not None:
            (directory / f"{wanted.raylet}.{child}").touch()
        for each in descriptors:
            os.close(each)
        with suppress(OSError), connection:
            connection.send(REFUSED if child is None else FORKED)
    os._exit(0)  # none of the ends that the modules have registered is this process's


def _import_all() -> list[str]:
    """Returns the modules that one program alone finds, in directories that it adds to the path."""
    path = list(sys.path)
    for each in _IMPORTED:
        importlib.import_module(each)
    before = set(sys.modules)
    importlib.import_module(_module(_RUNTIME_ENV_AGENT))
    sys.path[:] = path
    return [each for each in sys.modules if each not in before]


def _module(program: str) -> str:
    return "ray." + program.removesuffix(".py").replace("/", ".")


def _end_with(connection: socket.socket) -> None:
    """The kernel kills this process when the other end of the connection is closed."""
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
    ended = select.poll()
    ended.register(connection.detach(), select.POLLHUP)  # it stays open
    if ended.poll(0):
        os._exit(0)  # it was closed before the kernel knew


def _run(wanted: _Wanted, descriptors: list[int], places: list[int]) -> None:
    """Runs a program in this fork as if Python had been started for it."""
    os.setpgrp()  # as Ray does for a worker, whose group it kills in the end
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, each in enumerate(descriptors):
        os.dup2(each, target)
        os.close(each)
    os.chdir(wanted.directory)
    os.environ.clear()
    os.environ.update(wanted.environment)
    for place, text in zip(places, (wanted.job, f"{wanted.raylet:0>8}"), strict=True):
        _write(place, text.encode())
    sys.path[sys.path.index(os.path.dirname(__file__))] = os.path.dirname(
        wanted.path
    )  # imports have put others before
    sys.argv = [wanted.path, *wanted.arguments]
    runpy.run_path(wanted.path, run_name="__main__")


if __name__ == "__main__":
    main()
