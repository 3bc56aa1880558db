"""One data directory of a node, and the logs in it.

Files (F4): `meta.properties` (node, cluster, directory id), `.lock` (held while open), the checkpoints of all
partitions, the files of the last shutdown (`shutdown_files`), and a directory for each partition
(`partition_directories`).

Invariants:
- At most one LogDirectory is open for a path.
- After a failed sync the directory is offline for good: the sync is never retried, and no later start takes the
  directory for clean.
- A directory that takes no writes for now (full, read-only, or without a free descriptor) is read, and takes writes
  again when that has passed.

Kafka: `LogManager`, `MetaPropertiesEnsemble`. Left out: several directories in one object.
"""

import asyncio
import logging
import posixpath
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from rayka.config.topic_config import TopicConfig
from rayka.errors import (
    DamagedLog,
    DirectoryTaken,
    DiskNotResponding,
    InconsistentTopicId,
    InvariantBroken,
    PassingStorageError,
    StorageError,
)
from rayka.ids import NO_EPOCH, TopicPartition, node_name
from rayka.log.checkpoint_files import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    LOWERED_RECOVERY_POINT_FILE,
    RECOVERY_POINT_FILE,
    encode_offsets,
    lowered_recovery_point,
    read_lowered_recovery_point,
    read_offsets,
    replace_durably,
)
from rayka.log.log import Log
from rayka.log.log_files import Slices
from rayka.log.log_opening import ShutdownState, opening_log
from rayka.log.meta_properties import (
    META_PROPERTIES_FILE,
    MetaProperties,
    encode_meta_properties,
    read_meta_properties,
    wrong_cluster,
)
from rayka.log.partition_directories import (
    DELETED_SUFFIX,
    PARTITION_METADATA_FILE,
    STRAY_SUFFIX,
    PartitionDirectories,
    encode_partition_metadata,
)
from rayka.log.recovery import Tearing, has_segments
from rayka.log.segment_removal import has_swap
from rayka.log.shutdown_files import ShutdownFiles
from rayka.ports import Disk, Lock

# ---- Future logs: copies of replicas that move here from another directory ----------------------------------------


class FutureLogs:
    """The future logs of one data directory.

    A future log is a directory `<topic>-<partition>.<topic id>-future`. It is only a copy until one rename gives it the
    name of its partition. A move that ends before leaves the original log as it is.

    Invariants: a future log has its directory from the begin, so that it tells of the move after a crash. After an
    unclean shutdown it is scanned from its first batch, for no checkpoint knows of it. Kafka: `LogManager.futureLogs`.
    """

    def __init__(self, disk: Disk, partitions: PartitionDirectories) -> None:
        self._disk = disk
        self._partitions = partitions
        # By path.
        self._open: dict[str, Log] = {}

    @property
    def logs(self) -> list[Log]:
        """The open ones."""
        return list(self._open.values())

    def exists(self, topic_partition: TopicPartition, topic_id: UUID) -> bool:
        """Whether this process or an earlier one has begun a copy."""
        return self._disk.exists(self._partitions.future_path(topic_partition, topic_id))

    def opening(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: TopicConfig,
        *,
        start_offset: int,
        was_clean: bool,
        now_ms: int,
    ) -> Slices[Log]:
        """Opens the copy as the last process left it, or a new one that begins at `start_offset`, by slices. Raises
        DamagedLog, StorageError.
        """
        path = self._partitions.future_path(topic_partition, topic_id)
        left = ShutdownState(0, start_offset, Tearing.NOTHING if was_clean else Tearing.ANYWHERE)
        new_files = {PARTITION_METADATA_FILE: encode_partition_metadata(topic_id)}
        log = yield from opening_log(self._disk, path, config, left, now_ms=now_ms, new_files=new_files)
        log.make_files()
        self._open[path] = log
        return log

    def promote(self, topic_partition: TopicPartition, topic_id: UUID) -> Log:
        """Gives the copy the name of its partition, durably once the data directory is synced. Raises StorageError; the
        log is still a copy then.
        """
        path = self._partitions.future_path(topic_partition, topic_id)
        log = self._open[path]
        log.move_to(self._partitions.path(topic_partition))
        del self._open[path]
        return log

    def delete(self, path: str) -> str | None:
        """Gives up the copy with this path, open or not; returns its new path. Raises StorageError."""
        self._open.pop(path, None)
        return self._partitions.delete_future(path)


# ---- Checkpoints ---------------------------------------------------------------------------------------------------


