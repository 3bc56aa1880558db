"""One cleaning of one log: the map of its newest offsets, then its segments anew, group by group (F21-F26).

Written as a generator: it works in slices of a few milliseconds, and asks its driver for what takes time. Invariants:
offsets never change; the log is as it was, or holds the new segment, after each slice; a log that is truncated, closed
or given up meanwhile is left alone, and what was written aside is removed. Kafka: `Cleaner.clean`.
"""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from rayka.cleaner.cleanable import Cleanable
from rayka.cleaner.kept_records import CleaningCounts, Horizon, KeptRecords
from rayka.cleaner.key_hashes import KeyHasher
from rayka.cleaner.map_builder import MapBuilder
from rayka.cleaner.offset_map import OffsetMap
from rayka.cleaner.segment_chunks import chunks
from rayka.cleaner.segment_groups import grouped
from rayka.errors import ApiError, CorruptRecord, StorageError
from rayka.log.log import Log
from rayka.log.segment import MAX_RELATIVE_OFFSET, Segment
from rayka.log.segment_file import BatchPosition
from rayka.log.swap import CLEANED_SUFFIX, remove_cleaned
from rayka.protocol.batch_contents import parse_contents
from rayka.protocol.batch_header import HEADER_BYTES, Codec, RecordBatch


class Slice(NamedTuple):
    """So many bytes were read and written since the last slice."""

    size_bytes: int


class SyncNeeded(NamedTuple):
    """The driver makes these durable before it goes on; what it raises ends the cleaning."""

    files: tuple[str, ...]
    directories: tuple[str, ...]


ResultT = TypeVar("ResultT")
# More of columns, or of batches, is no slice for an event loop: each keeps the requests that come meanwhile waiting.
HEAVY_BYTES = 64 << 10
HEAVY_BATCHES = 10


class Work(Generic[ResultT]):
    """A call that takes long and touches no file. The driver may perform it away from its event loop before it goes on;
    else it is performed when its outcome is wanted.
    """

    def __init__(self, call: Callable[[], ResultT]) -> None:
        self._call = call
        self._outcome: ResultT | Exception | None = None
        self._is_performed = False

    def __repr__(self) -> str:
        return f"<Work performed={self._is_performed}>"

    def perform(self) -> None:
        """Raises nothing: what the call raises is part of its outcome."""
        try:
            self._outcome = self._call()
        except Exception as error:
            self._outcome = error
        self._is_performed = True

    def outcome(self) -> ResultT:
        """What the call returned. Raises what it raised."""
        if not self._is_performed:
            return self._call()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome  # type: ignore[return-value]


Step = Slice | SyncNeeded | Work[bool] | Work[None] | Work[list[RecordBatch]]
Steps = Generator[Step, None, None]


class CleaningAborted(Exception):
    """The log has changed under the cleaning, or is not to be cleaned any more; nothing is wrong."""


class CleaningSettings(NamedTuple):
    """What a cleaning needs besides its log. The secret is random, 16 bytes or more (`key_hashes`)."""

    map_bytes: int
    timestamp_ms: int
    secret: bytes


