"""Which partitions of a producer are to be looked at, and when: work follows what is due, not how many there are.

A partition is looked at because something about it changed, or because its alarm went off. When its leader takes no
more requests it is held back, in order, until one of them has ended. A part of the accumulator, guarded by its lock.

Invariants: a partition with something to do now is pending or held back; one that waits for a moment has an alarm no
later than that. An alarm may go off although nothing is due. Kafka: RecordAccumulator.ready and drain, which walk over
all partitions.
"""

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count, islice

import msgspec

from rayka.client.metadata import ClusterMetadata
from rayka.client.producer.partition_queue import NEVER, STAMP_AGE_MS, PartitionQueue
from rayka.client.producer.producer_batch import NOT_OPEN, ProducerBatch
from rayka.errors import RaykaError
from rayka.ids import NO_NODE
from rayka.protocol.membership import MetadataTopic

# Which leader a batch goes to, and in which request; how many requests and batches a leader takes at a time.
#
# All batches that are ready for one leader go in as few requests as their bounds allow, at most one batch of each
# partition in each (C1). A leader that has as much on its way as it takes gets no more, and what waits here fills up
# meanwhile. On the IO thread only. Kafka: Sender.sendProducerData, RecordAccumulator.drain, InFlightRequests.


REQUEST_BYTES_MAX = 4 << 20
REQUEST_BATCHES_MAX = 300  # small ones take a loop's time by their number, here and on the broker
_BACKLOG_MS_MAX = 2_000.0  # how long a backlog may fill
# On their way to one: it is busy, and what waits here still fills.
LEADER_BATCHES_MAX = 2 * REQUEST_BATCHES_MAX


class _Load(msgspec.Struct, eq=False):
    """What is on its way to one leader; `filling` is the request that takes more batches now."""

    request_count: int = 0
    batch_count: int = 0
    full_request_ms: float = 0.0  # how long the last full request took
    filling: list[ProducerBatch] = []
    filling_bytes: int = 0


