"""What a leader checks of a producer's batches before it appends them: headers, the CRC, and whether the bytes can hold
as many records as the header claims. Else 64 bytes would take 2^31 - 1 offsets (B18). What a topic asks of each single
record is in `record_validation`.

Kafka: `LogValidator`. Left out: transactional producers, conversion of old formats. Whether a
sequence is the next one is the log's to say.
"""

from rayka.config.topic_config import TopicConfig
from rayka.errors import (
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    RecordTooLarge,
    UnsupportedCompressionType,
)
from rayka.partition.record_validation import check_records
from rayka.ports import Buffer
from rayka.protocol.batch_encode import UNCOMPRESSED_BYTES_MAX
from rayka.protocol.batch_format import (
    HEADER_BYTES,
    NO_PRODUCER_ID,
    Codec,
    Column,
    Contents,
    RecordBatch,
    TimestampType,
    parse_contents,
    split_batches,
)

_OFFSET_BYTES = 4
# How many bytes one byte of a frame can stand for, at most: by a match of deflate or LZ4, by a block of zstd.
_EXPANSION_MAX = {Codec.NONE: 1, Codec.GZIP: 1_032, Codec.LZ4: 255, Codec.ZSTD: 1 << 15}


def validate_batches(
    records: Buffer, config: TopicConfig, *, where: str, timestamp_ms: int
) -> list[RecordBatch]:
    """The batches of a produce request, all of them good. `where` names the partition in messages.

    Raises CorruptRecord, InvalidRecord, InvalidTimestamp, RecordTooLarge or UnsupportedCompressionType; an
    InvalidRecord or InvalidTimestamp that is about single records names them.
    """
    batches = list(split_batches(records))
    if not batches:
        raise InvalidRecord(f"{where}: a produce request holds at least one batch, found none")
    checked: list[tuple[RecordBatch, Contents]] = []
    for batch in batches:
        if batch.producer_id != NO_PRODUCER_ID:
            _check_sequence(batch, len(batches), where)
        _check_kind(batch, where)
        _check_size(batch, config, where)
        batch.check_crc(where)
        checked.append((batch, _check_count(batch, where)))
    check_records(checked, config, where, timestamp_ms)
    return batches


def own_batch(records: Buffer, config: TopicConfig, *, where: str) -> RecordBatch:
    """One batch that this process has encoded just now, so its bytes are what they say: what the topic's configuration
    asks of it is all that is left to check.

    Raises CorruptRecord, InvalidRecord or RecordTooLarge.
    """
    batch = RecordBatch(records)
    _check_kind(batch, where)
    if config.is_compacted and batch.has_null_key:
        raise InvalidRecord(
            f"{where}: {batch.summary}: a record has no key, which cleanup.policy=compact asks for"
        )
    _check_size(batch, config, where)
    return batch


def _check_sequence(batch: RecordBatch, batch_count: int, where: str) -> None:
    """C1."""
    if min(batch.producer_id, batch.producer_epoch, batch.base_sequence) < 0:
        raise InvalidRecord(
            f"{where}: {batch.summary}: expected a producer id, epoch and sequence of 0 or more, found"
            f" {batch.producer_id}, {batch.producer_epoch} and {batch.base_sequence}"
        )
    if batch_count > 1:
        raise InvalidRecord(
            f"{where}: expected one batch with a producer id in a request, found {batch_count}"
        )


def _check_kind(batch: RecordBatch, where: str) -> None:
    if batch.codec is Codec.SNAPPY:
        raise UnsupportedCompressionType(f"{where}: snappy; expected none, gzip, lz4 or zstd")
    if batch.is_control or batch.is_transactional or batch.delete_horizon_ms is not None:
        raise InvalidRecord(
            f"{where}: {batch.summary}: expected neither a control nor a transactional batch, nor a delete horizon"
        )
    if batch.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise InvalidTimestamp(f"{where}: a producer may not claim the timestamp type LogAppendTime")
    if batch.last_offset_delta != batch.record_count - 1:
        raise CorruptRecord(
            f"{where}: {batch.summary}: last offset delta {batch.last_offset_delta} leaves gaps"
        )


def _check_count(batch: RecordBatch, where: str) -> Contents:
    """The table of contents says how many offsets of values there are, one more than records, and how large all columns
    are; the frame behind it must be able to hold them. Returns the table.
    """
    body = batch.view[HEADER_BYTES:]
    contents = parse_contents(body)
    _, found_bytes = contents.columns.get(Column.VALUE_OFFSETS, (0, 0))
    if found_bytes != _OFFSET_BYTES * (batch.record_count + 1):
        raise CorruptRecord(
            f"{where}: {batch.summary}: {batch.record_count} records have"
            f" {_OFFSET_BYTES * (batch.record_count + 1)} bytes of offsets, found {found_bytes}"
        )
    if contents.uncompressed_bytes > UNCOMPRESSED_BYTES_MAX:
        raise CorruptRecord(
            f"{where}: {batch.summary} has {contents.uncompressed_bytes} bytes of columns, more than"
            f" {UNCOMPRESSED_BYTES_MAX}"
        )
    frame_bytes = len(body) - contents.end
    if contents.uncompressed_bytes > frame_bytes * _EXPANSION_MAX[batch.codec]:
        raise CorruptRecord(
            f"{where}: {batch.summary}: {frame_bytes} bytes cannot hold {contents.uncompressed_bytes} of columns"
        )
    return contents


def _check_size(batch: RecordBatch, config: TopicConfig, where: str) -> None:
    if batch.size_bytes > config.max_message_bytes:
        raise RecordTooLarge(
            f"{where}: a batch of {batch.size_bytes} bytes exceeds max.message.bytes={config.max_message_bytes};"
            " send smaller batches or raise the topic's limit"
        )
