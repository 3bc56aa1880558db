"""Workers of Rays that tests start begin as forks of one process that has imported what they do.

A worker computes for two seconds before it can take an actor, nearly all of it imports: of Ray, of pyarrow, of rayka.
Tests start hundreds of workers. So this program imports all that once, connects to nothing, has one thread, and forks
itself for each worker that Ray wants; in the child Ray's own program runs from its first line. Ray's settings let it
run other programs than its own in their place: `default_worker.py` and `setup_worker.py` beside this file, which ask
here. What a test, a command or a user starts with `ray start` or `rayka start` has Ray's own workers.

`fork_server.py LISTENER DIRECTORY`: the descriptor of a socket that listens, and where a file is made for each fork,
named after the raylet that wanted it. Ends when its standard input does.
"""

import gc
import importlib
import marshal
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

from fork_client import FORKED, REFUSED

# Ray's core reads these two variables when it is imported, and keeps them as strings of eight letters.
_JOB, _RAYLET = b"the-job:", b"the-pid:"
os.environ.update(RAY_JOB_ID=_JOB.decode(), RAY_RAYLET_PID=_RAYLET.decode())
os.environ.update(
    OPENBLAS_NUM_THREADS="1", JE_ARROW_MALLOC_CONF="background_thread:false"
)  # no further threads
import ray  # noqa: E402

_IMPORTED = (
    "ray._private.workers.default_worker",
    "ray._private.workers.setup_worker",
    "pyarrow.json",
    "pydantic.v1",
    "pydantic.deprecated.class_validators",
    "rayka.actors.broker_actor",
    "rayka.actors.controller_actor",
    "rayka.actors.coordinator_actor",
    "rayka.actors.shell",
    "rayka.actors.supervisor",
    "rayka.node.broker_node",
    "rayka.node.combined_node",
    "rayka.node.controller_node",
    "rayka.worker_pool.worker_actor",
)
_REQUEST_BYTES_MAX = 1 << 18


class _Wanted(NamedTuple):
    """One of Ray's programs, and what its process has to be like."""

    program: str
    arguments: list[str]
    directory: str
    prefix: str
    environment: dict[str, str]

    @property
    def job(self) -> str:
        return self.environment.get("RAY_JOB_ID", "")

    @property
    def raylet(self) -> str:
        return self.environment.get("RAY_RAYLET_PID", "")

    def fits(self) -> bool:
        """Whether this process's modules and what these have read of the environment are what the program's own Python
        would have.
        """
        alike = _read_by_imports(self.environment) == _read_by_imports(os.environ)
        return alike and self.prefix == sys.prefix and len(self.job) == len(_JOB) and self.raylet.isdigit()


def _read_by_imports(environment: "dict[str, str] | os._Environ[str]") -> dict[str, str]:
    """Where modules are looked for, and Ray's settings proper, whose names go on in small letters. Not what Python
    reads at each breakpoint: a process that is connected to Ray hands it to the Ray nodes that it adds.
    """
    return {
        name: value
        for name, value in environment.items()
        if (name.startswith("PYTHON") and name != "PYTHONBREAKPOINT")
        or (name.startswith("RAY_") and name[4:5].islower())
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
        (found,) = string.finditer(memory.read(end - begin))
    return begin + found.end() - len(text)


def _write(place: int, text: bytes) -> None:
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(place)
        memory.write(text)


def main() -> None:
    """Forks until the standard input ends; returns in forks only, when their program has."""
    listener, directory = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    for each in _IMPORTED:
        importlib.import_module(each)
    places = [_place_of(each) for each in (_JOB, _RAYLET)]
    for place, text in zip(places, (_JOB, _RAYLET), strict=True):
        _write(place, text)  # it fails here, rather than in forks, where that is not allowed
    assert len(os.listdir("/proc/self/task")) == 1, "no fork takes other threads along"
    gc.collect()
    gc.freeze()  # else the first collection of each fork would copy all pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    while listener in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        request, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_BYTES_MAX, 3)
        wanted = _Wanted(*marshal.loads(request)) if request else None  # nothing: its sender was killed
        child = os.fork() if wanted is not None and wanted.fits() else None
        if wanted is not None and child == 0:
            listener.close()
            connection.close()
            _run(wanted, descriptors, places)
            return
        if wanted is not None and child is not None:
            (directory / f"{wanted.raylet}.{child}").touch()
        for each in descriptors:
            os.close(each)
        with suppress(OSError), connection:
            connection.send(REFUSED if child is None else FORKED)
    os._exit(0)  # none of the ends that the modules have registered is this process's


def _run(wanted: _Wanted, descriptors: list[int], places: list[int]) -> None:
    """Runs a program in this fork as if Python had been started for it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, each in enumerate(descriptors):
        os.dup2(each, target)
        os.close(each)
    os.chdir(wanted.directory)
    os.environ.clear()
    os.environ.update(wanted.environment)
    for place, text in zip(places, (wanted.job, f"{wanted.raylet:0>8}"), strict=True):
        _write(place, text.encode())
    workers = Path(ray.__file__).parent / "_private/workers"
    sys.path[sys.path.index(str(Path(__file__).parent))] = str(workers)  # imports have put others before it
    sys.argv = [str(workers / wanted.program), *wanted.arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
