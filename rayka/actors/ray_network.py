"""The network port: hot calls by the direct lane to a node that has one, all others by Ray's remote methods.

A direct lane is opened beside the calls, which go by Ray until then, and again when it breaks. Both ways carry the same
numbered calls of one caller. So the inbox puts them in order, whichever way a call took. A lane that breaks fails its
calls, and the caller opens a new connection epoch as after any failure.

An actor is found by name and kept until a call to it fails otherwise than by the answer of a live process. Then the
name is looked up again. An actor that Ray restarts keeps its handle. An actor that was made anew has another one: on a
machine that came back, or after `ray.shutdown()` and another connection. An error of Ray becomes NetworkException: the
call may or may not have been executed, and the caller's connection opens a new epoch. A call is sent before anything is
awaited. Only calls that need a look-up wait: they share the same one and are sent in their order.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from random import SystemRandom
from typing import Any, TypeVar

import numpy as np
import ray

from rayka.actors.names import NAMESPACE, actor_name, running_node_ids
from rayka.actors.ray_head import ConnectionId, check_head, recent_connection_id, while_head_answers
from rayka.errors import (
    InvalidRequest,
    KafkaStorageError,
    NetworkException,
    RaykaError,
    StorageError,
    UnknownServerError,
)
from rayka.ids import random_uuid
from rayka.options import Transport
from rayka.ports import Request
from rayka.protocol.caller import Answer, Call, Caller
from rayka.protocol.later import Later
from rayka.protocol.wire import Encoded, Failure, Payload, decode, encode, frame, in_memory, unframe
from rayka.transport.greeting import LaneOffer
from rayka.transport.lane import Lanes, NodeKey, fits_lane, lanes_of_this_loop

PackedCall = tuple[Payload, ...]
PackedAnswer = bytes | Answer
AnswerT = TypeVar("AnswerT")
ResponseT = TypeVar("ResponseT")
PIECE_BYTES = 90 * 1024
INLINE_MAX_BYTES = 6 * PIECE_BYTES
_OFFER_TIMEOUT_S = 10.0


class NamedActors:
    """The actors that one caller has looked up by name, for as long as this process keeps one connection to Ray.

    Made and used on one event loop; each look-up blocks, so it has a thread. Invariants:
    - A handle is used with the connection that it came from. With another one, it raises exceptions of every kind, or
      never answers.
    - A call that waits when its connection ends fails at once, not at its timeout.
    - There is at most one look-up of a name at a time, which all callers share. A failed one leaves nothing behind.
    """

    def __init__(self, connection: ConnectionId | None, *, for_client: bool) -> None:
        self.connection = connection
        self._for_client = for_client
        # By name, the actors that were found and have not failed since.
        self._handles: dict[str, Any] = {}
        # By name, the look-ups under way: at most one of a name.
        self._look_ups: dict[str, asyncio.Future[Any]] = {}
        # The calls that wait for an answer.
        self._open_calls: dict[asyncio.Timeout, None] = {}

    def known(self, name: str) -> Any | None:
        """Returns the handle of the actor if it was looked up and has not failed since."""
        return self._handles.get(name)

    async def look_up(self, name: str) -> Any:
        """Returns the handle of the actor that has this name now. Raises NetworkException, also when the head goes
        during the look-up, ValueError if there is no such actor, and Ray's errors. The look-up ends by itself.
        """

        def find() -> Any:
            check_head(for_client=self._for_client)
            return ray.get_actor(name, NAMESPACE)

        waiting = self._look_ups.get(name)
        if waiting is None:
            waiting = asyncio.get_running_loop().run_in_executor(None, find)
            self._look_ups[name] = waiting
            waiting.add_done_callback(partial(self._on_looked_up, name))
        return await while_head_answers(waiting, for_client=self._for_client)

    def forget(self, name: str, handle: Any) -> None:
        """Drops the handle of an actor that did not answer, unless the name has been looked up since."""
        if self._handles.get(name) is handle:
            del self._handles[name]

    async def until_closed(self, answer: Awaitable[AnswerT]) -> AnswerT:
        """Awaits the answer of a call that was sent just now. Raises NetworkException when the connection ends
        first.
        """
        scope = asyncio.timeout(None)
        self._open_calls[scope] = None
        try:
            async with scope:
                return await answer
        except TimeoutError:
            if not scope.expired():
                raise
            raise NetworkException("this process's connection to Ray ended before the answer") from None
        finally:
            self._open_calls.pop(scope, None)

    def close(self) -> None:
        """Drops all handles after the end of the connection, and fails the calls that wait for an answer."""
        self._handles.clear()
        now_s = asyncio.get_running_loop().time()
        while self._open_calls:
            self._open_calls.popitem()[0].reschedule(now_s)

    def _on_looked_up(self, name: str, looked_up: "asyncio.Future[Any]") -> None:
        del self._look_ups[name]
        if not looked_up.cancelled() and looked_up.exception() is None:
            self._handles[name] = looked_up.result()


class RayNetwork:
    """Calls of one client or node to the nodes of one cluster, on the event loop of the first call.

    The transport `ray` uses no direct lane. With `for_client`, calls that need a Ray which has ended raise RayEnded, so
    that no client retries them.
    """

    def __init__(self, cluster_name: str, *, for_client: bool = False, transport: Transport = "auto") -> None:
        self._cluster_name = cluster_name
        self._caller = Caller(random_uuid(SystemRandom()))
        self._for_client = for_client
        self._is_direct = transport == "auto"
        # The lanes of the event loop; None before the first call.
        self._lanes: Lanes | None = None
        self._actors = self._of(None)

    @property
    def cluster_name(self) -> str:
        """The cluster whose nodes are called."""
        return self._cluster_name

    def call(self, node_id: int, request: Request[ResponseT], timeout_ms: int) -> Later[ResponseT]:
        """Sends the request and returns the node's answer to come, as `rayka.ports.Network` says."""
        return self._caller.call(node_id, request, timeout_ms, self._send)

    async def node_ids(self) -> Sequence[int]:
        """Returns the nodes that have an actor, ascending."""

        def find() -> Sequence[int]:
            check_head(for_client=self._for_client)
            return running_node_ids(self._cluster_name)

        self._current_actors()
        asked = asyncio.get_running_loop().run_in_executor(None, find)
        return await while_head_answers(asked, for_client=self._for_client)

    def _send(self, call: Call) -> Awaitable[Answer]:
        actors = self._current_actors()
        if self._is_direct and fits_lane(call):
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
        """Returns the actors of this process's present connection to Ray. Raises NetworkException without one."""
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
    """Sends the call now. Raises NetworkException."""
    arguments = pack_call(call.header, call.request)
    try:
        return getattr(handle, call.api.name).remote(*arguments)
    except Exception as error:
        # Bare exceptions too: the handle of a former connection raises them.
        actors.forget(name, handle)
        raise NetworkException(f"{name} {_reason(error)}") from error


