"""The batches of one partition on their way, and which of them may go next, and when.

Invariants: batches stand in the order of their records; those that were sent and are not over stand before all
others; from the first of them on no more than `in_flight_max` were sent, those included that are over already, for
answers come in any order, and the log knows again only the last five (C7); a batch goes for the first time only when
all before it are in flight, and again only when all before it are over, so that a log which takes them in sequence
has them in order (C11). Without idempotence only the first may be in flight. Kafka: the deque of RecordAccumulator,
`shouldStopDrainBatchesForPartition`.
"""

from collections import deque
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import msgspec

from rayka.client.producer.producer_batch import ProducerBatch
from rayka.client.producer.sequences import Sequences

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
    in_flight_max: int = 1  # batches of one partition; more only with idempotence


class PartitionQueue(msgspec.Struct, eq=False, gc=False):
    """See the module. The last batch may be open. The garbage collector does not track it: it is part of no cycle, and
    what refers to it, an alarm for each batch that lingers, need not be tracked then either.
    """

    partition: int
    limits: Limits
    batches: deque[ProducerBatch] = msgspec.field(default_factory=deque)
    not_before_ms: float = 0.0  # the end of the pause after a failure
    alarm_ms: float = NEVER  # the agenda's: when it is to be looked at
    # Nothing starts: batches of the topic that are in flight to a partition that is gone may have to go before.
    is_blocked: bool = False
    sent_count: int = 0  # of batches; a batch that is numbered anew counts again
    sequences: Sequences = msgspec.field(default_factory=Sequences)
    spare_records: list[Any] | None = (
        None  # an empty list, for the next batch: it is no new object to collect
    )

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
            if not batch.is_in_flight:
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
            and (batch.is_closed or batch.is_urgent)
            and self.sequences.has_acknowledged
            and not self.sequences.may_have_gap
        )

    def due_ms(self, batch: ProducerBatch) -> float:
        """When the batch may go."""
        if batch.is_closed or batch.is_urgent:
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
        self.batches.remove(batch)


def _waits(batch: ProducerBatch) -> bool:
    return not batch.is_in_flight and len(batch) > 0
