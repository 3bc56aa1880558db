"""A record as a consumer sees it, and the ways from rows of a batch to records, or to an Arrow batch."""

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic

import msgspec
import numpy as np
import pyarrow as pa

from rayka.client.arguments import moment_of
from rayka.client.serializers import Deserializer
from rayka.errors import SerializationError
from rayka.ids import TopicPartition
from rayka.protocol.batch_columns import int64_array
from rayka.protocol.batch_decode import HEADERS_TYPE, DecodedBatch, Header, nulls

# Of keys, and of values.
Deserializers = tuple[Deserializer | None, Deserializer | None]

ARROW_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("timestamp_type", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
_CONSTANT_ROWS = 1 << 14


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ValueT = TypeVar("ValueT", default=Any)
else:
    from typing import TypeVar

    ValueT = TypeVar("ValueT")


# No cycle leads through a record; without the garbage collector one is made 2.5 times as fast.
class Record(msgspec.Struct, Generic[ValueT], frozen=True, gc=False):
    """One record of a topic.

    `timestamp_ms` is milliseconds since 1970 UTC, and `timestamp` the same as a datetime. `key` and `value` are bytes
    or None, or what the consumer's deserializers made of them (None, a tombstone, stays None). `headers` is a list of
    (key, value), in order and with duplicates, as `send` takes it; empty without headers.
    Kafka: ConsumerRecord.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: ValueT
    headers: list[Header]

    @property
    def timestamp(self) -> datetime:
        """`timestamp_ms` as a moment in UTC. Raises ValueError where it lies beyond the calendar."""
        return moment_of(self.timestamp_ms)


class _NoHeaders(list[Header]):
    """The empty list that records without headers share. Changing it is refused, so that it stays empty.

    A list for each record would be ten thousand more objects a batch for the garbage collector to walk over: iterating
    over records took four times as long.
    """

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a record's headers cannot be changed; send a new record with headers=[...]")

    append = extend = insert = __iadd__ = __imul__ = __setitem__ = _refuse


_NO_HEADERS = _NoHeaders()


def records_of(
    batch: DecodedBatch, rows: slice, tp: TopicPartition, deserializers: Deserializers
) -> list[Record]:
    """Rows of a batch as records, in offset order. Raises PoisonedRow."""
    headers = repeat(_NO_HEADERS) if batch.headers is None else batch.headers_list()[rows]
    columns = (
        batch.offsets[rows].tolist(),
        batch.timestamps_ms[rows].tolist(),
        _deserialized(batch.keys_list()[rows], deserializers[0], tp.topic, headers),
        _deserialized(batch.values_list()[rows], deserializers[1], tp.topic, headers),
        headers,
    )
    return list(map(Record, repeat(tp.topic), repeat(tp.partition), *columns))


class PoisonedRow(Exception):
    """A row whose key or value could not be deserialized, by its place among those asked for."""

    def __init__(self, row: int, error: SerializationError) -> None:
        super().__init__(row, error)
        self.row = row
        self.error = error


def _deserialized(
    column: list[bytes | None], deserializer: Deserializer | None, topic: str, headers: Iterable[Any]
) -> list[Any]:
    if deserializer is None:
        return column
    done: list[Any] = []
    try:
        for data, each in zip(column, headers, strict=False):
            done.append(None if data is None else deserializer(data, topic, each))
    except SerializationError as error:
        raise PoisonedRow(len(done), error) from error
    return done


def arrow_of(batch: DecodedBatch, rows: slice, tp: TopicPartition) -> pa.RecordBatch:
    """Rows of a batch as an Arrow batch of ARROW_SCHEMA; keys, values and headers are views of the batch's bytes."""
    count = rows.stop - rows.start
    keys, headers = batch.keys, batch.headers
    columns = [
        constant(tp.topic, count),
        constant(tp.partition, count),
        int64_array(batch.offsets[rows]),
        int64_array(batch.timestamps_ms[rows]).view(pa.timestamp("ms", tz="UTC")),
        constant(int(batch.batch.timestamp_type), count),
        keys.slice(rows.start, count),
        batch.values.slice(rows.start, count),
        headers.slice(rows.start, count) if headers is not None else nulls(HEADERS_TYPE, count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def rows_between(batch: DecodedBatch, start_offset: int, end_offset: int | None) -> slice:
    """The rows of a batch in [start_offset, end_offset)."""
    start, stop = 0, len(batch)
    if start_offset > batch.batch.base_offset:
        start = int(np.searchsorted(batch.offsets, start_offset))
    if end_offset is not None and end_offset <= batch.batch.last_offset:
        stop = max(start, int(np.searchsorted(batch.offsets, end_offset)))
    return slice(start, stop)


def constant(value: str | int, count: int) -> pa.Array:
    """`count` times the same value, as string or int32. Short arrays are views of one that is kept."""
    return _repeated(value, count) if count > _CONSTANT_ROWS else _kept(value).slice(0, count)


@lru_cache(maxsize=256)
def _kept(value: str | int) -> pa.Array:
    return _repeated(value, _CONSTANT_ROWS)


def _repeated(value: str | int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string() if isinstance(value, str) else pa.int32()), count)
