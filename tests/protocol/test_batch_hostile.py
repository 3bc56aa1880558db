"""Batches with a good CRC and a bad body: always CorruptRecord or a valid decode, never another exception."""

import gzip
import struct
from collections.abc import Callable

import lz4.frame
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.errors import CorruptRecord, UnsupportedCompressionType
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    NULL_KEY_BIT,
    Codec,
    Column,
    RecordBatch,
    aligned,
    pack_contents,
)

ARGUMENTS = {
    "values": [b"one", None, b"three", b""],
    "keys": [None, b"key", b"", b"k"],
    "headers": [[("source", b"faa"), ("größe", None)], None, [], [("k", b"v")]],
    "timestamps_ms": [5, 2, 9, 4],
}
SAMPLES = [
    encode_batch(**ARGUMENTS, codec=codec) for codec in (Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD)
]
SAMPLES.append(encode_batch(**ARGUMENTS, offset_deltas=[0, 2, 3, 9]))
EXTREMES = [0, 1, 2, 3, 7, 8, 64, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1]

GOOD = {Column.VALUE_OFFSETS: struct.pack("<3i", 0, 3, 6), Column.VALUE_DATA: b"onetwo"}
KEYS = {Column.KEY_OFFSETS: struct.pack("<3i", 0, 1, 2), Column.KEY_DATA: b"kl"}
HEADERS = {
    Column.HEADER_OFFSETS: struct.pack("<3i", 0, 0, 1),
    Column.HEADER_KEY_OFFSETS: struct.pack("<2i", 0, 1),
    Column.HEADER_KEY_DATA: b"k",
    Column.HEADER_VALUE_OFFSETS: struct.pack("<2i", 0, 1),
    Column.HEADER_VALUE_DATA: b"v",
}