# A recovery point may rest on a log start that made the records below it superfluous: the log starts are written first.
_FILES = (LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE, CLEANER_OFFSET_FILE)


class OffsetCheckpoints:
    """The checkpoints of one data directory, by partition: recovery points, log start offsets, high watermarks, and the
    offsets up to which logs are compacted (B4, F13, F20).

    Invariants: a deleted log is forgotten before another of its name begins. Files are written only when something has
    changed since this process wrote them. Kafka: `OffsetCheckpointFile`, `LogManager.checkpointLogRecoveryOffsets`.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._paths = [posixpath.join(directory, name) for name in _FILES]
        self._all = [read_offsets(disk, path) for path in self._paths]
        self.log_start_offsets, self.recovery_points, self.high_watermarks, self.cleaned_offsets = self._all
        self.saved_recovery_points = dict(self.recovery_points)
        # The content that this process wrote last; None before the first write, and after one that failed.
        self._saved: list[dict[TopicPartition, int]] | None = None

    def note(self, topic_partition: TopicPartition, log: Log) -> None:
        """Takes over the durable offsets of an open log, and its start."""
        self.recovery_points[topic_partition] = log.flushed_offset
        self.log_start_offsets[topic_partition] = log.log_start_offset
        if log.cleaned_offset:
            self.cleaned_offsets[topic_partition] = log.cleaned_offset
        else:
            self.cleaned_offsets.pop(topic_partition, None)

    def forget(self, topic_partition: TopicPartition) -> bool:
        """Forgets a log that is gone; True if the checkpoints knew of any record."""
        known = [offsets.pop(topic_partition, 0) for offsets in self._all]
        return any(offset > 0 for offset in known)

    async def save(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Writes the files, durably, with the offsets of the open logs. Raises StorageError; the old files are whole
        then.
        """
        for topic_partition, log in logs.items():
            self.note(topic_partition, log)
        if self._all == self._saved:
            return
        self._saved, written = None, [dict(offsets) for offsets in self._all]
        contents = zip(self._paths, map(encode_offsets, written), strict=True)
        await replace_durably(self._disk, dict(contents))
        self._saved, self.saved_recovery_points = written, written[1]
        for topic_partition, log in logs.items():
            log.on_recovery_point_saved(self.saved_recovery_points.get(topic_partition, 0))


LOCK_FILE = ".lock"
_PROBE_FILE = ".rayka_room"
_PROBE_BYTES = 1 << 20
_logger = logging.getLogger(__name__)


