"""Cleaned segments take the place of the ones that they were made of, so that a crash at any point leaves one or the
other, whole (F26).

1. The new segment's files are complete and synced, with the suffix `.cleaned`. A crash leaves the old ones, and these
   are removed when the log opens.
2. They are renamed to `.swap`, and the log reads the new segment from then on. Nothing else changes until that name is
   durable; then the swap is decided: an opening log finishes it.
3. The files of the old ones are removed, and that is durable before the next step: an index of theirs must not stand
   beside the new segment's file.
4. The new files are renamed to their names.

Invariants: a swap is undone or ended before a truncation reaches its segment; for any other reason it is not given up,
but for the end of its process or the failure of its directory. Readers keep the files that they have
open or mapped; one that finds another file under the name asks again. Kafka: `LocalLog.replaceSegments`, `LogLoader`
(B32).
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
    """One swap under way: it begins with step 2."""

    def __init__(self, files: LogFiles, old: Sequence[Segment], new: Segment) -> None:
        self._files = files
        self.old = old
        self.new = new
        self.is_decided = False  # the name is durable
        new.rename(SWAP_SUFFIX)

    def __repr__(self) -> str:
        return f"<Swap {list(self.old)} for {self.new!r}>"

    @property
    def end_offset(self) -> int:
        """Where the new segment ends."""
        return self.new.next_offset

    def remove_old(self) -> None:
        """Step 3, after a sync of the directory; then another one is due."""
        self.is_decided = True
        for segment in reversed(self.old):
            segment.delete()

    def end(self) -> None:
        """Step 4, after that sync; a truncation cannot wait for it, and makes a recovery build the indexes anew."""
        if self._files.disk.exists(self.new.path):  # not removed with the log's start meanwhile
            self.new.rename("")

    def undo(self) -> None:
        """Nothing of the new segment is left, while nothing is decided."""
        if self.is_decided:
            raise InvariantBroken(f"{self!r} is decided")
        self.new.delete()


def has_swap(disk: Disk, directory: str) -> bool:
    """Whether a swap was broken off there. Its names have to be durable before the log is opened, which ends it."""
    return disk.exists(directory) and any(each.endswith(SWAP_SUFFIX) for each in disk.list(directory))


def finish_swaps(files: LogFiles, index_interval_bytes: int) -> None:
    """Ends what a crash left of swaps, before the segments are looked for, and removes what never became one. Raises
    DamagedLog.
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
    segment.indexes.find()
    end_offset = segment.find_end()
    if end_offset is None:
        raise DamagedLog(
            f"{segment.path} does not end with a whole batch: it was synced, so this is damage. Restore"
            f" {posixpath.dirname(segment.path)} from a copy; then restart the node"
        )
    return end_offset
