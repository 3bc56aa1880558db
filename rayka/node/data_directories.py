"""The data directories of a broker: taken over together, given back together.

Invariants: all that are open are locked and belong to one cluster, and to this broker. A directory that cannot be used
when the broker starts is absent: it is offline until the broker restarts, and the broker starts if it has another one.
A directory that fails later goes offline alone. Kafka: the part of `LogManager` and `MetaPropertiesEnsemble` that is
about several directories.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from uuid import UUID

from rayka.errors import DirectoryTaken, StorageError, TooManyOpenFiles
from rayka.ids import NO_EPOCH, TopicPartition, random_uuid
from rayka.log.log_directory import LogDirectory
from rayka.log.meta_properties import wrong_cluster
from rayka.node.replica import ReplicaOwner
from rayka.node.settings import NodeSettings
from rayka.node.tasks import in_turns
from rayka.protocol import membership
from rayka.protocol.events import one_line

# Background work leaves so much room to the logs that are appended to.
SPARE_BYTES = 64 << 20
# Each may have hundreds of segments.
_LOGS_PER_TURN = 50
_logger = logging.getLogger(__name__)


class DataDirectories:
    """The open directories, in the order of the settings. Made by `open`."""

    def __init__(
        self, directories: list[LogDirectory], absent: Mapping[str, StorageError] | None = None
    ) -> None:
        self.all = directories
        # By path: why the directory could not be opened.
        self.absent: Mapping[str, StorageError] = absent or {}
        # By id, the path of each absent directory that the controller knows.
        self._absent_ids: dict[UUID, str] = {}
        self._by_id = {each.directory_id: each for each in directories}
        # The epoch of this process; -1 until it has registered.
        self.broker_epoch = NO_EPOCH
        # The sizes of the logs in each directory; empty until they were added up.
        self.size_bytes: tuple[int, ...] = ()
        # Set when a directory went offline, became full, or is not full any more.
        self.changed = asyncio.Event()
        for each in directories:
            each.on_new_state = self.changed.set

    def __repr__(self) -> str:
        return f"<DataDirectories {self.all}>"

    @staticmethod
    async def format(settings: NodeSettings) -> None:
        """Formats new directories for this broker, which learns the cluster's id when it registers. Raises
        StorageError.
        """
        for path in settings.data_dirs:
            await LogDirectory.format(
                settings.disk, path, node_id=settings.node_id, directory_id=random_uuid(settings.random)
            )

    @classmethod
    async def open(cls, settings: NodeSettings) -> "DataDirectories":
        """Locks the directories that can be used. Raises StorageError for a directory that is in use, or of another
        node or cluster, and when none can be used; TooManyOpenFiles, after which another try may succeed.
        """
        opened: list[LogDirectory] = []
        absent: dict[str, StorageError] = {}
        try:
            for path in settings.data_dirs:
                try:
                    opened.append(await LogDirectory.open(settings.disk, path, node_id=settings.node_id))
                except (DirectoryTaken, TooManyOpenFiles):
                    raise
                except StorageError as error:
                    absent[path] = error
            if not opened:
                raise next(iter(absent.values()))
            _check_same_cluster(opened)
        except BaseException:
            for directory in opened:
                directory.release()
            raise
        for path, problem in absent.items():
            _logger.error("%s is offline, and the broker starts without it: %s", path, problem)
        return cls(opened, absent)

    def learn(self, registered: Iterable[membership.RegisteredDirectory]) -> None:
        """Takes the ids of absent directories from the broker's last registration: their replicas count as offline, and
        not as gone.
        """
        own = [each.directory_id for each in self.all]
        self._absent_ids = {
            each.directory_id: each.path
            for each in registered
            if each.path in self.absent and each.directory_id not in own
        }

    # ---- State ---------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        """The cluster's id, or empty before the first registration."""
        for each in self.all:
            if each.cluster_id:
                return each.cluster_id
        return ""

    @property
    def previous_broker_epoch(self) -> int:
        """The epoch since which no directory has lost anything; -1 when one may have, or they differ (H3)."""
        epochs = {each.shutdown.previous_broker_epoch for each in self.all}
        return epochs.pop() if len(epochs) == 1 else NO_EPOCH

    @property
    def known_broker_epoch(self) -> int:
        """The latest broker epoch of these directories, as far as they still know (H2)."""
        return max(each.shutdown.known_broker_epoch for each in self.all)

    def get(self, directory_id: UUID | None) -> LogDirectory | None:
        """The directory of this id, if it is one of these."""
        return None if directory_id is None else self._by_id.get(directory_id)

    def online(self) -> Iterator[LogDirectory]:
        """The directories whose disk has not failed, each asked when it is its turn."""
        return (each for each in self.all if each.failure is None)

    def registered(self) -> tuple[membership.RegisteredDirectory, ...]:
        """The directories that the broker registers. Absent ones are named too: else they would count as replaced."""
        absent = [membership.RegisteredDirectory(id, path) for id, path in self._absent_ids.items()]
        return (*(membership.RegisteredDirectory(each.directory_id, each.path) for each in self.all), *absent)

    def absence(self, directory_id: UUID | None) -> StorageError | None:
        """Why the directory of this id could not be opened; None: it was opened, or is not known here."""
        path = None if directory_id is None else self._absent_ids.get(directory_id)
        return None if path is None else StorageError(f"{path} is offline: {self.absent[path]}")

    def offline_ids(self) -> tuple[UUID, ...]:
        """Failed directories, full ones whose partitions other brokers can lead, and absent ones."""
        failed = [each for each in self.all if each.failure is not None or each.is_reported_offline]
        return (*(each.directory_id for each in failed), *self._absent_ids)

    def offline_reasons(self) -> tuple[str, ...]:
        """Why the directories of `offline_ids` are offline, in the same order."""
        offline = self.offline_ids()
        failed = [each.failure or each.full or "" for each in self.all if each.directory_id in offline]
        absent = [self.absent[path] for path in self._absent_ids.values()]
        return tuple(one_line(str(each)) for each in (*failed, *absent))

    def recovered_ids(self) -> tuple[UUID, ...]:
        """The directories that were reported offline because they were full, and have room again."""
        offline = self.offline_ids()
        return tuple(
            each.directory_id for each in self.all if each.has_recovered and each.directory_id not in offline
        )

    def offline_paths(self) -> tuple[str, ...]:
        """The paths of directories whose disk has failed, or could not be used from the start."""
        return (*(each.path for each in self.all if each.failure is not None), *self.absent)

    def full_paths(self) -> tuple[str, ...]:
        """The paths of directories without room."""
        return tuple(each.path for each in self.all if each.full is not None and each.failure is None)

    # ---- Registration and end --------------------------------------------------------------------------

    async def measure(self, owner: ReplicaOwner, interval_ms: int) -> None:
        """Keeps `size_bytes` up to date, for ever; with a single directory it stays empty. Thousands of logs with many
        segments are added up in turns, so nothing waits for it. A replica that moves counts in its old directory.
        Kafka's brokers count partitions (`LogManager.nextLogDirs`).
        """
        while len(self.all) > 1:
            sizes: dict[LogDirectory, int] = dict.fromkeys(self.all, 0)
            async for replica in in_turns(owner.replicas, _LOGS_PER_TURN):
                sizes[replica.directory] += replica.partition.log.segments.size_bytes
            self.size_bytes = tuple(sizes.values())
            await asyncio.sleep(interval_ms / 1000)

    # ---- Moves that the end of a process interrupted -------------------------------------------------------
    #
    # The metadata name the new directory as soon as the copy there has all that the log has; the log takes its place a
    # moment later. A process that ends in between leaves a log in one directory and its copy in the one that is named.
    # The log counts: it may have taken appends since. Invariant: a directory that holds the partition's log
    # under its own name is where the replica is. Kafka: `LogManager.recoverAbandonedFutureLogs`, which takes the copy.

    def is_copied_into(self, home: LogDirectory, topic_partition: TopicPartition, topic_id: UUID) -> bool:
        """True if the directory has a copy, and not the log."""
        return (
            home.failure is None
            and home.futures.exists(topic_partition, topic_id)
            and home.partitions.topic_id(topic_partition) != topic_id
        )

    def source_of_copy(
        self, home: LogDirectory, topic_partition: TopicPartition, topic_id: UUID
    ) -> LogDirectory | None:
        """The directory of the log from which the copy in `home` was made; None without a copy, or without such a
        log.
        """
        if not self.is_copied_into(home, topic_partition, topic_id):
            return None
        have_log = (each for each in self.online() if each.partitions.topic_id(topic_partition) == topic_id)
        return next(have_log, None)

    # ---- Life --------------------------------------------------------------------------------------------

    async def on_registered(self, cluster_id: str, broker_epoch: int) -> None:
        """Takes over the id of the cluster and the broker epoch. Raises StorageError that names both clusters when the
        directories belong to another one.
        """
        await _all(each.adopt_cluster_id(cluster_id) for each in self.all)
        for directory in self.all:
            directory.shutdown.record_broker_epoch(broker_epoch)
        self.broker_epoch = broker_epoch

    def record_broker_epoch(self, directory: LogDirectory) -> None:
        """Records the epoch again, in a directory that had no room for it. Raises StorageError."""
        if self.broker_epoch != NO_EPOCH:
            directory.shutdown.record_broker_epoch(self.broker_epoch)

    async def close(self, high_watermarks: Callable[[LogDirectory], Mapping[TopicPartition, int]]) -> None:
        """Shuts every directory down cleanly whose disk allows it; the others are recovered at the next start."""

        async def close(directory: LogDirectory) -> None:
            try:
                await directory.close(high_watermarks(directory), broker_epoch=self.broker_epoch)
            except StorageError as error:
                _logger.error("%s was not shut down cleanly: %s", directory.path, error)

        await _all(map(close, self.all))

    def release(self) -> None:
        """Releases the locks and nothing else, as the end of the process would."""
        for directory in self.all:
            directory.release()


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Awaits all at the same time; raises the first error when all have ended."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if outcome is not None:
            raise outcome


def _check_same_cluster(directories: list[LogDirectory]) -> None:
    known = [each for each in directories if each.cluster_id]
    for directory in known[1:]:
        if directory.cluster_id != known[0].cluster_id:
            raise wrong_cluster(directory.path, known[0].cluster_id, directory.cluster_id)
