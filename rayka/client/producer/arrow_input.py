"""Turns the data of `send_batch` into columns, and cuts the columns into pieces that fit a batch.

Makes no object per record; copies bytes only to divide records among partitions.

Columns: `value` (binary or string, also as dictionaries or views); optional are `key` (same types), `timestamp`
(timestamp of any unit, date, or int64 ms), `headers` (`list<struct<key: string, value: binary>>`, or a map) and
`partition` (integer). Kafka has no such call.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayka.client.consumer.record import Record
from rayka.client.producer.record_columns import (
    HEADER_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Columns,
    Headers,
    Partitioning,
    as_bytes,
    as_headers,
    as_timestamp,
    warn_of_seconds,
)
from rayka.client.serializers import Serializer
from rayka.errors import RecordTooLarge, SerializationError
from rayka.protocol.batch_columns import (
    as_binary,
    as_header_array,
    binary_array,
    list_array,
    list_lengths,
    offset_steps,
)
from rayka.protocol.murmur2 import partitions_for_keys

COLUMN_NAMES = ("key", "value", "timestamp", "headers", "partition")
_ANY = -1
Rows: TypeAlias = range | np.ndarray
Data: TypeAlias = pa.RecordBatch | pa.Table | Sequence[Any]


class Input(NamedTuple):
    """Records to send, with their partitions."""

    columns: Columns
    # Partition of each record, negative for a record without one; None: no record has one.
    partitions: np.ndarray | None
    # Whether the caller or a partitioner chose each record's partition; None: for no record. Set by `placed`.
    is_pinned: np.ndarray | None = None

    @property
    def last_partition(self) -> int | None:
        """The highest partition of a record; None if no record has a partition."""
        return None if self.partitions is None else int(self.partitions.max())

    def placed_by(self, partitioning: Partitioning, topic: str) -> "Input":
        """Returns the input with a partitioner's choices for the records without a partition."""
        keys = self.columns.keys
        listed = [None] * len(self.columns.values) if keys is None else keys.to_pylist()
        if self.partitions is None:
            return self._replace(partitions=partitioning.partitions(topic, listed))
        asked = self.partitions >= 0
        chosen = partitioning.partitions(
            topic, (key for key, is_asked in zip(listed, asked, strict=True) if not is_asked)
        )
        partitions = self.partitions.copy()
        partitions[~asked] = chosen
        return self._replace(partitions=partitions)

    def placed(self, partition_count: int, sticky_partition: int) -> "Input":
        """Returns the input with a partition for each record: its own, else its key's, else the sticky one.

        Returns the input without partitions if no record has a partition or a key.
        """
        keys, partitions = self.columns.keys, self.partitions
        if keys is not None and keys.null_count < len(keys):
            by_key = partitions_for_keys(keys, partition_count)
            if keys.null_count:
                by_key = np.where(pc.is_null(keys).to_numpy(zero_copy_only=False), _ANY, by_key)
            partitions = by_key if partitions is None else np.where(partitions < 0, by_key, partitions)
        if partitions is not None and int(partitions.min()) < 0:
            partitions = np.where(partitions < 0, sticky_partition, partitions)
        is_pinned = None if self.partitions is None else self.partitions >= 0
        return self._replace(partitions=partitions, is_pinned=is_pinned)


class Piece(NamedTuple):
    """Records that fit one batch of one partition."""

    topic: str
    # None: any partition.
    partition: int | None
    columns: Columns
    # Upper bound of the encoded size.
    size_bytes: int
    # Rows of the records in the input.
    rows: Rows
    # Whether a record must stay in this partition.
    is_pinned: bool


def inputs_of(
    data: Data,
    timestamp_ms: int,
    serializers: tuple[Serializer | None, Serializer | None],
    topic: str = "",
) -> list[Input]:
    """Reads the records of an Arrow batch or table, or of a list of values or `Record`s; skips empty batches.

    The serializers (of key and value) apply to lists; Arrow columns hold bytes already. Raises SerializationError that
    names the column, and TypeError, as `send` does, for other kinds of data and values.
    """
    if isinstance(data, pa.Table):
        batches = data.to_batches()
    elif isinstance(data, pa.RecordBatch):
        batches = [data]
    elif isinstance(data, (str, bytes, bytearray)) or not isinstance(data, Sequence):
        raise TypeError(
            "data: expected a pyarrow RecordBatch or Table, or a list of values or Records, "
            f"found {type(data).__name__}"
        )
    else:
        return [_of_list(data, timestamp_ms, topic, *serializers)] if data else []
    return [_of_batch(batch, timestamp_ms) for batch in batches if batch.num_rows]


