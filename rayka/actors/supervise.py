"""The supervisor's actor made and ended; the class itself is in `supervisor`."""

import asyncio
import sys
from typing import Any

import ray

from rayka.actors.launch import end
from rayka.actors.names import NAMESPACE, supervisor_name
from rayka.actors.supervisor import Supervisor
from rayka.config import ClusterSpec
from rayka.errors import UnavailableError

_STOP_TIMEOUT_S = 15.0


def create(spec: ClusterSpec) -> Any:
    """The cluster's supervisor; one that is there is left as it is. Returns at once: construction goes on.

    It is pinned nowhere, so that Ray starts it again on another machine when its own has gone. It asks for no CPU: if
    there is no room for it, room is to be made for the nodes.
    """
    return (
        ray.remote(Supervisor)
        .options(
            name=supervisor_name(spec.name),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,
            num_cpus=0,
            runtime_env={"py_executable": sys.executable},
        )
        .remote(spec)
    )


async def await_made(handle: Any, timeout_s: float) -> None:
    """Waits until the supervisor lives. Raises UnavailableError when Ray could not make it, or not in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await handle.pid.remote()
    except (TimeoutError, ray.exceptions.RayError) as error:
        raise UnavailableError(
            f"Ray did not make the supervisor within {timeout_s:g} s: {error!r}"
        ) from error


def find(cluster_name: str) -> Any | None:
    """The handle of a cluster's supervisor; None when there is none."""
    try:
        return ray.get_actor(supervisor_name(cluster_name), namespace=NAMESPACE)
    except ValueError:
        return None


async def stop(cluster_name: str) -> None:
    """Ends the supervisor, if there is one, when it has finished what it is at: from then on no node is made."""
    handle = find(cluster_name)
    if handle is None:
        return
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await handle.stop.remote()
    except (TimeoutError, ray.exceptions.RayError):
        pass  # its process is being restarted, or its Ray node is gone
    end(handle)
