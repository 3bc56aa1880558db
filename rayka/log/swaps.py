"""The swaps of one log, one at a time: cleaned segments come in, and a truncation ends what is under way (F26).

Invariant: a swap is undone or ended before a truncation reaches its segment.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from rayka.errors import InvariantBroken
from rayka.log.log_files import LogFiles
from rayka.log.producer_snapshots import ProducerSnapshots
from rayka.log.segment import Segment
from rayka.log.segments import Segments
from rayka.log.swap import CLEANED_SUFFIX, Swap


class Swaps:
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
        return f"<Swaps count={self.count} current={self._current!r}>"

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
