"""The caller's end of a direct lane to one node: calls out, answers in, in any order.

Invariants: each call ends once, by its answer or by the end of the lane; a call that its caller no longer waits for is
forgotten, and its answer dropped. Whether a call that the lane's end cut off was executed is not known, as with Ray.
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
from rayka.transport.stream import End, Stream, own, tcp_family, tune


class Lane:
    """See the module; made by `open_lane`. Belongs to the event loop that it was opened on."""

    def __init__(self, node_id: int, connection: socket.socket, memory: ReceiveMemory) -> None:
        self.node_id = node_id
        self._waiting: dict[int, Later[Answer]] = {}
        self._next_id = 0
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
        """The node's answer, or NetworkException. The call is sent at once when no other is under way, else together
        with those that follow in this turn of the event loop.
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
        """An answer arrived; dropped when nothing waits for it any more."""
        if frame.kind is FrameKind.CALL:
            raise BrokenStream("expected an answer, found a call")
        waiting = self._waiting.pop(frame.request_id, None)
        if waiting is not None:
            waiting.end((frame.body, None if frame.kind is FrameKind.FAILURE else frame.payload))

    def on_sent(self) -> None:
        """Callers bound what they send by themselves."""

    def on_closed(self, reason: End, detail: str) -> None:
        """What waits for an answer fails."""
        self._end = f"{reason}: {detail}" if detail else str(reason)
        self._closed.set()
        cut_off = list(self._waiting.values())
        self._waiting.clear()
        for each in cut_off:
            each.end(self._broken())

    async def wait_closed(self, at_most_s: float) -> bool:
        """Waits for the end of the lane, for so long at most; whether it has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._closed.wait()
        return not self.is_open

    def close(self) -> None:
        """Ends the lane."""
        self._stream.close(End.HERE)

    def _broken(self) -> NetworkException:
        return NetworkException(f"the lane to {node_name(self.node_id)} ended: {self._end}")


def takes(call: Call) -> bool:
    """Whether a call goes by a lane where there is one: a hot one that is not too large for it."""
    body, buffers = call.request
    return (
        call.is_hot
        and len(call.api.name) + len(call.header) + len(body) <= CALL_HEAD_BYTES_MAX
        and (not buffers or sum(each.size for each in buffers) <= CALL_PAYLOAD_BYTES_MAX)
    )


async def open_lane(node_id: int, offer: LaneOffer, memory: ReceiveMemory | None = None) -> Lane:
    """A lane to a node, over the machine's own socket where the node lives here, else over TCP.

    Raises NetworkException when neither can be reached in time, or the ticket is not taken. A connection that breaks
    once it is there is not tried over TCP: its ticket may be used up, and a lane between processes of one machine would
    go over TCP from then on.
    """
    problem: OSError | None = None
    for family, address in _addresses(offer):
        connection = own(socket.socket(family, socket.SOCK_STREAM))
        try:
            problem = await _connect(connection, address)
            if problem is None:
                await _greet(connection, offer)
                return Lane(node_id, connection, memory or ReceiveMemory())
            connection.close()
        except OSError as error:
            connection.close()
            raise _no_lane(node_id, error.strerror or "no answer in time") from error
        except BaseException:
            connection.close()
            raise
    raise _no_lane(
        node_id,
        problem.strerror or "no answer in time"
        if problem
        else "it serves none that can be reached from here",
    )


def _no_lane(node_id: int, reason: str) -> NetworkException:
    return NetworkException(f"{node_name(node_id)} has no lane for this process: {reason}")


async def _connect(connection: socket.socket, address: bytes | tuple[str, int]) -> OSError | None:
    """Why it cannot be connected; None when it is."""
    connection.setblocking(False)
    try:
        async with asyncio.timeout(GREETING_S):
            await asyncio.get_running_loop().sock_connect(connection, address)
    except OSError as error:
        return error
    return None


async def _greet(connection: socket.socket, offer: LaneOffer) -> None:
    """Greets the node. Raises NetworkException if the peer does not know the ticket: the node may have ended, and
    another process may listen at its address.
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


def _addresses(offer: LaneOffer) -> list[tuple[socket.AddressFamily, bytes | tuple[str, int]]]:
    addresses: list[tuple[socket.AddressFamily, bytes | tuple[str, int]]] = []
    if offer.local_name and hasattr(socket, "AF_UNIX"):
        addresses.append((socket.AF_UNIX, b"\0" + offer.local_name.encode()))
    if offer.port:
        addresses.append((tcp_family(offer.host), (offer.host, offer.port)))
    return addresses


# The direct lanes of one event loop, one to each node, shared by all callers on that loop.
#
# A lane is opened beside the calls, which go by the other way meanwhile; a node whose lane cannot be opened is asked
# again after a growing pause, and one that serves none from time to time. Kafka: `ClusterConnectionStates`.


_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.5, 10.0
_PAUSE_UNSERVED_S = 2.0  # a node that is about to start serves its lane soon

_logger = logging.getLogger(__name__)

Ask = Callable[[], Awaitable[LaneOffer]]
Open = Callable[[int, LaneOffer], Awaitable["OpenedLane"]]


class OpenedLane(Protocol):
    """A `Lane`, or a simulated one."""

    @property
    def is_open(self) -> bool: ...

    def send(self, call: Call) -> Later[Answer]: ...

    def close(self) -> None: ...


class NodeKey(NamedTuple):
    """A node of a cluster."""

    cluster_name: str
    node_id: int


class Lanes:
    """See the module. All of them belong to one connection of this process to Ray, and end with it. `open_one`
    connects to a node; without it sockets do, into memory that these lanes share.
    """

    def __init__(self, open_one: Open | None = None) -> None:
        self._open_one = open_one or partial(open_lane, memory=ReceiveMemory())
        self._connection: Hashable = None
        self._lanes: dict[NodeKey, OpenedLane] = {}
        self._opening: dict[NodeKey, asyncio.Task[None]] = {}
        self._pauses_s: dict[NodeKey, float] = {}
        self._not_before_s: dict[NodeKey, float] = {}

    def __repr__(self) -> str:
        return f"<Lanes {list(self._lanes.values())} opening={len(self._opening)}>"

    def get(self, connection: Hashable, node: NodeKey, ask: Ask) -> OpenedLane | None:
        """The lane to a node; None while there is none: then one is opened, with what `ask` gives."""
        if connection != self._connection:
            self._connection = connection  # before the end of a lane has its calls ask for the next
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
        """Closes all of them. What this ends may ask for lanes anew at once."""
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
    """Those of the running event loop."""
    loop = asyncio.get_running_loop()
    lanes = _of_loops.get(loop)
    if lanes is None:
        lanes = _of_loops[loop] = Lanes()
    return lanes