async def _answer(sent: Any, name: str, actors: NamedActors, handle: Any) -> Answer:
    try:
        answer: PackedAnswer = await actors.until_closed(sent)
    except ray.exceptions.RayTaskError as error:
        # The call's payload did not get there.
        if isinstance(error.cause, ray.exceptions.RayError):
            raise NetworkException(f"{name} {_reason(error.cause)}") from error
        raise UnknownServerError(f"{name} failed: {error.cause!r}") from error
    except asyncio.CancelledError:
        # The call took too long: the actor may have ended together with the Ray that reports such ends.
        actors.forget(name, handle)
        raise
    except Exception as error:
        # Bare exceptions too: the handle of a former connection raises them.
        actors.forget(name, handle)
        raise NetworkException(f"{name} {_reason(error)}") from error
    return unpack_answer(answer)


async def _ask_for_lane(actors: NamedActors, node: NodeKey) -> LaneOffer:
    """Asks the node for the address of its lane. Raises NetworkException."""
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
    """Explains why a node may have no actor: it is lost if other nodes of its cluster have actors, else the cluster was
    stopped.
    """
    try:
        has_others = bool(running_node_ids(name.rpartition("/")[0]))
    except RaykaError:
        has_others = False
    return "its machine is lost, or it was stopped" if has_others else "was the cluster stopped?"


def _reason(error: Exception) -> str:
    """Translates Ray's error for a caller. Ray's own words are the error's cause."""
    if isinstance(error, NetworkException):
        return f"did not answer: {error}"
    if isinstance(error, ray.exceptions.ActorDiedError):
        return "cannot be reached: its process has ended"
    if isinstance(error, (ray.exceptions.ActorUnavailableError, ray.exceptions.RpcError)):
        return "cannot be reached just now"
    return f"cannot be reached: {type(error).__name__}"


# ---- Packing -------------------------------------------------------------------------------------------------------


def pack_call(header: bytes, request: Encoded) -> PackedCall:
    """Packs a call into the arguments of a remote method (decision 030).

    Each argument costs, and an answer that is not just `bytes` costs three times as much to unpack. So a small call or
    answer is one `bytes`, a frame (`rayka.protocol.wire`): header, request and records, or response and records.
    Arguments up to 100 KiB travel inside the call. A larger one goes through shared memory, for about 1 ms more, and
    arrives without a copy if it is a numpy array, or a list of arrays. So middling records follow the frame in several
    pieces of `bytes`, and large ones as a single object. An answer is one object: if it does not fit into a frame, it
    is a tuple.
    """
    payload = request.payload()
    if not isinstance(payload, np.ndarray) or payload.size > INLINE_MAX_BYTES:
        return frame(header, request.body), payload
    if payload.size <= PIECE_BYTES:
        return (frame(header, request.body, payload),)
    starts = range(0, payload.size, PIECE_BYTES)
    return frame(header, request.body), *(payload[at : at + PIECE_BYTES].tobytes() for at in starts)


def unpack_call(packed: PackedCall) -> tuple[bytes, bytes, Payload]:
    """Returns header, request and records. Raises InvalidRequest for arguments that `pack_call` does not make."""
    first, *pieces = packed or (b"",)
    header, body, payload = unframe(first)
    if not pieces:
        return header, body, payload
    if len(pieces) == 1:
        return header, body, pieces[0]
    if not all(isinstance(each, bytes) for each in pieces):
        raise InvalidRequest("payload: expected pieces of bytes")
    return header, body, b"".join(pieces)  # type: ignore[arg-type]


def pack_answer(answer: Answer) -> PackedAnswer:
    """Packs an answer into the result of a remote method. Reads records that are still in files."""
    body, payload = answer
    try:
        payload = in_memory(payload)
    except StorageError as error:
        return encode(Failure.of(KafkaStorageError(str(error)))).body, None
    if isinstance(payload, np.ndarray) and payload.size <= PIECE_BYTES:
        return frame(b"", body, payload)
    return body, payload


def unpack_answer(packed: PackedAnswer) -> Answer:
    """Returns the answer that was packed."""
    if not isinstance(packed, bytes):
        return packed
    _, body, payload = unframe(packed)
    return body, payload
