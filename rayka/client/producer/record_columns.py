"""Turns the arguments of `send` into encoded batches: checks, partitions, columns, encoding.

An error about an argument names the argument, the expected and the found value. The application's partitioner chooses
the partition of records that name none; the choice is checked before the record enters a batch. Kafka:
MemoryRecordsBuilder, which takes rows one by one; Partitioner, BuiltInPartitioner.partitionForKey.
"""

import sys
import warnings
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from rayka.client.arguments import is_int
from rayka.client.serializers import Serializer
from rayka.errors import InvalidArgument, InvariantBroken, NoSuchTopic, RecordTooLarge, SerializationError
from rayka.ids import NO_NODE
from rayka.protocol.batch_columns import Timestamps, int64_array
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import NO_SEQUENCE, Codec, ProducerSequence
from rayka.protocol.membership import MetadataTopic
from rayka.protocol.murmur2 import positive_murmur2

# Bytes of an offset, a timestamp delta and a bit of validity. A key costs as much as a second value.
RECORD_OVERHEAD_BYTES = 13
KEYED_OVERHEAD_BYTES = 2 * RECORD_OVERHEAD_BYTES
# Bytes of two offsets and two bits of validity; a record with headers adds its own offset.
HEADER_OVERHEAD_BYTES = 18
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]


class Row(msgspec.Struct, gc=False, eq=False):
    """A record as given to `send`. A record without a timestamp gets its batch's timestamp."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    timestamp_ms: int | None = None


class PreparedRecord(msgspec.Struct, gc=False, eq=False):
    """A record of `send`, checked and serialized, for the accumulator."""

    topic: str
    # The caller's or the partitioner's choice; None: the accumulator chooses, by the key if the record has one.
    partition: int | None
    # The value, or a `Row` if the record has headers or a timestamp.
    slot: Any
    # Upper bound of the encoded size.
    size_bytes: int
    key: bytes | None = None
    on_delivery: Callable[..., object] | None = None


class Moment(msgspec.Struct, frozen=True, gc=False):
    """The present on the monotonic clock (`now_ms`) and on the wall clock (`timestamp_ms`)."""

    now_ms: float
    timestamp_ms: int


class Columns(NamedTuple):
    """Records by column: lists, or Arrow arrays of binary and of `list<struct<key, value>>`."""

    values: Any
    # None: no record has a key.
    keys: Any
    # None: no record has headers.
    headers: Any
    # One timestamp for all records, or an int64 for each.
    timestamps_ms: Timestamps

    def slice(self, begin: int, end: int) -> "Columns":
        """The records [begin, end); Arrow arrays are not copied."""
        return Columns(*(_slice(each, begin, end) for each in self))

    def take(self, rows: np.ndarray) -> "Columns":
        """The records at the given indexes."""
        indices = int64_array(rows)
        return Columns(*(_take(each, rows, indices) for each in self))


def columns_of_rows(
    slots: list[Any], keys_of_values: list[bytes | None] | None, timestamps_ms: Timestamps | None
) -> Columns:
    """Builds columns from a mix of `Row`s and of values with their keys.

    A row's own timestamp takes precedence over `timestamps_ms`, which may be None if all rows have their own.
    """
    rows = slots
    # Without timestamps all slots are rows: a plain value has no timestamp of its own.
    if timestamps_ms is not None:
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
    """The timestamps of the rows; a row without one gets the timestamp given for its index."""
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
    """Joins chunks of Arrow columns."""
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
    """Encodes one batch of the log, or several if one would exceed `size_bytes_max` or the bounds of the format.

    Each batch is within `size_bytes_max`, except a batch of a single larger record. Raises SerializationError and
    RecordTooLarge, as `encode_batch`.
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


# ---- Arguments of `send` ----


_SECONDS_OF_2001, _SECONDS_OF_2286 = 10**9, 10**10


class _Omitted:
    def __repr__(self) -> str:
        return "<omitted>"


OMITTED: Any = _Omitted()


def given_value(value: Any, key: Any) -> Any:
    """Returns the value of a `send`; None if the value was left out.

    Warns if the key was left out too: the caller probably forgot the value, as a null record without key is useless.
    """
    if value is not OMITTED:
        return value
    if key is None:
        _warn(
            "value: expected one, found none, and a null record is sent; if you mean that, write value=None"
        )
    return None


def as_bytes(
    value: Any, convert: Serializer | None, name: str, topic: str = "", headers: Headers | None = None
) -> bytes | None:
    """Serializes a value or a key; None stays None without a serializer. Raises TypeError or SerializationError."""
    if value is None or (type(value) is bytes and convert is None):
        return value
    if convert is not None:
        value = convert(value, topic, headers or [])
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    hint = "" if convert else f"; encode it, or give {name}_serializer"
    source = f"{name}_serializer: expected it to return" if convert else f"{name}: expected"
    error = SerializationError if convert else TypeError
    raise error(f"{source} bytes or None, found {type(value).__name__}{hint}")


def as_headers(headers: Any) -> Headers | None:
    """Converts pairs or a mapping to header pairs. Raises TypeError; SerializationError for a key that is no text."""
    if headers is None:
        return None
    if not isinstance(headers, (Mapping, list, tuple)):
        raise TypeError(
            f"headers: expected a list of (str, bytes or None) pairs, found {type(headers).__name__}"
        )
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"headers: expected (str, bytes or None) pairs, found {pair!r}")
        if not pair[0].isascii():
            _check_text(pair[0])
        if not isinstance(pair[1], (bytes, NoneType)):
            raise TypeError(
                f"headers: expected bytes or None for {pair[0]!r}, found {type(pair[1]).__name__}"
            )
    return pairs


