"""The topics of a producer: the queue of each partition, the batch there that takes records now, and its memory.

A part of the accumulator, guarded by its lock. Invariants: at most one batch of a partition is open, the last one;
memory is set aside for every batch before it grows.

Memory is given first come, first served. While a send waits, no other one sets memory aside, so freed memory adds up
until it is enough for the first in line; else small records would take each piece, and a large one would wait for ever.
Records whose memory is set aside already go on. Kafka: RecordAccumulator.append, BufferPool and its `waiters`.
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

# A batch sets so much aside first, then as much again as it has.
FIRST_GRANT_BYTES = 1 << 10
# A batch sets no more aside at once.
GRANT_BYTES = 256 << 10


class MemoryTurn:
    """A place in the line. The waiting send holds the only reference."""

    __slots__ = ("__weakref__", "callback")

    def __init__(self) -> None:
        # Called once, when another try may find memory.
        self.callback: Callback | None = None


class MemoryLine:
    """The turns of the sends that wait, in their order.

    Invariants: only the first in line sets memory aside, or any send while the line is empty; a turn whose owner is
    gone blocks no other one.
    """

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        # The turn of the append that is under way; None if that one does not wait.
        self.current: MemoryTurn | None = None
        # Grows with each change that may let the first in line go on.
        self.news_count = 0
        self._lock = lock
        self._turns: deque[ref[MemoryTurn]] = deque()

    @property
    def may_take(self) -> bool:
        """Whether the append that is under way may set memory aside."""
        return not self._turns or self._first() in (None, self.current)

    def join(self, turn: MemoryTurn) -> None:
        """Puts the turn at the end of the line."""
        with self._lock:
            self._turns.append(ref(turn))

    def leave(self, turn: MemoryTurn) -> None:
        """Takes the turn out of the line, with memory or without, and wakes the next one."""
        with self._lock:
            self._turns = deque(each for each in self._turns if each() not in (None, turn))
            callback = self.on_news()
        if callback is not None:
            callback()

    def call_on_news(self, turn: MemoryTurn, news_count: int, callback: Callback) -> None:
        """Calls back once the turn is the first in line and `news_count` has grown beyond the given one: at once, on
        the IO thread, or in the thread of another waiting send.
        """
        with self._lock:
            if self._first() is not turn or self.news_count == news_count:
                turn.callback = callback
                return
        callback()

    def on_news(self) -> Callback | None:
        """Memory was freed, or the first in line has left. Returns the callback, to be called without the lock."""
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
    """The memory that batches have set aside.

    Invariants: new records never set aside more than the limit; the sum is that of `granted_bytes` of the batches that
    are not done, also after a KeyboardInterrupt between any two steps; while sends wait in line, no other one sets
    memory aside.
    """

    def __init__(
        self, memory_bytes: int, batches: Callable[[], Iterable[ProducerBatch]], line: MemoryLine
    ) -> None:
        self._memory_bytes = memory_bytes
        self._line = line
        # Returns the batches that are not done.
        self._batches = batches
        self._used_bytes = 0
        # An exception came between the two steps of counting.
        self._is_count_torn = False

    def __repr__(self) -> str:
        return f"<BufferPool {self.used_bytes} of {self._memory_bytes}>"

    @property
    def used_bytes(self) -> int:
        """Memory set aside."""
        if self._is_count_torn:
            self._used_bytes = sum(each.granted_bytes for each in self._batches())
            self._is_count_torn = False
        return self._used_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether the append that is under way may set that much memory aside."""
        used_bytes = self.used_bytes if self._is_count_torn else self._used_bytes
        return used_bytes + size_bytes <= self._memory_bytes and self._line.may_take

    def reserve(self, batch: ProducerBatch, size_bytes: int) -> None:
        """Sets memory aside for a batch, which is in its queue. A count that an interrupt tears is counted again."""
        is_torn, self._is_count_torn = self._is_count_torn, True
        batch.granted_bytes += size_bytes
        self._used_bytes += size_bytes
        self._is_count_torn = is_torn

    def count_again(self) -> None:
        """Batches leave their queues in another way than by their end."""
        self._is_count_torn = True

    def release(self, batch: ProducerBatch) -> None:
        """The batch is done."""
        self._used_bytes -= batch.granted_bytes


