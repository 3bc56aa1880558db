"""Records as keys and values of batches, and back."""

import pytest

from rayka.errors import CorruptRecord
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import RecordBatch
from rayka.shard.shard_records import KeyValue, RecordCodec, value_codec

TEXT = value_codec(str.encode, bytes.decode)
ENTRIES: RecordCodec[KeyValue] = RecordCodec(lambda record: record, lambda pair: pair)


def batch(values: list[bytes | None], **changes: object) -> RecordBatch:
    return RecordBatch(encode_batch(values, timestamps_ms=1, **changes))  # type: ignore[arg-type]


def test_records_without_keys_are_values() -> None:
    assert TEXT.columns(["a", "b"]) == ([b"a", b"b"], None)
    assert list(TEXT.records(batch([b"a", b"b"]))) == [(0, "a"), (1, "b")]


def test_keys_and_records_without_a_value_come_back() -> None:
    records = [KeyValue(b"k", b"v"), KeyValue(b"k", None), KeyValue(None, b"w")]
    values, keys = ENTRIES.columns(records)
    assert [record for _, record in ENTRIES.records(batch(values, keys=keys))] == records


def test_compacted_records_keep_their_offsets() -> None:  # F20
    compacted = batch([b"a", b"b"], keys=[b"x", b"y"], offset_deltas=[3, 7])
    assert [offset for offset, _ in ENTRIES.records(compacted)] == [3, 7]


def test_control_batches_are_the_logs_own() -> None:
    assert list(TEXT.records(batch([b"a"], is_control=True))) == []


def test_a_record_that_has_no_value_is_named_where_there_must_be_one() -> None:
    with pytest.raises(CorruptRecord, match="the record at offset 1: expected a value, found none"):
        list(TEXT.records(batch([b"a", None])))
