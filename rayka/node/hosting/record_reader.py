"""The records that a shard is built from: those of a snapshot, and those of the log that are committed.

Control records are the quorum's own and are left out; their offsets stay, so those of records are not contiguous.
Kafka: `RecordsBatchReader`, `RecordsSnapshotReader`.
"""

from collections.abc import Iterator
from typing import Generic

from rayka.errors import ApiError, CorruptRecord, StorageError, UnsupportedVersion
from rayka.ids import OffsetAndEpoch
from rayka.ports import Buffer
from rayka.protocol.batch_header import split_batches
from rayka.raft.quorum import Quorum
from rayka.raft.snapshot_store import SnapshotStore
from rayka.shard.shard import RecordT
from rayka.shard.shard_records import RecordCodec

_READ_BYTES = 1 << 20


class RecordReader(Generic[RecordT]):
    """Reads one replica's log and snapshots. Both raise StorageError, naming the directory, for what is damaged or of
    a type that this node does not know.
    """

    def __init__(self, quorum: Quorum, snapshots: SnapshotStore, codec: RecordCodec[RecordT]) -> None:
        self._quorum = quorum
        self._snapshots = snapshots
        self._codec = codec

    def __repr__(self) -> str:
        return f"<RecordReader of {self._snapshots.directory}>"

    def committed(self, offset: int) -> tuple[Iterator[tuple[int, RecordT]], int]:
        """Some of the records from an offset on that are committed, each with its offset and decoded when it is asked
        for, and where to read on.
        """
        if self._quorum.high_watermark <= offset:
            return iter(()), offset
        read = self._quorum.read_committed(offset, max_bytes=_READ_BYTES)
        return self._decoded(read.records, offset), read.next_offset

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> Iterator[RecordT]:
        """The records in a snapshot."""
        try:
            for batch in self._snapshots.load(snapshot_id).data:
                yield from (record for _, record in self._codec.records(batch))
        except (CorruptRecord, UnsupportedVersion) as error:
            raise self._unreadable(f"the snapshot at offset {snapshot_id.offset}", error) from error

    def _decoded(self, records: Buffer, first_offset: int) -> Iterator[tuple[int, RecordT]]:
        try:
            for batch in split_batches(records):
                batch.check_crc("committed records")
                yield from (each for each in self._codec.records(batch) if each[0] >= first_offset)
        except (CorruptRecord, UnsupportedVersion) as error:
            raise self._unreadable(f"committed records from offset {first_offset} on", error) from error

    def _unreadable(self, what: str, error: ApiError) -> StorageError:
        return StorageError(
            f"{self._snapshots.directory}: {what}: {error}; restore the directory from a copy, or replace the node"
        )
