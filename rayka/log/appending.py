"""Appends of one log: offsets and epochs of batches, rolls of the active segment, and the write itself (B18, F10).

Every batch gets its place before anything is written, so a batch that cannot be appended changes nothing.

Invariants:
- The requests of producers are appended in their order. An error of one request is the outcome of that request; the
  others are appended as if it had not come.
- A batch of a producer is checked when everything that this producer sent before is in the log (C3-C5).
- An append is split between two batches only where a segment would outgrow its size.
- A segment is rolled at the log end offset, so a gap between two batches lies within one segment (`damage`).
- An epoch is in the cache before its first record is in the file (B20).
- The state of a producer changes when its batch is written.

Kafka: `UnifiedLog.append`, which takes one request, `LogSegment.shouldRoll`, `RollParams`.
"""

from collections.abc import Sequence
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
    """Where the batches of one request are in the log."""

    first_offset: int
    # Inclusive.
    last_offset: int
    max_timestamp_ms: int
    # The batch was appended by an earlier request; the offsets and the timestamp are those of that append (C3).
    is_duplicate: bool = False


AppendOutcome = AppendInfo | ApiError | StorageError


class PlacedBatch(NamedTuple):
    """A batch with its offsets and its epoch, ready to be written."""

    batch: RecordBatch
    # Joined they are the bytes of the batch in the file.
    buffers: Sequence[Buffer]
    leader_epoch: int
    size_bytes: int
    base_offset: int
    # Inclusive.
    last_offset: int
    max_timestamp_ms: int


# ---- Places: offsets and epochs of batches -----------------------------------------------------------------------


def runs_without_repeats(requests: Sequence[Sequence[RecordBatch]]) -> list[Sequence[Sequence[RecordBatch]]]:
    """Splits requests into runs that may be written together, because no producer has two requests in one run.

    A request with a producer id has one batch (C1).
    """
    runs: list[Sequence[Sequence[RecordBatch]]] = []
    begin, producer_ids = 0, dict[int, None]()
    for number, batches in enumerate(requests):
        producer_id = batches[0].producer_id
        if producer_id in producer_ids:
            runs.append(requests[begin:number])
            begin, producer_ids = number, {}
        if producer_id != NO_PRODUCER_ID:
            producer_ids[producer_id] = None
    if begin < len(requests):
        runs.append(requests[begin:])
    return runs


class LeaderRun:
    """The requests of producers that a leader writes together."""

    def __init__(
        self, producers: ProducerStates, offset: int, leader_epoch: int, log_append_time_ms: int | None
    ) -> None:
        self._producers = producers
        # The offset of the next record: the log end offset and the records placed so far.
        self._offset = offset
        self._leader_epoch = leader_epoch
        self._log_append_time_ms = log_append_time_ms
        # The batches to write, without gaps between their offsets.
        self.placed: list[PlacedBatch] = []
        # One for each request added.
        self.outcomes: list[AppendOutcome] = []

    def add(self, batches: Sequence[RecordBatch], batch_bytes_max: int) -> None:
        """Places the batches of one request, unless a batch is refused or was appended before."""
        try:
            self.outcomes.append(self._place(batches, batch_bytes_max))
        except ApiError as error:
            self.outcomes.append(error)

    def _place(self, batches: Sequence[RecordBatch], batch_bytes_max: int) -> AppendInfo:
        name, append_time_ms = self._producers.name, self._log_append_time_ms
        for batch in batches:
            known = self._producers.check(batch)
            if known is not None:
                return AppendInfo(
                    known.first_offset, known.last_offset, known.timestamp_ms, is_duplicate=True
                )
        placed: list[PlacedBatch] = []
        offset = self._offset
        for batch in batches:
            size_bytes = batch.size_bytes
            if size_bytes > batch_bytes_max:
                raise RecordBatchTooLarge(
                    f"{name}: a batch of {size_bytes} bytes is larger than segment.bytes, {batch_bytes_max}"
                )
            buffers = batch.stamped(
                base_offset=offset, leader_epoch=self._leader_epoch, log_append_time_ms=append_time_ms
            )
            last_offset = offset + batch.last_offset_delta
            timestamp_ms = batch.max_timestamp_ms if append_time_ms is None else append_time_ms
            placed.append(
                PlacedBatch(batch, buffers, self._leader_epoch, size_bytes, offset, last_offset, timestamp_ms)
            )
            offset = last_offset + 1
        first_offset, self._offset = self._offset, offset
        self.placed += placed
        return AppendInfo(first_offset, offset - 1, max([each.max_timestamp_ms for each in placed]))

    def fail(self, error: StorageError) -> None:
        """Makes the error the outcome of each request that was placed, because the write failed."""
        self.placed.clear()
        self.outcomes = [
            error if isinstance(each, AppendInfo) and not each.is_duplicate else each
            for each in self.outcomes
        ]


