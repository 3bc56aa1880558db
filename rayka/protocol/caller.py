"""The caller's side of every call: numbers the call, encodes it, sends it over a lane, and decodes the answer.

One `Caller` is one incarnation of one client or node, with one ordered connection to each node. A lane (Ray, a socket,
the in-process network) only carries a `Call` to the node's `Inbox.handle` and the `Answer` back. Calls to one node are
numbered in the order in which `call` runs, so a lane must send before it waits for anything.

Kafka: `NetworkClient`. Left out: the choice of the node, and retries; they belong to the clients.
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

# Body and payload of the response; without a payload the body is a Failure.
Answer = tuple[bytes, Payload | None]
ResponseT = TypeVar("ResponseT")


class Call(NamedTuple):
    """One encoded call."""

    node_id: int
    # The remote method.
    api: Api
    number: CallNumber
    # An encoded RequestHeader.
    header: bytes
    request: Encoded
    # The call takes the direct lane where there is one.
    is_hot: bool = False


Send = Callable[[Call], Awaitable[Answer]]


class _Deadlines:
    """Deadlines of the open calls, with one timer for all: a timer for each call takes a sixth of a caller's time.

    Invariant: the timer fires no later than the first deadline; it may fire when no call is late.
    """

    def __init__(self) -> None:
        self._due_s: dict[_OpenCall, float] = {}
        # Looked up once.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        # When the timer fires; infinite without a timer.
        self._timer_due_s = math.inf

    def begin(self, call: "_OpenCall") -> None:
        """Starts the time of a call, until `end`."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        due_s = self._due_s[call] = loop.time() + call.timeout_ms / 1000
        if due_s < self._timer_due_s:
            self._set_timer(loop, due_s)

    def end(self, call: "_OpenCall") -> None:
        """Stops the time of a call."""
        self._due_s.pop(call, None)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_due_s = loop.call_at(due_s, self._expire_late), due_s

    def _expire_late(self) -> None:
        self._timer, self._timer_due_s = None, math.inf
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        late = [call for call, due_s in self._due_s.items() if due_s <= now_s]
        for call in late:
            call.expire()
        if self._due_s:
            due_s = min(self._due_s.values())
            if due_s < self._timer_due_s:
                self._set_timer(loop, due_s)


class _OpenCall:
    """One call between its sending and its response."""

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
        """Ends the call with RequestTimedOut."""
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
    """Makes the calls of one incarnation of a client or node."""

    def __init__(self, caller_id: UUID) -> None:
        self._caller_id = caller_id
        # By node id.
        self._connections: dict[int, Outbound] = {}
        self.deadlines = _Deadlines()

    def __repr__(self) -> str:
        return f"<Caller {self._caller_id} nodes={sorted(self._connections)}>"

    def call(
        self, node_id: int, request: Request[ResponseT], timeout_ms: int, send: Send
    ) -> Later[ResponseT]:
        """Sends a request and returns the response to come. `send` puts the call on a lane, and ends in
        NetworkException when the lane breaks. On return the call was sent, if the lane is open.

        The response ends in RequestTimedOut or NetworkException, or in the ApiError that the node answered. After a
        timeout or a break no earlier call to the node starts any more.
        """
        call = _OpenCall(self, self.encode_call(node_id, request, timeout_ms), timeout_ms)
        call.send(send)
        return call.response

    def encode_call(self, node_id: int, request: Request[Any], timeout_ms: int) -> Call:
        """Numbers and encodes a call. The caller sends it at once, and ends it by `decode_answer` or `on_failure`."""
        connection = self._connections.get(node_id)
        if connection is None:
            connection = self._connections[node_id] = Outbound(self._caller_id)
        number = connection.next_call()
        header = encode(RequestHeader(call=number, timeout_ms=timeout_ms)).body
        return Call(node_id, api_of(request), number, header, encode(request), is_hot(request))

    def decode_answer(self, call: Call, answer: Answer) -> Any:
        """Decodes the response, whose arrays are views of the payload. Raises the ApiError that a Failure names."""
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
        """The response, or the exception, that ends a call. Returned, not raised: a caller that kept the exception it
        caught would be a cycle for the garbage collector.
        """
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
        """Ends a call whose answer nothing waits for any more."""
        self._connections[call.node_id].on_answer(call.number)

    def on_failure(self, call: Call) -> None:
        """Ends a call that broke off: later calls open a new epoch, and the node refuses late calls of the old one."""
        self._connections[call.node_id].on_failure(call.number)
