"""This controller's replica of `__cluster_metadata`: opened, elected, appended to, flushed, fetched from.

The quorum core decides; this performs what it says: an election is durable before anything follows from it (A8), and
one flush serves all that was appended before it began (A25). A disk that failed once is not used again: what it holds
is not what was written to it. Kafka: `KafkaRaftManager`, `KafkaRaftClientDriver`.
"""

import asyncio
import logging
import posixpath
from collections.abc import Callable, Iterator, Sequence

from rayka.config import TopicConfig
from rayka.errors import BrokerNotAvailable, CorruptRecord, StorageError
from rayka.ids import METADATA_TOPIC, METADATA_TOPIC_ID, ReplicaKey, TopicPartition, node_name
from rayka.log.durable import replace_durably
from rayka.log.log import Log
from rayka.log.log_directory import LogDirectory
from rayka.metadata.batches import decode_metadata_batches
from rayka.metadata.records import MetadataRecord, encode_record
from rayka.node.format import bootstrap_checkpoint_path, metadata_directory
from rayka.node.settings import NodeSettings
from rayka.node.signal import Signal
from rayka.protocol.fetch import FetchRequest, FetchResponse
from rayka.raft.checkpoint import decode_bootstrap_checkpoint
from rayka.raft.election_state import (
    QUORUM_STATE_FILE,
    ElectionState,
    decode_election,
    encode_election,
)
from rayka.raft.quorum import METADATA_PARTITION, Quorum
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.snapshot_store import SnapshotStore
from rayka.raft.voters import VoterSet

_PARTITION = TopicPartition(METADATA_TOPIC, METADATA_PARTITION)
_LOG_CONFIG = TopicConfig(max_message_bytes=2**31 - 1)
_READ_BYTES = 1 << 20
_logger = logging.getLogger(__name__)


