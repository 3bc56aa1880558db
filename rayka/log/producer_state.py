"""What one log knows of the producers that wrote to it: which batch of which producer must come next, and which came
already.

Of each producer id the last five batches are kept (C2), by sequences and offsets. From them follow: a batch that
was appended already is answered with its old offsets (C3), one whose predecessor is missing is refused (C5), one of
an epoch that is over is refused (C4). Every replica builds the same state from the log that it appends; only a
leader refuses anything, and only what comes from a client (C6).

Invariants: `check` changes nothing, and what it let pass is appended before anything else is checked; the batches
of an entry are of its one epoch, oldest first. Nothing here depends on how many records a batch holds.

Silence is counted on this process's clock, from the producer's last append or from when the log was opened (C8 counts
from the timestamp of the last record: a producer that sends the records of last year would be forgotten between a
request and its retry). Kafka: `ProducerStateManager`, `ProducerAppendInfo`, `ProducerStateEntry`,
`BatchMetadata` (C1-C8). Left out: transactions.
"""

import logging
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from rayka.errors import InvalidProducerEpoch, OutOfOrderSequence
from rayka.protocol.batch_format import NO_PRODUCER_ID, RecordBatch, sequence_after

CACHED_BATCHES = 5  # as many as a producer may have in flight (C7)
_logger = logging.getLogger(__name__)


class BatchMetadata(NamedTuple):
    """One batch that is in the log. `offset_delta`: last offset minus first, and last sequence minus first."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return sequence_after(self.last_sequence, -self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerStateEntry:
    """One producer id: its newest epoch here, and the last batches of that epoch."""

    __slots__ = ("batches", "producer_epoch", "seen_ms")

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        self.batches: deque[BatchMetadata] = deque(maxlen=CACHED_BATCHES)
        self.seen_ms = 0

    def __repr__(self) -> str:
        batches = [(each.first_sequence, each.last_sequence) for each in self.batches]
        return f"<ProducerStateEntry epoch={self.producer_epoch} batches={batches}>"

    @property
    def is_full(self) -> bool:
        """Whether it holds as many batches as are remembered: nothing before the first of them counts."""
        return len(self.batches) == CACHED_BATCHES

    def add(self, producer_epoch: int, batch: BatchMetadata) -> None:
        """The batch is in the log now; another epoch forgets those of the one before."""
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.batches.clear()
        self.batches.append(batch)


class ProducerStates:
    """The producers of one log."""

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self._now_ms = now_ms  # the time of the last call that gave one
        self._entries: dict[int, ProducerStateEntry] = {}

    def __repr__(self) -> str:
        return f"<ProducerStates of {self.name} producers={len(self._entries)}>"

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> Iterable[tuple[int, ProducerStateEntry]]:
        """All producers, in the order of their first batches."""
        return self._entries.items()

    # ---- Before an append: only of what a client sends -------------------------------------------------------

    def check(self, batch: RecordBatch) -> BatchMetadata | None:
        """The batch as it stands in the log already, or None when it may be appended (C3-C5).

        Raises InvalidProducerEpoch or OutOfOrderSequence. A batch without a producer id may always be appended.
        """
        if batch.producer_id == NO_PRODUCER_ID:
            return None
        entry = self._entries.get(batch.producer_id)
        if entry is None:
            return None  # expired, or never here: any sequence may be the first (C5)
        if batch.producer_epoch != entry.producer_epoch:
            self._check_epoch(batch, entry)
            return None
        last = entry.batches[-1].last_sequence
        if batch.base_sequence == sequence_after(last, 1):
            return None
        duplicate = _found(entry, batch)
        if duplicate is None:
            raise OutOfOrderSequence(
                f"{self.name}: producer {batch.producer_id} sends sequence {batch.base_sequence} in epoch"
                f" {batch.producer_epoch}; expected {sequence_after(last, 1)}"
            )
        return duplicate

    def has(self, batch: RecordBatch) -> bool:
        """Whether the batch stands in the log already (C3), as far as its producer's last batches are known."""
        entry = self._entries.get(batch.producer_id)
        is_of_epoch = entry is not None and entry.producer_epoch == batch.producer_epoch
        return is_of_epoch and entry is not None and _found(entry, batch) is not None

    def _check_epoch(self, batch: RecordBatch, entry: ProducerStateEntry) -> None:
        if batch.producer_epoch < entry.producer_epoch:
            raise InvalidProducerEpoch(
                f"{self.name}: producer {batch.producer_id} sends in epoch {batch.producer_epoch}, which ended:"
                f" its epoch is {entry.producer_epoch}"
            )
        if batch.base_sequence != 0:
            raise OutOfOrderSequence(
                f"{self.name}: producer {batch.producer_id} begins epoch {batch.producer_epoch} with sequence"
                f" {batch.base_sequence}; expected 0"
            )

    # ---- After an append, of a producer or of the leader ------------------------------------------------------------

    def on_appended(self, batch: RecordBatch, first_offset: int, now_ms: int, timestamp_ms: int) -> None:
        """The batch stands in the log at this offset, with this as its largest timestamp."""
        if batch.producer_id != NO_PRODUCER_ID:
            delta = batch.last_offset_delta
            appended = BatchMetadata(batch.last_sequence, first_offset + delta, delta, timestamp_ms)
            self._now_ms = now_ms
            self.add(batch.producer_id, batch.producer_epoch, appended)

    def add(self, producer_id: int, producer_epoch: int, batch: BatchMetadata) -> None:
        """As `on_appended`, for a batch of which only this much is known."""
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerStateEntry(producer_epoch)
        elif producer_epoch < entry.producer_epoch:
            _logger.warning(
                "%s: offset %d is of producer %d in epoch %d, after one in epoch %d",
                self.name, batch.first_offset, producer_id, producer_epoch, entry.producer_epoch,
            )  # fmt: skip
        entry.add(producer_epoch, batch)
        entry.seen_ms = self._now_ms

    # ---- Forgetting --------------------------------------------------------------------------------------------

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forgets producers that have been silent for so long (C8)."""
        self._now_ms = now_ms
        silent = [
            producer_id
            for producer_id, entry in self._entries.items()
            if now_ms - entry.seen_ms >= expiration_ms
        ]
        for producer_id in silent:
            del self._entries[producer_id]

    def reaching(self, offset: int) -> list[int]:
        """The producers of which a batch lies at or behind an offset."""
        return [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.batches[-1].last_offset >= offset
        ]

    def replace(self, entries: dict[int, ProducerStateEntry]) -> None:
        """This is known of these producers from now on, instead of what was."""
        for entry in entries.values():
            entry.seen_ms = self._now_ms
        self._entries.update(entries)

    def clear(self) -> None:
        """Forgets all."""
        self._entries.clear()


def _found(entry: ProducerStateEntry, batch: RecordBatch) -> BatchMetadata | None:
    last_sequence = batch.last_sequence
    for known in entry.batches:
        if known.last_sequence == last_sequence and known.first_sequence == batch.base_sequence:
            return known
    return None
