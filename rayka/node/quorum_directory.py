"""The data directory of one quorum replica: its log, its snapshots, `quorum-state`, and how it is formatted.

No replica votes or leads on a guess. A log with a damaged record, and a `quorum-state` that is damaged, or missing
beside a log that others count on, stop the node with the path: a voter that forgot its vote could vote twice in one
epoch (A8). A directory that is formatted already is not formatted again. `meta.properties` is written last, so a
directory is either formatted whole or can be formatted again.

Kafka: `KafkaRaftManager`, `FileQuorumStateStore`, `MetaPropertiesEnsemble`; `Formatter`, `StorageTool` (A48, design
§4).
"""

import posixpath
from collections.abc import Sequence
from uuid import UUID

from rayka.config.topic_config import TopicConfig
from rayka.errors import CorruptRecord, DamagedLog, StorageError
from rayka.ids import (
    METADATA_PARTITION,
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    OffsetAndEpoch,
    ReplicaKey,
    TopicPartition,
    possible_controllers,
    random_uuid,
)
from rayka.log.checkpoint_files import replace_durably
from rayka.log.log import Log
from rayka.log.log_directory import LogDirectory
from rayka.log.meta_properties import META_PROPERTIES_FILE
from rayka.node.settings import NodeSettings
from rayka.ports import Disk
from rayka.protocol.batch_format import split_batches
from rayka.raft.election_state import QUORUM_STATE_FILE, ElectionState, decode_election
from rayka.raft.quorum import Quorum
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.snapshot import BOOTSTRAP_SNAPSHOT_ID, SnapshotStore, encode_snapshot, snapshot_name
from rayka.raft.voters import VoterSet

_PARTITION = TopicPartition(METADATA_TOPIC, METADATA_PARTITION)
_LOG_CONFIG = TopicConfig(max_message_bytes=2**31 - 1)
_CHECK_BYTES = 4 << 20


class QuorumDirectory:
    """An open directory, locked. Made by `open`."""

    def __init__(
        self, settings: NodeSettings, directory: LogDirectory, log: Log, snapshots: SnapshotStore
    ) -> None:
        self._settings = settings
        self._directory = directory
        self.log = log
        self.snapshots = snapshots
        self._is_checkpointed = False

    @classmethod
    async def open(cls, settings: NodeSettings, *, now_ms: int) -> "QuorumDirectory":
        """Opens and locks the directory. Raises StorageError that says why it cannot: missing, not formatted, in use,
        of another node, or with a log that is damaged before its end.

        The files that are here become durable first (A8): 1. A voter writes its vote and renames the file. 2. Its
        process is killed before the name is synced. 3. The next process reads the vote from the page cache, and asks
        for others'.
        4. The power is cut, the name with it, and the voter votes again in that epoch.
        """
        path = settings.data_dirs[0]
        directory = await LogDirectory.open(settings.disk, path, node_id=settings.node_id)
        try:
            _check_exists(settings, metadata_directory(path))
            await settings.disk.sync([], [metadata_directory(path)])
            snapshots = SnapshotStore(settings.disk, metadata_directory(path))
            log = await directory.open_log(
                _PARTITION, METADATA_TOPIC_ID, _LOG_CONFIG, now_ms=now_ms, is_always_synced=True
            )
            _check_whole(log)
        except BaseException:
            directory.release()
            raise
        return cls(settings, directory, log, snapshots)

    @property
    def path(self) -> str:
        return metadata_directory(self._settings.data_dirs[0])

    @property
    def election_path(self) -> str:
        return posixpath.join(self.path, QUORUM_STATE_FILE)

    @property
    def cluster_id(self) -> str:
        return self._directory.cluster_id

    @property
    def local(self) -> ReplicaKey:
        return ReplicaKey(self._settings.node_id, self._directory.directory_id)

    def make_quorum(self, node_ids: Sequence[int], *, now_ms: int) -> Quorum:
        """Makes the core on this directory; it may ask the controllers among these nodes for the leader.

        Raises StorageError when `quorum-state` or a snapshot is damaged.
        """
        stored = self._read_election()
        quorum = Quorum(
            cluster_id=self.cluster_id,
            local=self.local,
            log=self.log,
            snapshots=self.snapshots,
            stored=stored,
            config=QuorumConfig.of(self._settings.config),
            random=self._settings.random,
            now_ms=now_ms,
            bootstrap_ids=possible_controllers(node_ids),
        )
        if quorum.voters is None or not quorum.voters.is_only(self.local):
            self._check_election(stored)
        return quorum

    def _check_election(self, stored: ElectionState | None) -> None:
        """Checks `quorum-state`: a voter writes an epoch there before it takes a record of that epoch into its log."""
        if stored is None and self.log.log_end_offset > 0:
            raise StorageError(
                f"{self.election_path} is missing, and without it this voter does not know whom it voted for; restore"
                " it from a copy, or replace the node by an empty one and add that to the voters"
            )
        if stored is not None and stored.leader_epoch < self.log.latest_epoch:
            raise StorageError(
                f"{self.election_path} knows of epoch {stored.leader_epoch} and the log beside it of"
                f" {self.log.latest_epoch}: one of them is damaged or an old copy, and no voter votes on a guess;"
                " replace the node by an empty one and add that to the voters"
            )

    def _read_election(self) -> ElectionState | None:
        """Reads `quorum-state`; None when there is none yet (A9)."""
        disk, path = self._settings.disk, self.election_path
        if not disk.exists(path):
            return None
        election = decode_election(disk.read_at(path, 0, disk.size(path)))
        if election is None:
            raise StorageError(
                f"{path} is damaged, and without it this voter does not know whom it voted for; restore it from a copy,"
                " or replace the node by an empty one and add that to the voters; an only voter may remove the file"
            )
        return election

    async def sync(self) -> None:
        """Makes all records of the log durable. After a StorageError the directory is offline for good.

        The first time a checkpoint follows, before any node is told of the records: from then on a missing log is
        noticed, and no voter that held committed records begins again without them.
        """
        await self._directory.sync([self.log])
        if self.log.flushed_offset > 0 and not self._is_checkpointed:
            await self._directory.checkpoint()
            self._is_checkpointed = True

    async def close(self) -> None:
        """Closes the log cleanly, unless its disk has failed."""
        await self._directory.close({})

    def release(self) -> None:
        """Releases the lock and nothing else, as the end of the process would."""
        self._directory.release()


