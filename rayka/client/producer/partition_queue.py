"""The batches of one partition on their way, and which of them may go next.

Invariants: batches stand in the order of their records; those that were sent and are not over stand before all
others; from the first of them on no more than `in_flight_max` were sent, those included that are over already, for
answers come in any order, and the log knows again only the last five (C7); a batch goes for the first time only when
all before it are in flight, and again only when all before it are over, so that a log which takes them in sequence
has them in order (C11). Without idempotence only the first may be in flight. Kafka: the deque of RecordAccumulator,
`shouldStopDrainBatchesForPartition`.
"""

from collections import deque
from itertools import takewhile

import msgspec

from rayka.client.producer.producer_batch import ProducerBatch
from rayka.client.producer.sequences import Sequences

NEVER = float("inf")


class PartitionQueue(msgspec.Struct, eq=False, gc=False):
    """See the module. The last batch may be open. The garbage collector does not track it: it is part of no cycle, and
    what refers to it, an alarm for each batch that lingers, need not be tracked then either.
    """

    partition: int
    in_flight_max: int
    batches: deque[ProducerBatch] = msgspec.field(default_factory=deque)
    not_before_ms: float = 0.0  # the end of the pause after a failure
    alarm_ms: float = NEVER  # the agenda's: when it is to be looked at
    sent_count: int = 0  # of batches; a batch that is numbered anew counts again
    sequences: Sequences = msgspec.field(default_factory=Sequences)

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.partition} {self.sequences!r} {list(self.batches)}>"

    @property
    def first(self) -> ProducerBatch | None:
        return self.batches[0] if self.batches else None

    @property
    def last(self) -> ProducerBatch | None:
        return self.batches[-1] if self.batches else None

    def next_to_go(self) -> ProducerBatch | None:
        """The batch that is next, though perhaps not yet; None while only an answer or an append can change that."""
        first = None
        for batch in self.batches:
            if first is None:
                first = batch
            if not batch.is_in_flight:
                may_go = not self.sequences.needs_new_epoch and (batch is first or self._may_follow(batch))
                return batch if may_go and (batch.count or batch.records) else None
        return None

    def _may_follow(self, batch: ProducerBatch) -> bool:
        """Behind others that are in flight goes only what will not grow any more: an open batch fills meanwhile."""
        return (
            self.sent_count - self.batches[0].number < self.in_flight_max
            and batch.sequence is None
            and (batch.is_closed or batch.is_urgent)
            and self.sequences.has_acknowledged
            and not self.sequences.may_have_gap
        )

    def start(self, batch: ProducerBatch, producer_id: int) -> None:
        """The batch goes for the first time, or anew: it gets its sequence."""
        batch.sequence = self.sequences.assign(batch.left_count, producer_id)
        batch.number = self.sent_count
        self.sent_count += 1

    def remove(self, batch: ProducerBatch) -> None:
        """The batch is over."""
        if batch is self.batches[0]:
            self.not_before_ms = 0.0
        self.batches.remove(batch)

    def settle(self) -> None:
        """Something of the partition is not in flight any more: begins the next epoch if it is needed, and possible."""
        if not (self.sequences.needs_new_epoch or self.sequences.may_have_gap):
            return
        sent = list(takewhile(lambda each: each.sequence is not None, self.batches))
        if any(each.is_in_flight for each in sent):
            return
        if self.sequences.needs_new_epoch or not sent:
            self.sequences.begin_next_epoch()
            for batch in sent:
                batch.sequence = None
