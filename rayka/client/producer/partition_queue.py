"""The queue of one partition (its unfinished batches, their sequences, and the time to send) and the queues of a topic.

Invariants of a queue:
- Batches stand in the order of their records. Batches that were sent and are not finished stand before all others.
- Counted from the first unfinished batch, at most `in_flight_max` batches were sent. Finished batches count too:
  answers come in any order, and the log recognizes only the last five batches (C7).
- A batch is sent for the first time only when all batches before it are in flight, and sent again only when all batches
  before it are finished. A log that checks sequences then has the batches in order (C11). Without idempotence only the
  first batch may be in flight.
Kafka: the deque of RecordAccumulator, `shouldStopDrainBatchesForPartition`; TransactionManager, TxnPartitionEntry;
BuiltInPartitioner.
"""

from collections import deque
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import msgspec

from rayka.client.producer.producer_batch import BATCH_OVERHEAD_BYTES, FILLING, IN_FLIGHT, ProducerBatch
from rayka.errors import InvariantBroken
from rayka.protocol.batch_format import NO_PRODUCER_ID, SEQUENCE_MAX, ProducerSequence, sequence_after

PRODUCER_EPOCH_MAX = 2**15 - 1
NEVER = float("inf")
# Records without a timestamp get the open batch's timestamp for so long.
STAMP_AGE_MS = 10


class Sequences(msgspec.Struct, eq=False, gc=False):
    """The sequences of one partition's batches, and the known state of the log (C11).

    A batch gets its sequence at its first send and keeps the sequence over retries, so that the broker recognizes the
    batch. After a sent batch fails for good, the producer does not know whether the log has the batch: the sequences
    may have a gap. Retries of the batches sent behind the failed one keep their sequences, until one of two outcomes:
    1. a later batch is acknowledged: the log has no gap;
    2. the log refuses the first later batch: the log has none of the later batches, so they get new sequences, from 0
       in the next epoch of the producer id.

    Invariants: two epochs are never in flight together. The first batch of an epoch is alone in flight until it is
    acknowledged, because a log that does not know the producer accepts any first sequence (C5). Each partition has its
    own epoch. Kafka has one epoch for all partitions; without transactions nothing compares the epochs.
    """

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = 0
    # A batch of this epoch was acknowledged.
    has_acknowledged: bool = False
    # The log lacks records before the remaining batches: the remaining batches need sequences of a new epoch.
    needs_new_epoch: bool = False
    # Sequence of the next record.
    _next: int = 0
    # Sequence after the last acknowledged record.
    _acknowledged_end: int = 0
    # Sequence after the last failed record that the log may have; None: no such record.
    _failed_end: int | None = None

    def __repr__(self) -> str:
        gap = " gap?" if self.may_have_gap else ""
        return f"<Sequences producer={self.producer_id} epoch={self.producer_epoch} next={self._next}{gap}>"

    @property
    def may_have_gap(self) -> bool:
        """Whether the log may lack a failed batch: no batch behind the failed batch is acknowledged."""
        return self._failed_end is not None

    @property
    def is_used_up(self) -> bool:
        """Whether the producer id has no further epoch."""
        return self.producer_epoch == PRODUCER_EPOCH_MAX

    def assign(self, record_count: int, producer_id: int, first_epoch: int = 0) -> ProducerSequence:
        """Returns the sequence of the next batch. A partition without a producer id takes `producer_id` and
        `first_epoch`.
        """
        if self.may_have_gap or self.needs_new_epoch:
            raise InvariantBroken(f"{self!r} takes no more before its next epoch")
        if self.producer_id == NO_PRODUCER_ID:
            self.producer_id, self.producer_epoch = producer_id, first_epoch
        assigned = ProducerSequence(self.producer_id, self.producer_epoch, self._next)
        self._next = sequence_after(self._next, record_count)
        return assigned

    def on_acknowledged(self, base_sequence: int, record_count: int) -> None:
        """Notes that the log has these records, and so all records before them."""
        end = sequence_after(base_sequence, record_count)
        self.has_acknowledged = True
        if _is_before(self._acknowledged_end, end):
            self._acknowledged_end = end
        if self._failed_end is not None and not _is_before(self._acknowledged_end, self._failed_end):
            self._failed_end = None

    def on_failed(self, base_sequence: int, record_count: int) -> None:
        """Notes that these records are given up; the log may have them."""
        end = sequence_after(base_sequence, record_count)
        is_known = not _is_before(self._acknowledged_end, end)
        if not is_known and (self._failed_end is None or _is_before(self._failed_end, end)):
            self._failed_end = end

    def begin_next_epoch(self) -> None:
        """Restarts sequences at 0 in the next epoch; after the last epoch, under a new producer id."""
        if self.is_used_up:
            self.producer_id, self.producer_epoch = NO_PRODUCER_ID, 0
        else:
            self.producer_epoch += 1
        self._next = 0
        self._acknowledged_end = 0
        self._failed_end = None
        self.has_acknowledged = False
        self.needs_new_epoch = False


