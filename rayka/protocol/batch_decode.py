"""Decodes the bytes of one batch to Arrow columns, or to plain lists.

An uncompressed batch becomes arrays that view its bytes: no copy, also over a mapped file, which stays mapped as long
as an array lives. Everything that the arrays rely on is checked first: a batch with a good CRC and a body that
contradicts itself is CorruptRecord, never a read outside its bytes.

Kafka: `DefaultRecordBatch.iterator`.
"""

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from rayka.errors import CorruptRecord
from rayka.ports import Buffer
from rayka.protocol.batch_encode import UNCOMPRESSED_BYTES_MAX
from rayka.protocol.batch_format import (
    ALIGNMENT_BYTES,
    HEADER_BYTES,
    Codec,
    Column,
    RecordBatch,
    TimestampType,
    aligned,
    decompress,
    frame_after,
    parse_contents,
)

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Header = tuple[str, bytes | None]
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_KEPT_NULLS = 1 << 14
# Up to this length a list is faster to look through than an array.
_FEW = 64


class DecodedBatch:
    """The records of one batch as columns of equal length, in offset order."""

    __slots__ = ("_keys", "_offset_deltas", "_timestamps_ms", "batch", "headers", "values")

    def __init__(self, batch: RecordBatch, block: "_Block") -> None:
        count = batch.record_count
        self.batch = batch
        self.values: pa.BinaryArray = block.take_binary(Column.VALUE_VALIDITY, count)
        # None: all keys are null.
        self._keys = block.take_binary(Column.KEY_VALIDITY, count) if block.has(Column.KEY_OFFSETS) else None
        # A `list<struct<key: string, value: binary>>`; None: no record has headers.
        self.headers: pa.ListArray | None = (
            _take_headers(block, count) if block.has(Column.HEADER_OFFSETS) else None
        )
        # None: all are the batch's max timestamp.
        self._timestamps_ms = _take_timestamps(block, batch)
        # None: the offsets have no gaps.
        self._offset_deltas = _take_offset_deltas(block, batch)
        if batch.has_null_key != (self._keys is None or self._keys.null_count > 0):
            raise CorruptRecord(
                f"{batch.summary} says has_null_key={batch.has_null_key}, its keys say otherwise"
            )

    def __len__(self) -> int:
        return self.batch.record_count

    @property
    def keys(self) -> pa.BinaryArray:
        """The keys; all null if the batch has no column of keys."""
        return nulls(pa.binary(), len(self)) if self._keys is None else self._keys

    @property
    def offsets(self) -> np.ndarray:
        """The records' offsets, int64, computed at each call."""
        if self._offset_deltas is None:
            return np.arange(self.batch.base_offset, self.batch.next_offset, dtype=np.int64)
        return self._offset_deltas + np.int64(self.batch.base_offset)

    @property
    def timestamps_ms(self) -> np.ndarray:
        """The records' timestamps, int64; all are the max timestamp where the log set the timestamps (F2)."""
        if self._timestamps_ms is None:
            return np.full(len(self), self.batch.max_timestamp_ms, np.int64)
        return self._timestamps_ms

    def values_list(self) -> list[bytes | None]:
        values: list[bytes | None] = self.values.to_pylist()
        return values

    def keys_list(self) -> list[bytes | None]:
        return [None] * len(self) if self._keys is None else self._keys.to_pylist()

    def headers_list(self) -> list[list[Header]]:
        """The headers of each record in order; a new empty list for a record without headers."""
        if self.headers is None:
            return [[] for _ in range(len(self))]
        keys, values = (column.to_pylist() for column in self.headers.values.flatten())
        pairs = list(zip(keys, values, strict=True))
        return [pairs[begin:end] for begin, end in pairwise(self.headers.offsets.to_pylist())]


def nulls(data_type: pa.DataType, count: int) -> pa.Array:
    """An array of `count` nulls; a short one is a view of a cached array."""
    return pa.nulls(count, data_type) if count > _KEPT_NULLS else _kept_nulls(data_type).slice(0, count)


@lru_cache(maxsize=4)
def _kept_nulls(data_type: pa.DataType) -> pa.Array:
    return pa.nulls(_KEPT_NULLS, data_type)


def decode(
    batch: RecordBatch, *, check_crc: bool = True, uncompressed_bytes_max: int = UNCOMPRESSED_BYTES_MAX
) -> DecodedBatch:
    """Decodes a batch's columns. Views an uncompressed batch, and copies it only if its memory is not 8-aligned.

    Raises CorruptRecord when the CRC or the body is wrong; when the body would exceed `uncompressed_bytes_max`, before
    anything is decompressed. Raises UnsupportedCompressionType for snappy.
    """
    if check_crc:
        batch.check_crc()
    body = batch.view[HEADER_BYTES:]
    try:
        block = _Block(body, batch.codec, uncompressed_bytes_max)
        decoded = DecodedBatch(batch, block)
        block.check_all_taken()
    except CorruptRecord as error:
        raise CorruptRecord(f"{batch.summary}: {error}") from error
    return decoded


