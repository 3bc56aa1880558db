"""The network port: hot calls by the direct lane to a node where there is one, all else by Ray's remote methods.

A direct lane is opened beside the calls, which go by Ray meanwhile, and again when it breaks. Both lanes carry the same
numbered calls of one caller, so their order is the inbox's, whichever of them a call took; a lane that breaks fails
its calls, and the caller opens a new connection epoch as after any failure.

Actors are found by name and kept until a call to one fails otherwise than by the answer of a live process; then the
name is looked up again. An actor that Ray restarts keeps its handle; one that was made anew, on a machine that came
back or after `ray.shutdown()` and another connection, has another one. What goes wrong in Ray becomes NetworkException:
the call may or may not have been executed, and the caller's connection opens a new epoch. A call is sent before
anything is awaited, but for those that need a look-up: they wait for the same one and are sent in their order.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from random import SystemRandom
from typing import Any, TypeVar

import ray

from rayka.actors.named_actors import NamedActors
from rayka.actors.names import actor_name, running_node_ids
from rayka.actors.payload import PackedAnswer, pack_call, unpack_answer
from rayka.actors.ray_head import ConnectionId, check_head, recent_connection_id, while_head_answers
from rayka.errors import NetworkException, RaykaError, UnknownServerError
from rayka.ids import random_uuid
from rayka.options import Transport
from rayka.ports import Request
from rayka.protocol.caller import Answer, Call, Caller
from rayka.protocol.later import Later
from rayka.protocol.wire import decode
from rayka.transport.greeting import LaneOffer
from rayka.transport.lane import Lanes, NodeKey, lanes_of_this_loop, takes

ResponseT = TypeVar("ResponseT")
_OFFER_TIMEOUT_S = 10.0


class RayNetwork:
    """Calls of one client or node to the nodes of one cluster, on the event loop it is first used on.

    With the transport `ray` no direct lane is used. With `for_client`, calls that need a Ray which has ended raise
    RayEnded, so that no client retries them.
    """

    def __init__(self, cluster_name: str, *, for_client: bool = False, transport: Transport = "auto") -> None:
        self._cluster_name = cluster_name
        self._caller = Caller(random_uuid(SystemRandom()))
        self._for_client = for_client
        self._is_direct = transport == "auto"
        self._lanes: Lanes | None = None  # of its loop, looked up once
        self._actors = self._of(None)

    def __repr__(self) -> str:
        return f"<RayNetwork {self._cluster_name} {self._actors!r}>"

    @property
    def cluster_name(self) -> str:
        """The cluster whose nodes are called."""
        return self._cluster_name

    def call(self, node_id: int, request: Request[ResponseT], timeout_ms: int) -> Later[ResponseT]:
        """The node's answer; see `rayka.ports.Network`."""
        return self._caller.call(node_id, request, timeout_ms, self._send)

    async def node_ids(self) -> Sequence[int]:
        """The nodes that have an actor, ascending."""
        self._current_actors()
        asked = asyncio.get_running_loop().run_in_executor(None, self._running_node_ids)
        return await while_head_answers(asked, for_client=self._for_client)

    def _running_node_ids(self) -> Sequence[int]:
        check_head(for_client=self._for_client)
        return running_node_ids(self._cluster_name)

    def _send(self, call: Call) -> Awaitable[Answer]:
        actors = self._current_actors()
        if self._is_direct and takes(call):
            node = NodeKey(self._cluster_name, call.node_id)
            lanes = self._lanes
            if lanes is None:
                lanes = self._lanes = lanes_of_this_loop()
            lane = lanes.get(actors.connection, node, partial(_ask_for_lane, actors, node))
            if lane is not None:
                return lane.send(call)
        name = actor_name(self._cluster_name, call.node_id)
        handle = actors.known(name)
        if handle is None:
            return _send_when_found(call, name, actors)
        return _answer(_sent(call, name, actors, handle), name, actors, handle)

    def _current_actors(self) -> NamedActors:
        """Those of this process's present connection to Ray. Raises NetworkException without one."""
        try:
            connection = recent_connection_id()
        except NetworkException:
            self._actors.close()
            raise
        if connection != self._actors.connection:
            self._actors.close()
            self._actors = self._of(connection)
        return self._actors

    def _of(self, connection: ConnectionId | None) -> NamedActors:
        return NamedActors(connection, for_client=self._for_client)


async def _send_when_found(call: Call, name: str, actors: NamedActors) -> Answer:
    handle = await _look_up(actors, name)
    return await _answer(_sent(call, name, actors, handle), name, actors, handle)


def _sent(call: Call, name: str, actors: NamedActors, handle: Any) -> Any:
    """The call leaves now. Raises NetworkException."""
    arguments = pack_call(call.header, call.request)
    try:
        return getattr(handle, call.api.name).remote(*arguments)
    except Exception as error:  # bare ones too, which the handle of a former connection raises
        actors.forget(name, handle)
        raise NetworkException(f"{name} {_reason(error)}") from error


async def _answer(sent: Any, name: str, actors: NamedActors, handle: Any) -> Answer:
    try:
        answer: PackedAnswer = await actors.until_closed(sent)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ray.exceptions.RayError):  # the call's payload did not get there
            raise NetworkException(f"{name} {_reason(error.cause)}") from error
        raise UnknownServerError(f"{name} failed: {error.cause!r}") from error
    except asyncio.CancelledError:
        # The call took too long: the actor may have ended together with the Ray that reports such ends.
        actors.forget(name, handle)
        raise
    except Exception as error:  # bare ones too, which the handle of a former connection raises
        actors.forget(name, handle)
        raise NetworkException(f"{name} {_reason(error)}") from error
    return unpack_answer(answer)


async def _ask_for_lane(actors: NamedActors, node: NodeKey) -> LaneOffer:
    """Where the node serves its lane. Raises NetworkException."""
    name = actor_name(*node)
    handle = actors.known(name) or await _look_up(actors, name)
    try:
        async with asyncio.timeout(_OFFER_TIMEOUT_S):
            return decode(LaneOffer, await handle.open_lane.remote())
    except Exception as error:
        raise NetworkException(f"{name} {_reason(error)}") from error


async def _look_up(actors: NamedActors, name: str) -> Any:
    try:
        return await actors.look_up(name)
    except NetworkException:
        raise
    except ValueError:
        why = await asyncio.get_running_loop().run_in_executor(None, _absence, name)
        raise NetworkException(f"no actor {name} on this Ray: {why}") from None
    except Exception as error:  # Ray's, and bare ones where its connection ends meanwhile
        raise NetworkException(f"{name} {_reason(error)}") from error


def _absence(name: str) -> str:
    """Why a node may have no actor: a lost one if others of its cluster have actors, else a stopped cluster."""
    try:
        has_others = bool(running_node_ids(name.rpartition("/")[0]))
    except RaykaError:
        has_others = False
    return "its machine is lost, or it was stopped" if has_others else "was the cluster stopped?"


def _reason(error: Exception) -> str:
    """What Ray's error means to a caller; Ray's own words are its cause."""
    if isinstance(error, NetworkException):
        return f"did not answer: {error}"
    if isinstance(error, ray.exceptions.ActorDiedError):
        return "cannot be reached: its process has ended"
    if isinstance(error, (ray.exceptions.ActorUnavailableError, ray.exceptions.RpcError)):
        return "cannot be reached just now"
    return f"cannot be reached: {type(error).__name__}"