class LogDirectory:
    """An open, locked data directory of one node. Made by `open`."""

    def __init__(self, disk: Disk, path: str, properties: MetaProperties, lock: Lock) -> None:
        self._disk = disk
        self._lock = lock
        self._lock_path = posixpath.join(path, LOCK_FILE)
        self._lock_file = disk.identity(self._lock_path)
        # Two checkpoints at once would rename each other's files away.
        self._checkpointing = asyncio.Lock()
        self.path = path
        # No cluster before the first registration.
        self.node_id, self.directory_id, self.cluster_id = properties
        self.checkpoints = OffsetCheckpoints(disk, path)
        self.partitions = PartitionDirectories(disk, path)
        self.futures = FutureLogs(disk, self.partitions)
        self.shutdown = ShutdownFiles(disk, path, self.on_full)
        self.failure: StorageError | None = None
        # Why the directory takes no writes for now.
        self.full: PassingStorageError | None = None
        # The controller was told that the directory takes no writes, so that others lead.
        self.is_reported_offline = False
        # The directory was reported offline, and takes writes again.
        self.has_recovered = False
        self.logs: dict[TopicPartition, Log] = {}
        # Called when the directory stops taking writes.
        self.on_new_state: Callable[[], None] = lambda: None
        # Removes the boot file once the hanging disk answers, so that no later start takes the directory for clean.
        self._forgetting: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "" if self.failure is None else " offline"
        return f"<LogDirectory {self.path} of {node_name(self.node_id)} logs={len(self.logs)}{state}>"

    # ---- Formatting and opening ----------------------------------------------------------------------------

    @staticmethod
    async def format(
        disk: Disk, path: str, *, node_id: int, directory_id: UUID, cluster_id: str = ""
    ) -> None:
        """Makes the directory this node's, durably. Raises StorageError when it is a node's already."""
        properties_path = posixpath.join(path, META_PROPERTIES_FILE)
        if disk.exists(properties_path):
            raise StorageError(f"{path} is formatted already; remove it first if its data is not wanted")
        created = [path]
        while not disk.exists(posixpath.dirname(created[-1])):
            created.append(posixpath.dirname(created[-1]))
        disk.make_directory(path)
        properties = MetaProperties(node_id, directory_id, cluster_id)
        await replace_durably(disk, {properties_path: encode_meta_properties(properties)})
        await disk.sync([], [posixpath.dirname(each) for each in created])

    @classmethod
    async def open(cls, disk: Disk, path: str, *, node_id: int, cluster_id: str = "") -> "LogDirectory":
        """Locks the directory and reads how it was left. An empty `cluster_id` is not known yet, and not checked.

        Raises StorageError when the directory is missing, not formatted, in use, of another node or of another cluster.
        The message names the directory, the owner expected and found, and the remedy.
        """
        properties = read_meta_properties(disk, path, node_id, cluster_id)
        try:
            lock = disk.lock(posixpath.join(path, LOCK_FILE))
        except DirectoryTaken as error:
            raise DirectoryTaken(
                f"data directory {path} is in use: {error}; stop that process first"
            ) from error
        try:
            directory = cls(disk, path, properties, lock)
            await directory.shutdown.take_over(directory.partitions.paths())
        except BaseException:
            lock.release()
            raise
        return directory

    async def adopt_cluster_id(self, cluster_id: str) -> None:
        """Records the cluster's id. Raises StorageError when the directory is another cluster's."""
        if self.cluster_id == cluster_id:
            return
        if self.cluster_id:
            raise wrong_cluster(self.path, cluster_id, self.cluster_id)
        content = encode_meta_properties(MetaProperties(self.node_id, self.directory_id, cluster_id))
        await replace_durably(self._disk, {posixpath.join(self.path, META_PROPERTIES_FILE): content})
        self.cluster_id = cluster_id

    # ---- Logs ----------------------------------------------------------------------------------------------

    async def open_log(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: TopicConfig,
        *,
        now_ms: int,
        is_always_synced: bool = False,
    ) -> Log:
        """Opens the partition's log, new if there is none, and recovers it if this directory was not shut down cleanly,
        in as many turns of the event loop as that takes.

        `is_always_synced`: each append is synced before the next, so even a power cut tears no more than the tail.
        Raises InconsistentTopicId when the directory belongs to another topic of that name; DamagedLog when recovery
        would have to cut off whole batches, or the log is gone; StorageError when the disk fails. Also when the
        directory goes offline during the recovery: the user of the log would not learn of it later.
        """
        if topic_partition in self.logs:
            raise InvariantBroken(f"{self!r} has the log of {topic_partition!r} open already")
        path = self.partitions.path(topic_partition)
        tearing = self.shutdown.tearing(path, is_always_synced=is_always_synced)
        return await self._open_log(topic_partition, topic_id, config, tearing, now_ms)

    async def reopen_log(
        self, topic_partition: TopicPartition, topic_id: UUID, config: TopicConfig, *, now_ms: int
    ) -> Log:
        """Opens the log anew after a change ended half way on a full disk, and recovers it as after the end of a
        process. Raises as `open_log`. Until it returns, and after an error, the old log stays in place, is read, and
        takes no change.
        """
        stopped = self.logs[topic_partition]
        self.checkpoints.note(topic_partition, stopped)
        stopped.is_reopened = True
        try:
            return await self._open_log(topic_partition, topic_id, config, Tearing.SHORT_TAIL, now_ms)
        finally:
            stopped.is_reopened = False

    async def _open_log(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: TopicConfig,
        tearing: Tearing,
        now_ms: int,
    ) -> Log:
        found_id, path = self.partitions.topic_id(topic_partition), self.partitions.path(topic_partition)
        if found_id not in (None, topic_id):
            raise InconsistentTopicId(f"{path} is of topic {found_id}, expected {topic_id}")
        self._check_has_files(topic_partition, tearing)
        new_files = {}
        if found_id is None:
            new_files[PARTITION_METADATA_FILE] = encode_partition_metadata(topic_id)
        checkpoints = self.checkpoints
        if not self._disk.exists(path) and topic_partition in checkpoints.saved_recovery_points:
            # The checkpoint describes a log of this name that was deleted.
            new_files |= lowered_recovery_point(0)
        if has_swap(self._disk, path):
            await self._disk.sync([], [path])
        left = ShutdownState(
            checkpoints.recovery_points.get(topic_partition, 0),
            checkpoints.log_start_offsets.get(topic_partition, 0),
            tearing,
        )
        opening = opening_log(self._disk, path, config, left, now_ms=now_ms, new_files=new_files)
        while True:
            self._check_online()
            try:
                next(opening)
            except StopIteration as end:
                log: Log = end.value
                break
            await asyncio.sleep(0)
        self.shutdown.on_recovered(path)
        saved = checkpoints.cleaned_offsets.get(topic_partition, 0)
        # Records appended behind a truncation since the checkpoint were never cleaned.
        lowered = read_lowered_recovery_point(self._disk, log.directory, saved)
        log.cleaned_offset = min(lowered, log.log_end_offset)
        self.logs[topic_partition] = log
        return log

    def _check_has_files(self, topic_partition: TopicPartition, tearing: Tearing) -> None:
        """Raises DamagedLog when the checkpoints know of records that are in no file.

        A power cut may take unsynced records, so a high watermark proves nothing then. Checkpoints say nothing of
        deleted logs, because of `forget`.
        """
        checkpoints = self.checkpoints
        offset = checkpoints.recovery_points.get(topic_partition, 0)
        if tearing in (Tearing.NOTHING, Tearing.SHORT_TAIL):
            offset = max(offset, checkpoints.high_watermarks.get(topic_partition, 0))
        path = self.partitions.path(topic_partition)
        is_empty = offset <= checkpoints.log_start_offsets.get(topic_partition, 0)
        if is_empty or has_segments(self._disk, path):
            return
        marker = posixpath.join(path, LOWERED_RECOVERY_POINT_FILE)
        if not self._disk.exists(marker):
            raise DamagedLog(
                f"{path} has no log files, but {self.path} had records of {topic_partition} up to offset {offset}:"
                " the directory was removed or emptied. Restore it from a copy; or delete the topic; or, to go on"
                f" without the records, make an empty file {marker}; then restart the node"
            )

    def drop_damaged_log(self, topic_partition: TopicPartition) -> None:
        """The log, open here, was found damaged and is not used any more. The next opening recovers it, also after a
        clean shutdown.
        """
        if self.logs.pop(topic_partition, None) is not None:
            self.shutdown.on_damaged(self.partitions.path(topic_partition))

    async def forget(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """Removes these partitions from the checkpoints, durably, before their logs are deleted or set aside. A
        checkpoint of a log that is gone would say of the next log of its name that its records are lost.
        """
        for topic_partition in topic_partitions:
            self.logs.pop(topic_partition, None)
        were_known = [self.checkpoints.forget(each) for each in topic_partitions]
        if any(were_known):
            await self.checkpoint()

    def delete_log(self, topic_partition: TopicPartition) -> str | None:
        """Renames the partition's directory, opened or not, so that its name is free. Returns the new path, for
        `remove_deleted`, or None if there was none: a removal takes a hundred times as long as a rename.
        """
        return self._take_away(topic_partition, DELETED_SUFFIX)

    def set_aside_log(self, topic_partition: TopicPartition) -> str | None:
        """Renames the directory of a partition that is not in the metadata, so that its name is free (F4). Nothing
        reads, removes or misses its records any more. Returns the new path, or None if there was none.
        """
        return self._take_away(topic_partition, STRAY_SUFFIX)

    def _take_away(self, topic_partition: TopicPartition, suffix: str) -> str | None:
        self.logs.pop(topic_partition, None)
        self.checkpoints.forget(topic_partition)
        renamed = self.partitions.rename(topic_partition, suffix)
        self.shutdown.on_recovered(self.partitions.path(topic_partition))
        return renamed

    async def remove_deleted(self, paths: Sequence[str]) -> None:
        """Removes directories of deleted logs and files of deleted segments; readers keep their maps. First makes the
        new names durable: else a power cut might bring an old name back with a part of its files. Paths that are gone
        already are skipped. Raises PassingStorageError, with some of them removed; and StorageError, after which the
        directory is offline for good.
        """
        self._check_online()
        parents = {posixpath.dirname(each): None for each in paths}
        is_synced = False
        try:
            await self._disk.sync([], [each for each in parents if self._disk.exists(each)])
            is_synced = True
            for path in paths:
                await self._disk.discard(path)
        except StorageError as error:
            if not (is_synced and isinstance(error, PassingStorageError)):
                self.go_offline(error)
            raise

    # ---- Durability ----------------------------------------------------------------------------------------

    async def sync(
        self, logs: Sequence[Log], *, epochs_only: bool = False, in_background: bool = False
    ) -> None:
        """Makes everything in these logs durable, or their epochs alone, with one sync; `in_background` as in
        `Disk.sync`. Raises StorageError, after which the directory is offline for good.
        """
        self._check_online()
        plans = [log.unsynced(epochs_only=epochs_only) for log in logs]
        files = [path for plan in plans for path in plan.files]
        directories = list(dict.fromkeys(path for plan in plans for path in plan.directories))
        try:
            await self._disk.sync(files, directories, in_background=in_background)
        except StorageError as error:
            self.go_offline(error)
            raise
        for log, plan in zip(logs, plans, strict=True):
            log.on_synced(plan)

    async def checkpoint(self, high_watermarks: Callable[[], Mapping[TopicPartition, int]] = dict) -> None:
        """Saves recovery points, log start offsets and, for the logs opened here, high watermarks, durably (B4, F13).

        Asks for the high watermarks when it is this checkpoint's turn: a log may be deleted, and another of its name
        begin, while it waits.
        """
        async with self._checkpointing:
            self._check_online()
            for topic_partition, high_watermark in high_watermarks().items():
                # A log forgotten in between has no high watermark any more.
                if topic_partition in self.logs:
                    self.checkpoints.high_watermarks[topic_partition] = high_watermark
            try:
                await self.checkpoints.save(self.logs)
            except PassingStorageError as error:
                # The old files are whole, and still true.
                self.on_full(error)
                raise
            except StorageError as error:
                self.go_offline(error)
                raise

    # ---- Full, failed, removed -----------------------------------------------------------------------------

    def on_full(self, error: PassingStorageError, *, is_reported_offline: bool = False) -> None:
        """The directory takes no writes for now, and is still read. `is_reported_offline`: the controller is told, so
        that other brokers lead its partitions.
        """
        if self.full is None:
            _logger.error("%s takes no writes until %s: %s", self.path, error.until, error)
        is_new, self.full = self.full is None, self.full or error
        self.is_reported_offline = self.is_reported_offline or is_reported_offline
        if is_new:
            self.on_new_state()

    def on_room(self) -> None:
        """The directory takes writes again."""
        _logger.info("%s takes writes again", self.path)
        self.has_recovered = self.has_recovered or self.is_reported_offline
        self.full, self.is_reported_offline = None, False

    def has_room(self) -> bool:
        """Whether a file of 1 MiB can be written. The free bytes of the file system do not tell: a quota may allow
        less. Raises StorageError when the disk fails.
        """
        path = posixpath.join(self.path, _PROBE_FILE)
        try:
            self._disk.write(path, bytes(_PROBE_BYTES))
            self._disk.unlink(path)
        except PassingStorageError:
            return False
        return True

    def go_offline(self, error: StorageError) -> None:
        """The disk failed: nothing in the directory is written any more. A disk that hangs is not called from the event
        loop, which would wait for it.
        """
        if self.failure is None:
            self.failure = error
            _logger.error("%s is offline: %s", self.path, error)
            if isinstance(error, DiskNotResponding):
                self._forgetting = asyncio.get_running_loop().create_task(self.shutdown.on_hung())
            else:
                self.shutdown.on_failed()

    def check_in_place(self) -> None:
        """Raises StorageError when the directory was removed or replaced by another one."""
        lost = f"{self.path} was removed or replaced under {node_name(self.node_id)}; bring it back, then restart it"
        if not self._disk.exists(self._lock_path):
            raise StorageError(f"{lost}: {self._lock_path} is missing")
        found, known = self._disk.identity(self._lock_path), self._lock_file
        if (found.device, found.inode) != (known.device, known.inode):
            raise StorageError(f"{lost}: {self._lock_path} is another file")

    def _check_online(self) -> None:
        if self.failure is not None:
            raise StorageError(f"{self.path} is offline: {self.failure}")

    # ---- End -----------------------------------------------------------------------------------------------

    async def close(
        self, high_watermarks: Mapping[TopicPartition, int], *, broker_epoch: int = NO_EPOCH
    ) -> None:
        """Shuts down cleanly: syncs everything, writes the clean-shutdown file (B30), and frees the lock.

        Writes no such file when the directory or a log has failed, or a log was never recovered: the next start
        recovers.
        """
        try:
            if self.failure is None:
                logs = [*self.logs.values(), *self.futures.logs]
                for log in logs:
                    log.close()
                await self.sync(logs)
                await self.checkpoint(lambda: high_watermarks)
                if all(log.failure is None for log in logs):
                    await self.shutdown.record_clean(broker_epoch)
        finally:
            self.release()

    def release(self) -> None:
        """Frees the lock and does nothing else, as the end of the process would."""
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._lock.release()
