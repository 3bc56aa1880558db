"""The server of forks for what a process starts: workers and agents of Ray begin as its forks.

See `tests/forked/fork_server.py`. One process of tests has one server, which its subprocesses and their Rays use too.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.forked.sitecustomize import SERVER

_FORKED = Path(__file__).parent / "forked"
_SOCKET, _SERVER_PID = "forks", "server"
_END_TIMEOUT_S = 90
_KILLED_TIMEOUT_S = 20
# An agent is a fork of the server and no child of its raylet, so it is told of the raylet's end by a pipe.
_SETTINGS = {"RAY_enable_pipe_based_agent_to_parent_health_check": "1"}


@contextmanager
def fork_server(**settings: str) -> Iterator[None]:
    """Meanwhile what this process starts has these settings of Ray, and finds a server of forks: that of the process
    that started this one, if it has one, or a new one.
    """
    with _environment(settings):
        if SERVER in os.environ:
            yield
        else:
            with _new_server():
                yield


@contextmanager
def _new_server() -> Iterator[None]:
    """Waits in the end until its forks have ended."""
    directory = Path(tempfile.mkdtemp(prefix="forks-"))
    paths = [str(_FORKED), *filter(None, [os.environ.get("PYTHONPATH")])]
    address = str(directory / _SOCKET)
    try:
        with (
            _environment({**_SETTINGS, "PYTHONPATH": os.pathsep.join(paths)}),
            _server(address),
            _environment({SERVER: address}),
        ):
            yield
    finally:
        shutil.rmtree(directory)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _server(address: str) -> Iterator[None]:
    directory = os.path.dirname(address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(128)
        command = [sys.executable, str(_FORKED / "fork_server.py"), str(listener.fileno()), directory]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        server = subprocess.Popen(command, pass_fds=[listener.fileno()], **pipes)
    assert server.stdout is not None
    is_ready = server.stdout.read(1)  # Ray gives its agents some seconds, no more
    assert is_ready, "the server of forks has ended"
    Path(directory, _SERVER_PID).write_text(str(server.pid))
    with server:  # the end of its input ends it
        try:
            yield
        finally:
            psutil.wait_procs(psutil.Process(server.pid).children(), timeout=_END_TIMEOUT_S)


def processes_of(pid: int) -> list[psutil.Process]:
    """The processes that a process has started, and that those have: forks among them, but not the server. One that Ray
    drains may end by itself when nothing is left on it.
    """
    server = _running_server()
    found: dict[int, psutil.Process] = {}
    with suppress(psutil.NoSuchProcess):
        found = {each.pid: each for each in psutil.Process(pid).children(recursive=True)}
    if server is not None:
        for each in (server, *server.children()):
            found.pop(each.pid, None)
        for raylet in (pid, *list(found)):
            found |= {each.pid: each for each in _forks(server, raylet)}
    return list(found.values())


def kill_all(processes: Sequence[psutil.Process]) -> None:
    """Ends them at once, and waits for that; one may go by itself meanwhile, as the others have gone."""
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(processes, timeout=_KILLED_TIMEOUT_S)


def raylet_of(worker_pid: int) -> int:
    """The raylet of a worker, which is a fork or not."""
    server, process = _running_server(), psutil.Process(worker_pid)
    if server is None or process.ppid() != server.pid:
        return process.ppid()
    (asked,) = _directory().glob(f"*.{worker_pid}")
    return int(asked.stem)


def _running_server() -> psutil.Process | None:
    return psutil.Process(int((_directory() / _SERVER_PID).read_text())) if SERVER in os.environ else None


def _directory() -> Path:
    return Path(os.environ[SERVER]).parent


def _forks(server: psutil.Process, raylet_pid: int) -> list[psutil.Process]:
    found = []
    for each in _directory().glob(f"{raylet_pid}.*"):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(each.suffix[1:]))
            if process.ppid() == server.pid:
                found.append(process)
    return found
