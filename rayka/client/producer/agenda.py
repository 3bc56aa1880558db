"""Which partitions of a producer are to be looked at, and when: work follows what is due, not how many there are.

A partition is looked at because something about it changed, or because its alarm went off. When its leader takes no
more requests it is held back, in order, until one of them has ended. A part of the accumulator, guarded by its lock.

Invariants: a partition with something to do now is pending or held back; one that waits for a moment has an alarm no
later than that. An alarm may go off although nothing is due. Kafka: RecordAccumulator.ready and drain, which walk over
all partitions.
"""

from collections.abc import Iterator
from itertools import islice

from rayka.client.producer.alarms import Alarms
from rayka.client.producer.dispatch import REQUEST_BATCHES_MAX
from rayka.client.producer.partition_queue import NEVER, STAMP_AGE_MS, PartitionQueue
from rayka.client.producer.producer_batch import NOT_OPEN, ProducerBatch

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
