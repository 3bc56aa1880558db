"""Which sequences the batches of one partition get, and what their ends say about the log (C11).

A batch gets its sequence when it is first sent, and keeps it over retries, so that the broker knows it again. When
one that was sent has failed for good, no node knows whether the log has it: there may be a gap, and what was sent after
it goes on being retried as it is. Either a later one is acknowledged, which says that there is no gap; or the log
refuses the first of them, which says that it has none of them. Only then they are numbered anew, in the next epoch of
the producer id, from 0.

Invariants: two epochs are never in flight together; the first batch of an epoch is alone until it is acknowledged,
because a log that does not know the producer takes any sequence for the first (C5). Each partition has an epoch of
its own: without transactions nothing compares them. Kafka: TransactionManager, TxnPartitionEntry, which have one epoch
for all partitions.
"""

import msgspec

from rayka.errors import InvariantBroken
from rayka.protocol.batch_format import NO_PRODUCER_ID, SEQUENCE_MAX, ProducerSequence, sequence_after

PRODUCER_EPOCH_MAX = 2**15 - 1


class Sequences(msgspec.Struct, eq=False, gc=False):
    """The sequences of one partition."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = 0
    has_acknowledged: bool = False
    needs_new_epoch: bool = False
    _next: int = 0
    _acknowledged_end: int = 0
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
        """The log has these, and so everything before them."""
        end = sequence_after(base_sequence, record_count)
        self.has_acknowledged = True
        if _is_before(self._acknowledged_end, end):
            self._acknowledged_end = end
        if self._failed_end is not None and not _is_before(self._acknowledged_end, self._failed_end):
            self._failed_end = None

    def on_failed(self, base_sequence: int, record_count: int) -> None:
        """These are given up; the log may have them."""
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
