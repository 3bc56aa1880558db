"""A cleaned segment takes the place of the segments that it was made of: a crash at any point leaves one or the others,
whole (F26).

1. The new segment's files are complete and synced, with the suffix `.cleaned`. A crash leaves the old segments, and
   these files are removed when the log opens.
2. The files are renamed to `.swap`, and the log reads the new segment. Nothing else changes until the name is durable.
   Then the swap is decided: an opening log finishes it.
3. The old segments' files are removed, durably before the next step: an old index must not stand beside the new
   segment's file.
4. The new files get their final names.

Invariants: a swap is undone or ended before a truncation reaches its segment. Only the end of the process or the
failure of the directory breaks it off for another reason. Readers keep the files that they have open or mapped; a
reader that finds another file under the name asks again. Kafka: `LocalLog.replaceSegments`, `LogLoader` (B32).
"""

import posixpath
from collections.abc import Sequence

from rayka.errors import DamagedLog, InvariantBroken
from rayka.log.log_files import LogFiles
from rayka.log.segment import Segment
from rayka.log.segment_file import LOG_SUFFIX
from rayka.ports import Disk

CLEANED_SUFFIX, SWAP_SUFFIX = ".cleaned", ".swap"


class Swap:
    """One swap under way, from step 2 on."""

    def __init__(self, files: LogFiles, old: Sequence[Segment], new: Segment) -> None:
        self._files = files
        self.old = old
        self.new = new
        # The name with the suffix `.swap` is durable: the swap cannot be undone.
        self.is_decided = False
        new.rename(SWAP_SUFFIX)

    def __repr__(self) -> str:
        return f"<Swap {list(self.old)} for {self.new!r}>"

    @property
    def end_offset(self) -> int:
        """The end of the new segment."""
        return self.new.next_offset

    def remove_old(self) -> None:
        """Step 3, after a sync of the directory; another sync follows."""
        self.is_decided = True
        for segment in reversed(self.old):
            segment.delete()

    def end(self) -> None:
        """Step 4, after that sync. A truncation does not wait for the sync, and makes a recovery build the indexes
        anew.
        """
        # The segment may have been removed by now, with the begin of the log.
        if self._files.disk.exists(self.new.path):
            self.new.rename("")

    def undo(self) -> None:
        """Removes the new segment, while nothing is decided."""
        if self.is_decided:
            raise InvariantBroken(f"{self!r} is decided")
        self.new.delete()


def has_swap(disk: Disk, directory: str) -> bool:
    """Whether a crash broke off a swap in the directory. The names must be durable before the log is opened, which
    finishes the swap.
    """
    return disk.exists(directory) and any(each.endswith(SWAP_SUFFIX) for each in disk.list(directory))


def finish_swaps(files: LogFiles, index_interval_bytes: int) -> None:
    """Finishes decided swaps that a crash broke off, before the segments are looked for; removes the files of others.
    Raises DamagedLog.
    """
    names = files.disk.list(files.directory)
    logs = [name for name in names if name.endswith(LOG_SUFFIX)]
    for name in names:
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            base_offset = int(name[:20])
            new = Segment(files, base_offset, index_interval_bytes=index_interval_bytes, suffix=SWAP_SUFFIX)
            end_offset = _end_of(files, new)
            for each in [each for each in logs if base_offset <= int(each[:20]) < end_offset]:
                old = Segment(files, int(each[:20]), index_interval_bytes=index_interval_bytes)
                old.delete()
            new.rename("")
    for name in files.disk.list(files.directory):
        if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)):
            files.disk.unlink(files.path(name))


def _end_of(files: LogFiles, segment: Segment) -> int:
    segment.size_bytes = files.disk.size(segment.path)
    segment.indexes.use_files()
    end_offset = segment.find_end()
    if end_offset is None:
        raise DamagedLog(
            f"{segment.path} does not end with a whole batch: it was synced, so this is damage. Restore"
            f" {posixpath.dirname(segment.path)} from a copy; then restart the node"
        )
    return end_offset