def _is_before(a: int, b: int) -> bool:
    """Whether sequence `a` is before `b`; holds across the wrap to 0 for sequences that are near each other."""
    return 0 < (b - a) & SEQUENCE_MAX <= SEQUENCE_MAX // 2


@dataclass(frozen=True)
class Limits:
    """The producer's limits for batches, from its configuration."""

    batch_bytes: int
    memory_bytes: int
    linger_ms: float
    delivery_timeout_ms: float
    is_idempotent: bool = False
    # Batches of one partition in flight; 1 without idempotence.
    in_flight_max: int = 1


class PartitionQueue(msgspec.Struct, eq=False, gc=False):
    """The unfinished batches of one partition.

    The garbage collector does not track a queue, because a queue is part of no cycle. So the collector need not track
    the timers of a queue either, one for each lingering batch.
    """

    partition: int
    limits: Limits
    # Unfinished batches in the order of their records; only the last may be open.
    batches: deque[ProducerBatch] = msgspec.field(default_factory=deque)
    # End of the back-off after a failure; no batch is sent before.
    not_before_ms: float = 0.0
    # Time of the partition's next timer in `DrainSchedule`.
    timer_ms: float = NEVER
    # No batch starts, because batches for a deleted partition of the topic may have to move before this queue's.
    is_blocked: bool = False
    # Batches that got a sequence; a batch with a new sequence counts again.
    sent_count: int = 0
    sequences: Sequences = msgspec.field(default_factory=Sequences)
    # An empty list for the next batch's records: a used list saves a new object for the garbage collector.
    spare_records: list[Any] | None = None

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.partition} {self.sequences!r} {list(self.batches)}>"

    @property
    def last(self) -> ProducerBatch | None:
        return self.batches[-1] if self.batches else None

    # ---- The next batch to send ----

    def next_to_go(self) -> ProducerBatch | None:
        """The next batch to send, perhaps not due yet; None while only an answer or an append can make one ready."""
        first = None
        if self.is_blocked:
            return None
        for batch in self.batches:
            if first is None:
                first = batch
            if batch.state is not IN_FLIGHT:
                may_go = not self.sequences.needs_new_epoch and (batch is first or self._may_follow(batch))
                return batch if may_go and (batch.count or batch.records) else None
            # A later batch would overtake the other parts of this batch.
            if batch.has_more_parts:
                return None
        return None

    def _may_follow(self, batch: ProducerBatch) -> bool:
        """Whether a new batch may be sent while earlier ones are in flight: only a closed (or urgent) batch, within
        `in_flight_max`. An open batch fills while it waits.
        """
        return (
            self.sent_count - self.batches[0].number < self.limits.in_flight_max
            and batch.sequence is None
            and (batch.state is not FILLING or batch.is_urgent)
            and self.sequences.has_acknowledged
            and not self.sequences.may_have_gap
        )

    def due_ms(self, batch: ProducerBatch) -> float:
        """The time from which the batch may be sent: after the back-off, and after its linger time while it fills."""
        if batch.state is not FILLING or batch.is_urgent:
            return self.not_before_ms
        return max(self.not_before_ms, batch.created_ms + self.limits.linger_ms)

    def deadline_ms(self, batch: ProducerBatch) -> float:
        """The time at which the producer gives up the batch."""
        return batch.created_ms + self.limits.delivery_timeout_ms

    def expired(self, now_ms: float) -> list[ProducerBatch]:
        """The batches at the front that wait and are older than `delivery_timeout_ms`."""
        begun_ms = now_ms - self.limits.delivery_timeout_ms
        if not self.batches or self.batches[0].created_ms > begun_ms:
            return []
        return list(takewhile(lambda each: _waits(each) and each.created_ms <= begun_ms, self.batches))

    def next_event_ms(self, following: ProducerBatch | None, now_ms: float) -> float:
        """The next moment after `now_ms` at which the partition needs a look: due, expired, or stamp too old.

        `following` is the result of `next_to_go`.
        """
        if not self.batches:
            return NEVER
        events_ms = []
        if following is not None:
            events_ms.append(self.due_ms(following))
        if _waits(self.batches[0]):
            events_ms.append(self.deadline_ms(self.batches[0]))
        if self.batches[-1].limit_bytes >= 0:
            events_ms.append(self.batches[-1].stamped_ms + STAMP_AGE_MS)
        return min((each for each in events_ms if each > now_ms), default=NEVER)

    # ---- The end of a batch ----

    def remove(self, batch: ProducerBatch) -> None:
        """Removes a finished batch; ends the back-off if the batch was the first."""
        if batch is self.batches[0]:
            self.not_before_ms = 0.0
            self.batches.popleft()
        else:
            self.batches.remove(batch)


