"""Records of one partition on their way: gathered, sealed, encoded, acknowledged.

A batch gathers either records of `send`, each held by the future that its caller got, or columns of `send_batch`. The
IO thread seals a batch before it is sent: every record gets its index. Almost always the batch becomes one batch of the
log. A batch that grew too large, here or for the log, becomes several parts, sent one after the other, and each ends
for itself. Records that the log refuses leave the batch. When its partition is gone, its records are divided by key
among other batches, and their ends come back to it (`PartEnds`).

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
# Nothing is added to it: the batch is closed.
_GIVEN_AWAY: "list[DeliveryFuture]" = []
# Orders "it is done" and "call me when it is", for all batches.
_completion = io_thread.step_lock()


class BatchState(Enum):
    """The life of a batch. Its records are sealed from IN_FLIGHT or WAITING on."""

    FILLING = "filling"
    # Takes no more records.
    CLOSED = "closed"
    # A request has it.
    IN_FLIGHT = "in flight"
    # Waits for another try, or for its next part; or its partition went before it was sent.
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
    """Records of one partition, or of none yet.

    A producer of many partitions has thousands that wait, and every pass of Python's garbage collector goes over all
    containers in them: so a field has no list before it needs one, and none after the end.
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
        # At most what the batch takes when it is encoded.
        self.size_bytes = BATCH_OVERHEAD_BYTES
        # `send` may fill the batch so far without the lock.
        self.limit_bytes = NOT_OPEN
        self.records: list[DeliveryFuture] = [] if records is None else records
        # Some record has more than a value and a key.
        self.has_rows = False
        self.has_keys = False
        # Some record belongs to this partition and no other: the caller or the application's partitioner chose it.
        self.is_pinned = False
        # `send` may have `records` in hand without the lock.
        self.was_open = False
        # Of records in columns; of all, once sealed.
        self.count = 0
        # The records are fixed, and each has its index. Set before they are counted: see the module.
        self.is_sealed = False
        # A caller waits for the batch: it does not linger.
        self.is_urgent = False
        # No batch of the partition was before this one when it was sent last.
        self.went_first = False
        self.failure_count = 0
        self.last_error: RaykaError | None = None
        # Of the part that is next, once it was sent.
        self.sequence: ProducerSequence | None = None
        # Of the batches sent for the partition.
        self.number = 0
        self.error: Exception | None = None
        self.base_offset = NO_OFFSET
        self.log_append_time_ms = NO_TIMESTAMP
        self.stamped_ms = created_ms
        # The timestamp of records from here on.
        self.stamp_ms: int | None = None
        # The timestamps before it: where each ends, the timestamp, and so on.
        self._earlier_stamps: list[int] | None = None
        self._timestamps_ms: Timestamps = NO_TIMESTAMP
        self._chunks: list[Columns] | None = None
        # The records, from when they are sealed until they are encoded; and their keys, if one has a key.
        self._slots: list[Any] | None = None
        self._keys: list[bytes | None] | None = None
        self._callbacks: list[Callback] | None = None
        # The encoded parts that are not acknowledged.
        self._parts: Sequence[np.ndarray] = ()
        # The sequence in the first of them.
        self._encoded_as: ProducerSequence | None = None
        # None: the batch ends as one.
        self._ends: PartEnds | None = None
        # The batch that gave its records to this one and others, and the indexes that they have there.
        self._origin: tuple[ProducerBatch, np.ndarray] | None = None
        # Batches that have the records of this one and are not done; 0 unless it was divided.
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
        """Changes the state. Raises InvariantBroken where `LEGAL_CHANGES` has no such change."""
        if state not in LEGAL_CHANGES[self.state]:
            raise InvariantBroken(f"{self!r} cannot become {state.value!r}")
        self.state = state

    # ---- Gathering, under the lock ----

    def stamp(self, timestamp_ms: int, now_ms: float) -> None:
        """Gives records from here on this timestamp, unless they bring their own."""
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
        """Fixes the records and their order. By the IO thread only: a Ctrl-C in the middle would tear it.

        Returns the list that held them, empty, for the partition's next batch; None where `send` may have it in hand
        without the lock, or it was given before.
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
        records.clear()  # what an appender adds meanwhile goes into another batch
        if self.was_open:
            return None
        self.records = _GIVEN_AWAY
        return records

    # ---- Sending ----

    @property
    def left_count(self) -> int:
        """Records that are neither refused nor in a part that is over; only once it is sealed."""
        return self.count if self._ends is None else self._ends.left_count

    @property
    def part_count(self) -> int:
        """Records in the part that is next."""
        return self.left_count if len(self._parts) < 2 else RecordBatch(self._parts[0]).record_count

    @property
    def has_more_parts(self) -> bool:
        """Whether another part follows the one that is next."""
        return len(self._parts) > 1

    def encode(self, codec: Codec, size_bytes_max: int) -> np.ndarray:
        """The part that is next, as one batch of the log, encoded once.

        There are several if it grew beyond size_bytes_max: `send` from several threads at once may count too little.
        Raises SerializationError or RecordTooLarge.
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
        """The part that is next, of several records, becomes two or more, each at most half as large if it has more
        than one record; their records keep their sequences.
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
        """Gives the records that are left to new batches by their keys, one for each partition, because the partition
        of this one is gone. It is done when they are; a record's future stays with it.
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
        """The records that are left."""
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
        """A batch that has records of this one is done; returns the callbacks, if it was the last."""
        assert self._ends is not None
        self._ends.add(indexes, ends)
        self._successor_count -= 1
        return () if self._successor_count else self._finish()

    # ---- The end ----

    def refuse(self, errors: Mapping[int, Exception], codec: Codec) -> None:
        """The log refuses these records of the part that is next, by their numbers in it. Each ends with its error; the
        part goes again without them, under the sequence that the first of it had. `left_count` may be 0 then.
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
        # The sequences of later parts move up.
        self._encoded_as = None

    def end_part(self, end: PartEnd) -> None:
        """Ends the part that was next; another one is next now."""
        count = self.part_count
        self._ends = self._ends or PartEnds(self.count)
        self._ends.end_part(count, end)
        self._parts = self._parts[1:]
        if self.sequence is not None:
            self.sequence = self._encoded_as = self.sequence.after(count)

    def acknowledge(self, base_offset: int, log_append_time_ms: int) -> Sequence[Callback]:
        """The log has the records that are left; returns the callbacks."""
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        return self._finish()

    def fail(self, error: Exception) -> Sequence[Callback]:
        """The records that are left will never be sent again; returns the callbacks."""
        self.error = error
        return self._finish()

    def call_when_done(self, callback: Callback) -> bool:
        """Registers a callback for the end, to run on the IO thread; False when the end has come already."""
        with _completion:
            if self.state is DONE:
                return False
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)
            return True

    def failures(self, index: int, count: int) -> Iterator[tuple[np.ndarray, Exception]]:
        """By error, the indexes of records in [index, index + count) that were not acknowledged. Once the batch is
        done.
        """
        if self._ends is not None:
            yield from self._ends.failures(index, count)
        elif self.error is not None:
            yield np.arange(index, index + count), self.error

    def error_of(self, index: int, count: int = 1) -> Exception | None:
        """The first error of these records, once the batch is done."""
        if self._ends is None:  # then all ended as one; perhaps unsent, and they have no index
            return self.error
        return next((error for _, error in self._ends.failures(index, count)), None)

    def metadata_of(self, index: int) -> RecordMetadata:
        """Where the record is, once the batch was acknowledged."""
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
        """Partition, base offset and length of the runs that so many records from an index on make in the log."""
        if self._ends is not None:
            return self._ends.runs(index, count)
        return [(self.partition, offset_after(self.base_offset, index), count)]

    def _finish(self) -> Sequence[Callback]:
        """Ends the records that are left; returns the callbacks."""
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
    """The records of a part, as they were encoded."""
    decoded = decode(RecordBatch(part), check_crc=False)
    return Columns(decoded.values, decoded.keys, decoded.headers, decoded.timestamps_ms)


def _numbered(parts: Sequence[np.ndarray], sequence: ProducerSequence) -> list[np.ndarray]:
    """The parts of a batch with sequences that follow each other from this one on."""
    numbered = []
    for part in parts:
        numbered.append(with_sequence(part, sequence))
        sequence = sequence.after(RecordBatch(part).record_count)
    return numbered


def _each_timestamp(stamps: list[int]) -> Timestamps:
    """Of each record, from the index where each timestamp ends and the timestamp, in turn."""
    ends, timestamps_ms = stamps[::2], stamps[1::2]
    if len(ends) == ends[-1]:  # none shares its timestamp
        return array("q", timestamps_ms)
    lengths = [end - begin for begin, end in pairwise([0, *ends])]
    if ends[-1] < SHORT_LIST:
        return array("q", chain.from_iterable(map(repeat, timestamps_ms, lengths)))
    return np.repeat(np.array(timestamps_ms, np.int64), lengths)
