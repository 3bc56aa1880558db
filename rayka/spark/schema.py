"""The columns that Spark sees, and how one decoded batch becomes them.

Names, order and types are those of Spark's Kafka connector. Spark takes a batch only when its Arrow schema equals the
one that Spark derives from the DDL, so both are written here side by side. Keys, values and headers are passed on as
they lie in the file; timestamps are scaled from milliseconds to Spark's microseconds; what is constant in a partition
(topic, partition, timestamp type) is made once and sliced.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayka.client.consumer.record import constant
from rayka.ids import TopicPartition
from rayka.protocol.batch_decode import DecodedBatch

HEADERS_COLUMN = "headers"
_MILLISECONDS = pa.timestamp("ms", tz="UTC")


class _Column(NamedTuple):
    ddl: str
    arrow: pa.DataType


_HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_ALL: Mapping[str, _Column] = MappingProxyType(
    {
        "key": _Column("binary", pa.binary()),
        "value": _Column("binary", pa.binary()),
        "topic": _Column("string", pa.string()),
        "partition": _Column("int", pa.int32()),
        "offset": _Column("bigint", pa.int64()),
        "timestamp": _Column("timestamp", pa.timestamp("us", tz="UTC")),
        "timestampType": _Column("int", pa.int32()),
        HEADERS_COLUMN: _Column("array<struct<key:string,value:binary>>", pa.list_(_HEADER_TYPE)),
    }
)
COLUMNS = tuple(name for name in _ALL if name != HEADERS_COLUMN)


def ddl_schema(columns: tuple[str, ...]) -> str:
    """The schema in Spark's words: `key binary, value binary`."""
    return ", ".join(f"`{name}` {_ALL[name].ddl}" for name in columns)


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The same schema in Arrow's."""
    return pa.schema([pa.field(name, _ALL[name].arrow) for name in columns])


class BatchBuilder:
    """Turns the decoded batches of one topic partition into Spark's, in the columns asked for."""

    def __init__(self, columns: tuple[str, ...], topic_partition: TopicPartition) -> None:
        self.schema = arrow_schema(columns)
        self._columns = columns
        self._topic_partition = topic_partition

    def build(self, decoded: DecodedBatch, *, start_offset: int, end_offset: int) -> pa.RecordBatch:
        """The batch's records with offsets in [start_offset, end_offset)."""
        arrays = [self._array(name, decoded) for name in self._columns]
        built = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if decoded.batch.base_offset >= start_offset and decoded.batch.last_offset < end_offset:
            return built
        begin, end = np.searchsorted(decoded.offsets, [start_offset, end_offset])
        return built.slice(int(begin), int(end - begin))

    def _array(self, name: str, decoded: DecodedBatch) -> pa.Array:
        match name:
            case "key":
                return decoded.keys
            case "value":
                return decoded.values
            case "topic":
                return constant(self._topic_partition.topic, pa.string(), len(decoded))
            case "partition":
                return constant(self._topic_partition.partition, pa.int32(), len(decoded))
            case "offset":
                return pa.array(decoded.offsets)
            case "timestamp":
                return pa.array(decoded.timestamps_ms).view(_MILLISECONDS).cast(_ALL[name].arrow)
            case "timestampType":
                return constant(int(decoded.batch.timestamp_type), pa.int32(), len(decoded))
            case _:
                return _headers(decoded)


def _headers(decoded: DecodedBatch) -> pa.Array:
    """Each record's headers; null for one that has none, as the connector has it."""
    if decoded.headers is None:
        return pa.nulls(len(decoded), _ALL[HEADERS_COLUMN].arrow)
    pairs = pa.StructArray.from_arrays(decoded.headers.values.flatten(), fields=list(_HEADER_TYPE))
    has_none = pc.equal(decoded.headers.value_lengths(), 0)
    return pa.ListArray.from_arrays(decoded.headers.offsets, pairs, mask=has_none)
