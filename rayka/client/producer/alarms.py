"""When a producer's partitions are to be looked at.

Almost all alarms are set in the order in which they ring, for every batch lingers as long as the others. These stand
in two plain queues: neither a place in a heap nor an object for each is paid for. A heap holds the others.

Invariant: an alarm counts only while `alarm_ms` of its partition says so; one that was replaced may stay for a while.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from rayka.client.producer.partition_queue import NEVER, PartitionQueue


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
