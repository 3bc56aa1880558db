"""Directories of deleted logs and files of deleted segments, until they are removed.

A topic is deleted when its logs are renamed, which takes no time; the file system needs milliseconds for each directory
to remove it, and much longer for large files. Invariants: a directory is removed `file.delete.delay.ms` after it was
renamed, what an earlier process left behind at once; one at a time in each data directory, off the event loop, so
nothing waits for a removal; what is not removed when the node ends is found at its next start. Kafka:
`LogManager.deleteLogs`.
"""

import logging
import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from rayka.errors import PassingStorageError, StorageError
from rayka.log.log_directory import LogDirectory
from rayka.node.clock import now_s
from rayka.node.signal import Signal
from rayka.node.storage.data_directories import DataDirectories

# When a removal is tried again that the disk refused.
_AGAIN_MS = 10_000
_logger = logging.getLogger(__name__)


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
