"""One data directory: whose it is, how it was left, and the logs in it.

Files (F4): `meta.properties` (node, cluster, directory id), `.lock` (held while open), the checkpoints of all
partitions, `.kafka_cleanshutdown` (B30: written last when everything was synced, removed at start), and
beside it `.rayka_boot`: the kernel's boot id with the broker epoch, and the boot id under which all logs here
were last known to be whole. Under the same boot id the page cache has kept every append, so a killed process
lost nothing (design §4); its logs are still scanned, because it may have died in the middle of a write, but
only their tails can be torn.

Invariants: at most one open LogDirectory for a path; after a failed sync it is offline for good, never
retried, and no later start takes it for clean; one that is full is read, and goes on when there is room.
Kafka: `LogManager`, `MetaPropertiesEnsemble`, `CleanShutdownFileHandler`. Left out: several directories in one
object, future logs, the cleaner's checkpoint.
"""

import asyncio
import json
import logging
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from rayka.config import TopicConfig
from rayka.errors import DamagedLog, DiskFull, InconsistentTopicId, InvariantBroken, StorageError
from rayka.ids import NO_EPOCH, TopicPartition, node_name
from rayka.log.checkpoint_files import (
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    encode_offsets,
    read_offsets,
)
from rayka.log.durable import replace_durably
from rayka.log.log import Log
from rayka.log.log_opening import Left, opening_log
from rayka.log.markers import LOWERED_RECOVERY_POINT_FILE, is_given_up, lowered_recovery_point
from rayka.log.meta_properties import (
    META_PROPERTIES_FILE,
    MetaProperties,
    encode_meta_properties,
    read_meta_properties,
    wrong_cluster,
)
from rayka.log.partition_metadata import (
    PARTITION_METADATA_FILE,
    encode_partition_metadata,
    read_partition_metadata,
)
from rayka.log.recovery import Tearing, has_segments
from rayka.log.slices import Slices
from rayka.log.unsynced import SyncPlan
from rayka.ports import Disk, Lock

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
BOOT_FILE = ".rayka_boot"
_PROBE_FILE = ".rayka_room"
_PROBE_BYTES = 1 << 20
_DELETED_SUFFIX = "-delete"
_STRAY_SUFFIX = "-stray"
_DELETED_TOPIC_CHARACTERS = (
    200  # with partition, id and suffix they stay below the 255 bytes of a file's name
)
_PARTITION_DIRECTORY = re.compile(r"(.+)-(\d+)")
_logger = logging.getLogger(__name__)


