"""How batches get into a log: their offsets and epochs, when a segment is rolled, and the write itself (B18, F10).

A batch is placed before anything is written, so what cannot be appended changes nothing. Invariants: an append is
split between batches only where a segment would outgrow its size; a segment is rolled at the log end offset, so
that a gap lies within one (`holes`); an epoch is in the cache before the first of its records is in the file (B20);
what is known of a batch's producer changes when the batch is written. Kafka: `UnifiedLog.append`,
`LogSegment.shouldRoll`, `RollParams`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

from rayka.config.topic_config import TopicConfig
from rayka.errors import ApiError, CorruptRecord, InvariantBroken, RecordBatchTooLarge, StorageError
from rayka.ids import NO_TIMESTAMP
from rayka.log.checkpoint_files import raised_log_start
from rayka.log.leader_epoch_cache import LeaderEpochCache
from rayka.log.log_files import LogFiles
from rayka.log.producer_state import ProducerSnapshots, ProducerStates
from rayka.log.segment import MAX_RELATIVE_OFFSET
from rayka.log.segment_file import BatchPosition
from rayka.log.segments import Segments
from rayka.ports import Buffer
from rayka.protocol.batch_format import NO_PRODUCER_ID, RecordBatch


class AppendInfo(NamedTuple):
    """What an append did; offsets are inclusive. A duplicate was appended before, there and then (C3)."""

    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    is_duplicate: bool = False


class PlacedBatch(NamedTuple):
    """One batch about to be written: its bytes and where it goes; its position is not known before the write."""

    batch: RecordBatch
    buffers: Sequence[Buffer]
    epoch: int
    place: BatchPosition


def placed_by_leader(
    batches: Sequence[RecordBatch], leader_epoch: int, offset: int, log_append_time_ms: int | None
) -> list[PlacedBatch]:
    """The batches from the offset on, one behind the other, in this epoch (B18)."""
    placed = []
    for batch in batches:
        buffers = batch.stamped(
            base_offset=offset, leader_epoch=leader_epoch, log_append_time_ms=log_append_time_ms
        )
        max_timestamp_ms = batch.max_timestamp_ms if log_append_time_ms is None else log_append_time_ms
        last_offset = offset + batch.last_offset_delta
        place = BatchPosition(0, batch.size_bytes, offset, last_offset, max_timestamp_ms)
        placed.append(PlacedBatch(batch, buffers, leader_epoch, place))
        offset = last_offset + 1
    return placed


def placed_by_follower(name: str, batches: Sequence[RecordBatch], offset: int) -> list[PlacedBatch]:
    """The batches where they say they belong, from the offset on. Raises CorruptRecord when offsets go back (B18)."""
    placed = []
    for batch in batches:
        if batch.base_offset < offset:
            raise CorruptRecord(f"{name}: expected offset {offset} or later, found {batch!r}")
        offset = batch.next_offset
        place = BatchPosition(
            0, batch.size_bytes, batch.base_offset, batch.last_offset, batch.max_timestamp_ms
        )
        placed.append(PlacedBatch(batch, (batch.view,), batch.leader_epoch, place))
    return placed


def check_sizes(name: str, placed: Sequence[PlacedBatch], segment_bytes: int) -> None:
    """Raises RecordBatchTooLarge for a batch that no segment can hold."""
    for each in placed:
        if each.place.size_bytes > segment_bytes:
            raise RecordBatchTooLarge(
                f"{name}: a batch of {each.place.size_bytes} bytes is larger than segment.bytes, {segment_bytes}"
            )


class Appender:
    """Writes placed batches into the active segment of one log, and rolls it when it is time."""

    def __init__(
        self, files: LogFiles, segments: Segments, epochs: LeaderEpochCache, snapshots: ProducerSnapshots
    ) -> None:
        self._files = files
        self._segments = segments
        self._epochs = epochs
        self._snapshots = snapshots
        self._producers = snapshots.states

    def __repr__(self) -> str:
        return f"<Appender {self._segments.active!r}>"

    def append(self, placed: Sequence[PlacedBatch], config: TopicConfig, now_ms: int) -> AppendInfo:
        """Writes the batches, almost always in one write. Raises StorageError when the disk fails."""
        if not placed:
            raise InvariantBroken("an append has at least one batch")
        self.make_files()
        for run in _runs(placed, config.segment_bytes, self._segments.active.next_offset):
            self._write(run, config, now_ms)
        return AppendInfo(
            first_offset=placed[0].place.base_offset,
            last_offset=placed[-1].place.last_offset,
            max_timestamp_ms=max([each.place.max_timestamp_ms for each in placed]),
        )

    def make_files(self) -> None:
        """The log gets its files. A crash on the way leaves a directory without records, which is no loss."""
        if self._files.are_awaited:
            self._files.make()
            start_offset = self._segments.active.base_offset
            self._files.write(raised_log_start(start_offset) if start_offset else {})
            self._epochs.write()
            self._segments.active.file.create()

    def _write(self, run: Sequence[PlacedBatch], config: TopicConfig, now_ms: int) -> None:
        """One write. Epochs come first: an epoch without records is harmless, a record without its epoch is
        not (B20).
        """
        if self._should_roll(run, config, now_ms):
            self.roll(self._rolled_at(run), config, now_ms)
        for each in run:
            if each.epoch > self._epochs.latest_epoch:
                self._epochs.assign(each.epoch, each.place.base_offset)
        position, places = self._segments.active.size_bytes, []
        for each in run:
            _, *place = each.place
            places.append(BatchPosition(position, *place))
            position += each.place.size_bytes
        self._segments.active.append([buffer for each in run for buffer in each.buffers], places)
        for each in run:
            self._producers.on_appended(
                each.batch, each.place.base_offset, now_ms, each.place.max_timestamp_ms
            )

    def roll(self, offset: int, config: TopicConfig, now_ms: int) -> None:
        """Seals the active segment and begins another at the offset, beside a snapshot of the producers (C9)."""
        self._segments.roll(offset, config, now_ms)
        self._snapshots.take(offset)

    def _rolled_at(self, run: Sequence[PlacedBatch]) -> int:
        """The log end offset; only a gap that does not fit a segment is left out, as F10 leaves out every one."""
        end_offset = self._segments.active.next_offset
        fits = run[-1].place.last_offset - end_offset <= MAX_RELATIVE_OFFSET
        return end_offset if fits else run[0].place.base_offset

    def _should_roll(self, run: Sequence[PlacedBatch], config: TopicConfig, now_ms: int) -> bool:
        """F10, for batches about to be appended."""
        active = self._segments.active
        if run[-1].place.last_offset - active.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if active.size_bytes == 0:
            return False
        incoming_bytes = sum([each.place.size_bytes for each in run])
        if active.size_bytes > config.segment_bytes - incoming_bytes or active.indexes.are_full(
            config.segment_index_bytes
        ):
            return True
        return self._waited_ms(
            max([each.place.max_timestamp_ms for each in run]), now_ms
        ) > config.segment_ms_max - self._jitter_ms(config)

    def _jitter_ms(self, config: TopicConfig) -> int:
        """How much earlier than others this segment is rolled: the same each time, another for each log and segment."""
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms_max)
        return crc32(self._segments.active.path.encode()) % jitter_ms if jitter_ms else 0

    def _waited_ms(self, timestamp_ms: int, now_ms: int) -> int:
        first = self._segments.active.first_timestamp_ms
        if NO_TIMESTAMP in (first, timestamp_ms):
            return now_ms - self._segments.active.created_ms
        return timestamp_ms - first


def _runs(
    placed: Sequence[PlacedBatch], segment_bytes: int, end_offset: int
) -> Iterator[Sequence[PlacedBatch]]:
    """Splits into runs that fit a segment, the first one behind `end_offset`; almost always there is one."""
    begin, run_bytes = 0, 0
    for number, each in enumerate(placed):
        is_far = each.place.last_offset - end_offset > MAX_RELATIVE_OFFSET
        if number > begin and (is_far or run_bytes + each.place.size_bytes > segment_bytes):
            yield placed[begin:number]
            begin, run_bytes, end_offset = number, 0, placed[number - 1].place.last_offset + 1
        run_bytes += each.place.size_bytes
    yield placed[begin:]


# What a leader appends for several requests together: which batch goes where, and what becomes of each request.
#
# Invariants: requests are appended in their order; what is wrong with a request is its own outcome, and the others are
# appended as if it had not come; a batch of a producer is checked when all that this producer sent before is in the log
# (C3-C5). Kafka: the leader's half of `UnifiedLog.append`, which takes one request.


AppendOutcome = AppendInfo | ApiError | StorageError


def runs_without_repeats(
    requests: Sequence[Sequence[RecordBatch]],
) -> Iterator[Sequence[Sequence[RecordBatch]]]:
    """The requests in runs that may be written together: none has a producer twice. One with a producer id is of one
    batch (C1).
    """
    begin, producer_ids = 0, dict[int, None]()
    for number, batches in enumerate(requests):
        producer_id = batches[0].producer_id
        if producer_id in producer_ids:
            yield requests[begin:number]
            begin, producer_ids = number, {}
        if producer_id != NO_PRODUCER_ID:
            producer_ids[producer_id] = None
    if begin < len(requests):
        yield requests[begin:]


class LeaderRun:
    """The requests of one write. `placed` is what is to be written, one behind the other."""

    def __init__(
        self, producers: ProducerStates, offset: int, leader_epoch: int, log_append_time_ms: int | None
    ) -> None:
        self._producers = producers
        self._offset = offset
        self._leader_epoch = leader_epoch
        self._log_append_time_ms = log_append_time_ms
        self.placed: list[PlacedBatch] = []
        self.outcomes: list[AppendOutcome] = []

    def __repr__(self) -> str:
        return f"<LeaderRun of {self._producers.name} requests={len(self.outcomes)} next={self._offset}>"

    def add(self, batches: Sequence[RecordBatch], batch_bytes_max: int) -> None:
        """Places the batches of one request, unless it is refused or was appended before."""
        try:
            self.outcomes.append(self._duplicate(batches) or self._place(batches, batch_bytes_max))
        except ApiError as error:
            self.outcomes.append(error)

    def fail(self, error: StorageError) -> None:
        """The write has failed: nothing of it was appended."""
        self.placed.clear()
        self.outcomes = [
            error if isinstance(each, AppendInfo) and not each.is_duplicate else each
            for each in self.outcomes
        ]

    def _duplicate(self, batches: Sequence[RecordBatch]) -> AppendInfo | None:
        for batch in batches:
            known = self._producers.check(batch)
            if known is not None:
                return AppendInfo(
                    known.first_offset, known.last_offset, known.timestamp_ms, is_duplicate=True
                )
        return None

    def _place(self, batches: Sequence[RecordBatch], batch_bytes_max: int) -> AppendInfo:
        placed = placed_by_leader(batches, self._leader_epoch, self._offset, self._log_append_time_ms)
        check_sizes(self._producers.name, placed, batch_bytes_max)
        self.placed += placed
        first, last = placed[0].place, placed[-1].place
        self._offset = last.last_offset + 1
        return AppendInfo(
            first.base_offset, last.last_offset, max([each.place.max_timestamp_ms for each in placed])
        )
