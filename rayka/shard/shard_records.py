"""The records of a state machine as keys and values of a log, and the kinds of state machines that brokers host.

Keys are for compacted logs: the last record of a key counts, and a record without a value deletes its key. Control
batches belong to the log and are left out, so the offsets of records need not be contiguous. Kafka:
`CoordinatorRecordSerde`, `RecordsBatchReader`, `CoordinatorShardBuilderSupplier`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

from rayka.errors import CorruptRecord
from rayka.ports import Buffer
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import RecordBatch, split_batches
from rayka.protocol.topics import NewTopic
from rayka.shard.shard import RecordT, Shard

# Records that are decoded together; they take half a millisecond.
_RUN = 500


class KeyValue(NamedTuple):
    """A record as a log holds it."""

    key: bytes | None
    value: bytes | None


class BatchColumns(NamedTuple):
    """Records as arguments of `encode_batch`."""

    values: list[bytes | None]
    # None if no record has a key.
    keys: list[bytes | None] | None


@dataclass(frozen=True, slots=True)
class RecordCodec(Generic[RecordT]):
    """Encodes and decodes one kind of records."""

    encode: Callable[[RecordT], KeyValue]
    # Raises CorruptRecord or UnsupportedVersion.
    decode: Callable[[KeyValue], RecordT]
    # Decodes many records faster than `decode`, with the same result. Returns None if `decode` must take them one by
    # one, as for a record that cannot be decoded.
    decode_run: (
        Callable[[Sequence[bytes | None], Sequence[bytes | None]], Sequence[RecordT] | None] | None
    ) = None

    def columns(self, records: Sequence[RecordT]) -> BatchColumns:
        """Encodes records as the columns of a batch."""
        pairs = [self.encode(each) for each in records]
        has_keys = any(each.key is not None for each in pairs)
        return BatchColumns(
            [each.value for each in pairs], [each.key for each in pairs] if has_keys else None
        )

    def committed(self, records: Buffer, first_offset: int) -> Iterator[tuple[int, RecordT]]:
        """Yields the records of committed batches from an offset on, each with its offset. Checks the CRCs."""
        for batch in split_batches(records):
            batch.check_crc("committed records")
            found = self.records(batch)
            if batch.base_offset >= first_offset:
                yield from found
            else:
                yield from (each for each in found if each[0] >= first_offset)

    def records(self, batch: RecordBatch) -> Iterator[tuple[int, RecordT]]:
        """Yields the records of a batch, each with its offset. The caller has checked the CRC."""
        if batch.is_control:
            return
        decoded = decode(batch, check_crc=False)
        keys, values, offsets = decoded.keys_list(), decoded.values_list(), decoded.offsets.tolist()
        for begin in range(0, len(offsets), _RUN):
            run = slice(begin, begin + _RUN)
            found: Iterable[RecordT] | None = (
                None if self.decode_run is None else self.decode_run(keys[run], values[run])
            )
            if found is None:
                found = self._one_by_one(keys[run], values[run], offsets[run])
            yield from zip(offsets[run], found, strict=True)

    def _one_by_one(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], offsets: Sequence[int]
    ) -> Iterator[RecordT]:
        for offset, pair in zip(offsets, map(KeyValue, keys, values), strict=True):
            try:
                yield self.decode(pair)
            except CorruptRecord as error:
                raise CorruptRecord(f"the record at offset {offset}: {error}") from error


def value_codec(
    encode: Callable[[RecordT], bytes], decode: Callable[[bytes], RecordT]
) -> RecordCodec[RecordT]:
    """A codec for records without keys; each has a value."""

    def decode_value(pair: KeyValue) -> RecordT:
        if pair.value is None:
            raise CorruptRecord("expected a value, found none")
        return decode(pair.value)

    return RecordCodec(lambda record: KeyValue(None, encode(record)), decode_value)


@dataclass(frozen=True, slots=True)
class ShardType:
    """A kind of state machine that brokers host: each partition of an internal topic is one shard."""

    # Created when a shard is first needed.
    topic: NewTopic
    codec: RecordCodec[Any]
    # Makes the empty shard of a partition.
    make_shard: Callable[[int], Shard[Any]]