class MetadataLog:
    """The replicated log under the controller (`shard.ReplicatedLog`), on this node's disk. Made by `open`."""

    def __init__(self, settings: NodeSettings, directory: LogDirectory, log: Log, quorum: Quorum) -> None:
        self._settings = settings
        self._directory = directory
        self._log = log
        self._quorum = quorum
        self._appended = asyncio.Event()
        self._is_closed = False
        self.news = Signal()

    @classmethod
    async def open(cls, settings: NodeSettings) -> "MetadataLog":
        """Takes the directory over. Raises StorageError saying which one and why: missing, not formatted, in use, of
        another node, without its checkpoint, or with a log that is damaged before its end.
        """
        path = settings.data_dirs[0]
        directory = await LogDirectory.open(settings.disk, path, node_id=settings.node_id)
        try:
            local = ReplicaKey(settings.node_id, directory.directory_id)
            voters = _read_voters(settings, local)
            log = directory.open_log(
                _PARTITION, METADATA_TOPIC_ID, _LOG_CONFIG, now_ms=_now_ms(), is_always_synced=True
            )
            quorum = Quorum(
                cluster_id=directory.cluster_id,
                local=local,
                log=log,
                snapshots=SnapshotStore(settings.disk, metadata_directory(path)),
                stored=_read_election(settings),
                config=QuorumConfig(),
                random=settings.random,
                now_ms=_now_ms(),
                bootstrap_ids=(),
            )
            assert quorum.voters == voters, f"{quorum!r}: {voters!r}"
        except BaseException:
            directory.release()
            raise
        return cls(settings, directory, log, quorum)

    def __repr__(self) -> str:
        return f"<MetadataLog {self._quorum!r}>"

    # ---- State -------------------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        return self._directory.cluster_id

    @property
    def next_offset(self) -> int:
        return self._quorum.next_offset

    @property
    def high_watermark(self) -> int:
        return self._quorum.high_watermark

    @property
    def election(self) -> ElectionState:
        return self._quorum.election

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    # ---- Leading -----------------------------------------------------------------------------------------------------

    async def lead(self) -> None:
        """Has this node elected, and the first record of its epoch committed."""
        self._quorum.poll(_now_ms())
        await self._persist(self._quorum.election)
        await self._flush()

    async def _persist(self, election: ElectionState) -> None:
        path = _election_path(self._settings)
        await replace_durably(self._settings.disk, {path: encode_election(election)})
        self._quorum.on_persisted(election)

    def committed_records(self) -> Iterator[tuple[int, MetadataRecord]]:
        """Every record below the high watermark, with its offset (A41). Raises StorageError when one is damaged."""
        offset = 0
        try:
            while (read := self._quorum.read_committed(offset, max_bytes=_READ_BYTES)).records:
                yield from ((each, record) for each, _, record in decode_metadata_batches(read.records))
                offset = read.next_offset
        except CorruptRecord as error:
            raise StorageError(
                f"{self._log.directory}: committed metadata is damaged: {error}; restore the directory from a copy"
            ) from error

    def append(self, records: Sequence[MetadataRecord]) -> int:
        self._appended.set()
        return self._quorum.append([encode_record(record) for record in records])

    async def flush_forever(self, on_committed: Callable[[], None]) -> None:
        """Flushes whatever is appended, and calls back when the high watermark has moved.

        Raises StorageError when the disk fails.
        """
        while True:
            await self._appended.wait()
            self._appended.clear()
            if await self._flush():
                on_committed()
                self.news.notify()

    async def _flush(self) -> bool:
        """Whether the high watermark moved."""
        timestamp_ms = self._settings.wall_clock_ms()
        if not self._quorum.drain(now_ms=_now_ms(), timestamp_ms=timestamp_ms):
            return False
        self.news.notify()
        await self._directory.sync([self._log])
        return self._quorum.on_flushed(_now_ms())

    # ---- Followed ----------------------------------------------------------------------------------------------------

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        """The answer to one who follows the log: at once when there is news for him, else when there is, or when the
        time he gave is over (A32). Raises BrokerNotAvailable when the node stops meanwhile (A28).
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + request.max_wait_ms / 1000
        while not self._is_closed:
            may_wait = loop.time() < deadline_s
            result = self._quorum.handle_fetch(request, now_ms=_now_ms(), may_wait=may_wait)
            if result is not None:
                return FetchResponse((result,))
            await self.news.wait(deadline_s)
        raise BrokerNotAvailable(f"{node_name(self._settings.node_id)} is shutting down")

    # ---- End ---------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Leaves a cleanly closed log behind, unless its disk has failed."""
        self._end_fetches()
        await self._directory.close({})

    def release(self) -> None:
        """Gives up the directory's lock and writes nothing, as the end of the process would."""
        self._end_fetches()
        self._directory.release()

    def _end_fetches(self) -> None:
        self._is_closed = True
        self.news.notify()


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


def _read_voters(settings: NodeSettings, local: ReplicaKey) -> VoterSet:
    """The voters of the 0-0 checkpoint, which this directory must be the only one of. Raises StorageError."""
    path = bootstrap_checkpoint_path(settings.data_dirs[0])
    if not settings.disk.exists(path):
        raise StorageError(
            f"{path} is missing, so the voters are not known; restore it from a copy of the directory"
        )
    voters = decode_bootstrap_checkpoint(settings.disk.read_at(path, 0, settings.disk.size(path)), path)
    if not voters.is_only(local):
        raise StorageError(f"{path} names the voters {voters.voters}, expected just this directory, {local}")
    return voters


def _read_election(settings: NodeSettings) -> ElectionState | None:
    """What `quorum-state` holds; None, with a warning if it is damaged, when that is not known (A9)."""
    path = _election_path(settings)
    if not settings.disk.exists(path):
        return None
    election = decode_election(settings.disk.read_at(path, 0, settings.disk.size(path)))
    if election is None:
        _logger.warning("%s is damaged and counts as missing", path)
    return election


def _election_path(settings: NodeSettings) -> str:
    return posixpath.join(metadata_directory(settings.data_dirs[0]), QUORUM_STATE_FILE)