def _check_exists(settings: NodeSettings, path: str) -> None:
    """Raises DamagedLog if the path is missing, which was made before the directory was formatted."""
    if not settings.disk.exists(path):
        raise DamagedLog(
            f"{path} is missing, and with it the metadata: {settings.data_dirs[0]} was formatted for a controller."
            " Restore it from a copy, or replace the node by an empty one and add that to the voters"
        )


def _check_whole(log: Log) -> None:
    """Raises StorageError when a record is damaged: a leader could neither replay it nor give it to followers.

    A batch's offset and epoch are outside its CRC: an epoch that a flipped bit raised would make this log the newest.
    """
    offset = log.log_start_offset
    try:
        while offset < log.log_end_offset:
            read = log.read(offset, max_bytes=_CHECK_BYTES, end_offset=log.log_end_offset)
            for batch in split_batches(read.records):
                batch.check_crc(log.directory)
                known = OffsetAndEpoch(offset, log.epochs.epoch_of(offset))
                found = OffsetAndEpoch(batch.base_offset, batch.leader_epoch)
                if found != known:
                    raise CorruptRecord(f"{log.directory}: expected a batch at {known}, found one at {found}")
                offset = batch.next_offset
    except CorruptRecord as error:
        raise StorageError(
            f"{log.directory}: metadata from offset {offset} on is damaged: {error}; restore the directory from a copy,"
            " or replace the node"
        ) from error


# ---- Formatting ------------------------------------------------------------------------------------------------------


def metadata_directory(data_dir: str) -> str:
    """The directory of the metadata log, its checkpoints and `quorum-state`."""
    return posixpath.join(data_dir, f"{METADATA_TOPIC}-{METADATA_PARTITION}")


def bootstrap_checkpoint_path(data_dir: str) -> str:
    return posixpath.join(metadata_directory(data_dir), snapshot_name(BOOTSTRAP_SNAPSHOT_ID))


async def format_controller(
    settings: NodeSettings, *, cluster_id: str, directory_id: UUID, voters: VoterSet | None
) -> None:
    """Formats a controller's directory. With `voters`, the first ones of a new cluster, the controller is one of them;
    without, it is an observer that finds the quorum and can be added to its voters later (A56).

    Raises StorageError when the directory is formatted already, or the disk fails.
    """
    data_dir = settings.data_dirs[0]
    _check_not_formatted(settings)
    if voters is None:
        await _make_directory_durably(settings.disk, metadata_directory(data_dir))
    else:
        await prepare_controller(settings, voters)
    await LogDirectory.format(
        settings.disk,
        data_dir,
        node_id=settings.node_id,
        directory_id=directory_id,
        cluster_id=cluster_id,
    )


async def prepare_controller(settings: NodeSettings, voters: VoterSet) -> None:
    """Writes the first voters. It precedes the formatting of any of them, so that an interrupted formatting can be
    finished. Raises StorageError as `format_controller`.
    """
    _check_not_formatted(settings)
    path = bootstrap_checkpoint_path(settings.data_dirs[0])
    await _make_directory_durably(settings.disk, posixpath.dirname(path))
    parts = encode_snapshot(BOOTSTRAP_SNAPSHOT_ID, voters, (), timestamp_ms=settings.wall_clock_ms())
    await replace_durably(settings.disk, {path: b"".join(map(bytes, parts))})


async def format_first_voters(settings: Sequence[NodeSettings]) -> str:
    """Formats the directories of all the first voters of a new cluster; returns the new id of the cluster.

    Raises StorageError as `format_controller`.
    """
    random = settings[0].random
    cluster_id = str(random_uuid(random))
    voters = {each.node_id: ReplicaKey(each.node_id, random_uuid(random)) for each in settings}
    voter_set = VoterSet(tuple(voters[node_id] for node_id in sorted(voters)))
    for each in settings:
        directory_id = voters[each.node_id].directory_id
        await format_controller(each, cluster_id=cluster_id, directory_id=directory_id, voters=voter_set)
    return cluster_id


def _check_not_formatted(settings: NodeSettings) -> None:
    data_dir = settings.data_dirs[0]
    if settings.disk.exists(posixpath.join(data_dir, META_PROPERTIES_FILE)):
        raise StorageError(f"{data_dir} is formatted already; remove it first if its data is not wanted")


async def _make_directory_durably(disk: Disk, path: str) -> None:
    created = [path]
    while not disk.exists(posixpath.dirname(created[-1])):
        created.append(posixpath.dirname(created[-1]))
    disk.make_directory(path)
    await disk.sync([], [posixpath.dirname(each) for each in created])
