"""The records of `__consumer_offsets`: groups and committed offsets by key. The last record of a key counts.

A record without a value is a tombstone. Keys and values are MessagePack; a value begins with the number of its version.
Invariant: a record of a later version raises an error and is never skipped. Kafka: `GroupCoordinatorRecordSerde`,
GroupMetadataKey/Value, OffsetCommitKey/Value (E1).
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from rayka.errors import CorruptRecord, UnsupportedVersion
from rayka.ids import ZERO_ID
from rayka.protocol.groups import GroupProtocol
from rayka.shard.shard_records import KeyValue, RecordCodec

VERSION = 0
# Bytes, because the garbage collector visits each UUID, and a coordinator may hold millions of them.
TopicIdBytes = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
NO_TOPIC_ID = ZERO_ID.bytes


class OffsetKey(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """The key of a committed offset."""

    group_id: str
    topic: str
    partition: int


class GroupKey(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """The key of a group with its members."""

    group_id: str


class OffsetValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A committed offset."""

    version: int
    offset: int
    leader_epoch: int
    metadata: str
    # Of the wall clock.
    commit_timestamp_ms: int
    # NO_TOPIC_ID: the member did not know the id.
    topic_id: TopicIdBytes = NO_TOPIC_ID


class MemberValue(msgspec.Struct, frozen=True, array_like=True):
    """A member of a generation, with its protocols and its assignment."""

    member_id: str
    group_instance_id: str
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes


class GroupValue(msgspec.Struct, frozen=True, array_like=True):
    """A generation with its assignments, or a group without members."""

    version: int
    protocol_type: str
    generation_id: int
    protocol_name: str
    leader_id: str
    # Of the wall clock, when the record was written.
    state_timestamp_ms: int
    members: tuple[MemberValue, ...] = ()


class GroupRecord(msgspec.Struct, frozen=True):
    """A key with its new value; None deletes the key."""

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
    """The error for a key that cannot be decoded: of a type of a later version, or damaged."""
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
    """Decodes a run of committed offsets; None if any record is something else. A coordinator may load millions."""
    try:
        found_keys = list(map(_offset_key_decoder.decode, keys))  # type: ignore[arg-type]  # None is a TypeError
        found = list(map(_offset_decoder.decode, values))  # type: ignore[arg-type]
    except (msgspec.DecodeError, TypeError):
        return None
    are_newest = all(each.version == VERSION for each in found)
    return list(map(GroupRecord, found_keys, found)) if are_newest else None


GROUP_CODEC: RecordCodec[GroupRecord] = RecordCodec(_encode, _decode, _decode_offsets)
