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
from rayka.transport.lane import Lanes, NodeKey, lanes_of_this_loop, takes

# The actors that one caller has looked up by name, for as long as this process keeps one connection to Ray.
#
# Invariants: a handle is used with the connection that it came from, because another one answers it with exceptions of
# every kind, or not at all; a call that waits when its connection ends fails at once, not at its timeout; there is one
# look-up of a name at a time, which all callers share, and one that fails leaves nothing behind.


AnswerT = TypeVar("AnswerT")


class NamedActors:
    """See the module. Made and used on one event loop; look-ups block, so each has a thread."""

    def __init__(self, connection: ConnectionId | None, *, for_client: bool) -> None:
        self.connection = connection
        self._for_client = for_client
        self._handles: dict[str, Any] = {}
        self._look_ups: dict[str, asyncio.Future[Any]] = {}
        self._open_calls: dict[asyncio.Timeout, None] = {}

    def __repr__(self) -> str:
        return f"<NamedActors {sorted(self._handles)} open={len(self._open_calls)}>"

    def known(self, name: str) -> Any | None:
        """The handle of the actor, if it was looked up and has not failed since."""
        return self._handles.get(name)

    async def look_up(self, name: str) -> Any:
        """The handle of the actor that has this name now. Raises NetworkException, ValueError when there is none, and
        what Ray raises. It raises, too, when the head goes meanwhile; the look-up then ends by itself.
        """
        waiting = self._look_ups.get(name)
        if waiting is None:
            waiting = asyncio.get_running_loop().run_in_executor(None, self._find, name)
            self._look_ups[name] = waiting
            waiting.add_done_callback(partial(self._on_looked_up, name))
        return await while_head_answers(waiting, for_client=self._for_client)

    def forget(self, name: str, handle: Any) -> None:
        """The actor did not answer: its name is looked up again, unless that has been done since."""
        if self._handles.get(name) is handle:
            del self._handles[name]

    async def until_closed(self, answer: Awaitable[AnswerT]) -> AnswerT:
        """The answer of a call that was sent just now. Raises NetworkException when the connection ends before it."""
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
        """The connection has ended: what waits for an answer fails."""
        self._handles.clear()
        now_s = asyncio.get_running_loop().time()
        while self._open_calls:
            self._open_calls.popitem()[0].reschedule(now_s)

    def _find(self, name: str) -> Any:
        check_head(for_client=self._for_client)
        return ray.get_actor(name, NAMESPACE)

    def _on_looked_up(self, name: str, looked_up: "asyncio.Future[Any]") -> None:
        del self._look_ups[name]
        if not looked_up.cancelled() and looked_up.exception() is None:
            self._handles[name] = looked_up.result()


# How a call and its answer cross Ray, which is slow in different ways at different sizes (decision 030).
#
# Each argument costs, and an answer that is not just `bytes` costs three times as much to unpack. So what is small is
# one `bytes`, a frame (`rayka.protocol.wire`): a call's header, its request and its records; an answer's response and
# its records. Arguments up to 100 KiB travel inside the call; a larger one goes through shared memory, for about 1 ms
# more, and arrives there without a copy if it is a numpy array, or a list of them. So middling records follow the
# frame in several pieces of `bytes`, large ones as a single object. An answer is one object and has no middle way:
# what does not fit into a frame is a tuple. What is in files is read here.


PIECE_BYTES = 90 * 1024
INLINE_MAX_BYTES = 6 * PIECE_BYTES

PackedCall = tuple[Payload, ...]
PackedAnswer = bytes | Answer


def pack_call(header: bytes, request: Encoded) -> PackedCall:
    """The arguments of a remote method."""
    payload = request.payload()
    if not isinstance(payload, np.ndarray) or payload.size > INLINE_MAX_BYTES:
        return frame(header, request.body), payload
    if payload.size <= PIECE_BYTES:
        return (frame(header, request.body, payload),)
    starts = range(0, payload.size, PIECE_BYTES)
    return frame(header, request.body), *(payload[at : at + PIECE_BYTES].tobytes() for at in starts)


def unpack_call(packed: PackedCall) -> tuple[bytes, bytes, Payload]:
    """The header, the request and its records. Raises InvalidRequest for what `pack_call` does not make."""
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
    """The result of a remote method."""
    body, payload = answer
    try:
        payload = in_memory(payload)
    except StorageError as error:
        return encode(Failure.of(KafkaStorageError(str(error)))).body, None
    if isinstance(payload, np.ndarray) and payload.size <= PIECE_BYTES:
        return frame(b"", body, payload)
    return body, payload


def unpack_answer(packed: PackedAnswer) -> Answer:
    """The answer that was packed."""
    if not isinstance(packed, bytes):
        return packed
    _, body, payload = unframe(packed)
    return body, payload


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
