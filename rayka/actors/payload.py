"""How a call and its answer cross Ray, which is slow in different ways at different sizes (decision 030).

Each argument costs, and an answer that is not just `bytes` costs three times as much to unpack. So what is small is one
`bytes`, a frame: a call's header, its request and its records; an answer's response and its records. Arguments up to
100 KiB travel inside the call; a larger one goes through shared memory, for about 1 ms more, and arrives there without
a copy if it is a numpy array, or a list of them. So middling records follow the frame in several pieces of `bytes`,
large ones as a single object. An answer is one object and has no middle way: what does not fit into a frame is a tuple.
"""

from struct import Struct

import numpy as np

from rayka.errors import InvalidRequest
from rayka.protocol.caller import Answer
from rayka.protocol.wire import Encoded, Payload

PIECE_BYTES = 90 * 1024
INLINE_MAX_BYTES = 6 * PIECE_BYTES

PackedCall = tuple[Payload, ...]
PackedAnswer = bytes | Answer
_SIZES = Struct("<II")  # of the first two parts; the third, aligned as batches are, is the rest
_ALIGNMENT = 8
_NOTHING = np.empty(0, dtype=np.uint8)


def pack_call(header: bytes, request: Encoded) -> PackedCall:
    """The arguments of a remote method."""
    payload = request.payload()
    if not isinstance(payload, np.ndarray) or payload.size > INLINE_MAX_BYTES:
        return _frame(header, request.body), payload
    if payload.size <= PIECE_BYTES:
        return (_frame(header, request.body, payload),)
    starts = range(0, payload.size, PIECE_BYTES)
    return _frame(header, request.body), *(payload[at : at + PIECE_BYTES].tobytes() for at in starts)


def unpack_call(packed: PackedCall) -> tuple[bytes, bytes, Payload]:
    """The header, the request and its records. Raises InvalidRequest for what `pack_call` does not make."""
    frame, *pieces = packed or (b"",)
    header, body, payload = _parts(frame)
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
    if isinstance(payload, np.ndarray) and payload.size <= PIECE_BYTES:
        return _frame(b"", body, payload)
    return answer


def unpack_answer(packed: PackedAnswer) -> Answer:
    """The answer that was packed."""
    if not isinstance(packed, bytes):
        return packed
    _, body, payload = _parts(packed)
    return body, payload


def _frame(first: bytes, second: bytes, payload: np.ndarray = _NOTHING) -> bytes:
    padding = bytes(-(_SIZES.size + len(first) + len(second)) % _ALIGNMENT)
    return b"".join((_SIZES.pack(len(first), len(second)), first, second, padding, payload.data))


def _parts(frame: Payload) -> tuple[bytes, bytes, np.ndarray]:
    if not isinstance(frame, bytes) or len(frame) < _SIZES.size:
        raise InvalidRequest(f"frame: expected at least {_SIZES.size} bytes, found {type(frame).__name__}")
    first_size, second_size = _SIZES.unpack_from(frame)
    middle = _SIZES.size + first_size
    end = middle + second_size
    if end > len(frame):
        raise InvalidRequest(f"frame: expected {end} bytes, found {len(frame)}")
    payload = np.frombuffer(frame, dtype=np.uint8)[end + -end % _ALIGNMENT :]
    return frame[_SIZES.size : middle], frame[middle:end], payload
