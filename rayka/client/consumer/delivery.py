"""The records that were fetched and not handed over yet, and the positions of a consumer. Belongs to the application's
thread, where records are decoded, so that the IO thread stays free.

Invariants: records are handed over once, in offset order per partition; a position moves with the records that are
handed over, at a batch's end to the batch's next offset, at a fetch's end to the broker's `next_offset`; interceptors
change the records that are given, and never a position. Kafka: CompletedFetch, FetchCollector, ConsumerInterceptors
(G16).

A signal may end any step here by an exception: Ctrl-C between two lines, in a deserializer, in an interceptor.
1. `begin` opens a `DeliveryAttempt`. Before records of a fetch are taken, the attempt notes the fetch, and the position
   of its partition.
2. The last step of the caller marks the attempt as handed: a plain store, after which nothing can be interrupted.
3. The next call puts an unmarked attempt back: its fetches come first again, and positions are as noted.
So no exception handler has to run. A step that is interrupted and repeated may leave a fetch here twice, and never
loses one: records are known by their offsets, and the second fetch is passed over.
"""

import inspect
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from itertools import chain, islice
from operator import length_hint
from typing import Any, NamedTuple, Self

import pyarrow as pa

from rayka.client.consumer.fetch_buffer import Fetched, FetchQueue, key_of
from rayka.client.consumer.record import (
    Deserializers,
    PoisonedRow,
    Record,
    arrow_of,
    records_of,
    rows_between,
)
from rayka.client.interception import Interceptors, hooks_of
from rayka.client.serializers import deserializer
from rayka.config.client_config import ConsumerConfig
from rayka.errors import ConfigError, CorruptRecord, InvariantBroken, SerializationError
from rayka.ids import NO_EPOCH, TopicPartition
from rayka.protocol.batch_decode import DecodedBatch, decode
from rayka.protocol.batch_format import RecordBatch, split_batches


class ConsumerInterceptors(Interceptors[list[Record]]):
    """The application's hooks: objects with `on_consume(records)`, before records are given, `on_commit(offsets)`,
    after offsets are committed, or both. An exception of a hook is logged, and the records go on as they were.
    """

    names = ("on_consume", "on_commit")

    @classmethod
    def of(cls, given: Any) -> Self | None:
        """As `Interceptors.of`. Raises ConfigError for an `on_consume` that is a coroutine function, too: a task that
        is cancelled while it awaits one would lose the records.
        """
        interceptors = super().of(given)
        for hook in hooks_of(given, "on_consume"):
            if inspect.iscoroutinefunction(hook):
                raise ConfigError(f"interceptors: expected an on_consume that is not async, found {hook!r}")
        return interceptors

    @staticmethod
    def check(returned: Any) -> list[Record]:
        if not isinstance(returned, list) or not all(isinstance(each, Record) for each in returned):
            found = type(returned).__name__ if not isinstance(returned, list) else "other things in it"
            raise TypeError(f"expected on_consume to return a list of records, found {found}")
        return returned


# Smaller batches are merged into one Arrow batch.
_MERGED_ROWS = 10_000
_MERGED_BYTES = 64 << 10


class Position(NamedTuple):
    """The position of a partition: the offset of the next record to hand over."""

    offset: int
    # The `position_version` of the fetches that the position belongs to.
    position_version: int
    # The epoch of the record before, if known.
    leader_epoch: int = NO_EPOCH


