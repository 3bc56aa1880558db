"""Records into the bytes of one batch: a numpy array that crosses Ray and reaches the disk without a copy.

Guarantees: the result decodes to the records given; equal records and codec give equal bytes; the CRC covers
the padding, which is zero, and producer id, epoch and sequence, which are the producer's. Base offset 0, no
leader epoch: the leader stamps these. A batch holds at least one record, and at most `UNCOMPRESSED_BYTES_MAX`
before compression, which is what a decoder takes.

Kafka: `MemoryRecordsBuilder`; `batch_rebuild` has what compaction writes. Left out: transactions.
"""

from collections.abc import Sequence
from struct import Struct

import numpy as np
from crc32c import crc32c

from rayka.errors import RecordTooLarge
from rayka.ids import NO_EPOCH
from rayka.ports import Buffer
from rayka.protocol.batch_columns import (
    SHORT_LIST,
    BytesColumn,
    HeaderColumns,
    Headers,
    TimestampColumn,
    Timestamps,
    Values,
    bytes_column,
    check_length,
    header_columns,
    timestamp_column,
)
from rayka.protocol.batch_contents import Column, aligned, pack_contents
from rayka.protocol.batch_header import (
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
    ProducerSequence,
    bytes_view,
)
from rayka.protocol.compression import compress
from rayka.protocol.few_records import encode_few, encode_few_without_keys

UNCOMPRESSED_BYTES_MAX = 64 << 20

_SMALL_BYTES_MAX = 64 << 10
_NO_HEADER = bytes(HEADER_BYTES)
_PADDING = [bytes(count) for count in range(ALIGNMENT_BYTES)]
_CRC = Struct(">I")
_CRC_POSITION = 17
_SEQUENCE = Struct(">qhi")
_SEQUENCE_POSITION = 43

