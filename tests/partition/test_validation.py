"""What a leader refuses to append, each with its own error (B18)."""

from collections.abc import Callable
from struct import pack_into

import numpy as np
import pytest
from crc32c import crc32c

from rayka.config import MessageTimestampType, TopicConfig
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
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_header import (
    CRC_START,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Codec,
    ProducerSequence,
    RecordBatch,
)
from tests.partition.support import NOW_MS, records

LAX = TopicConfig()
FIELDS = {"attributes": (21, ">h"), "last_offset_delta": (23, ">i"), "producer_id": (43, ">q")}


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
    """Of an idempotent producer."""
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
        (lambda: np.empty(0, dtype=np.uint8), InvalidRecord, "at least one batch, found none"),
        (lambda: records(b"a")[:-8], CorruptRecord, "does not fill"),
        (lambda: flipped(records(b"a" * 100), 16), CorruptRecord, "magic"),
        (lambda: flipped(records(b"a" * 100), 150), CorruptRecord, "orders-3.*CRC-32C expected"),
        (lambda: forged(records(b"a"), attributes=Codec.SNAPPY), UnsupportedCompressionType, "snappy"),
        (lambda: forged(records(b"a"), attributes=TRANSACTIONAL_BIT), InvalidRecord, "transactional"),
        (lambda: forged(records(b"a"), producer_id=7), InvalidRecord, "producer id"),  # C1
        (lambda: sequenced(b"a", epoch=-1), InvalidRecord, "0 or more, found 7, -1 and 0"),  # C1
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


def test_one_bad_batch_refuses_all() -> None:
    with pytest.raises(CorruptRecord):
        validate(np.concatenate([records(b"a"), flipped(records(b"a" * 100), 150)]))


def test_a_batch_above_the_topics_limit_is_too_large() -> None:
    data = records(b"a" * 1000)
    assert validate(data, TopicConfig(max_message_bytes=data.size))
    with pytest.raises(RecordTooLarge, match=f"max.message.bytes={data.size - 1}"):
        validate(data, TopicConfig(max_message_bytes=data.size - 1))


@pytest.mark.parametrize(("age_ms", "is_accepted"), [(10, True), (11, False), (-20, True), (-21, False)])
def test_timestamps_have_bounds_on_both_sides(age_ms: int, is_accepted: bool) -> None:
    config = TopicConfig(message_timestamp_before_max_ms=10, message_timestamp_after_max_ms=20)
    data = records(b"a", timestamp_ms=NOW_MS - age_ms)
    if is_accepted:
        assert validate(data, config)
    else:
        with pytest.raises(InvalidTimestamp, match=str(NOW_MS - age_ms)):
            validate(data, config)


def test_a_record_without_a_timestamp_has_no_bounds() -> None:
    assert validate(records(b"a", timestamp_ms=NO_TIMESTAMP), TopicConfig(message_timestamp_before_max_ms=10))


def test_where_the_broker_stamps_records_the_producers_time_does_not_matter() -> None:
    config = TopicConfig(
        message_timestamp_type=MessageTimestampType.LOG_APPEND_TIME, message_timestamp_before_max_ms=10
    )
    assert validate(records(b"a", timestamp_ms=1), config)
