"""Segments taken out at the begin of a log, and their files until their user removes them (F11).

Renaming a file takes microseconds, removing one milliseconds or, where it is large, much longer. So a log that begins
later renames files, and what its broker does with their new names is not the log's to wait for. Invariant: that nothing
before a segment is missed is on the disk before anything that stood before it goes.
"""

from rayka.errors import DiskFull
from rayka.log.log_files import LogFiles
from rayka.log.markers import raised_log_start
from rayka.log.producer_snapshots import ProducerSnapshots
from rayka.log.segments import Segments
from rayka.log.swaps import Swaps

SEGMENTS_PER_TURN = 25  # each takes four renames of some 20 microseconds, or of 100 on a busy machine


class RetiredSegments:
    """See the module."""

    def __init__(
        self, files: LogFiles, segments: Segments, snapshots: ProducerSnapshots, swaps: Swaps
    ) -> None:
        self._files = files
        self._segments = segments
        self._snapshots = snapshots
        self._swaps = swaps
        self._paths: list[str] = []
        # An error came between two renames.
        self.is_half_way = False

    def __repr__(self) -> str:
        return f"<RetiredSegments files={len(self._paths)}>"

    @property
    def waits_for_sync(self) -> bool:
        """Whether segments stay because a power cut may still take what the roll behind them wrote."""
        return self._snapshots.first_unsynced_offset is not None

    def removable(self, offset: int) -> int:
        """The offset, at most the given one, below which segments can be retired now: none of a swap, and none whose
        successor's snapshot of producers is not durable (C8).
        """
        offset, unsynced_offset = self._swaps.removable(offset), self._snapshots.first_unsynced_offset
        return offset if unsynced_offset is None else min(offset, unsynced_offset - 1)

    def retire_below(self, offset: int) -> bool:
        """Takes out segments wholly below the offset that are `removable`, oldest first, at most so many as one turn of
        an event loop takes, and never the active one; whether any went. Raises StorageError: unless that is half way,
        with nothing changed.
        """
        count = min(self._segments.count_below(self.removable(offset)), SEGMENTS_PER_TURN)
        if count:
            first_offset = self._segments.all[count].base_offset
            self._raise_start(first_offset)
            self.is_half_way = True
            self._paths += self._segments.retire_first(count)
            self._paths += self._snapshots.retire_before(first_offset)
            self.is_half_way = False
        return count > 0

    def _raise_start(self, first_offset: int) -> None:
        """On a full disk the indexes of what is about to go make room."""
        try:
            self._files.write(raised_log_start(first_offset))
        except DiskFull:
            self._segments.first.indexes.remove_files()
            self._files.write(raised_log_start(first_offset))

    def take(self) -> tuple[str, ...]:
        """The files, which are the caller's to remove from now on."""
        paths, self._paths = tuple(self._paths), []
        return paths

    def remove(self) -> None:
        """Removes the files now, on the event loop: of a log that has few segments."""
        for path in self.take():
            self._files.disk.unlink(path)
