"""The records of groups as bytes, and what many of them come to."""

from uuid import UUID

import msgspec
import pytest

from rayka.coordinator.group_records import (
    GROUP_CODEC,
    VERSION,
    GroupKey,
    GroupRecord,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
)
from rayka.coordinator.group_shard import GroupShard, partition_of_group
from rayka.errors import CorruptRecord, UnsupportedVersion
from rayka.ids import NO_TIMESTAMP
from rayka.protocol.batch_encode import encode_batch
from rayka.shard.shard_records import KeyValue
from tests.coordinator.group_support import Coordinator, MemoryLog, answer, offers

MEMBER = MemberValue("m", "i", "c", "host", 60_000, 10_000, offers("range", "sticky"), b"\x00mine")
VALUE = OffsetValue(VERSION, 7, 2, "größe", 1_700_000_000_000, UUID(int=0xFEDCBA98 << 90).bytes)
RECORDS = [
    GroupRecord(OffsetKey("g", "t", 3), VALUE),
    GroupRecord(OffsetKey("g", "t", 3), None),
    GroupRecord(
        GroupKey("g"),
        GroupValue(VERSION, "consumer", 4, "range", "m", 1_700_000_000_000, (MEMBER,)),
    ),
    GroupRecord(GroupKey("g"), GroupValue(VERSION, "consumer", 5, "", "", NO_TIMESTAMP)),
    GroupRecord(GroupKey("g"), None),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda each: type(each.key).__name__)
def test_a_record_comes_back_as_it_was(record: GroupRecord) -> None:  # E1
    assert GROUP_CODEC.decode(GROUP_CODEC.encode(record)) == record


def test_records_of_one_thing_have_one_key_and_others_have_others() -> None:  # E1
    keys = [GROUP_CODEC.encode(each).key for each in RECORDS]
    assert (keys[0], keys[2]) == (keys[1], keys[3])
    others = [OffsetKey("g", "t", 4), OffsetKey("g", "u", 3), OffsetKey("h", "t", 3), GroupKey("h")]
    found = {GROUP_CODEC.encode(GroupRecord(each, None)).key for each in others}
    assert len(found | {keys[0], keys[2]}) == 6


KEY = GROUP_CODEC.encode(RECORDS[0]).key


@pytest.mark.parametrize(
    ("pair", "error", "message"),
    [
        (KeyValue(None, b""), CorruptRecord, "found none"),
        (KeyValue(b"\xc1", b""), CorruptRecord, "expected the key of a group or of an offset"),
        (KeyValue(msgspec.msgpack.encode([1, "g"]), b""), CorruptRecord, "expected the key"),
        (KeyValue(msgspec.msgpack.encode([3, "g"]), b""), UnsupportedVersion, "a key of type 3"),
        (KeyValue(KEY, b"\xc1"), CorruptRecord, "expected the value of OffsetKey"),
        (
            KeyValue(KEY, msgspec.msgpack.encode([1, 2, 3, "", 4])),
            UnsupportedVersion,
            "a value of version 0, found 1",
        ),
    ],
)
def test_a_record_that_cannot_be_read_says_what_was_expected(
    pair: KeyValue, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        GROUP_CODEC.decode(pair)


OFFSETS = [GroupRecord(OffsetKey("g", "t", number), VALUE) for number in range(1_200)]


@pytest.mark.parametrize(
    "records",
    [
        OFFSETS,
        [*OFFSETS[:700], GroupRecord(OffsetKey("g", "t", 3), None), *OFFSETS[700:]],
        [*OFFSETS, *RECORDS],
    ],
    ids=["offsets", "one is forgotten", "groups, too"],
)
def test_a_batch_of_many_records_comes_back_as_it_was(records: list[GroupRecord]) -> None:  # E1
    values, keys = GROUP_CODEC.columns(records)
    batch = encode_batch(values, keys=keys, timestamps_ms=1)
    assert list(GROUP_CODEC.committed(batch, 0)) == list(enumerate(records))
    assert list(GROUP_CODEC.committed(batch, 1_000)) == list(enumerate(records))[1_000:]


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        (None, b"", CorruptRecord, "the record at offset 900: expected the key"),
        (b"\xc1", b"", CorruptRecord, "the record at offset 900: expected the key"),
        (KEY, b"\xc1", CorruptRecord, "the record at offset 900: expected the value"),
        (KEY, msgspec.msgpack.encode([0, 7, 2, "", 4, b"short"]), CorruptRecord, "the record at offset 900"),
        (KEY, msgspec.msgpack.encode([1, 2, 3, "", 4]), UnsupportedVersion, "a value of version 0, found 1"),
    ],
)
def test_of_a_batch_of_many_the_record_that_cannot_be_read_is_named_and_those_before_it_are_given(
    key: bytes | None, value: bytes, error: type[Exception], message: str
) -> None:
    values, keys = GROUP_CODEC.columns(OFFSETS)
    assert keys is not None
    keys[900], values[900] = key, value
    batch = encode_batch(values, keys=keys, timestamps_ms=1)
    found: list[tuple[int, GroupRecord]] = []
    with pytest.raises(error, match=message):
        found.extend(GROUP_CODEC.committed(batch, 0))
    assert found == list(enumerate(OFFSETS))[:900]


def test_fields_that_a_later_version_appends_are_ignored() -> None:
    value = msgspec.msgpack.encode([0, 7, 2, "", 4, bytes(16), "later"])
    assert GROUP_CODEC.decode(KeyValue(KEY, value)).value == OffsetValue(VERSION, 7, 2, "", 4)


def known(coordinator: Coordinator) -> tuple[object, object]:
    shard = coordinator.runtime.shard
    return shard.store.groups, shard.store.offsets


def some_history() -> Coordinator:
    coordinator = Coordinator()
    ids = coordinator.stable(3, instances=["i"])
    answer(coordinator.commit({"t-0": 1, "t-1": 1}, 1, ids[0] if ids[0].startswith("c") else ids[1]))
    coordinator.leave(*ids)
    coordinator.stable(2)
    return coordinator


def test_records_that_are_replayed_twice_give_the_same_state() -> None:  # E1
    coordinator = some_history()
    coordinator.restart()
    once = known(coordinator)
    log = MemoryLog()
    log.pairs = coordinator.log.pairs * 2
    assert known(Coordinator(log)) == once


def test_a_log_of_which_only_the_last_record_of_each_key_is_left_gives_the_same_state() -> None:  # E1
    coordinator = some_history()
    coordinator.restart()
    compacted = MemoryLog()
    compacted.pairs = list({each.key: each for each in coordinator.log.pairs}.values())
    assert len(compacted.pairs) < len(coordinator.log.pairs)
    assert known(Coordinator(compacted)) == known(coordinator)


def test_a_standby_knows_what_the_active_coordinator_has_written() -> None:  # E1
    coordinator = some_history()
    standby = GroupShard(coordinator.config, None, lambda: 0)  # type: ignore[arg-type]
    for offset, record in enumerate(coordinator.log.records()):
        standby.replay(record, offset)
    coordinator.restart()
    assert (standby.store.groups, standby.store.offsets) == known(coordinator)


@pytest.mark.parametrize(
    ("group_id", "hashed"),
    [
        ("", 0),
        ("a", 97),
        ("BB", 2_112),
        ("hello", 99_162_322),
        ("😀", 1_772_899),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_a_group_is_on_the_partition_that_javas_hash_says(group_id: str, hashed: int) -> None:  # E1
    expected = 0 if hashed == -(2**31) else abs(hashed) % 50
    assert partition_of_group(group_id, 50) == expected
