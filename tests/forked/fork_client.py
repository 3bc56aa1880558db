"""What Ray starts instead of its own programs: asks the server of forks for the program, and ends.

Imports nothing that a Python has not loaded already, but for sockets: it runs once for each worker.
"""

import marshal
import os
import socket
import sys

SERVER = "RAYKA_TEST_FORKS"  # the variable that names the server's socket
FORKED, REFUSED = b"forked", b"refused"


def run(path: str) -> None:
    """Runs Ray's program of that file's name: as a fork of the server, or in this process where there is none, or
    another Python, or one with other modules.
    """
    name = os.path.basename(path)
    if not _is_forked(name):
        _run_here(name)


def _is_forked(name: str) -> bool:
    address = os.environ.get(SERVER)
    if address is None:
        return False
    wanted = marshal.dumps((name, sys.argv[1:], os.getcwd(), sys.prefix, dict(os.environ)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        try:
            server.connect(address)
            socket.send_fds(server, [wanted], [0, 1, 2])
            return server.recv(len(REFUSED)) == FORKED
        except OSError:
            return False


def _run_here(name: str) -> None:
    import importlib.util
    import runpy

    found = importlib.util.find_spec("ray")
    assert found is not None
    assert found.origin is not None
    sys.path[0] = os.path.join(os.path.dirname(found.origin), "_private", "workers")
    sys.argv[0] = os.path.join(sys.path[0], name)
    runpy.run_path(sys.argv[0], run_name="__main__")
