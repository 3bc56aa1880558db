"""The partitions of one broker: opened, led, deleted as the metadata says; synced, checkpointed, taken
offline.

Invariants: a partition is hosted in one directory, the one that the metadata names; what is on disk and not
in the metadata is set aside, never served; a delta is applied deletions first, then leaders, and is durable
before it is visible (H10); when a disk fails, its partitions answer KAFKA_STORAGE_ERROR until the node
restarts, and the others go on. Kafka: `ReplicaManager`. Left out: followers, moving a partition between
directories.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from rayka.config import TopicConfig
from rayka.errors import (
    ApiError,
    DamagedLog,
    DiskFull,
    KafkaStorageError,
    NotLeaderOrFollower,
    StorageError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from rayka.ids import TopicIdPartition, TopicPartition, node_name
from rayka.log.log_directory import LogDirectory
from rayka.metadata.configs import topic_config
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage, PartitionImage, TopicImage
from rayka.node.data_directories import DataDirectories
from rayka.node.flusher import Flusher
from rayka.node.parked import Parked
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Tasks
from rayka.partition.partition import Partition

PartitionKey = tuple[
    UUID, int
]  # topic id and number: cheaper to hash than a struct, and asked for in every request
_logger = logging.getLogger(__name__)


class Replica(NamedTuple):
    """A partition, and the directory and the flusher that it shares with others."""

    partition: Partition
    directory: LogDirectory
    flusher: Flusher


class Unusable(NamedTuple):
    """A partition whose log could not be opened, the directory that holds it if that is here, and why."""

    topic_partition: TopicPartition
    directory: LogDirectory | None
    error: StorageError


class ReplicaManager:
    """All replicas on this broker."""

    def __init__(self, settings: NodeSettings, directories: DataDirectories, tasks: Tasks) -> None:
        self._settings = settings
        self._directories = directories
        self._replicas: dict[PartitionKey, Replica] = {}
        self._unusable: dict[PartitionKey, Unusable] = {}
        self._saved: dict[LogDirectory, dict[TopicPartition, tuple[int, int]]] = {}
        self._flushers = {each: self._flusher_of(each) for each in directories.all}
        self._image: MetadataImage | None = None
        self.parked: Parked[PartitionKey] = Parked()
        self.on_offline = asyncio.Event()
        for directory, flusher in self._flushers.items():
            tasks.start(f"flush {directory.path}", flusher.run())
        tasks.start("checkpoint", self._checkpoint_forever())

    def __repr__(self) -> str:
        return f"<ReplicaManager {self._settings.node_id} replicas={len(self._replicas)}>"

    # ---- Looking ---------------------------------------------------------------------------------------

    def get(self, topic_id: UUID, number: int) -> Replica:
        """The replica. Raises KafkaStorageError when its disk could not hold it, UnknownTopicId,
        UnknownTopicOrPartition or NotLeaderOrFollower when it is not here.
        """
        key = (topic_id, number)
        replica = self._replicas.get(key)
        if replica is not None:
            return replica
        if key in self._unusable:
            raise KafkaStorageError(str(self._unusable[key].error))
        topic = self._image.topics_by_id.get(topic_id) if self._image else None
        if topic is None:
            raise UnknownTopicId(
                f"{self._name} knows no topic with id {topic_id}; it was deleted, or is very new"
            )
        if not 0 <= number < len(topic.partitions):
            raise UnknownTopicOrPartition(
                f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, found {number}"
            )
        raise NotLeaderOrFollower(
            f"{self._name} holds no replica of {topic.name}-{number};"
            f" broker {topic.partitions[number].leader_id} leads it"
        )

    @property
    def _name(self) -> str:
        return node_name(self._settings.node_id)

    @property
    def replicas(self) -> list[Replica]:
        return list(self._replicas.values())

    @property
    def partitions(self) -> list[Partition]:
        return [each.partition for each in self._replicas.values()]

    def problems(self) -> list[str]:
        """Why something is not usable here, one line each."""
        offline = [str(each.failure) for each in self._directories.all if each.failure is not None]
        failed = [str(each.log.failure) for each in self.partitions if each.log.failure and not each.failure]
        return list(
            dict.fromkeys([*offline, *failed, *(str(each.error) for each in self._unusable.values())])
        )

    # ---- Metadata --------------------------------------------------------------------------------------

    async def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Makes this broker's partitions what the new image says (H10)."""
        is_first, self._image = self._image is None, image
        deleted = set(delta.deleted_topics())
        here = [*self._replicas, *self._unusable] if deleted else []
        keys = [key for key in here if key[0] in deleted]
        await self._forget([self._place(key) for key in keys])
        for key in keys:
            await asyncio.sleep(0)  # as below
            self._delete(key)
        if is_first:
            await self._set_aside_strays(image)
        is_all = delta.is_reconfigured(self._settings.node_id)
        for name in image.topics if is_all else delta.reconfigured_topics():
            self._reconfigure(name, image)
        changed = []
        for each in delta.changed_partitions():
            await asyncio.sleep(0)  # a recovery takes long: others get their turn between two
            replica = self._update(each, image)
            if replica is not None:
                changed.append(replica)
        await self._sync(changed)
        for replica in changed:
            self._wake(replica.partition)

    def _update(self, each: TopicIdPartition, image: MetadataImage) -> Replica | None:
        """The replica after this change; None when it is not here."""
        topic, state = image.topics_by_id[each.topic_id], image.partition(each)
        if state is None or self._settings.node_id not in state.replicas:
            return None
        key = (each.topic_id, each.partition)
        if key in self._unusable:
            return None
        topic_partition = TopicPartition(topic.name, each.partition)
        try:
            replica = self._replicas.get(key)
            if replica is None:
                config = self._topic_config(topic.name, image)
                replica = self._replicas[key] = self._open(topic_partition, each.topic_id, state, config)
            replica.partition.update_state(state, now_ms=self._now_ms())
        except StorageError as error:
            _logger.error("%s is not usable: %s", topic_partition, error)
            directory = self._directories.get(state.directory_of(self._settings.node_id))
            self._unusable[key] = Unusable(topic_partition, directory, error)
            self._replicas.pop(key, None)
            self.parked.wake(key)
            if directory is not None and not isinstance(error, DiskFull | DamagedLog):
                self._on_directory_failed(directory, error)
            return None
        return replica

    def _open(
        self, topic_partition: TopicPartition, topic_id: UUID, state: PartitionImage, config: TopicConfig
    ) -> Replica:
        directory_id = state.directory_of(self._settings.node_id)
        directory = self._directories.get(directory_id)
        if directory is None:
            raise StorageError(
                f"{topic_partition} lives in directory {directory_id}, which is none of"
                f" {[each.path for each in self._directories.all]}; start the broker with all its data directories"
            )
        if directory.failure is not None:
            raise directory.failure
        log = directory.open_log(topic_partition, topic_id, config, now_ms=self._now_ms())
        partition = Partition(
            topic_partition,
            topic_id,
            self._settings.node_id,
            log,
            config,
            brokers=lambda broker_id: self._image.brokers.get(broker_id) if self._image else None,
            replica_lag_time_max_ms=self._settings.config.replica_lag_time_max_ms,
        )
        partition.load_high_watermark(directory.high_watermark(topic_partition))
        return Replica(partition, directory, self._flushers[directory])

    def _reconfigure(self, name: str, image: MetadataImage) -> None:
        topic = image.topics.get(name)
        if topic is not None:
            config = self._topic_config(name, image)
            for number in range(len(topic.partitions)):
                replica = self._replicas.get((topic.topic_id, number))
                if replica is not None:
                    replica.partition.update_config(config)

    def _topic_config(self, name: str, image: MetadataImage) -> TopicConfig:
        return topic_config(image, self._settings.config, name, self._settings.node_id)

    def _delete(self, key: PartitionKey) -> None:
        unusable = self._unusable.pop(key, None)
        if unusable is not None and unusable.directory is not None and unusable.directory.failure is None:
            self._delete_log(unusable.directory, unusable.topic_partition)
        replica = self._replicas.pop(key, None)
        if replica is None:
            return
        replica.flusher.forget(replica.partition)
        self._delete_log(replica.directory, replica.partition.topic_partition)
        self.parked.wake(key)

    def _place(self, key: PartitionKey) -> tuple[LogDirectory | None, TopicPartition]:
        unusable = self._unusable.get(key)
        if unusable is not None:
            return unusable.directory, unusable.topic_partition
        replica = self._replicas[key]
        return replica.directory, replica.partition.topic_partition

    async def _forget(self, places: Sequence[tuple[LogDirectory | None, TopicPartition]]) -> None:
        """The checkpoints first: they must not tell of a log that is gone."""
        for directory in self._directories.all:
            here = [topic_partition for each, topic_partition in places if each is directory]
            if not here or directory.failure is not None:
                continue
            try:
                await directory.forget(here)
            except DiskFull as error:
                _logger.warning("%s: no checkpoint: %s", directory.path, error)
            except StorageError as error:
                self._on_directory_failed(directory, error)

    async def _set_aside_strays(self, image: MetadataImage) -> None:
        """Takes directories whose topic is not in the metadata out of the way (F4).

        Mostly it was deleted while this broker was down; but metadata that was lost must not take the records along.
        """
        strays = [
            (directory, topic_partition)
            for directory in self._directories.all
            for topic_partition, topic_id in directory.partitions().items()
            if _is_stray(image.topics.get(topic_partition.topic), topic_id)
        ]
        await self._forget(strays)
        for directory, topic_partition in strays:
            self._set_aside(directory, topic_partition)

    def _set_aside(self, directory: LogDirectory, topic_partition: TopicPartition) -> None:
        try:
            kept = directory.set_aside_log(topic_partition)
        except StorageError as error:
            self._on_directory_failed(directory, error)
        else:
            _logger.warning(
                "%s is not in the metadata: kept in %s; remove it if the topic was deleted",
                topic_partition,
                kept,
            )

    def _delete_log(self, directory: LogDirectory, topic_partition: TopicPartition) -> None:
        try:
            directory.delete_log(topic_partition)
        except StorageError as error:
            self._on_directory_failed(directory, error)

    async def _sync(self, replicas: Sequence[Replica]) -> None:
        """One sync in each directory for the epochs and files of a whole delta."""
        for directory in self._directories.all:
            here = [each for each in replicas if each.directory is directory]
            if here and directory.failure is None:
                try:
                    await directory.sync([each.partition.log for each in here])
                except StorageError as error:
                    self._on_directory_failed(directory, error)
                else:
                    self._on_synced([each.partition for each in here])

    # ---- What happens to partitions --------------------------------------------------------------------

    def on_appended(self, replica: Replica) -> None:
        """The log has grown: it is synced if it must be, and readers are woken."""
        replica.flusher.on_appended(replica.partition)
        self._wake(replica.partition)

    def on_storage_error(self, replica: Replica, error: StorageError) -> ApiError:
        """What to answer. A full disk still reads, so only the log that met it stops; any other failure
        takes the directory offline.
        """
        if not isinstance(replica.partition.log.failure or error, DiskFull):
            self._on_directory_failed(replica.directory, error)
        return KafkaStorageError(f"{replica.partition.topic_partition}: {error}")

    def _flusher_of(self, directory: LogDirectory) -> Flusher:
        def on_failed(error: StorageError) -> None:
            self._on_directory_failed(directory, error)

        return Flusher(directory, self._on_synced, on_failed)

    def _on_synced(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            partition.maybe_increment_high_watermark(self._now_ms())
            self._wake(partition)

    def _on_directory_failed(self, directory: LogDirectory, error: StorageError) -> None:
        directory.go_offline(error)
        for replica in self._replicas.values():
            if replica.directory is directory:
                replica.partition.failure = error
                self._wake(replica.partition)
        self.on_offline.set()

    def _wake(self, partition: Partition) -> None:
        self.parked.wake((partition.topic_id, partition.topic_partition.partition))

    # ---- Checkpoints -----------------------------------------------------------------------------------

    def high_watermarks(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        """By partition, as the checkpoint has them (B4)."""
        return {
            each.partition.topic_partition: each.partition.high_watermark
            for each in self._replicas.values()
            if each.directory is directory
        }

    async def _checkpoint_forever(self) -> None:
        config = self._settings.config
        interval_ms = min(
            config.replica_high_watermark_checkpoint_interval_ms,
            config.log_flush_offset_checkpoint_interval_ms,
        )
        while True:
            await asyncio.sleep(interval_ms / 1000)
            for directory in self._directories.all:
                await self._checkpoint(directory)

    async def _checkpoint(self, directory: LogDirectory) -> None:
        """Saves high watermarks and recovery points, unless nothing has changed since."""
        state = {
            each.partition.topic_partition: (each.partition.high_watermark, each.partition.log.flushed_offset)
            for each in self._replicas.values()
            if each.directory is directory
        }
        if directory.failure is not None or state == self._saved.get(directory):
            return
        try:
            await directory.checkpoint({key: high_watermark for key, (high_watermark, _) in state.items()})
        except DiskFull as error:
            _logger.warning("%s: no checkpoint: %s", directory.path, error)
        except StorageError as error:
            self._on_directory_failed(directory, error)
        else:
            self._saved[directory] = state

    @staticmethod
    def _now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)


def _is_stray(topic: TopicImage | None, topic_id: UUID | None) -> bool:
    return topic is None or topic_id not in (None, topic.topic_id)