class DeliveryAttempt:
    """The records that one `poll`, or one step of a loop, takes. They are the application's once `is_handed`."""

    __slots__ = ("fetches", "held", "is_handed", "made", "marks", "thread")

    def __init__(
        self,
        made: "list[Record]",
        held: "tuple[DeliveryAttempt, ...]" = (),
        thread: int | None = None,
        *,
        is_handed: bool = False,
    ) -> None:
        # Records that interceptors had made before this attempt, and that were not given.
        self.made = made
        # The attempts that took the records from which `made` was made.
        self.held = held
        # The thread that asks.
        self.thread = thread
        # The position of each partition before anything of it was taken.
        self.marks: dict[TopicPartition, Position] = {}
        # The fetches that were taken from, as they were before, in their order.
        self.fetches: dict[tuple[Any, ...], Fetched] = {}
        self.is_handed = is_handed

    def note(self, fetched: Fetched, at: Position) -> None:
        """Notes a fetch, and the position, before a record of it is taken. Later calls for the fetch change nothing."""
        self.marks.setdefault(fetched.topic_partition, at)
        self.fetches.setdefault(key_of(fetched), fetched)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Drops the notes of a partition whose position was changed since."""
        self.marks.pop(topic_partition, None)
        self.fetches = {key: each for key, each in self.fetches.items() if key[0] != topic_partition}


class Delivery:
    """Fetched data on its way to the application."""

    def __init__(
        self, config: ConsumerConfig | None = None, end_offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """`end_offsets` bound the partitions that they name. Without `config` the options have their defaults."""
        config = config or ConsumerConfig()
        self.interceptors = ConsumerInterceptors.of(config.interceptors)
        self._check_crcs = config.check_crcs
        key = deserializer(config.key_deserializer, "key_deserializer")
        self._deserializers = key, deserializer(config.value_deserializer, "value_deserializer")
        self._ends = end_offsets or {}
        self._fetches = FetchQueue()
        # The positions at the beginning of the current batch.
        self._read: dict[TopicPartition, Position] = {}
        # The first batch of the first fetch, decoded. Forgetting it loses nothing but the position within it.
        self._current: _Current | None = None
        # Records that interceptors have made, and that were not given yet.
        self._made: list[Record] = []
        self.attempt = DeliveryAttempt(self._made, is_handed=True)

    def add(self, fetched: Sequence[Fetched]) -> None:
        """Takes fetches. The only method that the IO thread calls, even after an interrupted poll."""
        self._fetches.add(fetched)

    # ---- Attempts --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begins a new `attempt`. By asking, the application says that it has processed the records given before."""
        self._settle()
        last, current = self.attempt, self._current
        held = tuple(each for each in (*last.held, last) if each.marks) if self._made else ()
        if current is not None:
            current.looped_from = None
        self.attempt = DeliveryAttempt(self._made, held, threading.get_ident())

    def take_back(self) -> None:
        """Counts the records that the last attempt has given as not given."""
        current = self._current
        if current is not None and current.has_looped():
            self._read[current.topic_partition] = self._read_with(current, -1)
            self._forget_current()
        self._put_back(self.attempt)

    def _settle(self) -> None:
        if not self.attempt.is_handed:
            self._put_back(self.attempt)

    def _put_back(self, attempt: DeliveryAttempt) -> None:
        """Puts back the records that the attempt has taken. After an interruption the next call repeats it."""
        self._fetches.put_back(attempt.fetches)
        self._read.update(attempt.marks)
        if attempt.marks:
            self._forget_current()
        self._made = attempt.made
        self.attempt = DeliveryAttempt(attempt.made, attempt.held, attempt.thread)

    def _given_in_part(self) -> tuple[DeliveryAttempt, ...]:
        """The attempts whose records are not all given, the oldest first. No position has moved past them."""
        attempt = self.attempt
        return () if attempt.is_handed and not self._made else (*attempt.held, attempt)

    # ---- Partitions ------------------------------------------------------------------------------------------------

    def pause(self, topic_partition: TopicPartition) -> None:
        """Hands over no record of the partition, also by an iterator that is in use, until `resume`."""
        self._settle()
        self._fetches.take_in()
        if topic_partition in self._fetches.paused:
            return
        current = self._current
        if current is not None and current.topic_partition == topic_partition:
            if current.has_looped():
                # `take_back` needs the position before the record that the loop has in hand.
                self.attempt.note(current.fetched, self._read_with(current, -1))
            self._read[topic_partition] = self._read_with(current)
            self._forget_current()
        self._fetches.pause(topic_partition)

    def resume(self, topic_partition: TopicPartition) -> None:
        """Hands over the partition's records again."""
        self._settle()
        self._fetches.take_in()
        self._fetches.resume(topic_partition)

    def paused(self) -> tuple[TopicPartition, ...]:
        """The partitions that are paused."""
        return tuple(self._fetches.paused)

    def drop(self, topic_partition: TopicPartition) -> None:
        """Forgets the fetches and the position of a partition."""
        self._settle()
        self._fetches.take_in()
        if self._current is not None and self._current.topic_partition == topic_partition:
            self._forget_current()
        self._fetches.drop(topic_partition)
        self._read.pop(topic_partition, None)
        for attempt in (*self.attempt.held, self.attempt):
            attempt.forget(topic_partition)
        is_of_others = any(each.marks for each in (*self.attempt.held, self.attempt))
        self._made = [each for each in self._made if is_of_others and _partition_of(each) != topic_partition]

    def keep_only(self, partitions: Collection[TopicPartition]) -> None:
        """Forgets all other partitions."""
        self._settle()
        self._fetches.take_in()
        waiting = dict.fromkeys(each.topic_partition for each in self._fetches.waiting())
        for tp in {**self._read, **waiting, **self._fetches.paused}:
            if tp not in partitions:
                self.drop(tp)
                self._fetches.paused.pop(tp, None)

    def _forget_current(self) -> None:
        if self._current is not None:
            self._current.empty()
            self._current = None

    def end(self) -> None:
        """Ends an iterator that is in use. From any thread."""
        if (current := self._current) is not None:
            current.empty()

    def position(self, topic_partition: TopicPartition) -> int | None:
        """The offset after the last record that was handed over; None before the first."""
        at = self.read_up_to(topic_partition)
        return None if at is None else at.offset

    def next_offset(self, topic_partition: TopicPartition) -> int | None:
        """The offset of the next record that waits to be handed over; None when no record of the partition waits."""
        for attempt in self._given_in_part():
            if topic_partition in attempt.marks:
                return attempt.marks[topic_partition].offset
        current = self._current
        if current is not None and current.topic_partition == topic_partition and current.has_rows:
            return current.position()
        for fetched in self._fetches.waiting():
            if fetched.topic_partition == topic_partition:
                read = self.read_up_to(topic_partition)
                is_next = read is not None and read.position_version == fetched.position_version
                return max(fetched.fetch_offset, read.offset) if read and is_next else fetched.fetch_offset
        return None

    def read_up_to(self, topic_partition: TopicPartition) -> Position | None:
        """As `position`, with the position version and the epoch."""
        for attempt in self._given_in_part():
            if topic_partition in attempt.marks:
                return attempt.marks[topic_partition]
        current = self._current
        if current is not None and current.topic_partition == topic_partition:
            return self._read_with(current)
        return self._read.get(topic_partition)

    def _read_with(self, current: "_Current", rows: int = 0) -> Position:
        """The position within the batch; with `rows` -1, before the last row that was given."""
        before = self._read.get(current.topic_partition)
        is_known = before is not None and before.position_version == current.fetched.position_version
        epoch = before.leader_epoch if before is not None and is_known else NO_EPOCH
        if current.is_begun(rows):
            epoch = current.batch.batch.leader_epoch
        return Position(current.position(rows), current.fetched.position_version, epoch)

    def read(self) -> dict[TopicPartition, Position]:
        """The position of each partition: the end of its records that were handed over, or the begin of those that
        wait.
        """
        found = dict(self._read)
        if self._current is not None:
            found[self._current.topic_partition] = self._read_with(self._current)
        in_part = self._given_in_part()
        for attempt in reversed(in_part):
            found.update(attempt.marks)
        noted = [attempt.fetches.values() for attempt in in_part]
        for fetched in chain(*noted, self._fetches.waiting()):
            at = found.get(fetched.topic_partition)
            if at is None or at.position_version < fetched.position_version:
                found[fetched.topic_partition] = Position(fetched.fetch_offset, fetched.position_version)
        return found

    # ---- Records ---------------------------------------------------------------------------------------------------

    def next_records(self, count_max: int) -> list[Record]:
        """Up to count_max records as the interceptors leave them; empty when nothing is left.

        Records that interceptors made beyond count_max come first in the next call. Until these are given, no position
        moves past the records of which they were made.
        """
        if self.interceptors is None:
            return self._stored_records(count_max)
        while not (given := self._made_records(count_max)):
            records = self._stored_records(count_max)
            if not records:
                break
            self._made = [*self._made, *self.interceptors.changed(records)]
        return given

    def _made_records(self, count_max: int) -> list[Record]:
        given: list[Record] = []
        kept: list[Record] = []
        for each in self._made:
            is_kept = len(given) == count_max or _partition_of(each) in self._fetches.paused
            (kept if is_kept else given).append(each)
        self._made = kept
        return given

    def _stored_records(self, count_max: int) -> list[Record]:
        """Up to count_max records of the log."""
        records: list[Record] = []
        with self._raising_unless(records):
            while len(records) < count_max and (current := self._next_current()) is not None:
                records += islice(current.records(self._deserializers), count_max - len(records))
        return records

    def iterator(self) -> Iterator[Record] | None:
        """The rest of the current batch, or the next one, one record after another; None when nothing is left.

        Records that are not taken from it stay to be handed over. It ends when its partition is dropped. With
        interceptors it has one record, which is taken.
        """
        if self.interceptors is not None:
            given = self.next_records(1)
            return iter(given) if given else None
        current = self._next_current()
        if current is None:
            return None
        records = current.looped(self._deserializers)
        # A loop takes each record when it is given: there is nothing to hand over at once.
        self.attempt = DeliveryAttempt(self._made, (), self.attempt.thread, is_handed=True)
        return records

    def next_arrow(self, count_max: int = sys.maxsize) -> pa.RecordBatch | None:
        """The next batch, or its first count_max records; small batches are merged. None when nothing is left."""
        parts: list[pa.RecordBatch] = []
        rows, size_bytes = 0, 0
        with self._raising_unless(parts):
            while rows < min(_MERGED_ROWS, count_max) and size_bytes < _MERGED_BYTES:
                current = self._next_current()
                if current is None:
                    break
                size_bytes += current.batch.batch.size_bytes
                part = current.take_arrow(count_max - rows)
                rows += part.num_rows
                parts.append(part)
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def pass_over(self) -> None:
        """Passes over the record whose SerializationError was just raised."""
        if self._current is not None:
            self._current.pass_over()

    @contextmanager
    def _raising_unless(self, taken: Sized) -> Iterator[None]:
        """Keeps an error for the next call if records were taken in the block: its batch, or record, stays."""
        try:
            yield
        except (CorruptRecord, SerializationError):
            if not taken:
                raise

    # ---- From fetch to fetch, from batch to batch ------------------------------------------------------------------

    def has_records(self) -> bool:
        """Whether `next_records` has records, unless interceptors drop all of them."""
        return any(_partition_of(each) not in self._fetches.paused for each in self._made) or self.has_rows()

    def has_rows(self) -> bool:
        """Whether `next_arrow` has a batch."""
        return self._next_current() is not None

    def _next_current(self) -> "_Current | None":
        """A batch with rows left, noted in the attempt; None when nothing is left."""
        self._fetches.take_in()
        while (current := self._current) is None or current.is_empty():
            if current is not None:
                if current.go_on():
                    break
                batch = current.batch.batch
                at = Position(batch.next_offset, current.fetched.position_version, batch.leader_epoch)
                self._read[current.topic_partition] = at
                self._current = None
                self._fetches.cut_first(batch)
            fetched = self._fetches.first()
            if fetched is None:
                return None
            self._start(fetched)
        if not self.attempt.is_handed and current.topic_partition not in self.attempt.marks:
            self.attempt.note(current.fetched, self._read_with(current))
        return current

    def _start(self, fetched: Fetched) -> None:
        """Decodes the next batch of a fetch, passes it over, or ends the fetch."""
        tp = fetched.topic_partition
        at = self._read.get(tp)
        if at is not None and at.position_version > fetched.position_version:
            self._fetches.end_first()
            return
        # A newer position version: the position was reset, perhaps backwards.
        if at is None or at.position_version < fetched.position_version:
            at = Position(fetched.fetch_offset, fetched.position_version)
        elif at.offset < fetched.fetch_offset:
            raise InvariantBroken(
                f"{tp}: read up to {at.offset}, and {fetched.fetch_offset} is to be handed over"
            )
        if not self.attempt.is_handed:
            self.attempt.note(fetched, at)
        start_offset, end_offset = at.offset, self._ends.get(tp)
        remaining = fetched.buffers
        if not remaining or (end_offset is not None and start_offset >= end_offset):
            self._read[tp] = at._replace(offset=max(start_offset, fetched.next_offset))
            self._fetches.end_first()
            return
        batch = _first_batch(fetched)
        if batch.next_offset <= start_offset or batch.is_control:
            epoch = batch.leader_epoch if batch.is_control else at.leader_epoch
            self._read[tp] = Position(max(start_offset, batch.next_offset), fetched.position_version, epoch)
            self._fetches.cut_first(batch)
        else:
            decoded = self._decode(tp, batch)
            self._current = _Current(fetched, decoded, rows_between(decoded, start_offset, end_offset))

    def _decode(self, topic_partition: TopicPartition, batch: RecordBatch) -> DecodedBatch:
        """The batch's columns. A corrupt batch stays, and is met again until the application seeks past it."""
        try:
            return decode(batch, check_crc=self._check_crcs)
        except CorruptRecord as error:
            hint = f"seek to {batch.next_offset} to go on behind it"
            raise CorruptRecord(f"{topic_partition}: {error}; {hint}") from error


