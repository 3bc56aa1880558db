"""Logs on a real disk for the tests of the offline tools: the same bytes in every run."""

import asyncio
from pathlib import Path
from uuid import UUID

from rayka.config.topic_config import TopicConfig
from rayka.ids import OffsetAndEpoch, ReplicaKey
from rayka.log.local_disk import LocalDisk
from rayka.metadata.image_snapshot import image_records
from rayka.metadata.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    encode_record,
)
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import Codec, ProducerSequence, RecordBatch
from rayka.protocol.configs import ResourceType
from rayka.raft.control_records import LeaderChangeRecord, encode_control_batch
from rayka.raft.election_state import ElectionState, encode_election
from rayka.raft.snapshot import SnapshotStore, encode_snapshot
from rayka.raft.voters import VoterSet
from tests.cleaner.support import COMPACTED, SETTINGS, Record, clean, keyed
from tests.log.support import new_log, opened_log
from tests.metadata.support import image_of, partition, registered, topic, unfenced

TIME_MS = 1_700_000_000_000
VOTER = ReplicaKey(3001, UUID(int=7))
CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=100, segment_index_bytes=1000)


def write_orders(data_dir: Path) -> Path:
    """`orders-0`: two segments, two epochs, headers, a null key, a compressed batch; closed."""
    disk = LocalDisk()
    log = opened_log(disk, str(data_dir / "orders-0"), CONFIG)
    first = encode_batch(
        [b"one", b"\xff\x00"], keys=[b"k", None], headers=[[("h", b"x")], None], timestamps_ms=TIME_MS
    )
    log.append_as_leader([RecordBatch(first)], 0, now_ms=0)
    second = encode_batch([b"three " * 20], timestamps_ms=TIME_MS + 5, codec=Codec.ZSTD)
    log.append_as_leader([RecordBatch(second)], 2, now_ms=0)
    log.append_as_leader([RecordBatch(encode_batch([b"x" * 700], timestamps_ms=TIME_MS + 9))], 2, now_ms=0)
    log.close()
    disk.close()
    return data_dir / "orders-0"


def write_cleaned(data_dir: Path) -> Path:
    """`table-0`: of a producer, compacted into one segment and an empty one: batches without records, a batch with a
    tombstone, and gaps.
    """
    disk, log = new_log(COMPACTED)
    rounds: list[list[Record]] = [
        [(b"a", b"1"), (b"b", b"1")],
        [(b"a", b"2"), (b"c", b"2")],
        [(b"b", None), (b"d", b"3")],
        [(b"d", b"4"), (b"e", b"4")],
        [(b"e", None)],
        [(b"e", b"6")],
    ]
    sequence = 0
    for records in rounds:
        given = keyed(records, timestamp_ms=TIME_MS, sequence=ProducerSequence(5, 0, sequence))
        log.append_as_leader([given], 0, now_ms=0)
        sequence += len(records)
    clean(disk, log, SETTINGS._replace(timestamp_ms=TIME_MS))
    log.close()
    directory = data_dir / "table-0"
    directory.mkdir()
    for name in disk.list(log.directory):
        path = f"{log.directory}/{name}"
        (directory / name).write_bytes(disk.read_at(path, 0, disk.size(path)))
    return directory


def write_metadata(data_dir: Path) -> Path:
    """A controller's `__cluster_metadata-0`: a snapshot at offset 6, and the log from its begin to offset 10."""
    directory = data_dir / "__cluster_metadata-0"
    disk = LocalDisk()
    log = opened_log(disk, str(directory), TopicConfig())
    early: list[MetadataRecord] = [
        FeatureLevelRecord(name="metadata.version", level=1),
        registered(1),
        unfenced(1),
        topic(),
        partition(0, (1,)),
    ]
    late: list[MetadataRecord] = [
        PartitionChangeRecord(topic_id=topic().topic_id, partition=0, leader_id=-1),
        ConfigRecord(
            resource_type=ResourceType.TOPIC, resource_name="orders", name="retention.ms", value="5"
        ),
        ConfigRecord(
            resource_type=ResourceType.BROKER, resource_name="", name="min.insync.replicas", value="2"
        ),
    ]
    leads = encode_control_batch([LeaderChangeRecord(3001, (VOTER,), (VOTER,))], timestamp_ms=TIME_MS)
    log.append_as_leader([RecordBatch(leads), _batch(early)], 1, now_ms=0)
    _write_snapshot(disk, directory, early)
    log.append_as_leader([RecordBatch(leads), _batch(late)], 2, now_ms=0)
    log.close()
    disk.write(str(directory / "quorum-state"), encode_election(ElectionState(2, 3001, VOTER)))
    disk.close()
    return directory


def _write_snapshot(disk: LocalDisk, directory: Path, records: list[MetadataRecord]) -> None:
    snapshot_id = OffsetAndEpoch(6, 1)
    values = [encode_record(record) for record in image_records(image_of(records))]
    data = [encode_batch(values, timestamps_ms=TIME_MS)]
    parts = encode_snapshot(snapshot_id, VoterSet((VOTER,)), data, timestamp_ms=TIME_MS)
    asyncio.run(SnapshotStore(disk, str(directory)).write(snapshot_id, parts))


def _batch(records: list[MetadataRecord]) -> RecordBatch:
    return RecordBatch(encode_batch([encode_record(each) for each in records], timestamps_ms=TIME_MS))
