"""The replicas on one broker: requests find them here, and appends, fetches, syncs and failures of disks are told here.

Invariants: a partition is hosted in one directory. When a disk fails, its partitions answer KAFKA_STORAGE_ERROR until
the node restarts, and the others go on. Partitions on a full disk are read. `ReplicaChanges` opens and deletes
replicas.

`IsrChanges` has the ISRs of partitions changed: a partition proposes, the controller decides and says what is
committed. Proposals that come together go together, one request at a time. Invariants: only the newest proposal of a
partition is sent, and none that metadata have overtaken; a proposal that the controller could not decide is sent again
after a pause, for as long as the partition stands by it (B12).

Kafka: `ReplicaManager` with its task `isr-expiration` (B10), `AlterPartitionManager`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from uuid import UUID

from rayka import clock
from rayka.errors import (
    ApiError,
    DamagedLog,
    KafkaStorageError,
    NotLeaderOrFollower,
    PassingStorageError,
    StorageError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from rayka.ids import TopicIdPartition, TopicPartition, node_name
from rayka.log.local_disk import LocalDisk
from rayka.log.log_directory import LogDirectory
from rayka.log.mapped_reader import LocalDirectories
from rayka.metadata.image import BrokerImage, MetadataImage, PartitionImage
from rayka.node.controller_link import ControllerLink, Pauses
from rayka.node.data_directories import DataDirectories
from rayka.node.directory_moves import DirectoryMoves
from rayka.node.follower_quotas import FollowerQuotas
from rayka.node.log_manager import LogManager
from rayka.node.parked import News, Parked
from rayka.node.replica import Replica, Truncations, Unusable, key_of
from rayka.node.replica_fetcher import ReplicaFetcherManager
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Repeats, Tasks, in_turns
from rayka.partition.partition import Partition
from rayka.partition.partition_leader import FollowerUpdate, PartitionLeader
from rayka.partition.quota import PacedQuota, ReplicationQuota, ReplicationQuotas
from rayka.protocol.fetch import PartitionKey
from rayka.protocol.membership import AlterPartitionItem, AlterPartitionRequest
from rayka.protocol.produce import LEADER_NAMING_CODES, CurrentLeader

_logger = logging.getLogger(__name__)


class ReplicaManager:
    """All replicas on this broker."""

    def __init__(
        self, settings: NodeSettings, directories: DataDirectories, link: ControllerLink, tasks: Tasks
    ) -> None:
        self._node_id = settings.node_id
        self._name = node_name(settings.node_id)
        self.settings = settings
        self.directories = directories
        self._hosted: dict[PartitionKey, Replica | Unusable] = {}
        # Cache of `partitions`; None: rebuild it.
        self._partitions: tuple[Partition, ...] | None = None
        # The metadata that the replicas follow; None before the first.
        self.image: MetadataImage | None = None
        config = settings.config
        self.leader_quotas = ReplicationQuotas(
            ReplicationQuota(config.leader_replication_throttled_rate),
            PacedQuota(config.reassignment_replication_throttled_rate),
        )
        self.follower_quotas = FollowerQuotas(settings.node_id, config)
        local = LocalDirectories() if isinstance(settings.disk, LocalDisk) else None
        truncations = Truncations(settings.disk)
        self.fetchers = ReplicaFetcherManager(self, truncations, local, tasks)
        self._isr_changes = IsrChanges(settings, link, directories, self.wake)
        self.parked: Parked[PartitionKey] = Parked()
        self.logs = LogManager(settings, directories, self, tasks)
        self.moves = DirectoryMoves(self, self.logs, link)
        interval_ms = settings.config.broker_heartbeat_interval_ms
        tasks.start("measure directories", directories.measure(self, interval_ms))
        tasks.start("propose ISRs", self._isr_changes.run())
        tasks.start("shrink ISRs", self._isr_changes.shrink_forever(lambda: self.partitions))

    def __repr__(self) -> str:
        return f"<ReplicaManager {self._node_id} replicas={len(self._hosted)}>"

    # ---- Looking ---------------------------------------------------------------------------------------

    def get(self, topic_id: UUID, number: int) -> Replica:
        """The replica. Raises KafkaStorageError when its log could not be opened, and UnknownTopicId,
        UnknownTopicOrPartition or NotLeaderOrFollower when it is not here.
        """
        key = (topic_id, number)
        hosted = self._hosted.get(key)
        if isinstance(hosted, Replica):
            return hosted
        if hosted is not None:
            raise KafkaStorageError(str(hosted.error))
        topic = self.image.topics_by_id.get(topic_id) if self.image else None
        if topic is None:
            raise UnknownTopicId(
                f"{self._name} knows no topic with id {topic_id}; it was deleted, or is very new"
            )
        if not 0 <= number < len(topic.partitions):
            raise UnknownTopicOrPartition(
                f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, found {number}"
            )
        raise NotLeaderOrFollower(
            f"{self._name} holds no replica of {topic.name}-{number};"
            f" broker {topic.partitions[number].leader_id} leads it"
        )

    def current_leader(self, key: PartitionKey, error: ApiError) -> CurrentLeader:
        """The leader that a client is told beside this error: the one of the newest metadata, if the error says that
        the client asked the wrong node or in a former epoch; else none.
        """
        if error.code not in LEADER_NAMING_CODES or self.image is None:
            return CurrentLeader()
        state = self.image.partition(TopicIdPartition(*key))
        return CurrentLeader() if state is None else CurrentLeader(state.leader_id, state.leader_epoch)

    def find(self, key: PartitionKey) -> Replica | None:
        """The replica, if there is a usable one here."""
        hosted = self._hosted.get(key)
        return hosted if isinstance(hosted, Replica) else None

    def is_hosted(self, replica: Replica) -> bool:
        """True while the replica is the hosted one of its partition."""
        return self._hosted.get(key_of(replica.partition)) is replica

    @property
    def replicas(self) -> list[Replica]:
        return [each for each in self._hosted.values() if isinstance(each, Replica)]

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions of all usable replicas; the same tuple until one comes or goes."""
        if self._partitions is None:
            self._partitions = tuple(each.partition for each in self.replicas)
        return self._partitions

    @property
    def unusable(self) -> list[StorageError]:
        """The errors of replicas that belong here and could not be opened."""
        return [each.error for each in self._hosted.values() if isinstance(each, Unusable)]

    def problems(self) -> list[str]:
        """Why directories and replicas cannot be used or copied, one line each."""
        offline = [str(each.failure) for each in self.directories.all if each.failure is not None]
        offline += [f"{path} is offline: {error}" for path, error in self.directories.absent.items()]
        full = [str(each.full) for each in self.directories.all if each.full and not each.failure]
        failed = [
            str(each.partition.log.failure)
            for each in self.replicas
            if each.partition.log.failure and not each.partition.failure
            # A full directory has one line, not one for each of its logs.
            if not (each.directory.full and isinstance(each.partition.log.failure, PassingStorageError))
        ]
        unusable = [str(each) for each in self.unusable]
        others = [each.problems() for each in (self.fetchers, self.logs.cleaner, self.moves)]
        return list(dict.fromkeys(chain(offline, full, failed, unusable, *others)))

    # ---- Coming and going ------------------------------------------------------------------------------

    @property
    def hosted(self) -> Mapping[PartitionKey, Replica | Unusable]:
        """All replicas that belong here, usable or not."""
        return self._hosted

    def add(self, replica: Replica) -> None:
        """Adds a usable replica, or replaces it."""
        self._hosted[key_of(replica.partition)] = replica
        self._partitions = None

    def drop(self, key: PartitionKey) -> Replica | Unusable | None:
        """Drops the replica, whose log is not synced any more."""
        hosted = self._hosted.pop(key, None)
        self._partitions = None
        if isinstance(hosted, Replica):
            hosted.flusher.forget(hosted.partition)
        return hosted

    def give_up(
        self, key: PartitionKey, topic_partition: TopicPartition, state: PartitionImage, error: StorageError
    ) -> None:
        """Marks the partition as unusable: it belongs here, and its log cannot be opened or used."""
        directory = self.directories.get(state.directory_of(self._node_id))
        level = logging.INFO if directory is None else logging.ERROR
        _logger.log(level, "%s is not usable: %s", topic_partition, error)
        before = self.drop(key)
        self._hosted[key] = Unusable(topic_partition, directory, error)
        self.fetchers.remove([key])
        self.parked.wake(key)
        cause = error
        if isinstance(before, Replica) and not isinstance(error, DamagedLog):
            cause = before.partition.log.failure or error
        is_replaceable = state.leader_id == self._node_id and len(state.isr) > 1
        if directory is not None:
            self.logs.on_log_failed(directory, cause, error, is_replaceable=is_replaceable)

    def broker(self, broker_id: int) -> BrokerImage | None:
        """The broker in the present metadata."""
        return None if self.image is None else self.image.brokers.get(broker_id)

    # ---- Events of partitions --------------------------------------------------------------------

    def on_appended(self, replica: Replica, *, is_high_watermark_moved: bool, by: object = None) -> None:
        """The leader's log has grown: has it synced if it must be, and wakes the requests that can read more, but for
        the listener `by`, which appended.
        """
        replica.flusher.on_appended(replica.partition)
        news = News.CHANGED if is_high_watermark_moved else News.APPENDED
        self.parked.wake(key_of(replica.partition), news, by=by)

    def on_follower_appended(self, replica: Replica, *, is_high_watermark_moved: bool) -> None:
        """A follower's log has grown, or was truncated. Consumers that read here see up to its high watermark (G15)."""
        replica.flusher.on_appended(replica.partition)
        if is_high_watermark_moved:
            self.wake(replica.partition)

    def on_follower_fetch(self, replica: Replica, update: FollowerUpdate) -> None:
        """A fetch has told a follower's position: wakes the requests that wait for it, and may propose an ISR (G13)."""
        if update.is_high_watermark_raised or update.is_low_watermark_raised:
            is_all = update.is_low_watermark_raised
            self.wake(replica.partition, News.CHANGED if is_all else News.COMMITTED)
        if update.proposal is not None:
            self._isr_changes.propose(replica.partition, update.proposal)

    def on_storage_error(self, replica: Replica, error: StorageError) -> ApiError:
        """The error to answer with; takes the directory offline, or counts it as full, as the error demands."""
        partition = replica.partition
        failure = partition.log.failure
        is_replaceable = failure is not None and partition.is_leader and len(partition.isr) > 1
        if failure is not None:
            self.fetchers.remove([key_of(partition)])
        self.logs.on_log_failed(replica.directory, failure or error, error, is_replaceable=is_replaceable)
        return KafkaStorageError(f"{partition.topic_partition}: {error}")

    def on_synced(self, partitions: Sequence[Partition]) -> None:
        """The records of these logs are durable: more may be committed."""
        now_ms = clock.now_ms()
        for partition in partitions:
            partition.maybe_increment_high_watermark(now_ms)
            self.fetchers.on_synced(partition)
            self.wake(partition)

    def on_directory_failed(self, directory: LogDirectory, error: StorageError) -> None:
        """Lets the partitions of the directory answer with this error from now on."""
        failed = [each for each in self.replicas if each.directory is directory]
        for replica in failed:
            replica.partition.failure = error
            self.wake(replica.partition)
        self.fetchers.remove([key_of(each.partition) for each in failed])

    def wake(self, partition: Partition, news: News = News.CHANGED) -> None:
        """Lets the requests look again that wait for such news of the partition."""
        self.parked.wake(key_of(partition), news)


