"""The schedule of drains: the partitions that the sender looks at next, their timers, and the requests of a drain.

The cost of a drain depends on the partitions with work, not on all partitions. A drain looks at a partition because the
partition changed, or because its timer is due. A partition whose leader accepts no more requests is held, in order,
until a request to the leader ends.

`DrainSchedule` is a part of the accumulator, guarded by the accumulator's lock; `LeaderRequests` belongs to the IO
thread. Invariants: a partition with work now is pending or held; a partition with work later has a timer no later than
that work. A timer may be due without work. Kafka: RecordAccumulator.ready and drain, which walk over all partitions;
Sender.sendProducerData, InFlightRequests.
"""

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count, islice

import msgspec

from rayka.client.metadata import ClusterMetadata
from rayka.client.producer.partition_queue import NEVER, STAMP_AGE_MS, PartitionQueue
from rayka.client.producer.producer_batch import FILLING, NOT_OPEN, ProducerBatch
from rayka.client.retry import Backoff
from rayka.ids import NO_NODE
from rayka.protocol.membership import MetadataTopic

REQUEST_BYTES_MAX = 4 << 20
# Bound of the batches in a request: the number of small batches determines the loop's time, here and on the broker.
REQUEST_BATCHES_MAX = 300
# Bound of the batches in flight to one leader. Batches that wait for a busy leader still fill.
LEADER_BATCHES_MAX = 2 * REQUEST_BATCHES_MAX
# Longest time that a backlog may fill.
_BACKLOG_MS_MAX = 2_000.0
# Replaced timers stay until there are more timers than this number plus twice the valid ones.
_SPARE_TIMERS = 1_000
# More records are expected for so long after an append.
APPENDING_MS = 20


class _Load(msgspec.Struct, eq=False):
    """The requests and batches in flight to one leader."""

    request_count: int = 0
    batch_count: int = 0
    # Duration of the last request with REQUEST_BATCHES_MAX batches.
    full_request_ms: float = 0.0
    # The request that still takes batches; empty: no such request.
    filling: list[ProducerBatch] = []
    filling_bytes: int = 0


class LeaderRequests:
    """The requests that one drain fills, and the load in flight to each leader.

    Puts all ready batches for one leader into as few requests as the bounds allow, each with at most one batch of a
    partition (C1). A leader at its bound of requests or batches in flight gets no further request.
    """

    def __init__(self, metadata: ClusterMetadata, requests_max: int, backoff: Backoff) -> None:
        self._metadata = metadata
        self._requests_max = requests_max
        self._backoff = backoff
        self._loads: dict[int, _Load] = {}
        self._filled: list[tuple[int, list[ProducerBatch]]] = []
        # Metadata of the topics looked up since the last `close`.
        self._topics: dict[str, MetadataTopic | None] = {}

    def __repr__(self) -> str:
        return f"<LeaderRequests { {node_id: load.request_count for node_id, load in self._loads.items()} }>"

    def leader_of(self, batch: ProducerBatch) -> int:
        """The id of the leader of the batch's partition, or NO_NODE."""
        name = batch.topic
        if name not in self._topics:
            self._topics[name] = self._metadata.cached(name)
        topic = self._topics[name]
        if topic is None or batch.partition >= len(topic.partitions):
            return NO_NODE
        return topic.partitions[batch.partition].leader_id

    def pause_ms(self, batch: ProducerBatch) -> float:
        """The back-off of a batch whose partition has no leader."""
        return self._backoff.pause_ms(batch.failure_count + 1)

    def free_places(self, leader_id: int) -> int:
        """Number of batches that the leader accepts now, counted in full requests."""
        load = self._loads[leader_id]
        requests = min(
            self._requests_max - load.request_count,
            (LEADER_BATCHES_MAX - load.batch_count) // REQUEST_BATCHES_MAX,
        )
        return max(requests, 0) * REQUEST_BATCHES_MAX

    def add(self, leader_id: int, batch: ProducerBatch) -> bool:
        """Puts the batch into a request to the leader; False if the leader accepts no further request now."""
        load = self._loads.get(leader_id)
        if load is None:
            load = self._loads[leader_id] = _Load()
        is_full = len(load.filling) == REQUEST_BATCHES_MAX
        if not load.filling or is_full or load.filling_bytes + batch.size_bytes > REQUEST_BYTES_MAX:
            if not self.free_places(leader_id):
                return False
            load.filling, load.filling_bytes = [], 0
            load.request_count += 1
            self._filled.append((leader_id, load.filling))
        load.filling.append(batch)
        load.filling_bytes += batch.size_bytes
        load.batch_count += 1
        return True

    def close(self) -> None:
        """Closes the requests filled so far: later batches go into new requests."""
        self._topics.clear()
        for load in self._loads.values():
            load.filling = []

    def take(self) -> list[tuple[int, list[ProducerBatch]]]:
        """Returns the requests filled since the last call, each with its leader, in the order of sending."""
        self.close()
        filled, self._filled = self._filled, []
        return filled

    def backlog_ms(self, leader_id: int, batch_count: int) -> float:
        """Estimates the leader's time for `batch_count` small batches from its last full request."""
        expected_ms = self._loads[leader_id].full_request_ms * batch_count / LEADER_BATCHES_MAX
        return min(expected_ms, _BACKLOG_MS_MAX)

    def on_over(self, leader_id: int, batch_count: int, took_ms: float) -> None:
        """Takes an ended request of `batch_count` batches off the leader's load."""
        load = self._loads[leader_id]
        load.request_count -= 1
        load.batch_count -= batch_count
        if batch_count == REQUEST_BATCHES_MAX:
            load.full_request_ms = took_ms


