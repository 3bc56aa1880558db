"""What goes into a batch comes out of it: every codec, lists and Arrow arrays, slices, nulls, headers."""

import mmap
import random
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rayka.errors import RecordTooLarge, SerializationError, UnsupportedCompressionType
from rayka.protocol.batch_decode import HEADERS_TYPE, DecodedBatch, decode
from rayka.protocol.batch_encode import UNCOMPRESSED_BYTES_MAX, encode_batch
from rayka.protocol.batch_format import Codec, ProducerSequence, RecordBatch

SEQUENCE = ProducerSequence(7, 1, 5)
CODECS = [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD]
TIMES_MS = st.integers(-1, 2**53)
VALUES = st.none() | st.binary(max_size=40)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=8), VALUES), max_size=3)


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """Columns of one length, short and long enough for both ways of encoding a list."""
    count = draw(st.integers(1, 6) | st.integers(90, 130))

    def column(of: st.SearchStrategy[Any]) -> list[Any]:
        few = draw(st.lists(of, min_size=1, max_size=6))
        return [few[index % len(few)] for index in range(count)]

    return {
        "values": column(VALUES),
        "keys": column(VALUES) if draw(st.booleans()) else None,
        "headers": column(HEADERS) if draw(st.booleans()) else None,
        "timestamps_ms": column(TIMES_MS) if draw(st.booleans()) else draw(TIMES_MS),
    }


def _check(decoded: DecodedBatch, expected: dict[str, Any]) -> None:
    values, count = expected["values"], len(expected["values"])
    keys = expected["keys"] or [None] * count
    headers = [list(each or ()) for each in expected["headers"] or [()] * count]
    times = expected["timestamps_ms"]
    assert decoded.values_list() == decoded.values.to_pylist() == values
    assert decoded.keys_list() == decoded.keys.to_pylist() == keys
    assert decoded.headers_list() == headers
    assert decoded.timestamps_ms.tolist() == (times if isinstance(times, list) else [times] * count)
    assert decoded.offsets.tolist() == list(range(count))
    assert len(decoded) == count


def _check_arrow(decoded: DecodedBatch) -> None:
    """Arrow itself finds nothing wrong, and all columns have the promised types."""
    for column in (decoded.values, decoded.keys):
        column.validate(full=True)
        assert column.type == pa.binary()
    if decoded.headers is not None:
        decoded.headers.validate(full=True)
        assert decoded.headers.type == HEADERS_TYPE
    assert decoded.offsets.dtype == decoded.timestamps_ms.dtype == np.int64


@given(records(), st.sampled_from(CODECS))
def test_lists_round_trip(given_records: dict[str, Any], codec: Codec) -> None:
    batch = RecordBatch(encode_batch(**given_records, codec=codec))
    decoded = decode(batch)
    _check(decoded, given_records)
    _check_arrow(decoded)


def _headers_array(headers: list[Any] | None) -> pa.Array | None:
    if headers is None:
        return None
    rows = [
        None if each is None else [{"key": key, "value": value} for key, value in each] for each in headers
    ]
    return pa.array(rows, HEADERS_TYPE)


@given(records(), st.sampled_from(CODECS), st.integers(0, 9), st.integers(0, 9))
def test_slices_of_arrow_arrays_round_trip(
    given_records: dict[str, Any], codec: Codec, before: int, after: int
) -> None:
    def slice_of(column: list[Any] | None, make: Any) -> pa.Array | None:
        if column is None:
            return None
        whole = make([column[-1]] * before + column + [column[0]] * after)
        return whole.slice(before, len(column))

    columns = {
        "values": slice_of(given_records["values"], lambda column: pa.array(column, pa.binary())),
        "keys": slice_of(given_records["keys"], lambda column: pa.array(column, pa.binary())),
        "headers": slice_of(given_records["headers"], _headers_array),
        "timestamps_ms": given_records["timestamps_ms"],
    }
    encoded = encode_batch(**columns, codec=codec)
    _check(decode(RecordBatch(encoded)), given_records)
    assert encoded.tobytes() == encode_batch(**given_records, codec=codec).tobytes()


@settings(max_examples=8)
@example(50_000, Codec.NONE, 1)
@example(50_000, Codec.ZSTD, 2)
@given(st.integers(1, 50_000), st.sampled_from(CODECS), st.integers(0, 2**32))
def test_batches_of_1_to_50_000_records_round_trip(count: int, codec: Codec, seed: int) -> None:
    source = random.Random(seed)
    pool = [source.randbytes(source.randrange(12)) for _ in range(50)]
    values = [pool[source.randrange(50)] if source.random() < 0.9 else None for _ in range(count)]
    times = [source.randrange(10**12) for _ in range(count)]
    expected = {"values": values, "keys": values[::-1], "headers": None, "timestamps_ms": times}
    _check(decode(RecordBatch(encode_batch(**expected, codec=codec))), expected)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view(), pa.binary(3),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)  # fmt: skip
