"""The records of `__consumer_offsets`: groups and committed offsets, by keys, of which the last record counts.

A record without a value is a tombstone. Keys and values are MessagePack; a value begins with the number of its version.
Invariant: a record that this version does not know is an error that says so, and never skipped. Kafka:
`GroupCoordinatorRecordSerde`, GroupMetadataKey/Value, OffsetCommitKey/Value (E1).
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from rayka.errors import CorruptRecord, UnsupportedVersion
from rayka.ids import ZERO_ID
from rayka.protocol.groups import GroupProtocol
from rayka.shard.shard_records import KeyValue, RecordCodec

VERSION = 0
# The garbage collector looks at each UUID, and at no bytes: a coordinator may have millions of them.
TopicIdBytes = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
NO_TOPIC_ID = ZERO_ID.bytes


class OffsetKey(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """What a group has committed of one partition."""

    group_id: str
    topic: str
    partition: int


class GroupKey(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A group and its members."""

    group_id: str


class OffsetValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A committed offset; the time is of the wall clock, and NO_TOPIC_ID a topic id that the member did not know."""

    version: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    topic_id: TopicIdBytes = NO_TOPIC_ID


class MemberValue(msgspec.Struct, frozen=True, array_like=True):
    """A member of a generation, with what it offers and what it was assigned."""

    member_id: str
    group_instance_id: str
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes


class GroupValue(msgspec.Struct, frozen=True, array_like=True):
    """A generation as its leader's assignment left it, or a group without members; the time is that at which it came
    to be so.
    """

    version: int
    protocol_type: str
    generation_id: int
    protocol_name: str
    leader_id: str
    state_timestamp_ms: int
    members: tuple[MemberValue, ...] = ()


class GroupRecord(msgspec.Struct, frozen=True):
    """One key with its new value; None: what it names is no more."""

    key: OffsetKey | GroupKey
    value: OffsetValue | GroupValue | None


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_key_decoder = msgspec.msgpack.Decoder(OffsetKey | GroupKey)
_offset_key_decoder = msgspec.msgpack.Decoder(OffsetKey)
_version_decoder = msgspec.msgpack.Decoder(list)
_offset_decoder = msgspec.msgpack.Decoder(OffsetValue)
_group_decoder = msgspec.msgpack.Decoder(GroupValue)


def _encode(record: GroupRecord) -> KeyValue:
    value = None if record.value is None else _encoder.encode(record.value)
    return KeyValue(_encoder.encode(record.key), value)


def _decode(pair: KeyValue) -> GroupRecord:
    if pair.key is None:
        raise CorruptRecord("expected the key of a group or of an offset, found none")
    try:
        key = _key_decoder.decode(pair.key)
    except msgspec.DecodeError as error:
        raise _explained(pair.key, error, "the key of a group or of an offset") from error
    if pair.value is None:
        return GroupRecord(key, None)
    try:
        if isinstance(key, OffsetKey):
            return GroupRecord(key, _newest(_offset_decoder.decode(pair.value)))
        return GroupRecord(key, _newest(_group_decoder.decode(pair.value)))
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"expected the value of {key!r}: {error}") from error


def _newest(value: OffsetValue | GroupValue) -> OffsetValue | GroupValue:
    if value.version != VERSION:
        raise UnsupportedVersion(f"expected a value of version {VERSION}, found {value.version}")
    return value


def _explained(data: bytes, error: msgspec.DecodeError, expected: str) -> CorruptRecord | UnsupportedVersion:
    """A key of a type that a later version has, or no key at all."""
    try:
        fields = _version_decoder.decode(data)
    except msgspec.DecodeError:
        fields = []
    if fields and isinstance(fields[0], int) and fields[0] not in (1, 2):
        return UnsupportedVersion(
            f"expected {expected}, found a key of type {fields[0]}; a later version knows it"
        )
    return CorruptRecord(f"expected {expected}: {error}")


def _decode_offsets(
    keys: Sequence[bytes | None], values: Sequence[bytes | None]
) -> Sequence[GroupRecord] | None:
    """Committed offsets, of which a coordinator may have to load millions; None where there is anything else."""
    try:
        found_keys = list(map(_offset_key_decoder.decode, keys))  # type: ignore[arg-type]  # None is a TypeError
        found = list(map(_offset_decoder.decode, values))  # type: ignore[arg-type]
    except (msgspec.DecodeError, TypeError):
        return None
    are_newest = all(each.version == VERSION for each in found)
    return list(map(GroupRecord, found_keys, found)) if are_newest else None


GROUP_CODEC: RecordCodec[GroupRecord] = RecordCodec(_encode, _decode, _decode_offsets)
