"""The records of a quorum's log, for the state machine on it.

The core and its driver lie below; `RecordCodec` turns records into bytes. Control records belong to the quorum and are
left out; they take up offsets, so the offsets of records are not contiguous. Kafka: `RaftClient`, `RecordsBatchReader`,
`RecordsSnapshotReader`.
"""

from collections.abc import Iterator, Sequence
from typing import Generic

from rayka.clock import now_ms
from rayka.errors import ApiError, CorruptRecord, StorageError, UnsupportedVersion
from rayka.ids import OffsetAndEpoch
from rayka.node.quorum_driver import QuorumDriver
from rayka.ports import Buffer
from rayka.shard.shard import RecordT
from rayka.shard.shard_records import RecordCodec

_READ_BYTES = 1 << 20


class QuorumLog(Generic[RecordT]):
    """The replicated log under a shard (`ReplicatedLog`). Reading raises StorageError, naming the directory, for
    records that are damaged or of a type that this node does not know.
    """

    def __init__(self, driver: QuorumDriver, codec: RecordCodec[RecordT]) -> None:
        self._driver = driver
        self._quorum = driver.quorum
        self._snapshots = driver.directory.snapshots
        self._codec = codec
        self.news = driver.news

    # ---- State -------------------------------------------------------------------------------------------------------

    @property
    def failure(self) -> StorageError | None:
        return self._driver.failure

    @property
    def leading_epoch(self) -> int | None:
        return self._quorum.leading_epoch

    @property
    def lead_began_in(self) -> int | None:
        """Each epoch of a quorum has an election of its own."""
        return self._quorum.leading_epoch

    @property
    def leader_id(self) -> int:
        return self._quorum.election.leader_id

    @property
    def leader_epoch(self) -> int:
        return self._quorum.election.leader_epoch

    @property
    def next_offset(self) -> int:
        return self._quorum.next_offset

    @property
    def high_watermark(self) -> int:
        return self._quorum.high_watermark

    def commit_problem(self) -> str:
        """Why the quorum does not commit, as far as this node knows; empty when it does."""
        return self._driver.peers.commit_problem(now_ms())

    def epoch_of(self, offset: int) -> int:
        return self._quorum.log.epoch_of(offset)

    # ---- Records -----------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[RecordT]) -> int:
        """Appends the records atomically, without waiting; returns the offset of the first. Raises the core's
        refusals.
        """
        first_offset = self._quorum.leader_log.append(*self._codec.columns(records))
        self._driver.wake()
        return first_offset

    def committed(self, offset: int) -> tuple[Iterator[tuple[int, RecordT]], int]:
        """Some committed records from an offset on, each with its offset and decoded at its turn, and the offset at
        which to read on.
        """
        if self._quorum.high_watermark <= offset:
            return iter(()), offset
        read = self._quorum.read_committed(offset, max_bytes=_READ_BYTES)
        return self._decoded(read.records, offset), read.next_offset

    @property
    def start_offset(self) -> int:
        """The end of the newest snapshot, 0 without one."""
        return self._quorum.log.snapshot_end_offset

    def start_records(self) -> Iterator[RecordT]:
        """The records in the newest snapshot."""
        latest = self._snapshots.latest
        return self._snapshot(latest) if latest is not None else iter(())

    def _snapshot(self, snapshot_id: OffsetAndEpoch) -> Iterator[RecordT]:
        try:
            for batch in self._snapshots.load(snapshot_id).data:
                yield from (record for _, record in self._codec.records(batch))
        except (CorruptRecord, UnsupportedVersion) as error:
            raise self._unreadable(f"the snapshot at offset {snapshot_id.offset}", error) from error

    def _decoded(self, records: Buffer, first_offset: int) -> Iterator[tuple[int, RecordT]]:
        try:
            yield from self._codec.committed(records, first_offset)
        except (CorruptRecord, UnsupportedVersion) as error:
            raise self._unreadable(f"committed records from offset {first_offset} on", error) from error

    def _unreadable(self, what: str, error: ApiError) -> StorageError:
        return StorageError(
            f"{self._snapshots.directory}: {what}: {error}; restore the directory from a copy, or replace the node"
        )
