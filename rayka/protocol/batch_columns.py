"""Makes columns from lists or Arrow arrays of records, for the encoder.

A column of byte strings is int32 offsets that begin at 0, the bytes, and a validity bitmap if an entry is null. A slice
of an Arrow array is read from its beginning; its bytes are not copied here. A short list never goes through `pa.array`.
A wrong type raises SerializationError.
"""

import sys
from array import array
from collections.abc import Sequence, Sized
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayka.errors import RecordTooLarge, SerializationError
from rayka.ports import Buffer

Values: TypeAlias = Sequence[bytes | None] | pa.Array
Headers: TypeAlias = Sequence[Sequence[tuple[str, bytes | None]] | None] | pa.Array
Timestamps: TypeAlias = int | Sequence[int] | np.ndarray

# Below this many values plain Python beats numpy.
SHORT_LIST = 100
_COLUMN_BYTES_MAX = 2**31 - 1
_TIMESTAMP_BOUND = 2**63
# Deltas of timestamps wrap, as int64 does.
_WRAP = 2**64
_BYTES_LIKE = (
    pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_large_string,
    pa.types.is_binary_view, pa.types.is_string_view, pa.types.is_fixed_size_binary, pa.types.is_null,
)  # fmt: skip
_LISTS = (
    pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list,
    pa.types.is_list_view, pa.types.is_large_list_view,
)  # fmt: skip
_PAIR = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])


class BytesColumn(NamedTuple):
    """A column of byte strings in Arrow's layout."""

    # A bitmap; None: no entry is null.
    validity: Buffer | None
    offsets: Buffer
    data: Buffer


class HeaderColumns(NamedTuple):
    """The headers of all records, one behind the other."""

    # From a record to its headers.
    offsets: Buffer
    keys: BytesColumn
    values: BytesColumn


class TimestampColumn(NamedTuple):
    """The timestamps of a batch."""

    base_ms: int
    max_ms: int
    # int64, from the base; None: all timestamps are equal.
    deltas: Buffer | None


def bytes_column(values: Values, name: str) -> BytesColumn:
    """Makes a column from a list of `bytes | None`, or an array of binary or string type. Errors name it by `name`."""
    if isinstance(values, list) or not isinstance(values, (pa.Array, pa.ChunkedArray)):
        if len(values) < SHORT_LIST or "pandas" not in sys.modules:
            return _from_list(values, name)
        values = _array_of(values, name)
    return _from_array(as_binary(values, name))


def header_columns(headers: Headers) -> HeaderColumns | None:
    """Makes columns from lists of (key, value), or a `list<struct<key, value>>` array; None without any header."""
    if isinstance(headers, (pa.Array, pa.ChunkedArray)):
        plain = as_header_array(headers)
        if plain is None:
            return None
        header_keys, header_values = plain.flatten().flatten()
        if not len(header_keys):
            return None
        offsets = np.zeros(len(plain) + 1, np.int32)
        np.cumsum(list_lengths(plain), out=offsets[1:])
        return _headers(offsets.view(np.uint8), header_keys, header_values)
    pairs = [pair for each in headers if each for pair in each]
    if not pairs:
        return None
    try:
        keys = [key.encode() for key, _ in pairs]
    except (AttributeError, TypeError, ValueError) as error:
        raise SerializationError(f"a header is a pair of a str and bytes or None: {error}") from error
    values = [value for _, value in pairs]
    return _headers(_offsets([each or () for each in headers])[0], keys, values)


def timestamp_column(timestamps_ms: Timestamps, count: int) -> TimestampColumn:
    """Makes a column from one timestamp for all records, or one each. Does not copy `array("q")` and numpy arrays."""
    if isinstance(timestamps_ms, int):
        if not -_TIMESTAMP_BOUND <= timestamps_ms < _TIMESTAMP_BOUND:
            raise SerializationError(f"a timestamp is an integer of 64 bits, found {timestamps_ms}")
        return TimestampColumn(timestamps_ms, timestamps_ms, None)
    check_length("timestamps", len(timestamps_ms), count)
    if count < SHORT_LIST and isinstance(timestamps_ms, array) and timestamps_ms.typecode == "q":
        return _few_timestamps(timestamps_ms)
    found = np.asarray(timestamps_ms)
    # Floats, unsigned integers, or integers beyond 64 bits.
    if found.dtype.kind != "i":
        raise SerializationError(f"timestamps are integers of 64 bits, found {found.dtype}")
    timestamps = found.astype(np.int64, copy=False)
    base_ms = int(timestamps[0])
    deltas = timestamps - base_ms
    return TimestampColumn(base_ms, int(timestamps.max()), deltas.view(np.uint8) if deltas.any() else None)


