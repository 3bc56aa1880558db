"""Encodes records to one batch: a numpy array that crosses Ray and reaches the disk without a copy.

Guarantees: the result decodes to the same records; equal records and codec give equal bytes; padding is zero; the CRC
covers the padding, and the producer's id, epoch and sequence. The base offset is 0 and the leader epoch NO_EPOCH: the
leader stamps both. A batch holds at least one record, and at most `UNCOMPRESSED_BYTES_MAX` before compression, which is
the most that a decoder takes.

Kafka: `MemoryRecordsBuilder`. Left out: transactions.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any

import numpy as np
from crc32c import crc32c

from rayka.errors import RecordTooLarge
from rayka.ids import NO_EPOCH
from rayka.ports import Buffer
from rayka.protocol.batch_columns import (
    BytesColumn,
    HeaderColumns,
    Headers,
    Timestamps,
    Values,
    bytes_column,
    check_length,
    header_columns,
    timestamp_column,
)
from rayka.protocol.batch_format import (
    ALIGNMENT_BYTES,
    CONTROL_BIT,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_FIELD_END,
    MAGIC,
    NO_SEQUENCE,
    NULL_KEY_BIT,
    RESERVED,
    Codec,
    Column,
    ProducerSequence,
    aligned,
    bytes_view,
    compress,
    pack_contents,
)

UNCOMPRESSED_BYTES_MAX = 64 << 20

# A batch up to this size is joined, not filled.
_SMALL_BYTES_MAX = 64 << 10
_NO_HEADER = bytes(HEADER_BYTES)
_PADDING = [bytes(count) for count in range(ALIGNMENT_BYTES)]
_CRC, _CRC_POSITION = Struct(">I"), 17
_SEQUENCE, _SEQUENCE_POSITION = Struct(">qhi"), 43

# Column ids and their bytes, ids rising.
Columns = list[tuple[int, Buffer]]


def encode_batch(
    values: Values,
    *,
    timestamps_ms: Timestamps,
    keys: Values | None = None,
    headers: Headers | None = None,
    codec: Codec = Codec.NONE,
    is_control: bool = False,
    offset_deltas: Sequence[int] | None = None,
    sequence: ProducerSequence = NO_SEQUENCE,
) -> np.ndarray:
    """Encodes one batch to a contiguous `uint8` array whose length is a multiple of 8.

    values, keys: lists of `bytes | None`, or Arrow arrays of binary or string type, slices included. keys None: all are
    null.

    headers: for each record a sequence of (str, bytes | None) or None, or a `list<struct<key, value>>` array.

    timestamps_ms: one for all records, or one for each (`array("q")` and numpy int64 without a copy).

    offset_deltas: rising offsets from the base, only where compaction made gaps.

    sequence: the producer, and the batch's place among the producer's batches (C1).

    Raises SerializationError (wrong types, columns of unequal length), RecordTooLarge (the uncompressed
    columns exceed UNCOMPRESSED_BYTES_MAX) or UnsupportedCompressionType (snappy).
    """
    count = len(values)
    if not count:
        raise ValueError("a batch holds at least one record")
    if keys is not None:
        check_length("keys", len(keys), count)
    if headers is not None:
        check_length("headers", len(headers), count)
    timestamps = timestamp_column(timestamps_ms, count)
    key_column = None if keys is None else bytes_column(keys, "key")
    columns: Columns = [] if key_column is None else bytes_columns(Column.KEY_VALIDITY, key_column)
    columns += bytes_columns(Column.VALUE_VALIDITY, bytes_column(values, "value"))
    if headers is not None:
        columns += columns_of_headers(header_columns(headers))
    if timestamps.deltas is not None:
        columns.append((Column.TIMESTAMP_DELTAS, timestamps.deltas))
    if offset_deltas is not None:
        columns.append((Column.OFFSET_DELTAS, np.asarray(offset_deltas, np.int32).view(np.uint8)))
    has_null_key = key_column is None or key_column.validity is not None
    batch = with_body(columns, codec)
    attributes = codec | CONTROL_BIT * is_control | NULL_KEY_BIT * has_null_key
    last_offset_delta = count - 1 if offset_deltas is None else offset_deltas[-1]
    times_ms = (timestamps.base_ms, timestamps.max_ms)
    write_header(batch, 0, NO_EPOCH, attributes, last_offset_delta, *times_ms, *sequence, count)
    return _owned(batch) if isinstance(batch, bytearray) else batch


def with_sequence(batch: np.ndarray, sequence: ProducerSequence) -> np.ndarray:
    """A copy of an encoded batch with another sequence. A copy, because the old bytes may still be on their way to a
    broker.
    """
    copy = batch.copy()
    _SEQUENCE.pack_into(copy.data, _SEQUENCE_POSITION, *sequence)
    write_crc(copy)
    return copy


def _owned(data: bytearray) -> np.ndarray:
    """A copy as an array that owns its bytes. A view of the data would be two objects for the garbage collector, in
    each of thousands of batches.
    """
    array = np.empty(len(data), np.uint8)
    # Through `array.data`, because numpy's own copy releases the interpreter's lock.
    array.data[:] = data
    return array


def bytes_columns(first: int, column: BytesColumn) -> Columns:
    """The columns validity, offsets and data; `first` is the id of the validity, the others follow."""
    present = [(first + 1, column.offsets), (first + 2, column.data)]
    return present if column.validity is None else [(first, column.validity), *present]


def columns_of_headers(headers: HeaderColumns | None) -> Columns:
    """The columns of headers; none without headers."""
    if headers is None:
        return []
    keys = [(Column.HEADER_KEY_OFFSETS, headers.keys.offsets), (Column.HEADER_KEY_DATA, headers.keys.data)]
    return [
        (Column.HEADER_OFFSETS, headers.offsets),
        *keys,
        *bytes_columns(Column.HEADER_VALUE_VALIDITY, headers.values),
    ]


def with_body(columns: Columns, codec: Codec) -> np.ndarray | bytearray:
    """A whole batch whose body is written and whose header is still zero."""
    lengths: list[tuple[int, int]] = []
    parts: list[Any] = []
    uncompressed_bytes = 0
    for column, data in columns:
        length = len(data)
        lengths += ((column, length),)
        parts += (data, _PADDING[-length & 7])
        uncompressed_bytes += length + 7 & -8
    if uncompressed_bytes > UNCOMPRESSED_BYTES_MAX:
        raise RecordTooLarge(
            f"a batch holds at most {UNCOMPRESSED_BYTES_MAX} bytes uncompressed, found {uncompressed_bytes}"
        )
    contents = pack_contents(uncompressed_bytes, lengths)
    block_begin = HEADER_BYTES + len(contents)
    if codec is Codec.NONE and uncompressed_bytes <= _SMALL_BYTES_MAX:
        # Not by `numpy.zeros`, which releases the interpreter's lock above 1 KB: a busy thread then keeps the lock for
        # 5 ms, far longer than encoding a small batch takes.
        padding = _PADDING[-block_begin & 7]
        return bytearray().join((_NO_HEADER, contents, padding, *parts))
    if codec is Codec.NONE:
        batch = np.zeros(aligned(block_begin) + uncompressed_bytes, np.uint8)
        view = bytes_view(batch)
        _fill(view[aligned(block_begin) :], columns)
    else:
        block = np.zeros(uncompressed_bytes, np.uint8)
        _fill(bytes_view(block), columns)
        frame = compress(codec, bytes_view(block))
        batch = np.zeros(aligned(block_begin + len(frame)), np.uint8)
        view = bytes_view(batch)
        view[len(view) - len(frame) :] = bytes_view(frame)
    view[HEADER_BYTES:block_begin] = contents
    return batch


def _fill(block: memoryview, columns: Columns) -> None:
    position = 0
    for _, data in columns:
        block[position : position + len(data)] = bytes_view(data)
        position += aligned(len(data))


def write_header(batch: np.ndarray | bytearray, base_offset: int, leader_epoch: int, *fields: int) -> None:
    """Writes the header; `fields` are the fields from the attributes to the record count."""
    length = len(batch) - LENGTH_FIELD_END
    # numpy arrays are buffers too.
    buffer: bytearray = batch  # type: ignore[assignment]
    HEADER.pack_into(buffer, 0, base_offset, length, leader_epoch, MAGIC, 0, *fields, RESERVED)
    write_crc(batch)


def write_crc(batch: np.ndarray | bytearray) -> None:
    """Writes the CRC of the bytes behind the CRC."""
    buffer: bytearray = batch  # type: ignore[assignment]
    _CRC.pack_into(buffer, _CRC_POSITION, crc32c(memoryview(buffer)[CRC_START:]))
