"""Builders for tests of a partition: one on a memory disk, led by broker 1, and batches for it."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
import numpy as np

from rayka.config.topic_config import TopicConfig
from rayka.ids import ZERO_ID, OffsetAndEpoch, TopicPartition
from rayka.metadata.image import BrokerImage, PartitionImage
from rayka.metadata.metadata_records import RegisterBrokerRecord
from rayka.partition.follower_states import FollowerFetch, FollowerState
from rayka.partition.partition import Partition, ReadResult
from rayka.partition.partition_leader import Appended, FollowerUpdate, PartitionLeader
from rayka.ports import Buffer
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.fetch import FetchPartition
from rayka.protocol.produce import ACKS_ALL
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import opened_log

BROKER = 1
NOW_MS = 1_000_000
LAG_MAX_MS = 1000
NO_BROKERS: Mapping[int, BrokerImage] = {}
LED_HERE = PartitionImage(
    replicas=(BROKER,),
    directories=(ZERO_ID,),
    isr=(BROKER,),
    leader_id=BROKER,
    leader_epoch=5,
    partition_epoch=9,
)


def records(*values: bytes, timestamp_ms: int = NOW_MS) -> np.ndarray:
    return encode_batch(list(values), timestamps_ms=timestamp_ms)


def broker_image(
    broker_id: int,
    *,
    epoch: int = 0,
    rack: str = "",
    is_fenced: bool = False,
    is_in_controlled_shutdown: bool = False,
    offline_directories: tuple[UUID, ...] = (),
) -> BrokerImage:
    registration = RegisterBrokerRecord(
        broker_id=broker_id, broker_epoch=epoch, incarnation_id=ZERO_ID, host="", directories=(), rack=rack
    )
    return BrokerImage(registration, is_fenced, is_in_controlled_shutdown, offline_directories)


def new_partition(
    disk: MemoryDisk | None = None,
    *,
    state: PartitionImage = LED_HERE,
    brokers: Mapping[int, BrokerImage] = NO_BROKERS,
    **config: Any,
) -> Partition:
    """A partition whose metadata is already known; keyword arguments are the topic's configuration."""
    disk = disk or MemoryDisk()
    disk.make_directory("/data")
    topic_config = TopicConfig(**config)
    log = opened_log(disk, "/data/orders-3", topic_config)
    partition = Partition(
        TopicPartition("orders", 3),
        ZERO_ID,
        BROKER,
        log,
        topic_config,
        brokers=brokers.get,
        replica_lag_time_max_ms=LAG_MAX_MS,
    )
    partition.update_state(state, now_ms=0)
    return partition


def append_one(
    leader: PartitionLeader, data: Buffer, acks: int, *, now_ms: int, timestamp_ms: int
) -> Appended:
    """Appends one request alone; raises its error."""
    (outcome,) = leader.append_all([(data, acks)], now_ms=now_ms, timestamp_ms=timestamp_ms)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def append(partition: Partition, *values: bytes, acks: int = ACKS_ALL) -> Appended:
    return append_one(partition.as_leader(), records(*values), acks, now_ms=0, timestamp_ms=NOW_MS)


def sync(partition: Partition, disk: MemoryDisk) -> None:
    plan = partition.log.unsynced()
    disk.sync_now(plan.files, plan.directories)
    partition.log.on_synced(plan)


def fetch(offset: int, **changes: Any) -> FetchPartition:
    return msgspec.structs.replace(FetchPartition(ZERO_ID, 3, offset, 1 << 20), **changes)


def read(partition: Partition, offset: int, **changes: Any) -> ReadResult:
    return partition.read(fetch(offset, **changes), max_bytes=1 << 20, min_one_batch=True)


def followers(partition: Partition) -> list[FollowerState]:
    """What the leader knows of them."""
    return list(partition.as_leader().followers.by_id.values())


def position(partition: Partition) -> OffsetAndEpoch:
    """What a follower asks for: all behind its log, if the log's last epoch is the leader's too (B17, B23)."""
    return OffsetAndEpoch(partition.log.log_end_offset, partition.log.latest_epoch)


def changed(**changes: Any) -> PartitionImage:
    """The state after a change of the metadata."""
    state = msgspec.structs.replace(LED_HERE, **{"partition_epoch": LED_HERE.partition_epoch + 1, **changes})
    return msgspec.structs.replace(state, directories=(ZERO_ID,) * len(state.replicas))


def followed_from(
    partition: Partition,
    replica_id: int,
    offset: int,
    *,
    now_ms: int = 0,
    broker_epoch: int = -1,
    log_start_offset: int = 0,
) -> FollowerUpdate:
    """A follower fetches from there, having what lies below."""
    return partition.as_leader().record_fetch(
        FollowerFetch(replica_id, broker_epoch, offset, log_start_offset), now_ms=now_ms
    )