def _waits(batch: ProducerBatch) -> bool:
    return batch.state is not IN_FLIGHT and len(batch) > 0


class TopicQueues:
    """The queues of one topic in a producer, and the batches that take records now. Kafka: BuiltInPartitioner."""

    __slots__ = ("_limits", "batch_bytes", "departing", "filling", "is_wanted", "last_sticky", "queues")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.queues: list[PartitionQueue] = []
        # By partition: the batch that takes single records now, or None. The batch is the last of its queue. The list
        # saves the way through the queue: with thousands of partitions every object on the way is a cache miss.
        self.filling: list[ProducerBatch | None] = []
        # Queues of deleted partitions, in the order of deletion. Their batches get other partitions once none of the
        # batches is in flight.
        self.departing: list[PartitionQueue] = []
        # The last partition chosen for records without key and partition.
        self.last_sticky = -1
        # Bound of a batch's size for this topic.
        self.batch_bytes = limits.batch_bytes
        # A thread is about to send to the topic: `forget_idle` must keep the topic.
        self.is_wanted = True

    def resize(self, partition_count: int, message_bytes_max: int) -> None:
        """Changes the number of partitions; remaining partitions keep their queues. A removed queue with batches
        departs.
        """
        gone = [each for each in self.queues[partition_count:] if each.batches]
        begin = min(len(self.queues), partition_count)
        new = range(begin, partition_count)
        self.queues[begin:] = [PartitionQueue(index, self._limits) for index in new]
        self.filling[begin:] = [None] * len(new)
        if not 0 <= self.last_sticky < partition_count:
            self.last_sticky = partition_count - 1
        self.batch_bytes = max(min(self._limits.batch_bytes, message_bytes_max), BATCH_OVERHEAD_BYTES)
        self.depart(gone)

    def depart(self, gone: list[PartitionQueue]) -> None:
        """Adds queues of deleted partitions; blocks the topic's queues until the batches have moved."""
        self.departing += gone
        for queue in (*self.queues, *self.departing):
            queue.is_blocked = bool(self.departing)

    def queue_with(self, batch: ProducerBatch) -> PartitionQueue | None:
        """The queue that holds the batch, or None."""
        if batch.partition < len(self.queues) and batch in self.queues[batch.partition].batches:
            return self.queues[batch.partition]
        return next((each for each in self.departing if batch in each.batches), None)

    def next_sticky(self) -> int:
        """The partition with the fewest batches; among equals the first after the last one chosen."""
        count, after = len(self.queues), self.last_sticky + 1
        order = (*range(after, count), *range(min(after, count)))
        self.last_sticky = min(order, key=lambda partition: len(self.queues[partition].batches))
        return self.last_sticky

    def column_batch(self, partition: int, size_bytes: int) -> ProducerBatch | None:
        """The open batch with room for columns of that size, or None. A batch gathers either records or columns."""
        batch = self.queues[partition].last
        if batch is None or batch.state is not FILLING or not batch.count:
            return None
        return batch if batch.size_bytes + size_bytes <= self.batch_bytes else None
