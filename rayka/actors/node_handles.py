"""The actors of nodes: made, found and ended. The one place where `ray.remote` is applied to the node classes.

Every node is a detached actor with a name, pinned to the Ray node that holds its disk. Ray restarts the actor without
end and never repeats its calls: retries belong to the protocol (sequences and epochs). There are no concurrency groups,
because those use other threads. When its Ray node is gone, an actor is gone too, and the supervisor makes it again. An
actor that is pinned by a label waits for a Ray node with that label.

A lock lets one process at a time start a cluster, on the whole Ray: two starts that look at the same directories and
format missing ones would destroy each other's files. The lock is a name that an actor holds, and Ray's head gives a
name to one actor, wherever the starts run. The actor is not detached: Ray ends it with the process that made it, so a
start that was killed blocks no other one.
"""

import asyncio
import logging
import os
import select
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayka.actors import ray_nodes
from rayka.actors.names import NAMESPACE, actor_name, named, running_node_ids, start_lock_name
from rayka.actors.node_actor import Broker, Controller, Coordinator
from rayka.actors.node_placement import NodePlacement
from rayka.actors.ray_nodes import HOST_LABEL, host_label
from rayka.actors.ray_records import last_places, pending_actors
from rayka.errors import UnavailableError
from rayka.ids import Role, role_of

if TYPE_CHECKING:
    from rayka.actors.shell import NodeProcess


# Long polls count; the node bounds them per API.
MAX_CONCURRENCY = 10_000
STOP_TIMEOUT_S = 60.0
_LOCK_POLL_S = 0.1
_EXIT_TIMEOUT_MS = 15_000
_CLASSES = {Role.BROKER: Broker, Role.COORDINATOR: Coordinator, Role.CONTROLLER: Controller}

_logger = logging.getLogger(__name__)


def create(placement: NodePlacement) -> Any:
    """Makes the node's actor; leaves an actor that has the name already as it is. Returns at once: construction goes
    on.
    """
    role = role_of(placement.node_id)
    resources = getattr(placement.spec.resources, role)
    return (
        ray.remote(_CLASSES[role])
        .options(
            name=actor_name(placement.spec.name, placement.node_id),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=MAX_CONCURRENCY,
            # Else Ray's state API is told of every fetch, a tenth of a call's cost.
            enable_task_events=False,
            num_cpus=resources.num_cpus,
            memory=resources.memory,
            resources=resources.resources,
            **_pin(placement.ray_node_id),
        )
        .remote(placement)
    )


def _pin(ray_node_id: str) -> dict[str, Any]:
    """The options that pin an actor to this Ray node, and to our Python there.

    An actor is pinned by the Ray node's label if the label is unique: the Ray node keeps it when it comes back with
    another id, and perhaps with another Python.
    """
    label = host_label(ray_node_id)
    if label is not None:
        return {"label_selector": {HOST_LABEL: label}, "runtime_env": {"py_executable": sys.executable}}
    return {
        "scheduling_strategy": NodeAffinitySchedulingStrategy(ray_node_id, soft=False),
        "runtime_env": ray_nodes.actor_environment([ray_node_id]),
    }


def find(cluster_name: str, node_id: int) -> Any | None:
    """Returns the handle of a node's actor; None if there is none of that name."""
    return named(actor_name(cluster_name, node_id))


def find_all(cluster_name: str, node_ids: Iterable[int]) -> dict[int, Any]:
    """Returns the handles of the actors that exist for these nodes."""
    found = {each: find(cluster_name, each) for each in node_ids}
    return {each: handle for each, handle in found.items() if handle is not None}


def last_homes(cluster_name: str, node_ids: Iterable[int]) -> dict[int, str]:
    """Returns the Ray node of each node's last process, as far as Ray remembers one."""
    names = {actor_name(cluster_name, each): each for each in node_ids}
    places = last_places(NAMESPACE, names)
    return {names[name]: each.processes[-1].ray_node_id for name, each in places.items() if each.processes}


async def await_made(cluster_name: str, handles: Mapping[int, Any], timeout_s: float) -> None:
    """Waits until the actors live. Raises UnavailableError for an actor that Ray could not make, or not in time."""
    for node_id, handle in handles.items():
        name = actor_name(cluster_name, node_id)
        try:
            async with asyncio.timeout(timeout_s):
                await handle.process.remote()
        except TimeoutError:
            raise UnavailableError(
                f"Ray did not make {name} within {timeout_s:g} s; it may lack the CPUs or resources that the spec "
                f"asks for (free: {ray.available_resources().get('CPU', 0):g} CPUs): see `rayka doctor`"
            ) from None
        except ray.exceptions.RayError as error:
            raise UnavailableError(f"Ray could not make {name}: {' '.join(str(error).split())}") from error


