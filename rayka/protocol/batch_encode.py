"""Records into the bytes of one batch: a numpy array that crosses Ray and reaches the disk without a copy.

Guarantees: the result decodes to the records given; equal records and codec give equal bytes; the CRC covers
the padding, which is zero, and producer id, epoch and sequence, which are the producer's. Base offset 0, no
leader epoch: the leader stamps these. A batch holds at least one record, and at most `UNCOMPRESSED_BYTES_MAX`
before compression, which is what a decoder takes.

Kafka: `MemoryRecordsBuilder`; `batch_rebuild` has what compaction writes. Left out: transactions.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import Any

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

# A batch of a few records that all have a value, and all a key or none a key, uncompressed and without headers: a
# producer of many partitions, or one that does not linger, makes thousands of them. The bytes are those of the general
# way (`batch_encode`), in little more than half the time.


_BYTES_MAX = 64 << 10
# Behind a length that ends on these three bits.
_PADDING_AFTER = [bytes(-length % 8) for length in range(8)]
_CRC, _CRC_POSITION = Struct(">I"), 17
_COLUMNS = (
    Column.KEY_OFFSETS,
    Column.KEY_DATA,
    Column.VALUE_OFFSETS,
    Column.VALUE_DATA,
    Column.TIMESTAMP_DELTAS,
)


class _Head:
    """The header and the table of contents of a batch with these columns, packed at once."""

    def __init__(self, columns: Sequence[Column]) -> None:
        table = pack_contents(0, [(int(each), 0) for each in columns])
        self.table_bytes = len(table) + 7 & -8
        self.marks = [table[:3], table[7:11], *(table[at : at + 3] for at in range(15, len(table), 7))]
        between = "I".join(f"{len(each)}s" for each in self.marks)
        self.pack = Struct(f"{HEADER.format}{between}I{self.table_bytes - len(table)}x").pack


_EQUAL_STAMPS, _STAMPS = _Head(_COLUMNS[:4]), _Head(_COLUMNS)
_NO_KEYS = _Head(_COLUMNS[2:4])


def encode_few_without_keys(
    values: Sequence[bytes | None], timestamps: TimestampColumn, sequence: ProducerSequence
) -> bytearray | None:
    """The batch; None for what takes the general way: as `encode_few`, and timestamps that differ."""
    try:
        offsets = array("i", (0, *accumulate(map(len, values))))  # type: ignore[arg-type]
        data = b"".join(values)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return None
    offsets_bytes, value_bytes, count = 4 * len(values) + 4, len(data), len(values)
    if value_bytes != offsets[-1] or value_bytes > _BYTES_MAX or timestamps.deltas is not None:
        return None
    block_bytes = (offsets_bytes + 7 & -8) + (value_bytes + 7 & -8)
    before, first, second = _NO_KEYS.marks
    packed = _NO_KEYS.pack(
        0, HEADER_BYTES + _NO_KEYS.table_bytes + block_bytes - LENGTH_FIELD_END, NO_EPOCH, MAGIC, 0, NULL_KEY_BIT,
        count - 1, timestamps.base_ms, timestamps.max_ms, *sequence, count, RESERVED,
        before, block_bytes, first, offsets_bytes, second, value_bytes,
    )  # fmt: skip
    batch = bytearray().join(
        (
            packed,
            offsets,
            _PADDING_AFTER[offsets_bytes & 7],
            data,
            _PADDING_AFTER[value_bytes & 7],
        )
    )
    _CRC.pack_into(batch, _CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def encode_few(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None],
    timestamps: TimestampColumn,
    sequence: ProducerSequence,
) -> bytearray | None:
    """The batch; None for what takes the general way: nulls, what is no bytes, and more than 64 KiB."""
    try:
        key_offsets = array("i", (0, *accumulate(map(len, keys))))  # type: ignore[arg-type]
        value_offsets = array("i", (0, *accumulate(map(len, values))))  # type: ignore[arg-type]
        key_data, value_data = b"".join(keys), b"".join(values)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return None
    key_bytes, value_bytes, count = len(key_data), len(value_data), len(values)
    if key_bytes != key_offsets[-1] or value_bytes != value_offsets[-1]:
        return None
    if key_bytes + value_bytes > _BYTES_MAX:
        return None
    offsets_bytes = 4 * count + 4
    block_bytes = 2 * (offsets_bytes + 7 & -8) + (key_bytes + 7 & -8) + (value_bytes + 7 & -8)
    deltas: Any = b"" if timestamps.deltas is None else timestamps.deltas  # a numpy array is a buffer, too
    head = _EQUAL_STAMPS if timestamps.deltas is None else _STAMPS
    deltas_fields = () if timestamps.deltas is None else (head.marks[5], 8 * count)
    block_bytes += len(deltas)
    before, first, second, third, fourth = head.marks[:5]
    packed = head.pack(
        0, HEADER_BYTES + head.table_bytes + block_bytes - LENGTH_FIELD_END, NO_EPOCH, MAGIC, 0, 0, count - 1,
        timestamps.base_ms, timestamps.max_ms, *sequence, count, RESERVED,
        before, block_bytes, first, offsets_bytes, second, key_bytes, third, offsets_bytes, fourth, value_bytes,
        *deltas_fields,
    )  # fmt: skip
    padding = _PADDING_AFTER[offsets_bytes & 7]
    batch = bytearray().join(
        (
            packed, key_offsets, padding, key_data, _PADDING_AFTER[key_bytes & 7],
            value_offsets, padding, value_data, _PADDING_AFTER[value_bytes & 7], deltas,
        )
    )  # fmt: skip
    _CRC.pack_into(batch, _CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return batch


UNCOMPRESSED_BYTES_MAX = 64 << 20

_SMALL_BYTES_MAX = 64 << 10
_NO_HEADER = bytes(HEADER_BYTES)
_PADDING = [bytes(count) for count in range(ALIGNMENT_BYTES)]
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
