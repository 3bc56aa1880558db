"""Segments that leave a log: replaced by cleaned ones (F26), or below the log start offset (F11).

Invariants:
- There is one swap at a time. A swap is undone or ended before a truncation reaches its segment.
- The file `log-start-raised` is on the disk before a segment below it goes, so that its records are not missed.

A rename takes microseconds, a removal milliseconds or, of a large file, much longer. So a log that begins later only
renames files, and its broker removes them outside of the log.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from rayka.errors import DiskFull, InvariantBroken
from rayka.log.checkpoint_files import raised_log_start
from rayka.log.log_files import LogFiles
from rayka.log.producer_state import ProducerSnapshots
from rayka.log.segment import Segment
from rayka.log.segments import Segments
from rayka.log.swap import CLEANED_SUFFIX, Swap


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
        """A segment that begins where `first` does, in files of its own, not part of the log yet."""
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
