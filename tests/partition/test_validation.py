"""Batches that a leader refuses, each with its own error (B18)."""

from collections.abc import Callable
from struct import pack_into

import numpy as np
import pytest
from crc32c import crc32c

from rayka.cleaner.kept_records import with_records, without_records
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
from rayka.partition.validation import validate_batches
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import UNCOMPRESSED_BYTES_MAX, encode_batch
from rayka.protocol.batch_format import (
    CRC_START,
    HEADER_BYTES,
    NULL_KEY_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Codec,
    Column,
    ProducerSequence,
    RecordBatch,
    aligned,
    pack_contents,
)
from tests.partition.support import NOW_MS, records

LAX = TopicConfig()
FIELDS = {
    "batch_length": (8, ">i"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "producer_id": (43, ">q"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
}


def validate(data: np.ndarray, config: TopicConfig = LAX) -> list[RecordBatch]:
    return validate_batches(data, config, where="orders-3", timestamp_ms=NOW_MS)


def forged(data: np.ndarray, **fields: int) -> np.ndarray:
    """The batch with other header fields, and a CRC that is right for them."""
    forgery = bytearray(data.tobytes())
    for name, value in fields.items():
        position, form = FIELDS[name]
        pack_into(form, forgery, position, value)
    pack_into(">I", forgery, CRC_START - 4, crc32c(bytes(forgery[CRC_START:])))
    return np.frombuffer(bytes(forgery), dtype=np.uint8)


def sequenced(*values: bytes, epoch: int = 0) -> np.ndarray:
    """A batch of an idempotent producer."""
    return encode_batch(list(values), timestamps_ms=NOW_MS, sequence=ProducerSequence(7, epoch, 0))


def flipped(data: np.ndarray, position: int) -> np.ndarray:
    damaged = data.copy()
    damaged[position] ^= 1
    return damaged


def test_good_batches_are_all_given_back() -> None:
    data = np.concatenate([records(b"a"), records(b"b", b"c")])
    assert [each.record_count for each in validate(data)] == [1, 2]


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: np.empty(0, dtype=np.uint8), InvalidRecord, "orders-3: .* at least one batch, found none"),
        (lambda: records(b"a")[:-8], CorruptRecord, "does not fill"),
        (lambda: flipped(records(b"a" * 100), 16), CorruptRecord, "magic"),
        (lambda: flipped(records(b"a" * 100), 150), CorruptRecord, "orders-3.*CRC-32C expected"),
        (
            lambda: forged(records(b"a"), attributes=Codec.SNAPPY),
            UnsupportedCompressionType,
            "orders-3: snappy",
        ),
        (lambda: forged(records(b"a"), attributes=TRANSACTIONAL_BIT), InvalidRecord, "transactional"),
        (lambda: forged(records(b"a"), producer_id=7), InvalidRecord, "orders-3.*producer id"),  # C1
        (lambda: sequenced(b"a", epoch=-1), InvalidRecord, "0 or more, found 7, -1 and 0"),  # C1
        (lambda: forged(sequenced(b"a"), base_sequence=-1), InvalidRecord, "found 7, 0 and -1"),  # C1
        (lambda: forged(sequenced(b"a"), producer_id=-2), InvalidRecord, "found -2, 0 and 0"),  # C1
        (lambda: np.concatenate([sequenced(b"a"), records(b"b")]), InvalidRecord, "one batch"),  # C1
        (lambda: np.concatenate([records(b"a"), sequenced(b"b")]), InvalidRecord, "one batch"),  # C1
        (lambda: encode_batch([b"a"], timestamps_ms=1, is_control=True), InvalidRecord, "control"),
        (lambda: forged(records(b"a"), last_offset_delta=4), CorruptRecord, "gaps"),
        (lambda: forged(records(b"a"), attributes=TIMESTAMP_TYPE_BIT), InvalidTimestamp, "LogAppendTime"),
    ],
)
def test_a_bad_batch_is_refused(make: Callable[[], np.ndarray], error: type[ApiError], says: str) -> None:
    with pytest.raises(error, match=says):
        validate(make())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_batch_that_claims_more_records_than_its_columns_hold_is_refused(codec: Codec) -> None:
    good = encode_batch([b""] * 1_000, timestamps_ms=NOW_MS, codec=codec)
    assert validate(good)
    for count in (999, 1_001, 2**31 - 1):
        says = rf"^orders-3: .*: {count} records have {4 * (count + 1)} bytes of offsets, found 4004$"
        with pytest.raises(CorruptRecord, match=says):
            validate(forged(good, record_count=count, last_offset_delta=count - 1))


def test_a_header_alone_holds_no_records() -> None:
    alone = forged(records(b"a")[:HEADER_BYTES], batch_length=HEADER_BYTES - 12)
    with pytest.raises(CorruptRecord, match="no table of contents"):
        validate(forged(alone, record_count=2**31 - 1, last_offset_delta=2**31 - 2))


