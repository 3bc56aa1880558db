"""Frames of the direct lane: one call or one answer each, cut out of a stream of bytes. Synchronous, no IO.

A frame is a prefix of fixed size, a head (API name, header and body of the message) and a payload (the records). What
arrives in small pieces is collected in a buffer that all streams of an event loop share, so an idle stream holds none;
a head or payload that does not fit there is received into memory of its own, which becomes the message's without a
copy.
Invariants: no memory is set aside for a frame before its sizes were checked and there is room for it
(`UnfinishedFrames`); a payload begins at a multiple of eight bytes, as batches do. Kafka: `NetworkReceive`,
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

_PREFIX = Struct("<QQIIBB6x")  # request id, payload bytes, header bytes, body bytes, kind, API name bytes
PREFIX_BYTES = _PREFIX.size
CALL_HEAD_BYTES_MAX = 16 << 20
CALL_PAYLOAD_BYTES_MAX = 128 << 20
ANSWER_BYTES_MAX = 1 << 30  # of a head, and of a payload: what a node answers has no other way to its caller
ALWAYS_TAKEN_BYTES_MAX = 1 << 20  # of a head without a payload: a fetch of ten thousand partitions
_JOINED_BYTES_MAX = 8 << 10  # copying these costs less than a buffer more in a system call


class FrameKind(IntEnum):
    """What a frame is. A failure is an answer without a payload: its body is a `Failure`."""

    CALL = 1
    ANSWER = 2
    FAILURE = 3


class BrokenStream(RaykaError):
    """What arrived is no frame, or one that is too large: nothing after it can be understood."""


class Frame(NamedTuple):
    """One call, or one answer; of an answer `api_name` and `header` are empty."""

    kind: FrameKind
    request_id: int
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
    """The frame as buffers and slices to be sent one after another; the payload is referred to, not copied."""
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

    A large frame may have to wait until others are whole: while `is_waiting` nothing is received. `begin_later` is
    called when there is room for it; it then goes on with `begin_waiting_frame`.
    """

    def __init__(self, memory: ReceiveMemory, *, head_bytes_max: int, payload_bytes_max: int) -> None:
        self._memory = memory
        self._scratch = memory.scratch
        self._head_bytes_max = head_bytes_max
        self._payload_bytes_max = payload_bytes_max
        self._partial = b""  # the beginning of a frame that the scratch buffer held
        self._sizes: _Sizes | None = None  # of a frame that is received into memory of its own
        self._head = bytearray()
        self._payload = NO_BYTES
        self._received = 0
        self.is_waiting = False
        self.is_old = False  # for what watches a large frame; false when one begins
        self.begin_later: Callable[[], object] = lambda: None

    @property
    def is_apart(self) -> bool:
        """Whether it is in the middle of a large frame, for which memory is set aside."""
        return self._sizes is not None

    @property
    def holds_up_others(self) -> bool:
        """Whether other frames wait for memory, and this one is large."""
        return self._sizes is not None and self._memory.unfinished.is_short

    @property
    def is_between_frames(self) -> bool:
        """Whether the stream may end here without a frame being cut off."""
        return self._sizes is None and not self._partial

    def room(self) -> memoryview:
        """Where the next bytes are to be received; used before any other reader's `room` is asked for."""
        if self._sizes is None:
            partial = len(self._partial)
            self._scratch[:partial] = self._partial
            return self._scratch[partial:]
        if self._received < len(self._head):
            return memoryview(self._head)[self._received :]
        return self._payload.data[self._received - len(self._head) :]

    def on_received(self, count: int) -> Iterator[Frame]:
        """The frames that are complete now. Raises BrokenStream."""
        if self._sizes is None:
            yield from self._cut(self._scratch[: len(self._partial) + count])
            return
        self._received += count
        if self._received == len(self._head) + self._payload.size:
            sizes, head, payload = self._sizes, self._head, self._payload
            self.let_go()
            yield _frame(sizes, memoryview(head), _read_only(payload))

    def on_room(self) -> None:
        """There is room for the frame that waits."""
        self.begin_later()

    def begin_waiting_frame(self) -> None:
        """The frame that waited is received now."""
        data, self._partial = memoryview(self._partial), b""
        self.is_waiting = False
        self._receive_apart(_Sizes(*_PREFIX.unpack_from(data)), data[PREFIX_BYTES:])

    def let_go(self) -> None:
        """A large frame is whole, or will never be: others get its share of the memory."""
        self._sizes, self._head, self._payload, self._received = None, bytearray(), NO_BYTES, 0
        self._memory.unfinished.give_back(self)

    def _cut(self, data: memoryview) -> Iterator[Frame]:
        self._partial = b""
        position = 0
        while len(data) - position >= PREFIX_BYTES:
            sizes = self._checked(_Sizes(*_PREFIX.unpack_from(data, position)))
            begin = position + PREFIX_BYTES
            middle = begin + sizes.head_bytes
            end = middle + sizes.payload_bytes
            if end > len(data):
                if end - position > len(self._scratch):
                    if self._may_receive(sizes):
                        self._receive_apart(sizes, data[begin:])
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

    def _checked(self, sizes: _Sizes) -> _Sizes:
        if sizes.kind not in _KINDS:
            raise BrokenStream(f"expected a frame, found one of kind {sizes.kind}")
        _check_size("head", sizes.head_bytes, self._head_bytes_max)
        _check_size("payload", sizes.payload_bytes, self._payload_bytes_max)
        return sizes

    def _may_receive(self, sizes: _Sizes) -> bool:
        """What carries no records does not wait for what does: a leader's followers ask by such calls."""
        if not sizes.payload_bytes and sizes.head_bytes <= ALWAYS_TAKEN_BYTES_MAX:
            return True
        return self._memory.unfinished.take(self, sizes.head_bytes + sizes.payload_bytes)

    def _receive_apart(self, sizes: _Sizes, data: memoryview) -> None:
        """The frame is larger than the scratch buffer: from now on it is received where it stays."""
        self._sizes, self._received, self.is_old = sizes, len(data), False
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


def _read_only(payload: np.ndarray) -> np.ndarray:
    payload.flags.writeable = False
    return payload
