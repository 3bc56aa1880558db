"""A batch of records for one partition: gathered, sealed, encoded, acknowledged.

A batch gathers either records of `send`, each held by its caller's future, or columns of `send_batch`. The IO thread
seals a batch before the first send: every record gets its index. Almost always the batch becomes one batch of the log.
A batch that is too large, for its bound here or for the log, becomes several parts; the parts are sent one after
the other, and each part has its own result. Records that the log refuses leave the batch. When the partition is
deleted, the records are divided by key among other batches, and the results return to this batch (`PartEnds`).

`send` appends to an open batch without a lock, which one thread may do while another seals:
1. the appender appends its future, then looks whether the batch is sealed;
2. the sealer, under the lock, marks the batch sealed, then counts the futures, then puts each one's index in its slot;
3. so an appender that finds the batch sealed takes the lock, and the slot says whether the record was counted; if not,
   the record goes into another batch.
Kafka: ProducerBatch.
"""

import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain, islice, pairwise, repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from rayka.client import io_thread
from rayka.client.producer.acknowledgement import PartEnd, PartEnds, RecordMetadata, offset_after
from rayka.client.producer.record_columns import Columns, columns_of_rows, concatenated, encode_columns
from rayka.errors import InvariantBroken, RaykaError
from rayka.ids import NO_OFFSET, NO_TIMESTAMP, TopicPartition
from rayka.protocol.batch_columns import SHORT_LIST, Timestamps
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import with_sequence
from rayka.protocol.batch_format import NO_SEQUENCE, Codec, ProducerSequence, RecordBatch

if TYPE_CHECKING:
    from rayka.client.producer.delivery_future import DeliveryFuture

# Header, table of contents and the padding of at most ten columns.
BATCH_OVERHEAD_BYTES = 256
# A `limit_bytes` that sends every append through the lock.
NOT_OPEN = -1
Callback = Callable[[], object]
# The list of a sealed batch that gave its own list away; stays empty, because a sealed batch takes no record.
_GIVEN_AWAY: "list[DeliveryFuture]" = []
# Serializes the end of a batch with `call_when_done`, for all batches: no callback is lost.
_completion = io_thread.step_lock()


class BatchState(Enum):
    """The life of a batch. Its records are sealed from IN_FLIGHT or WAITING on."""

    FILLING = "filling"
    # Takes no more records.
    CLOSED = "closed"
    # A request has it.
    IN_FLIGHT = "in flight"
    # Waits for another try or for its next part, or was sealed unsent because its partition was deleted.
    WAITING = "waiting"
    # Other batches have its records.
    DIVIDED = "divided"
    DONE = "done"


FILLING, IN_FLIGHT, DONE = BatchState.FILLING, BatchState.IN_FLIGHT, BatchState.DONE
LEGAL_CHANGES: dict[BatchState, tuple[BatchState, ...]] = {
    BatchState.FILLING: (BatchState.CLOSED, BatchState.IN_FLIGHT, BatchState.WAITING, BatchState.DONE),
    BatchState.CLOSED: (BatchState.IN_FLIGHT, BatchState.WAITING, BatchState.DONE),
    BatchState.IN_FLIGHT: (BatchState.WAITING, BatchState.DONE),
    BatchState.WAITING: (BatchState.IN_FLIGHT, BatchState.DIVIDED, BatchState.DONE),
    BatchState.DIVIDED: (BatchState.DONE,),
    BatchState.DONE: (),
}


