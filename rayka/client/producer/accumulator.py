"""The records that a producer has taken and the log has not: which batch takes one, which may go, which are over.

The accumulator holds the producer's only lock: application threads append, the IO thread drains and ends batches, and
callers that wait for memory stand in line under it. Its parts (queues, agenda, memory, producer id) are reached
through it alone. It has no clock: `now_ms` and timestamps come in.

Invariants: batches of a partition stand in the order of their records and stay there until they are done, so order
survives retries (`partition_queue`); memory set aside never exceeds `buffer_memory` (`buffer_pool`); a
KeyboardInterrupt between any two steps of an append loses at most the record being appended. What an append or a look
at what is ready costs does not depend on the number of partitions (`agenda`).

Partitioning: a keyed record goes where Kafka would put it (murmur2); without a key, records stick to one partition
until its batch is closed, then to the one with the shortest queue. Kafka: RecordAccumulator, BufferPool.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from rayka.client import io_thread
from rayka.client.producer.acknowledgement import PartEnd
from rayka.client.producer.delivery_future import DeliveryFuture, OnDelivery, future_in
from rayka.client.producer.drain_schedule import APPENDING_MS, Agenda, Dispatch, WakeUps
from rayka.client.producer.partition_queue import NEVER, Limits, PartitionQueue
from rayka.client.producer.producer_batch import ProducerBatch
from rayka.client.producer.producer_identity import ProducerIdentity
from rayka.client.producer.producer_topics import MemoryLine, MemoryTurn, ProducerTopics
from rayka.client.producer.record_columns import Columns, Moment
from rayka.errors import ClosedError, InvariantBroken, NoSuchTopic, OutOfOrderSequence, RaykaError
from rayka.ids import NO_NODE

# Sends by code that has interrupted its own thread within a step of the producer.
#
# A signal handler runs between two instructions of the main thread, a finalizer between two of any thread; both may
# send. The accumulator may be halfway through a change then, in a frame that goes on only when they return, so
# waiting for its lock would never end. Such a send touches nothing of the interrupted step:
#
# 1. the record gets a batch of its own, which waits here, and the IO thread is woken;
# 2. the handler returns, and the step that it has interrupted ends;
# 3. the thread puts the batch behind the others of its partition before it sends anything else. Where an exception
#    ends the step, the next step does that, at the latest the IO thread's.
#
# Invariants: the order of sends is kept; what waits here is bounded. Kafka has nothing of the kind: Java runs no code
# in the middle of another's.


COUNT_MAX = 1_000
# The partition of a batch until `adopt` chooses one.
_ANY = -1


class InterruptingSends:
    """The batches of such sends. `batches`: those that wait for the end of a step, each with its partition or None."""

    def __init__(self, topics: ProducerTopics, lock: AbstractContextManager[object]) -> None:
        self._topics = topics
        self._lock = lock
        self.batches: deque[tuple[ProducerBatch, int | None]] = deque()

    def __repr__(self) -> str:
        return f"<InterruptingSends {len(self.batches)}>"

    def add(
        self,
        topic: str,
        partition: int | None,
        slot: Any,
        key: bytes | None,
        size_bytes: int,
        at: Moment,
    ) -> DeliveryFuture | None:
        """Takes one record; None when `COUNT_MAX` batches wait."""
        if len(self.batches) >= COUNT_MAX:
            return None
        batch = ProducerBatch(topic, _ANY if partition is None else partition, at.now_ms)
        batch.stamp(at.timestamp_ms, at.now_ms)
        batch.size_bytes += size_bytes
        batch.is_pinned = partition is not None and key is None
        future = future_in(batch, slot, key)
        batch.records.append(future)
        self.batches.append((batch, partition))
        return future

    def add_columns(
        self,
        topic: str,
        partition: int | None,
        columns: Columns,
        size_bytes: int,
        now_ms: float,
        *,
        is_pinned: bool,
    ) -> tuple[ProducerBatch, int] | None:
        """Takes columns: their batch and the index of the first record; None when `COUNT_MAX` batches wait."""
        if len(self.batches) >= COUNT_MAX:
            return None
        batch = ProducerBatch(topic, _ANY if partition is None else partition, now_ms)
        batch.is_pinned = is_pinned
        index = batch.add_columns(columns, size_bytes)
        self.batches.append((batch, partition))
        return batch, index

    def settle(self) -> None:
        """Puts the batches behind those of their partitions. Not called within a step that may be interrupted."""
        with self._lock:
            while self.batches:
                batch, partition = self.batches[0]
                try:
                    # An exception of a signal handler may have come between this line and the last one of the loop.
                    if self._topics.queue_with(batch) is None:
                        self._topics.adopt(batch, partition)
                except NoSuchTopic as error:
                    for callback in batch.fail(error):
                        io_thread.call_soon(callback)
                self.batches.popleft()


OPENED_AT = 8  # records of one partition


class Accumulator:
    """See the module. `wake` has the sender drain soon."""

    def __init__(self, limits: Limits, wake: Callable[[], object]) -> None:
        self._lock = io_thread.step_lock()
        # Whether the caller has interrupted a step of its own thread.
        self._is_in_step = io_thread.ownership(self._lock)
        self.agenda = Agenda()
        self.identity = ProducerIdentity(is_idempotent=limits.is_idempotent)
        self.line = MemoryLine(self._lock)
        self.topics = ProducerTopics(limits, self.agenda, self.line)
        self._interrupting = InterruptingSends(self.topics, self._lock)
        # Looked at by each append.
        self._interrupting_batches = self._interrupting.batches
        self._linger_ms = limits.linger_ms
        self._backlog_ms_max = limits.delivery_timeout_ms / 4
        self._wake_ups = WakeUps(wake)
        self._appended_ms = -NEVER
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Accumulator batches={len(self.batches())} {self.topics!r}>"

    def batches(self) -> list[ProducerBatch]:
        """All that are not done."""
        with self._lock:
            return list(self.topics)

    # ---- Topics ----

    def set_topic(self, name: str, partition_count: int, message_bytes_max: int) -> None:
        """Takes the topic as the metadata has it now."""
        with self._lock:
            self.topics.put(name, partition_count, message_bytes_max)
        if self.topics.departing:
            self._wake_ups.wake()

    def move_departing(self) -> list[ProducerBatch]:
        """Moves batches of partitions that are gone; returns those that can go to no other, to be failed."""
        with self._lock:
            return self.topics.move_departing()

    def remove_topic(self, name: str) -> list[ProducerBatch]:
        """Forgets a topic that is gone; returns its batches, to be failed."""
        with self._lock:
            return self.topics.remove(name)

    def forget_idle(self, name: str) -> bool:
        """Forgets the topic unless it is in use: a batch is left, or a thread has looked for it since the last call.
        Whether the topic is not known any more.

        A race with `Outbox.knows`, which takes no lock:
        1. this method takes the topic away, then looks at its mark `is_wanted`; with a mark it puts the topic back;
        2. a thread that wants the topic finds it, sets the mark, then looks whether the topic is still there.
        So either this method sees the mark, or the thread sees that the topic is gone, and learns it anew.
        """
        with self._lock:
            known = self.topics.get(name)
            if known is None:
                return True
            if not self.topics.holds_none(name) or not self.topics.take_away(name, known):
                return False
            self.identity.on_forgotten(known.queues)
            return True

    # ---- Gathering ----

    def append(
        self,
        topic: str,
        partition: int | None,
        slot: Any,
        size_bytes: int,
        at: Moment,
        *,
        key: bytes | None = None,
        on_delivery: OnDelivery | None = None,
        turn: MemoryTurn | None = None,
    ) -> DeliveryFuture | None:
        """Adds one record, a value and its key or a `Row`; None when the memory for it is not there, or others wait for
        memory. `turn` is the caller's own place among these, if it waits. With `key` it is the key that has chosen the
        partition: the record may go to another one.

        Its batch takes more without the lock afterwards, as far as its memory reaches; one of a partition that is given
        only once it has a few, for of thousands of partitions most batches get no more.
        """
        if self._is_in_step():
            self._check_open()
            future = self._interrupting.add(topic, partition, slot, key, size_bytes, at)
            if future is not None and on_delivery is not None:
                future.report_to(on_delivery)
            self._wake_ups.wake()
            return future
        with self._lock:
            self._check_open()
            self.line.current = turn
            batch = self.topics.for_record(topic, partition, size_bytes, at.now_ms)
            if batch is None:
                return None
            if batch.limit_bytes < 0:
                batch.stamp(at.timestamp_ms, at.now_ms)
            if not batch.records:
                self.agenda.look_in_time(self.topics.queue_of(batch), batch, self._linger_ms)
            self._appended_ms = at.now_ms
            batch.size_bytes += size_bytes
            future = future_in(batch, slot, key)
            batch.is_pinned |= partition is not None and key is None
            batch.records.append(future)
            if on_delivery is not None:
                future.report_to(on_delivery)
            is_wake_up_due = self._wake_ups.is_due(self.agenda.soonest_ms)
            if partition is None:
                self.topics.sticky[topic] = batch
            # Not before a wake-up: a batch that fills without it and without the lock would linger without end.
            if not is_wake_up_due and (partition is None or len(batch.records) >= OPENED_AT):
                self.topics.open(batch, at.timestamp_ms, at.now_ms)
        if is_wake_up_due:
            self._wake_ups.wake()
        if self._interrupting_batches:
            self._interrupting.settle()
        return future

    def append_next(
        self, topic: str, partition: int, value: bytes, key: bytes, size_bytes: int, at: Moment
    ) -> DeliveryFuture | None:
        """As `append`, of a record behind others whose batch has the memory for it and is not about to open: nothing
        else is to be done for it. None for any other.
        """
        if self._is_in_step():
            return None
        with self._lock:
            known = self.topics.by_key.get(topic)
            batch = known.filling[partition] if known is not None and partition < len(known.filling) else None
            if batch is None or batch.limit_bytes >= 0 or self._is_closed:
                return None
            records, filled_bytes = batch.records, batch.size_bytes + size_bytes
            if filled_bytes > batch.granted_bytes or not 0 < len(records) < OPENED_AT - 1:
                return None
            batch.stamp(at.timestamp_ms, at.now_ms)
            self._appended_ms = at.now_ms
            batch.size_bytes = filled_bytes
            batch.has_keys = True
            future = DeliveryFuture(batch, value, key)
            records.append(future)
        if self._interrupting_batches:
            self._interrupting.settle()
        return future

    def is_counted(self, future: DeliveryFuture) -> bool:
        """Whether its batch, which was sealed meanwhile, has the record, which was added without the lock."""
        with self._lock:
            return type(future.slot) is int

    def add_columns(
        self,
        topic: str,
        partition: int | None,
        columns: Columns,
        size_bytes: int,
        now_ms: float,
        turn: MemoryTurn | None = None,
        *,
        is_pinned: bool = True,
    ) -> tuple[ProducerBatch, int] | None:
        """Adds Arrow columns, at most a batch's worth: the batch and the index of the first. None and `is_pinned` as
        `append`.

        Without a partition they go to the last sticky one, while its batch takes them, then to the next.
        """
        if self._is_in_step():
            self._check_open()
            pinned = is_pinned and partition is not None
            added = self._interrupting.add_columns(
                topic, partition, columns, size_bytes, now_ms, is_pinned=pinned
            )
            self._wake_ups.wake()
            return added
        with self._lock:
            self._check_open()
            self.line.current = turn
            pinned = is_pinned and partition is not None
            added = self.topics.add_columns(topic, partition, columns, size_bytes, now_ms, is_pinned=pinned)
        self._wake_ups.wake_in_time(self.agenda.soonest_ms)
        if self._interrupting_batches:
            self._interrupting.settle()
        return added

    def _check_open(self) -> None:
        """Under the lock: behind a `close` in another thread a record would never end."""
        if self._is_closed:
            raise ClosedError("the producer is closed: make a new Producer")

    # ---- Sending ----

    def end_linger(self) -> list[ProducerBatch]:
        """Nothing that is here lingers any more: a caller waits for it. Returns all batches that hold records."""
        with self._lock:
            self._interrupting.settle()
            waiting = [each for each in self.topics if len(each)]
            for batch in waiting:
                batch.is_urgent = True
                queue = self.topics.queue_with(batch)
                # A queue that is held back has lingered already.
                if queue is not None and not self.agenda.is_held_back(queue):
                    self.agenda.look_at(queue)
        if waiting:
            self._wake_ups.wake()
        return waiting

    def close(self) -> list[ProducerBatch]:
        """Takes no more records; returns all batches that hold some."""
        with self._lock:
            self._is_closed = True
            self.topics.close_open()
        return self.end_linger()

    def drain(self, now_ms: float, dispatch: Dispatch) -> tuple[list[ProducerBatch], float]:
        """Starts what is ready, as far as leaders take it; returns batches that have had their time, to be failed, and
        when to drain again: NEVER if only an answer or an append can change anything.
        """
        with self._lock:
            self._wake_ups.on_drain()
            self._interrupting.settle()
            expired = self.agenda.expired(now_ms)
            for batch in expired:
                self._finish(batch, is_acknowledged=False)
            fills_until_ms = self._bring_back(now_ms, dispatch)
            while self._start_ready(now_ms, dispatch):
                pass
            looks_ms = self._wake_ups.looks_ms = min(self.agenda.tick(now_ms), fills_until_ms)
            return expired, looks_ms

    def _bring_back(self, now_ms: float, dispatch: Dispatch) -> float:
        """What leaders were too busy for goes as far as they take it now; returns when to see to what fills on.

        While records come, a backlog of open batches fills for as long as the leader would take for it: each record
        that is in time for a batch saves another one, and the last is sent no later than if all had gone at once.
        """
        fills_until_ms = NEVER
        for leader_id in self.agenda.busy_leaders:
            first, count = self.agenda.backlog(leader_id)
            if first is not None and self._appended_ms + APPENDING_MS > now_ms:
                full_ms = first.created_ms + min(dispatch.backlog_ms(leader_id, count), self._backlog_ms_max)
                if full_ms > now_ms:
                    fills_until_ms = min(fills_until_ms, full_ms, self._appended_ms + APPENDING_MS)
                    continue
            if places := dispatch.free_places(leader_id):
                self.agenda.bring_back(leader_id, places)
        return fills_until_ms

    def _start_ready(self, now_ms: float, dispatch: Dispatch) -> bool:
        """Starts the next batch of each partition that has one to go; False when nothing was started."""
        dispatch.close_requests()  # a request has one batch of a partition at most
        is_any = False
        for queue, batch in self.agenda.ready(now_ms):
            leader_id = dispatch.leader_of(batch)
            if leader_id == NO_NODE:
                self._defer(queue, batch, *dispatch.on_no_leader(batch))
            elif self.identity.is_missing:
                dispatch.on_no_producer_id(leader_id, batch.topic)
                break
            elif dispatch.take(leader_id, batch):
                self._start(queue, batch)
                is_any = True
            else:
                self.agenda.hold_back(queue, batch, leader_id, now_ms)
        return is_any

    def _start(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """The batch goes now: fixes its records, and their sequence."""
        if batch.is_in_flight:
            raise InvariantBroken(f"{batch!r} is in flight already")
        self.topics.close(batch)
        emptied = batch.seal()
        if emptied is not None:
            queue.spare_records = emptied
        batch.is_in_flight = True
        self.identity.number(queue, batch)
        self.agenda.look_behind(queue, batch)

    # ---- What becomes of batches ----

    def ready(self, now_ms: float) -> list[ProducerBatch]:
        """Batches that may go now."""
        with self._lock:
            return [batch for _, batch in self.agenda.ready(now_ms)]

    def defer(self, batch: ProducerBatch, error: RaykaError, not_before_ms: float) -> bool:
        """The batch failed in a way that passes: it keeps its place, for another try after a pause. False if its topic
        is gone.
        """
        with self._lock:
            queue = self.topics.queue_with(batch)
            if queue is None:
                return False
            self._defer(queue, batch, error, not_before_ms)
            return True

    def _defer(
        self, queue: PartitionQueue, batch: ProducerBatch, error: RaykaError, not_before_ms: float
    ) -> None:
        batch.is_in_flight = False
        batch.last_error = error
        # Else the log lacks what it has refused before this batch, and all are numbered anew: nothing to wait for.
        if not (isinstance(error, OutOfOrderSequence) and queue.sequences.needs_new_epoch):
            if isinstance(error, OutOfOrderSequence):
                self.identity.on_out_of_order(queue, batch)
            batch.failure_count += 1
            queue.not_before_ms = not_before_ms
        self._settle(queue)

    def on_new_leaders(self, topic: str, partitions: Iterable[int]) -> None:
        """What paused after a failure of its leader, or was held back for a busy one, goes without delay."""
        with self._lock:
            known = self.topics.get(topic)
            queues = [] if known is None else known.queues
            for partition in partitions:
                if partition < len(queues):
                    queues[partition].not_before_ms = 0.0
                    self.agenda.look_at(queues[partition])
            self.agenda.bring_all_back()
        self._wake_ups.wake_in_time(self.agenda.soonest_ms)

    def go_on(
        self, batch: ProducerBatch, end: PartEnd | None = None, *, has_fewer_records: bool = False
    ) -> bool:
        """Sends the rest of a batch now, after a part of it ended, was split, or lost records that the log refused.
        False if no record is left, or the topic is gone: then the caller ends the batch.
        """
        with self._lock:
            queue = self.topics.queue_with(batch)
            if queue is not None and has_fewer_records:
                self.identity.on_refused(queue, batch)
            if queue is not None and end is not None:
                self.identity.on_over(queue, batch, batch.part_count, is_acknowledged=end.error is None)
            if end is not None:
                batch.end_part(end)
            if queue is None or not batch.left_count:
                return False
            batch.is_in_flight = False
            self._settle(queue)
            return True

    def finish(self, batches: Sequence[ProducerBatch], *, is_acknowledged: bool) -> None:
        """The batches are over. Nothing to do for one of a partition that is gone."""
        with self._lock:
            for batch in batches:
                self._finish(batch, is_acknowledged=is_acknowledged)
            callback = self.line.on_news()
        if callback is not None:
            callback()

    def _finish(self, batch: ProducerBatch, *, is_acknowledged: bool) -> None:
        queue = self.topics.queue_with(batch)
        if queue is None:
            return
        # It was never sent.
        if not batch.is_closed:
            self.topics.close(batch)
        queue.remove(batch)
        self.topics.pool.release(batch)
        self.identity.on_over(queue, batch, batch.left_count, is_acknowledged=is_acknowledged)
        self._settle(queue)

    def _settle(self, queue: PartitionQueue) -> None:
        self.agenda.look_behind(queue, None)
        self.identity.settle(queue)
