"""The lineage of one log: at which offset each leader epoch began; and its file `leader-epoch-checkpoint` (B20, B21).

Invariant: epochs and start offsets both rise strictly. The file is rewritten at every change. A power cut may lose or
tear the last version, and recovery rebuilds it from the batches, which carry their epochs. Kafka:
`LeaderEpochFileCache`, `LeaderEpochCheckpointFile`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rayka.errors import InvariantBroken
from rayka.ids import NO_EPOCH, NO_OFFSET, OffsetAndEpoch
from rayka.log.checkpoint_files import decode_lines, encode_lines
from rayka.log.log_files import LogFiles

LEADER_EPOCH_FILE = "leader-epoch-checkpoint"


class EpochStart(NamedTuple):
    """A leader epoch and its first offset."""

    epoch: int
    start_offset: int


class LeaderEpochCache:
    """The epochs of a log, oldest first."""

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        # Epochs and start offsets rise strictly.
        self._entries: list[EpochStart] = []
        # The newest epoch, or -1.
        self.latest_epoch = NO_EPOCH
        # The file, or a scan of the whole log, has told every epoch.
        self._is_whole = True

    def __repr__(self) -> str:
        return f"<LeaderEpochCache {[tuple(entry) for entry in self._entries]}>"

    @property
    def path(self) -> str:
        return self._files.path(LEADER_EPOCH_FILE)

    def load(self) -> bool:
        """Reads the file. False when it is missing or damaged: then the whole log must be scanned for its epochs."""
        disk = self._files.disk
        entries = None
        if disk.exists(self.path):
            entries = decode_epochs(disk.read_at(self.path, 0, disk.size(self.path)))
        self._is_whole = entries is not None
        self._set(entries or [])
        return self._is_whole

    def _set(self, entries: list[EpochStart]) -> None:
        self._entries = entries
        self.latest_epoch = entries[-1].epoch if entries else NO_EPOCH

    def complete(self) -> None:
        """The whole log was scanned. Until now nothing was written that the next load would believe."""
        if not self._is_whole:
            self._is_whole = True
            self.write()

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._entries)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Begins the epoch at this offset. First removes entries that contradict it: with the same epoch or start, or a
        later one (B20).
        """
        if min(epoch, start_offset) < 0:
            raise InvariantBroken(f"epoch {epoch} from offset {start_offset}: neither can be negative")
        if (
            self._entries
            and self._entries[-1].epoch == epoch
            and self._entries[-1].start_offset <= start_offset
        ):
            return
        while self._entries and (
            self._entries[-1].epoch >= epoch or self._entries[-1].start_offset >= start_offset
        ):
            self._entries.pop()
        self._set([*self._entries, EpochStart(epoch, start_offset)])
        self.write()

    def end_offset_for(self, epoch: int, log_end_offset: int) -> OffsetAndEpoch:
        """The largest epoch at or below this one, and its end; (-1, -1) when not known (B21)."""
        if epoch == NO_EPOCH or not self._entries or epoch > self.latest_epoch:
            return OffsetAndEpoch(offset=NO_OFFSET, epoch=NO_EPOCH)
        if epoch == self.latest_epoch:
            return OffsetAndEpoch(offset=log_end_offset, epoch=epoch)
        higher = next(number for number, entry in enumerate(self._entries) if entry.epoch > epoch)
        floor_epoch = self._entries[higher - 1].epoch if higher else epoch
        return OffsetAndEpoch(offset=self._entries[higher].start_offset, epoch=floor_epoch)

    def epoch_of(self, offset: int) -> int:
        """The epoch of an offset, or -1."""
        return next(
            (entry.epoch for entry in reversed(self._entries) if entry.start_offset <= offset), NO_EPOCH
        )

    def truncate_from_end(self, offset: int) -> None:
        """Forgets the epochs that begin at or after an offset."""
        self.replace([entry for entry in self._entries if entry.start_offset < offset])

    def truncate_from_start(self, offset: int) -> None:
        """Forgets the epochs that ended before the record in front of the offset, because no segment holds their
        records. The epoch of that record stays: a replica that has no more than a snapshot which ends there still asks
        for it.
        """
        ends = [entry.start_offset for entry in self._entries[1:]]
        ended = zip(self._entries, [*ends, offset], strict=False)
        self.replace([entry for entry, end in ended if end >= offset])

    def clear(self) -> None:
        """Forgets all epochs."""
        self._set([])
        self.write()

    def replace(self, entries: Sequence[EpochStart]) -> None:
        """Replaces all entries. Writes the file if they differ."""
        if self._entries != list(entries):
            self._set(list(entries))
            self.write()

    def touch(self) -> None:
        """Counts the file as unsynced: the process that wrote it may have died before it synced it."""
        if self._files.disk.exists(self.path):
            self._files.unsynced.file_replaced(self.path)

    def write(self) -> None:
        """Writes the file, once there is a directory and every epoch is known. Until then changes stay in memory."""
        if self._is_whole and not self._files.are_awaited:
            self._files.write({LEADER_EPOCH_FILE: encode_epochs(self._entries)})


def encode_epochs(entries: list[EpochStart]) -> bytes:
    """The content of `leader-epoch-checkpoint`."""
    return encode_lines([f"{entry.epoch} {entry.start_offset}" for entry in entries])


def decode_epochs(data: bytes) -> list[EpochStart] | None:
    """The epochs in a file; None when it is damaged or contradicts itself."""
    lines = decode_lines(data)
    if lines is None:
        return None
    try:
        entries = [EpochStart(int(epoch), int(start_offset)) for epoch, start_offset in lines]
    except ValueError:
        return None
    rises = all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(entries))
    return entries if rises else None
