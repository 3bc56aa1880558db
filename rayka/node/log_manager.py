"""The data directories of one broker and the logs in them: opened, deleted, synced, checkpointed, watched.

Invariants:

- A partition is opened in the directory that the metadata name.
- A damaged log is kept. It begins again from nothing only where no replica counts on its records.
- The checkpoints forget a log before its files go.
- A directory whose disk fails is taken offline here, once, and the owner of replicas is told.
- A directory that takes no writes for now (full, read-only, or without a free descriptor) is tried again each second
  while its file system shows room, else each 30 seconds, since a file system with a quota does not show its room.

Retention (`LogRetention`) and compaction (`LogCleaner`) are tasks of their own, begun here. Kafka: `LogManager`, and
the parts of `ReplicaManager` about single logs. Kafka notices a removed directory at the next write, and takes a full
one offline until the broker restarts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from uuid import UUID

from rayka.config.topic_config import TopicConfig
from rayka.errors import DamagedLog, PassingStorageError, StorageError
from rayka.ids import TopicPartition
from rayka.log.log import Log
from rayka.log.log_directory import LogDirectory
from rayka.metadata.image import MetadataImage, PartitionImage
from rayka.node.data_directories import DataDirectories
from rayka.node.log_cleaner import LogCleaner
from rayka.node.log_retention import DeletedLogs, LogRetention
from rayka.node.replica import Flusher, Replica, ReplicaOwner
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Repeats, Tasks
from rayka.partition.partition import Partition

# The place of a log; None: in none of the directories here.
Place = tuple[LogDirectory | None, TopicPartition]
IN_PLACE_LOOK_S = 5
_ROOM_LOOK_S = 1
# At every 30th look a full directory is tried although there seems to be no room.
_TRY_LOOKS = 30
# Less would be gone at once.
_ROOM_BYTES = 64 << 20
_logger = logging.getLogger(__name__)


class LogManager:
    """All logs of one broker, by directory."""

    def __init__(
        self, settings: NodeSettings, directories: DataDirectories, owner: ReplicaOwner, tasks: Tasks
    ) -> None:
        self._settings = settings
        self._broker_id = settings.node_id
        self._directories = directories
        self._owner = owner
        self._deleted = DeletedLogs(directories, self.fail)
        self.cleaner = LogCleaner(settings, owner, self.fail)
        self.retention = LogRetention(
            settings, owner, self._deleted, save=self._save_checkpoint, request_sync=self._request_sync,
            on_failed=self.fail,
        )  # fmt: skip
        self._repeats = Repeats(_logger)
        self._refused_deletions: list[tuple[LogDirectory, TopicPartition, int]] = []
        self.flushers = {
            each: Flusher(each, self._on_synced, partial(self.fail, each)) for each in directories.all
        }
        # One task for each directory: a slow disk holds up no other one.
        for directory, flusher in self.flushers.items():
            tasks.start(f"flush {directory.path}", flusher.run())
            tasks.start(f"remove deleted logs in {directory.path}", self._deleted.run(directory))
        tasks.start("compact logs", self.cleaner.run())
        tasks.start("remove what has expired", self.retention.run())
        tasks.start("look for directories", self._look_for_directories())
        for directory in directories.all:
            tasks.start(f"checkpoint {directory.path}", self._checkpoint_for_ever(directory))

    # ---- Opening ---------------------------------------------------------------------------------------

    def directory_of(
        self, topic_partition: TopicPartition, topic_id: UUID, state: PartitionImage
    ) -> LogDirectory:
        """The directory of the replica by the metadata; during a move from another directory, that one. Raises
        StorageError when its disk has failed, and when the directory is not here, for example after a disk was
        replaced: the controller will name another directory instead of one that the broker has not registered.
        """
        directory_id = state.directory_of(self._broker_id)
        directory = self._directories.get(directory_id)
        absence = self._directories.absence(directory_id)
        if absence is not None:
            raise absence
        if directory is None:
            raise StorageError(
                f"{topic_partition} lives in directory {directory_id}, which is none of"
                f" {[each.path for each in self._directories.all]}; it begins anew in one of these as soon as the"
                " controller has said in which"
            )
        if self._directories.is_copied_into(directory, topic_partition, topic_id):
            directory = self._source_of(directory, topic_partition, topic_id, state)
        if directory.failure is not None:
            raise directory.failure
        return directory

    def _source_of(
        self, home: LogDirectory, topic_partition: TopicPartition, topic_id: UUID, state: PartitionImage
    ) -> LogDirectory:
        """The directory of a log whose copy was not complete when its broker ended. If the log is not here any more,
        the replica begins anew in `home`, if no replica counts on it.
        """
        source = self._directories.source_of_copy(home, topic_partition, topic_id)
        if source is not None:
            # They name a log that had the partition's name for a moment.
            home.checkpoints.forget(topic_partition)
            return source
        if not self.can_be_copied(state):
            raise StorageError(
                f"{topic_partition} was being moved to {home.path}, and the log that it was copied from is in none of"
                f" {[each.path for each in self._directories.all]}; bring back the data directory that holds it, then"
                " restart the broker"
            )
        self.delete_future(home, home.partitions.future_path(topic_partition, topic_id))
        return home

    def can_be_copied(self, state: PartitionImage) -> bool:
        """True if nothing depends on this replica's records: another broker leads, and this one may not be elected."""
        counted_on = (*state.isr, *state.eligible_leader_replicas, *state.last_known_elr, state.leader_id)
        return state.has_leader and self._broker_id not in counted_on

    async def open(
        self, topic_partition: TopicPartition, topic_id: UUID, state: PartitionImage, config: TopicConfig, now_ms: int
    ) -> tuple[LogDirectory, Log]:  # fmt: skip
        """Opens the log, recovers it if necessary, and returns it with its directory.

        A damaged log is kept aside when it can be copied from its leader, also if only one batch is damaged: readers
        would get no further once this replica leads. Raises what `directory_of` and `LogDirectory.open_log` raise.
        """
        directory = self.directory_of(topic_partition, topic_id, state)
        try:
            log = await directory.open_log(topic_partition, topic_id, config, now_ms=now_ms)
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
        return directory, await directory.open_log(topic_partition, topic_id, config, now_ms=now_ms)

    async def reopen(self, replica: Replica, now_ms: int) -> None:
        """Opens the log anew from its files; until that is done the replica goes on with the log that it had. Raises
        StorageError.
        """
        partition, directory = replica.partition, replica.directory
        log = await directory.reopen_log(
            partition.topic_partition, partition.topic_id, partition.config, now_ms=now_ms
        )
        partition.on_log_reopened(log, now_ms)

    # ---- Deleting -----------------------------------------------------------------------------------------

    async def forget(self, places: Sequence[Place]) -> None:
        """Takes logs out of the checkpoints, which must not name a log that is gone."""
        here: dict[LogDirectory, list[TopicPartition]] = {}
        for directory, topic_partition in places:
            if directory is not None and directory.failure is None:
                here.setdefault(directory, []).append(topic_partition)
        await asyncio.gather(*(self._forget(each, names) for each, names in here.items()))

    async def _forget(self, directory: LogDirectory, topic_partitions: Sequence[TopicPartition]) -> None:
        with self._may_fail(directory):
            try:
                await directory.forget(topic_partitions)
            except PassingStorageError as error:
                _logger.warning("%s: no checkpoint: %s", directory.path, error)

    def delete(self, directory: LogDirectory, topic_partition: TopicPartition, delay_ms: int) -> None:
        """Renames the log; its files are removed after the delay. If the disk refuses the rename for now, the log is
        deleted before the directory takes writes again, so that the name is free then.
        """
        if directory.failure is None:
            with self._may_fail(directory):
                try:
                    deleted = directory.delete_log(topic_partition)
                except PassingStorageError:
                    self._refused_deletions.append((directory, topic_partition, delay_ms))
                    raise
                if deleted is not None:
                    self._deleted.add(directory, (deleted,), delay_ms)

    def delete_future(self, directory: LogDirectory, path: str) -> None:
        """Deletes the copy of a replica; its files are removed at once."""
        if directory.failure is None:
            with self._may_fail(directory):
                deleted = directory.futures.delete(path)
                if deleted is not None:
                    self._deleted.add(directory, (deleted,), 0)

    async def tidy(self, image: MetadataImage) -> None:
        """Deletes the logs of replicas that moved to other brokers or directories while this broker was down, and sets
        aside the logs whose partition is not in the metadata (F4).

        Most of these topics were deleted; but metadata that was lost must not take the records along.
        """
        known = [
            (directory, topic_partition, _state_of(image, topic_partition, topic_id))
            for directory in self._directories.all
            for topic_partition, topic_id in directory.partitions.all().items()
        ]
        strays = [(each, name) for each, name, state in known if state is None]
        moved = [
            (each, name) for each, name, state in known if state and self._is_elsewhere(name, state, each)
        ]
        await self.forget([*moved, *strays])
        for directory, topic_partition in moved:
            _logger.info("%s is elsewhere now: its log in %s is deleted", topic_partition, directory.path)
            self.delete(directory, topic_partition, self._settings.config.log_segment_delete_delay_ms)
        for directory, topic_partition in strays:
            with self._may_fail(directory):
                _logger.warning(
                    "%s is not in the metadata: kept in %s; remove it if the topic was deleted",
                    topic_partition,
                    directory.set_aside_log(topic_partition),
                )

    def _is_elsewhere(
        self, topic_partition: TopicPartition, state: PartitionImage, directory: LogDirectory
    ) -> bool:
        """True if the replica is on other brokers, or in another directory here."""
        home = self._directories.get(state.directory_of(self._broker_id))
        if self._broker_id not in state.replicas:
            return True
        if home is None or home is directory:
            return False
        topic_id = directory.partitions.topic_id(topic_partition)
        return (
            topic_id is None
            or self._directories.source_of_copy(home, topic_partition, topic_id) is not directory
        )

    # ---- Durability ------------------------------------------------------------------------------------

    def _request_sync(self, replica: Replica) -> None:
        self.flushers[replica.directory].request(replica.partition)

    def _on_synced(self, partitions: Sequence[Partition]) -> None:
        self._owner.on_synced(partitions)
        self.retention.on_synced(each.log for each in partitions)

    async def sync_epochs(self, directory: LogDirectory, logs: Sequence[Log]) -> None:
        """Makes durable, by one sync, where the epochs of these logs in the directory begin."""
        if logs and directory.failure is None:
            with self._may_fail(directory):
                await directory.sync(logs, epochs_only=True)

    def high_watermarks(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        """The high watermarks for the checkpoint of the directory (B4)."""
        return {
            each.partition.topic_partition: each.partition.high_watermark
            for each in self._owner.replicas
            if each.directory is directory
        }

    async def _checkpoint_for_ever(self, directory: LogDirectory) -> None:
        """Saves high watermarks, recovery points and log start offsets at each interval (B4, F13)."""
        config = self._settings.config
        interval_ms = min(
            config.replica_high_watermark_checkpoint_interval_ms,
            config.log_flush_offset_checkpoint_interval_ms,
        )
        while True:
            await asyncio.sleep(interval_ms / 1000)
            if directory.failure is None:
                await self._save_checkpoint(directory)

    async def _save_checkpoint(self, directory: LogDirectory) -> None:
        with self._may_fail(directory):
            try:
                await directory.checkpoint(partial(self.high_watermarks, directory))
                self._repeats.succeeded(directory)
            except PassingStorageError as error:
                self._repeats.failed(directory, f"{directory.path}: no checkpoint: {error}")

    # ---- Failed and full directories -------------------------------------------------------------------

    def fail(self, directory: LogDirectory, error: StorageError) -> None:
        """Takes the directory offline until the broker restarts: its disk failed."""
        directory.go_offline(error)
        self._owner.on_directory_failed(directory, error)
        self._directories.changed.set()

    def on_log_failed(
        self, directory: LogDirectory, cause: StorageError, error: StorageError, *, is_replaceable: bool
    ) -> None:
        """Counts the error of one log for its whole directory, but for damage, which says nothing about other logs. A
        full disk is still read; other replicas in sync lead instead until there is room.
        """
        if isinstance(cause, PassingStorageError):
            directory.on_full(cause, is_reported_offline=is_replaceable)
            if is_replaceable:
                self._directories.changed.set()
        elif not isinstance(cause, DamagedLog):
            self.fail(directory, error)

    @contextmanager
    def _may_fail(self, directory: LogDirectory) -> Iterator[None]:
        """Takes the directory offline at an error of its disk in the block, unless the error passes."""
        try:
            yield
        except PassingStorageError as error:
            if directory.failure is None:
                directory.on_full(error)
            else:
                # A sync failed with it: a failed sync is final.
                self.fail(directory, error)
        except StorageError as error:
            self.fail(directory, error)

    async def look_for_room(self, on_room: Callable[[LogDirectory], Awaitable[bool]]) -> None:
        """Lets full directories go on once they have room and all their partitions go on, which `on_room` says."""
        look_count = 0
        while True:
            await asyncio.sleep(_ROOM_LOOK_S)
            look_count += 1
            for directory in [each for each in self._directories.online() if each.full is not None]:
                with self._may_fail(directory):
                    is_tried = look_count % _TRY_LOOKS == 0
                    if not is_tried and self._settings.disk.free_bytes(directory.path) < _ROOM_BYTES:
                        continue
                    if directory.has_room() and self._has_deleted(directory) and await on_room(directory):
                        directory.on_room()
                        # There may have been no room for the broker epoch.
                        self._directories.record_broker_epoch(directory)
                        self._directories.changed.set()

    def _has_deleted(self, directory: LogDirectory) -> bool:
        """Makes the deletions that the directory's disk has refused; True if none is left."""
        refused, self._refused_deletions = self._refused_deletions, []
        for each in refused:
            if each[0] is directory:
                self.delete(*each)
            else:
                self._refused_deletions.append(each)
        return not any(each[0] is directory for each in self._refused_deletions)

    async def _look_for_directories(self) -> None:
        """Takes directories offline that are gone: a broker that writes nothing would not notice, because it reads on
        in its open files. A look at one inode takes some microseconds.
        """
        while True:
            await asyncio.sleep(IN_PLACE_LOOK_S)
            for directory in self._directories.online():
                with self._may_fail(directory):
                    directory.check_in_place()


def _state_of(
    image: MetadataImage, topic_partition: TopicPartition, topic_id: UUID | None
) -> PartitionImage | None:
    """The partition of this log in the metadata; None: unknown there."""
    topic = image.topics.get(topic_partition.topic)
    if topic is None or topic_id not in (None, topic.topic_id):
        return None
    number = topic_partition.partition
    return topic.partitions[number] if number < len(topic.partitions) else None
