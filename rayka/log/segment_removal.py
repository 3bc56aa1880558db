"""The swaps of one log, one at a time: cleaned segments come in, and a truncation ends what is under way (F26).

Invariant: a swap is undone or ended before a truncation reaches its segment.
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
    """The swap of one log, if one is under way. Within `changing` the log changes, or fails; within `making_room` also
    while its disk is full.
    """

    def __init__(
        self,
        files: LogFiles,
        segments: Segments,
        snapshots: ProducerSnapshots,
        changing: Callable[[], AbstractContextManager[None]],
        making_room: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.count = 0  # how often segments were replaced
        self._files = files
        self._segments = segments
        self._snapshots = snapshots
        self._changing = changing
        self._making_room = making_room
        self._current: Swap | None = None

    def __repr__(self) -> str:
        return f"<Replacements count={self.count} current={self._current!r}>"

    def new_segment(self, first: Segment, index_interval_bytes: int) -> Segment:
        """A segment that begins where this one does, in files of its own, not yet part of the log."""
        return Segment(
            self._files,
            first.base_offset,
            created_ms=first.created_ms,
            index_interval_bytes=index_interval_bytes,
            suffix=CLEANED_SUFFIX,
        )

    def swap_in(self, old: Sequence[Segment], new: Segment) -> None:
        """The new segment, complete and durable, is read in the place of these, one behind the other, from now on; the
        steps that the swap still has are its user's to call.
        """
        if self._current is not None:
            raise InvariantBroken(f"{self!r}: a swap is not over")
        with self._changing():
            self._current = Swap(self._files, old, new)
            self._segments.swap(old, [new])
            self.count += 1

    def remove_old(self) -> None:
        """Step 3 of the swap, unless a truncation has ended it. With the old segments go the snapshots of producers
        that stood beside them, but for the first one's.
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
        """Up to where segments may be removed at the log's start: a swap under way keeps those that it is about, for
        what is left of them on disk is decided when it is over.
        """
        swap = self._current
        return offset if swap is None else min(offset, swap.new.base_offset)

    def end_behind(self, offset: int) -> None:
        """Before what lies at or behind the offset goes."""
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


# Segments taken out at the begin of a log, and their files until their user removes them (F11).
#
# Renaming a file takes microseconds, removing one milliseconds or, where it is large, much longer. So a log that begins
# later renames files, and what its broker does with their new names is not the log's to wait for. Invariant: that
# nothing
# before a segment is missed is on the disk before anything that stood before it goes.


SEGMENTS_PER_TURN = 25  # each takes four renames of some 20 microseconds, or of 100 on a busy machine


class RetiredSegments:
    """See the module."""

    def __init__(
        self, files: LogFiles, segments: Segments, snapshots: ProducerSnapshots, replacements: Replacements
    ) -> None:
        self._files = files
        self._segments = segments
        self._snapshots = snapshots
        self._replacements = replacements
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
        offset, unsynced_offset = self._replacements.removable(offset), self._snapshots.first_unsynced_offset
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