class Compaction:
    """One cleaning. `is_wanted` is asked after each slice."""

    def __init__(
        self, log: Log, part: Cleanable, settings: CleaningSettings, is_wanted: Callable[[], bool]
    ) -> None:
        self._log = log
        self._part = part
        self._settings = settings
        self._is_wanted = is_wanted
        self._hasher = KeyHasher(settings.secret)
        self._truncation_count = log.truncation_count
        self.counts = CleaningCounts()
        self.offsets = OffsetMap(settings.map_bytes, part.end_offset - part.first_dirty_offset)
        self.end_offset = part.first_dirty_offset  # how far the map reaches
        self._builder = MapBuilder(self._hasher, self.offsets, part.first_dirty_offset)

    def __repr__(self) -> str:
        return f"<Compaction of {self._log.name} {self._part!r} {self.offsets!r}>"

    def run(self) -> Steps:
        """All of it. Raises CleaningAborted, CorruptRecord and what the disk fails with."""
        yield from self._build_map()
        yield from self._seal_map()
        below = [each for each in self._log.segments.all[:-1] if each.base_offset < self.end_offset]
        kept = KeptRecords(self._hasher, self.offsets, self._horizon(), _needed_ends(self._log), self.counts)
        for group in grouped(below, self._log.config):
            yield from self._clean(group, kept)
        self._check(())
        self._log.cleaned_offset = self.end_offset

    def _horizon(self) -> Horizon:
        return Horizon(
            self._part.first_dirty_offset,
            self.end_offset,
            self._settings.timestamp_ms,
            self._log.config.delete_retention_ms,
        )

    def _check(self, segments: Sequence[Segment]) -> None:
        """After each pause: raises CleaningAborted when the log is not the one that the cleaning began with, or does
        not have these segments any more.
        """
        self._check_open()
        if self._log.truncation_count != self._truncation_count:
            raise CleaningAborted(f"{self._log.name} was truncated")
        if segments and not self._log.segments.have(segments):
            raise CleaningAborted(f"segments of {self._log.name} were removed")

    def _check_open(self) -> None:
        if self._log.failure is not None or not self._is_wanted():
            raise CleaningAborted(f"{self._log.name} is not to be cleaned any more")

    # ---- The map -------------------------------------------------------------------------------------------

    def _build_map(self) -> Steps:
        part = self._part
        dirty = [
            each
            for each in self._log.segments.all[:-1]
            if each.next_offset > part.first_dirty_offset and each.base_offset < part.end_offset
        ]
        for segment in dirty:
            self._check([segment])
            for batches in chunks(segment.file, segment.size_bytes):
                put = Work(partial(self._builder.put, batches))
                if is_heavy(batches):
                    yield put
                    self._check([segment])
                is_full = not put.outcome()
                self.end_offset = self._builder.end_offset
                if is_full:
                    return
                yield Slice(sum(each.size_bytes for each in batches))
                self._check([segment])
            self.end_offset = segment.next_offset

    def _seal_map(self) -> Steps:
        seal = Work(self.offsets.seal)
        if self.offsets.size_bytes > HEAVY_BYTES:
            yield seal
        seal.outcome()

    # ---- The copy ------------------------------------------------------------------------------------------

    def _clean(self, group: Sequence[Segment], kept: KeptRecords) -> Steps:
        """The group as one segment, and that in the place of the group."""
        self._check(group)
        new = self._log.swaps.new_segment(group[0], CLEANED_SUFFIX, self._log.config.index_interval_bytes)
        try:
            yield from self._copy(group, new, kept)
            new.next_offset = group[-1].next_offset
            new.indexes.write()
            directory = (self._log.directory,)
            yield SyncNeeded((new.path, *new.indexes.paths), directory)
            self._check(group)
            swap = self._log.swaps.swap_in(group, new)
        except (CleaningAborted, ApiError, StorageError):
            remove_cleaned(new)
            raise
        for act in (swap.remove_old, swap.end):
            yield SyncNeeded((), directory)
            self._check_open()
            act()
        yield SyncNeeded((), directory)

    def _copy(self, group: Sequence[Segment], new: Segment, kept: KeptRecords) -> Steps:
        new.file.create()
        for segment in group:
            position = 0
            for batches in chunks(segment.file, segment.size_bytes):
                position += sum(each.size_bytes for each in batches)
                is_end = segment is group[-1] and position == segment.size_bytes
                work = Work(partial(kept.of, batches, batches[-1] if is_end else None))
                if is_heavy(batches):
                    yield work
                    self._check(group)
                written = _append(new, work.outcome())
                yield Slice(sum(each.size_bytes for each in batches) + written)
                self._check(group)


def is_heavy(batches: Sequence[RecordBatch]) -> bool:
    """Whether decoding these, hashing and looking up their keys takes longer than a thread takes to be asked."""
    return len(batches) > HEAVY_BATCHES or sum(_decoded_bytes(each) for each in batches) > HEAVY_BYTES


def _decoded_bytes(batch: RecordBatch) -> int:
    if batch.codec is Codec.NONE:
        return batch.size_bytes
    try:
        return parse_contents(batch.view[HEADER_BYTES:]).uncompressed_bytes
    except CorruptRecord:  # `decode` says what is wrong with which batch
        return batch.size_bytes


def _append(segment: Segment, batches: Sequence[RecordBatch]) -> int:
    """How many bytes were written."""
    places, position = [], segment.size_bytes
    for each in batches:
        places.append(
            BatchPosition(
                position, each.size_bytes, each.base_offset, each.last_offset, each.max_timestamp_ms
            )
        )
        position += each.size_bytes
    if position > MAX_RELATIVE_OFFSET:
        raise CleaningAborted(f"{segment!r} would outgrow its index")
    if places:
        segment.append([each.view for each in batches], places)
    return position - (places[0].position if places else position)


def _needed_ends(log: Log) -> frozenset[tuple[int, int]]:
    """The ends of the batches by which producers are recognised (C2, F25)."""
    return frozenset(
        (producer_id, batch.last_offset)
        for producer_id, entry in log.producers.items()
        for batch in entry.batches
    )
