"""What a consumer has fetched but not handed over yet, and its positions. Belongs to the application's thread.

Invariants: records are handed over once, in offset order per partition; a position moves with what was handed
over, at a batch's end to the batch's next offset and at a fetch's end to the broker's `next_offset`. Decoding
happens here, on the application's thread, so that the IO thread stays free. Kafka: CompletedFetch,
FetchCollector (G16).
"""

import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from itertools import chain, islice
from operator import length_hint
from typing import NamedTuple

import pyarrow as pa

from rayka.client.consumer.consumer_interceptors import ConsumerInterceptors
from rayka.client.consumer.fetch_buffer import Fetched
from rayka.client.consumer.record import (
    Deserializers,
    PoisonedRow,
    Record,
    arrow_of,
    records_of,
    rows_between,
)
from rayka.client.serializers import deserializer
from rayka.config import ConsumerConfig
from rayka.errors import CorruptRecord, SerializationError
from rayka.ids import NO_EPOCH, TopicPartition
from rayka.protocol.batch_decode import DecodedBatch, decode
from rayka.protocol.batch_header import RecordBatch, split_batches

_MERGED_ROWS = 10_000  # smaller batches are handed over together as one Arrow batch
_MERGED_BYTES = 64 << 10


class Position(NamedTuple):
    """Up to where a partition was handed over, in which generation of its positions, and the leader epoch of the record
    before it, if that is known.
    """

    offset: int
    generation: int
    leader_epoch: int = NO_EPOCH


