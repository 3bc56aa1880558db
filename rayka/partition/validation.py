"""A leader's checks of a producer's batches before the append: headers, CRC, whether the bytes can hold as many records
as the header claims, and the topic's rules for single records (B18).

Without the check of the count 64 bytes would take 2^31 - 1 offsets. The log checks whether a sequence is the next one.

A topic refuses single records, each with its own error (KIP-467). A compacted topic takes no record without a key, and
each timestamp must be within the topic's bounds. For most batches the header is enough: it has the base timestamp and
the latest one. Otherwise the columns are read. Those of a compacted topic are always read: a batch whose columns
contradict its header, by a null key or by offsets that fall, could never be compacted.

Reading columns is cheap unless they are compressed: megabytes of gzip take the event loop longer than 20 ms. So a
compressed batch whose columns must be read may hold `READ_BYTES_MAX`. A larger batch is too large for its topic, and
its producer sends it again in smaller parts. A larger batch that is only read for contradictions is taken unread;
compaction leaves it as it is if it has any (`kept_records`).

Kafka: `LogValidator`, `LogValidator.validateRecord`, `RecordValidationException`; Kafka iterates over all records of
every batch. Left out: transactional producers, conversion of old formats.
"""

from collections.abc import Sequence

import numpy as np

from rayka.config.topic_config import MessageTimestampType, TopicConfig
from rayka.errors import (
    ApiError,
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    RecordTooLarge,
    UnsupportedCompressionType,
)
from rayka.ids import NO_TIMESTAMP
from rayka.ports import Buffer
from rayka.protocol.batch_columns import is_valid
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import UNCOMPRESSED_BYTES_MAX
from rayka.protocol.batch_format import (
    HEADER_BYTES,
    NO_PRODUCER_ID,
    Codec,
    Column,
    Contents,
    RecordBatch,
    TimestampType,
    aligned,
    parse_contents,
    split_batches,
)

# Of a compressed batch, once decompressed: a few milliseconds.
READ_BYTES_MAX = 2 << 20
# Listed for one request; the others are refused when the rest comes again.
REFUSALS_MAX = 1_000
_UNBOUNDED_MS = 2**63 - 1


def is_stamped_by_broker(config: TopicConfig) -> bool:
    """Whether records get the time of their append instead of the producer's."""
    return config.message_timestamp_type is MessageTimestampType.LOG_APPEND_TIME


def check_records(
    batches: Sequence[tuple[RecordBatch, Contents]], config: TopicConfig, where: str, timestamp_ms: int
) -> None:
    """Checks the records of one request, whose headers, CRCs and tables of contents are good. `timestamp_ms` is the
    broker's clock, `where` names the partition.

    Raises InvalidTimestamp or InvalidRecord, which name the refused records; RecordTooLarge; and CorruptRecord for
    columns that contradict themselves.
    """
    rules = None
    first_index = 0
    for batch, contents in batches:
        if _is_doubtful(batch, contents, config, timestamp_ms):
            rules = rules or _Rules(config, where, timestamp_ms)
            rules.check(batch, contents, first_index)
        first_index += batch.record_count
    if rules is not None:
        rules.raise_refusals(first_index)


def _is_doubtful(batch: RecordBatch, contents: Contents, config: TopicConfig, timestamp_ms: int) -> bool:
    """Whether the columns must be read to know that no record is refused. Unless its topic is compacted, almost no
    batch is doubtful.
    """
    is_small = batch.codec is Codec.NONE or contents.uncompressed_bytes <= READ_BYTES_MAX
    if config.is_compacted and (batch.has_null_key or is_small):
        return True
    if is_stamped_by_broker(config):
        return False
    before_max_ms = config.message_timestamp_before_max_ms
    if before_max_ms < _UNBOUNDED_MS and _may_be_early(batch, contents, timestamp_ms - before_max_ms):
        return True
    return batch.max_timestamp_ms > timestamp_ms + config.message_timestamp_after_max_ms