class ProducerBatch:
    """A batch of one partition, or of a partition not chosen yet.

    A producer with many partitions has thousands of waiting batches, and every pass of Python's garbage collector
    visits all their containers. So a field holds no list before the field needs one, and none after the end.
    """

    __slots__ = (
        "_callbacks", "_chunks", "_earlier_stamps", "_encoded_as", "_ends", "_keys", "_origin", "_parts", "_slots",
        "_successor_count", "_timestamps_ms", "base_offset", "count", "created_ms", "error",
        "failure_count", "granted_bytes", "has_keys", "has_rows", "is_pinned", "is_sealed", "is_urgent", "last_error",
        "limit_bytes", "log_append_time_ms", "number", "partition", "records", "sequence", "size_bytes", "stamp_ms",
        "stamped_ms", "state", "topic", "was_open", "went_first",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        partition: int,
        created_ms: float,
        records: "list[DeliveryFuture] | None" = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.created_ms = created_ms
        self.state = FILLING
        # Memory set aside for the batch.
        self.granted_bytes = 0
        # Upper bound of the encoded size.
        self.size_bytes = BATCH_OVERHEAD_BYTES
        # `send` may append without the lock while `size_bytes <= limit_bytes`.
        self.limit_bytes = NOT_OPEN
        self.records: list[DeliveryFuture] = [] if records is None else records
        # A record has headers or its own timestamp.
        self.has_rows = False
        self.has_keys = False
        # A record must stay in this partition: the caller or the application's partitioner chose the partition.
        self.is_pinned = False
        # A thread in `send` may hold `records` without the lock.
        self.was_open = False
        # Records in columns; once sealed, all records.
        self.count = 0
        # The records are fixed. Set before the records are counted, for appenders without the lock (module, step 2).
        self.is_sealed = False
        # A caller waits for the batch, so the batch does not linger.
        self.is_urgent = False
        # The batch was the first of its queue at its last send.
        self.went_first = False
        self.failure_count = 0
        self.last_error: RaykaError | None = None
        # Sequence of the first unfinished part; None before its first send.
        self.sequence: ProducerSequence | None = None
        # Position among the batches sent to the partition.
        self.number = 0
        self.error: Exception | None = None
        self.base_offset = NO_OFFSET
        self.log_append_time_ms = NO_TIMESTAMP
        self.stamped_ms = created_ms
        # Timestamp of the next records.
        self.stamp_ms: int | None = None
        # Earlier timestamps, as pairs in one flat list: index after the last record, timestamp.
        self._earlier_stamps: list[int] | None = None
        self._timestamps_ms: Timestamps = NO_TIMESTAMP
        self._chunks: list[Columns] | None = None
        # Values or `Row`s, and their keys if a record has one; from sealing until encoding.
        self._slots: list[Any] | None = None
        self._keys: list[bytes | None] | None = None
        self._callbacks: list[Callback] | None = None
        # The encoded parts without a result.
        self._parts: Sequence[np.ndarray] = ()
        # The sequence encoded in the first part.
        self._encoded_as: ProducerSequence | None = None
        # Results of parts; None: the batch has one result.
        self._ends: PartEnds | None = None
        # The divided batch that this batch got its records from, and the indexes of the records there.
        self._origin: tuple[ProducerBatch, np.ndarray] | None = None
        # Unfinished batches that hold records of this divided batch; 0 unless the batch was divided.
        self._successor_count = 0

    def __repr__(self) -> str:
        return f"<ProducerBatch {self.topic_partition} {self.state.value} records={len(self)} bytes={self.size_bytes}>"

    def __len__(self) -> int:
        return self.count or len(self.records)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def records_text(self) -> str:
        """`1 record for orders-0`."""
        return f"{len(self):,} record{'s' * (len(self) != 1)} for {self.topic_partition}"

    @property
    def is_done(self) -> bool:
        """Whether the batch was acknowledged or has failed for good."""
        return self.state is DONE

    def become(self, state: BatchState) -> None:
        """Changes the state. Raises InvariantBroken for a change that is not in `LEGAL_CHANGES`."""
        if state not in LEGAL_CHANGES[self.state]:
            raise InvariantBroken(f"{self!r} cannot become {state.value!r}")
        self.state = state

    # ---- Gathering, under the lock ----

    def stamp(self, timestamp_ms: int, now_ms: float) -> None:
        """Sets the timestamp of the next records; a record with its own timestamp keeps it."""
        if self.stamp_ms is not None and self.stamp_ms != timestamp_ms:
            if self._earlier_stamps is None:
                self._earlier_stamps = []
            self._earlier_stamps += (len(self.records), self.stamp_ms)
        self.stamp_ms = timestamp_ms
        self.stamped_ms = now_ms

    def add_columns(self, columns: Columns, size_bytes: int) -> int:
        """Appends Arrow columns; returns the index of their first record."""
        self.size_bytes += size_bytes
        if self._chunks is None:
            self._chunks = []
        self._chunks.append(columns)
        self.has_keys |= columns.keys is not None
        index, self.count = self.count, self.count + len(columns.values)
        return index

    def close(self) -> None:
        """Takes no more records."""
        self.limit_bytes = NOT_OPEN
        if self.state is FILLING:
            self.state = BatchState.CLOSED

    def seal(self) -> "list[DeliveryFuture] | None":
        """Fixes the records and their order. Only the IO thread seals: a Ctrl-C could stop another thread half way.

        Returns the emptied list of records for the partition's next batch. Returns None if a thread in `send` may hold
        the list without the lock, if the batch has columns, or if the batch was sealed before.
        """
        if self.is_sealed:
            return None
        self.limit_bytes = NOT_OPEN
        self.is_sealed = True
        if self.count:
            return None
        records = self.records
        self.count = count = len(records)
        self._slots = [each.slot for each in islice(records, count)]
        if self.has_keys:
            self._keys = [each.key for each in islice(records, count)]
        for index, each in zip(range(count), records, strict=False):
            each.slot = index
            each.key = None
        # An appender without the lock may have added an uncounted record; `send` puts that record into another batch.
        records.clear()
        if self.was_open:
            return None
        self.records = _GIVEN_AWAY
        return records

    # ---- Sending ----

    @property
    def left_count(self) -> int:
        """Number of records without a result, of a sealed batch."""
        return self.count if self._ends is None else self._ends.left_count

    @property
    def part_count(self) -> int:
        """Number of records in the first unfinished part."""
        return self.left_count if len(self._parts) < 2 else RecordBatch(self._parts[0]).record_count

    @property
    def has_more_parts(self) -> bool:
        """Whether the batch has unfinished parts after the first unfinished one."""
        return len(self._parts) > 1

    def encode(self, codec: Codec, size_bytes_max: int) -> np.ndarray:
        """Returns the first unfinished part as one batch of the log. Encodes the records once, at the first call.

        Makes several parts if the batch exceeds `size_bytes_max`: `send` in several threads at once may count too few
        bytes. Raises SerializationError or RecordTooLarge.
        """
        sequence = self.sequence or NO_SEQUENCE
        if not self._parts:
            if not self.is_sealed:
                raise InvariantBroken(f"{self!r} can still grow")
            columns = self._columns_left()
            self._chunks = self._slots = self._keys = None
            self._parts = encode_columns(columns, codec, size_bytes_max, sequence)
        elif self._encoded_as != sequence:
            self._parts = _numbered(self._parts, sequence)
        self._encoded_as = sequence
        return self._parts[0]

    def split(self, codec: Codec) -> None:
        """Splits the first unfinished part, of several records, into two or more; records keep their sequences.

        A new part of more than one record is at most half as large as the old part.
        """
        part, count = self._parts[0], self.part_count
        if count < 2:
            raise InvariantBroken(f"{self!r} has nothing to split")
        columns = _columns_in(part)
        sequence = self.sequence or NO_SEQUENCE
        smaller: list[np.ndarray] = []
        for begin, end in pairwise((0, count // 2, count)):
            piece = columns.slice(begin, end)
            smaller += encode_columns(piece, codec, part.size // 2, sequence.after(begin))
        self._parts = [*smaller, *self._parts[1:]]

    def divide(self, partition_of: "Callable[[bytes | None], int]") -> "list[ProducerBatch]":
        """Moves the remaining records to new batches by key, one batch per partition, because this batch's partition
        was deleted. This batch is done when the new batches are; futures stay with this batch.
        """
        columns = self._columns_left()
        keys = [None] * len(columns.values) if columns.keys is None else columns.keys
        listed = keys if isinstance(keys, list) else keys.to_pylist()
        partitions = np.fromiter(map(partition_of, listed), np.int64)
        self._ends = self._ends or PartEnds(self.count)
        left = self._ends.take_left()
        record_bytes = (self.size_bytes - BATCH_OVERHEAD_BYTES) // len(left) + 1
        made = []
        for partition in np.unique(partitions).tolist():
            rows = np.flatnonzero(partitions == partition)
            each = ProducerBatch(self.topic, partition, self.created_ms)
            each.add_columns(columns.take(rows), record_bytes * len(rows))
            each.failure_count, each.last_error = self.failure_count, self.last_error
            each._origin = self, left[rows]
            each.close()
            made.append(each)
        self._successor_count = len(made)
        self.become(BatchState.DIVIDED)
        self._parts, self._chunks, self._slots, self._keys = (), None, None, None
        return made

    def _columns_left(self) -> Columns:
        """The records without a result, as columns."""
        if self._parts:
            return concatenated([_columns_in(each) for each in self._parts])
        if self._slots is None:
            columns = concatenated(self._chunks or ())
        else:
            timestamps_ms: Timestamps | None = self.stamp_ms
            if self._earlier_stamps is not None:
                assert self.stamp_ms is not None
                timestamps_ms = _each_timestamp([*self._earlier_stamps, len(self._slots), self.stamp_ms])
            if self.has_rows:
                columns = columns_of_rows(self._slots, self._keys, timestamps_ms)
            else:
                assert timestamps_ms is not None
                columns = Columns(self._slots, self._keys, None, timestamps_ms)
        self._timestamps_ms = columns.timestamps_ms
        return columns

    def _on_successor_end(self, ends: PartEnds, indexes: np.ndarray) -> Sequence[Callback]:
        """Takes the results of a finished batch that held records of this one. Returns the callbacks of this batch if
        that batch was the last one.
        """
        assert self._ends is not None
        self._ends.add(indexes, ends)
        self._successor_count -= 1
        return () if self._successor_count else self._finish()

    # ---- The end ----

    def refuse(self, errors: Mapping[int, Exception], codec: Codec) -> None:
        """Fails records that the log refused, by their numbers in the first unfinished part, and removes them.

        The rest of the part keeps the sequence of the part's first record. `left_count` may be 0 afterwards.
        """
        part, count = self._parts[0], self.part_count
        self._ends = self._ends or PartEnds(self.count)
        self._ends.refuse(errors)
        is_kept = np.ones(count, bool)
        is_kept[list(errors)] = False
        rest: Sequence[np.ndarray] = ()
        if is_kept.any():
            columns = _columns_in(part).take(np.flatnonzero(is_kept))
            rest = encode_columns(columns, codec, sys.maxsize)
        self._parts = [*rest, *self._parts[1:]]
        # The sequences of later parts change: `encode` must write them again.
        self._encoded_as = None

    def end_part(self, end: PartEnd) -> None:
        """Records the result of the first unfinished part and removes it."""
        count = self.part_count
        self._ends = self._ends or PartEnds(self.count)
        self._ends.end_part(count, end)
        self._parts = self._parts[1:]
        if self.sequence is not None:
            self.sequence = self._encoded_as = self.sequence.after(count)

    def acknowledge(self, base_offset: int, log_append_time_ms: int) -> Sequence[Callback]:
        """Ends the batch: the log has the remaining records. Returns the callbacks."""
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        return self._finish()

    def fail(self, error: Exception) -> Sequence[Callback]:
        """Ends the batch: the remaining records will not be sent again. Returns the callbacks."""
        self.error = error
        return self._finish()

    def call_when_done(self, callback: Callback) -> bool:
        """Registers a callback for the end, which runs on the IO thread; False if the batch is done already."""
        with _completion:
            if self.state is DONE:
                return False
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)
            return True

    def failures(self, index: int, count: int) -> Iterator[tuple[np.ndarray, Exception]]:
        """Yields the indexes of unacknowledged records in [index, index + count), by error; of a finished batch."""
        if self._ends is not None:
            yield from self._ends.failures(index, count)
        elif self.error is not None:
            yield np.arange(index, index + count), self.error

    def error_of(self, index: int, count: int = 1) -> Exception | None:
        """The first error of these records, of a finished batch."""
        # One result for all records. The batch may have failed unsent: then `index` is no index yet.
        if self._ends is None:
            return self.error
        return next((error for _, error in self._ends.failures(index, count)), None)

    def metadata_of(self, index: int) -> RecordMetadata:
        """The position of the record in the log, of an acknowledged batch."""
        before_count, end = index, self._last_end()
        if self._ends is not None:
            before_count, end = self._ends.end_of(index)
        timestamp_ms, stamps = end.log_append_time_ms, self._timestamps_ms
        if timestamp_ms == NO_TIMESTAMP:
            timestamp_ms = stamps if isinstance(stamps, int) else int(stamps[index])
        return RecordMetadata(
            self.topic, end.partition, offset_after(end.base_offset, before_count), timestamp_ms
        )

    def runs(self, index: int, count: int) -> list[tuple[int, int, int]]:
        """Partition, base offset and length of each run in the log of the records [index, index + count)."""
        if self._ends is not None:
            return self._ends.runs(index, count)
        return [(self.partition, offset_after(self.base_offset, index), count)]

    def _finish(self) -> Sequence[Callback]:
        """Ends the remaining records; returns the callbacks."""
        self._parts, self._chunks, self._slots, self._keys, self._earlier_stamps = (), None, None, None, None
        if self._ends is not None:
            self._ends.last = self._last_end()
        with _completion:
            self.become(DONE)
            callbacks, self._callbacks = self._callbacks, None
        if self._origin is None:
            return callbacks or ()
        (origin, indexes), self._origin = self._origin, None
        ends = self._ends
        if ends is None:
            ends = PartEnds(len(indexes))
            ends.last = self._last_end()
        return [*origin._on_successor_end(ends, indexes), *(callbacks or ())]

    def _last_end(self) -> PartEnd:
        return PartEnd(self.partition, self.base_offset, self.log_append_time_ms, self.error)


def _columns_in(part: np.ndarray) -> Columns:
    """Decodes the records of an encoded part."""
    decoded = decode(RecordBatch(part), check_crc=False)
    return Columns(decoded.values, decoded.keys, decoded.headers, decoded.timestamps_ms)


def _numbered(parts: Sequence[np.ndarray], sequence: ProducerSequence) -> list[np.ndarray]:
    """Writes consecutive sequences into the parts, beginning with `sequence`."""
    numbered = []
    for part in parts:
        numbered.append(with_sequence(part, sequence))
        sequence = sequence.after(RecordBatch(part).record_count)
    return numbered


def _each_timestamp(stamps: list[int]) -> Timestamps:
    """Expands pairs of (index after the last record, timestamp) to one timestamp per record."""
    ends, timestamps_ms = stamps[::2], stamps[1::2]
    # Every record has its own timestamp.
    if len(ends) == ends[-1]:
        return array("q", timestamps_ms)
    lengths = [end - begin for begin, end in pairwise([0, *ends])]
    if ends[-1] < SHORT_LIST:
        return array("q", chain.from_iterable(map(repeat, timestamps_ms, lengths)))
    return np.repeat(np.array(timestamps_ms, np.int64), lengths)
