"""The columns that Spark sees, and how one decoded batch becomes them.

Names, order and types are those of Spark's Kafka connector. Spark takes a batch only when its Arrow schema equals the
one that Spark derives from the DDL, so both are written here side by side. Keys, values and headers are passed on as
they lie in the file; timestamps are scaled from milliseconds to Spark's microseconds; what is constant in a partition
(topic, partition, timestamp type) is made once and sliced.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from rayka.client.consumer.record import constant, rows_between
from rayka.ids import TopicPartition
from rayka.protocol.batch_columns import int64_array
from rayka.protocol.batch_decode import DecodedBatch

HEADERS_COLUMN = "headers"
_MILLISECONDS = pa.timestamp("ms", tz="UTC")
_MICROSECONDS = pa.timestamp("us", tz="UTC")
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def _timestamps(decoded: DecodedBatch) -> pa.Array:
    return int64_array(decoded.timestamps_ms).view(_MILLISECONDS).cast(_MICROSECONDS)


def _headers(decoded: DecodedBatch) -> pa.Array:
    """Each record's headers; null for one that has none, as the connector has it."""
    if decoded.headers is None:
        return pa.nulls(len(decoded), _HEADERS)
    pairs = pa.StructArray.from_arrays(decoded.headers.values.flatten(), fields=list(_HEADERS.value_type))
    has_none = pc.equal(decoded.headers.value_lengths(), 0)
    return pa.ListArray.from_arrays(decoded.headers.offsets, pairs, mask=has_none)


class _Column(NamedTuple):
    """Its type in the words of Spark and of Arrow, and what it is of a batch: an array, or one value for all rows."""

    ddl: str
    arrow: pa.DataType
    of: Callable[[DecodedBatch, TopicPartition], Any]


_ALL: Mapping[str, _Column] = MappingProxyType(
    {
        "key": _Column("binary", pa.binary(), lambda decoded, _: decoded.keys),
        "value": _Column("binary", pa.binary(), lambda decoded, _: decoded.values),
        "topic": _Column("string", pa.string(), lambda _, tp: tp.topic),
        "partition": _Column("int", pa.int32(), lambda _, tp: tp.partition),
        "offset": _Column("bigint", pa.int64(), lambda decoded, _: int64_array(decoded.offsets)),
        "timestamp": _Column("timestamp", _MICROSECONDS, lambda decoded, _: _timestamps(decoded)),
        "timestampType": _Column("int", pa.int32(), lambda decoded, _: int(decoded.batch.timestamp_type)),
        HEADERS_COLUMN: _Column(
            "array<struct<key:string,value:binary>>", _HEADERS, lambda decoded, _: _headers(decoded)
        ),
    }
)
COLUMNS = tuple(name for name in _ALL if name != HEADERS_COLUMN)


def ddl_schema(columns: tuple[str, ...]) -> str:
    """The schema in Spark's words: `key binary, value binary`."""
    return ", ".join(f"`{name}` {_ALL[name].ddl}" for name in columns)


@lru_cache
def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The same schema in Arrow's."""
    return pa.schema([pa.field(name, _ALL[name].arrow) for name in columns])


def spark_batch(
    columns: tuple[str, ...],
    decoded: DecodedBatch,
    topic_partition: TopicPartition,
    start_offset: int,
    end_offset: int,
) -> pa.RecordBatch:
    """The records of a decoded batch with offsets in [start_offset, end_offset), in the requested columns."""
    found = [_ALL[name].of(decoded, topic_partition) for name in columns]
    arrays = [constant(each, len(decoded)) if isinstance(each, (str, int)) else each for each in found]
    whole = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))
    rows = rows_between(decoded, start_offset, end_offset)
    size = rows.stop - rows.start
    return whole if size == len(decoded) else whole.slice(rows.start, size)
