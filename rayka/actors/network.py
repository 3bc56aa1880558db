"""The network port over Ray's remote methods: the lane that always works.

Actors are found by name and kept; one that Ray restarts keeps its handle, one that was ended is looked up again. What
goes wrong in Ray becomes NetworkException: the call may or may not have been executed, and the caller's connection
opens a new epoch. A call is sent before anything is awaited, but for the first one to a node, which looks its actor
up: those behind it wait for the same look-up and are sent in their order.
"""

import asyncio
from collections.abc import Sequence
from random import SystemRandom
from typing import Any, TypeVar

import ray

from rayka.actors.names import NAMESPACE, actor_name, running_node_ids
from rayka.actors.payload import PackedAnswer, pack_call, unpack_answer
from rayka.errors import NetworkException, UnknownServerError
from rayka.ids import random_uuid
from rayka.ports import Request
from rayka.protocol.caller import Answer, Call, Caller

ResponseT = TypeVar("ResponseT")


class RayNetwork:
    """Calls of one client or node to the nodes of one cluster, on the event loop it is first used on."""

    def __init__(self, cluster_name: str) -> None:
        self._cluster_name = cluster_name
        self._caller = Caller(random_uuid(SystemRandom()))
        self._handles: dict[int, Any] = {}
        self._look_ups: dict[int, asyncio.Future[Any]] = {}

    def __repr__(self) -> str:
        return f"<RayNetwork {self._cluster_name} known={sorted(self._handles)}>"

    @property
    def cluster_name(self) -> str:
        """The cluster whose nodes are called."""
        return self._cluster_name

    async def call(self, node_id: int, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        """The node's answer; see `rayka.ports.Network`."""
        return await self._caller.call(node_id, request, timeout_ms, self._send)

    async def node_ids(self) -> Sequence[int]:
        """The nodes that have an actor, ascending."""
        _require_ray()
        return await asyncio.get_running_loop().run_in_executor(None, running_node_ids, self._cluster_name)

    async def _send(self, call: Call) -> Answer:
        handle = self._handles.get(call.node_id) or await self._look_up(call.node_id)
        _require_ray()
        try:
            method = getattr(handle, call.api.name)
            answer: PackedAnswer = await method.remote(*pack_call(call.header, call.request))
            return unpack_answer(answer)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ray.exceptions.RayError):  # the call's payload did not get there
                raise NetworkException(f"{self._name(call.node_id)} {_reason(error.cause)}") from error
            raise UnknownServerError(f"{self._name(call.node_id)} failed: {error.cause!r}") from error
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.ActorDiedError):
                self._handles.pop(call.node_id, None)
            raise NetworkException(f"{self._name(call.node_id)} {_reason(error)}") from error

    async def _look_up(self, node_id: int) -> Any:
        waiting = self._look_ups.get(node_id)
        if waiting is None:
            _require_ray()
            loop = asyncio.get_running_loop()
            waiting = self._look_ups[node_id] = loop.run_in_executor(
                None, ray.get_actor, self._name(node_id), NAMESPACE
            )
            waiting.add_done_callback(lambda _: self._look_ups.pop(node_id))
        try:
            handle = self._handles[node_id] = await asyncio.shield(waiting)
        except ValueError:
            raise NetworkException(
                f"no actor {self._name(node_id)} on this Ray: was the cluster stopped?"
            ) from None
        except ray.exceptions.RayError as error:
            raise NetworkException(f"{self._name(node_id)} {_reason(error)}") from error
        return handle

    def _name(self, node_id: int) -> str:
        return actor_name(self._cluster_name, node_id)


def _require_ray() -> None:
    """Ray would start a new Ray by itself when a process that has none makes a call."""
    if not ray.is_initialized():
        raise NetworkException(
            "this process is no longer connected to Ray; connect again with rayka.Cluster.connect()"
        )


def _reason(error: ray.exceptions.RayError) -> str:
    """What Ray's error means to a caller; Ray's own words are its cause."""
    if isinstance(error, ray.exceptions.ActorDiedError):
        return "cannot be reached: its process has ended"
    if isinstance(error, (ray.exceptions.ActorUnavailableError, ray.exceptions.RpcError)):
        return "cannot be reached just now"
    return f"cannot be reached: {type(error).__name__}"