class Delivery:
    """Fetched data on its way to the application."""

    def __init__(
        self, config: ConsumerConfig | None = None, end_offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Without `config`, as the options of a consumer are by default."""
        config = config or ConsumerConfig()
        self.interceptors = ConsumerInterceptors.of(config.interceptors)
        self._check_crcs = config.check_crcs
        key = deserializer(config.key_deserializer, "key_deserializer")
        self._deserializers = key, deserializer(config.value_deserializer, "value_deserializer")
        self._ends = end_offsets or {}
        self._fetched: deque[Fetched] = deque()
        self._read: dict[TopicPartition, Position] = {}  # without what the current batch adds
        self._current: _Current | None = None
        self._paused: dict[TopicPartition, deque[Fetched]] = {}  # with what is not handed over meanwhile

    def add(self, fetched: Sequence[Fetched]) -> None:
        """Takes what was fetched; the one method that is called on the IO thread."""
        if not self._paused:
            self._fetched.extend(fetched)
            return
        for each in fetched:
            self._paused.get(each.topic_partition, self._fetched).append(each)

    def pause(self, topic_partition: TopicPartition) -> None:
        """Hands nothing of the partition over, also by an iterator that is in use, until `resume`."""
        if topic_partition in self._paused:
            return
        current = self._current
        if current is not None and current.topic_partition == topic_partition:
            self._read[topic_partition] = self._read_with(current)
            self._fetched[0] = current.fetched  # to be begun again, at the position
            current.empty()
            self._current = None
        fetched, self._fetched = self._fetched, deque()
        self._paused[topic_partition] = deque()
        self.add(fetched)

    def resume(self, topic_partition: TopicPartition) -> None:
        """Hands over what was held back, and then the rest."""
        self._fetched.extend(self._paused.pop(topic_partition, ()))

    def paused(self) -> tuple[TopicPartition, ...]:
        """The partitions of which nothing is handed over."""
        return tuple(self._paused)

    def drop(self, topic_partition: TopicPartition) -> None:
        """Forgets what was fetched of a partition, and its position."""
        self._fetched = deque(each for each in self._fetched if each.topic_partition != topic_partition)
        if topic_partition in self._paused:
            self._paused[topic_partition] = deque()
        if self._current is not None and self._current.topic_partition == topic_partition:
            self._current.empty()
            self._current = None
        self._read.pop(topic_partition, None)

    def keep_only(self, partitions: Collection[TopicPartition]) -> None:
        """Forgets all other partitions."""
        waiting = dict.fromkeys(each.topic_partition for each in self._fetched)
        for tp in {**self._read, **waiting, **self._paused}:
            if tp not in partitions:
                self.drop(tp)
                self._paused.pop(tp, None)

    def end(self) -> None:
        """Nothing more is handed over, also not by an iterator that is in use. From any thread."""
        if (current := self._current) is not None:
            current.empty()

    def position(self, topic_partition: TopicPartition) -> int | None:
        """The offset after the last record handed over; None when nothing of the partition was yet."""
        at = self.read_up_to(topic_partition)
        return None if at is None else at.offset

    def next_offset(self, topic_partition: TopicPartition) -> int | None:
        """Where what waits to be handed over goes on; None when nothing of the partition waits."""
        current = self._current
        if current is not None and current.topic_partition == topic_partition and current.has_rows:
            return current.position()
        for fetched in chain(self._paused.get(topic_partition, ()), self._fetched):
            if fetched.topic_partition == topic_partition:
                read = self.read_up_to(topic_partition)
                is_next = read is not None and read.generation == fetched.generation
                return max(fetched.fetch_offset, read.offset) if read and is_next else fetched.fetch_offset
        return None

    def read_up_to(self, topic_partition: TopicPartition) -> Position | None:
        """What `position` is, and in which generation; None when nothing of the partition was handed over."""
        current = self._current
        if current is not None and current.topic_partition == topic_partition:
            return self._read_with(current)
        return self._read.get(topic_partition)

    def _read_with(self, current: "_Current") -> Position:
        before = self._read.get(current.topic_partition)
        epoch = NO_EPOCH if before is None else before.leader_epoch
        if current.is_begun():
            epoch = current.batch.batch.leader_epoch
        return Position(current.position(), current.fetched.generation, epoch)

    def read(self) -> dict[TopicPartition, Position]:
        """What is known of each partition: up to where it was handed over, or where what waits begins."""
        found = dict(self._read)
        if self._current is not None:
            found[self._current.topic_partition] = self._read_with(self._current)
        for fetched in (*chain.from_iterable(self._paused.values()), *self._fetched):
            at = found.get(fetched.topic_partition)
            if at is None or at.generation < fetched.generation:
                found[fetched.topic_partition] = Position(fetched.fetch_offset, fetched.generation)
        return found

    def next_records(self, count_max: int) -> list[Record]:
        """Up to count_max records as the interceptors leave them; empty when nothing is left."""
        interceptors = self.interceptors
        while records := self._stored_records(count_max):
            if interceptors is None or (records := interceptors.changed(records)):
                break
        return records

    def _stored_records(self, count_max: int) -> list[Record]:
        """In one piece as far as one batch has them."""
        records: list[Record] = []
        with self._raising_unless(records):
            while len(records) < count_max and self.has_records():
                assert self._current is not None
                records += islice(self._current.records(self._deserializers), count_max - len(records))
        return records

    def iterator(self) -> Iterator[Record] | None:
        """The rest of the current batch, or the next one, one record after another; None when nothing is left.

        Records that are not taken from it stay to be handed over. It ends when its partition is dropped.
        """
        if not self.has_records() or self._current is None:
            return None
        records = self._current.records(self._deserializers)
        return records if self.interceptors is None else self.interceptors.each_changed(records)

    def next_arrow(self, count_max: int = sys.maxsize) -> pa.RecordBatch | None:
        """The next batch, or its first count_max records; small ones are merged. None when nothing is left."""
        parts: list[pa.RecordBatch] = []
        rows, size_bytes = 0, 0
        with self._raising_unless(parts):
            while rows < min(_MERGED_ROWS, count_max) and size_bytes < _MERGED_BYTES and self.has_records():
                assert self._current is not None
                size_bytes += self._current.batch.batch.size_bytes
                part = self._current.take_arrow(count_max - rows)
                rows += part.num_rows
                parts.append(part)
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    @contextmanager
    def _raising_unless(self, taken: Sized) -> Iterator[None]:
        """An error waits for the next call while there is something to hand over: its batch, or record, stays there."""
        try:
            yield
        except (CorruptRecord, SerializationError):
            if not taken:
                raise

    # ---- From fetch to fetch, from batch to batch ------------------------------------------------------------------

    def has_records(self) -> bool:
        """Whether something is left to be handed over: `_current` is a batch with rows left then."""
        while self._current is None or self._current.is_empty():
            if self._current is not None:
                if self._current.go_on():
                    break
                self._finish(self._current)
            if not self._fetched:
                return False
            self._start(self._fetched[0])
        return True

    def _start(self, fetched: Fetched) -> None:
        """Decodes the next batch of a fetch, or ends the fetch."""
        tp = fetched.topic_partition
        at = self._read.get(tp)
        if at is None or at.generation != fetched.generation:  # the position was reset, perhaps backwards
            self._read.pop(tp, None)
            at = Position(fetched.fetch_offset, fetched.generation)
        start_offset = max(fetched.fetch_offset, at.offset)
        end_offset = self._ends.get(tp)
        remaining = fetched.buffers
        if not remaining or (end_offset is not None and start_offset >= end_offset):
            self._fetched.popleft()
            self._read[tp] = at._replace(offset=max(start_offset, fetched.next_offset))
            return
        batch = _first_batch(fetched)
        if batch.next_offset <= start_offset or batch.is_control:
            epoch = batch.leader_epoch if batch.is_control else at.leader_epoch
            self._read[tp] = Position(max(start_offset, batch.next_offset), fetched.generation, epoch)
        else:
            decoded = self._decode(tp, batch)
            self._current = _Current(fetched, decoded, rows_between(decoded, start_offset, end_offset))
        rest = remaining[0][batch.size_bytes :]
        self._fetched[0] = fetched._replace(buffers=(rest, *remaining[1:]) if rest.size else remaining[1:])

    def _decode(self, topic_partition: TopicPartition, batch: RecordBatch) -> DecodedBatch:
        """The batch's columns. A broken batch stays there, and is met again until the application seeks past it."""
        try:
            return decode(batch, check_crc=self._check_crcs)
        except CorruptRecord as error:
            hint = f"seek to {batch.next_offset} to go on behind it"
            raise CorruptRecord(f"{topic_partition}: {error}; {hint}") from error

    def _finish(self, current: "_Current") -> None:
        batch = current.batch.batch
        at = Position(batch.next_offset, current.fetched.generation, batch.leader_epoch)
        self._read[current.topic_partition] = at
        self._current = None


class _Current:
    """One decoded batch, of which rows from `_start` to `_stop` are to be handed over; `fetched` begins with it.

    They are all that are left, up to `_end`, or those before one that cannot be deserialized.
    """

    def __init__(self, fetched: Fetched, batch: DecodedBatch, rows: slice) -> None:
        self.topic_partition = fetched.topic_partition
        self.fetched = fetched
        self.batch = batch
        self._first: int = rows.start
        self._start: int = rows.start
        self._stop: int = rows.stop
        self._end: int = rows.stop
        self._records: list[Record] = []
        self._iterator: Iterator[Record] | None = None

    @property
    def has_rows(self) -> bool:
        """Whether any are left, those behind a record that cannot be deserialized included."""
        return self._first_row() < self._end

    def is_empty(self) -> bool:
        return self._first_row() == self._stop

    def is_begun(self) -> bool:
        return self._first_row() > self._first

    def position(self) -> int:
        row = self._first_row()
        return int(self.batch.offsets[row]) if row < self._end else self.batch.batch.next_offset

    def go_on(self) -> bool:
        """With the rows behind those that are handed over; False when there are none."""
        if self._stop == self._end:
            return False
        self._start, self._stop, self._iterator = self._stop, self._end, None
        return True

    def records(self, deserializers: Deserializers) -> Iterator[Record]:
        """The one iterator over the rest; what it has not given stays.

        It ends before a record that cannot be deserialized, which the next one raises: SerializationError.
        """
        while self._iterator is None:
            try:
                rows = slice(self._start, self._stop)
                self._records = records_of(self.batch, rows, self.topic_partition, deserializers)
            except PoisonedRow as poisoned:
                if poisoned.row == 0:
                    offset = int(self.batch.offsets[self._start])
                    # No name for the error: this frame would refer to it, and a consumer that is dropped would stay.
                    raise SerializationError.of_record(
                        self.topic_partition, offset, poisoned.error
                    ) from poisoned.error.__cause__
                self._stop = self._start + poisoned.row
            else:
                self._iterator = iter(self._records)
        return self._iterator

    def empty(self) -> None:
        """An iterator that is in use ends with the list under it: that costs nothing for each record."""
        self._records.clear()
        self._end = self._stop

    def take_arrow(self, count_max: int) -> pa.RecordBatch:
        """What is left, or the first count_max rows of that."""
        first = self._first_row()
        rows = slice(first, min(first + count_max, self._end))
        self._start, self._stop, self._iterator = rows.stop, self._end, None
        return arrow_of(self.batch, rows, self.topic_partition)

    def _first_row(self) -> int:
        return self._start if self._iterator is None else self._stop - length_hint(self._iterator)


def _first_batch(fetched: Fetched) -> RecordBatch:
    """The next batch. Its offset lies outside its CRC: a wrong one would move the position, and skip records in
    silence. Raises CorruptRecord.
    """
    expected = f"expected one with offsets of [{fetched.fetch_offset}, {fetched.next_offset})"
    hint = f"seek to {fetched.next_offset} to go on behind what was fetched with it"
    try:
        batch = next(split_batches(fetched.buffers[0]))
    except CorruptRecord as error:
        raise CorruptRecord(f"{fetched.topic_partition}: {error}; {expected}; {hint}") from error
    if not fetched.fetch_offset < batch.next_offset <= fetched.next_offset:
        behind = _offset_behind(fetched, batch.size_bytes)
        hint = hint if behind is None else f"seek to {behind} to go on behind it"
        raise CorruptRecord(f"{fetched.topic_partition}: {expected}, found {batch!r}; {hint}")
    return batch


def _offset_behind(fetched: Fetched, size_bytes: int) -> int | None:
    """Where the batch begins that stands behind the first, of which only the size is trusted; None when that is not
    known.
    """
    parts = [each for each in (fetched.buffers[0][size_bytes:], *fetched.buffers[1:]) if len(each)]
    try:
        following = next(split_batches(parts[0])) if parts else None
    except CorruptRecord:
        return None
    if following is None:
        return fetched.next_offset
    is_in_order = fetched.fetch_offset < following.base_offset < following.next_offset <= fetched.next_offset
    return following.base_offset if is_in_order else None
