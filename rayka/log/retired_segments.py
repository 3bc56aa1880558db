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

SEGMENTS_PER_TURN = 25  # each takes four renames of some 20 microseconds, or of 100 on a busy machine


class RetiredSegments:
    """See the module."""

    def __init__(self, files: LogFiles, segments: Segments, snapshots: ProducerSnapshots) -> None:
        self._files = files
        self._segments = segments
        self._snapshots = snapshots
        self._paths: list[str] = []
        self.is_half_way = False  # an error came between two renames

    def __repr__(self) -> str:
        return f"<RetiredSegments files={len(self._paths)}>"

    def retire_below(self, offset: int) -> bool:
        """Takes out segments wholly below the offset, oldest first, at most so many as one turn of an event loop takes,
        and never the active one; whether any were there. Raises StorageError: unless that is half way, with nothing
        changed.
        """
        count = min(self._segments.count_below(offset), SEGMENTS_PER_TURN)
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