class IsrChanges:
    """The ISR proposals of one broker."""

    def __init__(
        self,
        settings: NodeSettings,
        link: ControllerLink,
        directories: DataDirectories,
        on_changed: Callable[[Partition], None],
    ) -> None:
        self._settings = settings
        self._link = link
        self._directories = directories
        self._on_changed = on_changed
        self._wanted: dict[Partition, AlterPartitionItem] = {}
        self._has_work = asyncio.Event()
        # Each fail-over has some.
        self._failures = Repeats(_logger, logging.INFO)

    def __repr__(self) -> str:
        return f"<IsrChanges of {self._settings.node_id} wanted={len(self._wanted)}>"

    def propose(self, partition: Partition, item: AlterPartitionItem) -> None:
        """Sends the proposal as soon as no request is under way."""
        self._wanted[partition] = item
        self._has_work.set()

    async def run(self) -> None:
        """Sends proposals for ever."""
        pauses = Pauses()
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            sent = {each: item for each, item in self._wanted.items() if each.pending_isr}
            self._wanted = {}
            if sent and await self._send(sent):
                await pauses.pause()
            else:
                pauses.reset()

    async def _send(self, sent: dict[Partition, AlterPartitionItem]) -> bool:
        """Sends the proposals; True if some must be sent again."""
        request = AlterPartitionRequest(
            self._settings.node_id, self._directories.broker_epoch, tuple(sent.values())
        )
        try:
            response = await self._link.call(
                request, self._settings.config.controller_quorum_request_timeout_ms
            )
        except ApiError as error:
            self._failures.failed(None, f"{self!r}: {error}; trying again")
            for partition, item in sent.items():
                self._propose_again(partition, item)
            return True
        self._failures.succeeded(None)
        for (partition, item), result in zip(sent.items(), response.partitions, strict=True):
            leader = partition.role
            if isinstance(leader, PartitionLeader):
                again = leader.on_alter_partition(item, result, now_ms=clock.now_ms())
                self._on_changed(partition)
                if again is not None:
                    self._propose_again(partition, again)
        return bool(self._wanted)

    def _propose_again(self, partition: Partition, item: AlterPartitionItem) -> None:
        """Proposes again, unless there is a newer proposal."""
        self._wanted.setdefault(partition, item)
        self._has_work.set()

    async def shrink_forever(self, partitions: Callable[[], Iterable[Partition]]) -> None:
        """Proposes ISRs without the followers that lag, every half `replica.lag.time.max.ms`, so a follower is removed
        at most 1.5 lag times after it fell behind (B10).
        """
        while True:
            await asyncio.sleep(self._settings.config.replica_lag_time_max_ms / 2000)
            now_ms = clock.now_ms()
            async for partition in in_turns(partitions()):
                leader = partition.role
                if not isinstance(leader, PartitionLeader):
                    continue
                item = leader.maybe_recover() or leader.maybe_shrink_isr(now_ms=now_ms)
                if leader.maybe_increment_high_watermark(now_ms):
                    self._on_changed(partition)
                if item is not None:
                    self.propose(partition, item)