class QueueTimers:
    """The timers of partitions.

    Almost all timers are set in the order in which they are due, because all batches have the same linger time. Two
    plain queues hold these timers, without a heap and without an object per timer. A heap holds the other timers.

    Invariant: a timer is valid only while it equals `timer_ms` of its partition; a replaced timer may stay for a while.
    """

    def __init__(self) -> None:
        self._times_ms: deque[float] = deque()
        self._queues: deque[PartitionQueue] = deque()
        self._others: list[tuple[float, int, PartitionQueue]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._queues) + len(self._others)

    def add(self, queue: PartitionQueue, ms: float) -> None:
        """Adds a timer. Precondition: `timer_ms` of the partition is `ms`."""
        if not self._times_ms or self._times_ms[-1] <= ms:
            self._queues.append(queue)
            self._times_ms.append(ms)
        else:
            heappush(self._others, (ms, next(self._numbers), queue))

    def pop_due(self, now_ms: float) -> Iterator[PartitionQueue]:
        """Yields the partitions whose timer is due, in the order of their timers; the caller resets each `timer_ms`."""
        while (self._queues or self._others) and self._first()[0] <= now_ms:
            ms, queue = self._pop_first()
            if queue.timer_ms == ms:
                yield queue

    def next_ms(self) -> float:
        """The time of the next valid timer; NEVER without one."""
        while self._queues or self._others:
            ms, queue = self._first()
            if queue.timer_ms == ms:
                return ms
            self._pop_first()
        return NEVER

    def drop_replaced(self) -> None:
        """Forgets replaced timers."""
        valid = [
            (ms, queue)
            for ms, queue in zip(self._times_ms, self._queues, strict=True)
            if queue.timer_ms == ms
        ]
        self._times_ms = deque(ms for ms, _ in valid)
        self._queues = deque(queue for _, queue in valid)
        self._others = [each for each in self._others if each[0] == each[2].timer_ms]
        heapify(self._others)

    def _first(self) -> tuple[float, PartitionQueue]:
        if not self._others or (self._times_ms and self._times_ms[0] <= self._others[0][0]):
            return self._times_ms[0], self._queues[0]
        ms, _, queue = self._others[0]
        return ms, queue

    def _pop_first(self) -> tuple[float, PartitionQueue]:
        if not self._others or (self._times_ms and self._times_ms[0] <= self._others[0][0]):
            return self._times_ms.popleft(), self._queues.popleft()
        ms, _, queue = heappop(self._others)
        return ms, queue


