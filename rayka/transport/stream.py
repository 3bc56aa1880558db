"""One connected socket of the direct lane: sends frames without a copy, and hands received frames to its owner.

Frames that are sent within one turn of the event loop leave in one system call, unless one asks to leave at once.
Answers to received frames leave when all of these are handed over. A slice of a file leaves by `sendfile`, so its bytes
never enter this process. Invariants:

- Frames leave in the order of `send`.
- The queue of bytes to send is bounded. A peer that takes nothing from the queue for `STALLED_S` is cut off, and so is
  a peer that stops in the middle of a frame for `PARTIAL_FRAME_S`.
- A large frame that has begun is received to its end, which releases its memory.
- `on_closed` is called once, whatever ends the stream.

A forked child closes its copies of the sockets at once: else a peer would not notice the end of this process while the
child lives, and the child could write into the connections.

Kafka: `KafkaChannel`.
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

# Sent in one turn of the event loop, in about 0.3 ms.
TURN_BYTES_MAX = 1 << 20
QUEUED_BYTES_MAX = 1 << 30
STALLED_S = 30.0
# Shorter than STALLED_S: a caller that waits for the memory of a stopped frame does not count as a slow peer.
PARTIAL_FRAME_S = 10.0
# Below IOV_MAX.
_BUFFERS_A_CALL = 256
# So many buffers leave before the end of the turn: the peer works on them during the turn.
_BUFFERS_A_TURN = 16
# The head of a slice leaves in one packet with the first bytes of the slice.
_MORE_FOLLOWS: int = getattr(socket, "MSG_MORE", 0)


class End(StrEnum):
    """The reason why a stream ended, for counting."""

    BY_PEER = "the peer closed its connection"
    PARTIAL_FRAME = "the peer closed its connection in the middle of a frame"
    BROKEN = "the connection broke"
    NO_FRAME = "what arrived is no frame, or too large a one"
    UNREADABLE = "a file that was to be sent cannot be read"
    STALLED = "the peer stopped in the middle of a frame"
    SLOW_PEER = "the peer does not take what is sent"
    HERE = "it was closed on this side"


class StreamOwner(Protocol):
    """The two ends of a lane, as their stream calls them."""

    def on_frame(self, frame: Frame) -> None:
        """Takes a received frame."""

    def on_sent(self) -> None:
        """Called when the queue of bytes to send has shrunk."""

    def on_closed(self, reason: "End", detail: str) -> None:
        """Called when the stream has ended."""


class Stream:
    """One connected socket. Belongs to the event loop on which it was made."""

    def __init__(self, connection: socket.socket, reader: FrameReader, owner: StreamOwner) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._reader = reader
        self._owner = owner
        self._queue: deque[memoryview | FileSlice] = deque()
        # Bytes of the queue's first entry that were sent, if the entry is a slice.
        self._slice_sent = 0
        # The size of the queue.
        self.queued_bytes = 0
        self._is_flush_due = False
        # Received frames are being handed over; frames sent in this time leave after the last one.
        self._is_taking = False
        self._is_writing = False
        # Cuts off a peer that takes nothing.
        self._stall: asyncio.TimerHandle | None = None
        # Checks whether a frame that began goes on.
        self._progress_timer: asyncio.TimerHandle | None = None
        # Bytes have arrived since the last check.
        self._has_received = False
        self._is_reading = False
        self._is_paused = False
        self.is_open = True
        # Not at once: the call comes while another reader uses the scratch buffer.
        reader.schedule_begin = partial(self._loop.call_soon, self._on_memory_free)
        connection.setblocking(False)
        self._set_reading()

    def send(self, parts: Sequence[Buffer | FileSlice], *, at_once: bool = False) -> None:
        """Sends a frame; without effect on a closed stream. `at_once`: the frame does not wait for the end of the turn,
        because no other frame will follow.
        """
        if not self.is_open:
            return
        for each in parts:
            if isinstance(each, FileSlice):
                self._queue.append(each)
                self.queued_bytes += each.size
            else:
                # numpy declares no buffer before 3.12.
                self._queue.append(memoryview(each))  # type: ignore[arg-type]
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
        """Pauses or resumes reading. In a pause no frame begins, and unread bytes fill the peer's memory."""
        if is_paused is not self._is_paused:
            self._is_paused = is_paused
            self._set_reading()

    def close(self, reason: End, detail: str = "") -> None:
        """Ends the stream, and drops unsent bytes."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        for timer in (self._stall, self._progress_timer):
            if timer is not None:
                timer.cancel()
        self._socket.close()
        self._reader.release()
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
            self.close(End.BY_PEER if self._reader.is_between_frames else End.PARTIAL_FRAME)
            return
        self._is_taking = True
        try:
            for frame in self._reader.on_received(count):
                self._owner.on_frame(frame)
                if not self.is_open:
                    return
        except BrokenStream as error:
            self.close(End.NO_FRAME, str(error))
        except BaseException:
            # Frames behind this one are lost, and their calls would wait for ever.
            self.close(End.HERE, "what took a frame raised")
            raise
        finally:
            self._is_taking = False
            if self._is_flush_due:
                self._flush()
        if self._is_paused or not self._reader.is_between_frames:
            self._watch_progress()

    def _watch_progress(self) -> None:
        if self._progress_timer is not None:
            self._has_received = True
        elif self.is_open:
            self._has_received = False
            self._progress_timer = self._loop.call_later(PARTIAL_FRAME_S, self._check_progress)
        self._set_reading()

    def _check_progress(self) -> None:
        """Ends a stream whose frame has stopped, or is so slow that other frames wait for its memory."""
        if self._is_reading and not self._has_received:
            # Bytes may have come while this process did not run.
            self._on_readable()
        self._progress_timer = None
        if not self.is_open or self._reader.is_between_frames:
            return
        if self._is_reading and not self._has_received:
            self.close(End.STALLED, f"nothing arrived for {PARTIAL_FRAME_S:g} s")
        elif self._reader.is_slow and self._reader.holds_up_others:
            self.close(End.STALLED, f"not whole after {PARTIAL_FRAME_S:g} s, and others wait for its memory")
        else:
            self._reader.is_slow = True
            self._watch_progress()

    def _on_memory_free(self) -> None:
        if self.is_open:
            self._reader.begin_waiting_frame()
            self._set_reading()

    def _set_reading(self) -> None:
        is_reading = not self._reader.is_waiting and (not self._is_paused or self._reader.is_in_large_frame)
        if self.is_open and is_reading is not self._is_reading:
            self._is_reading = is_reading
            if is_reading:
                # The time of the pause does not count.
                self._has_received = True
                self._loop.add_reader(self._socket, self._on_readable)
            else:
                self._loop.remove_reader(self._socket)

    # ---- Sending ---------------------------------------------------------------------------------------------------

    def _flush_at_end(self) -> None:
        """Flushes at the end of a turn, unless the frames of the turn have already left."""
        if self._is_flush_due:
            self._flush()

    def _flush(self) -> None:
        """Sends the queue up to a bound; the rest leaves when the socket has room again."""
        self._is_flush_due = False
        if not self.is_open:
            return
        sent = 0
        try:
            while self._queue and sent < TURN_BYTES_MAX:
                first = self._queue[0]
                if isinstance(first, FileSlice):
                    count = first.send(self._socket, self._slice_sent, TURN_BYTES_MAX - sent)
                    self._slice_sent += count
                    if self._slice_sent == first.size:
                        self._slice_sent = 0
                        self._queue.popleft()
                else:
                    count = self._send_buffers()
                self.queued_bytes -= count
                sent += count
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

    def _send_buffers(self) -> int:
        """Sends the buffers before the next slice."""
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
            detail = f"nothing was taken for {STALLED_S:g} s"
            self._stall = self._loop.call_later(STALLED_S, self.close, End.SLOW_PEER, detail)


def tcp_family(host: str) -> socket.AddressFamily:
    """The family of an address as Ray gives it: an address with colons is one of IPv6."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def tune(connection: socket.socket) -> None:
    """Sets options of a TCP socket: small frames leave at once, and the loss of a machine is noticed within seconds."""
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


_sockets: "WeakSet[socket.socket]" = WeakSet()


def close_in_children(connection: socket.socket) -> socket.socket:
    """Makes a socket this process's alone: a forked child closes its copy."""
    _sockets.add(connection)
    return connection


def _after_fork() -> None:
    # Without a word to the event loop, whose selector is the parent's too.
    for each in list(_sockets):
        each.close()


os.register_at_fork(after_in_child=_after_fork)
