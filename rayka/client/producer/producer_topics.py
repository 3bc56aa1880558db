"""The topics of a producer: the queues of their partitions, the batches that take records now, and the memory.

A part of the accumulator, guarded by the accumulator's lock. Invariants: only the last batch of a partition may be
open; memory is reserved for a batch before the batch grows.

Sends get memory first come, first served. While a send waits for memory, no other send reserves any, so freed memory
adds up until the first send in line has enough. Otherwise small records would take every freed piece, and a large
record would wait for ever. Records within memory that is reserved already do not wait. Kafka: RecordAccumulator.append,
BufferPool and its `waiters`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from weakref import ref

from rayka.client.producer.arrow_input import Piece
from rayka.client.producer.drain_schedule import DrainSchedule
from rayka.client.producer.partition_queue import STAMP_AGE_MS, Limits, PartitionQueue, TopicQueues
from rayka.client.producer.producer_batch import (
    BATCH_OVERHEAD_BYTES,
    FILLING,
    IN_FLIGHT,
    BatchState,
    Callback,
    ProducerBatch,
)
from rayka.client.producer.record_columns import RememberedHashes
from rayka.errors import NoSuchTopic

# First reservation of a batch; each later one doubles the reserved memory.
FIRST_GRANT_BYTES = 1 << 10
# Bound of one doubling.
GRANT_BYTES = 256 << 10


class MemoryTurn:
    """A place in the line for memory. The waiting send holds the only strong reference."""

    __slots__ = ("__weakref__", "callback")

    def __init__(self) -> None:
        # Called once, when another try may find memory; None while nobody waits for the call.
        self.callback: Callback | None = None


class MemoryLine:
    """The line of the sends that wait for memory, first come first.

    Invariants: only the first send in line reserves memory, or any send while the line is empty; a turn whose owner
    is gone blocks no other turn.
    """

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        # The turn of the append that runs now, under the lock; None if its caller has no place in the line.
        self.current: MemoryTurn | None = None
        # Counts the changes that may let the first send in line go on.
        self.news_count = 0
        self._lock = lock
        self._turns: deque[ref[MemoryTurn]] = deque()

    @property
    def may_take(self) -> bool:
        """Whether the append that runs now may reserve memory."""
        return not self._turns or self._first() in (None, self.current)

    def join(self, turn: MemoryTurn) -> None:
        """Puts the turn at the end of the line."""
        with self._lock:
            self._turns.append(ref(turn))

    def leave(self, turn: MemoryTurn) -> None:
        """Takes the turn out of the line, with memory or without, and wakes the next turn's send."""
        with self._lock:
            self._turns = deque(each for each in self._turns if each() not in (None, turn))
            callback = self.on_news()
        if callback is not None:
            callback()

    def call_on_news(self, turn: MemoryTurn, news_count: int, callback: Callback) -> None:
        """Calls back once the turn is the first in line and `self.news_count` differs from `news_count`.

        The callback runs at once, on the IO thread, or in the thread of another waiting send.
        """
        with self._lock:
            if self._first() is not turn or self.news_count == news_count:
                turn.callback = callback
                return
        callback()

    def on_news(self) -> Callback | None:
        """Counts freed memory, or a send that left the line. Returns the first turn's callback, if any; the caller
        calls the callback without the lock.
        """
        self.news_count += 1
        first = self._first() if self._turns else None
        if first is None:
            return None
        callback, first.callback = first.callback, None
        return callback

    def _first(self) -> MemoryTurn | None:
        while self._turns:
            first = self._turns[0]()
            if first is not None:
                return first
            self._turns.popleft()
        return None


