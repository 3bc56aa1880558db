"""Frames of the direct lane: one call or one answer each, cut out of a stream of bytes. Synchronous, no IO.

A frame is a prefix of fixed size, a head (API name, header and body of the message) and a payload (the records). Small
pieces arrive in a scratch buffer that all streams of an event loop share, so an idle stream holds no memory. A frame
that does not fit the scratch buffer is received into memory of its own, which becomes the message's without a copy.
Invariants: memory is reserved for a large frame only after the frame's sizes were checked and `UnfinishedFrames` has
room; a payload begins at a multiple of eight bytes, as batches do. Kafka: `NetworkReceive`,
`socket.request.max.bytes`.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from rayka.errors import RaykaError
from rayka.ports import FileSlice
from rayka.protocol.wire import NO_BYTES, Part, Payload, payload_bytes
from rayka.transport.receive_memory import ReceiveMemory

# The fields of `_Sizes`.
_PREFIX = Struct("<QQIIBB6x")
PREFIX_BYTES = _PREFIX.size
CALL_HEAD_BYTES_MAX = 16 << 20
CALL_PAYLOAD_BYTES_MAX = 128 << 20
# Of a head, and of a payload. Large, because an answer has no other way to its caller.
ANSWER_BYTES_MAX = 1 << 30
# Of a head without a payload: a fetch of ten thousand partitions.
ALWAYS_TAKEN_BYTES_MAX = 1 << 20
# To copy these costs less than one more buffer in a system call.
_JOINED_BYTES_MAX = 8 << 10


class FrameKind(IntEnum):
    """The kind of a frame. The body of a FAILURE is a `wire.Failure`; it has no payload."""

    CALL = 1
    ANSWER = 2
    FAILURE = 3


class BrokenStream(RaykaError):
    """The received bytes are no frame, or too large a frame: the bytes behind them cannot be understood."""


class Frame(NamedTuple):
    """One call or one answer."""

    kind: FrameKind
    request_id: int
    # API name and header are empty in an answer.
    api_name: str
    header: bytes
    body: bytes
    payload: np.ndarray


def encode_frame(
    kind: FrameKind,
    request_id: int,
    body: bytes,
    payload: Payload,
    *,
    api_name: str = "",
    header: bytes = b"",
) -> list[bytes | Part]:
    """Encodes a frame as buffers and slices to send in order. Refers to a large payload, copies a small one."""
    parts: list[Any] = payload if isinstance(payload, list) else [payload]
    name, size = api_name.encode(), payload_bytes(payload)
    head = (_PREFIX.pack(request_id, size, len(header), len(body), kind, len(name)), name, header, body)
    if not size:
        return [b"".join(head)]
    if size > _JOINED_BYTES_MAX:
        return [b"".join(head), *(each for each in parts if isinstance(each, FileSlice) or len(each))]
    small: list[Any] = [each.read() if isinstance(each, FileSlice) else each for each in parts]
    return [b"".join((*head, *small))]


class _Sizes(NamedTuple):
    request_id: int
    payload_bytes: int
    header_bytes: int
    body_bytes: int
    kind: int
    name_bytes: int

    @property
    def head_bytes(self) -> int:
        return self.name_bytes + self.header_bytes + self.body_bytes


class FrameReader:
    """Cuts the bytes of one stream into frames: receive into `room()`, then iterate over `on_received(count)`.

    A large frame may have to wait for memory that other frames hold: while `is_waiting` nothing is received. When there
    is memory, `schedule_begin` is called, and schedules `begin_waiting_frame`.
    """

    def __init__(self, memory: ReceiveMemory, *, head_bytes_max: int, payload_bytes_max: int) -> None:
        self._memory = memory
        self._scratch = memory.scratch
        self._head_bytes_max = head_bytes_max
        self._payload_bytes_max = payload_bytes_max
        # The beginning of a frame that the scratch buffer held.
        self._partial = b""
        # Of the large frame that is being received into memory of its own.
        self._sizes: _Sizes | None = None
        self._head = bytearray()
        self._payload = NO_BYTES
        # Bytes of `_head` and `_payload`.
        self._received = 0
        self.is_waiting = False
        # For a watcher of large frames; false when one begins.
        self.is_slow = False
        self.schedule_begin: Callable[[], object] = lambda: None

    @property
    def is_in_large_frame(self) -> bool:
        """Whether a large frame has begun, which holds memory."""
        return self._sizes is not None

    @property
    def holds_up_others(self) -> bool:
        """Whether a large frame has begun while other frames wait for memory."""
        return self._sizes is not None and self._memory.unfinished.has_waiting

    @property
    def is_between_frames(self) -> bool:
        """Whether no frame has begun, so that the stream may end here."""
        return self._sizes is None and not self._partial

    def room(self) -> memoryview:
        """The memory for the next bytes. Valid until any reader's next `room`."""
        if self._sizes is None:
            partial = len(self._partial)
            self._scratch[:partial] = self._partial
            return self._scratch[partial:]
        if self._received < len(self._head):
            return memoryview(self._head)[self._received :]
        return self._payload.data[self._received - len(self._head) :]

    def on_received(self, count: int) -> Iterator[Frame]:
        """Yields the frames that are complete with the `count` bytes received. Raises BrokenStream."""
        if self._sizes is None:
            yield from self._cut(self._scratch[: len(self._partial) + count])
            return
        self._received += count
        if self._received == len(self._head) + self._payload.size:
            sizes, head, payload = self._sizes, self._head, self._payload
            self.release()
            payload.flags.writeable = False
            yield _frame(sizes, memoryview(head), payload)

    def on_memory_free(self) -> None:
        """Called when there is memory for the waiting frame."""
        self.schedule_begin()

    def begin_waiting_frame(self) -> None:
        """Begins to receive the waiting frame."""
        data, self._partial = memoryview(self._partial), b""
        self.is_waiting = False
        self._receive_large(_Sizes(*_PREFIX.unpack_from(data)), data[PREFIX_BYTES:])

    def release(self) -> None:
        """Ends a large frame that is whole, or will never be; other frames get its share of the memory."""
        self._sizes, self._head, self._payload, self._received = None, bytearray(), NO_BYTES, 0
        self._memory.unfinished.release(self)

    def _cut(self, data: memoryview) -> Iterator[Frame]:
        self._partial = b""
        position = 0
        while len(data) - position >= PREFIX_BYTES:
            sizes = _Sizes(*_PREFIX.unpack_from(data, position))
            if sizes.kind not in _KINDS:
                raise BrokenStream(f"expected a frame, found one of kind {sizes.kind}")
            _check_size("head", sizes.head_bytes, self._head_bytes_max)
            _check_size("payload", sizes.payload_bytes, self._payload_bytes_max)
            begin = position + PREFIX_BYTES
            middle = begin + sizes.head_bytes
            end = middle + sizes.payload_bytes
            if end > len(data):
                if end - position > len(self._scratch):
                    # A call without records never waits for those with records: followers fetch by such calls.
                    is_always_taken = not sizes.payload_bytes and sizes.head_bytes <= ALWAYS_TAKEN_BYTES_MAX
                    if is_always_taken or self._memory.unfinished.reserve(self, end - begin):
                        self._receive_large(sizes, data[begin:])
                        return
                    self.is_waiting = True
                break
            payload = (
                np.frombuffer(bytes(data[middle:end]), dtype=np.uint8) if sizes.payload_bytes else NO_BYTES
            )
            yield _frame(sizes, data[begin:middle], payload)
            position = end
        if position < len(data):
            self._partial = bytes(data[position:])

    def _receive_large(self, sizes: _Sizes, data: memoryview) -> None:
        """Begins a frame that is larger than the scratch buffer; `data` are the bytes of it that have arrived."""
        self._sizes, self._received, self.is_slow = sizes, len(data), False
        self._head = bytearray(sizes.head_bytes)
        self._payload = self._memory.take(sizes.payload_bytes)
        head = data[: sizes.head_bytes]
        self._head[: len(head)] = head
        records = data[sizes.head_bytes :]
        self._payload.data[: len(records)] = records


_KINDS = {int(each): each for each in FrameKind}


def _check_size(what: str, found: int, bound: int) -> None:
    if found > bound:
        raise BrokenStream(f"a frame's {what}: expected at most {bound} bytes, found {found}")


def _frame(sizes: _Sizes, head: memoryview, payload: np.ndarray) -> Frame:
    after_name = sizes.name_bytes
    after_header = after_name + sizes.header_bytes
    return Frame(
        _KINDS[sizes.kind],
        sizes.request_id,
        bytes(head[:after_name]).decode("utf-8", "replace"),
        bytes(head[after_name:after_header]),
        bytes(head[after_header:]),
        payload,
    )
