"""The records that a topic refuses: each one by itself, whatever batch it comes in (B18, KIP-467)."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.config.topic_config import MessageTimestampType, TopicConfig
from rayka.errors import ApiError, InvalidRecord, InvalidTimestamp, RecordsRefused, RecordTooLarge
from rayka.ids import NO_TIMESTAMP
from rayka.partition import validation
from rayka.partition.validation import validate_batches
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import Codec
from tests.partition.support import NOW_MS

BEFORE_MS, AFTER_MS = 10, 20
BOUNDED = TopicConfig(message_timestamp_before_max_ms=BEFORE_MS, message_timestamp_after_max_ms=AFTER_MS)
CODECS = [each for each in Codec if each is not Codec.SNAPPY]
_stamps = st.one_of(st.just(NO_TIMESTAMP), st.integers(NOW_MS - 15, NOW_MS + 25), st.integers(0, 2**62))
_records = st.lists(st.tuples(st.one_of(st.none(), st.just(b"k")), _stamps), min_size=1, max_size=80)


def refusals(data: np.ndarray, config: TopicConfig) -> Mapping[int, ApiError]:
    """The records that are refused, and why."""
    try:
        validate_batches(data, config, where="orders-3", timestamp_ms=NOW_MS)
    except RecordsRefused as error:
        return error.refusals
    return {}


def is_refused(key: bytes | None, stamp_ms: int, config: TopicConfig) -> bool:
    """The model, for one record alone."""
    if config.is_compacted and key is None:
        return True
    if stamp_ms == NO_TIMESTAMP or config.message_timestamp_type is MessageTimestampType.LOG_APPEND_TIME:
        return False
    return (
        not -config.message_timestamp_before_max_ms
        <= stamp_ms - NOW_MS
        <= config.message_timestamp_after_max_ms
    )


@given(
    batches=st.lists(_records, min_size=1, max_size=3),
    codec=st.sampled_from(CODECS),
    cleanup_policy=st.sampled_from(["delete", "compact", "compact,delete"]),
    timestamp_type=st.sampled_from(MessageTimestampType),
    before_ms=st.sampled_from([0, BEFORE_MS, 2**63 - 1]),
    after_ms=st.sampled_from([0, AFTER_MS, 2**63 - 1]),
)
def test_each_record_is_judged_by_itself(
    batches: list[list[tuple[bytes | None, int]]],
    codec: Codec,
    cleanup_policy: str,
    timestamp_type: MessageTimestampType,
    before_ms: int,
    after_ms: int,
) -> None:
    config = TopicConfig(
        cleanup_policy=cleanup_policy,
        message_timestamp_type=timestamp_type,
        message_timestamp_before_max_ms=before_ms,
        message_timestamp_after_max_ms=after_ms,
    )
    encoded = [
        encode_batch(
            [b"v"] * len(records),
            keys=[key for key, _ in records],
            timestamps_ms=np.array([stamp_ms for _, stamp_ms in records], np.int64),
            codec=codec,
        )
        for records in batches
    ]
    records = [each for batch in batches for each in batch]
    wrong = [index for index, each in enumerate(records) if is_refused(*each, config)]
    assert list(refusals(np.concatenate(encoded), config)) == wrong


@pytest.mark.parametrize("codec", CODECS)
def test_an_early_record_in_the_middle_is_found_and_named(codec: Codec) -> None:
    stamps_ms = np.array([NOW_MS, NOW_MS - 11, NOW_MS + 1], np.int64)
    batch = encode_batch([b"a", b"b", b"c"], timestamps_ms=stamps_ms, codec=codec)
    with pytest.raises(
        InvalidTimestamp,
        match=rf"^orders-3: 1 of 3 records are refused, the first at index 1: timestamp {NOW_MS - 11} is 11 ms before",
    ) as raised:
        validate_batches(batch, BOUNDED, where="orders-3", timestamp_ms=NOW_MS)
    (error,) = raised.value.refusals.values()
    assert str(error).startswith(f"orders-3: timestamp {NOW_MS - 11} is 11 ms before the broker's clock")


def test_records_of_both_kinds_have_each_its_own_error() -> None:
    config = TopicConfig(cleanup_policy="compact", message_timestamp_after_max_ms=AFTER_MS)
    stamps_ms = np.array([NOW_MS, NOW_MS + 21, NOW_MS], np.int64)
    found = refusals(encode_batch([b"v"] * 3, keys=[b"a", b"b", None], timestamps_ms=stamps_ms), config)
    assert {index: type(each) for index, each in found.items()} == {1: InvalidTimestamp, 2: InvalidRecord}
    assert "every record needs one" in str(found[2])


def test_no_answer_names_more_than_a_thousand_records() -> None:
    config = TopicConfig(cleanup_policy="compact")
    batch = encode_batch([b"v"] * 1_500, timestamps_ms=NOW_MS)
    assert list(refusals(batch, config)) == list(range(1_000))


@pytest.mark.parametrize("codec", [each for each in CODECS if each is not Codec.NONE])
@pytest.mark.parametrize("config", [BOUNDED, TopicConfig(cleanup_policy="compact")])
def test_a_compressed_batch_is_decompressed_as_far_as_the_event_loop_can_wait(
    codec: Codec, config: TopicConfig
) -> None:
    count = validation.READ_BYTES_MAX // 1_000
    stamps_ms = np.arange(count, dtype=np.int64) % 5 + NOW_MS
    batch = encode_batch([bytes(1_000)] * count, timestamps_ms=stamps_ms, codec=codec)
    with pytest.raises(RecordTooLarge, match="send smaller batches"):
        validate_batches(batch, config, where="orders-3", timestamp_ms=NOW_MS)
    plain = TopicConfig(message_timestamp_after_max_ms=AFTER_MS)
    assert validate_batches(batch, plain, where="orders-3", timestamp_ms=NOW_MS)  # its header says enough