def with_good_crc(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return data


def batch_of(
    columns: dict[int, bytes],
    *,
    count: int = 2,
    attributes: int = NULL_KEY_BIT,
    last_offset_delta: int | None = None,
    max_timestamp_ms: int = 0,
) -> RecordBatch:
    """An uncompressed batch of two records with the columns given, whatever they hold."""
    lengths = [(column, len(data)) for column, data in columns.items()]
    contents = pack_contents(sum(aligned(length) for _, length in lengths), lengths)
    buffers = b"".join(data.ljust(aligned(len(data)), b"\0") for data in columns.values())
    return batch_with(
        contents.ljust(aligned(len(contents)), b"\0") + buffers,
        count=count,
        attributes=attributes,
        last_offset_delta=count - 1 if last_offset_delta is None else last_offset_delta,
        max_timestamp_ms=max_timestamp_ms,
    )


def batch_with(
    body: bytes,
    *,
    count: int = 2,
    attributes: int = NULL_KEY_BIT,
    last_offset_delta: int = 1,
    max_timestamp_ms: int = 0,
) -> RecordBatch:
    size = HEADER_BYTES + len(body)
    header = HEADER.pack(
        0, size - 12, -1, MAGIC, 0, attributes, last_offset_delta, 0, max_timestamp_ms, -1, -1, -1, count, b"\0\0\0"
    )  # fmt: skip
    return RecordBatch(with_good_crc(bytearray(header + body)))


def compressed(codec: Codec, frame: bytes, declared_bytes: int) -> RecordBatch:
    """A batch of two values whose block is the frame given, whatever it holds."""
    contents = pack_contents(
        declared_bytes, [(Column.VALUE_OFFSETS, 12), (Column.VALUE_DATA, declared_bytes - 16)]
    )
    padding = bytes(-(len(contents) + len(frame)) % 8)
    return batch_with(contents + padding + frame, attributes=NULL_KEY_BIT | codec)


def read_everything(batch: RecordBatch) -> None:
    """Decodes, lets Arrow check its arrays in full, and touches every record."""
    decoded = decode(batch)
    for column in (decoded.values, decoded.keys, decoded.headers):
        if column is not None:
            column.validate(full=True)
            assert len(column) == batch.record_count
    lists = (decoded.values_list(), decoded.keys_list(), decoded.headers_list())
    assert (
        {len(each) for each in lists} == {len(decoded.offsets), len(decoded.timestamps_ms)} == {len(decoded)}
    )


@settings(max_examples=600)
@given(st.data())
def test_a_changed_body_with_a_good_crc_is_corrupt_or_decodes(data: st.DataObject) -> None:
    changed = bytearray(data.draw(st.sampled_from(SAMPLES)).tobytes())
    for _ in range(data.draw(st.integers(1, 3))):
        form = data.draw(st.sampled_from([">I", "<I", "B"]))
        position = data.draw(st.integers(21, len(changed) - 4))
        value = data.draw(st.sampled_from(EXTREMES) | st.integers(0, 2**32 - 1))
        struct.pack_into(form, changed, position, value & 0xFF if form == "B" else value)
    try:
        read_everything(RecordBatch(with_good_crc(changed)))
    except (CorruptRecord, UnsupportedCompressionType):
        return


@given(st.binary(max_size=20).map(lambda body: body + bytes(-len(body) % 8)))
def test_a_body_of_any_bytes_is_corrupt(body: bytes) -> None:
    with pytest.raises(CorruptRecord):
        read_everything(batch_with(body))


def test_the_batch_that_the_cases_below_change_is_good() -> None:
    batch = batch_of(GOOD | HEADERS)
    read_everything(batch)
    assert decode(batch).values_list() == [b"one", b"two"]
    read_everything(batch_of(KEYS | GOOD, attributes=0))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "VALUE_OFFSETS"),
        (GOOD | {Column.VALUE_OFFSETS: struct.pack("<3i", 1, 3, 6)}, "begin at 0"),
        (GOOD | {Column.VALUE_OFFSETS: struct.pack("<3i", 0, 9, 6)}, "falls"),
        (GOOD | {Column.VALUE_OFFSETS: struct.pack("<3i", 0, -1, 6)}, "falls"),
        (GOOD | {Column.VALUE_OFFSETS: struct.pack("<3i", 0, 3, 7)}, "VALUE_DATA has 6 bytes, expected 7"),
        (GOOD | {Column.VALUE_OFFSETS: struct.pack("<3i", 0, 3, 2**31 - 1)}, "VALUE_DATA"),
        (GOOD | {Column.VALUE_OFFSETS: struct.pack("<2i", 0, 6)}, "VALUE_OFFSETS has 8 bytes, expected 12"),
        (GOOD | {Column.VALUE_OFFSETS: bytes(11)}, "VALUE_OFFSETS"),
        ({Column.VALUE_VALIDITY: b""} | GOOD, "VALUE_VALIDITY has 0 bytes, expected 1"),
        ({Column.VALUE_VALIDITY: b"\3\0"} | GOOD, "VALUE_VALIDITY"),
        ({Column.VALUE_DATA: b"onetwo"}, "VALUE_OFFSETS"),
        ({Column.KEY_VALIDITY: b"\1"} | GOOD, "belong to nothing"),
        ({Column.KEY_DATA: b"k"} | GOOD, "belong to nothing"),
        ({Column.KEY_OFFSETS: struct.pack("<3i", 0, 1, 2)} | GOOD, "KEY_DATA"),
        (KEYS | GOOD, "has_null_key=True"),
        (GOOD | {Column.HEADER_KEY_DATA: b"k"}, "belong to nothing"),
        (GOOD | HEADERS | {Column.HEADER_OFFSETS: struct.pack("<3i", 0, 1, 0)}, "HEADER_OFFSETS"),
        (GOOD | HEADERS | {Column.HEADER_OFFSETS: struct.pack("<3i", 0, 1, 2)}, "HEADER_KEY_OFFSETS"),
        (GOOD | HEADERS | {Column.HEADER_OFFSETS: struct.pack("<3i", 0, 1, 2**31 - 1)}, "HEADER_KEY_OFFSETS"),
        (GOOD | HEADERS | {Column.HEADER_KEY_DATA: b"\xff"}, "not UTF-8"),
        (GOOD | HEADERS | {Column.HEADER_VALUE_OFFSETS: struct.pack("<2i", 0, 3)}, "HEADER_VALUE_DATA"),
        (GOOD | {Column.TIMESTAMP_DELTAS: bytes(8)}, "TIMESTAMP_DELTAS has 8 bytes, expected 16"),
        (GOOD | {Column.TIMESTAMP_DELTAS: struct.pack("<2q", 0, 5)}, "max timestamp 0, but the largest is 5"),
        (GOOD | {Column.OFFSET_DELTAS: struct.pack("<2i", 0, 0)}, "do not rise"),
        (GOOD | {Column.OFFSET_DELTAS: struct.pack("<2i", -1, 1)}, "do not rise"),
        (GOOD | {Column.OFFSET_DELTAS: struct.pack("<2i", 0, 2)}, "do not rise"),
        (GOOD | {15: b""}, "unknown or misplaced column 15"),
        ({0: b""} | GOOD, "unknown or misplaced column 0"),
        (dict(reversed(GOOD.items())), "unknown or misplaced column 5"),
    ],
)  # fmt: skip
def test_columns_that_contradict_each_other_are_corrupt(columns: dict[int, bytes], message: str) -> None:
    with pytest.raises(CorruptRecord, match=message):
        decode(batch_of(columns))


def test_an_error_names_the_batch() -> None:
    with pytest.raises(CorruptRecord, match=r"a batch of 2 records at offset 0: .*begin at 0"):
        decode(batch_of(GOOD | {Column.VALUE_OFFSETS: struct.pack("<3i", 1, 3, 6)}))


@pytest.mark.parametrize("count", [1, 3, 2**31 - 1])
def test_another_record_count_is_corrupt_before_anything_is_made_of_it(count: int) -> None:
    with pytest.raises(CorruptRecord, match="VALUE_OFFSETS has 12 bytes"):
        decode(batch_of(GOOD, count=count))


