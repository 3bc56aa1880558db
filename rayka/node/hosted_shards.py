"""The state machines that this broker hosts on the partitions of internal topics (`NodeSettings.shard_types`).

A shard is hosted wherever its partition has a usable replica: the leader's shard is the active one, followers' shards
stand by. Invariants: a partition has one shard at a time, on one opening of its log (`PartitionLog`). When that opening
fails or goes away, callers get an error, and another shard is built when the replica is usable again. A shard whose
records cannot be read is not built again before the partition has another leader or log.

Kafka: `CoordinatorRuntime`'s contexts; `CoordinatorPartitionWriter`, `CoordinatorLoaderImpl`, `PartitionListener`.
Beyond Kafka, followers replay too.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic

from rayka import clock
from rayka.errors import ApiError, CorruptRecord, DamagedLog, StorageError, UnsupportedVersion
from rayka.ids import NO_EPOCH, NO_NODE, NO_OFFSET, node_name
from rayka.metadata.image import MetadataImage
from rayka.node.parked import News
from rayka.node.replica import Replica
from rayka.node.replica_manager import ReplicaManager
from rayka.node.replicated_shard import ReplicatedShard
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Signal, Tasks
from rayka.partition.partition_leader import PartitionLeader
from rayka.ports import Buffer
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.fetch import PartitionKey
from rayka.shard.shard import NotHere, RecordT
from rayka.shard.shard_records import RecordCodec, ShardType

_READ_BYTES = 1 << 20
_logger = logging.getLogger(__name__)
_Shard = ReplicatedShard[Any, Any]


class HostedShards:
    """All shards on one broker."""

    def __init__(self, settings: NodeSettings, replicas: ReplicaManager, tasks: Tasks) -> None:
        self._settings = settings
        self._replicas = replicas
        self._tasks = tasks
        self._types = {each.topic.name: each for each in settings.shard_types}
        # The partitions of the present metadata that may be hosted here.
        self._wanted: dict[PartitionKey, ShardType] = {}
        self._shards: dict[PartitionKey, _Shard] = {}
        self._numbers: dict[tuple[str, int], PartitionKey] = {}

    def get(self, topic: str, number: int) -> _Shard:
        """The shard of a partition. Raises the error of its type when there is none here."""
        key = self._numbers.get((topic, number))
        shard = None if key is None else self._shards.get(key)
        if shard is None:
            raise self._absent(self._types[topic], number)
        return shard

    def _absent(self, shard_type: ShardType, number: int) -> ApiError:
        reason = f"{node_name(self._settings.node_id)} does not host {shard_type.topic.name}-{number}"
        return shard_type.make_shard(number).not_here(NotHere(reason, NO_NODE, NO_EPOCH))

    @property
    def shards(self) -> dict[PartitionKey, _Shard]:
        """A copy of the shards by partition."""
        return dict(self._shards)

    # ---- Hosting -----------------------------------------------------------------------------------------------------

    def update(self, image: MetadataImage) -> None:
        """Hosts the partitions of the metadata, and no others."""
        wanted = {
            (topic.topic_id, number): shard_type
            for name, shard_type in self._types.items()
            if (topic := image.topics.get(name)) is not None
            for number in range(len(topic.partitions))
        }
        gone = [key for key in self._wanted if key not in wanted]
        new = [(key, shard_type) for key, shard_type in wanted.items() if key not in self._wanted]
        self._wanted = wanted
        for key in gone:
            self._replicas.parked.wake(key)
        for key, shard_type in new:
            name, number = shard_type.topic.name, key[1]
            self._numbers[name, number] = key
            self._tasks.start(f"host {name}-{number}", self._host(key, shard_type))

    async def _host(self, key: PartitionKey, shard_type: ShardType) -> None:
        """Hosts one shard after another, for as long as the partition exists."""
        news = PartitionNews()
        self._replicas.parked.add(news, [key])
        unreadable: tuple[object, int] | None = None
        while key in self._wanted:
            replica = self._replicas.find(key)
            log = None
            if replica is not None and unreadable != _reading(replica):
                log = PartitionLog(
                    self._replicas, replica, shard_type.codec, news, self._settings.wall_clock_ms
                )
            if replica is None or log is None or log.failure is not None:
                await news.wait(float("inf"))
            elif not await self._run(key, shard_type, log, replica):
                unreadable = _reading(replica)
        self._replicas.parked.remove(news, [key])
        self._shards.pop(key, None)

    async def _run(
        self, key: PartitionKey, shard_type: ShardType, log: "PartitionLog[Any]", replica: Replica
    ) -> bool:
        """Runs one shard until its log fails; False if its records cannot be read."""
        shard: _Shard = ReplicatedShard(
            self._settings.node_id,
            log,
            lambda: shard_type.make_shard(key[1]),
            steps_per_turn=self._settings.steps_per_turn,
        )
        self._shards[key] = shard
        try:
            await shard.run()
        except StorageError as error:
            _logger.error("%r: %s", shard, error)
            log.fail(error)
            if isinstance(error, DamagedLog):
                shard.end(shard.not_here("cannot load", may_have_run=True))
                return False
            self._replicas.on_storage_error(replica, error)
        shard.end(shard.not_here("leads no more", may_have_run=True))
        self._shards.pop(key, None)
        return True

    # ---- End ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stops: callers that wait get an error."""
        for shard in self._shards.values():
            shard.end(shard.not_here("is shutting down", may_have_run=True))
        self._shards = {}

    def abandon(self) -> None:
        """Ends as the process does: no caller gets an answer."""
        for shard in self._shards.values():
            shard.abandon()


