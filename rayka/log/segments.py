"""The segments of one log, oldest first: which one holds an offset, and spans of batches across several.

Invariants: there is at least one, and the last is the active one; each begins where the one before it ends; of the
sealed ones only the few in use keep their indexes in memory. Kafka: `LogSegments`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

from rayka.config.topic_config import TopicConfig
from rayka.errors import InvariantBroken
from rayka.log.log_files import LogFiles
from rayka.log.segment import Segment, Span

_WARM_SEGMENTS = 8  # sealed segments whose indexes stay in memory


class Segments:
    """The segments of one log."""

    def __init__(self, files: LogFiles, segments: list[Segment]) -> None:
        self._files = files
        self._segments = segments
        self._warm: list[Segment] = []

    def __repr__(self) -> str:
        return f"<Segments {self._segments}>"

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        """Oldest first, each with its indexes at hand."""
        for segment in self._segments:
            self._warm_up(segment)
            yield segment

    @property
    def first(self) -> Segment:
        return self._segments[0]

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def all(self) -> tuple[Segment, ...]:
        """Oldest first, whether their indexes are at hand or not."""
        return tuple(self._segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    # ---- Looking -------------------------------------------------------------------------------------------

    def holding(self, offset: int) -> Segment:
        """The segment that contains the offset, or the first."""
        return self._segments[self._number_of(offset)]

    def size_from(self, offset: int) -> int:
        """Bytes of the batch that contains the offset and of all after it."""
        number = self._number_of(offset)
        holding = self._segments[number]
        self._warm_up(holding)
        later = self._segments[number + 1 :]
        return holding.size_bytes - holding.position_of(offset) + sum(each.size_bytes for each in later)

    def _number_of(self, offset: int) -> int:
        return bisect_right(self._segments, offset, lo=1, key=attrgetter("base_offset")) - 1

    def spans(
        self, offset: int, max_bytes: int, end_offset: int, min_one: bool
    ) -> Iterator[tuple[Segment, Span]]:
        """The non-empty spans of consecutive segments that together make one read (G4-G6)."""
        number = self._number_of(offset)
        while offset < end_offset and (max_bytes > 0 or min_one) and number < len(self._segments):
            segment = self._segments[number]
            self._warm_up(segment)
            span = segment.span(offset, max_bytes=max_bytes, end_offset=end_offset, min_one_batch=min_one)
            if span.stop > span.position:
                yield segment, span
                min_one, max_bytes = False, max_bytes - (span.stop - span.position)
            if span.stop < segment.size_bytes:
                return
            offset, number = span.next_offset, number + 1

    def _warm_up(self, segment: Segment) -> None:
        """Keeps the indexes of the few sealed segments in use, and lets go of the others."""
        if segment is self.active or segment in self._warm:
            return
        self._warm.append(segment)
        if len(self._warm) > _WARM_SEGMENTS:
            self._warm.pop(0).indexes.drop()

    # ---- Coming and going ----------------------------------------------------------------------------------

    def roll(self, base_offset: int, config: TopicConfig, now_ms: int) -> None:
        """Seals the active segment, and begins another one."""
        sealed = self.active
        sealed.indexes.write()
        self._segments.append(created_segment(self._files, config, base_offset, now_ms))
        sealed.next_offset = base_offset
        self._warm_up(sealed)

    def prefix_to_copy(self, offset: int, flushed_offset: int) -> tuple[str, str, int] | None:
        """What `truncate_to` needs a copy of, where to, and how many bytes; None where it can cut in place.

        Never in place below the flushed offset: 1. The file is cut at 50 and appended to. 2. The block with the new
        bytes reaches the disk, and power is lost before the file system's journal does. 3. New and old batches are
        mixed in the file, below a recovery point from before.
        """
        segment = self.holding(offset)
        position = segment.position_of(offset)
        is_untouched = position == segment.size_bytes
        if is_untouched or (offset >= flushed_offset and segment.can_be_cut(position)):
            return None
        return segment.path, segment.file.replacement_path, position

    def truncate_to(self, offset: int, *, is_copied: bool) -> None:
        """Drops the batch that contains the offset and all after it, later segments first, so that the log on disk
        never has a hole: in place, or by the copy that `prefix_to_copy` asks for.
        """
        while len(self) > 1 and self.active.base_offset > offset:
            self._segments.pop().delete()
        segment = self.active
        kept = segment.prefix(offset)
        if is_copied:
            self.replace(segment, kept)
            return
        if kept.size_bytes < segment.size_bytes:
            segment.file.cut(kept.size_bytes)
        self._put(segment, kept)

    def replace(self, old: Segment, new: Segment) -> None:
        """The new segment takes the place of the old one, from the same base offset on; readers keep what they mapped.

        A crash leaves one of them, whole: 1. The new file is complete and synced under a temporary name; one that is
        left over there is removed when the log opens. 2. The log's lowered recovery point is in its directory before
        this is called, so that a recovery scans the segment whatever the checkpoint says, and makes its indexes anew:
        those on disk may still be of the old file. 3. One rename changes one for the other.
        """
        if old.base_offset != new.base_offset:
            raise InvariantBroken(f"{new!r} cannot replace {old!r}")
        new.file.replace()
        self._put(old, new)

    def have(self, segments: Sequence[Segment]) -> bool:
        """Whether all of these are still here, sealed, one behind the other."""
        begin = bisect_left(self._segments, segments[0].base_offset, key=attrgetter("base_offset"))
        return self._segments[:-1][begin : begin + len(segments)] == list(segments)

    def swap(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """These take the place of those, in memory; their files are `Swap`'s."""
        ends = [(each[0].base_offset, each[-1].next_offset) for each in (old, new)]
        if not self.have(old) or ends[0] != ends[1]:
            raise InvariantBroken(f"{new!r} cannot take the place of {old!r} in {self!r}")
        begin = self._segments.index(old[0])
        self._segments[begin : begin + len(old)] = new
        self._warm = [segment for segment in self._warm if segment in self._segments[:-1]]

    def _put(self, old: Segment, new: Segment) -> None:
        self._segments[self._segments.index(old)] = new
        self._warm = [segment for segment in self._warm if segment in self._segments[:-1]]

    def on_moved(self) -> None:
        """The log's directory has another name."""
        for segment in self._segments:
            segment.on_moved()

    def count_below(self, offset: int) -> int:
        """How many segments lie wholly below the offset, the active one apart."""
        return self._number_of(offset)

    def retire_first(self, count: int) -> list[str]:
        """Takes so many segments out, oldest first, but never the active one. Returns where their files are."""
        if count >= len(self):
            raise InvariantBroken(f"{self!r} keeps one segment at least, and {count} are to go")
        retired: list[str] = []
        while count:
            # Out of the list before the rename: if that fails half way, nobody reads a file that may have no name.
            removed, count = self._segments.pop(0), count - 1
            self._warm = [segment for segment in self._warm if segment is not removed]
            retired += removed.retire()
        return retired

    def replace_all(self, base_offset: int, config: TopicConfig) -> None:
        """Removes all, newest first, and begins an empty one."""
        created_ms = self.active.created_ms
        while self._segments:
            self._segments.pop().delete()
        self._warm = []
        self._segments.append(created_segment(self._files, config, base_offset, created_ms))


def created_segment(files: LogFiles, config: TopicConfig, base_offset: int, now_ms: int) -> Segment:
    """A new segment, with its file."""
    segment = planned_segment(files, config, base_offset, now_ms)
    segment.file.create()
    return segment


def planned_segment(files: LogFiles, config: TopicConfig, base_offset: int, now_ms: int) -> Segment:
    """A new segment that has no file yet."""
    return Segment(files, base_offset, created_ms=now_ms, index_interval_bytes=config.index_interval_bytes)