def test_gaps_without_offset_deltas_are_corrupt() -> None:
    with pytest.raises(CorruptRecord, match="last offset delta 5 without offset deltas"):
        decode(batch_of(GOOD, last_offset_delta=5))


def test_a_max_timestamp_that_no_record_has_is_corrupt() -> None:  # B18 trusts the header's
    with pytest.raises(CorruptRecord, match="max timestamp 7, but the largest is 0"):
        decode(batch_of(GOOD, max_timestamp_ms=7))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: b"\x94" + body[1:],
        lambda body: body[:1] + b"\x02" + body[2:],  # body version 2
        lambda body: body[:2] + b"\xcf" + body[3:],
        lambda body: body[:7] + b"\x82" + body[8:],
        lambda body: body[:7] + b"\x9f" + body[8:],  # more columns than bytes
        lambda body: body[:3] + struct.pack(">I", 8) + body[7:],  # uncompressed size
        lambda body: body[:3] + struct.pack(">I", 2**32 - 1) + body[7:],
        lambda body: body[:8] + b"\x93" + body[9:],
        lambda body: body[:10] + b"\xcd" + body[11:],
        lambda body: body + bytes(8),
        lambda body: body[:-8],
    ],
)
def test_a_table_of_contents_that_lies_is_corrupt(change: Callable[[bytes], bytes]) -> None:
    body = bytes(batch_of(GOOD).view[HEADER_BYTES:])
    with pytest.raises(CorruptRecord):
        decode(batch_with(change(body)))


BLOCK = struct.pack("<4i", 0, 3, 8, 0) + b"onetwo!!"
FRAMES = {
    Codec.GZIP: gzip.compress,
    Codec.LZ4: lz4.frame.compress,
    Codec.ZSTD: lambda block: pa.Codec("zstd").compress(block, asbytes=True),
}


@pytest.mark.parametrize("codec", FRAMES)
def test_the_frame_that_the_cases_below_change_is_good(codec: Codec) -> None:
    assert decode(compressed(codec, FRAMES[codec](BLOCK), len(BLOCK))).values_list() == [b"one", b"two!!"]


@pytest.mark.parametrize("codec", FRAMES)
@pytest.mark.parametrize("block", [b"", BLOCK[:-1], BLOCK + b"x", bytes(10**7)], ids=len)
def test_a_frame_of_another_size_than_declared_is_corrupt(codec: Codec, block: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode(compressed(codec, FRAMES[codec](block), len(BLOCK)))


@pytest.mark.parametrize("codec", FRAMES)
@pytest.mark.parametrize(
    "change",
    [lambda frame: frame[:-1], lambda frame: frame + b"\0", lambda frame: frame + frame, lambda frame: b""],
    ids=["cut", "trailing byte", "two frames", "empty"],
)
def test_a_frame_that_does_not_end_the_batch_is_corrupt(
    codec: Codec, change: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(CorruptRecord):
        decode(compressed(codec, change(FRAMES[codec](BLOCK)), len(BLOCK)))


@pytest.mark.parametrize("codec", FRAMES)
def test_eight_zeros_before_a_frame_are_corrupt(codec: Codec) -> None:
    with pytest.raises(CorruptRecord):
        decode(compressed(codec, bytes(8) + FRAMES[codec](BLOCK), len(BLOCK)))


@settings(max_examples=200)
@given(st.sampled_from(list(FRAMES)), st.binary(max_size=100), st.integers(0, 60))
def test_any_bytes_in_place_of_a_frame_are_corrupt(codec: Codec, noise: bytes, kept: int) -> None:
    frame = FRAMES[codec](BLOCK)[:kept] + noise
    try:
        read_everything(compressed(codec, frame, len(BLOCK)))
    except CorruptRecord:
        return


def test_a_frame_that_announces_more_than_memory_holds_is_corrupt() -> None:
    frame = bytearray(lz4.frame.compress(BLOCK))
    frame[6:14] = b"\xff" * 8  # the content size of the frame's own header
    with pytest.raises(CorruptRecord):
        decode(compressed(Codec.LZ4, bytes(frame), len(BLOCK)))


@pytest.mark.parametrize("codec", [Codec.NONE, *FRAMES])
def test_the_size_is_bounded_before_anything_is_decompressed(codec: Codec) -> None:
    batch = RecordBatch(encode_batch([bytes(10_000)], timestamps_ms=0, codec=codec))
    with pytest.raises(CorruptRecord, match="uncompressed exceed 10000"):
        decode(batch, uncompressed_bytes_max=10_000)


def test_a_bad_crc_is_corrupt_unless_not_asked_for() -> None:
    changed = SAMPLES[0].copy()
    changed[17] ^= 0xFF  # the CRC itself
    with pytest.raises(CorruptRecord, match="CRC-32C expected"):
        decode(RecordBatch(changed))
    assert decode(RecordBatch(changed), check_crc=False).values_list() == ARGUMENTS["values"]


def test_snappy_is_unsupported() -> None:
    with pytest.raises(UnsupportedCompressionType, match="snappy"):
        decode(batch_of(GOOD, attributes=NULL_KEY_BIT | Codec.SNAPPY))
