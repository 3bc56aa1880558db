"""Data directories are looked at from time to time: a broker that writes nothing would not notice that one is gone, for
the files that it has open are read on. Kafka notices at the next write.
"""

import asyncio
from collections.abc import Callable

from rayka.errors import StorageError
from rayka.log.log_directory import LogDirectory
from rayka.node.storage.data_directories import DataDirectories

LOOK_MS = 5_000


async def look_for_ever(
    directories: DataDirectories, on_failed: Callable[[LogDirectory, StorageError], None]
) -> None:
    """Each is looked at every five seconds; to ask for one inode takes some microseconds."""
    while True:
        await asyncio.sleep(LOOK_MS / 1000)
        for directory in directories.all:
            if directory.failure is None:
                try:
                    directory.check_in_place()
                except StorageError as error:
                    on_failed(directory, error)