_KEY, _VALUE = int(Column.KEY_VALIDITY), int(Column.VALUE_VALIDITY)

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
    """One batch as a contiguous `uint8` array whose length is a multiple of 8.

    values, keys: lists of `bytes | None`, or Arrow arrays of binary or string type, slices included; keys
    None: all null.
    headers: for each record a sequence of (str, bytes | None) or None, or a `list<struct<key, value>>` array.
    timestamps_ms: one for all records, or one for each (`array("q")` and numpy int64 without a copy).
    offset_deltas: rising offsets from the base, only where compaction made gaps.
    sequence: which producer it is of and where it stands among its batches (C1).

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
    is_usual = headers is None and offset_deltas is None and not is_control and codec is Codec.NONE
    if is_usual and count < SHORT_LIST and type(values) is list:
        few = None
        if type(keys) is list:
            few = encode_few(values, keys, timestamps, sequence)
        elif keys is None:
            few = encode_few_without_keys(values, timestamps, sequence)
        if few is not None:
            return _owned(few)
    key_column = None if keys is None else bytes_column(keys, "key")
    columns = [
        *bytes_columns(_KEY, key_column),
        *bytes_columns(_VALUE, bytes_column(values, "value")),
        *columns_of_headers(None if headers is None else header_columns(headers)),
        *_delta_columns(timestamps, offset_deltas),
    ]
    has_null_key = key_column is None or key_column.validity is not None
    batch = with_body(columns, codec)
    attributes = codec | CONTROL_BIT * is_control | NULL_KEY_BIT * has_null_key
    last_offset_delta = count - 1 if offset_deltas is None else offset_deltas[-1]
    times_ms = (timestamps.base_ms, timestamps.max_ms)
    write_header(batch, 0, NO_EPOCH, attributes, last_offset_delta, *times_ms, *sequence, count)
    return np.frombuffer(batch, np.uint8) if isinstance(batch, bytearray) else batch


def with_sequence(batch: np.ndarray, sequence: ProducerSequence) -> np.ndarray:
    """A copy of an encoded batch under another sequence: the old bytes may still be on their way to a broker."""
    copy = batch.copy()
    _SEQUENCE.pack_into(bytes_view(copy), _SEQUENCE_POSITION, *sequence)
    write_crc(copy)
    return copy


def _owned(data: bytearray) -> np.ndarray:
    """A copy that owns its bytes. A view of them would hold two objects that the garbage collector tracks, and a
    producer of many partitions has thousands of batches. By way of `data`, for numpy's own copy releases the
    interpreter's lock.
    """
    array = np.empty(len(data), np.uint8)
    array.data[:] = data
    return array


def bytes_columns(first: int, column: BytesColumn | None) -> Columns:
    """The validity, the offsets and the data, whose column ids follow one another."""
    if column is None:
        return []
    present = [(first + 1, column.offsets), (first + 2, column.data)]
    return present if column.validity is None else [(first, column.validity), *present]


def columns_of_headers(headers: HeaderColumns | None) -> Columns:
    if headers is None:
        return []
    keys = [(Column.HEADER_KEY_OFFSETS, headers.keys.offsets), (Column.HEADER_KEY_DATA, headers.keys.data)]
    return [
        (Column.HEADER_OFFSETS, headers.offsets),
        *keys,
        *bytes_columns(Column.HEADER_VALUE_VALIDITY, headers.values),
    ]


def _delta_columns(timestamps: TimestampColumn, offset_deltas: Sequence[int] | None) -> Columns:
    columns: Columns = []
    if timestamps.deltas is not None:
        columns.append((Column.TIMESTAMP_DELTAS, timestamps.deltas))
    if offset_deltas is not None:
        columns.append((Column.OFFSET_DELTAS, np.asarray(offset_deltas, np.int32).view(np.uint8)))
    return columns


def with_body(columns: Columns, codec: Codec) -> np.ndarray | bytearray:
    """The whole batch with its body written, its header still zero."""
    lengths = [(column, len(data)) for column, data in columns]
    uncompressed_bytes = sum([aligned(length) for _, length in lengths])
    if uncompressed_bytes > UNCOMPRESSED_BYTES_MAX:
        raise RecordTooLarge(
            f"a batch holds at most {UNCOMPRESSED_BYTES_MAX} bytes uncompressed, found {uncompressed_bytes}"
        )
    contents = pack_contents(uncompressed_bytes, lengths)
    block_begin = HEADER_BYTES + len(contents)
    if codec is Codec.NONE and uncompressed_bytes <= _SMALL_BYTES_MAX:
        return _joined(contents, columns)
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


def _joined(contents: bytes, columns: Columns) -> bytearray:
    """A small batch, its header still zero. Not by `numpy.zeros`, which releases the interpreter's lock above 1 KB: a
    busy thread then keeps the lock for 5 ms, far longer than encoding a small batch takes.
    """
    parts: list[Buffer] = [
        _NO_HEADER,
        contents,
        _PADDING[-(HEADER_BYTES + len(contents)) % ALIGNMENT_BYTES],
    ]
    for _, data in columns:
        parts += (data, _PADDING[-len(data) % ALIGNMENT_BYTES])
    return bytearray().join(parts)  # type: ignore[arg-type]  # numpy arrays are buffers too


def _fill(block: memoryview, columns: Columns) -> None:
    position = 0
    for _, data in columns:
        block[position : position + len(data)] = bytes_view(data)
        position += aligned(len(data))


def write_header(batch: np.ndarray | bytearray, base_offset: int, leader_epoch: int, *fields: int) -> None:
    """Writes the header of a body; `fields` are those from the attributes to the record count."""
    length = len(batch) - LENGTH_FIELD_END
    HEADER.pack_into(bytes_view(batch), 0, base_offset, length, leader_epoch, MAGIC, 0, *fields, RESERVED)
    write_crc(batch)


def write_crc(batch: np.ndarray | bytearray) -> None:
    """The CRC of what stands behind it now."""
    view = bytes_view(batch)
    _CRC.pack_into(view, _CRC_POSITION, crc32c(view[CRC_START:]))
