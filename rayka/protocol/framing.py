"""Frames: two bodies and the records that belong to them as one `bytes`, for lanes that carry nothing else well.

The records begin at a multiple of 8 bytes, as batches do, so what is read out is a view that every batch decodes from.
"""

from struct import Struct

import numpy as np

from rayka.errors import InvalidRequest
from rayka.protocol.wire import NO_BYTES

_SIZES = Struct("<II")  # of the two bodies; the records are the rest
_ALIGNMENT = 8


def frame(first: bytes, second: bytes, records: np.ndarray = NO_BYTES) -> bytes:
    """The parts in one piece."""
    padding = bytes(-(_SIZES.size + len(first) + len(second)) % _ALIGNMENT)
    return b"".join((_SIZES.pack(len(first), len(second)), first, second, padding, records.data))


def unframe(data: object) -> tuple[bytes, bytes, np.ndarray]:
    """The parts of a frame; the records are a view of it. Raises InvalidRequest for what is no frame."""
    if not isinstance(data, bytes) or len(data) < _SIZES.size:
        raise InvalidRequest(f"frame: expected at least {_SIZES.size} bytes, found {type(data).__name__}")
    first_size, second_size = _SIZES.unpack_from(data)
    middle = _SIZES.size + first_size
    end = middle + second_size
    if end > len(data):
        raise InvalidRequest(f"frame: expected {end} bytes, found {len(data)}")
    records = np.frombuffer(data, dtype=np.uint8)[end + -end % _ALIGNMENT :]
    return data[_SIZES.size : middle], data[middle:end], records
