"""The caller's end of direct lanes: one lane to each node, shared by all callers of an event loop.

**Lane.** Sends calls and receives answers, in any order. Invariants: each call ends once, by its answer or by the end
of the lane; the lane forgets a call whose caller no longer waits, and drops its answer. After the end of a lane its
open calls may or may not have been executed, as with Ray.

**Lanes.** A lane is opened beside the calls, which go by Ray until it is open. A node whose lane cannot be opened is
asked again after a growing pause; a node that serves no lane is asked again from time to time. Kafka:
`ClusterConnectionStates`.
"""

import asyncio
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from rayka.errors import NetworkException, RaykaError
from rayka.ids import node_name
from rayka.protocol.caller import Answer, Call
from rayka.protocol.later import Later
from rayka.transport.frames import (
    ANSWER_BYTES_MAX,
    CALL_HEAD_BYTES_MAX,
    CALL_PAYLOAD_BYTES_MAX,
    BrokenStream,
    Frame,
    FrameKind,
    FrameReader,
    encode_frame,
)
from rayka.transport.greeting import (
    GREETING_S,
    PROOF_BYTES,
    WELCOME,
    LaneOffer,
    caller_proof,
    greeting,
    node_proof,
    receive_exactly,
)
from rayka.transport.receive_memory import ReceiveMemory
from rayka.transport.stream import End, Stream, close_in_children, tcp_family, tune

_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.5, 10.0
# Short: a starting node serves its lane soon.
_PAUSE_UNSERVED_S = 2.0

_logger = logging.getLogger(__name__)

# Asks a node for an offer of its lane.
Ask = Callable[[], Awaitable[LaneOffer]]
Open = Callable[[int, LaneOffer], Awaitable["OpenedLane"]]


