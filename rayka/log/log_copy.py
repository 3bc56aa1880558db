"""A log that becomes a copy of another one, which goes on changing: it is appended to, truncated, and begins later.

Both are logs of the same partition on one broker, so an epoch names the same records in both. They can only differ
behind the offset at which their lineages part (B22). Invariant: below that offset both hold the same records, except
for those that compaction removed from one of them. Every call here is a slice of work, and changes the copy only.
Kafka: `ReplicaAlterLogDirsThread`, which fetches from the local log as a follower does.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rayka.ids import NO_EPOCH
from rayka.log.log import Log, PrefixCopy
from rayka.protocol.batch_format import RecordBatch, split_batches

SLICE_BYTES = 256 << 10


class CopiedBatches(NamedTuple):
    """Batches read from the original, to be appended to the copy."""

    batches: Sequence[RecordBatch]
    size_bytes: int


class LogCopy:
    """The copy `log`. Each call gets the original, which may be opened anew between two calls.

    A copy that an earlier process left counts only below `right_below`, the end of the original when it was opened
    again: a power cut may have taken more of the original than of the copy.
    """

    def __init__(self, log: Log, *, right_below: int | None = None) -> None:
        self.log = log
        is_longer = right_below is not None and right_below < log.log_end_offset
        self._misplaced_from = right_below if is_longer else None

    def is_complete(self, original: Log) -> bool:
        """Whether the copy has everything that the original has, and nothing else."""
        return (
            self.log.log_end_offset == original.log_end_offset
            and self.log.log_start_offset == original.log_start_offset
            and self.common_end(original) == self.log.log_end_offset
        )

    # ---- Where they part -------------------------------------------------------------------------------------

    def common_end(self, original: Log) -> int:
        """The offset below which the copy is right; below the copy's start when nothing of it is right."""
        copy = self.log
        if original.log_start_offset < copy.log_start_offset:
            return original.log_start_offset
        end_offset = min(copy.log_end_offset, original.log_end_offset)
        if self._misplaced_from is not None:
            end_offset = min(end_offset, self._misplaced_from)
        start_offset = max(copy.log_start_offset, original.log_start_offset)
        # The epochs between the two offsets, by their begins. An epoch that began earlier is there at the first offset.
        copied, own = (
            {
                max(start_offset, start): epoch
                for epoch, start in log.epochs.entries
                if max(start_offset, start) < end_offset
            }
            for log in (copy, original)
        )
        copied_epoch = own_epoch = NO_EPOCH
        for offset in sorted({*copied, *own}):
            copied_epoch, own_epoch = copied.get(offset, copied_epoch), own.get(offset, own_epoch)
            if copied_epoch != own_epoch:
                return offset
        return end_offset

    def has_diverged(self, original: Log) -> bool:
        """Whether `cut` has work to do."""
        return self.common_end(original) < self.log.log_end_offset or self._is_behind_start(original)

    def cut(self, original: Log, copied: PrefixCopy | None = None) -> PrefixCopy | None:
        """Removes everything that the original has no more. Returns None when done, else the copy to make first, as
        `Log.truncate_to`.
        """
        end_offset = self.common_end(original)
        if self._is_behind_start(original) or end_offset < self.log.log_start_offset:
            self.log.truncate_fully_and_start_at(original.log_start_offset)
        elif end_offset < self.log.log_end_offset:
            needed = self.log.truncate_to(end_offset, copied)
            if needed is not None:
                return needed
        self._misplaced_from = None
        return None

    def _is_behind_start(self, original: Log) -> bool:
        """Whether the original begins behind everything in the copy."""
        return original.log_start_offset > self.log.log_end_offset

    # ---- Going on --------------------------------------------------------------------------------------------

    def read(self, original: Log, max_bytes: int = SLICE_BYTES) -> CopiedBatches:
        """The next batches of the original; none at its end. Raises CorruptRecord for a damaged batch, and StorageError
        of the original's disk.
        """
        offset = self.log.log_end_offset
        if offset >= original.log_end_offset:
            return CopiedBatches((), 0)
        read = original.read(offset, max_bytes=max_bytes, end_offset=original.log_end_offset)
        batches = tuple(split_batches(read.records))
        for batch in batches:
            batch.check_crc(original.name)
        return CopiedBatches(batches, len(read.records))

    def append(self, original: Log, piece: CopiedBatches, now_ms: int) -> None:
        """Appends the batches, and moves the begin of the copy to that of the original. Raises StorageError of the
        copy's disk.
        """
        copy = self.log
        copy.config = original.config
        start_offset = min(original.log_start_offset, copy.log_end_offset)
        if piece.batches:
            first = piece.batches[0]
            if first.base_offset < copy.log_end_offset:
                if copy.log_start_offset < copy.log_end_offset:
                    self._misplaced_from = first.base_offset
                    return
                copy.truncate_fully_and_start_at(first.base_offset)
            # The original's lineage: behind a gap of compaction an epoch begins before its first batch.
            end_offset = piece.batches[-1].next_offset
            copy.epochs.replace([each for each in original.epochs.entries if each.start_offset < end_offset])
            copy.append_as_follower(piece.batches, now_ms=now_ms)
            start_offset = min(original.log_start_offset, copy.log_end_offset)
        copy.increment_log_start_offset(start_offset)
        copy.remove_below_start()
        # No reader has them mapped.
        copy.retired.remove()
