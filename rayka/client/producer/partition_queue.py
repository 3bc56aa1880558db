"""The queue of one partition: the batches on their way, which may go next and when, and their sequences; and the queues
of one topic.

Invariants of a queue:
- Batches stand in the order of their records. Batches that were sent and are not over stand before all others.
- From the first of these on, no more than `in_flight_max` were sent. Those that are over already count too, for answers
  come in any order, and the log knows again only the last five (C7).
- A batch goes for the first time only when all before it are in flight, and again only when all before it are over: a
  log that takes batches in sequence has them in order (C11). Without idempotence only the first may be in flight.
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


class Sequences(msgspec.Struct, eq=False, gc=False):
    """The sequences of one partition's batches, and what the log is known to have of them (C11).

    A batch gets its sequence when it is first sent, and keeps it over retries, so that the broker knows the batch
    again. After a sent batch has failed for good, no node knows whether the log has it: there may be a gap, and the
    batches sent behind it go on being retried as they are. Either a later batch is acknowledged: there is no gap. Or
    the log refuses the first of them: it has none of them. Only then they are numbered anew, in the next epoch of the
    producer id, from 0.

    Invariants: two epochs are never in flight together; the first batch of an epoch is alone until it is acknowledged,
    because a log that does not know the producer takes any sequence for the first (C5). Each partition has an epoch of
    its own, where Kafka has one for all: without transactions nothing compares them.
    """

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = 0
    # A batch of this epoch was acknowledged.
    has_acknowledged: bool = False
    # The log lacks something before the batches that are left: they must be numbered anew.
    needs_new_epoch: bool = False
    # Of the next record.
    _next: int = 0
    # Behind the last acknowledged record.
    _acknowledged_end: int = 0
    # Behind the last record that failed and may be in the log; None without one.
    _failed_end: int | None = None

    def __repr__(self) -> str:
        gap = " gap?" if self.may_have_gap else ""
        return f"<Sequences producer={self.producer_id} epoch={self.producer_epoch} next={self._next}{gap}>"

    @property
    def may_have_gap(self) -> bool:
        """Whether a batch has failed that the log may or may not have, and nothing behind it is acknowledged."""
        return self._failed_end is not None

    @property
    def is_used_up(self) -> bool:
        """Whether the producer id has no further epoch."""
        return self.producer_epoch == PRODUCER_EPOCH_MAX

    def assign(self, record_count: int, producer_id: int, first_epoch: int = 0) -> ProducerSequence:
        """The sequence of the next batch; `producer_id` and `first_epoch` are for a partition that has no id yet."""
        if self.may_have_gap or self.needs_new_epoch:
            raise InvariantBroken(f"{self!r} takes no more before its next epoch")
        if self.producer_id == NO_PRODUCER_ID:
            self.producer_id, self.producer_epoch = producer_id, first_epoch
        assigned = ProducerSequence(self.producer_id, self.producer_epoch, self._next)
        self._next = sequence_after(self._next, record_count)
        return assigned

    def on_acknowledged(self, base_sequence: int, record_count: int) -> None:
        """The log has these records, and so everything before them."""
        end = sequence_after(base_sequence, record_count)
        self.has_acknowledged = True
        if _is_before(self._acknowledged_end, end):
            self._acknowledged_end = end
        if self._failed_end is not None and not _is_before(self._acknowledged_end, self._failed_end):
            self._failed_end = None

    def on_failed(self, base_sequence: int, record_count: int) -> None:
        """These records are given up; the log may have them."""
        end = sequence_after(base_sequence, record_count)
        is_known = not _is_before(self._acknowledged_end, end)
        if not is_known and (self._failed_end is None or _is_before(self._failed_end, end)):
            self._failed_end = end

    def begin_next_epoch(self) -> None:
        """Numbers from 0 again, under the next epoch, or under a new producer id when that was the last."""
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
    """Of two sequences that are near each other, though they may have wrapped in between."""
    return 0 < (b - a) & SEQUENCE_MAX <= SEQUENCE_MAX // 2


NEVER = float("inf")
STAMP_AGE_MS = 10  # how long records without a timestamp get that of the one before


@dataclass(frozen=True)
class Limits:
    """What bounds the batches: bytes, and milliseconds."""

    batch_bytes: int
    memory_bytes: int
    linger_ms: float
    delivery_timeout_ms: float
    is_idempotent: bool = False
    # Batches of one partition; more only with idempotence.
    in_flight_max: int = 1


class PartitionQueue(msgspec.Struct, eq=False, gc=False):
    """The batches of one partition. The garbage collector does not track a queue: it is part of no cycle, and then the
    timers that refer to it, one for each batch that lingers, need not be tracked either.
    """

    partition: int
    limits: Limits
    # The last batch may be open.
    batches: deque[ProducerBatch] = msgspec.field(default_factory=deque)
    # The end of the pause after a failure.
    not_before_ms: float = 0.0
    # When the schedule looks at the partition next.
    timer_ms: float = NEVER
    # Nothing starts: batches of the topic that are in flight to a partition that is gone may have to go before.
    is_blocked: bool = False
    # Of batches; a batch that is numbered anew counts again.
    sent_count: int = 0
    sequences: Sequences = msgspec.field(default_factory=Sequences)
    # An empty list for the next batch, which is then no new object to collect.
    spare_records: list[Any] | None = None

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.partition} {self.sequences!r} {list(self.batches)}>"

    @property
    def last(self) -> ProducerBatch | None:
        return self.batches[-1] if self.batches else None

    # ---- What may go ----

    def next_to_go(self) -> ProducerBatch | None:
        """The batch that is next, though perhaps not yet; None while only an answer or an append can change that."""
        first = None
        if self.is_blocked:
            return None
        for batch in self.batches:
            if first is None:
                first = batch
            if batch.state is not IN_FLIGHT:
                may_go = not self.sequences.needs_new_epoch and (batch is first or self._may_follow(batch))
                return batch if may_go and (batch.count or batch.records) else None
            if batch.has_more_parts:  # what is behind it would overtake them
                return None
        return None

    def _may_follow(self, batch: ProducerBatch) -> bool:
        """Behind others that are in flight goes only what will not grow any more: an open batch fills meanwhile."""
        return (
            self.sent_count - self.batches[0].number < self.limits.in_flight_max
            and batch.sequence is None
            and (batch.state is not FILLING or batch.is_urgent)
            and self.sequences.has_acknowledged
            and not self.sequences.may_have_gap
        )

    def due_ms(self, batch: ProducerBatch) -> float:
        """When the batch may go."""
        if batch.state is not FILLING or batch.is_urgent:
            return self.not_before_ms
        return max(self.not_before_ms, batch.created_ms + self.limits.linger_ms)

    def deadline_ms(self, batch: ProducerBatch) -> float:
        """When the batch is given up."""
        return batch.created_ms + self.limits.delivery_timeout_ms

    def expired(self, now_ms: float) -> list[ProducerBatch]:
        """The first batches, as far as they wait and have had their time."""
        begun_ms = now_ms - self.limits.delivery_timeout_ms
        if not self.batches or self.batches[0].created_ms > begun_ms:
            return []
        return list(takewhile(lambda each: _waits(each) and each.created_ms <= begun_ms, self.batches))

    def next_event_ms(self, following: ProducerBatch | None, now_ms: float) -> float:
        """When time changes what is to be done for the partition, whose next batch is given, later than now."""
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
        """The batch is over."""
        if batch is self.batches[0]:
            self.not_before_ms = 0.0
            self.batches.popleft()
        else:
            self.batches.remove(batch)


def _waits(batch: ProducerBatch) -> bool:
    return batch.state is not IN_FLIGHT and len(batch) > 0


# The partitions of one topic in a producer, and the batches there that take records now. Kafka: BuiltInPartitioner.


class TopicQueues:
    """The queues of one topic."""

    __slots__ = ("_limits", "batch_bytes", "departing", "filling", "is_wanted", "last_sticky", "queues")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.queues: list[PartitionQueue] = []
        # By partition: the batch that takes single records now, if there is one. It is the last of its queue, but a
        # record for one of thousands of partitions finds each object that it touches outside the processor's caches,
        # and on this way there are fewest.
        self.filling: list[ProducerBatch | None] = []
        # Queues of partitions that are gone, in the order in which they went. Their batches get other partitions when
        # none of them is in flight any more.
        self.departing: list[PartitionQueue] = []
        # The partition that records without one went to last.
        self.last_sticky = -1
        # A batch for the topic may grow so far.
        self.batch_bytes = limits.batch_bytes
        # A thread is about to send: the topic must not be forgotten before that.
        self.is_wanted = True

    def resize(self, partition_count: int, message_bytes_max: int) -> None:
        """The topic has so many partitions now, the first of them those that it had."""
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
        """Adds queues of partitions that are gone; nothing of the topic starts before their batches have moved."""
        self.departing += gone
        for queue in (*self.queues, *self.departing):
            queue.is_blocked = bool(self.departing)

    def queue_with(self, batch: ProducerBatch) -> PartitionQueue | None:
        """The queue that the batch stands in."""
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
        """The batch that takes columns of that size, if there is one: a batch gathers either records or columns."""
        batch = self.queues[partition].last
        if batch is None or batch.state is not FILLING or not batch.count:
            return None
        return batch if batch.size_bytes + size_bytes <= self.batch_bytes else None