class Lane:
    """A lane to one node, made by `open_lane`. Belongs to the event loop on which it was opened."""

    def __init__(self, node_id: int, connection: socket.socket, memory: ReceiveMemory) -> None:
        self.node_id = node_id
        # By request id.
        self._waiting: dict[int, Later[Answer]] = {}
        self._next_id = 0
        # The reason why the lane ended.
        self._end = ""
        self._closed = asyncio.Event()
        reader = FrameReader(memory, head_bytes_max=ANSWER_BYTES_MAX, payload_bytes_max=ANSWER_BYTES_MAX)
        self._stream = Stream(connection, reader, self)

    def __repr__(self) -> str:
        state = f"closed: {self._end}" if self._end else "open"
        return f"<Lane to {node_name(self.node_id)} waiting={len(self._waiting)} {state}>"

    @property
    def is_open(self) -> bool:
        """Whether calls may be sent."""
        return self._stream.is_open

    def send(self, call: Call) -> Later[Answer]:
        """Sends a call and returns the node's answer to come, which may end in NetworkException. A call beside which no
        other is open leaves at once, any other with the further calls of this turn of the event loop.
        """
        request_id = self._next_id
        self._next_id += 1
        answer: Later[Answer] = Later(partial(self._waiting.pop, request_id, None))
        if not self._stream.is_open:
            answer.end(self._broken())
            return answer
        is_idle = not self._waiting
        self._waiting[request_id] = answer
        self._stream.send(
            encode_frame(
                FrameKind.CALL,
                request_id,
                call.request.body,
                call.request.payload(),
                api_name=call.api.name,
                header=call.header,
            ),
            at_once=is_idle,
        )
        return answer

    def on_frame(self, frame: Frame) -> None:
        """Ends the call that the answer belongs to, unless its caller no longer waits."""
        if frame.kind is FrameKind.CALL:
            raise BrokenStream("expected an answer, found a call")
        waiting = self._waiting.pop(frame.request_id, None)
        if waiting is not None:
            waiting.end((frame.body, None if frame.kind is FrameKind.FAILURE else frame.payload))

    def on_sent(self) -> None:
        """Does nothing: callers bound their open calls themselves."""

    def on_closed(self, reason: End, detail: str) -> None:
        """Ends all open calls with NetworkException."""
        self._end = f"{reason}: {detail}" if detail else str(reason)
        self._closed.set()
        cut_off = list(self._waiting.values())
        self._waiting.clear()
        for each in cut_off:
            each.end(self._broken())

    async def wait_closed(self, at_most_s: float) -> bool:
        """Waits up to `at_most_s` for the end of the lane; False: the lane is still open."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._closed.wait()
        return not self.is_open

    def close(self) -> None:
        """Ends the lane."""
        self._stream.close(End.HERE)

    def _broken(self) -> NetworkException:
        return NetworkException(f"the lane to {node_name(self.node_id)} ended: {self._end}")


def fits_lane(call: Call) -> bool:
    """Whether a call goes by a lane if there is one: the call is hot, and not too large."""
    body, buffers = call.request
    return (
        call.is_hot
        and len(call.api.name) + len(call.header) + len(body) <= CALL_HEAD_BYTES_MAX
        and (not buffers or sum(each.size for each in buffers) <= CALL_PAYLOAD_BYTES_MAX)
    )


async def open_lane(node_id: int, offer: LaneOffer, memory: ReceiveMemory | None = None) -> Lane:
    """Opens a lane to a node: over the machine's own socket if the node lives here, else over TCP.

    Raises NetworkException when neither can be reached in time, or the ticket is refused. After a connection that broke
    TCP is not tried: the ticket may be used up, and a lane within one machine would go over TCP from then on.
    """
    addresses: list[tuple[socket.AddressFamily, bytes | tuple[str, int]]] = []
    if offer.local_name and hasattr(socket, "AF_UNIX"):
        addresses.append((socket.AF_UNIX, b"\0" + offer.local_name.encode()))
    if offer.port:
        addresses.append((tcp_family(offer.host), (offer.host, offer.port)))
    reason = "it serves none that can be reached from here"
    for family, address in addresses:
        connection = close_in_children(socket.socket(family, socket.SOCK_STREAM))
        try:
            connection.setblocking(False)
            try:
                async with asyncio.timeout(GREETING_S):
                    await asyncio.get_running_loop().sock_connect(connection, address)
            except OSError as error:
                connection.close()
                reason = error.strerror or "no answer in time"
                continue
            await _greet(connection, offer)
            return Lane(node_id, connection, memory or ReceiveMemory())
        except OSError as error:
            connection.close()
            raise _no_lane(node_id, error.strerror or "no answer in time") from error
        except BaseException:
            connection.close()
            raise
    raise _no_lane(node_id, reason)


def _no_lane(node_id: int, reason: str) -> NetworkException:
    return NetworkException(f"{node_name(node_id)} has no lane for this process: {reason}")


async def _greet(connection: socket.socket, offer: LaneOffer) -> None:
    """Exchanges the greeting with the node. Raises NetworkException if the peer does not know the ticket: the node may
    have ended, and another process may listen at its address.
    """
    tune(connection)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(GREETING_S):
        await loop.sock_sendall(connection, greeting(offer))
        if offer.has_proof:
            proof = await receive_exactly(connection, PROOF_BYTES)
            if not hmac.compare_digest(proof, node_proof(offer.ticket)):
                raise NetworkException("what answered at its address does not know the ticket")
            await loop.sock_sendall(connection, caller_proof(offer.ticket))
        if await receive_exactly(connection, len(WELCOME)) != WELCOME:
            raise NetworkException("what answered at its address is no lane")


class OpenedLane(Protocol):
    """A `Lane`, or a simulated one."""

    @property
    def is_open(self) -> bool: ...

    def send(self, call: Call) -> Later[Answer]: ...

    def close(self) -> None: ...


class NodeKey(NamedTuple):
    """Identifies a node of a cluster."""

    cluster_name: str
    node_id: int


class Lanes:
    """The lanes of one event loop, by node. All belong to one connection of this process to Ray, and end with it.
    `open_one` opens a lane; by default over sockets, into memory that these lanes share.
    """

    def __init__(self, open_one: Open | None = None) -> None:
        self._open_one = open_one or partial(open_lane, memory=ReceiveMemory())
        # To Ray.
        self._connection: Hashable = None
        self._lanes: dict[NodeKey, OpenedLane] = {}
        self._opening: dict[NodeKey, asyncio.Task[None]] = {}
        # The last pause of a node whose lane could not be opened.
        self._pauses_s: dict[NodeKey, float] = {}
        # When a node may be asked again.
        self._not_before_s: dict[NodeKey, float] = {}

    def __repr__(self) -> str:
        return f"<Lanes {list(self._lanes.values())} opening={len(self._opening)}>"

    def get(self, connection: Hashable, node: NodeKey, ask: Ask) -> OpenedLane | None:
        """The lane to a node; None: there is none, and one is being opened with the offer that `ask` gets."""
        if connection != self._connection:
            # Before `close`: the calls that it ends ask for new lanes at once.
            self._connection = connection
            self.close()
        lane = self._lanes.get(node)
        if lane is not None and lane.is_open:
            return lane
        loop = asyncio.get_running_loop()
        if node not in self._opening and self._not_before_s.get(node, 0.0) <= loop.time():
            task = self._opening[node] = loop.create_task(self._open(node, ask), name="open lane")
            task.add_done_callback(lambda _: self._on_opened(node, task))
        return None

    def close(self) -> None:
        """Closes all lanes. The calls that this ends may ask for new lanes at once."""
        opening, self._opening = self._opening, {}
        lanes, self._lanes = self._lanes, {}
        self._pauses_s.clear()
        self._not_before_s.clear()
        for task in opening.values():
            task.cancel()
        for lane in lanes.values():
            lane.close()

    async def _open(self, node: NodeKey, ask: Ask) -> None:
        try:
            offer = await ask()
            if offer.ticket:
                self._lanes[node] = await self._open_one(node.node_id, offer)
                self._pauses_s.pop(node, None)
            else:
                self._pause(node, _PAUSE_UNSERVED_S)
        except (RaykaError, OSError) as error:
            level = logging.DEBUG if node in self._pauses_s else logging.INFO
            _logger.log(level, "calls go by Ray, not directly: %s", error)
            pause_s = self._pauses_s[node] = min(
                _PAUSE_MAX_S, 2 * self._pauses_s.get(node, _PAUSE_FIRST_S / 2)
            )
            self._pause(node, pause_s)

    def _pause(self, node: NodeKey, pause_s: float) -> None:
        self._not_before_s[node] = asyncio.get_running_loop().time() + pause_s

    def _on_opened(self, node: NodeKey, task: asyncio.Task[None]) -> None:
        if self._opening.get(node) is task:
            del self._opening[node]


_of_loops: "WeakKeyDictionary[asyncio.AbstractEventLoop, Lanes]" = WeakKeyDictionary()


def lanes_of_this_loop() -> Lanes:
    """The lanes of the running event loop."""
    loop = asyncio.get_running_loop()
    lanes = _of_loops.get(loop)
    if lanes is None:
        lanes = _of_loops[loop] = Lanes()
    return lanes
