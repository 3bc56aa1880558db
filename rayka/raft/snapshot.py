"""A snapshot: the state that the log's records below one offset make, in a file that stands for them (A45).

It is batches of records: the header, the voters known at its end (none when no voter ever was), the state's own
records, the footer. Batches carry the snapshot's epoch, and count offsets from 0. A snapshot without its footer is not
whole. The one with id 0-0 is written when a directory is formatted, holds the first voters and nothing else, and is
never fetched (A48). Kafka: `RecordsSnapshotWriter`, `RecordsSnapshotReader`, `Snapshots`.
"""

import asyncio
import posixpath
import re
from bisect import insort
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from rayka.errors import ApiError, CorruptRecord, InvariantBroken, StorageError
from rayka.ids import NO_TIMESTAMP, OffsetAndEpoch
from rayka.ports import Buffer, Disk
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import RecordBatch, split_batches
from rayka.raft.control_records import (
    ControlRecord,
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
    decode_control_batch,
    encode_control_batch,
)
from rayka.raft.voters import VoterSet

BOOTSTRAP_SNAPSHOT_ID = OffsetAndEpoch(0, 0)
SNAPSHOT_SUFFIX = ".checkpoint"
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_ADVICE = "restore it from a copy; or remove it while the node is down, if another voter has the metadata"


def snapshot_name(snapshot_id: OffsetAndEpoch) -> str:
    """The file that holds the snapshot of everything below an offset."""
    return f"{snapshot_id.offset:020d}-{snapshot_id.epoch:010d}{SNAPSHOT_SUFFIX}"


def parse_snapshot_name(name: str) -> OffsetAndEpoch | None:
    """The id in a file's name; None when it is no snapshot's, or that of one still being written."""
    match = _NAME.fullmatch(name)
    return OffsetAndEpoch(int(match[1]), int(match[2])) if match else None


# ---- Writing -------------------------------------------------------------------------------------------------------


def encode_snapshot(
    snapshot_id: OffsetAndEpoch,
    voters: VoterSet | None,
    data: Iterable[Buffer],
    *,
    timestamp_ms: int,
    last_contained_log_timestamp_ms: int = NO_TIMESTAMP,
) -> Iterator[Buffer]:
    """The content of a snapshot, part after part. `data` is the state's batches, made by `encode_batch` as they are
    asked for.
    """
    known: list[ControlRecord] = [KRaftVersionRecord(), VotersRecord(voters)] if voters else []
    before: list[list[ControlRecord]] = [[SnapshotHeaderRecord(last_contained_log_timestamp_ms)], known]
    batches = chain(
        (encode_control_batch(part, timestamp_ms=timestamp_ms) for part in before if part),
        data,
        (encode_control_batch([SnapshotFooterRecord()], timestamp_ms=timestamp_ms),),
    )
    offset = 0
    for batch in map(RecordBatch, batches):
        yield from batch.stamped(base_offset=offset, leader_epoch=snapshot_id.epoch)
        offset += batch.record_count


# ---- Reading -------------------------------------------------------------------------------------------------------


class Snapshot(NamedTuple):
    """What a snapshot holds; the batches view its content, their CRCs are right."""

    last_contained_log_timestamp_ms: int
    voters: VoterSet | None
    data: tuple[RecordBatch, ...]

    def values(self) -> Iterator[bytes]:
        """The state's records, in order."""
        for batch in self.data:
            for value in decode(batch, check_crc=False).values_list():
                if value is None:
                    raise CorruptRecord(f"{batch!r} of a snapshot holds a record without value")
                yield value


def decode_snapshot(content: Buffer, path: str) -> Snapshot:
    """The snapshot in a file. Raises StorageError naming the path when it is damaged or not whole."""
    try:
        return _decode(content)
    except ApiError as error:
        raise StorageError(f"{path} is damaged: {error}; {_ADVICE}") from error


def last_contained_timestamp_ms(content: Buffer, path: str) -> int:
    """Of the newest record that the state stands for, -1 when there was none; only the header is looked at.

    Raises StorageError naming the path.
    """
    try:
        for record in decode_control_batch(next(split_batches(content))):
            if isinstance(record, SnapshotHeaderRecord):
                return record.last_contained_log_timestamp_ms
    except (ApiError, StopIteration) as error:
        raise StorageError(f"{path} is damaged: {error}; {_ADVICE}") from error
    raise StorageError(f"{path} is damaged: it does not begin with a header; {_ADVICE}")


def _decode(content: Buffer) -> Snapshot:
    control: list[ControlRecord] = []
    data = []
    for batch in split_batches(content):
        if control and isinstance(control[-1], SnapshotFooterRecord):
            raise CorruptRecord(f"{batch!r} follows the footer")
        if batch.is_control:
            control.extend(decode_control_batch(batch))
        else:
            batch.check_crc()
            data.append(batch)
    if len(control) < 2 or not isinstance(control[-1], SnapshotFooterRecord):
        raise CorruptRecord(f"it is not whole: no footer ends it, found {control!r}")
    header, voters = control[0], [each.voters for each in control if isinstance(each, VotersRecord)]
    if not isinstance(header, SnapshotHeaderRecord) or len(voters) > 1:
        raise CorruptRecord(f"expected a header, then the voters at most once, found {control!r}")
    return Snapshot(header.last_contained_log_timestamp_ms, voters[0] if voters else None, tuple(data))


# The snapshots in the directory of a quorum's log, on the disk port.
#
# A file has its final name only when its content is synced: it is written and fetched as `.part`, synced, renamed, and
# the directory synced. What a crash left of a `.part` is removed when the store opens. Invariant: `ids` rise, and hold
# what is on the disk, without 0-0.
#
# Kafka: `KafkaRaftLog` (its snapshots), `FileRawSnapshotWriter`, `FileRawSnapshotReader` (A45, A48, A49).


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


# Which snapshots are no longer needed: what they and the log before the next one hold, a later one holds too (A51).
#
# The newest snapshot always stays. Kafka: `KafkaMetadataLog.maybeClean`.


_UNLIMITED = -1


def earliest_to_keep(
    snapshots: SnapshotStore, *, log_bytes: int, retention_bytes: int, retention_ms: int, timestamp_ms: int
) -> OffsetAndEpoch | None:
    """The snapshot before which snapshots and log go; None when all stay.

    The oldest goes while log and snapshots together exceed `retention_bytes`, or its newest record is older than
    `retention_ms`; -1 is no limit.
    """
    total_bytes = log_bytes + sum(snapshots.size(each) for each in snapshots.ids)
    kept = 0
    for number, oldest in enumerate(snapshots.ids[:-1]):
        is_too_much = retention_bytes != _UNLIMITED and total_bytes > retention_bytes
        if not is_too_much and not _is_old(snapshots, oldest, retention_ms, timestamp_ms):
            break
        total_bytes -= snapshots.size(oldest)
        kept = number + 1
    return snapshots.ids[kept] if kept else None


def _is_old(
    snapshots: SnapshotStore, snapshot_id: OffsetAndEpoch, retention_ms: int, timestamp_ms: int
) -> bool:
    if retention_ms == _UNLIMITED:
        return False
    newest_ms = snapshots.last_contained_timestamp_ms(snapshot_id)
    return newest_ms != NO_TIMESTAMP and timestamp_ms - newest_ms > retention_ms
