"""Actors made and ended: the one place where `ray.remote` is applied to the node classes.

Every node is a detached actor with a name, pinned to the Ray node that holds its disk, restarted by Ray without end,
its calls never repeated by Ray (retries belong to the protocol: sequences and epochs). No concurrency groups: those
use other threads. When its Ray node is gone, an actor is gone too, and the supervisor brings the node back; one that is
pinned by a label waits for a Ray node with that label.
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
from rayka.actors.node_placement import Placement
from rayka.actors.ray_nodes import HOST_LABEL, host_label
from rayka.actors.ray_records import last_places, pending_actors
from rayka.errors import UnavailableError
from rayka.ids import Role, role_of

if TYPE_CHECKING:
    from rayka.actors.shell import NodeProcess


MAX_CONCURRENCY = 10_000  # long polls count; the node bounds them per API
STOP_TIMEOUT_S = 60.0
_EXIT_TIMEOUT_MS = 15_000
_CLASSES = {Role.BROKER: Broker, Role.COORDINATOR: Coordinator, Role.CONTROLLER: Controller}

_logger = logging.getLogger(__name__)


def create(placement: Placement) -> Any:
    """The node's actor; one that has the name already is left as it is. Returns at once: construction goes on."""
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
            enable_task_events=False,  # else Ray's state API is told of every fetch, a tenth of a call's cost
            num_cpus=resources.num_cpus,
            memory=resources.memory,
            resources=resources.resources,
            **_pin(placement.ray_node_id),
        )
        .remote(placement)
    )


def _pin(ray_node_id: str) -> dict[str, Any]:
    """To this Ray node, and to our Python there; by its label where it has one of its own, which it keeps when it comes
    back with another id, and perhaps with another Python.
    """
    label = host_label(ray_node_id)
    if label is not None:
        return {"label_selector": {HOST_LABEL: label}, "runtime_env": {"py_executable": sys.executable}}
    return {
        "scheduling_strategy": NodeAffinitySchedulingStrategy(ray_node_id, soft=False),
        "runtime_env": ray_nodes.environment([ray_node_id]),
    }


def find(cluster_name: str, node_id: int) -> Any | None:
    """The handle of a node's actor; None when there is none of that name."""
    return named(actor_name(cluster_name, node_id))


def find_all(cluster_name: str, node_ids: Iterable[int]) -> dict[int, Any]:
    """The handles of those of these nodes' actors that there are."""
    found = {each: find(cluster_name, each) for each in node_ids}
    return {each: handle for each, handle in found.items() if handle is not None}


def last_homes(cluster_name: str, node_ids: Iterable[int]) -> dict[int, str]:
    """On which Ray node the last process of each node was, of those of which Ray remembers one."""
    names = {actor_name(cluster_name, each): each for each in node_ids}
    places = last_places(NAMESPACE, names)
    return {names[name]: each.processes[-1].ray_node_id for name, each in places.items() if each.processes}


async def await_made(cluster_name: str, handles: Mapping[int, Any], timeout_s: float) -> None:
    """Waits until the actors live. Raises UnavailableError for one that Ray could not make, or not in time."""
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
    """What each actor was made from and which process it is; those that do not say so in time are left out."""
    answers = await asyncio.gather(*(process_of(handle, timeout_s) for handle in handles.values()))
    return {node_id: answer for node_id, answer in zip(handles, answers, strict=True) if answer}


async def stop_brokers(cluster_name: str, handles: Mapping[int, Any]) -> None:
    """Stops the brokers in nodes that are controllers too: while these go on, all brokers can end well."""
    await asyncio.gather(*(_finish(cluster_name, each, handles[each].stop_broker.remote) for each in handles))


async def stop(cluster_name: str, handles: Mapping[int, Any]) -> None:
    """Stops the nodes under control, then ends their actors for good; one that does not answer is ended too."""
    await asyncio.gather(*(_finish(cluster_name, each, handles[each].stop.remote) for each in handles))
    for handle in handles.values():
        await asyncio.to_thread(end, handle)


def end(handle: Any) -> None:
    """Ends the actor at once and for good."""
    ray.kill(handle, no_restart=True)


def end_unplaced(cluster_name: str) -> list[int]:
    """Ends at once the actors for which Ray has no room, so that nothing of them runs; which nodes these were."""
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
    """Waits until the process has gone, and its locks with it. Runs on its machine."""
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
    """What the actor was made from and which process it is; None when it does not say so in time."""
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


# One start of a cluster at a time, on the whole Ray: two that look at its directories and format what is missing
# would take the files from under each other.
#
# The lock is a name that an actor holds: the head of Ray gives it to one, wherever the starters run. The actor does
# nothing, and is not detached: Ray ends it with the process that made it, so a start that was killed locks no other
# out.


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
        runtime_env=ray_nodes.environment(()),
    )


def _taken(lock: Any) -> Any | None:
    """The holder of the name; None while another has it."""
    try:
        return lock.remote()
    except ray.exceptions.ActorAlreadyExistsError:
        return None