def _few_timestamps(timestamps_ms: "array[int]") -> TimestampColumn:
    base_ms, min_ms, max_ms = timestamps_ms[0], min(timestamps_ms), max(timestamps_ms)
    if min_ms == max_ms:
        return TimestampColumn(base_ms, max_ms, None)
    deltas = [each - base_ms for each in timestamps_ms]
    if max_ms - min_ms >= _WRAP // 2:
        deltas = [(each + _WRAP // 2) % _WRAP - _WRAP // 2 for each in deltas]
    return TimestampColumn(base_ms, max_ms, array("q", deltas).tobytes())


def check_length(name: str, length: int, count: int) -> None:
    """Raises SerializationError unless a column has one entry for each value."""
    if length != count:
        raise SerializationError(f"{count} values, but {length} {name}")


def _headers(offsets: Buffer, keys: Values, values: Values) -> HeaderColumns:
    return HeaderColumns(offsets, bytes_column(keys, "header key"), bytes_column(values, "header value"))


def _array_of(values: Sequence[bytes | None], name: str) -> pa.Array:
    try:
        inferred = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SerializationError(f"a {name} is bytes or None: {error}") from error
    if inferred.type != pa.binary() and not pa.types.is_null(inferred.type):
        raise SerializationError(f"a {name} is bytes or None, found {inferred.type}")
    return inferred


def _from_list(values: Sequence[bytes | None], name: str) -> BytesColumn:
    """A column made without `pa.array`, which is faster with many values but imports pandas: 0.9 s in which no caller
    is served.
    """
    try:
        (offsets, end), data = _offsets(values), b"".join(values)  # type: ignore[arg-type]
    except TypeError as error:
        if None not in values:
            raise SerializationError(f"a {name} is bytes or None: {error}") from error
        column = _from_list([b"" if value is None else value for value in values], name)
        validity = np.packbits([value is not None for value in values], bitorder="little")
        return column._replace(validity=validity)
    # A memoryview counts items, which may be wider than bytes.
    if end != len(data):
        raise SerializationError(f"a {name} is bytes or None, found a buffer of wider items")
    return BytesColumn(None, offsets, data)


def binary_array(values: Sequence[bytes | None], name: str = "value") -> pa.BinaryArray:
    """Makes an Arrow array from a list, without `pa.array`. Raises SerializationError and RecordTooLarge."""
    column = _from_list(values, name)
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def int64_array(values: np.ndarray) -> pa.Int64Array:
    """A view of int64 values as an Arrow array, without `pa.array`."""
    data = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(data), [None, pa.py_buffer(data)])


def _offsets(values: Sequence[Sized]) -> tuple[Buffer, int]:
    """The begin of each value and the end of the last as int32, and this end as a number."""
    if len(values) < SHORT_LIST:
        try:
            few = array("i", (0, *accumulate(map(len, values))))
        except OverflowError as error:
            raise RecordTooLarge("a column of a batch ends below 2 GiB") from error
        return few.tobytes(), few[-1]
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    if offsets[-1] > _COLUMN_BYTES_MAX:
        raise RecordTooLarge("a column of a batch ends below 2 GiB")
    return offsets.astype(np.int32).view(np.uint8), int(offsets[-1])


def as_binary(values: pa.Array, name: str) -> pa.Array:
    """Converts a column to one array of binary with 32-bit offsets. Raises SerializationError for other types, and
    RecordTooLarge from 2 GiB on.
    """
    if isinstance(values, pa.ChunkedArray):
        values = _one_chunk(values, name)
    if values.type == pa.binary():
        return values
    if not _is_bytes_like(values.type):
        raise SerializationError(f"column {name!r}: expected binary or string, found {values.type}")
    try:
        if pa.types.is_dictionary(values.type):
            # In two steps, because Arrow cannot decode a dictionary of views.
            plain = pa.DictionaryArray.from_arrays(values.indices, as_binary(values.dictionary, name))
            return plain.dictionary_decode()
        return values.cast(pa.binary())
    except pa.ArrowInvalid as error:
        raise RecordTooLarge(f"the {name} column of a batch ends below 2 GiB: {error}") from error


def as_header_array(headers: pa.Array) -> pa.Array | None:
    """Converts headers to one array of `list<struct<key: string, value: binary>>`; None for a column of type null.

    Takes every kind of list, and maps; keys and values of every type that `as_binary` takes. Returns an array of the
    plain type unchanged. Raises SerializationError, also for a header without a key.
    """
    if isinstance(headers, pa.ChunkedArray):
        headers = _one_chunk(headers, "headers")
    if pa.types.is_null(headers.type):
        return None
    header_type = headers.type
    # Arrow neither flattens nor measures maps.
    if pa.types.is_map(header_type):
        pair = pa.struct([pa.field("key", header_type.key_type), pa.field("value", header_type.item_type)])
        headers = headers.cast(pa.list_(pair))
    is_list = any(is_kind(headers.type) for is_kind in _LISTS)
    pair = headers.type.value_type if is_list else None
    fields = list(pair) if pair is not None and pa.types.is_struct(pair) else []
    if [each.name for each in fields] != ["key", "value"] or not all(
        _is_bytes_like(each.type) for each in fields
    ):
        raise SerializationError(
            f"column 'headers': expected list<struct<key: string, value: binary>>, found {header_type}"
        )
    keys, values = headers.flatten().flatten()
    if keys.null_count:
        raise SerializationError("column 'headers': expected a key in every header, found null")
    if pa.types.is_list(headers.type) and pair == _PAIR:
        return headers
    columns = [_as_text(as_binary(keys, "header key")), as_binary(values, "header value")]
    return list_array(list_lengths(headers), pa.StructArray.from_arrays(columns, fields=list(_PAIR)))


def list_array(lengths: Sequence[int] | np.ndarray, items: pa.Array) -> pa.ListArray:
    """Makes lists of these lengths from the items in order. Not by `ListArray.from_arrays`, which imports pandas."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(items.type), len(lengths), buffers, children=[items])


def list_lengths(lists: pa.Array) -> np.ndarray:
    """The number of items of each list; 0 for a null list."""
    if pa.types.is_list(lists.type) and not lists.null_count:
        return offset_steps(lists)
    return np.asarray(pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def offset_steps(array: pa.Array) -> np.ndarray:
    """The length of each value of an array without nulls that has offsets of 32 bits."""
    return np.diff(np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4))


def _one_chunk(values: pa.ChunkedArray, name: str) -> pa.Array:
    if values.nbytes > _COLUMN_BYTES_MAX:
        raise RecordTooLarge(f"the {name} column of a batch ends below 2 GiB, found {values.nbytes} bytes")
    return values.combine_chunks()


def _is_bytes_like(data_type: pa.DataType) -> bool:
    """Whether a column of the type converts to byte strings."""
    if pa.types.is_dictionary(data_type):
        return _is_bytes_like(data_type.value_type)
    return any(is_kind(data_type) for is_kind in _BYTES_LIKE)


def _from_array(values: pa.Array) -> BytesColumn:
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(values) + 1, values.offset * 4)
    begin, end = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(data_buffer, np.uint8, end - begin, begin) if end > begin else b""
    rebased = offsets - np.int32(begin) if begin else offsets
    # Packed anew: a slice may begin at any bit of the array's bitmap.
    validity = np.packbits(is_valid(values), bitorder="little") if values.null_count else None
    return BytesColumn(validity, rebased.view(np.uint8), data)


def is_valid(values: pa.Array) -> np.ndarray:
    """For each value whether it is not null. Not by `to_numpy`, whose first call imports pandas, for a second."""
    valid = values.is_valid()
    bits = np.frombuffer(valid.buffers()[1], np.uint8)
    return np.unpackbits(bits, count=valid.offset + len(valid), bitorder="little")[valid.offset :].view(bool)


def _as_text(keys: pa.Array) -> pa.Array:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise SerializationError(f"a header key is text: {error}") from error
