"""The producer id, and the sequences of the batches under it: what makes a producer idempotent.

Synchronous; a part of the accumulator, guarded by its lock. Batches of a partition get their sequences in the order in
which they are sent; what their ends say about the log decides when the partition begins another epoch (`sequences`).
Invariant: no batch of an idempotent producer is sent without a sequence. A transaction manager would stand beside this:
it decides which partitions belong to the transaction before their batches may go. Kafka: TransactionManager.
"""

from collections.abc import Iterable
from itertools import takewhile

from rayka.client.producer.partition_queue import PRODUCER_EPOCH_MAX, PartitionQueue
from rayka.client.producer.producer_batch import IN_FLIGHT, ProducerBatch
from rayka.errors import InvariantBroken
from rayka.protocol.batch_format import NO_PRODUCER_ID


class ProducerIdentity:
    """See the module. `producer_id` is for partitions that have none yet."""

    def __init__(self, *, is_idempotent: bool) -> None:
        self.producer_id = NO_PRODUCER_ID
        # The epoch of partitions that begin under this id: above those of all partitions that were forgotten.
        self.first_epoch = 0
        self._is_idempotent = is_idempotent

    def __repr__(self) -> str:
        return f"<ProducerIdentity {self.producer_id}>"

    @property
    def is_missing(self) -> bool:
        """Whether nothing can start because there is no producer id to number it under."""
        return self._is_idempotent and self.producer_id == NO_PRODUCER_ID

    def number(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """The batch goes now: it gets its sequence, unless it has one from an earlier try."""
        batch.went_first = queue.batches[0] is batch
        if self._is_idempotent and batch.sequence is None:
            if self.producer_id == NO_PRODUCER_ID:
                raise InvariantBroken(f"{batch!r} has no producer id")
            batch.sequence = queue.sequences.assign(batch.left_count, self.producer_id, self.first_epoch)
            batch.number = queue.sent_count
            queue.sent_count += 1

    def on_forgotten(self, queues: Iterable[PartitionQueue]) -> None:
        """The sequences of these partitions are not known any more. A partition that is used again begins in an epoch
        that it has not had: else its log would take a new batch for an old one of the same sequences.
        """
        epochs = [
            each.sequences.producer_epoch
            for each in queues
            if each.sequences.producer_id == self.producer_id != NO_PRODUCER_ID
        ]
        self.first_epoch = max([self.first_epoch, *(each + 1 for each in epochs)])
        if self.first_epoch > PRODUCER_EPOCH_MAX:
            self._begin_next_id()

    def _begin_next_id(self) -> None:
        self.producer_id, self.first_epoch = NO_PRODUCER_ID, 0

    def on_out_of_order(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """The log lacks something before this batch.

        If that was not another one on its way, it will never come: what is left is numbered anew (C11). Numbered anew
        must not be what the log has after all:
        1. two batches are in flight, and the first is lost; the second is out of order, but its answer takes long;
        2. the first goes again, and is acknowledged; a late copy of the second comes behind it, and is taken;
        3. the answer of 1 arrives: nothing is before the second batch any more, though there was when it went.
        It goes again, alone, and the log knows it.
        """
        if queue.batches[0] is batch and batch.went_first:
            queue.sequences.needs_new_epoch = True

    def on_refused(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """The log has none of the batch, which goes on with fewer records: the sequences behind it follow no more.

        What is left is numbered anew at once if nothing is before it. Else one before it may be in the log, and must
        keep its sequence: the batch goes again under its own, and what is behind it is out of order then.
        """
        if batch.sequence is not None and queue.batches[0] is batch:
            queue.sequences.needs_new_epoch = True

    def on_over(
        self, queue: PartitionQueue, batch: ProducerBatch, count: int, *, is_acknowledged: bool
    ) -> None:
        """The log has so many records of the batch that were left, or they are given up and the log may have them."""
        if batch.sequence is not None:
            sequences = queue.sequences
            on_over = sequences.on_acknowledged if is_acknowledged else sequences.on_failed
            on_over(batch.sequence.base_sequence, count)

    def settle(self, queue: PartitionQueue) -> None:
        """Something of the partition is not in flight any more: begins the next epoch if it is needed, and possible."""
        sequences = queue.sequences
        if not (sequences.needs_new_epoch or sequences.may_have_gap):
            return
        sent = list(takewhile(lambda each: each.sequence is not None, queue.batches))
        if any(each.state is IN_FLIGHT for each in sent):
            return
        if sequences.needs_new_epoch or not sent:
            if sequences.is_used_up and sequences.producer_id == self.producer_id:
                # No partition begins under a used-up id.
                self._begin_next_id()
            sequences.begin_next_epoch()
            for batch in sent:
                batch.sequence = None
