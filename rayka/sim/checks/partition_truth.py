"""The committed records of one partition, as an observer outside knows them, and all that its replicas ever held.

A batch is known by its leader epoch and offset: one leader wrote it, once. The committed log grows when a leader raises
its high watermark, and nothing is ever taken back, but for a *loss that no replication survives*:

- every member of ISR and ELR has lost what it had not synced (or its disk) before another one had the record: B33; or
- an unclean election that the topic's configuration, or the operator, allows.

Then the partition awaits its next leader, whose log is the committed one from there on; what it lacks is `lost`: its
producers may have been told that it is safe, and consumers may have seen it. Kafka: `ConsistentCommittedData`, here
for data.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from rayka.ids import NO_EPOCH
from rayka.log.leader_epoch_cache import EpochStart


class Batch(NamedTuple):
    """One batch as its leader wrote it."""

    base_offset: int
    next_offset: int
    epoch: int
    crc: int
    values: tuple[bytes, ...]
    keys: tuple[bytes | None, ...] = ()
    timestamp_ms: int = -1  # the largest
    timestamps_ms: tuple[int, ...] = ()  # of each record


class LegalLoss(NamedTuple):
    """Committed records from an offset on, if there were any, are gone legally since the leader of this epoch."""

    at_ms: int
    offset: int
    epoch: int


@dataclass(slots=True, eq=False, repr=False)
class PartitionTruth:
    """One partition. `end` is the first offset that is not known to be committed."""

    name: str
    topic_id: UUID
    number: int
    end: int = 0
    # All ever written: by epoch and offset.
    batches: dict[tuple[int, int], Batch] = field(default_factory=dict)
    committed: list[Batch] = field(default_factory=list)
    # Of each: the epoch of the leader that said so first.
    committed_in: list[int] = field(default_factory=list)
    # By base offset: committed once, gone by a legal loss.
    lost: dict[int, list[Batch]] = field(default_factory=dict)
    losses: list[LegalLoss] = field(default_factory=list)
    awaits_loss: str = ""  # why the next leader may lack something
    leaders: dict[int, int] = field(default_factory=dict)  # by leader epoch: its leader
    # By node and epoch: the end of what it ever held.
    held: dict[int, dict[int, int]] = field(default_factory=dict)
    # By node: where its log began anew, below which it knows nothing of producers either.
    begun: dict[int, int] = field(default_factory=dict)
    # Nodes that lost something since they were last complete.
    damaged: dict[int, None] = field(default_factory=dict)
    log_start_offset: int = 0  # the highest that any leader has had
    fewest_replicas: int = 1 << 30  # that it was ever given
    newest: dict[bytes | None, int] = field(default_factory=dict)  # committed offsets by key
    is_compacted: bool = False
    # Offsets whose records compaction has removed from any replica: a reader may never be given these.
    compacted: set[int] = field(default_factory=set)
    deleted_up_to: int = 0  # what was ever asked to be deleted ends here
    is_deleted_to_the_end: bool = False  # it was asked to delete all that is committed then
    expired_up_to: int = 0  # what any replica has deleted rightly ends here

    def __repr__(self) -> str:
        return (
            f"<PartitionTruth {self.name} end={self.end} epoch={self.last_epoch} losses={len(self.losses)}>"
        )

    @property
    def last_epoch(self) -> int:
        """The epoch of the newest committed batch."""
        return self.committed[-1].epoch if self.committed else NO_EPOCH

    @property
    def has_lost(self) -> bool:
        """Whether any record that was committed is gone."""
        return bool(self.lost)

    @property
    def loss_epoch(self) -> int:
        """Leaders of an earlier epoch speak for a log that is gone."""
        return self.losses[-1].epoch if self.losses else NO_EPOCH

    # ---- What replicas hold ------------------------------------------------------------------------------------------

    def hold(self, node_id: int, batch: Batch) -> Batch:
        """A replica has this batch; returns the batch of that epoch and offset as it was first seen."""
        epochs = self.held.setdefault(node_id, {})
        epochs[batch.epoch] = max(epochs.get(batch.epoch, 0), batch.next_offset)
        return self.batches.setdefault((batch.epoch, batch.base_offset), batch)

    def has_held(self, node_id: int, end: int, epoch: int) -> bool:
        """Whether the node ever held what this epoch wrote, up to there."""
        return self.held.get(node_id, {}).get(epoch, 0) >= end

    # ---- What is committed -------------------------------------------------------------------------------------------

    def at(self, offset: int) -> Batch | None:
        """The committed batch that contains the offset."""
        place = bisect_right(self.committed, offset, key=lambda each: each.base_offset) - 1
        found = self.committed[place] if place >= 0 else None
        return found if found is not None and offset < found.next_offset else None

    def written(self, epochs: Sequence[EpochStart], offset: int) -> Batch | None:
        """The batch at this base offset in a log with these epochs."""
        return self.batches.get((epoch_at(epochs, offset), offset))

    def end_before(self, leader_epoch: int) -> int:
        """Up to where the leaders of earlier epochs have committed: what a leader of this one must have."""
        place = len(self.committed)
        while place and self.committed_in[place - 1] >= leader_epoch:
            place -= 1
        return self.committed[place - 1].next_offset if place else 0

    def extend(self, batch: Batch, leader_epoch: int) -> None:
        """The next batch is committed; only after a loss may there be a hole, where a log begins anew."""
        assert batch.base_offset == self.end or self.losses, f"{self!r} goes on with {batch!r}"
        self.committed.append(batch)
        self._note_keys(batch)
        self.committed_in.append(leader_epoch)
        self.end = batch.next_offset

    def _note_keys(self, batch: Batch) -> None:
        self.newest.update(zip(batch.keys, range(batch.base_offset, batch.next_offset), strict=False))

    @property
    def may_begin_at(self) -> int:
        """Up to where any replica may have no records."""
        return max(self.deleted_up_to, self.expired_up_to)

    @property
    def needed_end(self) -> int:
        """The end of the last record that every reader must get."""
        end = self.end
        while end - 1 in self.compacted:
            end -= 1
        return end

    @property
    def needed_begin(self) -> int:
        """The offset of the first record that every reader must get: records below are deleted."""
        return max(self.log_start_offset, self.deleted_up_to)

    def lose(self, at_ms: int, offset: int, epoch: int) -> list[Batch]:
        """Removes and returns the committed batches from the offset on: they were lost legally."""
        gone: list[Batch] = []
        while self.committed and self.committed[-1].next_offset > offset:
            gone.append(self.committed.pop())
            self.committed_in.pop()
        for batch in gone:
            self.lost.setdefault(batch.base_offset, []).append(batch)
        self.newest.clear()
        for batch in self.committed:
            self._note_keys(batch)
        self.end = self.committed[-1].next_offset if self.committed else 0
        self.losses.append(LegalLoss(at_ms, offset, epoch))
        return gone

    def seen_at(self, offset: int) -> Iterator[bytes]:
        """Every value that a consumer may ever have been given at the offset."""
        batch = self.at(offset)
        if batch is not None:
            yield batch.values[offset - batch.base_offset]
        for gone in self.lost.values():
            for each in gone:
                if each.base_offset <= offset < each.next_offset:
                    yield each.values[offset - each.base_offset]


def epoch_at(epochs: Sequence[EpochStart], offset: int) -> int:
    """The epoch that owns an offset in a log of this lineage; -1 below the first."""
    place = bisect_right(epochs, offset, key=lambda each: each.start_offset) - 1
    return epochs[place].epoch if place >= 0 else NO_EPOCH
