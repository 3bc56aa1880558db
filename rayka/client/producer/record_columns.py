"""Records as columns, from the rows of `send` or from the arrays of `send_batch`, and into bytes.

Kafka: MemoryRecordsBuilder, which takes rows one by one.
"""

from array import array
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from rayka.errors import InvariantBroken, RecordTooLarge
from rayka.protocol.batch_columns import Timestamps, int64_array
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import NO_SEQUENCE, Codec, ProducerSequence

RECORD_OVERHEAD_BYTES = 13  # an offset, a timestamp delta, a bit of validity; a key is a second value
KEYED_OVERHEAD_BYTES = 2 * RECORD_OVERHEAD_BYTES
HEADER_OVERHEAD_BYTES = 18  # two offsets and two bits of validity, and the record's own offset
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]


class Row(msgspec.Struct, gc=False, eq=False):
    """A record as it is given. Without a timestamp it gets one when a batch takes it."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    timestamp_ms: int | None = None


class Moment(msgspec.Struct, frozen=True, gc=False):
    """Now, on both clocks."""

    now_ms: float
    timestamp_ms: int


class Columns(NamedTuple):
    """Records by column: lists, or Arrow arrays of binary and of `list<struct<key, value>>`; None where all are null.

    `timestamps_ms` is one for all, or int64 for each.
    """

    values: Any
    keys: Any
    headers: Any
    timestamps_ms: Timestamps

    def slice(self, begin: int, end: int) -> "Columns":
        """The records [begin, end); nothing is copied of arrays."""
        return Columns(*(_slice(each, begin, end) for each in self))

    def take(self, rows: np.ndarray) -> "Columns":
        """The records at these places."""
        indices = int64_array(rows)
        return Columns(*(_take(each, rows, indices) for each in self))


def columns_of_rows(
    slots: list[Any], keys_of_values: list[bytes | None] | None, timestamps_ms: Timestamps | None
) -> Columns:
    """Columns from `Row`s and values with their keys, mixed; a row's own timestamp goes before the one given for its
    place, which may be None when all have their own.
    """
    rows = slots
    if timestamps_ms is not None:  # else there are no plain values, which have none of their own
        given = zip(slots, keys_of_values or repeat(None), strict=False)
        rows = [slot if type(slot) is Row else Row(slot, key) for slot, key in given]
    values, keys = [each.value for each in rows], [each.key for each in rows]
    headers, stamps = [each.headers for each in rows], [each.timestamp_ms for each in rows]
    has_keys, has_headers = keys.count(None) < len(keys), any(headers)
    return Columns(
        values,
        keys if has_keys else None,
        headers if has_headers else None,
        _merged_timestamps(stamps, timestamps_ms),
    )


def _merged_timestamps(stamps: list[Any], given: Timestamps | None) -> Timestamps:
    """Those that rows bring; where one brings none, what is given for its place."""
    missing_count = stamps.count(None)
    if not missing_count:
        return stamps[0] if stamps.count(stamps[0]) == len(stamps) else array("q", stamps)
    if given is None:
        raise InvariantBroken(f"{missing_count} of {len(stamps)} records have no timestamp")
    if missing_count == len(stamps):
        return given
    stamped = np.full(len(stamps), given, np.int64)
    for index, timestamp_ms in enumerate(stamps):
        if timestamp_ms is not None:
            stamped[index] = timestamp_ms
    return stamped


def concatenated(chunks: Sequence[Columns]) -> Columns:
    """Chunks of Arrow columns as one."""
    if len(chunks) == 1:
        return chunks[0]
    values = pa.concat_arrays([each.values for each in chunks])
    keys = _concatenated([each.keys for each in chunks], chunks)
    headers = _concatenated([each.headers for each in chunks], chunks)
    stamps = [np.broadcast_to(np.asarray(each.timestamps_ms, np.int64), len(each.values)) for each in chunks]
    return Columns(values, keys, headers, np.concatenate(stamps))


def encode_columns(
    columns: Columns, codec: Codec, size_bytes_max: int, sequence: ProducerSequence = NO_SEQUENCE
) -> Sequence[np.ndarray]:
    """One batch of the log; several, each within size_bytes_max as far as single records are, if one would exceed it,
    or what a batch can hold at all.

    Raises SerializationError and RecordTooLarge, as `encode_batch`.
    """
    count = len(columns.values)
    try:
        encoded = encode_batch(
            columns.values,
            keys=columns.keys,
            headers=columns.headers,
            timestamps_ms=columns.timestamps_ms,
            codec=codec,
            sequence=sequence,
        )
        if encoded.size <= size_bytes_max or count == 1:
            return (encoded,)
    except RecordTooLarge:
        if count == 1:
            raise
    half = count // 2
    return [
        *encode_columns(columns.slice(0, half), codec, size_bytes_max, sequence),
        *encode_columns(columns.slice(half, count), codec, size_bytes_max, sequence.after(half)),
    ]


def _slice(column: Any, begin: int, end: int) -> Any:
    if column is None or isinstance(column, int):
        return column
    return column.slice(begin, end - begin) if isinstance(column, pa.Array) else column[begin:end]


def _take(column: Any, rows: np.ndarray, indices: pa.Array) -> Any:
    if column is None or isinstance(column, int):
        return column
    if isinstance(column, (np.ndarray, array)):
        return np.asarray(column)[rows]
    return column.take(indices) if isinstance(column, pa.Array) else [column[row] for row in rows.tolist()]


def _concatenated(arrays: Sequence[pa.Array | None], chunks: Sequence[Columns]) -> pa.Array | None:
    present = next((each.type for each in arrays if each is not None), None)
    if present is None:
        return None
    nulls = [len(each.values) for each in chunks]
    parts = [
        pa.nulls(count, present) if each is None else each for each, count in zip(arrays, nulls, strict=True)
    ]
    return pa.concat_arrays(parts)
