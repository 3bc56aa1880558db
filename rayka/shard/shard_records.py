"""Records of a state machine as the keys and values of a log's batches.

Keys are for logs that are compacted: of the records with one key the last counts, and one without a value deletes what
its key names. Control batches are the log's own and are left out, so offsets of records need not be contiguous. Kafka:
`CoordinatorRecordSerde`, `RecordsBatchReader`.
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

_RUN = 500  # records that are decoded together: half a millisecond


class KeyValue(NamedTuple):
    """What a log keeps of a record."""

    key: bytes | None
    value: bytes | None


class BatchColumns(NamedTuple):
    """Several records as `encode_batch` takes them; `keys` is None when no record has one."""

    values: list[bytes | None]
    keys: list[bytes | None] | None


@dataclass(frozen=True, slots=True)
class RecordCodec(Generic[RecordT]):
    """One kind of records, to bytes and back. `decode` raises CorruptRecord or UnsupportedVersion for what it cannot
    read. `decode_run` gives what `decode` would of a run of keys and values, in less time, or None where these go one
    by one: as they must where one of them cannot be read.
    """

    encode: Callable[[RecordT], KeyValue]
    decode: Callable[[KeyValue], RecordT]
    decode_run: (
        Callable[[Sequence[bytes | None], Sequence[bytes | None]], Sequence[RecordT] | None] | None
    ) = None

    def columns(self, records: Sequence[RecordT]) -> BatchColumns:
        """The records as the columns of a batch."""
        pairs = [self.encode(each) for each in records]
        has_keys = any(each.key is not None for each in pairs)
        return BatchColumns(
            [each.value for each in pairs], [each.key for each in pairs] if has_keys else None
        )

    def committed(self, records: Buffer, first_offset: int) -> Iterator[tuple[int, RecordT]]:
        """The records of these batches from an offset on, each with its offset; a batch may begin before it."""
        for batch in split_batches(records):
            batch.check_crc("committed records")
            found = self.records(batch)
            if batch.base_offset >= first_offset:
                yield from found
            else:
                yield from (each for each in found if each[0] >= first_offset)

    def records(self, batch: RecordBatch) -> Iterator[tuple[int, RecordT]]:
        """The records of a batch, each with its offset, decoded as they are asked for. The CRC is the caller's to
        check.
        """
        if batch.is_control:
            return
        decoded = decode(batch, check_crc=False)
        keys, values, offsets = decoded.keys_list(), decoded.values_list(), decoded.offsets.tolist()
        for begin in range(0, len(offsets), _RUN):
            run = slice(begin, begin + _RUN)
            yield from zip(offsets[run], self._run(keys[run], values[run], offsets[run]), strict=True)

    def _run(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], offsets: Sequence[int]
    ) -> Iterable[RecordT]:
        found = None if self.decode_run is None else self.decode_run(keys, values)
        return self._one_by_one(keys, values, offsets) if found is None else found

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
    """Records that have no keys, and always a value."""

    def decode_value(pair: KeyValue) -> RecordT:
        if pair.value is None:
            raise CorruptRecord("expected a value, found none")
        return decode(pair.value)

    return RecordCodec(lambda record: KeyValue(None, encode(record)), decode_value)


# One kind of state machine that brokers host on the partitions of an internal topic, each partition a shard.
#
# Kafka: `CoordinatorShardBuilderSupplier`, `CoordinatorRecordSerde`.


@dataclass(frozen=True, slots=True)
class ShardType:
    """`topic` is what is created when it is needed; `make_shard` makes the empty shard of a partition's number."""

    topic: NewTopic
    codec: RecordCodec[Any]
    make_shard: Callable[[int], Shard[Any]]
