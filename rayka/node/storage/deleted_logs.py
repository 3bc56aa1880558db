"""Directories of deleted logs and files of deleted segments, until they are removed.

A topic is deleted when its logs are renamed, which takes no time; the file system needs milliseconds for each directory
to remove it, and much longer for large files. Invariants: a directory is removed `file.delete.delay.ms` after it was
renamed, what an earlier process left behind at once; one at a time, off the event loop, so nothing waits for a removal;
what is not removed when the node ends is found at its next start. Kafka: `LogManager.deleteLogs`.
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

_AGAIN_MS = 10_000  # what a disk did not take now
_logger = logging.getLogger(__name__)


class _Deleted(NamedTuple):
    due_s: float
    number: int  # in the order of deletion
    directory: LogDirectory
    paths: tuple[str, ...]


class DeletedLogs:
    """What one broker has to remove."""

    def __init__(
        self, directories: DataDirectories, on_failed: Callable[[LogDirectory, StorageError], None]
    ) -> None:
        self._on_failed = on_failed
        self._waiting: list[_Deleted] = []  # a heap
        self._count = 0
        self._news = Signal()
        for directory in directories.all:
            for path in directory.partitions.deleted():
                self.add(directory, (path,), 0)

    def __repr__(self) -> str:
        return f"<DeletedLogs waiting={len(self._waiting)}>"

    def add(self, directory: LogDirectory, paths: tuple[str, ...], delay_ms: int) -> None:
        """These are removed after the delay."""
        self._count += 1
        heappush(self._waiting, _Deleted(now_s() + delay_ms / 1000, self._count, directory, paths))
        self._news.notify()

    async def run(self) -> None:
        """Removes what is due, for ever."""
        while True:
            for directory, paths in self._take_due().items():
                await self._remove(directory, paths)
            next_s = self._waiting[0].due_s if self._waiting else math.inf
            if next_s > now_s():
                await self._news.wait(next_s)

    def _take_due(self) -> dict[LogDirectory, list[str]]:
        due: dict[LogDirectory, list[str]] = {}
        while self._waiting and self._waiting[0].due_s <= now_s():
            each = heappop(self._waiting)
            due.setdefault(each.directory, []).extend(each.paths)
        return due

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
