"""Which partitions of a producer the sender looks at next, and when; which requests its batches go in.

The cost of a drain follows the partitions that have something to do, not all that there are. A partition is looked at
because something about it changed, or because its timer is due. When its leader takes no more requests the partition is
held, in order, until one of these has ended.

`DrainSchedule` is a part of the accumulator, guarded by its lock; `LeaderRequests` belongs to the IO thread.
Invariants: a partition with something to do now is pending or held; one that waits for a moment has a timer no later
than that. A timer may be due although there is nothing to do. Kafka: RecordAccumulator.ready and drain, which walk over
all partitions; Sender.sendProducerData, InFlightRequests.
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
# Small batches take a loop's time by their number, here and on the broker.
REQUEST_BATCHES_MAX = 300
# On their way to one leader: it is busy, and batches that wait here still fill.
LEADER_BATCHES_MAX = 2 * REQUEST_BATCHES_MAX
# How long a backlog may fill.
_BACKLOG_MS_MAX = 2_000.0
# Timers that were replaced stay, up to this number and twice as many as are valid.
_SPARE_TIMERS = 1_000
# So long after a record more are expected.
APPENDING_MS = 20


class _Load(msgspec.Struct, eq=False):
    """The requests and batches on their way to one leader."""

    request_count: int = 0
    batch_count: int = 0
    # How long the last full request took.
    full_request_ms: float = 0.0
    # The request that takes more batches now; empty if there is none.
    filling: list[ProducerBatch] = []
    filling_bytes: int = 0


class LeaderRequests:
    """The requests that one drain fills, and how much each leader has on its way.

    All batches that are ready for one leader go in as few requests as their bounds allow, at most one batch of each
    partition in each (C1). A leader that has as much on its way as it takes gets no more.
    """

    def __init__(self, metadata: ClusterMetadata, requests_max: int, backoff: Backoff) -> None:
        self._metadata = metadata
        self._requests_max = requests_max
        self._backoff = backoff
        self._loads: dict[int, _Load] = {}
        self._filled: list[tuple[int, list[ProducerBatch]]] = []
        # Of the topics that were looked up since the last `close`.
        self._topics: dict[str, MetadataTopic | None] = {}

    def __repr__(self) -> str:
        return f"<LeaderRequests { {node_id: load.request_count for node_id, load in self._loads.items()} }>"

    def leader_of(self, batch: ProducerBatch) -> int:
        """The node that leads its partition, or NO_NODE."""
        name = batch.topic
        if name not in self._topics:
            self._topics[name] = self._metadata.cached(name)
        topic = self._topics[name]
        if topic is None or batch.partition >= len(topic.partitions):
            return NO_NODE
        return topic.partitions[batch.partition].leader_id

    def pause_ms(self, batch: ProducerBatch) -> float:
        """How long a batch waits whose partition has no leader."""
        return self._backoff.pause_ms(batch.failure_count + 1)

    def free_places(self, leader_id: int) -> int:
        """How many batches the leader takes now, in whole requests."""
        load = self._loads[leader_id]
        requests = min(
            self._requests_max - load.request_count,
            (LEADER_BATCHES_MAX - load.batch_count) // REQUEST_BATCHES_MAX,
        )
        return max(requests, 0) * REQUEST_BATCHES_MAX

    def add(self, leader_id: int, batch: ProducerBatch) -> bool:
        """Puts the batch into a request to the leader; False when the leader takes no more now."""
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
        """Batches that are added from here on go in other requests than those added before."""
        self._topics.clear()
        for load in self._loads.values():
            load.filling = []

    def take(self) -> list[tuple[int, list[ProducerBatch]]]:
        """The requests filled since the last time, each with its leader; they must be sent in this order."""
        self.close()
        filled, self._filled = self._filled, []
        return filled

    def backlog_ms(self, leader_id: int, batch_count: int) -> float:
        """How long the leader takes for so many small batches, as far as the last request tells."""
        expected_ms = self._loads[leader_id].full_request_ms * batch_count / LEADER_BATCHES_MAX
        return min(expected_ms, _BACKLOG_MS_MAX)

    def on_over(self, leader_id: int, batch_count: int, took_ms: float) -> None:
        """A request of so many batches has ended."""
        load = self._loads[leader_id]
        load.request_count -= 1
        load.batch_count -= batch_count
        if batch_count == REQUEST_BATCHES_MAX:
            load.full_request_ms = took_ms


class QueueTimers:
    """When partitions are to be looked at. Almost all timers are set in the order in which they are due, for every
    batch lingers as long as the others. These stand in two plain queues, which need neither a place in a heap nor an
    object for each. A heap holds the others.

    Invariant: a timer counts only while `timer_ms` of its partition says so; a replaced one may stay for a while.
    """

    def __init__(self) -> None:
        self._times_ms: deque[float] = deque()
        self._queues: deque[PartitionQueue] = deque()
        self._others: list[tuple[float, int, PartitionQueue]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._queues) + len(self._others)

    def add(self, queue: PartitionQueue, ms: float) -> None:
        """Adds a timer; `timer_ms` of the partition says so already."""
        if not self._times_ms or self._times_ms[-1] <= ms:
            self._queues.append(queue)
            self._times_ms.append(ms)
        else:
            heappush(self._others, (ms, next(self._numbers), queue))

    def pop_due(self, now_ms: float) -> Iterator[PartitionQueue]:
        """The partitions whose time has come, in the order of their moments; the caller resets each `timer_ms`."""
        while (self._queues or self._others) and self._first()[0] <= now_ms:
            ms, queue = self._pop_first()
            if queue.timer_ms == ms:
                yield queue

    def next_ms(self) -> float:
        """When the next timer is due; NEVER without one."""
        while self._queues or self._others:
            ms, queue = self._first()
            if queue.timer_ms == ms:
                return ms
            self._pop_first()
        return NEVER

    def drop_replaced(self) -> None:
        """Forgets timers that no longer count."""
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
    """The partitions to look at, those held for busy leaders, and when the sender must be woken.

    The sender drains by itself at `looks_ms`; `wake` has it drain soon. Invariant: whatever is due is looked at in
    time, for a wake-up counts only until the drain that it brings about; one too many costs nothing but the look.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._pending: dict[PartitionQueue, None] = {}
        # By the leader that the partitions wait for.
        self._held: dict[int, dict[PartitionQueue, None]] = {}
        self._timers = QueueTimers()
        # Apart, as they are due much later.
        self._held_timers = QueueTimers()
        # Of partitions that have a timer.
        self._timer_count = 0
        # No timer is due before; known at once, without a search.
        self._next_timer_ms = NEVER
        self.looks_ms = NEVER
        self._wake = wake
        self._drain_count = 0
        # How many drains there had been at the last wake-up.
        self._woken_in = -1

    def __repr__(self) -> str:
        held = {node_id: len(queues) for node_id, queues in self._held.items()}
        return f"<DrainSchedule pending={len(self._pending)} held={held} timers={self._timer_count}>"

    # ---- Gathering ----

    def add(self, queue: PartitionQueue) -> None:
        """Something about the partition has changed: the next drain looks at it."""
        self._pending[queue] = None

    def on_first_record(self, queue: PartitionQueue, batch: ProducerBatch, linger_ms: float) -> None:
        """The batch has its first record: the partition is looked at when the batch has lingered."""
        # The end of a batch before this one has the partition looked at.
        if queue.batches[0] is not batch:
            return
        if linger_ms:
            self.set_timer(queue, batch.created_ms + linger_ms)
        else:
            self._pending[queue] = None

    def on_front_changed(self, queue: PartitionQueue, started: ProducerBatch | None) -> None:
        """A batch was started, or with None the first one has ended. The partition is looked at if another batch
        waits; else its timer is cleared, because only an append can create work.
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
        """The partition is gone."""
        self._pending.pop(queue, None)
        for queues in self._held.values():
            queues.pop(queue, None)
        self._timer_count -= queue.timer_ms < NEVER
        queue.timer_ms = NEVER

    def set_timer(self, queue: PartitionQueue, ms: float) -> None:
        """The partition is looked at then, if not before."""
        if ms < queue.timer_ms:
            self._add_timer(self._timers, queue, ms)

    def _add_timer(self, timers: QueueTimers, queue: PartitionQueue, ms: float) -> None:
        """Sets a timer that is sooner than the partition's present one."""
        self._timer_count += queue.timer_ms == NEVER
        queue.timer_ms = ms
        timers.add(queue, ms)
        self._next_timer_ms = min(self._next_timer_ms, ms)
        if len(timers) > _SPARE_TIMERS + 2 * self._timer_count:
            timers.drop_replaced()

    # ---- Waking the sender ----

    @property
    def next_look_ms(self) -> float:
        """When the next look is due, or before; -1 for at once, NEVER if only an append can change anything."""
        return -1 if self._pending else self._next_timer_ms

    def is_wake_up_due(self) -> bool:
        """Whether something is due before the sender looks, and no wake-up is on its way."""
        due_ms = -1 if self._pending else self._next_timer_ms
        return due_ms < self.looks_ms and self._woken_in != self._drain_count

    def wake(self) -> None:
        """Wakes the sender. Called without the accumulator's lock, which the sender takes first thing. An interrupt
        behind the wake-up, or a drain that begins then, costs only another wake-up.
        """
        drain_count = self._drain_count
        self._wake()
        self._woken_in = drain_count

    def on_drain(self) -> None:
        """The sender looks now, under the lock."""
        self._drain_count += 1

    # ---- Looking ----

    @property
    def has_work(self) -> bool:
        """Whether a partition is to be looked at, without a timer, or waits for a leader."""
        return bool(self._pending or self._held)

    @property
    def has_pending(self) -> bool:
        """Whether a partition is to be looked at now, without a timer."""
        return bool(self._pending)

    def pending(self, now_ms: float) -> list[PartitionQueue]:
        """The partitions to look at now; each stays pending until there is nothing to do, or until it is held."""
        if self._next_timer_ms <= now_ms:
            for timers in (self._timers, self._held_timers):
                for queue in timers.pop_due(now_ms):
                    self._timer_count -= 1
                    queue.timer_ms = NEVER
                    self._pending[queue] = None
            self._next_timer_ms = min(self._timers.next_ms(), self._held_timers.next_ms())
        return list(self._pending)

    def reschedule(self, now_ms: float) -> float:
        """Ends a drain: sets the timers of the partitions that are pending, and leaves pending only those with a batch
        that may go now. Returns when to look again, NEVER if only an answer or an append can change anything.

        Sends the next append to a batch whose timestamp is too old through the lock, where it gets a new one.
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
        """The batch is ready, but the leader takes no more requests now: the partition is not looked at until it is
        released, or has had its time.
        """
        del self._pending[queue]
        self._held.setdefault(leader_id, {})[queue] = None
        if queue.batches[-1].limit_bytes >= 0:
            # The timestamp of the batch ages.
            until_ms = queue.next_event_ms(batch, now_ms)
        elif queue.batches[0] is batch:
            until_ms = queue.deadline_ms(batch)
        else:
            # The end of a batch in flight before this one has the partition looked at.
            until_ms = NEVER
        if until_ms < queue.timer_ms:
            self._add_timer(self._held_timers, queue, until_ms)

    def is_held(self, queue: PartitionQueue) -> bool:
        """Whether the partition waits for a leader."""
        return any(queue in queues for queues in self._held.values())

    @property
    def busy_leaders(self) -> list[int]:
        """The leaders that partitions wait for."""
        return list(self._held)

    def backlog(self, leader_id: int) -> tuple[ProducerBatch | None, int]:
        """The first batch that waits for a busy leader, if it still fills, and how many wait. None, too, for so few
        that one request takes them.
        """
        queues = self._held[leader_id]
        first = next(iter(queues)).next_to_go() if len(queues) > REQUEST_BATCHES_MAX else None
        fills = first is not None and first.state is FILLING and not first.is_urgent
        return first if fills else None, len(queues)

    def release(self, leader_id: int, count_max: int) -> None:
        """The leader takes requests: the first partitions that wait for it are looked at, before all others."""
        waiting = self._held[leader_id]
        first = dict.fromkeys(islice(waiting, count_max))
        for queue in first:
            del waiting[queue]
        if not waiting:
            del self._held[leader_id]
        self._pending = {**first, **self._pending}

    def release_all(self) -> None:
        """Leaders may have changed: all partitions that wait for one are looked at."""
        for leader_id, queues in list(self._held.items()):
            self.release(leader_id, len(queues))
