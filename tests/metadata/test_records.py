"""Metadata records as bytes, and out of the batches of the log."""

from uuid import UUID

import msgspec
import numpy as np
import pytest

from rayka.errors import CorruptRecord, UnsupportedVersion
from rayka.ids import ReplicaKey
from rayka.metadata.metadata_records import (
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    EventRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    UnregisterBrokerRecord,
    decode_record,
    encode_record,
)
from rayka.node.metadata_follower import METADATA_CODEC
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import split_batches
from rayka.protocol.configs import ResourceType
from rayka.protocol.membership import LeaderRecoveryState
from rayka.raft.control_records import LeaderChangeRecord, encode_control_batch
from tests.metadata.support import ORDERS, partition, registered, topic

RECORDS: list[MetadataRecord] = [
    registered(1, directory_count=2, rack="a"),
    topic(),
    partition(3, (1, 2, 3)),
    ConfigRecord(
        resource_type=ResourceType.TOPIC, resource_name="orders", name="segment.bytes", value="2000"
    ),
    ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="orders", name="segment.bytes", value=None),
    PartitionChangeRecord(topic_id=ORDERS, partition=3, isr=(1,), leader_id=-1),
    RemoveTopicRecord(topic_id=ORDERS),
    FeatureLevelRecord(name="metadata.version", level=1),
    ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=3000),
    BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, offline_directories=(UUID(int=7),)),
    UnregisterBrokerRecord(broker_id=1, broker_epoch=5),
    ClearElrRecord(topic_name="orders"),
    EventRecord(number=7, timestamp_ms=5, kind="heal-begun", subjects=("broker-4",), reason="gone"),
    PartitionChangeRecord(
        topic_id=ORDERS,
        partition=3,
        isr=(),
        eligible_leader_replicas=(1, 2),
        last_known_elr=(1,),
        leader_recovery_state=LeaderRecoveryState.RECOVERING,
    ),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record: MetadataRecord) -> None:
    assert decode_record(encode_record(record)) == record


def test_bytes_of_a_record_are_its_type_its_version_and_its_fields() -> None:  # H11
    assert msgspec.msgpack.decode(encode_record(topic())) == [2, 0, "orders", ORDERS.bytes]


@pytest.mark.parametrize(("record_type", "version"), [(99, 0), (2, 1)])
def test_an_unknown_type_or_version_is_refused_by_name(record_type: int, version: int) -> None:
    with pytest.raises(UnsupportedVersion, match=f"type {record_type}, version {version}"):
        decode_record(msgspec.msgpack.encode([record_type, version, "orders", str(ORDERS)]))


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x93\x02\x00\x05", b"\x91\x02", b"\xa1x"])
def test_bytes_that_are_no_record_are_corrupt(value: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_record(value)


def test_control_batches_are_skipped_and_their_offsets_stay() -> None:
    me = ReplicaKey(3001, UUID(int=1))
    control = encode_control_batch([LeaderChangeRecord(3001, (me,), (me,))], timestamp_ms=1)
    records = encode_batch([encode_record(topic()), encode_record(partition())], timestamps_ms=1)
    records[:8] = np.frombuffer((1).to_bytes(8, "big"), np.uint8)

    batches = split_batches(np.concatenate([control, records]))
    decoded = [each for batch in batches for each in METADATA_CODEC.records(batch)]

    assert decoded == [(1, topic()), (2, partition())]