class BufferPool:
    """The memory reserved for batches.

    Invariants: appends reserve no memory beyond the limit; `used_bytes` is the sum of `granted_bytes` of the batches
    that are not done, also after a KeyboardInterrupt between any two steps; while sends wait in line, no other send
    reserves memory.
    """

    def __init__(
        self, memory_bytes: int, batches: Callable[[], Iterable[ProducerBatch]], line: MemoryLine
    ) -> None:
        self._memory_bytes = memory_bytes
        self._line = line
        # Returns the batches that are not done.
        self._batches = batches
        self._used_bytes = 0
        # `_used_bytes` is stale: the next read counts again.
        self._is_count_torn = False

    def __repr__(self) -> str:
        return f"<BufferPool {self.used_bytes} of {self._memory_bytes}>"

    @property
    def used_bytes(self) -> int:
        """The reserved memory; counts again if the sum is stale."""
        if self._is_count_torn:
            self._used_bytes = sum(each.granted_bytes for each in self._batches())
            self._is_count_torn = False
        return self._used_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether the append that runs now may reserve `size_bytes`."""
        used_bytes = self.used_bytes if self._is_count_torn else self._used_bytes
        return used_bytes + size_bytes <= self._memory_bytes and self._line.may_take

    def reserve(self, batch: ProducerBatch, size_bytes: int) -> None:
        """Reserves memory for a batch in its queue. An interrupt between the steps leaves the sum stale."""
        is_torn, self._is_count_torn = self._is_count_torn, True
        batch.granted_bytes += size_bytes
        self._used_bytes += size_bytes
        self._is_count_torn = is_torn

    def count_again(self) -> None:
        """Marks the sum as stale: batches left a queue without `release`. The next read recounts."""
        self._is_count_torn = True

    def release(self, batch: ProducerBatch) -> None:
        """Frees the memory of a batch that left its queue."""
        self._used_bytes -= batch.granted_bytes


class ProducerTopics:
    """The queues of all topics, and the batches that take records now."""

    def __init__(self, limits: Limits, schedule: DrainSchedule, line: MemoryLine) -> None:
        # By topic: the open batch for records without key and partition. Read by `send` without the lock.
        self.sticky: dict[str, ProducerBatch] = {}
        # By topic: the queues for records with a key. Read by `send` without the lock.
        self.by_key: dict[str, TopicQueues] = {}
        self.hash_of = RememberedHashes()
        # Number of batches closed because the next record did not fit.
        self.filled_count = 0
        self._limits = limits
        self._schedule = schedule
        self._topics: dict[str, TopicQueues] = {}
        # The topics with batches of deleted partitions.
        self.departing: dict[str, TopicQueues] = {}
        self.pool = BufferPool(limits.memory_bytes, partial(_batches, self._topics), line)

    def __repr__(self) -> str:
        return f"<ProducerTopics {list(self._topics)} {self.pool!r}>"

    def __iter__(self) -> Iterator[ProducerBatch]:
        """All batches that are not done."""
        return _batches(self._topics)

    # ---- Topics ----

    def get(self, name: str) -> TopicQueues | None:
        """The queues of the topic; None for a topic without metadata."""
        return self._topics.get(name)

    def queue_of(self, batch: ProducerBatch) -> PartitionQueue:
        """The queue of the batch's partition. Precondition: the partition exists."""
        return self._topics[batch.topic].queues[batch.partition]

    def queue_with(self, batch: ProducerBatch) -> PartitionQueue | None:
        """The queue that holds the batch; None if its topic was removed or the batch was divided."""
        topic = self._topics.get(batch.topic)
        return None if topic is None else topic.queue_with(batch)

    def put(self, name: str, partition_count: int, message_bytes_max: int) -> None:
        """Updates the topic's partitions and batch size from new metadata."""
        topic = self._topics.setdefault(name, TopicQueues(self._limits))
        for queue in topic.queues[partition_count:]:
            # The last batch may be open, or even the sticky one.
            if queue.last is not None:
                self._retire(queue.last)
        topic.resize(partition_count, message_bytes_max)
        self.by_key[name] = topic
        if topic.departing:
            self.departing[name] = topic

    def remove(self, name: str) -> list[ProducerBatch]:
        """Forgets a deleted topic; returns its batches."""
        self.sticky.pop(name, None)
        self.by_key.pop(name, None)
        self.departing.pop(name, None)
        topic = self._topics.pop(name, None)
        return [] if topic is None else self._forget([*topic.queues, *topic.departing])

    def take_away(self, name: str, known: TopicQueues) -> bool:
        """Removes a topic without batches, unless a thread wants the topic; returns whether the topic is removed."""
        self.remove(name)
        if not known.is_wanted:
            return True
        known.is_wanted = False
        self._topics[name] = self.by_key[name] = known
        return False

    def holds_none(self, name: str) -> bool:
        """Whether the topic has no batch; True for an unknown topic."""
        topic = self._topics.get(name)
        return topic is None or not any(queue.batches for queue in (*topic.queues, *topic.departing))

    def _forget(self, queues: list[PartitionQueue]) -> list[ProducerBatch]:
        batches = [batch for queue in queues for batch in queue.batches]
        for queue in queues:
            self._schedule.forget(queue)
        for batch in batches:
            self.pool.release(batch)
        return batches

    # ---- The batches that fill ----

    def known(self, topic: str, partition: int | None) -> TopicQueues:
        """The queues of a topic. Raises NoSuchTopic if the topic or the partition does not exist."""
        known = self._topics.get(topic)
        if known is None:
            raise NoSuchTopic(f"topic {topic!r} was deleted")
        if partition is not None and partition >= len(known.queues):
            raise NoSuchTopic(f"topic {topic!r} was made anew with {len(known.queues)} partitions")
        return known

    def batch_with_room(
        self, target: TopicQueues, topic: str, partition: int | None, size_bytes: int, now_ms: float
    ) -> ProducerBatch | None:
        """Returns an open batch with room and reserved memory for the record, or a new batch; None without memory."""
        batch = self.sticky.get(topic) if partition is None else target.filling[partition]
        if batch is not None and batch.size_bytes + size_bytes > target.batch_bytes:
            self._fill_up(batch)
            self.filled_count += 1
            batch = None
        if batch is None and partition is None:
            partition = target.next_sticky()
            batch = target.filling[partition]
            if batch is not None and batch.size_bytes + size_bytes > target.batch_bytes:
                batch = None
        if batch is not None:
            return batch if self._grant(target, batch, size_bytes) else None
        assert partition is not None
        batch = target.filling[partition] = self._new(target, topic, partition, size_bytes, now_ms)
        return batch

    def add_columns(self, piece: Piece, now_ms: float) -> tuple[ProducerBatch, int] | None:
        """Adds columns to an open batch with room, or to a new batch.

        Returns the batch and the index of the first record; None without memory. Columns without a partition go to the
        last sticky partition while its batch has room, then to the next sticky one. Unpinned columns whose partition
        was just deleted move with the other batches of that partition.
        """
        target = self.known(piece.topic, piece.partition if piece.is_pinned else None)
        size_bytes, partition = piece.size_bytes, piece.partition
        if partition is not None and partition >= len(target.queues):
            return self._add_departing(target, piece, now_ms)
        chosen = target.last_sticky if partition is None else partition
        batch = target.column_batch(chosen, size_bytes)
        if batch is None and partition is None:
            chosen = target.next_sticky()
            batch = target.column_batch(chosen, size_bytes)
        if batch is not None and not self._grant(target, batch, size_bytes):
            return None
        batch = batch or self._new(target, piece.topic, chosen, size_bytes, now_ms)
        if batch is None:
            return None
        batch.is_pinned |= piece.is_pinned
        index = batch.add_columns(piece.columns, size_bytes)
        # Columns of the same size would not fit too, so lingering is of no use.
        if index == 0 and 2 * batch.size_bytes > target.batch_bytes:
            batch.close()
        self._schedule.add(target.queues[chosen])
        return batch, index

    def _add_departing(
        self, target: TopicQueues, piece: Piece, now_ms: float
    ) -> tuple[ProducerBatch, int] | None:
        if not self.pool.has_room(BATCH_OVERHEAD_BYTES + piece.size_bytes):
            return None
        assert piece.partition is not None
        batch = ProducerBatch(piece.topic, piece.partition, now_ms)
        queue = PartitionQueue(piece.partition, self._limits)
        queue.batches.append(batch)
        self.pool.reserve(batch, BATCH_OVERHEAD_BYTES + piece.size_bytes)
        index = batch.add_columns(piece.columns, piece.size_bytes)
        batch.close()
        target.depart([queue])
        self.departing[piece.topic] = target
        self._schedule.add(queue)
        return batch, index

    def adopt(self, batch: ProducerBatch, partition: int | None) -> None:
        """Appends a batch of `InterruptingSends` to its partition's queue, closed. Reserves its memory, even beyond the
        limit. Raises NoSuchTopic.
        """
        target = self.known(batch.topic, partition)
        chosen = target.next_sticky() if partition is None else partition
        queue = target.queues[chosen]
        if queue.last is not None and queue.last.state is FILLING:
            self._fill_up(queue.last)
        batch.partition = chosen
        batch.close()
        queue.batches.append(batch)
        self.pool.reserve(batch, batch.size_bytes)
        self._schedule.add(queue)

    def open(self, batch: ProducerBatch, timestamp_ms: int, now_ms: float) -> None:
        """Opens the batch for appends without the lock, within its reserved memory.

        Only records without headers, named partition and own timestamp are appended so; they get `timestamp_ms`.
        """
        batch.was_open = True
        batch.stamp(timestamp_ms, now_ms)
        batch.limit_bytes = batch.granted_bytes
        self._schedule.set_timer(self.queue_of(batch), now_ms + STAMP_AGE_MS)

    def close(self, batch: ProducerBatch) -> None:
        """Closes the batch; no append finds the batch any more."""
        batch.close()
        if self.sticky.get(batch.topic) is batch:
            del self.sticky[batch.topic]
        filling = self._topics[batch.topic].filling
        if batch.partition < len(filling) and filling[batch.partition] is batch:
            filling[batch.partition] = None

    def close_open(self) -> None:
        """Closes all open batches, also for appends without the lock; drops empty ones."""
        for batch in list(self):
            if batch.state is FILLING:
                self._retire(batch)

    def after_fork(self) -> None:
        """Leaves `send` in a forked child no open batch: the child has no IO thread to send the records."""
        self.sticky.clear()
        self.by_key.clear()

    def _fill_up(self, batch: ProducerBatch) -> None:
        self._retire(batch)
        self._schedule.add(self.queue_of(batch))

    def _retire(self, batch: ProducerBatch) -> None:
        """Closes the batch. Drops an empty batch, which an interrupted append leaves: an empty batch would never be
        sent, and would block the batches behind it.
        """
        self.close(batch)
        if not len(batch):
            self.pool.count_again()
            self.queue_of(batch).batches.remove(batch)

    def _new(
        self, target: TopicQueues, topic: str, partition: int, size_bytes: int, now_ms: float
    ) -> ProducerBatch | None:
        granted = needed = BATCH_OVERHEAD_BYTES + size_bytes
        generous = min(FIRST_GRANT_BYTES, target.batch_bytes)
        if generous > needed and self.pool.has_room(generous):
            granted = generous
        elif not self.pool.has_room(needed):
            return None
        queue = target.queues[partition]
        if queue.batches and queue.batches[-1].state is FILLING:
            self._fill_up(queue.batches[-1])
        records, queue.spare_records = queue.spare_records, None
        batch = ProducerBatch(topic, partition, now_ms, records)
        queue.batches.append(batch)
        self.pool.reserve(batch, granted)
        return batch

    def _grant(self, target: TopicQueues, batch: ProducerBatch, size_bytes: int) -> bool:
        """Reserves memory, in steps, so that the batch can grow by `size_bytes`; False if the memory is not free."""
        needed = batch.size_bytes + size_bytes - batch.granted_bytes
        if needed <= 0:
            return True
        step = max(needed, min(batch.granted_bytes, GRANT_BYTES, target.batch_bytes - batch.granted_bytes))
        if not self.pool.has_room(step):
            step = needed
        if not self.pool.has_room(step):
            return False
        self.pool.reserve(batch, step)
        if batch.limit_bytes >= 0:
            batch.limit_bytes = batch.granted_bytes
        return True

    # ---- Deleted partitions ----

    def move_departing(self) -> list[ProducerBatch]:
        """Moves batches of deleted partitions to other partitions, once no batch of the topic's deleted partitions is
        in flight. Returns the pinned batches, which the caller fails.

        No batch of the topic starts before the move, so records of one key keep their order: moved batches stand before
        all unsent batches. Each batch is put before the batches moved so far, so the last batch is moved first.
        """
        failed: list[ProducerBatch] = []
        for name, topic in list(self.departing.items()):
            moved = [batch for queue in topic.departing for batch in queue.batches]
            if any(each.state is IN_FLIGHT for each in moved):
                continue
            self._forget(topic.departing)
            topic.departing = []
            del self.departing[name]
            for batch in reversed(moved):
                if batch.is_pinned:
                    failed.append(batch)
                else:
                    self._move(topic, batch)
            for queue in topic.queues:
                queue.is_blocked = False
                self._schedule.add(queue)
        failed.reverse()
        return failed

    def _move(self, topic: TopicQueues, batch: ProducerBatch) -> None:
        """Puts the batch, or with keys its successors, before the unsent batches of their partitions."""
        # Seal first: a thread in `send` may be adding a record with a key, and `has_keys` must not change later.
        if not batch.is_sealed:
            batch.become(BatchState.WAITING)
            batch.seal()
        chosen = topic.next_sticky()
        batch.partition, batch.sequence, batch.granted_bytes = chosen, None, 0
        made, count = [batch], len(topic.queues)
        if batch.has_keys:
            made = batch.divide(lambda key: chosen if key is None else self.hash_of[key] % count)
        for each in made:
            queue = topic.queues[each.partition]
            sent_count = sum(other.is_sealed for other in queue.batches)
            queue.batches.insert(sent_count, each)
            self.pool.reserve(each, each.size_bytes)


def _batches(topics: dict[str, TopicQueues]) -> Iterator[ProducerBatch]:
    for topic in topics.values():
        for queue in (*topic.queues, *topic.departing):
            yield from queue.batches
