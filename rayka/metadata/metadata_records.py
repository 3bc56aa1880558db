"""The records of `__cluster_metadata`: every change of the cluster's metadata.

A record's value is MessagePack, `[type, version, fields…]`. Type numbers are Kafka's `apiKey`s (H11;
`metadata/src/main/resources/common/metadata`), from 1,000 on Rayka's own. A record evolves by appending fields with
defaults; one that older nodes must not read as the old one gets a new version. An unknown type or version is an error,
never skipped: a node that skipped a record would hold another image than the rest. So a later type is written from a
level of `metadata.version` on: events from 2.

Left out until something writes them: quotas, ACLs, users, tokens, metadata transactions.
"""

from typing import Any, Literal, get_args
from uuid import UUID

import msgspec

from rayka.errors import CorruptRecord, UnsupportedVersion
from rayka.ids import BROKER_ONLY, NO_NODE, Role
from rayka.protocol.configs import ResourceType
from rayka.protocol.membership import LeaderRecoveryState, RegisteredDirectory

METADATA_VERSION = "metadata.version"  # the feature whose level says at which version records are written
METADATA_VERSION_MIN, METADATA_VERSION_MAX = 1, 2  # what this node can read and write
EVENTS_LEVEL = 2  # of metadata.version: events are written
ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"  # level 1: ELRs are kept (B42)
NO_LEADER = NO_NODE
NO_LEADER_CHANGE = -2


class _Record(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag_field="type", gc=False):
    # No cycles, and there may be a hundred thousand: the garbage collector need not look at them.
    version: Literal[0] = 0


class RegisterBrokerRecord(_Record, tag=0, frozen=True, array_like=True, kw_only=True):
    """A broker process announced itself; its epoch is this record's offset (H3). It replaces the one
    before.
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
    """A broker is forgotten; it holds no replica."""

    broker_id: int
    broker_epoch: int


class TopicRecord(_Record, tag=2, frozen=True, array_like=True, kw_only=True):
    """A topic exists; its partitions follow."""

    name: str
    topic_id: UUID


class PartitionRecord(_Record, tag=3, frozen=True, array_like=True, kw_only=True):
    """A partition exists, whole. `directories` are those of `replicas`, in their order."""

    topic_id: UUID
    partition: int
    replicas: tuple[int, ...]
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
    """One configuration key of one resource was set, or with None removed."""

    resource_type: ResourceType
    resource_name: str
    name: str
    value: str | None


def config_record(
    resource_type: ResourceType, resource_name: str, name: str, value: str | None
) -> ConfigRecord:
    return ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=value)


class PartitionChangeRecord(_Record, tag=5, frozen=True, array_like=True, kw_only=True):
    """What changed of a partition: None, and -2 for the leader, means unchanged.

    Applying it raises the partition epoch by one, and the leader epoch by one if `leader_id` is given, even
    when it names the same leader (H12).
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


# Of a partition, given where they change and None where not: all but its name and its leader.
CHANGEABLE_FIELDS = tuple(
    name
    for name in PartitionChangeRecord.__struct_fields__
    if name not in ("version", "topic_id", "partition", "leader_id")
)


class RemoveTopicRecord(_Record, tag=9, frozen=True, array_like=True, kw_only=True):
    """A topic is gone, with its partitions and its configuration."""

    topic_id: UUID


class FeatureLevelRecord(_Record, tag=12, frozen=True, array_like=True, kw_only=True):
    """A feature's finalised level, such as `metadata.version`."""

    name: str
    level: int


class ProducerIdsRecord(_Record, tag=15, frozen=True, array_like=True, kw_only=True):
    """A block of producer ids went to a broker: all below `next_producer_id` are given away (C12)."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


class BrokerRegistrationChangeRecord(_Record, tag=17, frozen=True, array_like=True, kw_only=True):
    """A registered broker changed its state; None means unchanged (H4)."""

    broker_id: int
    broker_epoch: int
    is_fenced: bool | None = None
    is_in_controlled_shutdown: bool | None = None
    offline_directories: tuple[UUID, ...] | None = None


class ClearElrRecord(_Record, tag=28, frozen=True, array_like=True, kw_only=True):
    """Forgets the eligible leader replicas of a topic, of all topics when the name is empty: what makes one eligible,
    `min.insync.replicas`, is about to change (B42). Partitions whose ISR is empty keep theirs; the
    partition epochs of all rise by one.
    """

    topic_name: str = ""


class NoOpRecord(_Record, tag=20, frozen=True, array_like=True, kw_only=True):
    """Nothing changed; that it is committed shows that the quorum works (A68)."""


class EventRecord(_Record, tag=1000, frozen=True, array_like=True, kw_only=True):
    """The cluster decided something by itself; its number is higher than those of all events before it."""

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
    """The record as the value that the log holds."""
    return _ENCODER.encode(record)


def decode_record(value: bytes | memoryview) -> MetadataRecord:
    """The record in a value of the log.

    Raises UnsupportedVersion for a type or version that this node does not know, CorruptRecord for bytes that
    are none.
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