def _may_be_early(batch: RecordBatch, contents: Contents, earliest_ms: int) -> bool:
    """Whether a timestamp may be before `earliest_ms`: one is, or the timestamps are compressed."""
    place = contents.columns.get(Column.TIMESTAMP_DELTAS)
    if place is None:
        return NO_TIMESTAMP != batch.base_timestamp_ms < earliest_ms
    if batch.codec is not Codec.NONE:
        return True
    begin = place[0] + HEADER_BYTES + aligned(contents.end)
    deltas = np.frombuffer(batch.view[begin : begin + place[1] // 8 * 8], np.int64)
    return len(deltas) > 0 and int(deltas.min()) + batch.base_timestamp_ms < earliest_ms


class _Rules:
    """A topic's rules for single records at one moment, and the records that break them."""

    def __init__(self, config: TopicConfig, where: str, timestamp_ms: int) -> None:
        self._config = config
        self._where = where
        self._now_ms = timestamp_ms
        # By the index of the record in its request.
        self._refusals: dict[int, ApiError] = {}
        is_stamped = is_stamped_by_broker(config)
        before_max_ms = _UNBOUNDED_MS if is_stamped else config.message_timestamp_before_max_ms
        after_max_ms = _UNBOUNDED_MS if is_stamped else config.message_timestamp_after_max_ms
        self._earliest_ms = max(timestamp_ms - before_max_ms, -_UNBOUNDED_MS)
        self._latest_ms = min(timestamp_ms + after_max_ms, _UNBOUNDED_MS)

    def check(self, batch: RecordBatch, contents: Contents, first_index: int) -> None:
        """Checks each record of a batch. `first_index`: the index of the first one in the request."""
        if batch.codec is not Codec.NONE and contents.uncompressed_bytes > READ_BYTES_MAX:
            raise RecordTooLarge(
                f"{self._where}: a compressed batch of {contents.uncompressed_bytes} bytes, whose records this topic"
                f" looks at one by one, exceeds {READ_BYTES_MAX}; send smaller batches"
            )
        decoded = decode(batch, check_crc=False)
        stamps_ms = decoded.timestamps_ms
        is_early = (stamps_ms < self._earliest_ms) & (stamps_ms != NO_TIMESTAMP)
        for index in np.flatnonzero(is_early | (stamps_ms > self._latest_ms))[:REFUSALS_MAX].tolist():
            self._refusals[first_index + index] = self._out_of_bounds(int(stamps_ms[index]))
        if batch.has_null_key and self._config.is_compacted:
            for index in np.flatnonzero(~is_valid(decoded.keys))[:REFUSALS_MAX].tolist():
                self._refusals[first_index + index] = InvalidRecord(
                    f"{self._where}: a record has no key; a topic with"
                    f" cleanup.policy={self._config.cleanup_policy} keeps the newest record of each key, so every"
                    " record needs one"
                )

    def _out_of_bounds(self, found_ms: int) -> InvalidTimestamp:
        side, limit_ms = "after", self._config.message_timestamp_after_max_ms
        if found_ms < self._earliest_ms:
            side, limit_ms = "before", self._config.message_timestamp_before_max_ms
        return InvalidTimestamp(
            f"{self._where}: timestamp {found_ms} is {abs(self._now_ms - found_ms)} ms {side} the broker's clock,"
            f" message.timestamp.{side}.max.ms={limit_ms}"
        )

    def raise_refusals(self, record_count: int) -> None:
        """Raises InvalidTimestamp if one of the refusals is one, as Kafka does, else InvalidRecord. Does nothing
        without refusals.
        """
        if not self._refusals:
            return
        listed = dict(sorted(self._refusals.items())[:REFUSALS_MAX])
        index, first = next(iter(listed.items()))
        message = str(first)
        if record_count > 1:
            reason = message.removeprefix(f"{self._where}: ")
            what = f"{len(self._refusals)} of {record_count} records are refused, the first at index {index}"
            message = f"{self._where}: {what}: {reason}"
        is_timestamp = any(isinstance(each, InvalidTimestamp) for each in listed.values())
        raise (InvalidTimestamp if is_timestamp else InvalidRecord)(message, listed)


_OFFSET_BYTES = 4
# At most so many bytes does one byte of a frame stand for: by a match of deflate or LZ4, by a block of zstd.
_EXPANSION_MAX = {Codec.NONE: 1, Codec.GZIP: 1_032, Codec.LZ4: 255, Codec.ZSTD: 1 << 15}


def validate_batches(
    records: Buffer, config: TopicConfig, *, where: str, timestamp_ms: int
) -> list[RecordBatch]:
    """The batches of a produce request, all valid. `where` names the partition in messages.

    Raises CorruptRecord, InvalidRecord, InvalidTimestamp, RecordTooLarge or UnsupportedCompressionType; an
    InvalidRecord or InvalidTimestamp about single records names them.
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
    """A batch that this process has just encoded, so its bytes are valid; checks only the topic's configuration.

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
    """Checks the producer id, epoch and sequence (C1)."""
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
    """Checks the count of records. The table of contents has the number of value offsets, one more than records, and
    the size of all columns; the frame behind it must be able to hold them. Returns the table.
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