def _reading(replica: Replica) -> tuple[object, int]:
    return replica.partition.log, replica.partition.leader_epoch


# ---- The log of a shard ----------------------------------------------------------------------------------------------


class PartitionNews(Signal):
    """The news of one partition (`PartitionListener`)."""

    sleeps_through = None

    def wake(self, key: PartitionKey, news: News = News.CHANGED) -> None:
        self.notify()

    def end(self, reason: str) -> None:
        self.notify()


class PartitionLog(Generic[RecordT]):
    """One opening of one replica's log, as the log under a shard (`ReplicatedLog`).

    After a failure, or when the log was opened anew, another `PartitionLog` takes its place: records that a full disk
    interrupted may be in the new opening though their append was refused. The high watermark is known once all records
    that were there when this node began to lead are committed: a new leader's own high watermark lags behind what its
    predecessor has acknowledged (B4, A41). Appends are with acks=all and no producer id, so sequences are not checked
    (C6).
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        replica: Replica,
        codec: RecordCodec[RecordT],
        news: Signal,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._replicas = replicas
        self._replica = replica
        self._partition = replica.partition
        self._log = replica.partition.log
        self._codec = codec
        self._wall_clock_ms = wall_clock_ms
        self._failure: StorageError | None = None
        # No shard of this opening has replayed the records that this leader appended before the log was opened anew, in
        # whichever epoch of its lead.
        self._opened_in = self._partition.leader_epoch if self._partition.is_leader else NO_EPOCH
        self._end_at_opening = self._log.log_end_offset
        self.news = news

    # ---- Leadership -------------------------------------------------------------------------------------------------

    @property
    def leading_epoch(self) -> int | None:
        is_leading = self._partition.is_leader and self.failure is None
        return self._partition.leader_epoch if is_leading else None

    @property
    def lead_began_in(self) -> int | None:
        role = self._partition.role
        return role.lead_began.epoch if isinstance(role, PartitionLeader) and self.failure is None else None

    @property
    def leader_id(self) -> int:
        return self._partition.leader_id

    @property
    def leader_epoch(self) -> int:
        return self._partition.leader_epoch

    @property
    def failure(self) -> StorageError | None:
        known = self._failure or self._partition.failure or self._log.failure
        if known is not None:
            return known
        if not self._replicas.is_hosted(self._replica):
            return StorageError(f"{self._partition.topic_partition} is not here any more")
        if self._partition.log is not self._log:
            return StorageError(f"{self._partition.topic_partition} was opened anew")
        return None

    def fail(self, error: StorageError) -> None:
        """Marks the log as failed: committed records cannot be read here."""
        self._failure = self._failure or error
        self.news.notify()

    def commit_problem(self) -> str:
        failure = self.failure
        if failure is not None:
            return str(failure)
        leader = self._partition.role
        if not isinstance(leader, PartitionLeader) or len(leader.isr.committed) >= leader.effective_min_isr:
            return ""
        in_sync, needed = list(leader.isr.committed), leader.effective_min_isr
        return f"of {self._partition.topic_partition} only {in_sync} are in sync, {needed} are needed"

    # ---- Appending ---------------------------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def high_watermark(self) -> int:
        partition = self._partition
        if not isinstance(partition.role, PartitionLeader):
            return partition.high_watermark
        known_from = partition.role.lead_began.offset
        if self._opened_in >= partition.role.lead_began.epoch:
            known_from = max(known_from, self._end_at_opening)
        return partition.high_watermark if partition.high_watermark >= known_from else NO_OFFSET

    def append(self, records: Sequence[RecordT]) -> int:
        """Appends the records as one batch, without waiting; returns the offset of the first. Raises the partition's
        refusals: NotEnoughReplicas, RecordTooLarge, KafkaStorageError.
        """
        values, keys = self._codec.columns(records)
        timestamp_ms = self._wall_clock_ms()
        batch = encode_batch(values, keys=keys, timestamps_ms=timestamp_ms)
        now_ms = clock.now_ms()
        try:
            appended = self._partition.as_leader().append_own(batch, now_ms=now_ms, timestamp_ms=timestamp_ms)
        except StorageError as error:
            self.fail(error)
            raise self._replicas.on_storage_error(self._replica, error) from error
        self._replicas.on_appended(
            self._replica, is_high_watermark_moved=appended.is_high_watermark_raised, by=self.news
        )
        return appended.base_offset

    # ---- Committed records -------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    def start_records(self) -> Iterator[RecordT]:
        return iter(())

    def committed(self, offset: int) -> tuple[Iterator[tuple[int, RecordT]], int]:
        high_watermark = self._partition.high_watermark
        if high_watermark <= offset:
            return iter(()), offset
        read = self._log.read(offset, max_bytes=_READ_BYTES, end_offset=high_watermark)
        return self._decoded(read.records, offset), read.next_offset

    def _decoded(self, records: Buffer, first_offset: int) -> Iterator[tuple[int, RecordT]]:
        try:
            yield from self._codec.committed(records, first_offset)
        except (CorruptRecord, UnsupportedVersion) as error:
            raise DamagedLog(
                f"{self._log.name}: committed records from offset {first_offset} on: {error}"
            ) from error

    def epoch_of(self, offset: int) -> int:
        return self._log.epochs.epoch_of(offset)
