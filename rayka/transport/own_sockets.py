"""The sockets of direct lanes in this process, of callers and servers: a forked child gives its copies up at once.

Else a peer would not notice the end of this process while a child of it lives, and the child could write into its
connections. The copies are closed without a word to the event loop: its selector is the parent's, too.
"""

import os
import socket
from weakref import WeakSet

_sockets: "WeakSet[socket.socket]" = WeakSet()


def own(connection: socket.socket) -> socket.socket:
    """From now on the socket is this process's alone."""
    _sockets.add(connection)
    return connection


def _after_fork() -> None:
    for each in list(_sockets):
        each.close()


os.register_at_fork(after_in_child=_after_fork)
