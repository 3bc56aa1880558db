"""Snapshots: the file format, the store in the directory of a quorum's log, and retention (A45, A48, A49, A51).

A snapshot stands for the state of the log's records below one offset. The file holds batches of records: the header,
the voters at that offset (none if there never was a voter), the records of the state, the footer. The batches carry the
snapshot's epoch and count offsets from 0. A snapshot without a footer is not whole. Formatting a directory writes the
snapshot 0-0, which holds the first voters only and is never fetched (A48).

A file gets its final name only when its content is durable: it is written as `.part`, synced, renamed, and the
directory synced. The store removes the `.part` files of a crash when it opens. Invariant: the ids in the store rise and
equal the files on the disk, without 0-0.

Kafka: `RecordsSnapshotWriter`, `RecordsSnapshotReader`, `Snapshots`, `FileRawSnapshotWriter`, `FileRawSnapshotReader`,
`KafkaRaftLog`, `KafkaMetadataLog.maybeClean`.
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

_UNLIMITED = -1
BOOTSTRAP_SNAPSHOT_ID = OffsetAndEpoch(0, 0)
SNAPSHOT_SUFFIX = ".checkpoint"
PART_SUFFIX = ".part"
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_ADVICE = "restore it from a copy; or remove it while the node is down, if another voter has the metadata"


def snapshot_name(snapshot_id: OffsetAndEpoch) -> str:
    """The file name of a snapshot."""
    return f"{snapshot_id.offset:020d}-{snapshot_id.epoch:010d}{SNAPSHOT_SUFFIX}"


def parse_snapshot_name(name: str) -> OffsetAndEpoch | None:
    """The id in a file name; None for another file, or for a snapshot that is still being written."""
    match = _NAME.fullmatch(name)
    return OffsetAndEpoch(int(match[1]), int(match[2])) if match else None


# ---- Format --------------------------------------------------------------------------------------------------------


def encode_snapshot(
    snapshot_id: OffsetAndEpoch,
    voters: VoterSet | None,
    data: Iterable[Buffer],
    *,
    timestamp_ms: int,
    last_contained_log_timestamp_ms: int = NO_TIMESTAMP,
) -> Iterator[Buffer]:
    """Yields the content of a snapshot in parts. `data` yields the batches of the state, made by `encode_batch`."""
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


class Snapshot(NamedTuple):
    """The decoded content of a snapshot."""

    # Of the newest record that the snapshot stands for; NO_TIMESTAMP without records.
    last_contained_log_timestamp_ms: int
    voters: VoterSet | None
    # Views of the content, with valid CRCs.
    data: tuple[RecordBatch, ...]

    def values(self) -> Iterator[bytes]:
        """Yields the records of the state, in order."""
        for batch in self.data:
            for value in decode(batch, check_crc=False).values_list():
                if value is None:
                    raise CorruptRecord(f"{batch!r} of a snapshot holds a record without value")
                yield value


def decode_snapshot(content: Buffer, path: str) -> Snapshot:
    """Decodes the content of a file. Raises StorageError, which names the path, if it is damaged or not whole."""
    control: list[ControlRecord] = []
    data: list[RecordBatch] = []
    try:
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
    except ApiError as error:
        raise StorageError(f"{path} is damaged: {error}; {_ADVICE}") from error
    return Snapshot(header.last_contained_log_timestamp_ms, voters[0] if voters else None, tuple(data))


def last_contained_timestamp_ms(content: Buffer, path: str) -> int:
    """The timestamp of the newest record that the snapshot stands for, -1 without records. Reads the header only.

    Raises StorageError, which names the path.
    """
    try:
        for record in decode_control_batch(next(split_batches(content))):
            if isinstance(record, SnapshotHeaderRecord):
                return record.last_contained_log_timestamp_ms
    except (ApiError, StopIteration) as error:
        raise StorageError(f"{path} is damaged: {error}; {_ADVICE}") from error
    raise StorageError(f"{path} is damaged: it does not begin with a header; {_ADVICE}")


# ---- Store ---------------------------------------------------------------------------------------------------------


class SnapshotDownload:
    """A snapshot that is fetched or written in parts, and not in the store yet."""

    def __init__(self, disk: Disk, path: str, snapshot_id: OffsetAndEpoch) -> None:
        self._disk = disk
        self.path = path
        self.snapshot_id = snapshot_id
        self.size_bytes = 0

    def __repr__(self) -> str:
        return f"<SnapshotDownload {snapshot_name(self.snapshot_id)} bytes={self.size_bytes}>"

    def append(self, data: Buffer) -> None:
        """Appends the next bytes. Raises StorageError."""
        self._disk.append(self.path, (data,))
        self.size_bytes += len(data)

    def abandon(self) -> None:
        """Removes the file."""
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

    # ---- Ids ---------------------------------------------------------------------------------------------------------

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
        """The size of a snapshot in bytes."""
        return self._disk.size(self.path(snapshot_id))

    # ---- Reading -----------------------------------------------------------------------------------------------------

    def read(self, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int) -> bytes:
        """Reads bytes from a position on, not aligned to batches; fewer than `max_bytes` only at the end (A49)."""
        # The disk reserves memory for the bytes that it is asked for, and a caller may name any number.
        left_bytes = max(0, self.size(snapshot_id) - position)
        return self._disk.read_at(self.path(snapshot_id), position, min(max_bytes, left_bytes))

    def content(self, snapshot_id: OffsetAndEpoch) -> Buffer:
        """The whole file, mapped."""
        return self._disk.map(self.path(snapshot_id))

    def load(self, snapshot_id: OffsetAndEpoch) -> Snapshot:
        """Decodes a snapshot. Raises StorageError, which names the path, if it is damaged."""
        return decode_snapshot(self.content(snapshot_id), self.path(snapshot_id))

    def last_contained_timestamp_ms(self, snapshot_id: OffsetAndEpoch) -> int:
        """The timestamp of the newest record that the snapshot stands for; -1 without records."""
        return last_contained_timestamp_ms(self.content(snapshot_id), self.path(snapshot_id))

    def bootstrap_voters(self) -> VoterSet | None:
        """The voters that the directory was formatted with; None if it was formatted without voters (A48).

        Raises StorageError, which names the path, if the file is damaged.
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
        """Begins an empty snapshot, and removes the file of an earlier attempt."""
        if snapshot_id in self._ids:
            raise InvariantBroken(f"{self!r} has {snapshot_id!r} already")
        self._disk.make_directory(self.directory)
        download = SnapshotDownload(self._disk, self.path(snapshot_id) + PART_SUFFIX, snapshot_id)
        download.abandon()
        download.append(b"")
        return download

    async def freeze(self, download: SnapshotDownload) -> None:
        """Adds a fetched snapshot to the store, durably.

        Raises CorruptRecord, and removes the file, if the content is not a whole snapshot: the snapshot of the replica
        that it came from is damaged.
        """
        content = self._disk.map(download.path)
        try:
            decode_snapshot(content, download.path)
        except StorageError as error:
            download.abandon()
            raise CorruptRecord(str(error)) from error
        await self._publish(download)

    async def write(self, snapshot_id: OffsetAndEpoch, batches: Iterable[Buffer]) -> None:
        """Writes the parts of `encode_snapshot` durably, unless the store has the snapshot; other tasks run between two
        parts.

        Removes the file and raises StorageError if a part cannot be written.
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
        """Removes a snapshot. A reader keeps its mapping of the file. A power cut may bring the file back."""
        self._ids.remove(snapshot_id)
        self._disk.unlink(self.path(snapshot_id))


def _position(snapshot_id: OffsetAndEpoch) -> tuple[int, int]:
    return snapshot_id.offset, snapshot_id.epoch


# ---- Retention -----------------------------------------------------------------------------------------------------


def earliest_to_keep(
    snapshots: SnapshotStore, *, log_bytes: int, retention_bytes: int, retention_ms: int, timestamp_ms: int
) -> OffsetAndEpoch | None:
    """The snapshot before which retention deletes snapshots and log; None if nothing goes (A51).

    The oldest snapshot goes while log and snapshots together exceed `retention_bytes`, or its newest record is older
    than `retention_ms`; -1 is no limit. The newest snapshot always stays: a later snapshot holds the state of the
    earlier ones and of the log before it.
    """
    total_bytes = log_bytes + sum(snapshots.size(each) for each in snapshots.ids)
    kept = 0
    for number, oldest in enumerate(snapshots.ids[:-1]):
        is_too_much = retention_bytes != _UNLIMITED and total_bytes > retention_bytes
        is_old = False
        if not is_too_much and retention_ms != _UNLIMITED:
            newest_ms = snapshots.last_contained_timestamp_ms(oldest)
            is_old = newest_ms != NO_TIMESTAMP and timestamp_ms - newest_ms > retention_ms
        if not is_too_much and not is_old:
            break
        total_bytes -= snapshots.size(oldest)
        kept = number + 1
    return snapshots.ids[kept] if kept else None
