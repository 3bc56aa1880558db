"""The header of a batch: what it says, what the leader stamps, what the CRC covers, how batches are walked."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.errors import CorruptRecord
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import encode_batch, with_sequence
from rayka.protocol.batch_format import (
    HEADER_BYTES,
    NO_SEQUENCE,
    Codec,
    ProducerSequence,
    RecordBatch,
    TimestampType,
    split_batches,
)

SAMPLE = encode_batch([b"one", b"two", b"three"], keys=[b"k", b"k", b"k"], timestamps_ms=[50, 70, 60])


def _joined(parts: list[bytes]) -> bytes:
    return b"".join(bytes(part) for part in parts)


def _changed(position: int, form: str, value: int) -> bytearray:
    changed = bytearray(SAMPLE.tobytes())
    struct.pack_into(form, changed, position, value)
    return changed


def test_a_new_batch_starts_at_offset_0_without_epoch_and_producer() -> None:  # F1
    batch = RecordBatch(SAMPLE)
    assert (batch.base_offset, batch.last_offset, batch.next_offset, batch.record_count) == (0, 2, 3, 3)
    assert (batch.leader_epoch, batch.producer_id, batch.producer_epoch, batch.base_sequence) == (
        -1,
        -1,
        -1,
        -1,
    )
    assert (batch.base_timestamp_ms, batch.max_timestamp_ms) == (50, 70)
    assert batch.size_bytes == len(SAMPLE) == batch.batch_length + 12
    assert len(SAMPLE) % 8 == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_the_attributes_name_the_codec(codec: Codec) -> None:  # F2
    assert RecordBatch(encode_batch([b"x"], timestamps_ms=0, codec=codec)).codec is codec


def test_the_attributes_of_a_plain_batch_set_no_flag() -> None:  # F2
    batch = RecordBatch(SAMPLE)
    assert batch.timestamp_type is TimestampType.CREATE_TIME
    assert not batch.is_control
    assert not batch.is_transactional


def test_a_control_batch_says_so() -> None:  # F2
    assert RecordBatch(encode_batch([b"x"], keys=[b"k"], timestamps_ms=0, is_control=True)).is_control


@pytest.mark.parametrize(("keys", "expected"), [(None, True), ([b"k", None], True), ([b"k", b""], False)])
def test_the_header_says_whether_some_key_is_null(
    keys: list[bytes | None] | None, expected: bool
) -> None:  # B18
    assert RecordBatch(encode_batch([b"x", b"y"], keys=keys, timestamps_ms=0)).has_null_key is expected


def test_the_leader_stamps_offset_and_epoch_outside_the_crc() -> None:  # F1, B18
    stamped = RecordBatch(_joined(RecordBatch(SAMPLE).stamped(base_offset=1000, leader_epoch=7)))
    assert (stamped.base_offset, stamped.last_offset, stamped.leader_epoch) == (1000, 1002, 7)
    assert stamped.crc == RecordBatch(SAMPLE).crc
    assert stamped.is_crc_valid()


def test_stamping_does_not_copy_the_body() -> None:
    header, body = RecordBatch(SAMPLE).stamped(base_offset=1000, leader_epoch=7)
    assert len(header) == HEADER_BYTES
    assert np.shares_memory(np.frombuffer(body, np.uint8), SAMPLE)


def test_log_append_time_replaces_every_timestamp_and_the_crc() -> None:  # F2, B18
    parts = RecordBatch(SAMPLE).stamped(base_offset=5, leader_epoch=0, log_append_time_ms=99)
    stamped = RecordBatch(_joined(parts))
    assert stamped.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert stamped.max_timestamp_ms == 99
    assert decode(stamped).timestamps_ms.tolist() == [99, 99, 99]


@given(st.integers(21 * 8, len(SAMPLE) * 8 - 1))
def test_the_crc_sees_every_flipped_bit_from_the_attributes_on(bit: int) -> None:  # F1
    flipped = bytearray(SAMPLE.tobytes())
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptRecord):
        RecordBatch(flipped).check_crc()


def test_a_wrong_crc_is_told_with_place_offset_expected_and_found() -> None:
    batch = RecordBatch(_changed(len(SAMPLE) - 1, ">b", 1))
    with pytest.raises(
        CorruptRecord, match=r"00000.log: batch at offset 0: .* expected 0x\w{8}, found 0x\w{8}"
    ):
        batch.check_crc("00000.log")


@pytest.mark.parametrize(
    ("position", "form", "value"),
    [
        (0, ">q", -1),  # base offset
        (8, ">i", len(SAMPLE)),  # batch length beyond the bytes
        (8, ">i", -1),
        (8, ">i", 2**31 - 1),
        (16, ">b", 2),  # Kafka's own magic
        (21, ">h", 7),  # a codec that does not exist
        (23, ">i", 1),  # last offset delta below the record count
        (57, ">i", -3),  # record count
        (57, ">i", 2**31 - 1),
        (61, ">b", 1),  # reserved
    ],
)
def test_a_header_that_contradicts_itself_is_corrupt(position: int, form: str, value: int) -> None:
    with pytest.raises(CorruptRecord):
        RecordBatch(_changed(position, form, value))


@given(st.integers(0, len(SAMPLE) - 1))
def test_a_cut_batch_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptRecord):
        RecordBatch(SAMPLE[:size])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        RecordBatch(data)


def test_splitting_gives_the_batches_one_after_another() -> None:
    second = encode_batch([b"x" * 100], timestamps_ms=5)
    batches = list(split_batches(np.concatenate([SAMPLE, second, SAMPLE])))
    assert [batch.size_bytes for batch in batches] == [len(SAMPLE), len(second), len(SAMPLE)]
    assert [batch.record_count for batch in batches] == [3, 1, 3]


@given(st.integers(1, len(SAMPLE) - 1))
def test_splitting_a_torn_tail_is_corrupt(size: int) -> None:
    batches = split_batches(SAMPLE.tobytes() + SAMPLE.tobytes()[:size])
    assert next(batches).record_count == 3
    with pytest.raises(CorruptRecord):
        next(batches)


def test_zeros_are_no_batches() -> None:
    with pytest.raises(CorruptRecord, match="magic 82, found 0"):
        next(split_batches(bytes(500)))


def test_a_batch_shows_its_offset_records_and_size() -> None:
    assert repr(RecordBatch(SAMPLE)) == (
        f"<RecordBatch offset=0 records=3 epoch=-1 attributes=0x0 bytes={len(SAMPLE)}>"
    )


# ---- Sequences ----


@pytest.mark.parametrize(("base_sequence", "last_sequence"), [(0, 2), (2**31 - 3, 2**31 - 1), (2**31 - 1, 1)])
def test_a_batch_knows_its_last_sequence_which_wraps_to_zero(
    base_sequence: int, last_sequence: int
) -> None:  # C1
    given = encode_batch([b"v"] * 3, timestamps_ms=1, sequence=ProducerSequence(7, 2, base_sequence))
    batch = RecordBatch(given)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, base_sequence)
    assert batch.last_sequence == last_sequence
    assert batch.is_crc_valid()


def test_a_batch_of_a_producer_that_is_not_idempotent_has_no_sequence() -> None:  # C1
    batch = RecordBatch(encode_batch([b"v"], timestamps_ms=1))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == NO_SEQUENCE == (-1, -1, -1)


def test_another_sequence_is_stamped_on_a_copy_under_a_crc_of_its_own() -> None:  # C1, C11
    values = [b"one", b"two"]
    first = encode_batch(values, timestamps_ms=1, sequence=ProducerSequence(7, 0, 5))
    again = with_sequence(first, ProducerSequence(7, 1, 0))
    assert (
        again.tobytes() == encode_batch(values, timestamps_ms=1, sequence=ProducerSequence(7, 1, 0)).tobytes()
    )
    assert RecordBatch(first).is_crc_valid()
    assert RecordBatch(first).base_sequence == 5
