"""The accumulator: the records that a producer accepted and has no result for, in batches by partition.

The accumulator holds the producer's only lock. Under the lock application threads append, the IO thread drains and ends
batches, and callers wait in line for memory. Only the accumulator reaches its parts (queues, schedule, memory, producer
id). The accumulator has no clock: `now_ms` and timestamps are arguments.

Invariants:
- Batches of a partition stand in the order of their records until they are done, so retries keep the order
  (`partition_queue`).
- No append reserves memory beyond `buffer_memory` (`BufferPool`); only sends of interrupting code exceed it.
- A KeyboardInterrupt between any two steps of an append loses at most the record being appended.
- The cost of an append, or of a look at the ready batches, does not depend on the number of partitions
  (`drain_schedule`).

Partitioning: a keyed record goes to the same partition as in Kafka (murmur2). Keyless records stick to one partition
until its batch is closed, then to the partition with the shortest queue. Kafka: RecordAccumulator, BufferPool.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import msgspec

from rayka.client import io_thread
from rayka.client.producer.acknowledgement import PartEnd
from rayka.client.producer.arrow_input import Piece
from rayka.client.producer.delivery_future import DeliveryFuture
from rayka.client.producer.drain_schedule import APPENDING_MS, DrainSchedule, LeaderRequests
from rayka.client.producer.partition_queue import NEVER, Limits, PartitionQueue
from rayka.client.producer.producer_batch import FILLING, IN_FLIGHT, BatchState, ProducerBatch
from rayka.client.producer.producer_identity import ProducerIdentity
from rayka.client.producer.producer_topics import MemoryLine, MemoryTurn, ProducerTopics
from rayka.client.producer.record_columns import Moment, PreparedRecord, Row
from rayka.errors import ClosedError, LeaderNotAvailable, NoSuchTopic, OutOfOrderSequence, RaykaError
from rayka.ids import NO_NODE

# A batch of a keyed or named partition opens for appends without the lock once it has so many records.
OPENED_AT = 8
# Bound of batches that wait in `InterruptingSends`.
INTERRUPTING_MAX = 1_000
# Partition of a batch in `InterruptingSends` until `adopt` chooses one.
_ANY = -1


class DrainPlan(msgspec.Struct, eq=False):
    """Decisions of one drain; the sender carries them out."""

    # Batches older than `delivery_timeout_ms`; the sender fails them.
    expired: list[ProducerBatch] = []
    # Pinned batches of a deleted partition; the sender fails them.
    unplaced: list[ProducerBatch] = []
    # Batches whose partition has no leader; they wait for another try.
    leaderless: list[ProducerBatch] = []
    # Leader id and batches of each request, in the order of sending.
    requests: list[tuple[int, list[ProducerBatch]]] = []
    # Leader id and batch of a ready batch that lacks a producer id.
    unnumbered: tuple[int, ProducerBatch] | None = None
    # Time of the next drain: NEVER if only an answer or an append can create work.
    next_ms: float = NEVER


class InterruptingSends:
    """Holds records sent by a signal handler or finalizer that interrupted a step of the producer in its own thread.

    A signal handler runs between two instructions of the main thread, a finalizer between two instructions of any
    thread; both may send. The interrupted step may hold the accumulator's lock, and resumes only when the handler
    returns. So a handler that waits for the lock would wait for ever. Such a send leaves the interrupted step alone:

    1. the record gets its own batch, which waits here, and the IO thread is woken;
    2. the handler returns, and the interrupted step ends;
    3. the thread puts the batch behind the other batches of its partition before the thread sends again. If an
       exception ends the step, the next step moves the batch, at the latest the IO thread's drain.

    Invariants: the order of sends is kept; at most INTERRUPTING_MAX batches wait. Kafka has no counterpart, because
    Java runs no handler inside another thread's code.
    """

    def __init__(self, topics: ProducerTopics, lock: AbstractContextManager[object]) -> None:
        self._topics = topics
        self._lock = lock
        # Waiting batches, each with its partition or None, and the key that chooses the partition or None.
        self.batches: deque[tuple[ProducerBatch, int | None, bytes | None]] = deque()

    def add(self, record: PreparedRecord, at: Moment) -> DeliveryFuture | None:
        """Takes one record; None when INTERRUPTING_MAX batches wait."""
        if len(self.batches) >= INTERRUPTING_MAX:
            return None
        batch = ProducerBatch(record.topic, _ANY, at.now_ms)
        batch.stamp(at.timestamp_ms, at.now_ms)
        future = _added(batch, record)
        self.batches.append((batch, record.partition, record.key))
        return future

    def add_columns(self, piece: Piece, now_ms: float) -> tuple[ProducerBatch, int] | None:
        """Takes columns: their batch and the index of the first record; None when INTERRUPTING_MAX batches wait."""
        if len(self.batches) >= INTERRUPTING_MAX:
            return None
        batch = ProducerBatch(piece.topic, _ANY, now_ms)
        batch.is_pinned = piece.is_pinned
        index = batch.add_columns(piece.columns, piece.size_bytes)
        self.batches.append((batch, piece.partition, None))
        return batch, index

    def settle(self) -> None:
        """Moves the batches to the ends of their partitions' queues. Not called inside an interruptible step."""
        with self._lock:
            while self.batches:
                batch, partition, key = self.batches[0]
                try:
                    # Else a batch would stand twice: an exception of a signal handler may come before `popleft`.
                    if self._topics.queue_with(batch) is None:
                        if partition is None and key is not None:
                            queues = self._topics.known(batch.topic, None).queues
                            partition = self._topics.hash_of[key] % len(queues)
                        self._topics.adopt(batch, partition)
                except NoSuchTopic as error:
                    for callback in batch.fail(error):
                        io_thread.call_soon(callback)
                self.batches.popleft()


