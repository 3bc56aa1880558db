"""Truncations that need a copy of what is kept: made one at a time in each data directory, off the event loop.

Invariants: a log is as it was until its copy is complete, and is truncated in one step then; a truncation that is not
wanted any more by then, because its replica leads, follows in another epoch or is gone, leaves the log alone; no two
copies are made at once in a data directory, so that a broker that comes back with many diverging logs serves the others
meanwhile. Kafka truncates in place, for no reader maps its files (`LogSegment.truncateTo`).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from rayka.errors import StorageError
from rayka.log.log import PrefixCopy
from rayka.log.log_directory import LogDirectory
from rayka.ports import Disk

Truncate = Callable[[PrefixCopy | None], PrefixCopy | None]  # as `Log.truncate_to`, with its offset


class Truncations:
    """The truncations of one broker."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._turns: dict[LogDirectory, asyncio.Lock] = {}

    def __repr__(self) -> str:
        copying = [each.path for each, turn in self._turns.items() if turn.locked()]
        return f"<Truncations copying in {copying}>"

    async def run(self, directory: LogDirectory, truncate: Truncate, is_wanted: Callable[[], bool]) -> bool:
        """Whether the log in the directory was truncated; if not, it was not wanted any more. Raises what `truncate`
        raises, and StorageError when the copy fails: then the log is as it was.
        """
        async with self._turns.setdefault(directory, asyncio.Lock()):
            copied: PrefixCopy | None = None
            while is_wanted():
                needed = truncate(copied)
                if needed is None:
                    return True
                copied = needed
                try:
                    await self._disk.copy_prefix(needed.source, needed.target, needed.size_bytes)
                except StorageError:
                    if is_wanted():
                        raise
            # When the log is opened the next time the copy is removed, too; that may be much later.
            if copied is not None and self._disk.exists(copied.target):
                with suppress(StorageError):
                    self._disk.unlink(copied.target)
            return False
