"""Records of `__cluster_metadata`: every change of the cluster's metadata.

A record's value is MessagePack, `[type, version, fields…]`. Type numbers are Kafka's `apiKey`s (H11;
`metadata/src/main/resources/common/metadata`), and from 1,000 on Rayka's own. A record evolves by appending fields with
defaults; a record that older nodes must not read as the old one gets a new version. An unknown type or version is an
error and never skipped: a node that skipped a record would hold another image than the other nodes. So a new type is
written only from a certain level of `metadata.version` on: events from level 2.

Left out until something writes them: quotas, ACLs, users, tokens, metadata transactions.
"""

from typing import Any, Literal, get_args
from uuid import UUID

import msgspec

from rayka.errors import CorruptRecord, UnsupportedVersion
from rayka.ids import BROKER_ONLY, NO_NODE, Role
from rayka.protocol.configs import ResourceType
from rayka.protocol.membership import LeaderRecoveryState, RegisteredDirectory

# The feature whose level is the version in which records are written.
METADATA_VERSION = "metadata.version"
# The levels that this node can read and write.
METADATA_VERSION_MIN, METADATA_VERSION_MAX = 1, 2
# The level of `metadata.version` from which on events are written.
EVENTS_LEVEL = 2
# The feature whose level 1 keeps eligible leader replicas (B42).
ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"
NO_LEADER = NO_NODE
NO_LEADER_CHANGE = -2


class _Record(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag_field="type", gc=False):
    # Not tracked by the garbage collector: there may be a hundred thousand records, and none is part of a cycle.
    version: Literal[0] = 0


class RegisterBrokerRecord(_Record, tag=0, frozen=True, array_like=True, kw_only=True):
    """A broker process has registered. The broker's epoch is the record's offset (H3). Replaces an earlier
    registration.
    """

    broker_id: int
    broker_epoch: int
    incarnation_id: UUID
    host: str
    directories: tuple[RegisteredDirectory, ...]
    rack: str = ""
    min_metadata_version: int = 1
    max_metadata_version: int = 1
    is_fenced: bool = True
    is_in_controlled_shutdown: bool = False
    roles: tuple[Role, ...] = BROKER_ONLY


class UnregisterBrokerRecord(_Record, tag=1, frozen=True, array_like=True, kw_only=True):
    """A broker without replicas was unregistered."""

    broker_id: int
    broker_epoch: int


class TopicRecord(_Record, tag=2, frozen=True, array_like=True, kw_only=True):
    """A topic was created; its partitions follow."""

    name: str
    topic_id: UUID


class PartitionRecord(_Record, tag=3, frozen=True, array_like=True, kw_only=True):
    """A partition was created; also its whole state, in snapshots."""

    topic_id: UUID
    partition: int
    replicas: tuple[int, ...]
    # The replicas' directories, in the order of `replicas`.
    directories: tuple[UUID, ...]
    isr: tuple[int, ...]
    leader_id: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


class ConfigRecord(_Record, tag=4, frozen=True, array_like=True, kw_only=True):
    """One configuration key of one resource was set or removed."""

    resource_type: ResourceType
    resource_name: str
    name: str
    # None: removed.
    value: str | None


def config_record(
    resource_type: ResourceType, resource_name: str, name: str, value: str | None
) -> ConfigRecord:
    return ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=value)


class PartitionChangeRecord(_Record, tag=5, frozen=True, array_like=True, kw_only=True):
    """The state of a partition has changed. None, and NO_LEADER_CHANGE for the leader: unchanged.

    The change raises the partition epoch by one. It also raises the leader epoch by one if it names a leader, even the
    same leader (H12).
    """

    topic_id: UUID
    partition: int
    isr: tuple[int, ...] | None = None
    leader_id: int = NO_LEADER_CHANGE
    replicas: tuple[int, ...] | None = None
    directories: tuple[UUID, ...] | None = None
    adding_replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    leader_recovery_state: LeaderRecoveryState | None = None
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


