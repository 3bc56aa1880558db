"""Removes expired records of the logs of one broker, in the background (F11), and the files of deleted logs.

Each pass looks at every log once, and leaves other work its turn after each step. Leaders and followers expire by
themselves, each by the same rules; a follower begins no earlier than its leader. Compaction is a task of its own
(`LogCleaner`), and both may work on one log: a swap under way keeps its segments, and a cleaning whose segments have
gone is given up.

A deleted log is renamed, which takes no time. The file system needs milliseconds to remove its directory, and much
longer for large files, so `DeletedLogs` removes them later, off the event loop, and nothing waits for a removal.

Invariants:

- A log that cannot be shortened is named with the reason, and the others go on.
- The new start of a log is durable before the pass ends.
- A segment whose successor is not durable stays until a sync, which is asked for here, and the pass after it.
- A directory or file is removed `file.delete.delay.ms` after it was renamed, one at a time in each data directory. What
  is not removed when the node ends is removed at its next start, at once.

Kafka: `LogManager.cleanupLogs`, which runs in its scheduler; `LogManager.deleteLogs`.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from rayka import clock
from rayka.config.broker_config import BrokerConfig
from rayka.errors import ApiError, PassingStorageError, StorageError
from rayka.log.log import Log
from rayka.log.log_directory import LogDirectory
from rayka.log.retention import Clock, Expired, ahead_ms, expire
from rayka.node.data_directories import DataDirectories
from rayka.node.replica import Replica, ReplicaOwner
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Repeats, Signal, in_turns
from rayka.protocol.topics import LastRetention

_FIRST_LOOK_S = 30.0
# A share of the interval, so that brokers that started together do not look together.
_JITTER = 0.1
# In logs.
_LOOKED_AT_PER_TURN = 50
# Clocks that differ by less are not worth a warning.
_AHEAD_MS = 60_000
# When a removal is tried again that the disk refused.
_AGAIN_MS = 10_000
_logger = logging.getLogger(__name__)


class LogRetention:
    """The expiry of one broker's logs."""

    def __init__(
        self,
        settings: NodeSettings,
        owner: ReplicaOwner,
        deleted: "DeletedLogs",
        *,
        save: Callable[[LogDirectory], Awaitable[None]],
        request_sync: Callable[[Replica], None],
        on_failed: Callable[[LogDirectory, StorageError], None],
    ) -> None:
        """`save` makes the starts of a directory's logs durable; `request_sync` leads to `on_synced`."""
        self._settings = settings
        self._owner = owner
        self._deleted = deleted
        self._save = save
        self._request_sync = request_sync
        self._on_failed = on_failed
        self._jitter = Random(settings.node_id)
        self._wanted = Signal()
        self._is_wanted = False
        self._repeats = Repeats(_logger)
        self._ahead = Repeats(_logger)
        self._last: dict[Log, LastRetention] = {}
        # Logs whose expired segments wait for a sync.
        self._awaiting_sync: dict[Log, None] = {}
        self._config: BrokerConfig = settings.config

    def last(self, log: Log) -> LastRetention | None:
        """The last removal of this process from the log; None: none."""
        return self._last.get(log)

    def configure(self, config: BrokerConfig) -> None:
        """Applies a configuration. A shorter interval counts at once, for the rest of the present one may be an
        hour.
        """
        is_sooner = config.log_retention_check_interval_ms < self._config.log_retention_check_interval_ms
        self._config = config
        if is_sooner:
            self.look_soon()

    def on_synced(self, logs: Iterable[Log]) -> None:
        """Looks again at logs whose expired segments have waited for this sync."""
        waiting = [each for each in logs if each in self._awaiting_sync]
        for log in waiting:
            del self._awaiting_sync[log]
        if waiting:
            self.look_soon()

    def look_soon(self) -> None:
        """Begins the next pass now, for example after records were deleted, or when the current pass has ended."""
        self._is_wanted = True
        self._wanted.notify()

    async def run(self) -> None:
        """Makes a pass each `log.retention.check.interval.ms`, for ever."""
        wait_s = min(_FIRST_LOOK_S, self._interval_s())
        while True:
            if not self._is_wanted:
                await self._wanted.wait(clock.now_s() + wait_s)
            self._is_wanted = False
            await self.look()
            wait_s = self._interval_s()

    def _interval_s(self) -> float:
        spread = 1 + _JITTER * (2 * self._jitter.random() - 1)
        return self._config.log_retention_check_interval_ms * spread / 1000

    # ---- One pass ----------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Makes one pass: removes all expired segments of all logs."""
        replicas = self._owner.replicas
        logs = {each.partition.log for each in replicas}
        for known in (self._last, self._awaiting_sync):
            for log in [each for each in known if each not in logs]:
                del known[log]
        changed: dict[LogDirectory, None] = {}
        async for replica in in_turns(replicas, _LOOKED_AT_PER_TURN):
            if await self._look_at(replica):
                changed[replica.directory] = None
        await asyncio.gather(*(self._save(each) for each in changed if each.failure is None))

    async def _look_at(self, replica: Replica) -> bool:
        """Removes the expired segments of one log; True if there were any."""
        log, done = replica.partition.log, list[Expired]()
        try:
            while _is_usable(replica, log) and (expired := self._expire(replica, log)) is not None:
                done.append(expired)
                await asyncio.sleep(0)
        except (ApiError, StorageError) as error:
            self._on_refused(replica, log, error)
        else:
            self._repeats.succeeded(log)
            self._maybe_warn(replica, log)
            if log.retired.waits_for_sync:
                self._awaiting_sync[log] = None
                self._request_sync(replica)
        if done:
            self._on_shortened(replica, log, done)
        return bool(done)

    def _expire(self, replica: Replica, log: Log) -> Expired | None:
        partition = replica.partition
        now = Clock(self._settings.wall_clock_ms(), clock.now_ms())
        try:
            expired = expire(log, partition.high_watermark, now)
        finally:
            retired = log.retired.take()
            if retired:
                self._deleted.add(replica.directory, retired, partition.config.file_delete_delay_ms)
        if expired is not None:
            self._owner.wake(partition)
        return expired

    def _on_shortened(self, replica: Replica, log: Log, done: list[Expired]) -> None:
        segment_count, size_bytes = (
            sum(each.segment_count for each in done),
            sum(each.size_bytes for each in done),
        )
        last = LastRetention(
            self._settings.wall_clock_ms(), done[-1].cause, log.log_start_offset, segment_count, size_bytes
        )
        self._last[log] = last
        causes = ", ".join(dict.fromkeys(each.cause for each in done))
        _logger.info(
            "%s begins at offset %d: %d segments of %d bytes are deleted (%s)",
            replica.topic_partition, log.log_start_offset, segment_count, size_bytes, causes,
        )  # fmt: skip

    # ---- Errors --------------------------------------------------------------------------------------

    def _on_refused(self, replica: Replica, log: Log, error: ApiError | StorageError) -> None:
        name = replica.topic_partition
        if not _is_usable(replica, log):
            _logger.info("%s is gone: its retention ended with %s", name, error)
        elif isinstance(error, StorageError) and not isinstance(error, PassingStorageError):
            self._on_failed(replica.directory, error)
        else:
            self._repeats.failed(log, f"{name}: what has expired is not deleted: {error}")
            # Half way through: the log goes on once the directory takes writes and the log is opened again.
            if isinstance(log.failure, PassingStorageError):
                replica.directory.on_full(log.failure)

    def _maybe_warn(self, replica: Replica, log: Log) -> None:
        """Warns of a timestamp that keeps a segment for longer than `retention.ms` says."""
        ahead = ahead_ms(log, self._settings.wall_clock_ms())
        if ahead > _AHEAD_MS:
            self._ahead.failed(
                log,
                f"{replica.topic_partition}: the oldest segment has a timestamp {ahead} ms in the future: nothing"
                " expires by time before that and retention.ms; `rayka topic delete-records` deletes at once,"
                " message.timestamp.after.max.ms refuses such records",
            )


