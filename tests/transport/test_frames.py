"""Frames: cut out of a stream of bytes however it arrives, and bounded before memory is set aside."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.transport.frames import (
    CALL_HEAD_BYTES_MAX,
    CALL_PAYLOAD_BYTES_MAX,
    PREFIX_BYTES,
    BrokenStream,
    Frame,
    FrameKind,
    FrameReader,
    encode_frame,
)
from rayka.transport.receive_memory import ReceiveMemory

SCRATCH = 256
FRAMES = st.tuples(
    st.sampled_from(FrameKind),
    st.integers(0, 2**64 - 1),
    st.sampled_from(["", "produce", "fetch"]),
    st.binary(max_size=80),
    st.binary(max_size=400),
    st.lists(st.binary(max_size=9_000), max_size=3),
)


def encoded(frame: Frame) -> bytes:
    return b"".join(
        bytes(each)
        for each in encode_frame(
            frame.kind,
            frame.request_id,
            frame.body,
            frame.payload,
            api_name=frame.api_name,
            header=frame.header,
        )
    )


def reader_of(
    payload_bytes_max: int = CALL_PAYLOAD_BYTES_MAX, head_bytes_max: int = CALL_HEAD_BYTES_MAX
) -> FrameReader:
    return FrameReader(
        ReceiveMemory(SCRATCH), head_bytes_max=head_bytes_max, payload_bytes_max=payload_bytes_max
    )


def received(stream: bytes, sizes: list[int], reader: FrameReader) -> list[Frame]:
    """The frames that come of a stream which arrives in pieces of these sizes, over and over."""
    frames, position, turn = [], 0, 0
    while position < len(stream):
        room = reader.room()
        piece = stream[position : position + min(sizes[turn % len(sizes)], len(room))]
        room[: len(piece)] = piece
        frames.extend(reader.on_received(len(piece)))
        position, turn = position + len(piece), turn + 1
    assert reader.is_between_frames
    return frames


@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(1, 700), min_size=1, max_size=5))
def test_a_stream_gives_the_frames_that_were_sent_however_it_is_cut(
    parts: list[tuple[FrameKind, int, str, bytes, bytes, list[bytes]]], sizes: list[int]
) -> None:
    frames = [
        Frame(kind, request_id, name, header, body, np.frombuffer(b"".join(buffers), dtype=np.uint8))
        for kind, request_id, name, header, body, buffers in parts
    ]
    found = received(b"".join(encoded(each) for each in frames), sizes, reader_of())
    assert [each[:5] for each in found] == [each[:5] for each in frames]
    assert [bytes(each.payload) for each in found] == [bytes(each.payload) for each in frames]
    assert all(each.payload.ctypes.data % 8 == 0 for each in found)


@given(st.binary(max_size=2_000), st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_what_is_no_frame_ends_the_stream_or_waits_for_more(garbage: bytes, sizes: list[int]) -> None:
    reader = reader_of(payload_bytes_max=1_000)
    position, turn = 0, 0
    try:
        while position < len(garbage):
            room = reader.room()
            assert 0 < len(room) <= CALL_HEAD_BYTES_MAX
            piece = garbage[position : position + min(sizes[turn % len(sizes)], len(room))]
            room[: len(piece)] = piece
            for frame in reader.on_received(len(piece)):
                assert frame.kind in FrameKind
                assert frame.payload.size <= 1_000
            position, turn = position + len(piece), turn + 1
    except BrokenStream:
        pass


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "add"]), st.integers(0, 10_000), st.binary(min_size=1, max_size=40)
    ),
    min_size=1,
    max_size=4,
)


def changed(stream: bytes, changes: list[tuple[str, int, bytes]]) -> tuple[bytes, int]:
    """The stream with bytes overwritten, taken out or put in; and where the first change is."""
    first = len(stream)
    for kind, place, piece in changes:
        at = place % (len(stream) + 1)
        end = at if kind == "add" else at + len(piece)
        stream = stream[:at] + (b"" if kind == "cut" else piece) + stream[end:]
        first = min(first, at)
    return stream, first


@given(
    st.lists(FRAMES, min_size=1, max_size=4), CHANGES, st.lists(st.integers(1, 700), min_size=1, max_size=5)
)
def test_a_changed_stream_gives_the_frames_before_the_change_and_holds_no_more_than_the_bounds(
    parts: list[tuple[FrameKind, int, str, bytes, bytes, list[bytes]]],
    changes: list[tuple[str, int, bytes]],
    sizes: list[int],
) -> None:
    frames = [
        Frame(kind, number, name, header, body, np.frombuffer(b"".join(buffers), dtype=np.uint8))
        for kind, number, name, header, body, buffers in parts
    ]
    pieces = [encoded(each) for each in frames]
    stream, first = changed(b"".join(pieces), changes)
    ends = np.cumsum([len(each) for each in pieces])
    whole = [each for each, end in zip(frames, ends, strict=True) if end <= first]
    reader, found = reader_of(payload_bytes_max=30_000), []
    position, turn = 0, 0
    try:
        while position < len(stream):
            room = reader.room()
            assert 0 < len(room) <= CALL_HEAD_BYTES_MAX
            piece = stream[position : position + min(sizes[turn % len(sizes)], len(room))]
            room[: len(piece)] = piece
            found.extend(reader.on_received(len(piece)))
            assert len(reader._partial) <= SCRATCH
            assert reader._payload.size <= 30_000
            assert len(reader._head) <= CALL_HEAD_BYTES_MAX
            position, turn = position + len(piece), turn + 1
    except BrokenStream:
        pass
    assert [each[:5] for each in found[: len(whole)]] == [each[:5] for each in whole]


@pytest.mark.parametrize(("payload_bytes", "body_bytes"), [(2**63, 0), (4 << 30, 0), (0, 2**32 - 1)])
def test_a_frame_that_is_too_large_is_refused_before_memory_is_set_aside(
    payload_bytes: int, body_bytes: int
) -> None:
    prefix = encoded(Frame(FrameKind.CALL, 1, "", b"", b"", np.empty(0, dtype=np.uint8)))
    sizes = payload_bytes.to_bytes(8, "little") + bytes(4) + body_bytes.to_bytes(4, "little")
    hostile = prefix[:8] + sizes + prefix[24:]
    assert len(hostile) == PREFIX_BYTES
    tracemalloc.start()
    try:
        with pytest.raises(BrokenStream, match=r"expected at most \d+ bytes, found \d+"):
            received(hostile, [64], reader_of())
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [1, 2])
def test_large_records_leave_as_the_arrays_that_they_came_in(count: int) -> None:
    arrays = [np.ones((8 << 10) + 1, dtype=np.uint8) for _ in range(count)]
    _, *sent = encode_frame(FrameKind.CALL, 1, b"body", arrays[0] if count == 1 else list(arrays))
    assert [id(each) for each in sent] == [id(each) for each in arrays]


def test_a_frame_of_the_largest_size_is_taken_and_one_byte_more_is_not() -> None:
    records = np.arange(1_000, dtype=np.uint8)
    frame = Frame(FrameKind.ANSWER, 7, "", b"", b"body", records)
    (taken,) = received(encoded(frame), [100], reader_of(1_000, len(b"body")))
    assert (taken.payload.tolist(), taken.body) == (records.tolist(), b"body")
    for bounds in ((999, 4), (1_000, 3)):
        with pytest.raises(BrokenStream):
            received(encoded(frame), [100], reader_of(*bounds))