def pieces_of(topic: str, given: Input, batch_bytes: int, record_bytes_max: int) -> Iterator[Piece]:
    """Cuts the records into pieces, each for one partition and within a batch of `batch_bytes`.

    Raises RecordTooLarge, before the first piece, if a record exceeds `record_bytes_max`.
    """
    sizes = _sizes(given.columns)
    if int(sizes.max()) > record_bytes_max:
        row = int(sizes.argmax())
        raise RecordTooLarge(
            f"row {row} takes {int(sizes[row])} bytes; "
            f"max_request_size and buffer_memory leave {record_bytes_max} for a record"
        )
    return _cut_by_partition(topic, given, sizes, batch_bytes)


def _cut_by_partition(topic: str, given: Input, sizes: np.ndarray, batch_bytes: int) -> Iterator[Piece]:
    if given.partitions is None:
        yield from _cut(
            Piece(topic, None, given.columns, 0, range(len(sizes)), is_pinned=False), sizes, batch_bytes
        )
        return
    order = np.argsort(given.partitions, kind="stable")
    numbers, begins = np.unique(given.partitions[order], return_index=True)
    for number, rows in zip(numbers.tolist(), np.split(order, begins[1:]), strict=True):
        columns = given.columns if len(numbers) == 1 else given.columns.take(rows)
        is_pinned = given.is_pinned is not None and bool(given.is_pinned[rows].any())
        yield from _cut(Piece(topic, number, columns, 0, rows, is_pinned), sizes[rows], batch_bytes)


def _cut(whole: Piece, sizes: np.ndarray, batch_bytes: int) -> Iterator[Piece]:
    """Cuts a piece into pieces that fit a batch; `sizes` are the sizes of its records."""
    ends = np.cumsum(sizes)
    begin, begin_bytes = 0, 0
    while begin < len(sizes):
        end = max(begin + 1, int(np.searchsorted(ends, begin_bytes + batch_bytes, "right")))
        end_bytes = int(ends[end - 1])
        is_all = begin == 0 and end == len(sizes)
        columns = whole.columns if is_all else whole.columns.slice(begin, end)
        yield whole._replace(columns=columns, size_bytes=end_bytes - begin_bytes, rows=whole.rows[begin:end])
        begin, begin_bytes = end, end_bytes


# ---- Sizes ----


def _sizes(columns: Columns) -> np.ndarray:
    """Upper bound of each record's encoded size, in bytes."""
    sizes = _lengths(columns.values) + RECORD_OVERHEAD_BYTES
    if columns.keys is not None:
        sizes += _lengths(columns.keys) + RECORD_OVERHEAD_BYTES
    if columns.headers is not None:
        sizes += _header_sizes(columns.headers)
    return sizes


