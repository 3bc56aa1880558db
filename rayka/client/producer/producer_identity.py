"""The producer id, and the sequences of the batches under it: what makes a producer idempotent.

Synchronous; a part of the accumulator, guarded by the accumulator's lock. Batches of a partition get their sequences in
the order in which they are sent. Acknowledgements and failures decide when the partition begins another epoch
(`partition_queue.Sequences`). Invariant: no batch of an idempotent producer is sent without a sequence.

Left out: transactions. A transaction manager would decide which partitions belong to the transaction before their
batches are sent. Kafka: TransactionManager.
"""

from collections.abc import Iterable
from itertools import takewhile

from rayka.client.producer.partition_queue import PRODUCER_EPOCH_MAX, PartitionQueue
from rayka.client.producer.producer_batch import IN_FLIGHT, ProducerBatch
from rayka.errors import InvariantBroken
from rayka.protocol.batch_format import NO_PRODUCER_ID


class ProducerIdentity:
    """The producer id and the first epoch that new partitions get; the steps of their sequences."""

    def __init__(self, *, is_idempotent: bool) -> None:
        # The id of partitions that have none yet; a partition keeps its id until its epochs are used up.
        self.producer_id = NO_PRODUCER_ID
        # First epoch of a partition under this id; higher than the epochs of all forgotten partitions.
        self.first_epoch = 0
        self._is_idempotent = is_idempotent

    def __repr__(self) -> str:
        return f"<ProducerIdentity {self.producer_id}>"

    @property
    def is_missing(self) -> bool:
        """Whether no batch can start because the idempotent producer has no producer id."""
        return self._is_idempotent and self.producer_id == NO_PRODUCER_ID

    def number(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Gives a batch that starts its sequence, unless the batch has a sequence from an earlier try."""
        batch.went_first = queue.batches[0] is batch
        if self._is_idempotent and batch.sequence is None:
            if self.producer_id == NO_PRODUCER_ID:
                raise InvariantBroken(f"{batch!r} has no producer id")
            batch.sequence = queue.sequences.assign(batch.left_count, self.producer_id, self.first_epoch)
            batch.number = queue.sent_count
            queue.sent_count += 1

    def on_forgotten(self, queues: Iterable[PartitionQueue]) -> None:
        """Raises `first_epoch` above the epochs of these partitions, whose sequences are forgotten.

        A partition that is used again must begin in a new epoch: in an old epoch the log would take a new batch for an
        earlier batch with the same sequences.
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
        """Handles the log's answer that records before this batch are missing.

        If no earlier batch was in flight when the batch was sent, the missing records will never come: the remaining
        batches get new sequences (C11). A batch that the log already has must not get a new sequence. Story:
        1. two batches are in flight; the first is lost; the log refuses the second as out of order, but the answer is
           slow;
        2. the first batch is sent again and acknowledged; a late copy of the second batch arrives, and the log appends
           the copy;
        3. the answer of step 1 arrives. No batch is before the second batch now, but one was when the second was sent
           (`went_first` is False).
        So the second batch is sent again, alone, with its old sequence, and the log recognizes the batch.
        """
        if queue.batches[0] is batch and batch.went_first:
            queue.sequences.needs_new_epoch = True

    def on_refused(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Handles a batch that the log refused whole and that continues with fewer records: the sequences of later
        batches no longer follow on.

        If no batch is before this one, the remaining batches get new sequences at once. Otherwise an earlier batch may
        be in the log and must keep its sequence. This batch then keeps its sequence too, and the log refuses the later
        batches as out of order.
        """
        if batch.sequence is not None and queue.batches[0] is batch:
            queue.sequences.needs_new_epoch = True

    def on_over(
        self, queue: PartitionQueue, batch: ProducerBatch, count: int, *, is_acknowledged: bool
    ) -> None:
        """Notes that `count` records of the batch are acknowledged, or given up (the log may still have them)."""
        if batch.sequence is not None:
            sequences = queue.sequences
            on_over = sequences.on_acknowledged if is_acknowledged else sequences.on_failed
            on_over(batch.sequence.base_sequence, count)

    def settle(self, queue: PartitionQueue) -> None:
        """Begins the partition's next epoch if the epoch is needed and no numbered batch is in flight.

        Called whenever a batch of the partition leaves the flight. Numbered batches lose their sequences.
        """
        sequences = queue.sequences
        if not (sequences.needs_new_epoch or sequences.may_have_gap):
            return
        sent = list(takewhile(lambda each: each.sequence is not None, queue.batches))
        if any(each.state is IN_FLIGHT for each in sent):
            return
        if sequences.needs_new_epoch or not sent:
            if sequences.is_used_up and sequences.producer_id == self.producer_id:
                # A new partition must not begin under an id without further epochs.
                self._begin_next_id()
            sequences.begin_next_epoch()
            for batch in sent:
                batch.sequence = None
