"""Data directories that are full: looked at until there is room in them again.

Invariant: one that is full is tried again as soon as its file system has room, and also by time, for a file system with
a quota does not tell. Kafka takes such a directory offline until the broker restarts.
"""

import asyncio
from collections.abc import Awaitable, Callable

from rayka.errors import StorageError
from rayka.log.log_directory import LogDirectory
from rayka.node.storage.data_directories import DataDirectories
from rayka.ports import Disk

_LOOK_MS = 1_000
_TRY_LOOKS = 30  # so often it is tried although there seems to be no room
_ROOM_BYTES = 64 << 20  # less would be gone at once


class FullDirectories:
    """The full ones among a broker's directories."""

    def __init__(
        self,
        disk: Disk,
        directories: DataDirectories,
        on_failed: Callable[[LogDirectory, StorageError], None],
    ) -> None:
        self._disk = disk
        self._directories = directories
        self._on_failed = on_failed

    def __repr__(self) -> str:
        return f"<FullDirectories {[each.path for each in self._full()]}>"

    def _full(self) -> list[LogDirectory]:
        return [each for each in self._directories.all if each.full is not None and each.failure is None]

    async def run(self, on_room: Callable[[LogDirectory], Awaitable[None]]) -> None:
        """Looks for ever; `on_room` is awaited for each that has room."""
        look_count = 0
        while True:
            await asyncio.sleep(_LOOK_MS / 1000)
            look_count += 1
            for directory in self._full():
                if self._has_room(directory, is_tried=look_count % _TRY_LOOKS == 0):
                    await on_room(directory)

    def _has_room(self, directory: LogDirectory, *, is_tried: bool) -> bool:
        try:
            is_tried = is_tried or self._disk.free_bytes(directory.path) >= _ROOM_BYTES
            return is_tried and directory.has_room()
        except StorageError as error:
            self._on_failed(directory, error)
            return False