def _is_usable(replica: Replica, log: Log) -> bool:
    """True while the log is the one of its partition here, and takes changes at its start."""
    partition, directory = replica.partition, replica.directory
    is_here = directory.logs.get(replica.topic_partition) is log and partition.log is log
    is_stopped = log.failure is not None and not isinstance(log.failure, PassingStorageError)
    return is_here and not (partition.failure or directory.failure or is_stopped or log.is_reopened)


# ---- Deleted logs ----------------------------------------------------------------------------------------------------


class _Deleted(NamedTuple):
    due_s: float
    # In the order of deletion.
    number: int
    paths: tuple[str, ...]


class DeletedLogs:
    """The directories and files that one broker has to remove."""

    def __init__(
        self, directories: DataDirectories, on_failed: Callable[[LogDirectory, StorageError], None]
    ) -> None:
        self._on_failed = on_failed
        # Heaps, ordered by the time when removals are due.
        self._waiting: dict[LogDirectory, list[_Deleted]] = {each: [] for each in directories.all}
        self._news = {each: Signal() for each in directories.all}
        self._count = 0
        for directory in directories.all:
            for path in directory.partitions.deleted():
                self.add(directory, (path,), 0)

    def add(self, directory: LogDirectory, paths: tuple[str, ...], delay_ms: int) -> None:
        """Removes these after the delay."""
        self._count += 1
        heappush(self._waiting[directory], _Deleted(clock.now_s() + delay_ms / 1000, self._count, paths))
        self._news[directory].notify()

    async def run(self, directory: LogDirectory) -> None:
        """Makes the removals that are due in one directory, for ever."""
        waiting = self._waiting[directory]
        while True:
            due: list[str] = []
            while waiting and waiting[0].due_s <= clock.now_s():
                due += heappop(waiting).paths
            if due:
                await self._remove(directory, due)
            next_s = waiting[0].due_s if waiting else math.inf
            if next_s > clock.now_s():
                await self._news[directory].wait(next_s)

    async def _remove(self, directory: LogDirectory, paths: list[str]) -> None:
        if directory.failure is not None:
            return
        try:
            await directory.remove_deleted(paths)
        except PassingStorageError as error:
            if directory.failure is not None:
                self._on_failed(directory, error)
                return
            directory.on_full(error)
            self.add(directory, tuple(paths), _AGAIN_MS)
        except StorageError as error:
            self._on_failed(directory, error)
        else:
            _logger.info(
                "%s: removed %d directories of deleted logs and files of deleted segments",
                directory.path,
                len(paths),
            )
