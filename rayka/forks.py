"""Refuses the use of rayka in a forked child whose parent had the IO thread or a connection to Ray.

A fork copies the memory of a process but only one of its threads. Ray's connection and rayka's clients depend on other
threads: in the child they seem to exist, and every call would wait for a missing thread. A child of a parent with
either is refused old clients and new ones. A child of a parent with neither is not restricted. `rayka` imports this
module, so that the fork handler runs at each fork.
"""

import os
import sys

from rayka.errors import UnavailableError

# Things of this process that no child inherits: `IO_THREAD`, `RAY`.
_owned: dict[str, None] = {}
# Things that the parent had at the fork.
_lost: dict[str, None] = {}
IO_THREAD = "rayka's IO thread"
RAY = "a connection to Ray"


def own(what: str) -> None:
    """Records that this process has `IO_THREAD` or `RAY`, which its forked children will lack."""
    _owned[what] = None


def is_cut_off() -> bool:
    """Whether this process was forked from one that used rayka or Ray. Inherited clients are the parent's to close."""
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
        # The program may have connected to Ray without rayka.
        own(RAY)
    _lost.update(_owned)
    _owned.clear()


def _is_ray_connected() -> bool:
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def _has_dead_ray() -> bool:
    """Whether Ray was connected before the fork and rayka imported afterwards: Ray's listener thread is gone."""
    worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    listener = getattr(worker, "listener_thread", None)
    return listener is not None and not listener.is_alive() and _is_ray_connected()


os.register_at_fork(after_in_child=_after_fork)