class Dispatch:
    """See the module. `on_no_leader` returns why and until when a batch waits."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        requests_max: int,
        on_no_leader: Callable[[ProducerBatch], tuple[RaykaError, float]],
        on_no_producer_id: Callable[[int, str], None],
    ) -> None:
        self.on_no_leader = on_no_leader
        self.on_no_producer_id = on_no_producer_id
        self._metadata = metadata
        self._requests_max = requests_max
        self._loads: dict[int, _Load] = {}
        self._requests: list[tuple[int, list[ProducerBatch]]] = []
        self._topics: dict[str, MetadataTopic | None] = {}

    def __repr__(self) -> str:
        return (
            f"<Dispatch requests={ {node_id: load.request_count for node_id, load in self._loads.items()} }>"
        )

    def leader_of(self, batch: ProducerBatch) -> int:
        """The node that leads its partition, or NO_NODE."""
        if batch.topic not in self._topics:
            self._topics[batch.topic] = self._metadata.cached(batch.topic)
        topic = self._topics[batch.topic]
        if topic is None or batch.partition >= len(topic.partitions):
            return NO_NODE
        return topic.partitions[batch.partition].leader_id

    def free_places(self, leader_id: int) -> int:
        """How many batches the leader takes now, in whole requests."""
        load = self._loads[leader_id]
        requests = min(
            self._requests_max - load.request_count,
            (LEADER_BATCHES_MAX - load.batch_count) // REQUEST_BATCHES_MAX,
        )
        return max(requests, 0) * REQUEST_BATCHES_MAX

    def take(self, leader_id: int, batch: ProducerBatch) -> bool:
        """Puts the batch into a request to the leader; False when it takes no more now."""
        load = self._loads.get(leader_id)
        if load is None:
            load = self._loads[leader_id] = _Load()
        is_full = len(load.filling) == REQUEST_BATCHES_MAX
        if not load.filling or is_full or load.filling_bytes + batch.size_bytes > REQUEST_BYTES_MAX:
            if not self.free_places(leader_id):
                return False
            load.filling, load.filling_bytes = [], 0
            load.request_count += 1
            self._requests.append((leader_id, load.filling))
        load.filling.append(batch)
        load.filling_bytes += batch.size_bytes
        load.batch_count += 1
        return True

    def close_requests(self) -> None:
        """What is taken from here on goes in other requests than what was taken before."""
        self._topics.clear()
        for load in self._loads.values():
            load.filling = []

    def take_requests(self) -> list[tuple[int, list[ProducerBatch]]]:
        """The requests made since the last time, each with its leader; they must be sent in this order."""
        self.close_requests()
        requests, self._requests = self._requests, []
        return requests

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


# When a producer's partitions are to be looked at.
#
# Almost all alarms are set in the order in which they ring, for every batch lingers as long as the others. These stand
# in two plain queues: neither a place in a heap nor an object for each is paid for. A heap holds the others.
#
# Invariant: an alarm counts only while `alarm_ms` of its partition says so; one that was replaced may stay for a while.


class Alarms:
    """See the module. Synchronous; guarded by the lock of its accumulator."""

    def __init__(self) -> None:
        self._times_ms: deque[float] = deque()
        self._queues: deque[PartitionQueue] = deque()
        self._others: list[tuple[float, int, PartitionQueue]] = []
        self._numbers = count()

    def __repr__(self) -> str:
        return f"<Alarms in order={len(self._queues)} others={len(self._others)}>"

    def __len__(self) -> int:
        return len(self._queues) + len(self._others)

    def add(self, queue: PartitionQueue, ms: float) -> None:
        """The partition's alarm rings then; its `alarm_ms` says so already."""
        if not self._times_ms or self._times_ms[-1] <= ms:
            self._queues.append(queue)
            self._times_ms.append(ms)
        else:
            heappush(self._others, (ms, next(self._numbers), queue))

    def ring(self, now_ms: float) -> Iterator[PartitionQueue]:
        """The partitions whose time has come, in the order of their moments; the caller resets each `alarm_ms`."""
        while self._first_ms() <= now_ms:
            ms, queue = self._pop_first()
            if queue.alarm_ms == ms:
                yield queue

    def next_ms(self) -> float:
        """When the next one rings; NEVER without one."""
        while len(self) and self._first().alarm_ms != self._first_ms():
            self._pop_first()
        return self._first_ms()

    def drop_replaced(self) -> None:
        """Forgets those that no longer count."""
        valid = [
            (ms, queue)
            for ms, queue in zip(self._times_ms, self._queues, strict=True)
            if queue.alarm_ms == ms
        ]
        self._times_ms = deque(ms for ms, _ in valid)
        self._queues = deque(queue for _, queue in valid)
        self._others = [each for each in self._others if each[0] == each[2].alarm_ms]
        heapify(self._others)

    def _is_first_in_order(self) -> bool:
        return not self._others or (bool(self._times_ms) and self._times_ms[0] <= self._others[0][0])

    def _first_ms(self) -> float:
        in_order_ms = self._times_ms[0] if self._times_ms else NEVER
        return min(in_order_ms, self._others[0][0]) if self._others else in_order_ms

    def _first(self) -> PartitionQueue:
        return self._queues[0] if self._is_first_in_order() else self._others[0][2]

    def _pop_first(self) -> tuple[float, PartitionQueue]:
        if self._is_first_in_order():
            return self._times_ms.popleft(), self._queues.popleft()
        ms, _, queue = heappop(self._others)
        return ms, queue


# Alarms that were replaced stay, up to this number and twice as many as are valid.
_SPARE_ALARMS = 1_000
APPENDING_MS = 20  # so long after a record more are expected