def test_every_arrow_type_of_strings_is_taken(kind: pa.DataType) -> None:
    texts = pa.array(["abc", None, "def", "ghi"])
    column = texts.dictionary_encode() if pa.types.is_dictionary(kind) else texts.cast(pa.binary()).cast(kind)
    decoded = decode(RecordBatch(encode_batch(column.slice(1), timestamps_ms=0)))
    assert decoded.values_list() == [None, b"def", b"ghi"]


def test_a_chunked_column_of_a_table_is_taken() -> None:
    column = pa.chunked_array([[b"one"], [b"two", None]])
    decoded = decode(RecordBatch(encode_batch(column, keys=column, timestamps_ms=0)))
    assert decoded.values_list() == decoded.keys_list() == [b"one", b"two", None]


def test_timestamps_of_an_array_are_taken() -> None:
    encoded = encode_batch([b"a", b"b"], timestamps_ms=array("q", [7, 9]))
    assert decode(RecordBatch(encoded)).timestamps_ms.tolist() == [7, 9]


@pytest.mark.parametrize("times", [[7, 9, 8], [5, 5, 5], [-1, 0, 2**62], [-(2**63), 2**63 - 1]], ids=repr)
def test_timestamps_in_an_array_are_encoded_as_in_a_list(times: list[int]):
    values = [b"a"] * len(times)
    encoded = encode_batch(values, timestamps_ms=array("q", times))
    assert bytes(encoded) == bytes(encode_batch(values, timestamps_ms=np.array(times, np.int64)))
    assert decode(RecordBatch(encoded)).timestamps_ms.tolist() == times


def test_records_after_compaction_keep_their_offsets() -> None:
    encoded = encode_batch([b"a", b"b", b"c"], timestamps_ms=0, offset_deltas=[1, 4, 9])
    parts = RecordBatch(encoded).stamped(base_offset=100, leader_epoch=0)
    batch = RecordBatch(b"".join(bytes(part) for part in parts))
    assert decode(batch).offsets.tolist() == [101, 104, 109]
    assert batch.next_offset == 110


def test_an_uncompressed_batch_in_a_mapped_file_is_not_copied(tmp_path: Path) -> None:
    encoded = encode_batch([b"x" * 100] * 10, keys=[b"k"] * 10, timestamps_ms=0)
    path = tmp_path / "segment"
    path.write_bytes(encoded.tobytes() * 2)
    with path.open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    start = pa.py_buffer(view).address
    decoded = decode(RecordBatch(view[len(encoded) :]))
    for buffer in decoded.values.buffers()[1:] + decoded.keys.buffers()[1:]:
        assert start + len(encoded) < buffer.address < start + 2 * len(encoded)
        assert buffer.address % 8 == 0


def test_a_batch_at_an_odd_address_is_copied_to_an_aligned_one() -> None:
    encoded = encode_batch([b"one", b"two"], timestamps_ms=0)
    shifted = np.zeros(len(encoded) + 16, np.uint8)
    start = 3 - shifted.ctypes.data % 8 % 8 + 8
    shifted[start : start + len(encoded)] = encoded
    decoded = decode(RecordBatch(shifted[start : start + len(encoded)]))
    assert decoded.values_list() == [b"one", b"two"]
    assert decoded.values.buffers()[1].address % 8 == 0


def test_equal_records_give_equal_bytes() -> None:
    values = [b"one", None, b"three"] * 100
    for codec in CODECS:
        first, second = (encode_batch(values, timestamps_ms=1, codec=codec) for _ in range(2))
        assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize("bad", ["text", 5])
def test_a_value_that_is_not_bytes_is_refused(bad: Any, count: int) -> None:
    with pytest.raises(SerializationError, match="a value is bytes or None"):
        encode_batch([bad] * count, timestamps_ms=0)


def test_a_view_of_wider_items_is_refused_where_only_its_items_are_counted() -> None:
    with pytest.raises(SerializationError, match="wider items"):
        encode_batch([memoryview(array("i", [1, 2]))], timestamps_ms=0)


@pytest.mark.parametrize(
    "headers",
    [[[(b"bytes", b"x")]], [[("key", "text")]], [["no pair"]], [[("\ud800", b"")]], [[(None, b"")]]],
    ids=repr,
)
def test_a_header_that_is_not_text_and_bytes_is_refused(headers: Any) -> None:
    with pytest.raises(SerializationError, match="header"):
        encode_batch([b"x"], headers=headers, timestamps_ms=0)


