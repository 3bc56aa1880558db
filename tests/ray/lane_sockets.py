"""The sockets of direct lanes as the operating system shows them: found, cut off, and counted, in any process.

A cut is a `shutdown` of the socket under the code that uses it: what was half sent stays half sent.
"""

import os
import random
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any

import psutil
import ray
from ray import cloudpickle

from rayka.actors import node_handles
from rayka.cluster import Cluster
from rayka.protocol.wire import decode
from rayka.transport.greeting import LaneOffer

SERVED = b"\0rayka-"
_PAUSE_S_MAX = 0.05
# Actors have no tests to import.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@contextmanager
def own_sockets() -> Iterator[list[socket.socket]]:
    """Copies of all sockets of this process."""
    copies, seen = [], set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{number}")
            if target.startswith("socket:") and target not in seen:  # a copy may have a number of the list
                seen.add(target)
                copies.append(socket.socket(fileno=os.dup(int(number))))
    try:
        yield copies
    finally:
        for each in copies:
            each.close()


def _address(side: Callable[[socket.socket], Any], each: socket.socket) -> bytes:
    with suppress(OSError):
        address = side(each)
        return address if isinstance(address, bytes) else b""
    return b""


def connected_to(cluster: Cluster, node_id: int) -> int:
    """How many sockets of this process are lanes to a node."""
    name = _served_by(cluster, node_id)
    with own_sockets() as sockets:
        return sum(_address(socket.socket.getpeername, each) == name for each in sockets)


def served_names(pid: int) -> list[str]:
    """The names of a process's Unix sockets that are a lane's, at the end of its server."""
    names = [each.laddr for each in psutil.Process(pid).net_connections("unix")]
    return [each.removeprefix("@") for each in names if each.startswith("@rayka-")]


def _served_by(cluster: Cluster, node_id: int) -> bytes:
    return b"\0" + offered(cluster, node_id).local_name.encode()


def offered(cluster: Cluster, node_id: int) -> LaneOffer:
    """Where a node serves its lane; a ticket goes to waste."""
    return decode(
        LaneOffer, ray.get(node_handles.find(cluster.name, node_id).open_lane.remote(), timeout=150)
    )


def cut_one(side: Callable[[socket.socket], Any], chance: random.Random, names: tuple[bytes, ...]) -> int:
    """Cuts off one of the lanes of this process at whose side the address begins so; how many that are."""
    with own_sockets() as sockets:
        served = [each for each in sockets if _address(side, each).startswith(names)]
        connected = [each for each in served if _is_connected(each)]
        chosen = chance.sample(connected, min(1, len(connected)))
        for each in chosen:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
    return len(chosen)


def _is_connected(each: socket.socket) -> bool:
    with suppress(OSError):
        each.getpeername()
        return True
    return False


def cut_here(cluster: Cluster, node_ids: Sequence[int], is_over: Event, seed: int) -> int:
    """Cuts lanes of this process's clients to these nodes, one every few milliseconds, until it is over; how many."""
    chance, count = random.Random(seed), 0
    names = tuple(name for each in node_ids if (name := _served_by(cluster, each)).startswith(SERVED))
    while not is_over.wait(chance.uniform(0.0, _PAUSE_S_MAX)):
        count += cut_one(socket.socket.getpeername, chance, names)
    return count


def cut_at_node(cluster: Cluster, node_id: int, seed: int) -> int:
    """Cuts one lane that a node serves, to a client or another node; how many that are."""

    def cut(_: Any) -> int:
        return cut_one(socket.socket.getsockname, random.Random(seed), (SERVED,))

    return in_actor(cluster, node_id, cut)


def ends(cluster: Cluster, node_id: int) -> dict[str, int]:
    """How often the node's server refused or ended a connection, by the reason."""

    def look(actor: Any) -> dict[str, int]:
        return dict(actor._shell._lanes.cut_off)

    return in_actor(cluster, node_id, look)


def calls_by_ray(cluster: Cluster, node_id: int) -> dict[str, int]:
    """How many calls of each API the node's remote methods have carried since this was first asked."""

    def count(actor: Any) -> dict[str, int]:
        shell = actor._shell
        if not hasattr(shell, "counts"):
            shell.counts, handle = {}, shell.handle

            async def counted(api_name: str, call: Any) -> Any:
                shell.counts[api_name] = shell.counts.get(api_name, 0) + 1
                return await handle(api_name, call)

            shell.handle = counted
        return dict(shell.counts)

    return in_actor(cluster, node_id, count)


def in_actor(cluster: Cluster, node_id: int, function: Callable[..., Any]) -> Any:
    """What the function gives in the process of a node, on its event loop, of the node's actor. Raises ValueError where
    the node has no actor just now.
    """
    actor = node_handles.find(cluster.name, node_id)
    if actor is None:
        raise ValueError(f"node {node_id} of {cluster.name!r} has no actor")
    return ray.get(actor.__ray_call__.remote(function), timeout=150)