class _Block:
    """The decompressed columns of one batch; each column is taken once."""

    def __init__(self, body: memoryview, codec: Codec, uncompressed_bytes_max: int) -> None:
        contents = parse_contents(body)
        if contents.uncompressed_bytes > uncompressed_bytes_max:
            raise CorruptRecord(
                f"{contents.uncompressed_bytes} bytes uncompressed exceed {uncompressed_bytes_max}"
            )
        self._columns = contents.columns
        block: Buffer = body[aligned(contents.end) :]
        if codec is not Codec.NONE:
            block = decompress(codec, frame_after(body, contents.end), contents.uncompressed_bytes)
        if len(block) != contents.uncompressed_bytes:
            raise CorruptRecord(f"the columns fill {contents.uncompressed_bytes} bytes, found {len(block)}")
        buffer = pa.py_buffer(block)
        # Arrow needs buffers at multiples of 8. Batches are read to such addresses, so the copy is rare.
        self._buffer = pa.py_buffer(bytes(block)) if buffer.address % ALIGNMENT_BYTES else buffer

    def has(self, column: int) -> bool:
        return column in self._columns

    def take(self, column: int, size_bytes: int | None = None) -> pa.Buffer:
        """Takes a column's bytes; raises CorruptRecord when the column is missing or has another size."""
        begin, length = self._columns.pop(column, (0, -1))
        if length < 0 or (size_bytes is not None and length != size_bytes):
            raise CorruptRecord(f"column {Column(column).name} has {length} bytes, expected {size_bytes}")
        return self._buffer.slice(begin, length)

    def take_integers(self, column: int, kind: np.dtype[Any], count: int) -> np.ndarray:
        return np.frombuffer(self.take(column, count * kind.itemsize), kind)

    def take_offsets(self, column: int, count: int) -> tuple[pa.Buffer, int]:
        """Takes the int32 offsets of `count` entries, and returns the last offset too, which is the end of the data.
        Raises CorruptRecord unless the offsets begin at 0 and never fall.
        """
        offsets = self.take(column, (count + 1) * _INT32.itemsize)
        if count < _FEW:
            few = memoryview(offsets).cast("i").tolist()
            first, end, is_rising = few[0], few[-1], few == sorted(few)
        else:
            many = np.frombuffer(offsets, _INT32)
            first, end, is_rising = int(many[0]), int(many[-1]), not (many[1:] < many[:-1]).any()
        if first or not is_rising:
            raise CorruptRecord(f"column {Column(column).name} does not begin at 0 or falls")
        return offsets, end

    def take_binary(self, column: int, count: int) -> pa.BinaryArray:
        """Takes the columns validity (if it exists), offsets and data as one array; `column` is the id of the
        validity.
        """
        bitmap = self.take(column, (count + 7) // 8) if self.has(column) else None
        offsets, data = self.take_strings(column + 1, count)
        null_count = 0 if bitmap is None else -1
        return pa.Array.from_buffers(pa.binary(), count, [bitmap, offsets, data], null_count)

    def take_strings(self, column: int, count: int) -> tuple[pa.Buffer, pa.Buffer]:
        """Takes offsets and data of `count` byte strings; the data ends where the last string does."""
        offsets, end = self.take_offsets(column, count)
        return offsets, self.take(column + 1, end)

    def check_all_taken(self) -> None:
        if self._columns:
            raise CorruptRecord(f"columns {sorted(self._columns)} belong to nothing")


def _take_headers(block: _Block, count: int) -> pa.ListArray:
    offsets, header_count = block.take_offsets(Column.HEADER_OFFSETS, count)
    keys = pa.Array.from_buffers(
        pa.string(), header_count, [None, *block.take_strings(Column.HEADER_KEY_OFFSETS, header_count)]
    )
    values = block.take_binary(Column.HEADER_VALUE_VALIDITY, header_count)
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptRecord(f"header keys are not UTF-8: {error}") from error
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    return pa.ListArray.from_buffers(HEADERS_TYPE, count, [None, offsets], children=[pairs])


def _take_timestamps(block: _Block, batch: RecordBatch) -> np.ndarray | None:
    """The records' timestamps; None if all are the batch's max timestamp."""
    deltas = None
    if block.has(Column.TIMESTAMP_DELTAS):
        deltas = block.take_integers(Column.TIMESTAMP_DELTAS, _INT64, batch.record_count)
    if batch.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return None
    timestamps = None if deltas is None else deltas + batch.base_timestamp_ms
    if timestamps is None:
        max_ms = batch.base_timestamp_ms
    else:
        max_ms = int(timestamps.max()) if len(timestamps) > _FEW else max(timestamps.tolist())
    if max_ms != batch.max_timestamp_ms:
        raise CorruptRecord(f"max timestamp {batch.max_timestamp_ms}, but the largest is {max_ms}")
    return timestamps


def _take_offset_deltas(block: _Block, batch: RecordBatch) -> np.ndarray | None:
    """The records' offsets from the base offset; None if they have no gaps."""
    last = batch.last_offset_delta
    if batch.record_count == 0:
        return np.empty(0, _INT32)
    if not block.has(Column.OFFSET_DELTAS):
        if last != batch.record_count - 1:
            raise CorruptRecord(f"last offset delta {last} without offset deltas")
        return None
    deltas = block.take_integers(Column.OFFSET_DELTAS, _INT32, batch.record_count)
    if deltas[0] < 0 or deltas[-1] > last or (deltas[1:] <= deltas[:-1]).any():
        raise CorruptRecord(f"offset deltas do not rise from 0 to {last}")
    return deltas