class Agenda:
    """See the module."""

    def __init__(self) -> None:
        self._pending: dict[PartitionQueue, None] = {}
        self._held_back: dict[int, dict[PartitionQueue, None]] = {}  # by the leader that they wait for
        self._alarms = Alarms()
        self._held_back_alarms = Alarms()  # apart, as they ring much later
        self._alarm_count = 0  # of queues that have one
        self._soonest_alarm_ms = NEVER  # none rings before; known at once, without a search

    def __repr__(self) -> str:
        held_back = {node_id: len(queues) for node_id, queues in self._held_back.items()}
        return f"<Agenda pending={len(self._pending)} held_back={held_back} alarms={self._alarm_count}>"

    # ---- Gathering ----

    def look_at(self, queue: PartitionQueue) -> None:
        """Something about it has changed."""
        self._pending[queue] = None

    def look_in_time(self, queue: PartitionQueue, batch: ProducerBatch, linger_ms: float) -> None:
        """The batch has its first record: it is to be looked at when it has lingered."""
        if queue.batches[0] is not batch:  # the end of another brings it up
            return
        if linger_ms:
            self.set_alarm(queue, batch.created_ms + linger_ms)
        else:
            self.look_at(queue)

    def look_behind(self, queue: PartitionQueue, batch: ProducerBatch | None) -> None:
        """The batch is on its way, or with None its first is over: what is behind it may follow. Where nothing is, no
        time changes anything.
        """
        if queue.last is batch:
            self._pending.pop(queue, None)
            if queue.alarm_ms < NEVER:
                self._set_alarm(queue, NEVER)
        else:
            self._pending[queue] = None

    def forget(self, queue: PartitionQueue) -> None:
        """The partition is gone."""
        self._pending.pop(queue, None)
        for queues in self._held_back.values():
            queues.pop(queue, None)
        self._set_alarm(queue, NEVER)

    def set_alarm(self, queue: PartitionQueue, ms: float) -> None:
        """It is to be looked at then, if not before."""
        if ms < queue.alarm_ms:
            self._add_alarm(self._alarms, queue, ms)

    def _add_alarm(self, alarms: Alarms, queue: PartitionQueue, ms: float) -> None:
        self._set_alarm(queue, ms)
        alarms.add(queue, ms)
        self._soonest_alarm_ms = min(self._soonest_alarm_ms, ms)
        if len(alarms) > _SPARE_ALARMS + 2 * self._alarm_count:
            alarms.drop_replaced()

    def _set_alarm(self, queue: PartitionQueue, ms: float) -> None:
        self._alarm_count += (ms < NEVER) - (queue.alarm_ms < NEVER)
        queue.alarm_ms = ms

    @property
    def soonest_ms(self) -> float:
        """When the next look is due, or before; -1 for at once, NEVER if only an append can change anything."""
        return -1 if self._pending else self._soonest_alarm_ms

    # ---- Looking ----

    @property
    def has_work(self) -> bool:
        """Whether there is something to look at, without an alarm, or something that waits for a leader."""
        return bool(self._pending or self._held_back)

    def pending(self, now_ms: float) -> list[PartitionQueue]:
        """Those to be looked at now; each stays pending until there is nothing to do, or until it is held back."""
        if self._soonest_alarm_ms <= now_ms:
            self._ring(now_ms)
        return list(self._pending)

    def _ring(self, now_ms: float) -> None:
        for alarms in (self._alarms, self._held_back_alarms):
            for queue in alarms.ring(now_ms):
                self._set_alarm(queue, NEVER)
                self._pending[queue] = None
        self._find_soonest_alarm()

    def _find_soonest_alarm(self) -> None:
        self._soonest_alarm_ms = min(self._alarms.next_ms(), self._held_back_alarms.next_ms())

    def ready(self, now_ms: float) -> Iterator[tuple[PartitionQueue, ProducerBatch]]:
        """Batches that may go now: of each partition the next one, if it does not pause or linger.

        Each is to be started, deferred or held back before the next is asked for, else it is ready again. One after
        the other: a list of thousands of pairs would be as many objects for the garbage collector.
        """
        for queue in self.pending(now_ms):
            batch = queue.next_to_go()
            if batch is not None and queue.due_ms(batch) <= now_ms:
                yield queue, batch

    def expired(self, now_ms: float) -> list[ProducerBatch]:
        """Of each partition the first batches, as far as they wait and have had their time; the caller ends them.

        All of them, for `tick` returns no moment that has passed: one that is left would wait for whatever comes next.
        """
        return [batch for queue in self.pending(now_ms) for batch in queue.expired(now_ms)]

    def tick(self, now_ms: float) -> float:
        """When to look again, NEVER if only an answer or an append can change anything.

        Sends the next append to a batch whose timestamp is too old through the lock, where it gets a new one.
        """
        for queue in self.pending(now_ms):
            last, following = queue.last, queue.next_to_go()
            if last is not None and last.limit_bytes >= 0 and last.stamped_ms + STAMP_AGE_MS <= now_ms:
                last.limit_bytes = NOT_OPEN
            self.set_alarm(queue, queue.next_event_ms(following, now_ms))
            if following is None or queue.due_ms(following) > now_ms:
                del self._pending[queue]
        self._find_soonest_alarm()
        return self._soonest_alarm_ms

    # ---- Leaders that take no more requests ----

    def hold_back(self, queue: PartitionQueue, batch: ProducerBatch, leader_id: int, now_ms: float) -> None:
        """The batch is ready, but the leader takes no more requests now: `ready` leaves it out until it is brought
        back, or has had its time.
        """
        del self._pending[queue]
        self._held_back.setdefault(leader_id, {})[queue] = None
        if queue.batches[-1].limit_bytes >= 0:  # its timestamp ages
            until_ms = queue.next_event_ms(batch, now_ms)
        elif queue.batches[0] is batch:
            until_ms = queue.deadline_ms(batch)
        else:
            until_ms = NEVER  # the end of what is in flight before it brings it up
        if until_ms < queue.alarm_ms:
            self._add_alarm(self._held_back_alarms, queue, until_ms)

    def is_held_back(self, queue: PartitionQueue) -> bool:
        """Whether it waits for a leader."""
        return any(queue in queues for queues in self._held_back.values())

    @property
    def busy_leaders(self) -> list[int]:
        """Those that partitions wait for."""
        return list(self._held_back)

    def backlog(self, leader_id: int) -> tuple[ProducerBatch | None, int]:
        """How many batches wait for a busy leader, and the first of them if it fills on meanwhile: else None, and None
        for so few that one request takes them.
        """
        queues = self._held_back[leader_id]
        first = next(iter(queues)).next_to_go() if len(queues) > REQUEST_BATCHES_MAX else None
        fills = first is not None and not first.is_closed and not first.is_urgent
        return first if fills else None, len(queues)

    def bring_back(self, leader_id: int, count_max: int) -> None:
        """The leader takes requests: the first of those that wait for it are to be looked at, before all others."""
        waiting = self._held_back[leader_id]
        first = dict.fromkeys(islice(waiting, count_max))
        for queue in first:
            del waiting[queue]
        if not waiting:
            del self._held_back[leader_id]
        self._pending = {**first, **self._pending}

    def bring_all_back(self) -> None:
        """Leaders may have changed."""
        for leader_id, queues in list(self._held_back.items()):
            self.bring_back(leader_id, len(queues))


