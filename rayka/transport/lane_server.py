"""A node's end of its direct lanes: accepts connections that show a ticket, and hands their calls to the node's inbox.

Invariants:

- A connection is read no further than its greeting until it has proved that it knows a ticket.
- The calls of one connection are handed over in the order of their arrival.
- A connection whose open calls and unsent answers hold `HELD_BYTES_MAX` of records is not read.
- Unfinished large calls hold at most `UNFINISHED_BYTES_MAX` and one call; further ones are read when others are whole.
- Refused and broken connections are counted by reason.
- A connection takes no descriptor that is reserved for files (`rayka.descriptors`): the caller continues by Ray.

Kafka: `SocketServer`.
"""

import asyncio
import hmac
import logging
import secrets
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from rayka.descriptors import is_reserved
from rayka.errors import NetworkException
from rayka.node.tasks import Repeats
from rayka.protocol.caller import Answer
from rayka.protocol.later import Later
from rayka.protocol.wire import Payload
from rayka.transport.frames import (
    CALL_HEAD_BYTES_MAX,
    CALL_PAYLOAD_BYTES_MAX,
    BrokenStream,
    Frame,
    FrameKind,
    FrameReader,
    encode_frame,
)
from rayka.transport.greeting import (
    GREETING_BYTES,
    GREETING_S,
    MAGIC,
    MAGIC_SHOWN,
    PROOF_BYTES,
    WELCOME,
    LaneOffer,
    Tickets,
    caller_proof,
    node_proof,
    receive_exactly,
)
from rayka.transport.receive_memory import ReceiveMemory
from rayka.transport.stream import End, Stream, close_in_children, tcp_family, tune

CONNECTIONS_MAX = 10_000
GREETINGS_MAX = 1_000
HELD_BYTES_MAX = 64 << 20
UNFINISHED_BYTES_MAX = 256 << 20
UNANSWERED_CALLS_MAX = 10_000
_BACKLOG = 1_000

# Executes a call as far as possible without waiting. Returns the answer, or an awaitable of the answer. Raises nothing.
Handle = Callable[[str, bytes, bytes, Payload], Answer | Awaitable[Answer]]

_logger = logging.getLogger(__name__)


class LaneServer:
    """Serves the lanes of one node. Belongs to the event loop on which it was started."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._tickets = Tickets()
        self._listening: list[socket.socket] = []
        self._accepting: dict[asyncio.Task[None], None] = {}
        self._greeting: dict[asyncio.Task[None], socket.socket] = {}
        self._connections: dict[_Connection, None] = {}
        self._memory = ReceiveMemory(unfinished_bytes_max=UNFINISHED_BYTES_MAX)
        self._local_name = ""
        self._host, self._port = "", 0
        self._repeats = Repeats(_logger)
        # Connections that were refused or ended, by reason.
        self.cut_off: Counter[str] = Counter()

    def __repr__(self) -> str:
        where = ", ".join(str(each.getsockname()) for each in self._listening)
        return f"<LaneServer {where or 'closed'} connections={len(self._connections)}>"

    def start(self, host: str, ports: Sequence[int] = (0,)) -> None:
        """Listens on this machine's own socket, and on the first free port of `ports` at `host`, if one is free."""
        if sys.platform == "linux":
            local_name = f"rayka-{secrets.token_hex(16)}"
            try:
                self._listen(socket.AF_UNIX, b"\0" + local_name.encode())
                self._local_name = local_name
            except OSError as error:
                _logger.warning("no socket for direct calls from this machine: %s", error)
        self._host = host
        problem = ""
        for port in ports:
            try:
                self._port = self._listen(tcp_family(host), (host, port)).getsockname()[1]
                return
            except OSError as error:
                problem = error.strerror or str(error)
        _logger.warning(
            "no port for direct calls from other machines: none of %s at %s (%s); they go by Ray",
            ports,
            host,
            problem,
        )

    def offer(self) -> LaneOffer:
        """The addresses of this server, with a new ticket."""
        ticket = self._tickets.issue(asyncio.get_running_loop().time())
        return LaneOffer(self._local_name, self._host, self._port, ticket, has_proof=True)

    def close(self) -> None:
        """Ends all connections. Their open calls go on without an answer."""
        for task in (*self._accepting, *self._greeting):
            task.cancel()
        for each in self._listening:
            each.close()
        self._listening.clear()
        for connection in list(self._connections):
            connection.close()

    # ---- Connections -----------------------------------------------------------------------------------------------

    def _listen(self, family: socket.AddressFamily, address: bytes | tuple[str, int]) -> socket.socket:
        listening = close_in_children(socket.socket(family, socket.SOCK_STREAM))
        try:
            if family != socket.AF_UNIX:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
            listening.setblocking(False)
        except BaseException:
            listening.close()
            raise
        self._listening.append(listening)
        task = asyncio.get_running_loop().create_task(self._accept(listening), name="accept")
        self._accepting[task] = None
        task.add_done_callback(self._accepting.pop)
        return listening

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection = close_in_children((await loop.sock_accept(listening))[0])
            except OSError as error:
                # No descriptor is left, or the caller has already gone.
                self._refuse("it could not be accepted", error.strerror or "")
                await asyncio.sleep(0.1)
                continue
            if (
                len(self._greeting) >= GREETINGS_MAX
                or len(self._connections) >= CONNECTIONS_MAX
                or is_reserved(connection.fileno())
            ):
                self._refuse("there are too many")
                connection.close()
                continue
            task = loop.create_task(self._greet(connection), name="greeting")
            self._greeting[task] = connection
            task.add_done_callback(self._greeting.pop)

    async def _greet(self, connection: socket.socket) -> None:
        is_welcome = False
        try:
            async with asyncio.timeout(GREETING_S):
                is_welcome = await self._proves_ticket(connection)
        except (OSError, NetworkException):
            self._refuse("it showed no ticket in time")
        finally:
            if not is_welcome:
                connection.close()
        if is_welcome:
            reader = FrameReader(
                self._memory, head_bytes_max=CALL_HEAD_BYTES_MAX, payload_bytes_max=CALL_PAYLOAD_BYTES_MAX
            )
            self._connections[_Connection(connection, reader, self._handle, self._on_closed)] = None

    async def _proves_ticket(self, connection: socket.socket) -> bool:
        loop = asyncio.get_running_loop()
        greeting = await receive_exactly(connection, GREETING_BYTES)
        magic, shown = greeting[: len(MAGIC)], greeting[len(MAGIC) :]
        is_known = magic in (MAGIC, MAGIC_SHOWN)
        ticket = self._tickets.take(shown, loop.time()) if is_known else None
        if ticket is None or (magic == MAGIC_SHOWN and ticket != shown):
            self._refuse("it showed no valid ticket")
            return False
        tune(connection)
        if magic == MAGIC:
            await loop.sock_sendall(connection, node_proof(ticket))
            proof = await receive_exactly(connection, PROOF_BYTES)
            if not hmac.compare_digest(proof, caller_proof(ticket)):
                self._refuse("it showed no valid ticket")
                return False
        await loop.sock_sendall(connection, WELCOME)
        return True

    def _on_closed(self, connection: "_Connection", reason: End, detail: str) -> None:
        self._connections.pop(connection, None)
        if reason not in (End.BY_PEER, End.HERE):
            self._refuse(reason, detail)

    def _refuse(self, reason: str, detail: str = "") -> None:
        self.cut_off[reason] += 1
        self._repeats.failed(
            reason, f"a direct connection was cut off: {reason}" + (f": {detail}" if detail else "")
        )


