"""Removes what has expired of the logs of one broker, now and then, in the background (F11).

Invariants: every log is looked at once in each pass, and after each turn of work on it everything else has its turn;
a log that cannot be shortened is named with the reason, and the others go on; where logs begin is durable before a pass
ends, and their old files are removed `file.delete.delay.ms` later, off the event loop, by `DeletedLogs`. A segment
whose successor is not durable stays until a sync that is asked for here, and the pass after it. Leaders and
followers expire by themselves, each by the same rules; a follower begins no earlier than its leader. Compaction is a
task of its own (`LogCleaner`), and both may work on one log: a swap under way keeps its segments, and a cleaning whose
segments have gone is given up. Kafka: `LogManager.cleanupLogs`, which runs in its scheduler.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from rayka.config.broker_config import BrokerConfig
from rayka.errors import ApiError, PassingStorageError, StorageError
from rayka.log.log import Log
from rayka.log.log_directory import LogDirectory
from rayka.log.retention import Clock, Expired, ahead_ms, expire
from rayka.node import clock
from rayka.node.clock import now_s
from rayka.node.data_directories import DataDirectories
from rayka.node.replica import Replica, ReplicaOwner
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Repeats, Signal, in_turns
from rayka.protocol.topics import LastRetention

# Directories of deleted logs and files of deleted segments, until they are removed.
#
# A topic is deleted when its logs are renamed, which takes no time; the file system needs milliseconds for each
# directory to remove it, and much longer for large files. Invariants: a directory is removed `file.delete.delay.ms`
# after it was renamed, what an earlier process left behind at once; one at a time in each data directory, off the event
# loop, so nothing waits for a removal; what is not removed when the node ends is found at its next start. Kafka:
# `LogManager.deleteLogs`.


# When a removal is tried again that the disk refused.
_AGAIN_MS = 10_000


class _Deleted(NamedTuple):
    due_s: float
    number: int  # in the order of deletion
    paths: tuple[str, ...]


class DeletedLogs:
    """What one broker has to remove."""

    def __init__(
        self, directories: DataDirectories, on_failed: Callable[[LogDirectory, StorageError], None]
    ) -> None:
        self._on_failed = on_failed
        # Heaps, by the time when removals are due.
        self._waiting: dict[LogDirectory, list[_Deleted]] = {each: [] for each in directories.all}
        self._news = {each: Signal() for each in directories.all}
        self._count = 0
        for directory in directories.all:
            for path in directory.partitions.deleted():
                self.add(directory, (path,), 0)

    def __repr__(self) -> str:
        return f"<DeletedLogs waiting={sum(map(len, self._waiting.values()))}>"

    def add(self, directory: LogDirectory, paths: tuple[str, ...], delay_ms: int) -> None:
        """These are removed after the delay."""
        self._count += 1
        heappush(self._waiting[directory], _Deleted(now_s() + delay_ms / 1000, self._count, paths))
        self._news[directory].notify()

    async def run(self, directory: LogDirectory) -> None:
        """Removes what is due in one directory, for ever."""
        waiting = self._waiting[directory]
        while True:
            due: list[str] = []
            while waiting and waiting[0].due_s <= now_s():
                due += heappop(waiting).paths
            if due:
                await self._remove(directory, due)
            next_s = waiting[0].due_s if waiting else math.inf
            if next_s > now_s():
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


_FIRST_LOOK_S = 30.0
_JITTER = 0.1  # of the interval, so that brokers that started together do not look together
_LOOKED_AT_PER_TURN = 50  # logs
_AHEAD_MS = 60_000  # clocks that differ by less are no news
_logger = logging.getLogger(__name__)


class LogRetention:
    """The expiry of one broker's logs."""

    def __init__(
        self,
        settings: NodeSettings,
        owner: ReplicaOwner,
        deleted: DeletedLogs,
        *,
        save: Callable[[LogDirectory], Awaitable[None]],
        request_sync: Callable[[Replica], None],
        on_failed: Callable[[LogDirectory, StorageError], None],
    ) -> None:
        """`save` makes durable where the logs of a directory begin; `request_sync` leads to `on_synced`."""
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
        self._unsynced: dict[Log, None] = {}
        self._config: BrokerConfig = settings.config

    def __repr__(self) -> str:
        return f"<LogRetention shortened={len(self._last)}>"

    def last(self, log: Log) -> LastRetention | None:
        """What this process last took out of the log; None when nothing."""
        return self._last.get(log)

    def configure(self, config: BrokerConfig) -> None:
        """Counts at once: of a longer interval that a pass waits for the rest may be an hour."""
        is_sooner = config.log_retention_check_interval_ms < self._config.log_retention_check_interval_ms
        self._config = config
        if is_sooner:
            self.look_soon()

    def on_synced(self, logs: Iterable[Log]) -> None:
        """Looks at logs again whose expired segments have waited for this sync."""
        waiting = [each for each in logs if each in self._unsynced]
        for log in waiting:
            del self._unsynced[log]
        if waiting:
            self.look_soon()

    def look_soon(self) -> None:
        """The next pass begins now, as when records were deleted, or as soon as the current one has ended."""
        self._is_wanted = True
        self._wanted.notify()

    async def run(self) -> None:
        """One pass each `log.retention.check.interval.ms`, for ever."""
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
        """Removes what has expired in all logs, until nothing more has."""
        replicas = self._owner.replicas
        logs = {each.partition.log for each in replicas}
        for known in (self._last, self._unsynced):
            for log in [each for each in known if each not in logs]:
                del known[log]
        changed: dict[LogDirectory, None] = {}
        async for replica in in_turns(replicas, _LOOKED_AT_PER_TURN):
            if await self._look_at(replica):
                changed[replica.directory] = None
        await asyncio.gather(*(self._save(each) for each in changed if each.failure is None))

    async def _look_at(self, replica: Replica) -> bool:
        """Whether the log was shortened."""
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
                self._unsynced[log] = None
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

    # ---- What hinders --------------------------------------------------------------------------------------

    def _on_refused(self, replica: Replica, log: Log, error: ApiError | StorageError) -> None:
        name = replica.topic_partition
        if not _is_usable(replica, log):
            _logger.info("%s is gone: its retention ended with %s", name, error)
        elif isinstance(error, StorageError) and not isinstance(error, PassingStorageError):
            self._on_failed(replica.directory, error)
        else:
            self._repeats.failed(log, f"{name}: what has expired is not deleted: {error}")
            # Half way: the log goes on once the directory takes writes and the log is opened again.
            if isinstance(log.failure, PassingStorageError):
                replica.directory.on_full(log.failure)

    def _maybe_warn(self, replica: Replica, log: Log) -> None:
        """Of timestamps that keep a segment for longer than `retention.ms` says."""
        ahead = ahead_ms(log, self._settings.wall_clock_ms())
        if ahead > _AHEAD_MS:
            self._ahead.failed(
                log,
                f"{replica.topic_partition}: the oldest segment has a timestamp {ahead} ms in the future: nothing"
                " expires by time before that and retention.ms; `rayka topic delete-records` deletes at once,"
                " message.timestamp.after.max.ms refuses such records",
            )


def _is_usable(replica: Replica, log: Log) -> bool:
    """Whether the log is still the one of its partition here, and takes changes at its start."""
    partition, directory = replica.partition, replica.directory
    is_here = directory.logs.get(replica.topic_partition) is log and partition.log is log
    is_stopped = log.failure is not None and not isinstance(log.failure, PassingStorageError)
    return is_here and not (partition.failure or directory.failure or is_stopped or log.is_reopened)
