"""The caller's side of every call: numbers it, encodes it, sends it over whatever lane there is, decodes
the answer.

One `Caller` is one incarnation of one client or node; it has one ordered connection to each node. A lane
(Ray, a socket, the in-process network) only has to carry a `Call` to the node's `Inbox.handle` and its
`Answer` back. Calls to one node are numbered in the order in which `call` first runs, so a lane must send
before it waits for anything.

Kafka: `NetworkClient`. Left out: which node to ask, and retries; they belong to the clients.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from rayka.errors import ErrorCode, NetworkException, RequestTimedOut
from rayka.ids import node_name
from rayka.ports import Request
from rayka.protocol.apis import Api, api_of, is_hot
from rayka.protocol.later import Later, later_of
from rayka.protocol.wire import CallNumber, Encoded, Failure, Outbound, Payload, RequestHeader, decode, encode

Answer = tuple[bytes, Payload | None]  # the response as body and payload; without payload a Failure
ResponseT = TypeVar("ResponseT")


class Call(NamedTuple):
    """One call on its way: the remote method's name and its arguments. `header` and `request` are bodies. A hot
    call takes the direct lane where there is one.
    """

    node_id: int
    api: Api
    number: CallNumber
    header: bytes
    request: Encoded
    is_hot: bool = False


Send = Callable[[Call], Awaitable[Answer]]


class _Deadlines:
    """When the open calls end, with one timer for all: to set and cancel one for each takes a sixth of a caller's time.

    Invariant: the timer rings no later than the first deadline; it may ring when no call is late.
    """

    def __init__(self) -> None:
        self._due_s: dict[_OpenCall, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # the one it is used on, looked up once
        self._timer: asyncio.TimerHandle | None = None
        self._rings_s = math.inf

    def __repr__(self) -> str:
        return f"<Deadlines {len(self._due_s)}>"

    def begin(self, call: "_OpenCall") -> None:
        """The call begins now; `end` it."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        due_s = self._due_s[call] = loop.time() + call.timeout_ms / 1000
        if due_s < self._rings_s:
            self._set_timer(loop, due_s)

    def end(self, call: "_OpenCall") -> None:
        """The call is over."""
        self._due_s.pop(call, None)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_s = loop.call_at(due_s, self._ring), due_s

    def _ring(self) -> None:
        self._timer, self._rings_s = None, math.inf
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        late = [call for call, due_s in self._due_s.items() if due_s <= now_s]
        for call in late:
            call.expire()
        if self._due_s:
            due_s = min(self._due_s.values())
            if due_s < self._rings_s:
                self._set_timer(loop, due_s)


class _OpenCall:
    """One call on its way, and its response to come."""

    __slots__ = ("_answer", "_call", "_caller", "response", "timeout_ms")

    def __init__(self, caller: "Caller", call: Call, timeout_ms: int) -> None:
        self._caller = caller
        self._call = call
        self.timeout_ms = timeout_ms
        self.response: Later[Any] = Later(self._give_up)
        self._answer: Later[Answer] | None = None

    def send(self, send: Send) -> None:
        try:
            answer = self._answer = later_of(send(self._call))
        except Exception as error:
            self._on_answer(error)
        else:
            self._caller.deadlines.begin(self)
            answer.then(self._on_answer)

    def expire(self) -> None:
        """Its time is over."""
        call = self._call
        self._forget()
        self._caller.on_failure(call)
        self.response.end(
            RequestTimedOut(
                f"{node_name(call.node_id)} did not answer {call.api.name} within {self.timeout_ms} ms;"
                " it may or may not have executed it"
            )
        )

    def _on_answer(self, answer: Answer | BaseException) -> None:
        self._caller.deadlines.end(self)
        self.response.end(self._caller.outcome(self._call, answer))

    def _give_up(self) -> None:
        self._forget()
        self._caller.on_given_up(self._call)

    def _forget(self) -> None:
        self._caller.deadlines.end(self)
        if self._answer is not None:
            self._answer.cancel()


class Caller:
    """Makes the calls of one client or node."""

    def __init__(self, caller_id: UUID) -> None:
        self._caller_id = caller_id
        self._connections: dict[int, Outbound] = {}
        self.deadlines = _Deadlines()

    def __repr__(self) -> str:
        return f"<Caller {self._caller_id} nodes={sorted(self._connections)}>"

    def call(
        self, node_id: int, request: Request[ResponseT], timeout_ms: int, send: Send
    ) -> Later[ResponseT]:
        """The node's response to come, by way of `send`, which ends in NetworkException when the lane breaks. The call
        was sent when this returns, as far as the lane is there.

        Ends in RequestTimedOut or NetworkException (then nothing sent before starts any more), or the ApiError that the
        node answered.
        """
        call = _OpenCall(self, self.encode_call(node_id, request, timeout_ms), timeout_ms)
        call.send(send)
        return call.response

    def encode_call(self, node_id: int, request: Request[Any], timeout_ms: int) -> Call:
        """The call with its number; it is to be sent now, and ends in `decode_answer` or `on_failure`."""
        connection = self._connections.get(node_id)
        if connection is None:
            connection = self._connections[node_id] = Outbound(self._caller_id)
        number = connection.next_call()
        header = encode(RequestHeader(call=number, timeout_ms=timeout_ms)).body
        return Call(node_id, api_of(request), number, header, encode(request), is_hot(request))

    def decode_answer(self, call: Call, answer: Answer) -> Any:
        """The response; its arrays are views of the payload. Raises the ApiError that was answered
        instead."""
        body, payload = answer
        if payload is not None:
            self._connections[call.node_id].on_answer(call.number)
            return decode(call.api.response_type, body, payload)
        failure = decode(Failure, body)
        if failure.error_code is ErrorCode.NETWORK_EXCEPTION:
            self.on_failure(call)
        else:
            self._connections[call.node_id].on_answer(call.number)
        raise failure.error()

    def outcome(self, call: Call, answer: Answer | BaseException) -> Any:
        """What the answer, or what came instead, means: the response, or the exception."""
        if isinstance(answer, BaseException):
            if isinstance(answer, NetworkException):
                self.on_failure(call)
            elif isinstance(answer, asyncio.CancelledError):
                self.on_given_up(call)
            return answer
        try:
            return self.decode_answer(call, answer)
        except Exception as error:
            return error

    def on_given_up(self, call: Call) -> None:
        """Nothing waits for its answer any more."""
        self._connections[call.node_id].on_answer(call.number)

    def on_failure(self, call: Call) -> None:
        """The call broke off: those that follow open a new connection, older ones that are late are
        refused."""
        self._connections[call.node_id].on_failure(call.number)