class _Current:
    """The decoded batch that records are taken from. first <= start <= stop <= end."""

    def __init__(self, fetched: Fetched, batch: DecodedBatch, rows: slice) -> None:
        self.topic_partition = fetched.topic_partition
        # Begins with the batch.
        self.fetched = fetched
        self.batch = batch
        # The first row of the batch that is read.
        self._first: int = rows.start
        # Rows from start to stop are handed over next. A row that cannot be deserialized stands at `stop`, if stop <
        # end.
        self._start: int = rows.start
        self._stop: int = rows.stop
        self._end: int = rows.stop
        # The records of these rows, and the iterator over them, once a record was asked for.
        self._records: list[Record] = []
        self._iterator: Iterator[Record] | None = None
        # The row at which a loop began to read the batch; None outside a loop, and once something else was asked for.
        self.looped_from: int | None = None

    @property
    def has_rows(self) -> bool:
        """Whether rows are left, also behind a record that cannot be deserialized."""
        return self._first_row() < self._end

    def is_empty(self) -> bool:
        return self._first_row() == self._stop

    def is_begun(self, rows: int = 0) -> bool:
        return self._first_row() + rows > self._first

    def position(self, rows: int = 0) -> int:
        """The offset of the next row; with `rows`, that many rows further on (or back)."""
        row = self._first_row() + rows
        return int(self.batch.offsets[row]) if row < self._end else self.batch.batch.next_offset

    def has_looped(self) -> bool:
        """Whether the application has a record of a loop in hand."""
        return self.looped_from is not None and self._first_row() > self.looped_from

    def go_on(self) -> bool:
        """Goes on with the rows behind `stop`; False when there are none."""
        if self._stop == self._end:
            return False
        self._start, self._stop, self._iterator = self._stop, self._end, None
        return True

    def pass_over(self) -> None:
        """Skips the first row that is left."""
        self._start, self._stop, self._iterator = self._first_row() + 1, self._end, None

    def records(self, deserializers: Deserializers) -> Iterator[Record]:
        """The one iterator over the rest. Records that it has not given stay.

        The iterator ends before a record that cannot be deserialized. The next call raises SerializationError for that
        record.
        """
        while self._iterator is None:
            try:
                rows = slice(self._start, self._stop)
                self._records = records_of(self.batch, rows, self.topic_partition, deserializers)
            except PoisonedRow as poisoned:
                if poisoned.row == 0:
                    offset = int(self.batch.offsets[self._start])
                    # No name for the error: this frame would keep it, and with it a consumer that was dropped.
                    raise SerializationError.of_record(
                        self.topic_partition, offset, poisoned.error
                    ) from poisoned.error.__cause__
                self._stop = self._start + poisoned.row
            else:
                self._iterator = iter(self._records)
        return self._iterator

    def looped(self, deserializers: Deserializers) -> Iterator[Record]:
        """As `records`, for a loop: each record counts as handed when it is given."""
        records = self.records(deserializers)
        self.looped_from = self._first_row()
        return records

    def empty(self) -> None:
        """Ends an iterator that is in use by emptying its list, which costs nothing for each record."""
        self._records.clear()
        self._end = self._stop

    def take_arrow(self, count_max: int) -> pa.RecordBatch:
        """The rows that are left, or the first count_max of them."""
        first = self._first_row()
        rows = slice(first, min(first + count_max, self._end))
        self._start, self._stop, self._iterator = rows.stop, self._end, None
        return arrow_of(self.batch, rows, self.topic_partition)

    def _first_row(self) -> int:
        return self._start if self._iterator is None else self._stop - length_hint(self._iterator)


def _partition_of(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _first_batch(fetched: Fetched) -> RecordBatch:
    """The next batch of a fetch. A batch's offset lies outside its CRC: a wrong one would move the position, and skip
    records in silence. Raises CorruptRecord.
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
        raise CorruptRecord(f"{fetched.topic_partition}: {expected}, found {batch.summary}; {hint}")
    return batch


def _offset_behind(fetched: Fetched, size_bytes: int) -> int | None:
    """The offset behind the first batch, of which only the size is trusted; None if the second one is corrupt, too."""
    parts = [each for each in (fetched.buffers[0][size_bytes:], *fetched.buffers[1:]) if len(each)]
    try:
        following = next(split_batches(parts[0])) if parts else None
    except CorruptRecord:
        return None
    if following is None:
        return fetched.next_offset
    is_in_order = fetched.fetch_offset < following.base_offset < following.next_offset <= fetched.next_offset
    return following.base_offset if is_in_order else None
