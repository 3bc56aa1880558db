"""How the bytes of records cross Ray, which is slow in different ways at different sizes (decision 030).

Arguments up to 100 KiB travel inside the call; a larger one goes through shared memory, for about 1 ms more, and
arrives there without a copy if it is a numpy array, or a list of them. So small payloads are `bytes`, middling ones
several pieces of `bytes` inside the call, large ones a single object. An answer is one object and has no middle way:
small is `bytes`, the rest arrays.
"""

import numpy as np

from rayka.protocol.caller import Answer
from rayka.protocol.wire import Payload

PIECE_BYTES = 90 * 1024
INLINE_MAX_BYTES = 6 * PIECE_BYTES

Pieces = tuple[Payload, ...]


def pack(payload: Payload) -> Pieces:
    """A request's payload as the last arguments of a remote method."""
    if not isinstance(payload, np.ndarray) or payload.size > INLINE_MAX_BYTES:
        return (payload,)
    return tuple(
        payload[start : start + PIECE_BYTES].tobytes() for start in range(0, payload.size, PIECE_BYTES)
    )


def unpack(pieces: Pieces) -> Payload:
    """The payload that was packed."""
    return pieces[0] if len(pieces) == 1 else b"".join(map(bytes, pieces))


def pack_answer(answer: Answer) -> Answer:
    """An answer as the result of a remote method."""
    body, payload = answer
    if isinstance(payload, np.ndarray) and payload.size <= PIECE_BYTES:
        return body, payload.tobytes()
    return answer