# When the sender looks at what its producer has gathered: by itself, or woken earlier.
#
# A part of the accumulator. Invariant: whatever is due is looked at in time, for a wake-up counts only until the drain
# that it brings about; one too many costs nothing but the look. Kafka: `Sender.wakeup`.


class WakeUps:
    """See the module."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self.looks_ms = NEVER  # when the sender drains, if nothing wakes it earlier
        self._wake = wake
        self._drain_count = 0
        self._woken_in = -1  # how many drains there had been at the last wake-up

    def __repr__(self) -> str:
        return f"<WakeUps looks_ms={self.looks_ms} woken={self._woken_in == self._drain_count}>"

    def is_due(self, soonest_ms: float) -> bool:
        """Whether something is due before the sender looks, and no wake-up is on its way."""
        return soonest_ms < self.looks_ms and self._woken_in != self._drain_count

    def wake(self) -> None:
        """To be called without the accumulator's lock, which the sender takes first thing. An interrupt behind the
        wake-up, or a drain that begins then, costs only another wake-up.
        """
        drain_count = self._drain_count
        self._wake()
        self._woken_in = drain_count

    def wake_in_time(self, soonest_ms: float) -> None:
        """The sender looks before what is here is due."""
        if self.is_due(soonest_ms):
            self.wake()

    def on_drain(self) -> None:
        """The sender looks now, under the lock."""
        self._drain_count += 1