async def processes(handles: Mapping[int, Any], timeout_s: float) -> "dict[int, NodeProcess]":
    """Returns the process and placement of each actor that answers in time."""
    answers = await asyncio.gather(*(process_of(handle, timeout_s) for handle in handles.values()))
    return {node_id: answer for node_id, answer in zip(handles, answers, strict=True) if answer}


async def stop_brokers(cluster_name: str, handles: Mapping[int, Any]) -> None:
    """Stops the brokers in nodes that are controllers too. The controllers go on, so that all brokers can end well."""
    await asyncio.gather(*(_finish(cluster_name, each, handles[each].stop_broker.remote) for each in handles))


async def stop(cluster_name: str, handles: Mapping[int, Any]) -> None:
    """Stops the nodes under control, then ends their actors for good. An actor that does not answer is ended too."""
    await asyncio.gather(*(_finish(cluster_name, each, handles[each].stop.remote) for each in handles))
    for handle in handles.values():
        await asyncio.to_thread(end, handle)


def end(handle: Any) -> None:
    """Ends the actor at once and for good."""
    ray.kill(handle, no_restart=True)


def end_unplaced(cluster_name: str) -> list[int]:
    """Ends the actors for which Ray has no room, so that no process of them runs. Returns their nodes."""
    pending = pending_actors(NAMESPACE)
    ended = []
    for node_id in running_node_ids(cluster_name):
        waiting = pending.get(actor_name(cluster_name, node_id))
        handle = find(cluster_name, node_id) if waiting is not None and not waiting.is_placed else None
        if handle is not None:
            end(handle)
            ended.append(node_id)
    return ended


def await_exit(pid: int) -> None:
    """Waits until the process and its locks have gone. Runs on the process's machine. Raises UnavailableError."""
    with suppress(ProcessLookupError):
        watched = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(watched, select.POLLIN)
            if not poll.poll(_EXIT_TIMEOUT_MS):
                raise UnavailableError(
                    f"process {pid} on {socket.gethostname()} was ended by Ray but is still there"
                )
        finally:
            os.close(watched)


async def process_of(handle: Any, timeout_s: float) -> "NodeProcess | None":
    """Returns the actor's process and placement; None if the actor does not answer in time."""
    try:
        async with asyncio.timeout(timeout_s):
            process: NodeProcess = await handle.process.remote()
            return process
    except (TimeoutError, ray.exceptions.RayError):
        return None


async def _finish(cluster_name: str, node_id: int, stop: Callable[[], Awaitable[None]]) -> None:
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await stop()
    except (TimeoutError, ray.exceptions.RayError) as error:
        name = actor_name(cluster_name, node_id)
        _logger.warning(
            "%s did not stop by itself and is ended; it recovers when it starts again: %r", name, error
        )


# ---- The lock of a start -------------------------------------------------------------------------------------------


@contextmanager
def only_start(cluster_name: str, timeout_s: float) -> Iterator[None]:
    """Holds the lock for this cluster in the block, and waits until the lock is free. Raises UnavailableError when that
    takes too long.
    """
    deadline = time.monotonic() + timeout_s

    # Ray sends a local class as it is, so that a worker without rayka can hold the lock, too.
    class StartLock:
        """Does nothing: its name is the lock."""

    lock: Any = ray.remote(StartLock).options(
        name=start_lock_name(cluster_name),
        namespace=NAMESPACE,
        num_cpus=0,
        runtime_env=ray_nodes.actor_environment(()),
    )
    holder = None
    while holder is None:
        try:
            holder = lock.remote()
        except ray.exceptions.ActorAlreadyExistsError:
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"cluster {cluster_name!r} is being started by another process for more than {timeout_s:g} s; "
                    "wait until that start ends, or end it, and start again"
                ) from None
            time.sleep(_LOCK_POLL_S)
    try:
        yield
    finally:
        ray.kill(holder, no_restart=True)


def is_starting(cluster_name: str) -> bool:
    """Whether a process starts this cluster just now."""
    return named(start_lock_name(cluster_name)) is not None
