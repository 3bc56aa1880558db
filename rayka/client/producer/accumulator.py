"""The producer's brain: which batch takes a record, which batches may go now, what an answer means for them.

Synchronous, without a clock: `now_ms` and timestamps come in. The sync producer appends from the application's
threads, the sender drains on the IO thread, both under one lock that they share.

Invariants: batches of a partition stand in the order of their records and stay there until they are done, so order
survives retries (`partition_queue`); memory set aside never exceeds `buffer_memory` (`buffer_pool`); a
KeyboardInterrupt between any two steps of an append loses at most the record being appended. What an append or a look
at what is ready costs does not depend on the number of partitions (`agenda`).

Partitioning: a keyed record goes where Kafka would put it (murmur2); without a key, records stick to one partition
until its batch is closed, then to the one with the shortest queue. Kafka: RecordAccumulator, BufferPool,
BuiltInPartitioner.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

from rayka.client.metadata import NoSuchTopic
from rayka.client.producer.agenda import Agenda
from rayka.client.producer.buffer_pool import BufferPool
from rayka.client.producer.delivery_future import DeliveryFuture
from rayka.client.producer.partition_queue import NEVER, PartitionQueue
from rayka.client.producer.producer_batch import BATCH_OVERHEAD_BYTES, NOT_OPEN, ProducerBatch
from rayka.client.producer.record_columns import Columns, Row
from rayka.errors import RaykaError
from rayka.protocol.batch_header import NO_PRODUCER_ID

RECORD_OVERHEAD_BYTES = 13  # an offset, a timestamp delta, a bit of validity; a key is a second value
HEADER_OVERHEAD_BYTES = 18  # two offsets and two bits of validity, and the record's own offset
FIRST_GRANT_BYTES = 1 << 10  # what a batch sets aside first, then as much again as it has
GRANT_BYTES = 256 << 10  # what a batch sets aside at once, at most
STAMP_AGE_MS = 10  # how long records without a timestamp get that of the one before


@dataclass(frozen=True)
class Limits:
    """What bounds the batches: bytes, and milliseconds."""

    batch_bytes: int
    memory_bytes: int
    linger_ms: float
    delivery_timeout_ms: float
    is_idempotent: bool = False
    in_flight_max: int = 1  # batches of one partition; more only with idempotence


class Moment(NamedTuple):
    """Now, on both clocks."""

    now_ms: float
    timestamp_ms: int


class TopicQueues:
    """The partitions of a topic; `batch_bytes` is what a batch for it may grow to.

    `filling` holds, for each partition, the batch that takes single records now, if there is one. It is the last of
    its queue, but a record for one of thousands of partitions finds each object that it touches outside the
    processor's caches, and on this way there are fewest.
    """

    __slots__ = ("batch_bytes", "filling", "last_sticky", "queues")

    def __init__(self, queues: list[PartitionQueue], batch_bytes: int) -> None:
        self.queues = queues
        self.filling: list[ProducerBatch | None] = [None] * len(queues)
        self.batch_bytes = batch_bytes
        self.last_sticky = len(queues) - 1

    def replace(self, begin: int, queues: list[PartitionQueue]) -> None:
        """These are the partitions from `begin` on; those that were there are gone."""
        self.queues[begin:] = queues
        self.filling[begin:] = [None] * len(queues)

    def next_sticky(self) -> int:
        """The partition with the fewest batches; among equals the first after the last one chosen."""
        count, after = len(self.queues), self.last_sticky + 1
        order = (*range(after, count), *range(min(after, count)))
        self.last_sticky = min(order, key=lambda partition: len(self.queues[partition].batches))
        return self.last_sticky


class Accumulator:
    """See the module. `sticky` holds, for each topic, the batch that takes records without key and partition now;
    `agenda` the partitions that are due, and those held back because their leader takes no more requests.
    """

    def __init__(self, limits: Limits) -> None:
        self.sticky: dict[str, ProducerBatch] = {}
        self.filled_count = 0  # batches closed because a record did not fit any more
        self.producer_id = NO_PRODUCER_ID  # for partitions that have none yet
        self._limits = limits
        self._topics: dict[str, TopicQueues] = {}
        self.agenda = Agenda()
        self._pool = BufferPool(limits.memory_bytes, partial(_batches, self._topics))

    def __repr__(self) -> str:
        count = sum(1 for _ in self.batches())
        return f"<Accumulator topics={len(self._topics)} batches={count} bytes={self.used_bytes}>"

    @property
    def used_bytes(self) -> int:
        """Memory set aside."""
        return self._pool.used_bytes

    def batches(self) -> Iterator[ProducerBatch]:
        """All batches that are not done."""
        return _batches(self._topics)

    # ---- Topics ----

    def partition_count(self, topic: str) -> int | None:
        """How many partitions the topic has; None when it is not known here."""
        known = self._topics.get(topic)
        return None if known is None else len(known.queues)

    def batch_bytes(self, topic: str) -> int:
        """What a batch of the topic may grow to."""
        known = self._topics.get(topic)
        return self._limits.batch_bytes if known is None else known.batch_bytes

    def last_sticky(self, topic: str) -> int:
        """The partition that records without one went to last."""
        return self._target(topic).last_sticky

    def set_topic(self, topic: str, partition_count: int, message_bytes_max: int) -> list[ProducerBatch]:
        """The topic as the metadata has it now; returns batches of partitions that are gone, for the sender to fail."""
        batch_bytes = max(min(self._limits.batch_bytes, message_bytes_max), BATCH_OVERHEAD_BYTES)
        known = self._topics.get(topic)
        if known is None:
            self._topics[topic] = TopicQueues(self._new_queues(0, partition_count), batch_bytes)
            return []
        known.batch_bytes = batch_bytes
        gone = [batch for queue in known.queues[partition_count:] for batch in queue.batches]
        for batch in gone:  # the last one of each partition may be open, or even the sticky one
            self._close(batch)
        known.last_sticky = min(known.last_sticky, partition_count - 1)
        self._forget(known.queues[partition_count:])
        begin = min(len(known.queues), partition_count)
        known.replace(begin, self._new_queues(begin, partition_count))
        return gone

    def _new_queues(self, begin: int, end: int) -> list[PartitionQueue]:
        return [PartitionQueue(index, self._limits.in_flight_max) for index in range(begin, end)]

    def remove_topic(self, topic: str) -> list[ProducerBatch]:
        """Forgets a topic that is gone; returns its batches, for the sender to fail."""
        self.sticky.pop(topic, None)
        removed = self._topics.pop(topic, None)
        if removed is None:
            return []
        self._forget(removed.queues)
        return [batch for queue in removed.queues for batch in queue.batches]

    def _forget(self, queues: list[PartitionQueue]) -> None:
        for queue in queues:
            self.agenda.forget(queue)
            for batch in queue.batches:
                self._pool.release(batch)

    # ---- Gathering ----

    def append(
        self, topic: str, partition: int | None, slot: Any, size_bytes: int, at: Moment
    ) -> DeliveryFuture | None:
        """Adds one record, a value or a `Row`; None when the memory for it is not there.

        Afterwards the sender must look at `next_ms`, as it may be sooner than before. A batch of records without a
        partition takes more of them without the lock once `open` was called, which must come after that: else its
        linger would never end.
        """
        batch = self._batch_for(topic, partition, size_bytes, at.now_ms)
        if batch is None:
            return None
        if type(slot) is Row:
            batch.has_rows = True
            if slot.timestamp_ms is None:
                slot.timestamp_ms = at.timestamp_ms
        elif batch.limit_bytes < 0:
            batch.stamp(at.timestamp_ms, at.now_ms)
        if partition is None and batch.limit_bytes < 0:
            batch.stamp(at.timestamp_ms, at.now_ms)  # also of values to come, which take no lock
            self.agenda.set_alarm(self._queue_of(batch), at.now_ms + STAMP_AGE_MS)
        if not batch.records and self._queue_of(batch).first is batch:  # else the end of another brings it up
            self.agenda.set_alarm(self._queue_of(batch), batch.created_ms + self._limits.linger_ms)
        batch.size_bytes += size_bytes
        future = DeliveryFuture(batch, slot)
        batch.records.append(future)
        if partition is None:
            self.sticky[topic] = batch
        return future

    def open(self, batch: ProducerBatch) -> None:
        """Lets `send` fill the batch without the lock, as far as its memory reaches."""
        if not batch.is_closed:
            batch.limit_bytes = batch.granted_bytes

    def add_columns(
        self, topic: str, partition: int | None, columns: Columns, size_bytes: int, now_ms: float
    ) -> tuple[ProducerBatch, int] | None:
        """Adds Arrow columns, at most a batch's worth: the batch and the index of the first; None without memory.

        Without a partition they go to the last sticky one, while its batch takes them, then to the next.
        """
        target = self._target(topic, partition)
        if partition is None:
            partition = target.last_sticky
            last = target.queues[partition].last
            if (
                last is None
                or not last.takes(columns=True)
                or last.size_bytes + size_bytes > target.batch_bytes
            ):
                partition = target.next_sticky()
        queue = target.queues[partition]
        last = queue.last
        if (
            last is not None
            and last.takes(columns=True)
            and last.size_bytes + size_bytes <= target.batch_bytes
        ):
            return (last, last.add_columns(columns, size_bytes)) if self._grant(last, size_bytes) else None
        if not self._pool.has_room(BATCH_OVERHEAD_BYTES + size_bytes):
            return None
        if last is not None:
            self._close(last)
        batch = ProducerBatch(topic, partition, now_ms)
        index = batch.add_columns(columns, size_bytes)
        if 2 * batch.size_bytes > target.batch_bytes:
            batch.close()  # one of its size would not fit beside it: no use to linger
        self.agenda.look_at(queue)
        queue.batches.append(batch)
        self._pool.reserve(batch, batch.size_bytes)
        return batch, index

    def _batch_for(
        self, topic: str, partition: int | None, size_bytes: int, now_ms: float
    ) -> ProducerBatch | None:
        """The open batch that the record fits, or a new one."""
        target = self._target(topic, partition)
        batch = self.sticky.get(topic) if partition is None else target.filling[partition]
        if batch is not None and batch.takes(columns=False):
            if batch.size_bytes + size_bytes <= target.batch_bytes:
                return batch if self._grant(batch, size_bytes) else None
            self._close(batch)
            self.filled_count += 1
        if partition is None:
            partition = target.next_sticky()
            batch = target.queues[partition].last
            fits = batch is not None and batch.size_bytes + size_bytes <= target.batch_bytes
            if batch is not None and fits and batch.takes(columns=False):
                return batch if self._grant(batch, size_bytes) else None
        return self._new_batch(topic, partition, size_bytes, now_ms)

    def _new_batch(self, topic: str, partition: int, size_bytes: int, now_ms: float) -> ProducerBatch | None:
        needed = BATCH_OVERHEAD_BYTES + size_bytes
        generous = max(needed, min(FIRST_GRANT_BYTES, self._topics[topic].batch_bytes))
        granted = generous if self._pool.has_room(generous) else needed
        if not self._pool.has_room(granted):
            return None
        target = self._topics[topic]
        queue = target.queues[partition]
        if queue.batches and not queue.batches[-1].is_closed:
            self._close(queue.batches[-1])
        batch = ProducerBatch(topic, partition, now_ms)
        queue.batches.append(batch)
        self._pool.reserve(batch, granted)
        target.filling[partition] = batch
        return batch

    def _grant(self, batch: ProducerBatch, size_bytes: int) -> bool:
        """Sets aside what the batch needs to grow by size_bytes, in steps; False when the memory is not there."""
        needed = batch.size_bytes + size_bytes - batch.granted_bytes
        if needed <= 0:
            return True
        room = self._topics[batch.topic].batch_bytes - batch.granted_bytes
        step = max(needed, min(batch.granted_bytes, GRANT_BYTES, room))
        if not self._pool.has_room(step):
            step = needed
        if not self._pool.has_room(step):
            return False
        self._pool.reserve(batch, step)
        if batch.limit_bytes >= 0:
            batch.limit_bytes = batch.granted_bytes
        return True

    def _close(self, batch: ProducerBatch) -> None:
        self._shut(batch)
        self.agenda.look_at(self._queue_of(batch))

    def _shut(self, batch: ProducerBatch) -> None:
        batch.close()
        if self.sticky.get(batch.topic) is batch:
            del self.sticky[batch.topic]
        filling = self._topics[batch.topic].filling
        if filling[batch.partition] is batch:
            filling[batch.partition] = None

    # ---- Draining, on the IO thread ----

    def close(self) -> list[ProducerBatch]:
        """Takes no more records; returns all batches that hold some."""
        for batch in list(self.batches()):
            self._close(batch)
        return self.hurry()

    def hurry(self) -> list[ProducerBatch]:
        """Nothing that is here lingers any more: somebody waits for it. Returns all batches that hold records."""
        waiting = [each for each in self.batches() if len(each)]
        for batch in waiting:
            batch.is_urgent = True
            queue = self._queue_of(batch)
            if not self.agenda.is_held_back(queue):  # else it has lingered already
                self.agenda.look_at(queue)
        return waiting

    @property
    def needs_producer_id(self) -> bool:
        """Whether nothing can start because there is no producer id to number it under."""
        return self._limits.is_idempotent and self.producer_id == NO_PRODUCER_ID

    def ready(self, now_ms: float) -> list[ProducerBatch]:
        """Batches that may go now: of each partition the next one, if it does not pause or linger.

        Each is to be started, deferred or held back, else it is ready again.
        """
        following = ((queue, queue.next_to_go()) for queue in self.agenda.pending(now_ms))
        return [batch for queue, batch in following if batch and self._due_ms(queue, batch) <= now_ms]

    def hold_back(self, batch: ProducerBatch, leader_id: int, now_ms: float) -> None:
        """It is ready, but its leader takes no more requests now: `ready` leaves it out until the agenda brings it
        back.
        """
        queue = self._queue_of(batch)
        if queue.batches[-1].limit_bytes >= 0:  # its timestamp ages
            until_ms = self._next_event_ms(queue, batch, now_ms)
        elif queue.batches[0] is batch:
            until_ms = self.deadline_ms(batch)
        else:
            until_ms = NEVER  # the end of what is in flight before it brings it up
        self.agenda.hold_back(queue, leader_id, until_ms)

    def start(self, batch: ProducerBatch) -> None:
        """The batch goes now: fixes its records, and their sequence."""
        assert not batch.is_in_flight, repr(batch)
        queue = self._queue_of(batch)
        assert batch in queue.batches, repr(batch)
        self._shut(batch)
        if queue.batches[-1] is batch:
            self.agenda.done(queue)
        else:
            self.agenda.look_at(queue)  # another batch may follow
        batch.seal()
        batch.is_in_flight = True
        batch.went_first = queue.first is batch
        if self._limits.is_idempotent and batch.sequence is None:
            assert self.producer_id != NO_PRODUCER_ID, repr(batch)
            queue.start(batch, self.producer_id)

    def defer(self, batch: ProducerBatch, error: RaykaError | None, not_before_ms: float) -> None:
        """The batch could not go, or failed in a way that passes: it keeps its place, for another try after a pause."""
        batch.is_in_flight = False
        batch.failure_count += 1
        batch.last_error = error or batch.last_error
        queue = self._queue_of(batch)
        queue.not_before_ms = not_before_ms
        self._settle(queue)

    def go_at_once(self, topic: str, partition: int) -> None:
        """What paused after a failure goes without delay: the cause is gone."""
        known = self._topics.get(topic)
        if known is not None and partition < len(known.queues):
            known.queues[partition].not_before_ms = 0.0
            self.agenda.look_at(known.queues[partition])

    def on_out_of_order(self, batch: ProducerBatch) -> None:
        """The log lacks something before this batch, which is to be deferred now.

        If that was not another one on its way, it will never come: what is left is numbered anew (C11). Numbered anew
        must not be what the log has after all:
        1. two batches are in flight, and the first is lost; the second is out of order, but its answer takes long;
        2. the first goes again, and is acknowledged; a late copy of the second comes behind it, and is taken;
        3. the answer of 1 arrives: nothing is before the second batch any more, though there was when it went.
        It goes again, alone, and the log knows it.
        """
        queue = self._queue_of(batch)
        if queue.first is batch and batch.went_first:
            queue.sequences.needs_new_epoch = True

    def go_on(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int) -> None:
        """The log has the first part of a batch that became several: the next part is to go."""
        assert self.holds(batch), repr(batch)
        queue = self._queue_of(batch)
        if batch.sequence is not None:
            queue.sequences.on_acknowledged(batch.sequence.base_sequence, batch.part_count)
        batch.acknowledge_part(base_offset, log_append_time_ms)
        batch.is_in_flight = False
        self._settle(queue)

    def finish(self, batch: ProducerBatch, *, is_acknowledged: bool) -> None:
        """The batch is over. Nothing to do for one of a removed topic."""
        if not self.holds(batch):
            return
        if not batch.is_closed:  # it was never sent
            self._shut(batch)
        queue = self._queue_of(batch)
        queue.remove(batch)
        self._pool.release(batch)
        if batch.sequence is not None:
            on_over = queue.sequences.on_acknowledged if is_acknowledged else queue.sequences.on_failed
            on_over(batch.sequence.base_sequence, batch.left_count)
        self._settle(queue)

    def _settle(self, queue: PartitionQueue) -> None:
        if queue.batches:
            self.agenda.look_at(queue)
        else:
            self.agenda.done(queue)
        producer_id = queue.sequences.producer_id
        queue.settle()
        if queue.sequences.producer_id != producer_id == self.producer_id:
            self.producer_id = NO_PRODUCER_ID  # its epochs are used up: no partition begins under it any more

    def holds(self, batch: ProducerBatch) -> bool:
        """Whether the batch is one of its partition; after its topic was removed it is not."""
        topic = self._topics.get(batch.topic)
        if topic is None or batch.partition >= len(topic.queues):
            return False
        return batch in topic.queues[batch.partition].batches

    def expired(self, now_ms: float) -> list[ProducerBatch]:
        """Of each partition the first batches, as far as they wait and have had their time; the sender fails them.

        All of them, for `tick` tells no moment that has passed: one that is left would wait for whatever comes next.
        """

        def is_over(batch: ProducerBatch) -> bool:
            return _is_idle(batch) and self.deadline_ms(batch) <= now_ms

        begun_ms = now_ms - self._limits.delivery_timeout_ms
        late = [
            each
            for each in self.agenda.pending(now_ms)
            if each.batches and each.batches[0].created_ms <= begun_ms
        ]
        return [batch for queue in late for batch in takewhile(is_over, queue.batches)]

    def deadline_ms(self, batch: ProducerBatch) -> float:
        """When the batch is given up."""
        return batch.created_ms + self._limits.delivery_timeout_ms

    def tick(self, now_ms: float) -> float | None:
        """When to look again, None if only an answer or an append can change anything.

        Sends the next append to a batch whose timestamp is too old through the lock, where it gets a new one.
        """
        for queue in self.agenda.pending(now_ms):
            last, following = queue.last, queue.next_to_go()
            if last is not None and last.limit_bytes >= 0 and last.stamped_ms + STAMP_AGE_MS <= now_ms:
                last.limit_bytes = NOT_OPEN
            self.agenda.set_alarm(queue, self._next_event_ms(queue, following, now_ms))
            if following is None or self._due_ms(queue, following) > now_ms:
                self.agenda.done(queue)
        next_ms = self.agenda.next_ms()
        return None if next_ms == NEVER else next_ms

    def _next_event_ms(self, queue: PartitionQueue, following: ProducerBatch | None, now_ms: float) -> float:
        """When time changes what is to be done for the partition, whose next batch is given, later than now."""
        if not queue.batches:
            return NEVER
        head, last = queue.batches[0], queue.batches[-1]
        next_ms = NEVER
        if following is not None:
            due_ms = self._due_ms(queue, following)
            if due_ms > now_ms:
                next_ms = due_ms
        if _is_idle(head) and now_ms < self.deadline_ms(head) < next_ms:
            next_ms = self.deadline_ms(head)
        if last.limit_bytes >= 0 and now_ms < last.stamped_ms + STAMP_AGE_MS < next_ms:
            next_ms = last.stamped_ms + STAMP_AGE_MS
        return next_ms

    def next_ms(self) -> float:
        """When the sender is to look at what is here, or before: -1 for at once, NEVER if only an append can change
        anything.
        """
        return -1 if self.agenda.has_pending else self.agenda.soonest_ms

    def _due_ms(self, queue: PartitionQueue, batch: ProducerBatch) -> float:
        if batch.is_closed or batch.is_urgent:
            return queue.not_before_ms
        return max(queue.not_before_ms, batch.created_ms + self._limits.linger_ms)

    def _target(self, topic: str, partition: int | None = None) -> TopicQueues:
        known = self._topics.get(topic)
        if known is None:
            raise NoSuchTopic(f"topic {topic!r} was deleted")
        if partition is not None and partition >= len(known.queues):
            raise NoSuchTopic(f"topic {topic!r} was made anew with {len(known.queues)} partitions")
        return known

    def _queue_of(self, batch: ProducerBatch) -> PartitionQueue:
        return self._topics[batch.topic].queues[batch.partition]


def _batches(topics: Mapping[str, TopicQueues]) -> Iterator[ProducerBatch]:
    for topic in topics.values():
        for queue in topic.queues:
            yield from queue.batches


def _is_idle(batch: ProducerBatch) -> bool:
    return not batch.is_in_flight and len(batch) > 0
