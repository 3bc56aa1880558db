"""Which partitions of a producer are to be looked at, and when: work follows what is due, not how many there are.

A partition is looked at because something about it changed, or because its alarm went off. When its leader takes no
more requests it is held back, in order, until one of them has ended.

Invariants: a partition with something to do now is pending or held back; one that waits for a moment has an alarm no
later than that. An alarm may go off although nothing is due. Kafka: RecordAccumulator.ready and drain, which walk over
all partitions.
"""

from itertools import islice

from rayka.client.producer.alarms import Alarms
from rayka.client.producer.partition_queue import NEVER, PartitionQueue

# Alarms that were replaced stay, up to this number and twice as many as are valid.
_SPARE_ALARMS = 1_000


class Agenda:
    """See the module. Synchronous; guarded by the lock of its accumulator."""

    def __init__(self) -> None:
        self._pending: dict[PartitionQueue, None] = {}
        self._held_back: dict[int, dict[PartitionQueue, None]] = {}  # by the leader that they wait for
        self._alarms = Alarms()
        self._held_back_alarms = Alarms()  # apart, as they ring much later
        self._alarm_count = 0  # of queues that have one
        self.soonest_ms = NEVER  # no alarm rings before; known at once, unlike `next_ms`

    def __repr__(self) -> str:
        held_back = {node_id: len(queues) for node_id, queues in self._held_back.items()}
        return f"<Agenda pending={len(self._pending)} held_back={held_back} alarms={self._alarm_count}>"

    def look_at(self, queue: PartitionQueue) -> None:
        """Something about it has changed."""
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
        self.soonest_ms = min(self.soonest_ms, ms)
        if len(alarms) > _SPARE_ALARMS + 2 * self._alarm_count:
            alarms.drop_replaced()

    def _set_alarm(self, queue: PartitionQueue, ms: float) -> None:
        self._alarm_count += (ms < NEVER) - (queue.alarm_ms < NEVER)
        queue.alarm_ms = ms

    def pending(self, now_ms: float) -> list[PartitionQueue]:
        """Those to be looked at now; each stays pending until it is `done` or held back."""
        for alarms in (self._alarms, self._held_back_alarms):
            for queue in alarms.ring(now_ms):
                self._set_alarm(queue, NEVER)
                self._pending[queue] = None
        return list(self._pending)

    @property
    def has_pending(self) -> bool:
        """Whether any is to be looked at now."""
        return bool(self._pending)

    def done(self, queue: PartitionQueue) -> None:
        """Nothing can be done with it until its alarm, or until something changes."""
        self._pending.pop(queue, None)

    def next_ms(self) -> float:
        """When the next alarm rings; NEVER without one."""
        self.soonest_ms = min(self._alarms.next_ms(), self._held_back_alarms.next_ms())
        return self.soonest_ms

    # ---- Leaders that take no more requests ----

    def hold_back(self, queue: PartitionQueue, leader_id: int, until_ms: float) -> None:
        """It has something to send, but its leader takes no more requests now; at the latest it is looked at then."""
        self._pending.pop(queue, None)
        self._held_back.setdefault(leader_id, {})[queue] = None
        if until_ms < queue.alarm_ms:
            self._add_alarm(self._held_back_alarms, queue, until_ms)

    def is_held_back(self, queue: PartitionQueue) -> bool:
        """Whether it waits for a leader."""
        return any(queue in queues for queues in self._held_back.values())

    def waits_for(self, leader_id: int) -> bool:
        """Whether anything waits for the leader."""
        return leader_id in self._held_back

    def bring_back(self, leader_id: int, count_max: int) -> None:
        """The leader takes requests: the first of those that wait for it are to be looked at, before all others."""
        waiting = self._held_back.get(leader_id, {})
        first = dict.fromkeys(islice(waiting, count_max))
        for queue in first:
            del waiting[queue]
        if not waiting:
            self._held_back.pop(leader_id, None)
        self._pending = {**first, **self._pending}

    def bring_all_back(self) -> None:
        """Leaders may have changed."""
        for leader_id in list(self._held_back):
            self.bring_back(leader_id, len(self._held_back[leader_id]))