@pytest.mark.parametrize(
    "headers",
    [
        pa.array([[1, 2]]),
        pa.array([[{"name": "x"}]]),
        pa.array([[{"key": None, "value": b"x"}]], HEADERS_TYPE),
        pa.array([[{"key": b"\xff", "value": b"x"}]]),
    ],
    ids=["numbers", "other fields", "null key", "not UTF-8"],
)
def test_an_array_that_is_not_of_headers_is_refused(headers: pa.Array) -> None:
    with pytest.raises(SerializationError, match="header"):
        encode_batch([b"x"], headers=headers, timestamps_ms=0)


@pytest.mark.parametrize(
    "timestamps_ms", [2**63, -(2**70), [1.5, 2.5], [0, 2**63], [None, 1], ["a", "b"]], ids=repr
)
def test_a_timestamp_that_is_no_64_bit_integer_is_refused(timestamps_ms: Any) -> None:
    with pytest.raises(SerializationError, match="timestamp"):
        encode_batch([b"x", b"y"], timestamps_ms=timestamps_ms)


def test_the_extremes_of_64_bits_round_trip() -> None:
    times = [2**63 - 1, -(2**63), 0]
    assert decode(RecordBatch(encode_batch([b""] * 3, timestamps_ms=times))).timestamps_ms.tolist() == times


def test_an_array_of_numbers_is_refused() -> None:
    with pytest.raises(SerializationError, match="expected binary or string, found int64"):
        encode_batch(pa.array([1, 2]), timestamps_ms=0)


@pytest.mark.parametrize("column", [{"keys": [b"k"]}, {"headers": [None]}, {"timestamps_ms": [1]}], ids=str)
def test_columns_of_unequal_length_are_refused(column: dict[str, Any]) -> None:
    with pytest.raises(SerializationError, match="2 values, but 1"):
        encode_batch([b"x", b"y"], **({"timestamps_ms": 0} | column))


def test_no_records_are_no_batch() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch([], timestamps_ms=0)


def test_snappy_is_refused() -> None:
    with pytest.raises(UnsupportedCompressionType, match="snappy is not supported"):
        encode_batch([b"x"], timestamps_ms=0, codec=Codec.SNAPPY)


def test_more_than_a_decoder_takes_is_refused() -> None:
    with pytest.raises(RecordTooLarge, match="at most 67108864 bytes uncompressed"):
        encode_batch([bytes(UNCOMPRESSED_BYTES_MAX // 2)] * 2, timestamps_ms=0, codec=Codec.ZSTD)


def test_columns_beyond_32_bit_offsets_are_refused() -> None:
    untouched = pa.py_buffer(mmap.mmap(-1, 3 << 30))  # address space only: nothing reads it
    wide = pa.Array.from_buffers(
        pa.large_binary(), 1, [None, pa.py_buffer(np.array([0, 3 << 30], np.int64)), untouched]
    )
    chunk = pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(np.array([0, 1 << 30], np.int32)), untouched]
    )
    for column in (wide, pa.chunked_array([chunk, chunk])):
        with pytest.raises(RecordTooLarge, match="below 2 GiB"):
            encode_batch(column, timestamps_ms=0)


def test_a_short_list_beyond_32_bit_offsets_is_refused() -> None:
    with pytest.raises(RecordTooLarge, match="below 2 GiB"):
        encode_batch([bytes(40 << 20)] * 60, timestamps_ms=0)


@given(
    st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)), min_size=1, max_size=12),
    st.data(),
)
def test_a_few_records_with_and_without_keys_are_encoded_as_any_others(records, data):
    """Short lists become columns in plain Python, Arrow arrays in numpy."""
    keys, values = [key for key, _ in records], [value for _, value in records]
    times = data.draw(st.lists(st.integers(0, 3), min_size=len(records), max_size=len(records)))
    for timestamps_ms in (times[0], array("q", times)):
        short = encode_batch(values, keys=keys, timestamps_ms=timestamps_ms, sequence=SEQUENCE)
        general = encode_batch(
            pa.array(values), keys=pa.array(keys), timestamps_ms=timestamps_ms, sequence=SEQUENCE
        )
        assert short.tobytes() == general.tobytes()
        without_keys = encode_batch(values, timestamps_ms=timestamps_ms, sequence=SEQUENCE)
        general = encode_batch(pa.array(values), timestamps_ms=timestamps_ms, sequence=SEQUENCE)
        assert without_keys.tobytes() == general.tobytes()


@pytest.mark.parametrize("wrong", ["text", 7, memoryview(array("i", [1]))])
def test_a_key_among_a_few_that_is_no_bytes_is_refused(wrong):
    with pytest.raises(SerializationError, match="a key is bytes or None"):
        encode_batch([b"a", b"b"], keys=[b"key", wrong], timestamps_ms=0)


def test_a_small_batch_owns_its_bytes():
    """A view of other bytes would be two more objects for the garbage collector, in each of thousands of batches."""
    batch = encode_batch([b"value"] * 3, keys=[b"key"] * 3, timestamps_ms=1)
    assert batch.flags.owndata
