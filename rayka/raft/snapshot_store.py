"""The snapshots in the directory of a quorum's log, on the disk port.

A file has its final name only when its content is synced: it is written and fetched as `.part`, synced, renamed, and
the directory synced. What a crash left of a `.part` is removed when the store opens. Invariant: `ids` rise, and hold
what is on the disk, without 0-0.

Kafka: `KafkaRaftLog` (its snapshots), `FileRawSnapshotWriter`, `FileRawSnapshotReader` (A45, A48, A49).
"""

import asyncio
import posixpath
from bisect import insort
from collections.abc import Iterable

from rayka.errors import CorruptRecord, InvariantBroken, StorageError
from rayka.ids import OffsetAndEpoch
from rayka.ports import Buffer, Disk
from rayka.raft.snapshot import (
    BOOTSTRAP_SNAPSHOT_ID,
    SNAPSHOT_SUFFIX,
    Snapshot,
    decode_snapshot,
    last_contained_timestamp_ms,
    parse_snapshot_name,
    snapshot_name,
)
from rayka.raft.voters import VoterSet

PART_SUFFIX = ".part"


class SnapshotDownload:
    """A snapshot that is being fetched, or written, part after part; not yet one of the store's."""

    def __init__(self, disk: Disk, path: str, snapshot_id: OffsetAndEpoch) -> None:
        self._disk = disk
        self.path = path
        self.snapshot_id = snapshot_id
        self.size_bytes = 0

    def __repr__(self) -> str:
        return f"<SnapshotDownload {snapshot_name(self.snapshot_id)} bytes={self.size_bytes}>"

    def append(self, data: Buffer) -> None:
        """Takes the next bytes. Raises StorageError."""
        self._disk.append(self.path, (data,))
        self.size_bytes += len(data)

    def abandon(self) -> None:
        """It is not wanted any more."""
        if self._disk.exists(self.path):
            self._disk.unlink(self.path)


class SnapshotStore:
    """The snapshots of one directory. Raises StorageError, at any call, when the disk fails."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._ids: list[OffsetAndEpoch] = []
        self.directory = directory
        for name in disk.list(directory) if disk.exists(directory) else ():
            snapshot_id = parse_snapshot_name(name)
            if snapshot_id is not None and snapshot_id != BOOTSTRAP_SNAPSHOT_ID:
                insort(self._ids, snapshot_id, key=_position)
            elif name.endswith(SNAPSHOT_SUFFIX + PART_SUFFIX):
                disk.unlink(posixpath.join(directory, name))

    def __repr__(self) -> str:
        return f"<SnapshotStore {[_position(each) for each in self._ids]}>"

    # ---- What there is -----------------------------------------------------------------------------------------------

    @property
    def ids(self) -> tuple[OffsetAndEpoch, ...]:
        return tuple(self._ids)

    @property
    def earliest(self) -> OffsetAndEpoch | None:
        return self._ids[0] if self._ids else None

    @property
    def latest(self) -> OffsetAndEpoch | None:
        return self._ids[-1] if self._ids else None

    def path(self, snapshot_id: OffsetAndEpoch) -> str:
        return posixpath.join(self.directory, snapshot_name(snapshot_id))

    def size(self, snapshot_id: OffsetAndEpoch) -> int:
        """In bytes."""
        return self._disk.size(self.path(snapshot_id))

    # ---- Reading -----------------------------------------------------------------------------------------------------

    def read(self, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int) -> bytes:
        """Bytes from a position on, not aligned to batches; fewer only at the end (A49). What a disk is asked for it
        sets memory aside for, and a caller may ask for any number.
        """
        left_bytes = max(0, self.size(snapshot_id) - position)
        return self._disk.read_at(self.path(snapshot_id), position, min(max_bytes, left_bytes))

    def content(self, snapshot_id: OffsetAndEpoch) -> Buffer:
        """All of it, mapped."""
        return self._disk.map(self.path(snapshot_id))

    def load(self, snapshot_id: OffsetAndEpoch) -> Snapshot:
        """What it holds. Raises StorageError naming the path when it is damaged."""
        return decode_snapshot(self.content(snapshot_id), self.path(snapshot_id))

    def last_contained_timestamp_ms(self, snapshot_id: OffsetAndEpoch) -> int:
        """Of the newest record that it stands for; -1 when there was none."""
        return last_contained_timestamp_ms(self.content(snapshot_id), self.path(snapshot_id))

    def bootstrap_voters(self) -> VoterSet | None:
        """The voters that the directory was formatted with; None when it was formatted without (A48).

        Raises StorageError naming the path when the file is damaged.
        """
        path = self.path(BOOTSTRAP_SNAPSHOT_ID)
        if not self._disk.exists(path):
            return None
        voters = self.load(BOOTSTRAP_SNAPSHOT_ID).voters
        if voters is None:
            raise StorageError(f"{path} names no voters; restore it, or format the directory anew")
        return voters

    # ---- Writing -----------------------------------------------------------------------------------------------------

    def begin(self, snapshot_id: OffsetAndEpoch) -> SnapshotDownload:
        """An empty snapshot to be filled; what an earlier attempt left is gone."""
        if snapshot_id in self._ids:
            raise InvariantBroken(f"{self!r} has {snapshot_id!r} already")
        self._disk.make_directory(self.directory)
        download = SnapshotDownload(self._disk, self.path(snapshot_id) + PART_SUFFIX, snapshot_id)
        download.abandon()
        download.append(b"")
        return download

    async def freeze(self, download: SnapshotDownload) -> None:
        """Makes it one of the store's, durably.

        Raises CorruptRecord, and forgets it, when what was fetched is no whole snapshot: the replica that gave it has
        damage.
        """
        content = self._disk.map(download.path)
        try:
            decode_snapshot(content, download.path)
        except StorageError as error:
            download.abandon()
            raise CorruptRecord(str(error)) from error
        await self._publish(download)

    async def write(self, snapshot_id: OffsetAndEpoch, batches: Iterable[Buffer]) -> None:
        """Writes what `encode_snapshot` gives, durably; others get their turn between two parts.

        When it raises StorageError, nothing is left of it. One that is there already stays.
        """
        if snapshot_id in self._ids:
            return
        download = self.begin(snapshot_id)
        try:
            for batch in batches:
                download.append(batch)
                await asyncio.sleep(0)
        except BaseException:
            download.abandon()
            raise
        await self._publish(download)

    async def _publish(self, download: SnapshotDownload) -> None:
        await self._disk.sync([download.path], [])
        self._disk.rename(download.path, self.path(download.snapshot_id))
        await self._disk.sync([], [self.directory])
        if download.snapshot_id != BOOTSTRAP_SNAPSHOT_ID:
            insort(self._ids, download.snapshot_id, key=_position)

    # ---- Deleting ----------------------------------------------------------------------------------------------------

    def delete(self, snapshot_id: OffsetAndEpoch) -> None:
        """Removes it; a reader that has it mapped keeps it. A power cut may bring it back."""
        self._ids.remove(snapshot_id)
        self._disk.unlink(self.path(snapshot_id))


def _position(snapshot_id: OffsetAndEpoch) -> tuple[int, int]:
    return snapshot_id.offset, snapshot_id.epoch
