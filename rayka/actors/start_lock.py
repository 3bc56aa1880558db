"""One start of a cluster at a time, on the whole Ray: two that look at its directories and format what is missing would
take the files from under each other.

The lock is a name that an actor holds: the head of Ray gives it to one, wherever the starters run. The actor does
nothing, and is not detached: Ray ends it with the process that made it, so a start that was killed locks no other out.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from rayka.actors import worker_python
from rayka.actors.names import NAMESPACE, named, start_lock_name
from rayka.errors import UnavailableError

_POLL_S = 0.1


@contextmanager
def only_start(cluster_name: str, timeout_s: float) -> Iterator[None]:
    """Waits until no other process starts this cluster. Raises UnavailableError when that takes too long."""
    deadline = time.monotonic() + timeout_s
    lock = _holder(cluster_name)
    while (holder := _taken(lock)) is None:
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"cluster {cluster_name!r} is being started by another process for more than {timeout_s:g} s; "
                "wait until that start ends, or end it, and start again"
            )
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        ray.kill(holder, no_restart=True)


def is_starting(cluster_name: str) -> bool:
    """Whether a process starts this cluster just now."""
    return named(start_lock_name(cluster_name)) is not None


def _holder(cluster_name: str) -> Any:
    """What makes the actor. Ray sends a local class as it is, so that a worker without rayka can hold the lock, too."""

    class Holder:
        """The actor."""

    return ray.remote(Holder).options(
        name=start_lock_name(cluster_name),
        namespace=NAMESPACE,
        num_cpus=0,
        runtime_env=worker_python.environment(()),
    )


def _taken(lock: Any) -> Any | None:
    """The holder of the name; None while another has it."""
    try:
        return lock.remote()
    except ray.exceptions.ActorAlreadyExistsError:
        return None