def _lengths(array: pa.Array) -> np.ndarray:
    if array.type in (pa.binary(), pa.string()) and len(array) and not array.null_count:
        # `to_numpy` and `fill_null` would import pandas, which takes up to a second.
        return offset_steps(array).astype(np.int64)
    lengths = pc.binary_length(array)
    if lengths.null_count:
        lengths = lengths.fill_null(0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def _header_sizes(headers: pa.Array) -> np.ndarray:
    pairs = headers.flatten()
    pair_sizes = _lengths(pairs.field(0)) + _lengths(pairs.field(1)) + HEADER_OVERHEAD_BYTES
    ends = np.concatenate([[0], np.cumsum(pair_sizes)])
    counts = list_lengths(headers)
    last = np.cumsum(counts)
    return np.asarray(ends[last] - ends[last - counts] + HEADER_OVERHEAD_BYTES)


# ---- Kinds of data ----


def _of_list(
    data: Sequence[Any],
    timestamp_ms: int,
    topic: str,
    key_serializer: Serializer | None,
    value_serializer: Serializer | None,
) -> Input:
    if not isinstance(data[0], Record):
        values = _array(data, value_serializer, "value", topic, repeat(None))
        return Input(Columns(values, None, None, timestamp_ms), None)
    if not all(isinstance(each, Record) for each in data):
        raise TypeError("data: expected only values or only Records, found both")
    headers = [as_headers(each.headers) for each in data]
    values = _array([each.value for each in data], value_serializer, "value", topic, headers)
    keys = _array([each.key for each in data], key_serializer, "key", topic, headers)
    own = (as_timestamp(each.timestamp_ms) for each in data)
    timestamps = np.array([timestamp_ms if each is None else each for each in own], np.int64)
    return Input(Columns(values, keys, _header_array(headers) if any(headers) else None, timestamps), None)


def _of_batch(batch: pa.RecordBatch, timestamp_ms: int) -> Input:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if len(columns) < batch.num_columns:
        raise SerializationError(f"a column is there twice: {', '.join(batch.schema.names)}")
    for name in columns:
        if name not in COLUMN_NAMES:
            near = difflib.get_close_matches(name, COLUMN_NAMES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(COLUMN_NAMES)}"
            raise SerializationError(f"column {name!r} is not a part of a record: {hint}")
    if "value" not in columns:
        raise SerializationError(f"expected a column 'value', found {', '.join(columns)}")
    keys, headers = columns.get("key"), columns.get("headers")
    return Input(
        Columns(
            as_binary(columns["value"], "value"),
            None if keys is None else as_binary(keys, "key"),
            None if headers is None else as_header_array(headers),
            _timestamps(columns.get("timestamp"), timestamp_ms),
        ),
        _asked_partitions(columns.get("partition")),
    )


def _array(
    values: Sequence[Any],
    convert: Serializer | None,
    name: str,
    topic: str,
    headers: Iterable[Headers | None],
) -> pa.Array:
    if convert is not None:
        placed = zip(values, headers, strict=False)
        values = [as_bytes(value, convert, name, topic, each) for value, each in placed]
    elif not set(map(type, values)) <= {bytes, NoneType}:
        wrong = next(each for each in values if type(each) not in (bytes, NoneType))
        found = f"found {type(wrong).__name__}; encode them, or give {name}_serializer"
        raise TypeError(f"{name}: expected bytes or None, {found}")
    return binary_array(values, name)


def _header_array(headers: Sequence[Any]) -> pa.Array:
    pairs = [pair for each in headers if each for pair in each]
    keys = binary_array([key.encode() for key, _ in pairs], "header key").view(pa.string())
    values = binary_array([value for _, value in pairs], "header value")
    fields = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
    return list_array(
        [len(each) if each else 0 for each in headers],
        pa.StructArray.from_arrays([keys, values], fields=fields),
    )


def _timestamps(array: pa.Array | None, default_ms: int) -> int | np.ndarray:
    if array is None:
        return default_ms
    times = _in_ms(array)
    if (earliest := pc.min(times).as_py()) is not None and earliest < 0:
        raise SerializationError(f"column 'timestamp': expected milliseconds since 1970, found {earliest}")
    stamps = np.asarray(
        (times.fill_null(default_ms) if times.null_count else times).to_numpy(zero_copy_only=False)
    )
    if pa.types.is_integer(array.type) and len(stamps):
        warn_of_seconds(int(stamps.max()), "column 'timestamp'")
    return stamps


def _in_ms(array: pa.Array) -> pa.Array:
    """Converts a column of timestamps, dates (midnight UTC) or int64 milliseconds to int64 milliseconds."""
    if array.type == pa.int64():
        return array
    if pa.types.is_date32(array.type):
        array = array.cast(pa.date64())
    is_moment = pa.types.is_timestamp(array.type) or pa.types.is_date64(array.type)
    if not is_moment:
        raise SerializationError(
            f"column 'timestamp': expected timestamp, date or int64 (ms), found {array.type}"
        )
    unit = pa.timestamp("ms", getattr(array.type, "tz", None))
    try:
        in_ms = array.cast(options=pc.CastOptions(unit, allow_time_truncate=True))
    except pa.ArrowInvalid as error:
        # Some timestamps in seconds do not fit 64 bits as milliseconds; an unchecked cast would wrap.
        raise SerializationError(f"column 'timestamp': expected milliseconds of 64 bits: {error}") from error
    return in_ms.cast(pa.int64())


def _asked_partitions(array: pa.Array | None) -> np.ndarray | None:
    if array is None or array.null_count == len(array):
        return None
    if not pa.types.is_integer(array.type):
        raise SerializationError(f"column 'partition': expected integers, found {array.type}")
    for bound in pc.min_max(array).as_py().values():
        if not 0 <= bound < 2**31:
            raise SerializationError(f"column 'partition': expected 0 or more, found {bound}")
    return np.asarray(array.cast(pa.int64()).fill_null(_ANY).to_numpy(zero_copy_only=False))