class LogDirectory:
    """An open, locked data directory of one node. Made by `open`."""

    def __init__(self, disk: Disk, path: str, properties: MetaProperties, lock: Lock) -> None:
        self._disk = disk
        self._lock = lock
        self._lock_file = disk.identity(posixpath.join(path, LOCK_FILE))
        self._properties = properties
        self._recovery_points = read_offsets(disk, posixpath.join(path, RECOVERY_POINT_FILE))
        self._saved_recovery_points = dict(self._recovery_points)
        self._high_watermarks = read_offsets(disk, posixpath.join(path, HIGH_WATERMARK_FILE))
        self._log_start_offsets = read_offsets(disk, posixpath.join(path, LOG_START_OFFSET_FILE))
        self._checkpointed: tuple[dict[TopicPartition, int], ...] | None = None  # by this process
        self._boot_id = ""
        self._boot: dict[str, Any] = {}
        self._unrecovered: set[str] = set()  # directories of logs not opened since an unclean shutdown
        self._found_damaged: set[str] = set()  # directories of logs that were open in this process
        self._is_torn = False  # whether the power may have been cut since they were written
        self._checkpointing = asyncio.Lock()  # two at once would rename each other's files away
        self.path = path
        self.failure: StorageError | None = None
        self.full: DiskFull | None = None  # what met no room, until there is some
        self.is_reported_offline = False  # full, and the controller is told, so that others lead
        self.has_recovered = False  # it was reported offline, and there is room again
        self.logs: dict[TopicPartition, Log] = {}
        # Directories of deleted logs that an earlier process did not come to remove.
        self.deleted: list[str] = []
        self.was_clean_shutdown = False
        self.previous_broker_epoch = NO_EPOCH  # since which nothing is lost
        self.known_broker_epoch = NO_EPOCH  # whatever was lost since

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
        """Locks the directory and finds out how it was left. `cluster_id` empty: not known yet, not checked.

        Raises StorageError that says which directory, what was expected and found and what to do: it is
        missing, not formatted, in use, of another node or of another cluster.
        """
        properties = read_meta_properties(disk, path, node_id, cluster_id)
        try:
            lock = disk.lock(posixpath.join(path, LOCK_FILE))
        except StorageError as error:
            raise StorageError(
                f"data directory {path} is in use: {error}; stop that process first"
            ) from error
        try:
            directory = cls(disk, path, properties, lock)
            await directory._take_over()
        except BaseException:
            lock.release()
            raise
        return directory

    async def _take_over(self) -> None:
        """Reads how the last process left; its clean-shutdown file must be gone for good before anything is
        written.
        """
        clean = self._read_json(CLEAN_SHUTDOWN_FILE)
        self._boot = self._read_json(BOOT_FILE) or {}
        boot_id = self._boot_id = self._disk.boot_id()
        if clean is not None:
            self.was_clean_shutdown = True
            self.previous_broker_epoch = clean.get("brokerEpoch", NO_EPOCH)
            self.record_broker_epoch(self.previous_broker_epoch)  # it stays so until this process registers
            self._disk.unlink(self._file(CLEAN_SHUTDOWN_FILE))
        elif self._boot.get("bootId") == boot_id:
            self.previous_broker_epoch = self._boot.get("brokerEpoch", NO_EPOCH)
        # Also where it is gone already: the process that removed it may have been killed before this sync, and then a
        # power cut brings it back.
        await self._disk.sync([], [self.path])
        names = self._disk.list(self.path)
        self.deleted = [self._file(name) for name in names if name.endswith(_DELETED_SUFFIX)]
        log_paths = [self._file(name) for name in names if _PARTITION_DIRECTORY.fullmatch(name)]
        if any(is_given_up(self._disk, path) for path in log_paths):
            self.previous_broker_epoch = NO_EPOCH  # other replicas may have what this one goes on without
        self.known_broker_epoch = max(self.previous_broker_epoch, self._boot.get("brokerEpoch", NO_EPOCH))
        if clean is None:
            self._is_torn = self._boot.get("recoveredBootId") != boot_id
            self._unrecovered = set(log_paths)
        self._maybe_record_recovery()

    def _maybe_record_recovery(self) -> None:
        """Once every log has been opened, or deleted, under this boot id, the next start may rely on that.

        1. The power is cut. 2. The next process recovers some logs and is killed. 3. Under the same boot id
        the one after it meets the other logs, and they may still be torn.
        """
        if not self._unrecovered and self._boot.get("recoveredBootId") != self._boot_id:
            self._write_boot({**self._boot, "version": 0, "recoveredBootId": self._boot_id})

    def _write_boot(self, content: dict[str, Any]) -> None:
        """Not after a failure: then the file has nothing more to say. On a full disk it stays what it was: the next
        process knows less then, and takes logs for torn, or the broker for one that lost something.
        """
        if self.failure is not None or content == self._boot:
            return
        try:
            self._disk.write(self._file(BOOT_FILE), json.dumps(content).encode())
        except DiskFull as error:
            self.on_full(error)
        else:
            self._boot = content

    def _read_json(self, name: str) -> dict[str, Any] | None:
        """The object in a small file; None when it is missing or torn."""
        path = self._file(name)
        if not self._disk.exists(path):
            return None
        try:
            value = json.loads(self._disk.read_at(path, 0, self._disk.size(path)))
        except ValueError:
            _logger.warning("%s is damaged and counts as missing", path)
            return None
        return value if isinstance(value, dict) else None

    # ---- Whose it is ---------------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        return self._properties.node_id

    @property
    def directory_id(self) -> UUID:
        return self._properties.directory_id

    @property
    def cluster_id(self) -> str:
        """The cluster's id, or empty before the first registration."""
        return self._properties.cluster_id

    async def adopt_cluster_id(self, cluster_id: str) -> None:
        """The cluster has said who it is. Raises StorageError when the directory is another one's."""
        if self.cluster_id == cluster_id:
            return
        if self.cluster_id:
            raise wrong_cluster(self.path, cluster_id, self.cluster_id)
        properties = self._properties._replace(cluster_id=cluster_id)
        await replace_durably(
            self._disk, {self._file(META_PROPERTIES_FILE): encode_meta_properties(properties)}
        )
        self._properties = properties

    def record_broker_epoch(self, broker_epoch: int) -> None:
        """The broker has registered. A later process on the same boot may say that it lost nothing since
        (H3).
        """
        registered = {"version": 0, "bootId": self._boot_id, "brokerEpoch": broker_epoch}
        self._write_boot({**self._boot, **registered})

    # ---- Logs ----------------------------------------------------------------------------------------------

    def partitions(self) -> dict[TopicPartition, UUID | None]:
        """The partitions that have a directory here, opened or not, with their topics' ids where they are
        known.
        """
        found = {}
        for name in self._disk.list(self.path):
            match = _PARTITION_DIRECTORY.fullmatch(name)
            if match:
                topic_partition = TopicPartition(match[1], int(match[2]))
                found[topic_partition] = self._topic_id(topic_partition)
        return found

    async def open_log(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: TopicConfig,
        *,
        now_ms: int,
        is_always_synced: bool = False,
    ) -> Log:
        """The partition's log, new if there is none, recovered if this directory was not shut down cleanly, in as many
        turns of the event loop as that takes.

        `is_always_synced`: each append is synced before the next, so that not even a power cut tears more than
        the tail. Raises InconsistentTopicId when the directory there is of another topic of that name,
        DamagedLog when recovery would have to cut off whole batches or the log is gone, StorageError when the disk
        fails, also meanwhile: nothing would tell the log's user later.
        """
        if topic_partition in self.logs:
            raise InvariantBroken(f"{self!r} has the log of {topic_partition!r} open already")
        tearing = self._tearing(self._log_path(topic_partition), is_always_synced)
        return await self._open_log(topic_partition, topic_id, config, tearing, now_ms)

    async def reopen_log(
        self, topic_partition: TopicPartition, topic_id: UUID, config: TopicConfig, *, now_ms: int
    ) -> Log:
        """The log anew, after a change of it ended half way on a full disk: recovered as after the end of a process.
        Raises as `open_log`. Until it returns, and after whatever was raised, the log here is the old one, which is
        read, and takes no change.
        """
        log = self.logs[topic_partition]
        self._recovery_points[topic_partition] = log.flushed_offset
        self._log_start_offsets[topic_partition] = log.log_start_offset
        return await self._open_log(topic_partition, topic_id, config, Tearing.SHORT_TAIL, now_ms)

    def drop_damaged_log(self, topic_partition: TopicPartition) -> None:
        """The log of this partition, open here, was found damaged and is not used any more. Whatever opens it next
        recovers it, also where this directory was, or will be, shut down cleanly.
        """
        if self.logs.pop(topic_partition, None) is not None:
            self._found_damaged.add(self._log_path(topic_partition))

    async def _open_log(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: TopicConfig,
        tearing: Tearing,
        now_ms: int,
    ) -> Log:
        found_id, path = self._topic_id(topic_partition), self._log_path(topic_partition)
        if found_id not in (None, topic_id):
            raise InconsistentTopicId(f"{path} is of topic {found_id}, expected {topic_id}")
        self._check_has_files(topic_partition, tearing)
        new_files = {}
        if found_id is None:
            new_files[PARTITION_METADATA_FILE] = encode_partition_metadata(topic_id)
        if not self._disk.exists(path) and topic_partition in self._saved_recovery_points:
            new_files |= lowered_recovery_point(0)  # what the checkpoint says was true of a deleted log
        left = Left(
            self._recovery_points.get(topic_partition, 0),
            self._log_start_offsets.get(topic_partition, 0),
            tearing,
        )
        opening = opening_log(self._disk, path, config, left, now_ms=now_ms, new_files=new_files)
        log = await self._in_turns(opening)
        self._on_recovered(path)
        self.logs[topic_partition] = log
        return log

    async def _in_turns(self, opening: Slices[Log]) -> Log:
        """The log, after as many turns of the event loop as its recovery takes."""
        while True:
            self._check_online()
            try:
                next(opening)
            except StopIteration as end:
                log: Log = end.value
                return log
            await asyncio.sleep(0)

    def _tearing(self, path: str, is_always_synced: bool) -> Tearing:
        if path in self._found_damaged:
            return Tearing.SHORT_TAIL
        if self.was_clean_shutdown:
            return Tearing.NOTHING
        if not self._is_torn or path not in self._unrecovered:
            return Tearing.SHORT_TAIL
        return Tearing.TAIL if is_always_synced else Tearing.ANYWHERE

    def _check_has_files(self, topic_partition: TopicPartition, tearing: Tearing) -> None:
        """Raises DamagedLog when the checkpoints know of records, and there is no file of them.

        A power cut may take what was not synced, and a high watermark is of no help then. `forget` keeps the
        checkpoints from telling of a log that was deleted.
        """
        offset = self._recovery_points.get(topic_partition, 0)
        if tearing in (Tearing.NOTHING, Tearing.SHORT_TAIL):
            offset = max(offset, self._high_watermarks.get(topic_partition, 0))
        path = self._log_path(topic_partition)
        if offset <= self._log_start_offsets.get(topic_partition, 0) or has_segments(self._disk, path):
            return
        marker = posixpath.join(path, LOWERED_RECOVERY_POINT_FILE)
        if not self._disk.exists(marker):
            raise DamagedLog(
                f"{path} has no log files, but {self.path} had records of {topic_partition} up to offset {offset}:"
                " the directory was removed or emptied. Restore it from a copy; or delete the topic; or, to go on"
                f" without the records, make an empty file {marker}; then restart the node"
            )

    def _on_recovered(self, path: str) -> None:
        self._unrecovered.discard(path)
        self._found_damaged.discard(path)
        self._maybe_record_recovery()

    async def forget(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """Takes these out of the checkpoints, durably, because their logs are about to be deleted or set aside: what is
        saved of a log that is gone would say of the next one of its name that its records are lost.
        """
        is_saved = False
        for topic_partition in topic_partitions:
            self.logs.pop(topic_partition, None)
            for offsets in (self._recovery_points, self._high_watermarks, self._log_start_offsets):
                is_saved |= offsets.pop(topic_partition, 0) > 0
        if is_saved:
            await self.checkpoint()

    def delete_log(self, topic_partition: TopicPartition) -> str | None:
        """Renames the partition's directory if there is one, opened or not, so that its name is free. Returns where it
        is, for `remove_deleted`: removing takes a hundred times as long as renaming.
        """
        deleted = self._rename_log(topic_partition, _DELETED_SUFFIX)
        self._on_recovered(self._log_path(topic_partition))
        return deleted

    async def remove_deleted(self, paths: Sequence[str]) -> None:
        """Removes directories of deleted logs; readers keep what they mapped. Their new names are durable first: else a
        power cut might bring an old name back with a part of its files. Raises StorageError and goes offline for good.
        """
        self._check_online()
        try:
            await self._disk.sync([], [self.path])
            for path in paths:
                await self._disk.discard(path)
        except StorageError as error:
            self.go_offline(error)
            raise

    def set_aside_log(self, topic_partition: TopicPartition) -> str | None:
        """Renames the directory of a partition that is not in the metadata, so that its name is free (F4); nothing here
        reads or removes it any more, or misses what was in it. Returns where it is; None when there was none.
        """
        kept = self._rename_log(topic_partition, _STRAY_SUFFIX)
        self._on_recovered(self._log_path(topic_partition))
        return kept

    def _rename_log(self, topic_partition: TopicPartition, suffix: str) -> str | None:
        self.logs.pop(topic_partition, None)
        for offsets in (self._recovery_points, self._high_watermarks, self._log_start_offsets):
            offsets.pop(topic_partition, None)
        path = self._log_path(topic_partition)
        if not self._disk.exists(path):
            return None
        topic_id = self._topic_id(topic_partition)
        name = f"{topic_partition.topic[:_DELETED_TOPIC_CHARACTERS]}-{topic_partition.partition}"
        stem = self._file(f"{name}.{topic_id.hex if topic_id else 'unknown'}")
        renamed, number = stem + suffix, 1
        while self._disk.exists(renamed):  # a replica may go, come back, and go again
            number += 1
            renamed = f"{stem}.{number}{suffix}"
        self._disk.rename(path, renamed)
        return renamed

    def high_watermark(self, topic_partition: TopicPartition) -> int | None:
        """The high watermark last saved for a partition, or None (B4)."""
        return self._high_watermarks.get(topic_partition)

    def _topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        path = posixpath.join(self._log_path(topic_partition), PARTITION_METADATA_FILE)
        return read_partition_metadata(self._disk, path)

    def _log_path(self, topic_partition: TopicPartition) -> str:
        return self._file(f"{topic_partition.topic}-{topic_partition.partition}")

    def _file(self, name: str) -> str:
        return posixpath.join(self.path, name)

    # ---- Durability ----------------------------------------------------------------------------------------

    async def sync(self, logs: Sequence[Log]) -> None:
        """Makes all that is in these logs now durable, with one sync. Raises StorageError and goes offline
        for good.
        """
        await self._sync(logs, [log.unsynced() for log in logs])

    async def sync_epochs(self, logs: Sequence[Log]) -> None:
        """Makes the epochs of these logs durable, with one sync. Raises StorageError and goes offline for good."""
        await self._sync(logs, [log.unsynced(epochs_only=True) for log in logs])

    async def _sync(self, logs: Sequence[Log], plans: Sequence[SyncPlan]) -> None:
        self._check_online()
        files = [path for plan in plans for path in plan.files]
        directories = list(dict.fromkeys(path for plan in plans for path in plan.directories))
        try:
            await self._disk.sync(files, directories)
        except StorageError as error:
            self.go_offline(error)
            raise
        for log, plan in zip(logs, plans, strict=True):
            log.on_synced(plan)

    async def checkpoint(self, high_watermarks: Callable[[], Mapping[TopicPartition, int]] = dict) -> None:
        """Saves recovery points, log start offsets and, of the logs opened here, high watermarks, durably (B4, F13);
        nothing is written while nothing has changed since this process saved them.

        They are asked for when it is this checkpoint's turn: meanwhile a log may be deleted, and one begin in its name.
        """
        async with self._checkpointing:
            self._check_online()
            for topic_partition, high_watermark in high_watermarks().items():
                if topic_partition in self.logs:  # not forgotten meanwhile
                    self._high_watermarks[topic_partition] = high_watermark
            await self._write_checkpoints()

    async def _write_checkpoints(self) -> None:
        for topic_partition, log in self.logs.items():
            self._recovery_points[topic_partition] = log.flushed_offset
            self._log_start_offsets[topic_partition] = log.log_start_offset
        offsets = (self._recovery_points, self._log_start_offsets, self._high_watermarks)
        if offsets == self._checkpointed:
            return
        self._checkpointed = None
        saved = dict(self._recovery_points)
        written = (saved, dict(self._log_start_offsets), dict(self._high_watermarks))
        contents = {  # a recovery point may rest on a log start that made what is below it needless: that one first
            self._file(LOG_START_OFFSET_FILE): encode_offsets(self._log_start_offsets),
            self._file(RECOVERY_POINT_FILE): encode_offsets(saved),
            self._file(HIGH_WATERMARK_FILE): encode_offsets(self._high_watermarks),
        }
        try:
            await replace_durably(self._disk, contents)
        except DiskFull as error:
            self.on_full(error)
            raise  # the old files are whole, and what they say is still true
        except StorageError as error:
            self.go_offline(error)
            raise
        self._saved_recovery_points, self._checkpointed = saved, written
        for topic_partition, log in self.logs.items():
            log.on_recovery_point_saved(saved.get(topic_partition, 0))

    def on_full(self, error: DiskFull, *, is_reported_offline: bool = False) -> None:
        """There was no room for something. What is here is still read; if the controller is told, others lead it."""
        if self.full is None:
            _logger.error("%s is full: %s", self.path, error)
        self.full = self.full or error
        self.is_reported_offline = self.is_reported_offline or is_reported_offline

    def on_room(self) -> None:
        """There is room again."""
        _logger.info("%s: there is room again", self.path)
        self.has_recovered = self.has_recovered or self.is_reported_offline
        self.full, self.is_reported_offline = None, False

    def has_room(self) -> bool:
        """Whether a file of 1 MiB can be written, whatever the file system says: a quota may allow less.
        Raises StorageError when the disk fails.
        """
        path = self._file(_PROBE_FILE)
        try:
            self._disk.write(path, bytes(_PROBE_BYTES))
            self._disk.unlink(path)
        except DiskFull:
            return False
        return True

    def go_offline(self, error: StorageError) -> None:
        """The disk failed: what it holds is not what was written to it, so no later start may take it for that.

        Which epoch the broker had stays true; where that cannot be written, its successor waits for the session to end.
        """
        if self.failure is not None:
            return
        self.failure = error
        _logger.error("%s is offline: %s", self.path, error)
        try:
            if self._disk.exists(self._file(BOOT_FILE)):
                self._disk.unlink(self._file(BOOT_FILE))
        except StorageError as second:
            _logger.error("%s: %s; its next start may report a clean shutdown", self.path, second)
            return
        known = {"version": 0, "brokerEpoch": self._boot.get("brokerEpoch", NO_EPOCH)}
        try:
            self._disk.write(self._file(BOOT_FILE), json.dumps(known).encode())
        except StorageError as second:
            _logger.warning(
                "%s: %s; no later process will know that it had epoch %d",
                self.path,
                second,
                known["brokerEpoch"],
            )

    def check_in_place(self) -> None:
        """Raises StorageError when the directory was removed, or another one is in its place."""
        lost = f"{self.path} was removed or replaced under {node_name(self.node_id)}; bring it back, then restart it"
        path = self._file(LOCK_FILE)
        if not self._disk.exists(path):
            raise StorageError(f"{lost}: {path} is missing")
        found, known = self._disk.identity(path), self._lock_file
        if (found.device, found.inode) != (known.device, known.inode):
            raise StorageError(f"{lost}: {path} is another file")

    def _check_online(self) -> None:
        if self.failure is not None:
            raise StorageError(f"{self.path} is offline: {self.failure}")

    # ---- End -----------------------------------------------------------------------------------------------

    async def close(
        self, high_watermarks: Mapping[TopicPartition, int], *, broker_epoch: int = NO_EPOCH
    ) -> None:
        """Shuts down cleanly: everything synced, then the clean-shutdown file (B30), then the lock is free.

        When the directory or one of its logs has failed, or a log was never recovered, there is no such file,
        and the next start recovers.
        """
        try:
            if self.failure is None:
                await self._close_cleanly(high_watermarks, broker_epoch)
        finally:
            self.release()

    async def _close_cleanly(self, high_watermarks: Mapping[TopicPartition, int], broker_epoch: int) -> None:
        logs = list(self.logs.values())
        for log in logs:
            log.close()
        await self.sync(logs)
        await self.checkpoint(lambda: high_watermarks)
        is_whole = not self._unrecovered and not self._found_damaged
        if is_whole and all(log.failure is None for log in logs):
            content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()
            await replace_durably(self._disk, {self._file(CLEAN_SHUTDOWN_FILE): content})

    def release(self) -> None:
        """Gives up the lock and nothing else, as the end of the process would."""
        self._lock.release()
