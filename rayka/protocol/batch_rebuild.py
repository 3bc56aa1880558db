"""Batches as compaction leaves them: some of the records of one, or none.

Guarantees: base and last offset, leader epoch, producer id, epoch and sequence are those of the batch before, so that
offsets do not change and producers are recognised (C3, F22, F25); the records that stay are unchanged; the largest
timestamp is that of the records that are left, or of the batch before where none is. Kafka:
`MemoryRecords.filterTo`, `DefaultRecordBatch.writeEmptyHeader`.
"""

from operator import itemgetter

import numpy as np

from rayka.protocol.batch_columns import bytes_column, header_columns, int64_array
from rayka.protocol.batch_contents import Column
from rayka.protocol.batch_decode import DecodedBatch
from rayka.protocol.batch_encode import Columns, bytes_columns, columns_of_headers, with_body, write_header
from rayka.protocol.batch_header import (
    DELETE_HORIZON_BIT,
    NULL_KEY_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Codec,
    RecordBatch,
    TimestampType,
    bytes_view,
)

_NO_RECORD = np.zeros(1, np.int32).view(np.uint8)  # the offsets of a column without values


def with_records(decoded: DecodedBatch, kept: np.ndarray, delete_horizon_ms: int | None) -> memoryview:
    """The batch with the records alone whose place in `kept` is true, one at least, and with this delete horizon,
    if any (F23).
    """
    batch = decoded.batch
    places = np.flatnonzero(kept)
    numbers = int64_array(places)
    timestamps_ms = decoded.timestamps_ms.take(places)
    base_ms = int(timestamps_ms[0]) if delete_horizon_ms is None else delete_horizon_ms
    attributes = batch.attributes & ~(NULL_KEY_BIT | DELETE_HORIZON_BIT)
    columns: Columns = []
    keys = decoded.keys.take(numbers)
    if keys.null_count:
        attributes |= NULL_KEY_BIT
    if keys.null_count < len(keys):
        columns += bytes_columns(Column.KEY_VALIDITY, bytes_column(keys, "key"))
    columns += bytes_columns(Column.VALUE_VALIDITY, bytes_column(decoded.values.take(numbers), "value"))
    if decoded.headers is not None:
        columns += columns_of_headers(header_columns(decoded.headers.take(numbers)))
    if batch.timestamp_type is TimestampType.CREATE_TIME and (timestamps_ms != base_ms).any():
        columns.append((Column.TIMESTAMP_DELTAS, (timestamps_ms - base_ms).view(np.uint8)))
    if batch.last_offset_delta != len(numbers) - 1:
        deltas = (decoded.offsets.take(places) - batch.base_offset).astype(np.int32)
        columns.append((Column.OFFSET_DELTAS, deltas.view(np.uint8)))
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
    body = with_body(columns, batch.codec)
    return _headed(batch, body, attributes, (base_ms, int(timestamps_ms.max())), len(numbers))


def without_records(batch: RecordBatch) -> memoryview:
    """The batch without any record: what is known of its producer, and where its offsets end (F25)."""
    columns: Columns = [(each, b"") for each in (Column.KEY_DATA, Column.VALUE_DATA)]
    columns += [(each, _NO_RECORD) for each in (Column.KEY_OFFSETS, Column.VALUE_OFFSETS)]
    attributes = batch.attributes & (TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT)
    timestamps_ms = (batch.max_timestamp_ms, batch.max_timestamp_ms)
    return _headed(
        batch, with_body(sorted(columns, key=itemgetter(0)), Codec.NONE), attributes, timestamps_ms, 0
    )


def _headed(
    batch: RecordBatch,
    body: np.ndarray | bytearray,
    attributes: int,
    timestamps_ms: tuple[int, int],
    record_count: int,
) -> memoryview:
    """The rebuilt batch behind the header of the one before."""
    sequence = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
    fields = (attributes, batch.last_offset_delta, *timestamps_ms, *sequence, record_count)
    write_header(body, batch.base_offset, batch.leader_epoch, *fields)
    return bytes_view(body)