class ProducerTopics:
    """The queues of all topics, and the batches that take records now."""

    def __init__(self, limits: Limits, schedule: DrainSchedule, line: MemoryLine) -> None:
        # By topic: the batch that takes records without key and partition now.
        self.sticky: dict[str, ProducerBatch] = {}
        # By topic: where records with a key go. Like `sticky`, for `send`, which takes no lock.
        self.by_key: dict[str, TopicQueues] = {}
        self.hash_of = RememberedHashes()
        # Batches closed because a record did not fit any more.
        self.filled_count = 0
        self._limits = limits
        self._schedule = schedule
        self._topics: dict[str, TopicQueues] = {}
        # The topics with batches of partitions that are gone.
        self.departing: dict[str, TopicQueues] = {}
        self.pool = BufferPool(limits.memory_bytes, partial(_batches, self._topics), line)

    def __repr__(self) -> str:
        return f"<ProducerTopics {list(self._topics)} {self.pool!r}>"

    def __iter__(self) -> Iterator[ProducerBatch]:
        """All batches that are not done."""
        return _batches(self._topics)

    # ---- Topics ----

    def get(self, name: str) -> TopicQueues | None:
        """None for a topic without metadata."""
        return self._topics.get(name)

    def queue_of(self, batch: ProducerBatch) -> PartitionQueue:
        """The queue of the batch's partition, which exists."""
        return self._topics[batch.topic].queues[batch.partition]

    def queue_with(self, batch: ProducerBatch) -> PartitionQueue | None:
        """The queue that the batch stands in; None after its topic was removed, and for a batch that was divided."""
        topic = self._topics.get(batch.topic)
        return None if topic is None else topic.queue_with(batch)

    def put(self, name: str, partition_count: int, message_bytes_max: int) -> None:
        """Takes the topic as the metadata has it now."""
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
        """Forgets a topic that is gone; returns its batches."""
        self.sticky.pop(name, None)
        self.by_key.pop(name, None)
        self.departing.pop(name, None)
        topic = self._topics.pop(name, None)
        return [] if topic is None else self._forget([*topic.queues, *topic.departing])

    def take_away(self, name: str, known: TopicQueues) -> bool:
        """Removes a topic without batches, unless a thread wants it."""
        self.remove(name)
        if not known.is_wanted:
            return True
        known.is_wanted = False
        self._topics[name] = self.by_key[name] = known
        return False

    def holds_none(self, name: str) -> bool:
        """Whether no batch of the topic, if it is known, is left."""
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
        """The topic, which has the partition. Raises NoSuchTopic."""
        known = self._topics.get(topic)
        if known is None:
            raise NoSuchTopic(f"topic {topic!r} was deleted")
        if partition is not None and partition >= len(known.queues):
            raise NoSuchTopic(f"topic {topic!r} was made anew with {len(known.queues)} partitions")
        return known

    def batch_with_room(
        self, target: TopicQueues, topic: str, partition: int | None, size_bytes: int, now_ms: float
    ) -> ProducerBatch | None:
        """The open batch that the record fits, with the memory for it, or a new batch; None when the memory is not
        there.
        """
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
        """Adds columns to the open batch that they fit, or to a new one: the batch and the index of the first; None
        when the memory for them is not there. Columns whose partition has just gone move with its other batches.

        Without a partition they go to the last sticky one, while its batch takes them, then to the next.
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
        # A second one of its size would not fit beside it: no use to linger.
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
        """Puts a batch that was filled elsewhere behind those of its partition, and closes it. Counts its memory, even
        beyond the limit. Raises NoSuchTopic.
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
        """The batch takes records that name neither partition nor time from now on, with this timestamp and without the
        lock, as far as its memory reaches.
        """
        batch.was_open = True
        batch.stamp(timestamp_ms, now_ms)
        batch.limit_bytes = batch.granted_bytes
        self._schedule.set_timer(self.queue_of(batch), now_ms + STAMP_AGE_MS)

    def close(self, batch: ProducerBatch) -> None:
        """The batch takes no more records."""
        batch.close()
        if self.sticky.get(batch.topic) is batch:
            del self.sticky[batch.topic]
        filling = self._topics[batch.topic].filling
        if batch.partition < len(filling) and filling[batch.partition] is batch:
            filling[batch.partition] = None

    def close_open(self) -> None:
        """No batch takes records without the lock any more."""
        for batch in list(self):
            if batch.state is FILLING:
                self._retire(batch)

    def after_fork(self) -> None:
        """In a forked child `send` finds no batch for its quick way: nothing would send the records."""
        self.sticky.clear()
        self.by_key.clear()

    def _fill_up(self, batch: ProducerBatch) -> None:
        self._retire(batch)
        self._schedule.add(self.queue_of(batch))

    def _retire(self, batch: ProducerBatch) -> None:
        """Closes the batch, and drops it if it is empty, because an append was interrupted: it would never go, and
        hold up all that is behind it.
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
        """Sets aside the memory that the batch needs to grow by size_bytes, in steps; False when it is not there."""
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

    # ---- Partitions that are gone ----

    def move_departing(self) -> list[ProducerBatch]:
        """Gives batches of partitions that are gone other partitions, as soon as no batch of such partitions of their
        topic is in flight; returns batches whose partition was asked for: they are to fail.

        Until then nothing of the topic starts, so records of one key keep their order: the moved ones go before all
        that was not sent yet. Each is put before those moved already, so the last ones are moved first.
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
        """Puts the batch, or with keys its successors, before all that was not sent yet to their partitions."""
        # First, for `send` may be about to add a record with a key to it.
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
