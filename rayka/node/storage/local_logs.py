"""The logs in the data directories of one broker: opened, deleted, set aside, synced.

Invariants: a partition is opened in the directory that the metadata names; a log that is damaged is kept, and begins
again from nothing only where nobody counts on what it has; the checkpoints are the first to forget a log that goes; a
failure of a disk is handed to its owner, once. Kafka: the parts of `LogManager` and `ReplicaManager` that are about
single logs.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from rayka.config import TopicConfig
from rayka.errors import DamagedLog, DiskFull, StorageError
from rayka.ids import TopicPartition, node_name
from rayka.log.log import Log
from rayka.log.log_directory import LogDirectory
from rayka.log.slices import Slices
from rayka.metadata.image import MetadataImage, PartitionImage
from rayka.node.replication.replica import Replica
from rayka.node.storage.data_directories import DataDirectories
from rayka.node.storage.deleted_logs import DeletedLogs

Place = tuple[LogDirectory | None, TopicPartition]  # None: it is in none of the directories here
_logger = logging.getLogger(__name__)


class LocalLogs:
    """All logs of one broker, by directory."""

    def __init__(
        self,
        broker_id: int,
        directories: DataDirectories,
        deleted: DeletedLogs,
        on_failed: Callable[[LogDirectory, StorageError], None],
    ) -> None:
        self._broker_id = broker_id
        self._directories = directories
        self._deleted = deleted
        self._on_failed = on_failed

    def __repr__(self) -> str:
        return (
            f"<LocalLogs of {node_name(self._broker_id)} in {[each.path for each in self._directories.all]}>"
        )

    # ---- Opening ---------------------------------------------------------------------------------------

    def directory_of(self, topic_partition: TopicPartition, state: PartitionImage) -> LogDirectory:
        """Where the replica is, or is to be. Raises StorageError when its disk has failed, and when it is not here, as
        after a disk was replaced: instead of a directory that the broker has not registered a controller names another.
        """
        directory_id = state.directory_of(self._broker_id)
        directory = self._directories.get(directory_id)
        if directory is None:
            raise StorageError(
                f"{topic_partition} lives in directory {directory_id}, which is none of"
                f" {[each.path for each in self._directories.all]}; it begins anew in one of these as soon as the"
                " controller has said in which"
            )
        if directory.failure is not None:
            raise directory.failure
        return directory

    def can_be_copied(self, state: PartitionImage) -> bool:
        """Whether nothing depends on what this replica has: another broker leads, and this one may not be elected."""
        counted_on = (*state.isr, *state.eligible_leader_replicas, *state.last_known_elr, state.leader_id)
        return state.has_leader and self._broker_id not in counted_on

    async def open(
        self, topic_partition: TopicPartition, topic_id: UUID, state: PartitionImage, config: TopicConfig, now_ms: int
    ) -> tuple[LogDirectory, Log]:  # fmt: skip
        """The log, recovered where that is necessary, and where it is. One that is damaged is kept aside when it can be
        copied from its leader, also if only a batch in it is: it could be read by nobody once this replica leads.
        Raises what `directory_of` and `LogDirectory.open_log` raise.
        """
        directory = self.directory_of(topic_partition, state)
        try:
            log = await self._opened(
                directory, directory.opening_log(topic_partition, topic_id, config, now_ms=now_ms)
            )
        except DamagedLog as error:
            if not self.can_be_copied(state):
                raise
            problem = str(error)
        else:
            if not (log.recovery.damaged and self.can_be_copied(state)):
                return directory, log
            problem = f"{topic_partition}: {len(log.recovery.damaged)} batches are damaged"
        _logger.warning("%s; it is copied from its leader again", problem)
        kept = directory.set_aside_log(topic_partition)
        if kept is not None:
            _logger.warning("%s: the damaged log is kept in %s", topic_partition, kept)
        copied_anew = directory.opening_log(topic_partition, topic_id, config, now_ms=now_ms)
        return directory, await self._opened(directory, copied_anew)

    async def reopen(self, replica: Replica, now_ms: int) -> None:
        """The replica goes on with what is in its log's files, and until that is known with the log that it had. Raises
        StorageError.
        """
        partition, directory = replica.partition, replica.directory
        reopening = directory.reopening_log(
            partition.topic_partition, partition.topic_id, partition.config, now_ms=now_ms
        )
        log = await self._opened(directory, reopening)
        partition.on_log_reopened(log, now_ms)

    async def _opened(self, directory: LogDirectory, opening: Slices[Log]) -> Log:
        """The log, after as many turns of the event loop as its recovery takes. Raises what the disk fails with
        meanwhile: nothing would tell the replica later.
        """
        while True:
            if directory.failure is not None:
                raise directory.failure
            try:
                next(opening)
            except StopIteration as end:
                log: Log = end.value
                return log
            await asyncio.sleep(0)

    # ---- Going -----------------------------------------------------------------------------------------

    async def forget(self, places: Sequence[Place]) -> None:
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
                self._on_failed(directory, error)

    def delete(self, directory: LogDirectory, topic_partition: TopicPartition, delay_ms: int) -> None:
        """Takes the log out of the way; its files are removed later."""
        if directory.failure is not None:
            return
        try:
            deleted = directory.delete_log(topic_partition)
        except StorageError as error:
            self._on_failed(directory, error)
        else:
            if deleted is not None:
                self._deleted.add(directory, deleted, delay_ms)

    async def tidy(self, image: MetadataImage, delay_ms: int) -> None:
        """Deletes the logs of replicas that were moved to other brokers or directories while this one was down, and
        takes those whose partition is not in the metadata out of the way (F4).

        Mostly such a topic was deleted meanwhile; but metadata that was lost must not take the records along.
        """
        moved, strays = self._unwanted(image)
        await self.forget([*moved, *strays])
        for directory, topic_partition in moved:
            _logger.info("%s is elsewhere now: its log in %s is deleted", topic_partition, directory.path)
            self.delete(directory, topic_partition, delay_ms)
        for directory, topic_partition in strays:
            self._set_aside(directory, topic_partition)

    def _unwanted(
        self, image: MetadataImage
    ) -> tuple[list[tuple[LogDirectory, TopicPartition]], list[tuple[LogDirectory, TopicPartition]]]:
        """What was moved, and what is not in the metadata."""
        moved, strays = [], []
        for directory in self._directories.all:
            for topic_partition, topic_id in directory.partitions().items():
                state = _state_of(image, topic_partition, topic_id)
                if state is None:
                    strays.append((directory, topic_partition))
                elif self._is_elsewhere(state, directory):
                    moved.append((directory, topic_partition))
        return moved, strays

    def _is_elsewhere(self, state: PartitionImage, directory: LogDirectory) -> bool:
        """Whether the replica is on other brokers, or in another directory here."""
        home = self._directories.get(state.directory_of(self._broker_id))
        return self._broker_id not in state.replicas or home not in (None, directory)

    def _set_aside(self, directory: LogDirectory, topic_partition: TopicPartition) -> None:
        try:
            kept = directory.set_aside_log(topic_partition)
        except StorageError as error:
            self._on_failed(directory, error)
        else:
            _logger.warning(
                "%s is not in the metadata: kept in %s; remove it if the topic was deleted",
                topic_partition,
                kept,
            )

    # ---- Durability ------------------------------------------------------------------------------------

    async def sync_epochs(self, places: Iterable[tuple[LogDirectory, Log]]) -> None:
        """One sync in each directory; then it is durable where the epochs of these logs begin."""
        by_directory: dict[LogDirectory, list[Log]] = {}
        for directory, log in places:
            by_directory.setdefault(directory, []).append(log)
        for directory, logs in by_directory.items():
            if directory.failure is None:
                try:
                    await directory.sync_epochs(logs)
                except StorageError as error:
                    self._on_failed(directory, error)


def _state_of(
    image: MetadataImage, topic_partition: TopicPartition, topic_id: UUID | None
) -> PartitionImage | None:
    """The partition whose log this is, as far as the metadata knows it."""
    topic = image.topics.get(topic_partition.topic)
    if topic is None or topic_id not in (None, topic.topic_id):
        return None
    number = topic_partition.partition
    return topic.partitions[number] if number < len(topic.partitions) else None