def placed_by_follower(name: str, batches: Sequence[RecordBatch], offset: int) -> list[PlacedBatch]:
    """Places batches of a leader by their own offsets and epochs, the first at `offset` or later.

    Raises CorruptRecord when offsets go back (B18).
    """
    placed = []
    for batch in batches:
        if batch.base_offset < offset:
            raise CorruptRecord(f"{name}: expected offset {offset} or later, found {batch!r}")
        offset = batch.next_offset
        placed.append(
            PlacedBatch(
                batch, (batch.view,), batch.leader_epoch, batch.size_bytes, batch.base_offset, offset - 1,
                batch.max_timestamp_ms,
            )
        )  # fmt: skip
    return placed


# ---- The write ---------------------------------------------------------------------------------------------------


class Appender:
    """Writes placed batches into the active segment of one log, and rolls the segment when one of its limits is
    reached.
    """

    def __init__(
        self, files: LogFiles, segments: Segments, epochs: LeaderEpochCache, snapshots: ProducerSnapshots
    ) -> None:
        self._files = files
        self._segments = segments
        self._epochs = epochs
        self._snapshots = snapshots
        self._producers = snapshots.states

    def append(self, placed: Sequence[PlacedBatch], config: TopicConfig, now_ms: int) -> None:
        """Writes the batches, almost always in one write. Raises StorageError when the disk fails."""
        if not placed:
            raise InvariantBroken("an append has at least one batch")
        if self._files.are_awaited:
            self.make_files()
        segments, epochs = self._segments, self._epochs
        for run in _runs(placed, config.segment_bytes, segments.active.next_offset):
            if self._should_roll(run, config, now_ms):
                # A gap so wide that it does not fit into a segment is left out; F10 leaves out every gap.
                end_offset = segments.active.next_offset
                fits = run[-1].last_offset - end_offset <= MAX_RELATIVE_OFFSET
                self.roll(end_offset if fits else run[0].base_offset, config, now_ms)
            # An epoch without records is harmless, a record without its epoch is not (B20).
            for each in run:
                if each.leader_epoch > epochs.latest_epoch:
                    epochs.assign(each.leader_epoch, each.base_offset)
            active, positions = segments.active, []
            position = active.size_bytes
            for each in run:
                positions.append(
                    BatchPosition(
                        position, each.size_bytes, each.base_offset, each.last_offset, each.max_timestamp_ms
                    )
                )
                position += each.size_bytes
            active.append([buffer for each in run for buffer in each.buffers], positions)
            for each in run:
                self._producers.on_appended(each.batch, each.base_offset, now_ms, each.max_timestamp_ms)

    def make_files(self) -> None:
        """Makes the files of a log that has none. A crash half way leaves a directory without records, which loses
        nothing.
        """
        if self._files.are_awaited:
            self._files.make()
            start_offset = self._segments.active.base_offset
            self._files.write(raised_log_start(start_offset) if start_offset else {})
            self._epochs.write()
            self._segments.active.file.create()

    def roll(self, offset: int, config: TopicConfig, now_ms: int) -> None:
        """Seals the active segment and begins another at the offset, beside a snapshot of the producers (C9)."""
        self._segments.roll(offset, config, now_ms)
        self._snapshots.take(offset)

    def _should_roll(self, run: Sequence[PlacedBatch], config: TopicConfig, now_ms: int) -> bool:
        """Whether F10 asks for another segment before these batches."""
        active = self._segments.active
        if run[-1].last_offset - active.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if active.size_bytes == 0:
            return False
        if active.size_bytes + sum([each.size_bytes for each in run]) > config.segment_bytes:
            return True
        if active.indexes.are_full(config.segment_index_bytes):
            return True
        first_ms, last_ms = active.first_timestamp_ms, max([each.max_timestamp_ms for each in run])
        has_times = NO_TIMESTAMP not in (first_ms, last_ms)
        age_ms = last_ms - first_ms if has_times else now_ms - active.created_ms
        segment_ms = config.segment_ms_max
        jitter_ms = min(config.segment_jitter_ms, segment_ms)
        if jitter_ms:
            # Segments roll at different times, each at the same time whenever it is asked.
            segment_ms -= crc32(active.path.encode()) % jitter_ms
        return age_ms > segment_ms


def _runs(placed: Sequence[PlacedBatch], segment_bytes: int, end_offset: int) -> list[Sequence[PlacedBatch]]:
    """Splits batches into runs of which each fits into a segment, the first one behind `end_offset`."""
    runs: list[Sequence[PlacedBatch]] = []
    begin, run_bytes = 0, 0
    for number, each in enumerate(placed):
        is_far = each.last_offset - end_offset > MAX_RELATIVE_OFFSET
        if number > begin and (is_far or run_bytes + each.size_bytes > segment_bytes):
            runs.append(placed[begin:number])
            begin, run_bytes, end_offset = number, 0, placed[number - 1].last_offset + 1
        run_bytes += each.size_bytes
    runs.append(placed[begin:])
    return runs