class _Connection:
    """One caller's connection, and its open calls."""

    def __init__(
        self,
        connection: socket.socket,
        reader: FrameReader,
        handle: Handle,
        on_closed: "Callable[[_Connection, End, str], None]",
    ) -> None:
        self._handle = handle
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._unanswered_count = 0
        self._unanswered_bytes = 0
        self._stream = Stream(connection, reader, self)

    def close(self) -> None:
        self._stream.close(End.HERE)

    def on_frame(self, frame: Frame) -> None:
        if frame.kind is not FrameKind.CALL:
            raise BrokenStream("expected a call, found an answer")
        answer = self._handle(frame.api_name, frame.header, frame.body, frame.payload)
        if isinstance(answer, tuple):
            self._send(frame.request_id, answer)
        else:
            size = frame.payload.size
            self._unanswered_count += 1
            self._unanswered_bytes += size
            on_answer = partial(self._on_answer, frame.request_id, size)
            if isinstance(answer, Later):
                answer.then(on_answer)
            else:
                task = self._loop.create_task(_awaited(answer, on_answer), name=frame.api_name)
                self._tasks[task] = None
                task.add_done_callback(self._tasks.pop)
        self._update_pause()

    def on_closed(self, reason: End, detail: str) -> None:
        """Lets open calls go on: whether a call is executed must not depend on its caller."""
        self._on_closed(self, reason, detail)

    def _on_answer(self, request_id: int, size: int, answer: Answer | BaseException) -> None:
        """Sends the answer, at once if no other call is open. The node releases a request's records before it answers,
        and nothing here refers to them, so their bytes are no longer held.
        """
        self._unanswered_count -= 1
        self._unanswered_bytes -= size
        if not isinstance(answer, BaseException):
            self._send(request_id, answer, at_once=not self._unanswered_count)
        self._update_pause()

    def _send(self, request_id: int, answer: Answer, *, at_once: bool = False) -> None:
        body, payload = answer
        kind = FrameKind.ANSWER if payload is not None else FrameKind.FAILURE
        frame = encode_frame(kind, request_id, body, b"" if payload is None else payload)
        self._stream.send(frame, at_once=at_once)

    def on_sent(self) -> None:
        self._update_pause()

    def _update_pause(self) -> None:
        held_bytes = self._unanswered_bytes + self._stream.queued_bytes
        is_full = held_bytes >= HELD_BYTES_MAX or self._unanswered_count >= UNANSWERED_CALLS_MAX
        self._stream.set_paused(is_full)


async def _awaited(answering: Awaitable[Answer], on_answer: Callable[[Answer], object]) -> None:
    on_answer(await answering)
