"""Segments that leave a log: replaced by cleaned ones (F26), or below the log start offset (F11).

A swap puts a cleaned segment in the place of the segments that it was made of. A crash at any point leaves one or the
others, whole:

1. The new segment's files are complete and synced, with the suffix `.cleaned`. A crash leaves the old segments, and
   these files are removed when the log opens.
2. The files are renamed to `.swap`, and the log reads the new segment. Nothing else changes until the name is durable.
   Then the swap is decided: an opening log finishes it.
3. The old segments' files are removed, durably before the next step: an old index must not stand beside the new
   segment's file.
4. The new files get their final names.

Invariants:
- There is one swap at a time. A swap is undone or ended before a truncation reaches its segment. Only the end of the
  process or the failure of the directory breaks it off for another reason.
- Readers keep the files that they have open or mapped. A reader that finds another file under the name asks again.
- The file `log-start-raised` is on the disk before a segment below it goes, so that its records are not missed.

A rename takes microseconds, a removal milliseconds or, of a large file, much longer. So a log that begins later only
renames files, and its broker removes them outside of the log. Kafka: `LocalLog.replaceSegments`, `LogLoader` (B32).
"""

import posixpath
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from rayka.errors import DamagedLog, DiskFull, InvariantBroken
from rayka.log.checkpoint_files import raised_log_start
from rayka.log.log_files import LogFiles
from rayka.log.producer_state import ProducerSnapshots
from rayka.log.segment import Segment
from rayka.log.segment_file import LOG_SUFFIX
from rayka.log.segments import Segments
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


class Replacements:
    """The current swap of one log, if there is one. `changing` is a block that changes the log or fails it;
    `making_room` is allowed while the disk is full.
    """

    def __init__(
        self,
        files: LogFiles,
        segments: Segments,
        snapshots: ProducerSnapshots,
        changing: Callable[[], AbstractContextManager[None]],
        making_room: Callable[[], AbstractContextManager[None]],
    ) -> None:
        # How often segments were replaced. A search in slices fails when this changes.
        self.count = 0
        self._files = files
        self._segments = segments
        self._snapshots = snapshots
        self._changing = changing
        self._making_room = making_room
        self._current: Swap | None = None

    def __repr__(self) -> str:
        return f"<Replacements count={self.count} current={self._current!r}>"

    def new_segment(self, first: Segment, index_interval_bytes: int) -> Segment:
        """A segment that begins where `first` does, in separate files, not part of the log yet."""
        return Segment(
            self._files,
            first.base_offset,
            created_ms=first.created_ms,
            index_interval_bytes=index_interval_bytes,
            suffix=CLEANED_SUFFIX,
        )

    def swap_in(self, old: Sequence[Segment], new: Segment) -> None:
        """Reads the new segment, complete and durable, in the place of the consecutive segments `old`. The caller then
        makes the remaining steps of the swap.
        """
        if self._current is not None:
            raise InvariantBroken(f"{self!r}: a swap is not over")
        with self._changing():
            self._current = Swap(self._files, old, new)
            self._segments.swap(old, [new])
            self.count += 1

    def remove_old(self) -> None:
        """Step 3 of the swap, unless a truncation has ended it. Also removes the producers' snapshots of the old
        segments, except the first one's.
        """
        swap = self._current
        if swap is not None:
            with self._making_room():
                swap.remove_old()
                self._snapshots.remove_within(swap.new.base_offset, swap.end_offset)

    def end(self) -> None:
        """Step 4 of the swap, unless a truncation has ended it."""
        swap = self._current
        if swap is not None:
            with self._making_room():
                self._current = None
                swap.end()

    def removable(self, offset: int) -> int:
        """The offset, at most the given one, below which segments may be removed at the log's start: a swap keeps its
        own segments, because their files are decided when it ends.
        """
        swap = self._current
        return offset if swap is None else min(offset, swap.new.base_offset)

    def end_behind(self, offset: int) -> None:
        """Ends or undoes a swap of records at or behind the offset, which are about to be truncated."""
        swap = self._current
        if swap is None or offset >= swap.end_offset:
            return
        with self._changing():
            self._current = None
            if swap.is_decided:
                swap.end()
            else:
                swap.undo()
                self._segments.swap([swap.new], swap.old)
            self.count += 1


# Each takes four renames of some 20 microseconds, or of 100 on a busy machine.
SEGMENTS_PER_TURN = 25


class RetiredSegments:
    """Segments taken out at the begin of a log: their renamed files, until the user of the log removes them."""

    def __init__(
        self, files: LogFiles, segments: Segments, snapshots: ProducerSnapshots, replacements: Replacements
    ) -> None:
        self._files = files
        self._segments = segments
        self._snapshots = snapshots
        self._replacements = replacements
        self._paths: list[str] = []
        # An error came between two renames: the files do not show what the log says.
        self.is_half_way = False

    @property
    def waits_for_sync(self) -> bool:
        """Whether segments stay because the snapshot of the roll behind them is not durable yet."""
        return self._snapshots.first_unsynced_offset is not None

    def removable(self, offset: int) -> int:
        """The offset, at most the given one, below which segments can be retired now: none of a swap, and none whose
        successor's snapshot of producers is not durable (C8).
        """
        offset, unsynced_offset = self._replacements.removable(offset), self._snapshots.first_unsynced_offset
        return offset if unsynced_offset is None else min(offset, unsynced_offset - 1)

    def retire_below(self, offset: int) -> bool:
        """Retires `removable` segments wholly below the offset, oldest first and at most one turn's worth; never the
        active one. True if any went. Raises StorageError, with nothing changed unless `is_half_way`.
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
        """Writes the new log start. On a full disk the indexes of a segment that goes anyway make room."""
        try:
            self._files.write(raised_log_start(first_offset))
        except DiskFull:
            self._segments.first.indexes.remove_files()
            self._files.write(raised_log_start(first_offset))

    def take(self) -> tuple[str, ...]:
        """Hands the files over to the caller, to be removed."""
        paths, self._paths = tuple(self._paths), []
        return paths

    def remove(self) -> None:
        """Removes the files now, on the event loop: for a log of few segments."""
        for path in self.take():
            self._files.disk.unlink(path)