@pytest.mark.parametrize(
    ("codec", "count_max"),
    [(Codec.NONE, 16), (Codec.GZIP, 20_000), (Codec.LZ4, 5_000), (Codec.ZSTD, 600_000)],
)
def test_columns_that_no_frame_of_that_size_holds_are_refused(codec: Codec, count_max: int) -> None:
    """A table of contents that agrees with the count proves nothing: the bytes behind it must be able to hold that."""
    with pytest.raises(CorruptRecord, match="cannot hold"):
        validate(hollow(count_max, codec))
    assert validate(hollow(count_max // 2, codec))
    with pytest.raises(CorruptRecord, match="cannot hold"):
        validate(hollow(UNCOMPRESSED_BYTES_MAX // 4 - 1, codec))
    with pytest.raises(CorruptRecord, match=f"more than {UNCOMPRESSED_BYTES_MAX}"):
        validate(hollow(UNCOMPRESSED_BYTES_MAX // 4, codec))


def hollow(count: int, codec: Codec, column: Column = Column.VALUE_OFFSETS) -> np.ndarray:
    """64 zeros, of which the table of contents says that they are the offsets of so many records."""
    lengths = [(column.value, 4 * (count + 1))]
    contents = pack_contents(aligned(4 * (count + 1)), lengths)
    body = contents.ljust(aligned(len(contents)), b"\0") + bytes(64)
    header = bytes(records(b"a")[:HEADER_BYTES])
    return forged(
        np.frombuffer(header + body, dtype=np.uint8),
        batch_length=HEADER_BYTES + len(body) - 12,
        attributes=codec | NULL_KEY_BIT,
        record_count=count,
        last_offset_delta=count - 1,
    )


def test_columns_of_the_very_size_that_a_frame_can_hold_are_taken() -> None:
    """With gzip the columns hold 1,032 times the 65 bytes behind the table of contents; an offset takes 4 bytes."""
    assert validate(hollow(65 * 1_032 // 4 - 1, Codec.GZIP))
    with pytest.raises(CorruptRecord, match="65 bytes cannot hold 67088 of columns"):
        validate(hollow(65 * 1_032 // 4, Codec.GZIP))


def test_a_batch_without_offsets_of_values_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="1 records have 8 bytes of offsets, found 0"):
        validate(hollow(1, Codec.NONE, column=Column.VALUE_DATA))


def test_one_batch_of_an_idempotent_producer_is_taken() -> None:  # C1
    assert len(validate(sequenced(b"a", b"b"))) == 1


def test_one_bad_batch_refuses_all() -> None:
    with pytest.raises(CorruptRecord):
        validate(np.concatenate([records(b"a"), flipped(records(b"a" * 100), 150)]))


def test_a_batch_above_the_topics_limit_is_too_large() -> None:
    data = records(b"a" * 1000)
    assert validate(data, TopicConfig(max_message_bytes=data.size))
    with pytest.raises(
        RecordTooLarge, match=f"^orders-3: .*max.message.bytes={data.size - 1}; send smaller batches"
    ):
        validate(data, TopicConfig(max_message_bytes=data.size - 1))


@pytest.mark.parametrize(("age_ms", "is_accepted"), [(10, True), (11, False), (-20, True), (-21, False)])
def test_timestamps_have_bounds_on_both_sides(age_ms: int, is_accepted: bool) -> None:
    config = TopicConfig(message_timestamp_before_max_ms=10, message_timestamp_after_max_ms=20)
    data = records(b"a", timestamp_ms=NOW_MS - age_ms)
    if is_accepted:
        assert validate(data, config)
    else:
        side, limit_ms = ("before", 10) if age_ms > 0 else ("after", 20)
        says = f"orders-3: timestamp {NOW_MS - age_ms} is {abs(age_ms)} ms {side} the broker's clock,"
        with pytest.raises(InvalidTimestamp, match=f"^{says} message.timestamp.{side}.max.ms={limit_ms}$"):
            validate(data, config)


def test_a_record_without_a_timestamp_has_no_bounds() -> None:
    assert validate(records(b"a", timestamp_ms=NO_TIMESTAMP), TopicConfig(message_timestamp_before_max_ms=10))


def test_where_the_broker_stamps_records_the_producers_time_does_not_matter() -> None:
    config = TopicConfig(
        message_timestamp_type=MessageTimestampType.LOG_APPEND_TIME, message_timestamp_before_max_ms=10
    )
    assert validate(records(b"a", timestamp_ms=1), config)


def test_a_compacted_topic_takes_no_record_without_a_key() -> None:  # B18
    compacted = LAX.model_copy(update={"cleanup_policy": "compact,delete"})
    keyless = encode_batch([b"1", b"2"], keys=[b"a", None], timestamps_ms=NOW_MS)
    with pytest.raises(InvalidRecord, match="every record needs one"):
        validate(keyless, compacted)
    assert validate(keyless)
    assert validate(encode_batch([None], keys=[b""], timestamps_ms=NOW_MS), compacted)


def test_what_only_compaction_writes_is_refused() -> None:  # F23, F25
    decoded = decode(RecordBatch(encode_batch([None], keys=[b"a"], timestamps_ms=NOW_MS)))
    stamped = np.frombuffer(with_records(decoded, np.ones(1, bool), NOW_MS), np.uint8)
    with pytest.raises(InvalidRecord, match="delete horizon"):
        validate(stamped)
    with pytest.raises(CorruptRecord):
        validate(np.frombuffer(without_records(decoded.batch), np.uint8))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("keys", [[b"k", b"l"], [b"k", None]])
def test_a_compacted_topic_refuses_a_header_that_contradicts_its_keys(
    codec: Codec, keys: list[bytes | None]
) -> None:  # B18, F27
    data = encode_batch([b"a", b"b"], keys=keys, timestamps_ms=NOW_MS, codec=codec)
    contrary = RecordBatch(data).attributes ^ NULL_KEY_BIT
    with pytest.raises(CorruptRecord, match="has_null_key"):
        validate(forged(data, attributes=contrary), LAX.model_copy(update={"cleanup_policy": "compact"}))
