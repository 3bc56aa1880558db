"""Each Python imports this before its program, where `PYTHONPATH` names this directory: Ray's programs of the tests
begin as forks of the server that `RAYKA_TEST_FORKS` names. See `fork_server.py`.

Any other program, and one that the server refuses, runs in its own process. Imports nothing for those that a Python
has not loaded already.
"""

import os
import sys

SERVER = "RAYKA_TEST_FORKS"  # the variable that names the server's socket
FORKED, REFUSED = b"forked", b"refused"
# Below Ray's directory. A raylet learns a worker's process from the worker itself. Ray watches the process that it has
# started for any of the others.
WORKERS = ("_private/workers/default_worker.py", "_private/workers/setup_worker.py")
WATCHED = (
    "dashboard/agent.py",
    "dashboard/dashboard.py",
    "_private/log_monitor.py",
    "_private/runtime_env/agent/main.py",
)


def network() -> str:
    """The network that this process is in."""
    return os.readlink("/proc/self/ns/net")


def _begin_as_fork(address: str) -> None:
    """Does not return where the server has forked itself for this process's program."""
    path, *arguments = [each for each in sys.orig_argv[1:] if each != "-u"] or [""]
    program = path.rpartition("/ray/")[2]
    if program not in (*WORKERS, *WATCHED):
        return
    import marshal
    import socket

    wanted = marshal.dumps((path, program, arguments, os.getcwd(), sys.prefix, network(), dict(os.environ)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        try:
            server.connect(address)
            socket.send_fds(server, [wanted], [0, 1, 2])
            if server.recv(len(REFUSED)) != FORKED:
                return
            if program in WATCHED:
                server.recv(1)  # the fork has the other end: it ends with this process, and this one with it
        except OSError:
            return
    os._exit(0)


if SERVER in os.environ:
    _begin_as_fork(os.environ[SERVER])