class DrainSchedule:
    """The pending partitions, the partitions held for busy leaders, and the wake-ups of the sender.

    The sender drains by itself at `looks_ms`; `wake` makes the sender drain soon. Invariant: a drain looks at every due
    partition in time, because a wake-up counts only until its drain. A needless wake-up costs one drain.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._pending: dict[PartitionQueue, None] = {}
        # Held partitions by the leader that they wait for.
        self._held: dict[int, dict[PartitionQueue, None]] = {}
        self._timers = QueueTimers()
        # Timers of held partitions; separate, because they are due much later.
        self._held_timers = QueueTimers()
        # Number of partitions with a timer.
        self._timer_count = 0
        # No timer is due before this time; cached, because each append reads it.
        self._next_timer_ms = NEVER
        # The sender's next drain.
        self.looks_ms = NEVER
        self._wake = wake
        self._drain_count = 0
        # `_drain_count` at the last wake-up.
        self._woken_in = -1

    def __repr__(self) -> str:
        held = {node_id: len(queues) for node_id, queues in self._held.items()}
        return f"<DrainSchedule pending={len(self._pending)} held={held} timers={self._timer_count}>"

    # ---- Gathering ----

    def add(self, queue: PartitionQueue) -> None:
        """Makes the partition pending, because it changed: the next drain looks at the partition."""
        self._pending[queue] = None

    def on_first_record(self, queue: PartitionQueue, batch: ProducerBatch, linger_ms: float) -> None:
        """Sets the timer of a batch that gets its first record to the end of its linger time."""
        # The end of an earlier batch will make the partition pending.
        if queue.batches[0] is not batch:
            return
        if linger_ms:
            self.set_timer(queue, batch.created_ms + linger_ms)
        else:
            self._pending[queue] = None

    def on_front_changed(self, queue: PartitionQueue, started: ProducerBatch | None) -> None:
        """Makes the partition pending if another batch waits; else clears its timer, because only an append can create
        work. Called after the start of the batch `started`, or, with None, after a batch ended.
        """
        batches = queue.batches
        if (batches[-1] if batches else None) is not started:
            self._pending[queue] = None
            return
        self._pending.pop(queue, None)
        if queue.timer_ms < NEVER:
            self._timer_count -= 1
            queue.timer_ms = NEVER

    def forget(self, queue: PartitionQueue) -> None:
        """Forgets a deleted partition and its timer."""
        self._pending.pop(queue, None)
        for queues in self._held.values():
            queues.pop(queue, None)
        self._timer_count -= queue.timer_ms < NEVER
        queue.timer_ms = NEVER

    def set_timer(self, queue: PartitionQueue, ms: float) -> None:
        """Sets the partition's timer, unless an earlier one is set."""
        if ms < queue.timer_ms:
            self._add_timer(self._timers, queue, ms)

    def _add_timer(self, timers: QueueTimers, queue: PartitionQueue, ms: float) -> None:
        """Sets a timer. Precondition: the timer is earlier than the partition's present one."""
        self._timer_count += queue.timer_ms == NEVER
        queue.timer_ms = ms
        timers.add(queue, ms)
        self._next_timer_ms = min(self._next_timer_ms, ms)
        if len(timers) > _SPARE_TIMERS + 2 * self._timer_count:
            timers.drop_replaced()

    # ---- Waking the sender ----

    @property
    def next_look_ms(self) -> float:
        """A lower bound of the next look's time; -1: at once; NEVER: only an append can create work."""
        return -1 if self._pending else self._next_timer_ms

    def is_wake_up_due(self) -> bool:
        """Whether a look is due before the sender's next drain, and no wake-up is under way."""
        due_ms = -1 if self._pending else self._next_timer_ms
        return due_ms < self.looks_ms and self._woken_in != self._drain_count

    def wake(self) -> None:
        """Wakes the sender. Called without the accumulator's lock, which the sender takes at once.

        An interrupt after the wake-up, or a drain that begins then, costs only another wake-up.
        """
        drain_count = self._drain_count
        self._wake()
        self._woken_in = drain_count

    def on_drain(self) -> None:
        """Counts a drain that begins, under the lock: the last wake-up is used up."""
        self._drain_count += 1

    # ---- Looking ----

    @property
    def has_work(self) -> bool:
        """Whether a partition is pending or held; timers do not count."""
        return bool(self._pending or self._held)

    @property
    def has_pending(self) -> bool:
        """Whether a partition is pending; timers do not count."""
        return bool(self._pending)

    def pending(self, now_ms: float) -> list[PartitionQueue]:
        """The partitions to look at now. A partition stays pending until it has no work or is held."""
        if self._next_timer_ms <= now_ms:
            for timers in (self._timers, self._held_timers):
                for queue in timers.pop_due(now_ms):
                    self._timer_count -= 1
                    queue.timer_ms = NEVER
                    self._pending[queue] = None
            self._next_timer_ms = min(self._timers.next_ms(), self._held_timers.next_ms())
        return list(self._pending)

    def reschedule(self, now_ms: float) -> float:
        """Ends a drain: sets the timers of the pending partitions, and keeps pending only those with a due batch.

        Returns the time of the next look, NEVER if only an answer or an append can create work. Closes a batch with an
        old timestamp for appends without the lock: the next append takes the lock and sets a new timestamp.
        """
        for queue in self.pending(now_ms):
            last, following = queue.last, queue.next_to_go()
            if last is not None and last.limit_bytes >= 0 and last.stamped_ms + STAMP_AGE_MS <= now_ms:
                last.limit_bytes = NOT_OPEN
            self.set_timer(queue, queue.next_event_ms(following, now_ms))
            if following is None or queue.due_ms(following) > now_ms:
                del self._pending[queue]
        self._next_timer_ms = min(self._timers.next_ms(), self._held_timers.next_ms())
        return self._next_timer_ms

    # ---- Leaders that take no more requests ----

    def hold(self, queue: PartitionQueue, batch: ProducerBatch, leader_id: int, now_ms: float) -> None:
        """Holds a partition with a ready batch, because the leader accepts no more requests now.

        No drain looks at the partition until it is released, its batch expires, or its timestamp is too old.
        """
        del self._pending[queue]
        self._held.setdefault(leader_id, {})[queue] = None
        if queue.batches[-1].limit_bytes >= 0:
            # The timestamp of the open batch ages.
            until_ms = queue.next_event_ms(batch, now_ms)
        elif queue.batches[0] is batch:
            until_ms = queue.deadline_ms(batch)
        else:
            # The end of an earlier batch in flight will make the partition pending.
            until_ms = NEVER
        if until_ms < queue.timer_ms:
            self._add_timer(self._held_timers, queue, until_ms)

    def is_held(self, queue: PartitionQueue) -> bool:
        """Whether the partition is held for a busy leader."""
        return any(queue in queues for queues in self._held.values())

    @property
    def busy_leaders(self) -> list[int]:
        """The leaders with held partitions."""
        return list(self._held)

    def backlog(self, leader_id: int) -> tuple[ProducerBatch | None, int]:
        """The first batch held for the leader if the batch still fills, and the number of held partitions.

        The first value is None, too, if one request can take all held partitions.
        """
        queues = self._held[leader_id]
        first = next(iter(queues)).next_to_go() if len(queues) > REQUEST_BATCHES_MAX else None
        fills = first is not None and first.state is FILLING and not first.is_urgent
        return first if fills else None, len(queues)

    def release(self, leader_id: int, count_max: int) -> None:
        """Makes the first `count_max` partitions held for the leader pending, before all other pending ones."""
        waiting = self._held[leader_id]
        first = dict.fromkeys(islice(waiting, count_max))
        for queue in first:
            del waiting[queue]
        if not waiting:
            del self._held[leader_id]
        self._pending = {**first, **self._pending}

    def release_all(self) -> None:
        """Makes all held partitions pending, because leaders may have changed."""
        for leader_id, queues in list(self._held.items()):
            self.release(leader_id, len(queues))
