"""Frames: what goes in comes out, aligned; anything else is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.errors import InvalidRequest
from rayka.protocol.wire import frame, unframe


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=100))
def test_a_frame_gives_back_its_parts_with_the_records_aligned(
    first: bytes, second: bytes, records: bytes
) -> None:
    parts = unframe(frame(first, second, np.frombuffer(records, dtype=np.uint8)))
    assert (parts[0], parts[1], parts[2].tobytes()) == (first, second, records)
    assert not records or parts[2].ctypes.data % 8 == 0


@pytest.mark.parametrize(
    "data", [None, 3, b"", bytes(7), b"\xff\xff\xff\xff\x00\x00\x00\x00", frame(b"a", b"b")[:9]]
)
def test_what_is_no_frame_is_an_invalid_request(data: Any) -> None:
    with pytest.raises(InvalidRequest, match="frame: expected"):
        unframe(data)


@given(st.binary(max_size=60))
def test_random_bytes_never_do_worse_than_an_invalid_request(data: bytes) -> None:
    try:
        first, second, records = unframe(data)
    except InvalidRequest:
        return
    assert len(first) + len(second) + records.size <= len(data)
