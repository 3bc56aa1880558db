"""The control records of the quorum: leader, voters, version, begin and end of a snapshot.

A record's key is its version and type as two big-endian int16 (F3), its value MessagePack. Readers of metadata skip
control batches. Kafka: `ControlRecordType`, `LeaderChangeMessage`, `KRaftVersionRecord`, `VotersRecord`,
`SnapshotHeaderRecord`, `SnapshotFooterRecord` (A24, A45).
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any

import msgspec
import numpy as np

from rayka.errors import CorruptRecord, UnsupportedVersion
from rayka.ids import NO_TIMESTAMP, ReplicaKey
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import RecordBatch
from rayka.raft.voters import KRAFT_VERSION, VoterSet

_KEY = Struct(">hh")
_RECORD_VERSION = 0


class LeaderChangeRecord(msgspec.Struct, frozen=True, array_like=True):
    """The first record of every epoch: the leader, the voters, and the voters that elected the leader (A24)."""

    leader_id: int
    voters: tuple[ReplicaKey, ...]
    granting_voters: tuple[ReplicaKey, ...]


class SnapshotHeaderRecord(msgspec.Struct, frozen=True, array_like=True):
    """The first record of a snapshot."""

    last_contained_log_timestamp_ms: int = NO_TIMESTAMP


class SnapshotFooterRecord(msgspec.Struct, frozen=True, array_like=True):
    """The last record of a snapshot. A snapshot without a footer is not whole."""


class KRaftVersionRecord(msgspec.Struct, frozen=True, array_like=True):
    """The finalised `kraft.version`."""

    kraft_version: int = KRAFT_VERSION


class VotersRecord(msgspec.Struct, frozen=True, array_like=True):
    """The voters, from this record on."""

    voters: VoterSet


ControlRecord = (
    LeaderChangeRecord | SnapshotHeaderRecord | SnapshotFooterRecord | KRaftVersionRecord | VotersRecord
)
_TYPES: dict[int, type[Any]] = {
    2: LeaderChangeRecord,
    3: SnapshotHeaderRecord,
    4: SnapshotFooterRecord,
    5: KRaftVersionRecord,
    6: VotersRecord,
}
_KEYS = {record: _KEY.pack(_RECORD_VERSION, number) for number, record in _TYPES.items()}


def encode_control_batch(records: Sequence[ControlRecord], *, timestamp_ms: int) -> np.ndarray:
    """Encodes the records as one control batch."""
    return encode_batch(
        [msgspec.msgpack.encode(record) for record in records],
        keys=[_KEYS[type(record)] for record in records],
        timestamps_ms=timestamp_ms,
        is_control=True,
    )


def decode_control_batch(batch: RecordBatch) -> Iterator[ControlRecord]:
    """Decodes the records of a control batch.

    Raises UnsupportedVersion for a type or version that this node does not know, CorruptRecord for damaged records.
    """
    decoded = decode(batch)
    for key, value in zip(decoded.keys_list(), decoded.values_list(), strict=True):
        if key is None or value is None:
            raise CorruptRecord(f"{batch!r} holds a control record without key or value")
        if len(key) != _KEY.size:
            raise CorruptRecord(f"{batch!r} holds a control record whose key is {key!r}")
        version, number = _KEY.unpack(key)
        if version != _RECORD_VERSION or number not in _TYPES:
            raise UnsupportedVersion(
                f"{batch!r}: control record of type {number}, version {version}; upgrade this node"
            )
        try:
            yield msgspec.msgpack.decode(value, type=_TYPES[number])
        except msgspec.MsgspecError as error:
            raise CorruptRecord(f"{batch!r}: control record of type {number}: {error}") from error
