"""How a call and its answer cross Ray, which is slow in different ways at different sizes (decision 030).

Each argument costs, and an answer that is not just `bytes` costs three times as much to unpack. So what is small is one
`bytes`, a frame (`rayka.protocol.wire`): a call's header, its request and its records; an answer's response and its
records. Arguments up to 100 KiB travel inside the call; a larger one goes through shared memory, for about 1 ms more,
and arrives there without a copy if it is a numpy array, or a list of them. So middling records follow the frame in
several pieces of `bytes`, large ones as a single object. An answer is one object and has no middle way: what does not
fit into a frame is a tuple. What is in files is read here.
"""

import numpy as np

from rayka.errors import InvalidRequest, KafkaStorageError, StorageError
from rayka.protocol.caller import Answer
from rayka.protocol.wire import Encoded, Failure, Payload, encode, frame, in_memory, unframe

PIECE_BYTES = 90 * 1024
INLINE_MAX_BYTES = 6 * PIECE_BYTES

PackedCall = tuple[Payload, ...]
PackedAnswer = bytes | Answer


def pack_call(header: bytes, request: Encoded) -> PackedCall:
    """The arguments of a remote method."""
    payload = request.payload()
    if not isinstance(payload, np.ndarray) or payload.size > INLINE_MAX_BYTES:
        return frame(header, request.body), payload
    if payload.size <= PIECE_BYTES:
        return (frame(header, request.body, payload),)
    starts = range(0, payload.size, PIECE_BYTES)
    return frame(header, request.body), *(payload[at : at + PIECE_BYTES].tobytes() for at in starts)


def unpack_call(packed: PackedCall) -> tuple[bytes, bytes, Payload]:
    """The header, the request and its records. Raises InvalidRequest for what `pack_call` does not make."""
    first, *pieces = packed or (b"",)
    header, body, payload = unframe(first)
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
    try:
        payload = in_memory(payload)
    except StorageError as error:
        return encode(Failure.of(KafkaStorageError(str(error)))).body, None
    if isinstance(payload, np.ndarray) and payload.size <= PIECE_BYTES:
        return frame(b"", body, payload)
    return body, payload


def unpack_answer(packed: PackedAnswer) -> Answer:
    """The answer that was packed."""
    if not isinstance(packed, bytes):
        return packed
    _, body, payload = unframe(packed)
    return body, payload