def _check_text(key: str) -> None:
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise SerializationError(
            f"headers: expected text that UTF-8 can hold, found {key!r}: {error}"
        ) from error


def as_timestamp(timestamp_ms: Any) -> int | None:
    """Checks a timestamp in ms, or None. Raises TypeError, and ValueError out of range."""
    if timestamp_ms is None:
        return None
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool):
        raise TypeError(f"timestamp_ms: expected int, found {type(timestamp_ms).__name__}")
    if not 0 <= timestamp_ms < 2**63:
        raise InvalidArgument(f"timestamp_ms: expected milliseconds since 1970, found {timestamp_ms}")
    warn_of_seconds(timestamp_ms, "timestamp_ms")
    return timestamp_ms


def warn_of_seconds(timestamp_ms: int, what: str) -> None:
    """Warns of a timestamp that is a time of 2001 to 2286 in seconds, but a day of early 1970 in milliseconds.

    The record is accepted; retention will delete the record soon. The text names no number, so that Python shows the
    warning once for each sending line.
    """
    if _SECONDS_OF_2001 <= timestamp_ms < _SECONDS_OF_2286:
        _warn(
            f"{what}: a number between 10**9 and 10**10 is a day of early 1970 in milliseconds; "
            "if it is a time in seconds, multiply it by 1000"
        )


def _warn(text: str) -> None:
    """Warns at the calling line outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("rayka."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)


def size_of(row: Row) -> int:
    """Upper bound of the record's encoded size, in bytes."""
    size_bytes = RECORD_OVERHEAD_BYTES + len(row.value or b"")
    if row.key is not None:
        size_bytes += RECORD_OVERHEAD_BYTES + len(row.key)
    if row.headers:
        size_bytes += HEADER_OVERHEAD_BYTES
        for key, value in row.headers:
            size_bytes += len(key.encode()) + len(value or b"") + HEADER_OVERHEAD_BYTES
    return size_bytes


# ---- Partitions ----

Partitioner: TypeAlias = Callable[[bytes | None, Sequence[int], Sequence[int]], int | None]
# The partitioner leaves the choice to the producer.
ANY = -1
# Bound of the topics in `_known`.
_KNOWN_MAX = 100
_Known: TypeAlias = tuple[MetadataTopic, Sequence[int], Sequence[int]]


class Partitioning:
    """A partitioner and the partitions to choose from; `metadata_of` returns a topic's known metadata."""

    def __init__(self, partitioner: Partitioner, metadata_of: Callable[[str], MetadataTopic | None]) -> None:
        self._partitioner = partitioner
        self._metadata_of = metadata_of
        self._known: dict[str, _Known] = {}

    def __repr__(self) -> str:
        return f"<Partitioning by {self._partitioner!r}>"

    def partition(self, topic: str, key: bytes | None) -> int | None:
        """Returns the partitioner's choice for a key; None: the producer chooses as without a partitioner.

        Raises the partitioner's own error with a note, TypeError, and NoSuchTopic for a partition that the topic does
        not have.
        """
        every, available = self._partitions(topic)
        try:
            chosen = self._partitioner(key, every, available)
        except Exception as error:
            error.add_note(f"raised by the producer's partitioner for topic {topic!r}, key {key!r}")
            raise
        if chosen is None:
            return None
        if not is_int(chosen):
            raise TypeError(f"partitioner: expected it to return int or None, found {type(chosen).__name__}")
        if not 0 <= chosen < len(every):
            raise NoSuchTopic(
                f"partitioner: it chose partition {chosen} of topic {topic!r}, which has {len(every)}, "
                "numbered from 0"
            )
        return chosen

    def partitions(self, topic: str, keys: Iterable[bytes | None]) -> np.ndarray:
        """Returns the partitioner's choice for each key; ANY: the producer chooses. Raises as `partition`."""
        chosen = (self.partition(topic, key) for key in keys)
        return np.fromiter((ANY if each is None else each for each in chosen), np.int64)

    def _partitions(self, topic: str) -> tuple[Sequence[int], Sequence[int]]:
        """All partitions and the partitions with a leader; computed once for each version of the metadata."""
        metadata, known = self._metadata_of(topic), self._known.get(topic)
        if metadata is None:
            self._known.pop(topic, None)
            raise NoSuchTopic(f"topic {topic!r} was deleted")
        # Some of the cached topics may be deleted.
        if len(self._known) > _KNOWN_MAX:
            self._known.clear()
        if known is None or known[0] is not metadata:
            every = tuple(each.partition for each in metadata.partitions)
            available = tuple(each.partition for each in metadata.partitions if each.leader_id != NO_NODE)
            known = self._known[topic] = (metadata, every, available)
        return known[1], known[2]


# Bound of the remembered keys: 8 MB with keys of _KEY_BYTES_MAX.
KEYS_MAX = 1 << 14
_KEY_BYTES_MAX = 256


class RememberedHashes(dict[bytes, int]):
    """A cache of key hashes: keys repeat, and murmur2 costs as much as the rest of a `send`.

    `hashes[key]` is the hash of any key, cached or not. The hash modulo the number of partitions is the key's
    partition. Threads share the cache without a lock, because all threads compute the same hash for a key. Each thread
    may exceed the bound by one key.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<RememberedHashes of {len(self)} keys>"

    def __missing__(self, key: bytes) -> int:
        hashed = positive_murmur2(key)
        if len(key) <= _KEY_BYTES_MAX:
            if len(self) >= KEYS_MAX:
                self.clear()
            self[key] = hashed
        return hashed
