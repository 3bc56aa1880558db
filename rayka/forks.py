"""What a forked child lacks: the IO thread and the connection to Ray that its parent had.

A fork copies the memory of a process and one of its threads. Ray's connection is made of other threads, and so are
rayka's clients: in the child they look as if they were there, and every call waits for a thread that does not exist. So
a child of a process that had either is refused every use of rayka, old clients and new ones. A child of a process
that had neither is not restricted. Imported with rayka itself, so that its fork handler runs at each fork.
"""

import os
import sys

from rayka.errors import UnavailableError

_owned: dict[str, None] = {}  # what this process has that no child gets, in words
_lost: dict[str, None] = {}  # what the parent had
IO_THREAD = "rayka's IO thread"
RAY = "a connection to Ray"


def own(what: str) -> None:
    """From now on this process has something that its forked children will lack: `IO_THREAD` or `RAY`."""
    _owned[what] = None


def is_cut_off() -> bool:
    """Whether this process was forked from one that used rayka or Ray: its clients are not this process's to end."""
    return bool(_lost) or _has_dead_ray()


def refuse() -> None:
    """Raises UnavailableError in a forked child that cannot use rayka."""
    if is_cut_off():
        lost = " and ".join(_lost or (RAY,))
        raise UnavailableError(
            f"process {os.getpid()} was forked from one that had {lost}, which no fork takes along; start it with "
            'multiprocessing.get_context("spawn") or set_start_method("spawn"), or fork before the first use of '
            "rayka and Ray"
        )


def _after_fork() -> None:
    if _is_ray_connected():
        own(RAY)  # perhaps made without rayka
    _lost.update(_owned)
    _owned.clear()


def _is_ray_connected() -> bool:
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def _has_dead_ray() -> bool:
    """Whether Ray was connected before the fork, and rayka imported after it: a thread of Ray's own has ended."""
    worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    listener = getattr(worker, "listener_thread", None)
    return listener is not None and not listener.is_alive() and _is_ray_connected()


os.register_at_fork(after_in_child=_after_fork)
