"""Decides which records of a log a cleaning keeps, and rebuilds their batches (F22, F23, F25).

A record stays if it lies at or behind the end of the map. Otherwise it stays if it has a key, the map knows no newer
record of the key, and it has a value or is a tombstone whose delete horizon has not passed. A record that was put into
the map is the newest of its key if its offset is in the map. A record before the first dirty offset is the newest if
its key was not put.

A batch stays as it is if all its records stay, and is built anew if some do. A batch without records goes, unless its
producer or its segment needs it to show where it ended: then it stays, empty. Control batches stay as they are. So do
batches whose columns contradict themselves or their header although the CRC is right: the producer sent them so, no
reader can tell their keys, and one of them must not keep all others from being compacted. Kafka:
`Cleaner.shouldRetainRecord`, `Cleaner.cleanInto`.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rayka.cleaner.key_hashes import KeyHasher
from rayka.cleaner.offset_map import OffsetMap
from rayka.errors import CorruptRecord
from rayka.protocol.batch_columns import bytes_column, header_columns, int64_array, is_valid
from rayka.protocol.batch_decode import DecodedBatch, decode
from rayka.protocol.batch_encode import Columns, bytes_columns, columns_of_headers, with_body, write_header
from rayka.protocol.batch_format import (
    DELETE_HORIZON_BIT,
    NULL_KEY_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Codec,
    Column,
    RecordBatch,
    TimestampType,
    bytes_view,
)

# ---- Batches with some of their records, or none ----------------------------------------------------------------
#
# Invariants: base offset, last offset, leader epoch, producer id, epoch and sequence stay the same, so offsets do not
# change and producers are recognised (C3, F22, F25). The records that stay are unchanged. The largest timestamp is that
# of the records left, or of the old batch if none is left. Kafka: `MemoryRecords.filterTo`,
# `DefaultRecordBatch.writeEmptyHeader`.

# The offsets of a column without values.
_NO_RECORD = np.zeros(1, np.int32).view(np.uint8)


def with_records(decoded: DecodedBatch, kept: np.ndarray, delete_horizon_ms: int | None) -> memoryview:
    """The batch with only the records marked in `kept`, at least one, and with this delete horizon, if any (F23)."""
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
    """The batch without records: it keeps its producer, and the end of its offsets (F25)."""
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
    """The body behind a header like that of `batch`."""
    sequence = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
    fields = (attributes, batch.last_offset_delta, *timestamps_ms, *sequence, record_count)
    write_header(body, batch.base_offset, batch.leader_epoch, *fields)
    return bytes_view(body)


# A header holds no later one.
_HORIZON_MAX_MS = 2**63 - 1


@dataclass
class CleaningCounts:
    """The work of a cleaning so far."""

    input_bytes: int = 0
    output_bytes: int = 0
    input_records: int = 0
    kept_records: int = 0
    # Without a key.
    invalid_records: int = 0
    # Kept ones.
    tombstones: int = 0
    # Kept as they are, because their columns contradict themselves or their header.
    unreadable_batches: int = 0


class Horizon(NamedTuple):
    """The bounds of a cleaning: the begin and the end of its map, the time now, and how long new tombstones stay."""

    first_dirty_offset: int
    end_offset: int
    timestamp_ms: int
    delete_retention_ms: int


class KeptRecords:
    """The decisions of one cleaning, by its sealed map."""

    def __init__(
        self,
        hasher: KeyHasher,
        offsets: OffsetMap,
        horizon: Horizon,
        needed_ends: Container[tuple[int, int]],
        unreadable: Container[int],
        counts: CleaningCounts,
    ) -> None:
        """`unreadable`: base offsets of batches that the map does not have, because their columns cannot be read."""
        self._hasher = hasher
        self._unreadable = unreadable
        self._offsets = offsets
        self._horizon = horizon
        # Producer id and last offset of the batches by which the log knows its producers (C2).
        self._needed_ends = needed_ends
        self._counts = counts

    def of(self, batches: Sequence[RecordBatch], last: RecordBatch | None) -> list[RecordBatch]:
        """The batches that stay, in their order. `last` shows where its segment ends, so it stays."""
        # Of most batches the header and the map alone say what becomes of them.
        decoded = [
            None if self._stays(each) or self._is_superseded(each) else readable(each) for each in batches
        ]
        newest = self._newest([each for each in decoded if each is not None])
        kept: list[RecordBatch] = []
        for batch, records in zip(batches, decoded, strict=True):
            if records is not None:
                each = self._kept(records, next(newest), is_needed=batch is last)
            elif self._stays(batch):
                each = batch
            elif self._is_superseded(batch):
                each = self._emptied(batch, is_needed=batch is last)
            else:
                each = batch
                self._counts.unreadable_batches += 1
            self._counts.input_records += batch.record_count
            if each is not None:
                kept.append(each)
                self._counts.kept_records += each.record_count
        self._counts.input_bytes += sum(each.size_bytes for each in batches)
        self._counts.output_bytes += sum(each.size_bytes for each in kept)
        return kept

    def _stays(self, batch: RecordBatch) -> bool:
        return batch.is_control or batch.base_offset >= self._horizon.end_offset

    def _is_superseded(self, batch: RecordBatch) -> bool:
        """Whether all records of the batch were put into the map, and all its keys have newer ones."""
        horizon = self._horizon
        is_in_map = (
            horizon.first_dirty_offset <= batch.base_offset and batch.next_offset <= horizon.end_offset
        )
        if not is_in_map or batch.has_null_key or batch.base_offset in self._unreadable:
            return False
        return not len(self._offsets.newest_in(batch.base_offset, batch.next_offset))

    def _newest(self, decoded: Sequence[DecodedBatch]) -> Iterator[np.ndarray]:
        """For each batch, which of its records before the end of the map are the newest of their keys."""
        first_dirty_offset, position = self._horizon.first_dirty_offset, 0
        clean = [each for each in decoded if each.batch.base_offset < first_dirty_offset]
        is_superseded = np.zeros(0, bool)
        if clean:
            is_superseded = self._offsets.has(hashes_of(self._hasher, [each.keys for each in clean]))
        for each in decoded:
            if each.batch.base_offset < first_dirty_offset:
                is_newest = ~is_superseded[position : position + len(each)]
                position += len(each)
            else:
                is_newest = np.zeros(len(each), bool)
            newest = self._offsets.newest_in(each.batch.base_offset, each.batch.next_offset)
            has_gaps = each.batch.record_count <= each.batch.last_offset_delta
            places = each.offsets.searchsorted(newest) if has_gaps else newest - each.batch.base_offset
            is_newest[places] = True
            yield is_newest

    def _kept(self, decoded: DecodedBatch, is_kept: np.ndarray, *, is_needed: bool) -> RecordBatch | None:
        batch, horizon = decoded.batch, self._horizon
        is_beyond: np.ndarray | np.bool = np.False_
        if batch.next_offset > horizon.end_offset:
            is_beyond = decoded.offsets >= horizon.end_offset
        if decoded.keys.null_count:
            has_key = is_valid(decoded.keys)
            self._counts.invalid_records += int((~has_key & ~is_beyond).sum())
            is_kept &= has_key
        horizon_ms = batch.delete_horizon_ms
        if decoded.values.null_count:
            has_value = is_valid(decoded.values)
            if horizon_ms is not None and horizon.timestamp_ms >= horizon_ms:
                is_kept &= has_value
            is_kept |= is_beyond
            tombstones = int((is_kept & ~has_value).sum())
            self._counts.tombstones += tombstones
            # Not before the map covers the whole batch: the horizon would pass while an older value is still there.
            if tombstones and horizon_ms is None and batch.next_offset <= horizon.end_offset:
                horizon_ms = min(horizon.timestamp_ms + horizon.delete_retention_ms, _HORIZON_MAX_MS)
        is_kept = is_kept | is_beyond
        if not is_kept.any():
            return self._emptied(batch, is_needed=is_needed)
        if is_kept.all() and horizon_ms == batch.delete_horizon_ms:
            return batch
        return RecordBatch(with_records(decoded, is_kept, horizon_ms))

    def _emptied(self, batch: RecordBatch, *, is_needed: bool) -> RecordBatch | None:
        if is_needed or (batch.producer_id, batch.last_offset) in self._needed_ends:
            return RecordBatch(without_records(batch)) if batch.record_count else batch
        return None


def readable(batch: RecordBatch) -> DecodedBatch | None:
    """The batch's columns; None if they contradict themselves or the header. Its CRC was checked before."""
    try:
        return decode(batch, check_crc=False)
    except CorruptRecord:
        return None


def hashes_of(hasher: KeyHasher, keys: Sequence[pa.BinaryArray]) -> np.ndarray:
    """The hashes of one or more columns of keys, one behind the other. The hash of a null has no meaning."""
    if len(keys) == 1:
        return hasher.hashes(keys[0])
    return hasher.hashes(pa.concat_arrays(keys))