# Fields of a PartitionChangeRecord that are None if unchanged: all but the partition and the leader.
CHANGEABLE_FIELDS = tuple(
    name
    for name in PartitionChangeRecord.__struct_fields__
    if name not in ("version", "topic_id", "partition", "leader_id")
)


class RemoveTopicRecord(_Record, tag=9, frozen=True, array_like=True, kw_only=True):
    """A topic was removed, with its partitions and its configuration."""

    topic_id: UUID


class FeatureLevelRecord(_Record, tag=12, frozen=True, array_like=True, kw_only=True):
    """The finalised level of a feature, such as `metadata.version`, was set."""

    name: str
    level: int


class ProducerIdsRecord(_Record, tag=15, frozen=True, array_like=True, kw_only=True):
    """A broker got a block of producer ids (C12)."""

    broker_id: int
    broker_epoch: int
    # All ids below are given away.
    next_producer_id: int


class BrokerRegistrationChangeRecord(_Record, tag=17, frozen=True, array_like=True, kw_only=True):
    """The state of a registered broker has changed (H4). None: unchanged."""

    broker_id: int
    broker_epoch: int
    is_fenced: bool | None = None
    is_in_controlled_shutdown: bool | None = None
    offline_directories: tuple[UUID, ...] | None = None


class ClearElrRecord(_Record, tag=28, frozen=True, array_like=True, kw_only=True):
    """The eligible leader replicas of a topic are cleared, because `min.insync.replicas`, which makes a replica
    eligible, is about to change (B42). Partitions with an empty ISR keep theirs; all partition epochs rise by one.
    """

    # Empty: all topics.
    topic_name: str = ""


class NoOpRecord(_Record, tag=20, frozen=True, array_like=True, kw_only=True):
    """No change. Its commit shows that the quorum works (A68)."""


class EventRecord(_Record, tag=1000, frozen=True, array_like=True, kw_only=True):
    """An event happened: an incident, or a decision of the cluster."""

    # Higher than the numbers of all earlier events.
    number: int
    timestamp_ms: int
    kind: str
    subjects: tuple[str, ...]
    reason: str


MetadataRecord = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | ConfigRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
    | BrokerRegistrationChangeRecord
    | NoOpRecord
    | ClearElrRecord
    | EventRecord
)

_ENCODER = msgspec.msgpack.Encoder(uuid_format="bytes")
_DECODER: msgspec.msgpack.Decoder[MetadataRecord] = msgspec.msgpack.Decoder(MetadataRecord)
_TYPES: dict[Any, str] = {
    record.__struct_config__.tag: record.__name__ for record in get_args(MetadataRecord)
}


def encode_record(record: MetadataRecord) -> bytes:
    """Encodes a record to the value in the log."""
    return _ENCODER.encode(record)


def decode_record(value: bytes | memoryview) -> MetadataRecord:
    """Decodes a record from the value in the log.

    Raises UnsupportedVersion for a type or version that this node does not know, CorruptRecord for other bytes.
    """
    try:
        return _DECODER.decode(value)
    except msgspec.MsgspecError as error:
        raise _explained(value, error) from error


def _explained(value: bytes | memoryview, error: msgspec.MsgspecError) -> UnsupportedVersion | CorruptRecord:
    try:
        head = msgspec.msgpack.decode(value, type=list[Any])[:2]
    except msgspec.MsgspecError:
        head = []
    if len(head) < 2:
        return CorruptRecord(f"no metadata record: {error}")
    record_type, version = head
    if record_type not in _TYPES or version != 0:
        name = _TYPES.get(record_type, "a record")
        return UnsupportedVersion(
            f"metadata holds {name} of type {record_type}, version {version}, which this node does not know "
            f"(metadata.version {METADATA_VERSION_MIN} to {METADATA_VERSION_MAX}); upgrade it"
        )
    return CorruptRecord(f"{_TYPES[record_type]} in the metadata log is malformed: {error}")
