"""The state machines that this broker hosts on the partitions of internal topics (`NodeSettings.shard_types`).

A shard is hosted wherever its partition has a usable replica: the leader's is the active one, followers' stand by.
Invariants: of one partition there is one shard at a time, on one opening of its log; when that fails, or goes away,
callers get an error, and another shard is built when the replica is usable again. A shard whose records cannot be read
is not built again before the partition has another leader or log. Kafka: `CoordinatorRuntime`'s contexts.
"""

import logging
from typing import Any

from rayka.errors import ApiError, DamagedLog, StorageError
from rayka.ids import NO_EPOCH, NO_NODE, node_name
from rayka.metadata.image import MetadataImage
from rayka.node.hosting.partition_log import PartitionLog, PartitionNews
from rayka.node.hosting.replicated_shard import ReplicatedShard
from rayka.node.replication.replica import PartitionKey, Replica
from rayka.node.replication.replica_manager import ReplicaManager
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Tasks
from rayka.shard.shard import NotHere
from rayka.shard.shard_records import ShardType

_logger = logging.getLogger(__name__)
_Shard = ReplicatedShard[Any, Any]


class HostedShards:
    """All shards on one broker."""

    def __init__(self, settings: NodeSettings, replicas: ReplicaManager, tasks: Tasks) -> None:
        self._settings = settings
        self._replicas = replicas
        self._tasks = tasks
        self._types = {each.topic.name: each for each in settings.shard_types}
        self._wanted: dict[PartitionKey, ShardType] = {}  # by the partitions that may be hosted here
        self._shards: dict[PartitionKey, _Shard] = {}
        self._numbers: dict[tuple[str, int], PartitionKey] = {}

    def __repr__(self) -> str:
        return f"<HostedShards {list(self._shards.values())}>"

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
        """By partition, to look at."""
        return dict(self._shards)

    # ---- Hosting -----------------------------------------------------------------------------------------------------

    def update(self, image: MetadataImage) -> None:
        """Hosts the partitions that the metadata knows, and no others."""
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
        """One shard after another, for as long as the partition exists."""
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
        self, key: PartitionKey, shard_type: ShardType, log: PartitionLog[Any], replica: Replica
    ) -> bool:
        """One shard until its log fails; whether its records can be read."""
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
        """The node stops: callers that wait get an error."""
        for shard in self._shards.values():
            shard.end(shard.not_here("is shutting down", may_have_run=True))
        self._shards = {}

    def abandon(self) -> None:
        """The end of the process: no caller gets an answer."""
        for shard in self._shards.values():
            shard.abandon()


def _reading(replica: Replica) -> tuple[object, int]:
    return replica.partition.log, replica.partition.leader_epoch