class Accumulator:
    """All batches of a producer that are not done. `wake` makes the sender drain soon."""

    def __init__(self, limits: Limits, wake: Callable[[], object]) -> None:
        self._lock = io_thread.step_lock()
        # Whether the caller has interrupted a step of its own thread.
        self._is_in_step = io_thread.ownership(self._lock)
        self.schedule = DrainSchedule(wake)
        self.identity = ProducerIdentity(is_idempotent=limits.is_idempotent)
        self.line = MemoryLine(self._lock)
        self.topics = ProducerTopics(limits, self.schedule, self.line)
        self._interrupting = InterruptingSends(self.topics, self._lock)
        # Read by each append, so without a look-up in between.
        self._interrupting_batches = self._interrupting.batches
        self._linger_ms = limits.linger_ms
        self._delivery_timeout_ms = limits.delivery_timeout_ms
        self._appended_ms = -NEVER
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Accumulator batches={len(self.batches())} {self.topics!r}>"

    def batches(self) -> list[ProducerBatch]:
        """All batches that are not done."""
        with self._lock:
            return list(self.topics)

    # ---- Topics ----

    def set_topic(self, name: str, partition_count: int, message_bytes_max: int) -> None:
        """Updates the topic's partitions and batch size from new metadata."""
        with self._lock:
            self.topics.put(name, partition_count, message_bytes_max)
        if self.topics.departing:
            self.schedule.wake()

    def remove_topic(self, name: str) -> list[ProducerBatch]:
        """Forgets a deleted topic; returns its batches, which the caller fails."""
        with self._lock:
            return self.topics.remove(name)

    def forget_idle(self, name: str) -> bool:
        """Forgets the topic unless the topic is in use; returns whether the topic is unknown now.

        A topic is in use while it has a batch, or if a thread has looked up the topic since the last call.

        A race with `ProducerCore.knows`, which takes no lock:
        1. this method removes the topic, then reads the mark `is_wanted`; with the mark set it puts the topic back;
        2. a thread that wants the topic finds it, sets the mark, then checks that the topic is still there.
        So either this method sees the mark, or the thread misses the topic and asks for its metadata again.
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

    def try_append(
        self, record: PreparedRecord, at: Moment, turn: MemoryTurn | None = None
    ) -> DeliveryFuture | None:
        """Adds one record; None if its memory is not free, or if other callers wait for memory before this one. `turn`
        is the place in the line of a caller that waits.

        Opens the batch for appends without the lock, within its reserved memory. The batch of a named or keyed
        partition opens only after OPENED_AT records: with thousands of partitions most batches stay small.
        """
        if self._is_in_step():
            self._check_open()
            future = self._interrupting.add(record, at)
            self.schedule.wake()
            return future
        topics, topic, size_bytes, key = self.topics, record.topic, record.size_bytes, record.key
        with self._lock:
            if self._is_closed:
                self._check_open()
            partition, target = record.partition, topics.by_key.get(topic)
            if target is None or (partition is not None and partition >= len(target.filling)):
                target = topics.known(topic, partition)
            if partition is None and key is not None:
                partition = topics.hash_of[key] % len(target.filling)
            batch = topics.sticky.get(topic) if partition is None else target.filling[partition]
            if batch is None or batch.size_bytes + size_bytes > batch.granted_bytes:
                self.line.current = turn
                batch = topics.batch_with_room(target, topic, partition, size_bytes, at.now_ms)
                if batch is None:
                    return None
            if not batch.records:
                self.schedule.on_first_record(target.queues[batch.partition], batch, self._linger_ms)
            if batch.limit_bytes < 0 and batch.stamp_ms != at.timestamp_ms:
                batch.stamp(at.timestamp_ms, at.now_ms)
            self._appended_ms = at.now_ms
            future = _added(batch, record)
            is_wake_up_due = self.schedule.is_wake_up_due()
            if partition is None:
                topics.sticky[topic] = batch
            has_a_few = partition is None or len(batch.records) >= OPENED_AT
            # A batch that opened before the wake-up would fill without the lock and linger without end.
            if has_a_few and batch.limit_bytes < 0 and not is_wake_up_due:
                topics.open(batch, at.timestamp_ms, at.now_ms)
        if is_wake_up_due:
            self.schedule.wake()
        if self._interrupting_batches:
            self._interrupting.settle()
        return future

    def is_counted(self, future: DeliveryFuture) -> bool:
        """Whether the sealed batch of the future counted its record, which was added without the lock."""
        with self._lock:
            return type(future.slot) is int

    def try_append_columns(
        self, piece: Piece, now_ms: float, turn: MemoryTurn | None = None
    ) -> tuple[ProducerBatch, int] | None:
        """Adds Arrow columns that fit one batch; returns the batch and the index of the first record. None as for
        `try_append`.
        """
        if self._is_in_step():
            self._check_open()
            added = self._interrupting.add_columns(piece, now_ms)
            self.schedule.wake()
            return added
        with self._lock:
            self._check_open()
            self.line.current = turn
            added = self.topics.add_columns(piece, now_ms)
        if self.schedule.is_wake_up_due():
            self.schedule.wake()
        if self._interrupting_batches:
            self._interrupting.settle()
        return added

    def _check_open(self) -> None:
        """Raises ClosedError after `close`. Called under the lock: a record added after `close` would never end."""
        if self._is_closed:
            raise ClosedError("the producer is closed: make a new Producer")

    # ---- Sending ----

    def end_linger(self) -> list[ProducerBatch]:
        """Ends the linger time of all batches, because a caller waits for them. Returns all batches with records."""
        with self._lock:
            self._interrupting.settle()
            waiting = [each for each in self.topics if len(each)]
            for batch in waiting:
                batch.is_urgent = True
                queue = self.topics.queue_with(batch)
                # A held queue is past its linger time, and must keep its place in the line for the leader.
                if queue is not None and not self.schedule.is_held(queue):
                    self.schedule.add(queue)
        if waiting:
            self.schedule.wake()
        return waiting

    def close(self) -> list[ProducerBatch]:
        """Takes no more records; returns all batches with records."""
        with self._lock:
            self._is_closed = True
            self.topics.close_open()
        return self.end_linger()

    def drain(self, now_ms: float, requests: LeaderRequests) -> DrainPlan:
        """Starts the ready batches, as many as their leaders accept, and ends the expired ones; returns the plan."""
        with self._lock:
            plan, schedule = DrainPlan(), self.schedule
            schedule.on_drain()
            if self._interrupting_batches:
                self._interrupting.settle()
            if self.topics.departing:
                plan.unplaced = self.topics.move_departing()
            # All expired batches must end here: `reschedule` returns no past moment, so a batch left over would wait
            # for the next event of any kind.
            begun_ms = now_ms - self._delivery_timeout_ms
            for queue in schedule.pending(now_ms):
                if queue.batches and queue.batches[0].created_ms <= begun_ms:
                    plan.expired += queue.expired(now_ms)
            for batch in plan.expired:
                self._finish(batch, is_acknowledged=False)
            fills_until_ms = self._release_held(now_ms, requests)
            while self._start_ready(now_ms, requests, plan):
                pass
            plan.requests = requests.take()
            plan.next_ms = schedule.looks_ms = min(schedule.reschedule(now_ms), fills_until_ms)
            return plan

    def _release_held(self, now_ms: float, requests: LeaderRequests) -> float:
        """Releases queues held for busy leaders, as many as each leader accepts. Returns the time of the next look at
        backlogs that still fill.

        While records arrive, waits as long as the leader would need for the backlog: fuller batches, no later end.
        """
        fills_until_ms = NEVER
        for leader_id in self.schedule.busy_leaders:
            first, count = self.schedule.backlog(leader_id)
            if first is not None and self._appended_ms + APPENDING_MS > now_ms:
                fill_ms = min(requests.backlog_ms(leader_id, count), self._delivery_timeout_ms / 4)
                full_ms = first.created_ms + fill_ms
                if full_ms > now_ms:
                    fills_until_ms = min(fills_until_ms, full_ms, self._appended_ms + APPENDING_MS)
                    continue
            if places := requests.free_places(leader_id):
                self.schedule.release(leader_id, places)
        return fills_until_ms

    def _start_ready(self, now_ms: float, requests: LeaderRequests, plan: DrainPlan) -> bool:
        """Starts the next due batch of each pending partition; False if another call would start none."""
        # A request holds at most one batch of a partition.
        requests.close()
        is_any = False
        for queue in self.schedule.pending(now_ms):
            batch = queue.next_to_go()
            if batch is None or queue.due_ms(batch) > now_ms:
                continue
            leader_id = requests.leader_of(batch)
            if leader_id == NO_NODE:
                error = LeaderNotAvailable(f"{batch.topic_partition} has no leader")
                plan.leaderless.append(batch)
                self._defer(queue, batch, error, now_ms + requests.pause_ms(batch))
            elif self.identity.is_missing:
                plan.unnumbered = leader_id, batch
                return False
            elif requests.add(leader_id, batch):
                self._start(queue, batch)
                is_any = True
            else:
                self.schedule.hold(queue, batch, leader_id, now_ms)
        return is_any and self.schedule.has_pending

    def _start(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Starts the batch: fixes its records and its sequence."""
        if batch.state is FILLING:
            self.topics.close(batch)
        batch.become(IN_FLIGHT)
        emptied = batch.seal()
        if emptied is not None:
            queue.spare_records = emptied
        self.identity.number(queue, batch)
        self.schedule.on_front_changed(queue, batch)

    # ---- Results of batches ----

    def ready(self, now_ms: float) -> list[ProducerBatch]:
        """The batches that may be sent now."""
        with self._lock:
            nexts = ((queue, queue.next_to_go()) for queue in self.schedule.pending(now_ms))
            return [batch for queue, batch in nexts if batch is not None and queue.due_ms(batch) <= now_ms]

    def defer(self, batch: ProducerBatch, error: RaykaError, not_before_ms: float) -> bool:
        """Keeps a batch with a retriable error in its place, for another try after `not_before_ms`. False if the
        batch's topic was deleted.
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
        if batch.state is IN_FLIGHT:
            batch.become(BatchState.WAITING)
        batch.last_error = error
        # Skip the back-off if the whole queue is renumbered anyway.
        if not (isinstance(error, OutOfOrderSequence) and queue.sequences.needs_new_epoch):
            if isinstance(error, OutOfOrderSequence):
                self.identity.on_out_of_order(queue, batch)
            batch.failure_count += 1
            queue.not_before_ms = not_before_ms
        self._settle(queue)

    def on_new_leaders(self, topic: str, partitions: Iterable[int]) -> None:
        """Ends the back-off of the partitions, which have new leaders, and releases all held queues."""
        with self._lock:
            known = self.topics.get(topic)
            queues = [] if known is None else known.queues
            for partition in partitions:
                if partition < len(queues):
                    queues[partition].not_before_ms = 0.0
                    self.schedule.add(queues[partition])
            self.schedule.release_all()
        if self.schedule.is_wake_up_due():
            self.schedule.wake()

    def go_on(
        self, batch: ProducerBatch, end: PartEnd | None = None, *, has_fewer_records: bool = False
    ) -> bool:
        """Makes the rest of a batch ready, after a part ended, was split, or lost refused records.

        Returns False if no record is left or the topic was deleted; the caller then ends the batch.
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
            batch.become(BatchState.WAITING)
            self._settle(queue)
            return True

    def finish(self, batches: Sequence[ProducerBatch], *, is_acknowledged: bool) -> None:
        """Removes finished batches and releases their memory; skips batches of deleted topics."""
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
        # An unsent batch may still be the one that takes records.
        if not batch.is_sealed:
            self.topics.close(batch)
        queue.remove(batch)
        self.topics.pool.release(batch)
        self.identity.on_over(queue, batch, batch.left_count, is_acknowledged=is_acknowledged)
        self._settle(queue)

    def _settle(self, queue: PartitionQueue) -> None:
        self.schedule.on_front_changed(queue, None)
        self.identity.settle(queue)


def _added(batch: ProducerBatch, record: PreparedRecord) -> DeliveryFuture:
    """Adds the record to the batch, whose reserved memory suffices."""
    batch.size_bytes += record.size_bytes
    if record.key is not None:
        batch.has_keys = True
    if record.partition is not None:
        batch.is_pinned = True
    if type(record.slot) is Row:
        batch.has_rows = True
    future = DeliveryFuture(batch, record.slot, record.key)
    batch.records.append(future)
    if record.on_delivery is not None:
        future.report_to(record.on_delivery)
    return future
