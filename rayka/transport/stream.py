"""One connected socket of the direct lane: frames out without a copy, frames in to a callback.

What is sent within one turn of the event loop leaves in one system call, unless it is to go at once; answers to what
has just arrived leave when all of that is handed over; a slice of a file leaves by `sendfile`, so that its bytes are
never this process's. Invariants: frames leave in the order of `send`; what waits to leave is bounded, and a peer that
takes nothing of it for `STALLED_S` is cut off, as is one that stops in the middle of a frame for `HALF_A_FRAME_S`; a
large frame that has begun is received to its end, so what it holds is given back; `on_closed` is called once, whatever
ends the stream. Kafka: `KafkaChannel`.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Protocol
from weakref import WeakSet

from rayka.errors import StorageError
from rayka.ports import Buffer, FileSlice
from rayka.transport.frames import BrokenStream, Frame, FrameReader

TURN_BYTES_MAX = 1 << 20  # sent in one turn of the event loop: about 0.3 ms
QUEUED_BYTES_MAX = 1 << 30
STALLED_S = 30.0
# Shorter than STALLED_S: a caller that waits for the memory of a frame that stopped is not taken for a slow peer.
HALF_A_FRAME_S = 10.0
_BUFFERS_A_CALL = 256  # below IOV_MAX
_BUFFERS_A_TURN = 16  # so many leave before the turn is over: the peer works on them meanwhile
_MORE_FOLLOWS: int = getattr(socket, "MSG_MORE", 0)  # a slice's head leaves with its first bytes


class End(StrEnum):
    """Why a stream ended; counted by these."""

    BY_PEER = "the peer closed its connection"
    HALF_A_FRAME = "the peer closed its connection in the middle of a frame"
    BROKEN = "the connection broke"
    NO_FRAME = "what arrived is no frame, or too large a one"
    UNREADABLE = "a file that was to be sent cannot be read"
    STALLED = "the peer stopped in the middle of a frame"
    SLOW_PEER = "the peer does not take what is sent"
    HERE = "it was closed on this side"


class StreamOwner(Protocol):
    """What is called with the frames and at the end of a stream."""

    def on_frame(self, frame: Frame) -> None: ...

    def on_sent(self) -> None:
        """Less waits to be sent than before."""

    def on_closed(self, reason: "End", detail: str) -> None: ...


class Stream:
    """See the module. Belongs to the event loop that it was made on."""

    def __init__(self, connection: socket.socket, reader: FrameReader, owner: StreamOwner) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._reader = reader
        self._owner = owner
        self._queue: deque[memoryview | FileSlice] = deque()
        self._slice_sent = 0  # bytes of the first in the queue, where that is a slice
        self.queued_bytes = 0  # wait to be sent
        self._is_flush_due = False
        self._is_taking = False  # frames are handed over: what is sent meanwhile leaves after the last
        self._is_writing = False
        self._stall: asyncio.TimerHandle | None = None
        self._half: asyncio.TimerHandle | None = None  # looks whether a frame that began goes on
        self._has_received = False  # more of it since it last looked
        self._is_reading = False
        self._is_paused = False
        self.is_open = True
        # Later: another reader's bytes are at work.
        reader.begin_later = partial(self._loop.call_soon, self._on_room)
        connection.setblocking(False)
        self._set_reading()

    def __repr__(self) -> str:
        return f"<Stream {'open' if self.is_open else 'closed'} queued={self.queued_bytes}>"

    def send(self, parts: Sequence[Buffer | FileSlice], *, at_once: bool = False) -> None:
        """Sends a frame; without effect on a stream that is closed. `at_once` is for one that no other will follow: it
        does not wait for the end of the turn.
        """
        if not self.is_open:
            return
        for each in parts:
            if isinstance(each, FileSlice):
                self._queue.append(each)
                self.queued_bytes += each.size
            else:
                self._queue.append(memoryview(each))  # type: ignore[arg-type]  # numpy declares no buffer before 3.12
                self.queued_bytes += len(each)
        if self.queued_bytes > QUEUED_BYTES_MAX:
            self.close(End.SLOW_PEER, f"{self.queued_bytes} bytes wait")
        elif not self._is_writing:
            if (at_once and not self._is_taking) or len(self._queue) >= _BUFFERS_A_TURN:
                self._flush()
            elif not self._is_flush_due:
                self._is_flush_due = True
                if not self._is_taking:
                    self._loop.call_soon(self._flush_at_end)

    def set_paused(self, is_paused: bool) -> None:
        """No frame begins while it is; the peer's sends fill its own memory then."""
        if is_paused is not self._is_paused:
            self._is_paused = is_paused
            self._set_reading()

    def close(self, reason: End, detail: str = "") -> None:
        """Ends the stream; what was not sent yet is dropped."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        for timer in (self._stall, self._half):
            if timer is not None:
                timer.cancel()
        self._socket.close()
        self._reader.let_go()
        self._queue.clear()
        self._is_flush_due = False
        self._owner.on_closed(reason, detail)

    # ---- Receiving -------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        try:
            count = self._socket.recv_into(self._reader.room())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(End.BROKEN, error.strerror or "")
            return
        if not count:
            self.close(End.BY_PEER if self._reader.is_between_frames else End.HALF_A_FRAME)
            return
        self._is_taking = True
        try:
            self._take(count)
        finally:
            self._is_taking = False
            if self._is_flush_due:
                self._flush()
        if self._is_paused or not self._reader.is_between_frames:
            self._on_half_a_frame()

    def _take(self, count: int) -> None:
        try:
            for frame in self._reader.on_received(count):
                self._owner.on_frame(frame)
                if not self.is_open:
                    return
        except BrokenStream as error:
            self.close(End.NO_FRAME, str(error))
        except BaseException:  # frames that arrived behind this one are lost: their calls would wait for ever
            self.close(End.HERE, "what took a frame raised")
            raise

    def _on_half_a_frame(self) -> None:
        if self._half is not None:
            self._has_received = True
        elif self.is_open:
            self._has_received = False
            self._half = self._loop.call_later(HALF_A_FRAME_S, self._look_at_half)
        self._set_reading()

    def _look_at_half(self) -> None:
        """Ends a stream whose frame does not go on, or goes on so slowly that others wait for its memory."""
        if self._is_reading and not self._has_received:
            self._on_readable()  # what came while this process did not run
        self._half = None
        if not self.is_open or self._reader.is_between_frames:
            return
        if self._is_reading and not self._has_received:
            self.close(End.STALLED, f"nothing arrived for {HALF_A_FRAME_S:g} s")
        elif self._reader.is_old and self._reader.holds_up_others:
            self.close(End.STALLED, f"not whole after {HALF_A_FRAME_S:g} s, and others wait for its memory")
        else:
            self._reader.is_old = True
            self._on_half_a_frame()

    def _on_room(self) -> None:
        if self.is_open:
            self._reader.begin_waiting_frame()
            self._set_reading()

    def _set_reading(self) -> None:
        is_reading = not self._reader.is_waiting and (not self._is_paused or self._reader.is_apart)
        if self.is_open and is_reading is not self._is_reading:
            self._is_reading = is_reading
            if is_reading:
                self._has_received = True  # the time in which nothing was read does not count
                self._loop.add_reader(self._socket, self._on_readable)
            else:
                self._loop.remove_reader(self._socket)

    # ---- Sending ---------------------------------------------------------------------------------------------------

    def _flush_at_end(self) -> None:
        """The turn is over; what it sent may have left at once by then."""
        if self._is_flush_due:
            self._flush()

    def _flush(self) -> None:
        """Sends what is queued, up to a bound; the rest when the socket has room again."""
        self._is_flush_due = False
        if not self.is_open:
            return
        sent = 0
        try:
            while self._queue and sent < TURN_BYTES_MAX:
                sent += self._send_some(TURN_BYTES_MAX - sent)
        except (BlockingIOError, InterruptedError):
            pass
        except StorageError as error:
            self.close(End.UNREADABLE, str(error))
            return
        except OSError as error:
            self.close(End.BROKEN, error.strerror or "")
            return
        self._wait_for_room(has_sent=sent > 0)
        self._owner.on_sent()

    def _send_some(self, slice_bytes_max: int) -> int:
        first = self._queue[0]
        count = (
            self._send_slice(first, slice_bytes_max) if isinstance(first, FileSlice) else self._send_buffers()
        )
        self.queued_bytes -= count
        return count

    def _send_slice(self, first: FileSlice, bytes_max: int) -> int:
        count = first.send(self._socket, self._slice_sent, bytes_max)
        self._slice_sent += count
        if self._slice_sent == first.size:
            self._slice_sent = 0
            self._queue.popleft()
        return count

    def _send_buffers(self) -> int:
        """What lies before the next slice."""
        buffers: list[memoryview] = []
        flags = 0
        for each in islice(self._queue, _BUFFERS_A_CALL):
            if isinstance(each, FileSlice):
                flags = _MORE_FOLLOWS
                break
            buffers.append(each)
        count = left = self._socket.sendmsg(buffers, (), flags)
        for each in buffers:
            if left < len(each):
                self._queue[0] = each[left:]
                break
            left -= len(each)
            self._queue.popleft()
        return count

    def _wait_for_room(self, *, has_sent: bool) -> None:
        if bool(self._queue) is not self._is_writing:
            self._is_writing = bool(self._queue)
            if self._is_writing:
                self._loop.add_writer(self._socket, self._flush)
            else:
                self._loop.remove_writer(self._socket)
        if self._stall is not None and (has_sent or not self._queue):
            self._stall.cancel()
            self._stall = None
        if self._queue and self._stall is None:
            self._stall = self._loop.call_later(STALLED_S, self._on_stalled)

    def _on_stalled(self) -> None:
        self.close(End.SLOW_PEER, f"nothing was taken for {STALLED_S:g} s")


def tcp_family(host: str) -> socket.AddressFamily:
    """That of the address, as Ray gives it: with colons it is one of IPv6."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def tune(connection: socket.socket) -> None:
    """Small frames leave at once, and a machine that is gone is noticed within seconds."""
    if connection.family == socket.AF_UNIX:
        return
    options = (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", None), 5),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPINTVL", None), 1),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPCNT", None), 5),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", None), 10_000),
    )
    for level, option, value in options:
        if option is not None:
            with suppress(OSError):
                connection.setsockopt(level, option, value)


# The sockets of direct lanes in this process, of callers and servers: a forked child gives its copies up at once.
#
# Else a peer would not notice the end of this process while a child of it lives, and the child could write into its
# connections. The copies are closed without a word to the event loop: its selector is the parent's, too.


_sockets: "WeakSet[socket.socket]" = WeakSet()


def own(connection: socket.socket) -> socket.socket:
    """From now on the socket is this process's alone."""
    _sockets.add(connection)
    return connection


def _after_fork() -> None:
    for each in list(_sockets):
        each.close()


os.register_at_fork(after_in_child=_after_fork)
