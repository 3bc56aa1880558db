"""The replicas on one broker: opened, led, following, deleted as the metadata says; synced, taken offline.

Invariants: a partition is hosted in one directory; what is on disk and not in the metadata is set aside, never served;
a delta is applied deletions first, then leaders, then followers (H10), and the epochs that begin are durable before it
is visible; when a disk fails, its partitions answer KAFKA_STORAGE_ERROR until the node restarts, and the others go on;
when it is full they are read, and go on when there is room.
Kafka: `ReplicaManager`. Left out: moving a partition between directories.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from uuid import UUID

from rayka.errors import (
    ApiError,
    DamagedLog,
    DiskFull,
    KafkaStorageError,
    NotLeaderOrFollower,
    StorageError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from rayka.ids import TopicIdPartition, TopicPartition, node_name
from rayka.log.local_directories import LocalDirectories
from rayka.log.local_disk import LocalDisk
from rayka.log.log_directory import LogDirectory
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.effective_configs import broker_config, topic_config
from rayka.metadata.image import BrokerImage, MetadataImage, PartitionImage
from rayka.node.controller_link import ControllerLink
from rayka.node.handlers.parked import Parked
from rayka.node.replication.fetch_answers import Shared
from rayka.node.replication.isr_changes import IsrChanges
from rayka.node.replication.leadership_log import log_leadership
from rayka.node.replication.replica import PartitionKey, Replica, Unusable, key_of
from rayka.node.replication.replica_fetcher_manager import ReplicaFetchers
from rayka.node.replication.truncations import Truncations
from rayka.node.settings import NodeSettings
from rayka.node.storage.data_directories import DataDirectories
from rayka.node.storage.log_manager import LogManager
from rayka.node.tasks import Tasks
from rayka.node.turns import ITEMS_PER_TURN, in_turns
from rayka.partition.partition import Partition
from rayka.partition.partition_leader import FollowerUpdate
from rayka.partition.quota import ReplicationQuota

_Local = tuple[TopicIdPartition, PartitionImage]  # a partition that this broker holds, and its new state
_logger = logging.getLogger(__name__)


class ReplicaManager:
    """All replicas on this broker."""

    def __init__(
        self, settings: NodeSettings, directories: DataDirectories, link: ControllerLink, tasks: Tasks
    ) -> None:
        self._settings = settings
        self._directories = directories
        self._replicas: dict[PartitionKey, Replica] = {}
        self._unusable: dict[PartitionKey, Unusable] = {}
        self.leader_quota = ReplicationQuota(settings.config.leader_replication_throttled_rate)
        self._follower_quota = ReplicationQuota(settings.config.follower_replication_throttled_rate)
        local = LocalDirectories() if isinstance(settings.disk, LocalDisk) else None
        truncations = Truncations(settings.disk)
        shared = Shared(
            settings, directories, tasks, self, self._follower_quota, truncations, self._broker, local
        )
        self._fetchers = ReplicaFetchers(shared)
        self._isr_changes = IsrChanges(settings, link, directories, self._wake)
        self._image: MetadataImage | None = None
        self.parked: Parked[PartitionKey] = Parked()
        self._changing = asyncio.Lock()
        self.logs = LogManager(settings, directories, self, tasks)
        tasks.start("propose ISRs", self._isr_changes.run())
        tasks.start("shrink ISRs", self._isr_changes.shrink_forever(lambda: self.partitions))

    def __repr__(self) -> str:
        return f"<ReplicaManager {self._settings.node_id} replicas={len(self._replicas)}>"

    # ---- Looking ---------------------------------------------------------------------------------------

    def get(self, topic_id: UUID, number: int) -> Replica:
        """The replica. Raises KafkaStorageError when its disk could not hold it, UnknownTopicId,
        UnknownTopicOrPartition or NotLeaderOrFollower when it is not here.
        """
        key = (topic_id, number)
        replica = self._replicas.get(key)
        if replica is not None:
            return replica
        if key in self._unusable:
            raise KafkaStorageError(str(self._unusable[key].error))
        topic = self._image.topics_by_id.get(topic_id) if self._image else None
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

    def find(self, key: PartitionKey) -> Replica | None:
        """The replica, if there is a usable one here."""
        return self._replicas.get(key)

    def is_hosted(self, replica: Replica) -> bool:
        """Whether it has not been given up since it was looked for."""
        return self._replicas.get(key_of(replica.partition)) is replica

    @property
    def _name(self) -> str:
        return node_name(self._settings.node_id)

    @property
    def replicas(self) -> list[Replica]:
        return list(self._replicas.values())

    @property
    def partitions(self) -> list[Partition]:
        return [each.partition for each in self._replicas.values()]

    @property
    def unusable(self) -> list[StorageError]:
        """Why replicas that belong here could not be opened, one each."""
        return [each.error for each in self._unusable.values()]

    def problems(self) -> list[str]:
        """Why something is not usable here, or cannot be copied, one line each."""
        offline = [str(each.failure) for each in self._directories.all if each.failure is not None]
        full = [str(each.full) for each in self._directories.all if each.full and not each.failure]
        failed = [
            str(each.partition.log.failure)
            for each in self._replicas.values()
            if each.partition.log.failure and not each.partition.failure
            if not (each.directory.full and isinstance(each.partition.log.failure, DiskFull))  # said once
        ]
        unusable = [str(each.error) for each in self._unusable.values()]
        return list(dict.fromkeys([*offline, *full, *failed, *unusable, *self._fetchers.problems()]))

    # ---- Metadata --------------------------------------------------------------------------------------

    async def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Makes this broker's partitions what the new image says (H10)."""
        async with self._changing:
            await self._apply(delta, image)

    async def _apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        before, self._image = self._image, image
        is_first = before is None
        changed = [
            (each, state)
            async for each in in_turns(delta.changed_partitions())
            if (state := image.partition(each)) is not None
        ]
        local = [(each, state) async for each, state in in_turns(changed) if self._holds(state)]
        await self._delete(await self._gone(delta, changed))
        if is_first:
            await self.logs.tidy(image)
        self._reconfigure(delta, image)
        updated, new_leaders = await self._update_all(local, image)
        await self._on_updated(updated, new_leaders)
        await log_leadership(self._settings.node_id, changed, before, image)

    async def _on_updated(self, updated: Sequence[Replica], new_leaders: Sequence[Replica]) -> None:
        for begin in range(0, len(updated), ITEMS_PER_TURN):
            self._fetchers.assign(updated[begin : begin + ITEMS_PER_TURN])
            await asyncio.sleep(0)
        for replica in new_leaders:
            if replica.partition.needs_sync:  # what is to be committed may be in the page cache only
                replica.flusher.request(replica.partition)
        await self.logs.sync_epochs(new_leaders)
        async for replica in in_turns(updated):
            self._wake(replica.partition)

    def _holds(self, state: PartitionImage) -> bool:
        return self._settings.node_id in state.replicas

    async def _gone(
        self, delta: MetadataDelta, changed: Iterable[tuple[TopicIdPartition, PartitionImage]]
    ) -> list[PartitionKey]:
        """What is here and no longer meant to be: its topic was deleted, or it was moved to other brokers, perhaps to
        come back into another directory.
        """
        deleted = set(delta.deleted_topics())
        here = [*self._replicas, *self._unusable] if deleted else []
        moved = [
            (each.topic_id, each.partition)
            async for each, state in in_turns(changed)
            if self._is_moved((each.topic_id, each.partition), state)
        ]
        return [key for key in here if key[0] in deleted] + moved

    def _is_moved(self, key: PartitionKey, state: PartitionImage) -> bool:
        """Whether it is here, and in none of these directories from now on or in another one of them."""
        if key not in self._replicas and key not in self._unusable:
            return False
        home = self._directories.get(state.directory_of(self._settings.node_id))
        return not self._holds(state) or home not in (None, self._place(key)[0])

    async def _update_all(
        self, local: Sequence[_Local], image: MetadataImage
    ) -> tuple[list[Replica], list[Replica]]:
        """All that could be brought to their new state, and those among them that begin to lead. Leaders come first:
        clients wait for them (H10)."""
        updated, new_leaders = [], []
        for each, state in sorted(local, key=lambda each: each[1].leader_id != self._settings.node_id):
            await asyncio.sleep(0)  # there may be thousands
            known = self._replicas.get((each.topic_id, each.partition))
            epoch = None if known is None else known.partition.leader_epoch
            replica = await self._update(each, state, image)
            if replica is not None:
                updated.append(replica)
                if replica.partition.is_leader and replica.partition.leader_epoch != epoch:
                    new_leaders.append(replica)
        return updated, new_leaders

    async def _update(
        self, each: TopicIdPartition, state: PartitionImage, image: MetadataImage
    ) -> Replica | None:
        """The replica in its new state; None when it is not usable."""
        key = (each.topic_id, each.partition)
        if key in self._unusable and not self._may_try_again(self._unusable[key], state):
            return None
        topic_partition = TopicPartition(image.topics_by_id[each.topic_id].name, each.partition)
        try:
            replica = self._replicas.get(key)
            if replica is None:
                replica = await self._open(topic_partition, each.topic_id, state, image)
                self._replicas[key] = replica
                self._unusable.pop(key, None)
            replica.partition.update_state(state, now_ms=_now_ms())
        except StorageError as error:
            replica = self._replicas.get(key)
            if replica is not None and isinstance(replica.partition.log.failure, DiskFull):
                replica.flusher.forget(replica.partition)
                self.on_storage_error(replica, error)
                self._wake(replica.partition)
            else:
                self._on_unusable(key, topic_partition, state, error)
            return None
        return replica

    def _may_try_again(self, unusable: Unusable, state: PartitionImage) -> bool:
        """What is damaged may be had from a leader by now."""
        return isinstance(unusable.error, DamagedLog) and self.logs.can_be_copied(state)

    async def _open(
        self, topic_partition: TopicPartition, topic_id: UUID, state: PartitionImage, image: MetadataImage
    ) -> Replica:
        settings = self._settings
        config = topic_config(image, settings.config, topic_partition.topic, settings.node_id)
        directory, log = await self.logs.open(topic_partition, topic_id, state, config, _now_ms())
        partition = Partition(
            topic_partition,
            topic_id,
            settings.node_id,
            log,
            config,
            brokers=self._broker,
            replica_lag_time_max_ms=settings.config.replica_lag_time_max_ms,
        )
        partition.load_high_watermark(directory.high_watermark(topic_partition))
        return Replica(partition, directory, self.logs.flushers[directory])

    def _broker(self, broker_id: int) -> BrokerImage | None:
        return None if self._image is None else self._image.brokers.get(broker_id)

    def _on_unusable(
        self, key: PartitionKey, topic_partition: TopicPartition, state: PartitionImage, error: StorageError
    ) -> None:
        directory = self._directories.get(state.directory_of(self._settings.node_id))
        level = logging.INFO if directory is None else logging.ERROR
        _logger.log(level, "%s is not usable: %s", topic_partition, error)
        self._unusable[key] = Unusable(topic_partition, directory, error)
        replica = self._drop(key)
        self._fetchers.remove([key])
        self.parked.wake(key)
        cause = error
        if replica is not None and not isinstance(error, DamagedLog):
            cause = replica.partition.log.failure or error
        is_replaceable = state.leader_id == self._settings.node_id and len(state.isr) > 1
        if directory is not None:
            self.logs.on_log_failed(directory, cause, error, is_replaceable=is_replaceable)

    def _reconfigure(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """What was written of a topic, or of this broker, counts from the next request on."""
        settings = self._settings
        names: Iterable[str] = delta.reconfigured_topics()
        if delta.is_reconfigured(settings.node_id):
            names = image.topics
            own = broker_config(image, settings.config, settings.node_id)
            self.leader_quota.bytes_per_second = own.leader_replication_throttled_rate
            self._follower_quota.bytes_per_second = own.follower_replication_throttled_rate
        for topic in [image.topics[name] for name in names if name in image.topics]:
            config = topic_config(image, settings.config, topic.name, settings.node_id)
            for number in range(len(topic.partitions)):
                replica = self._replicas.get((topic.topic_id, number))
                if replica is not None:
                    replica.partition.update_config(config)

    # ---- Deletion --------------------------------------------------------------------------------------

    async def _delete(self, keys: Sequence[PartitionKey]) -> None:
        """These are not fetched any more, then the checkpoints forget them, then their logs get out of the way."""
        self._fetchers.remove(keys)
        await self.logs.forget([self._place(key) for key in keys])
        for key in keys:
            await asyncio.sleep(0)  # there may be thousands
            directory, topic_partition = self._place(key)
            self._unusable.pop(key, None)
            replica = self._drop(key)
            if directory is not None:
                self.logs.delete(directory, topic_partition, self._removal_delay_ms(replica))
            self.parked.wake(key)

    def _removal_delay_ms(self, replica: Replica | None) -> int:
        if replica is None:
            return self._settings.config.log_segment_delete_delay_ms
        return replica.partition.config.file_delete_delay_ms

    def _drop(self, key: PartitionKey) -> Replica | None:
        """The replica is not here any more, and its log is not synced any more; None when it was not here."""
        replica = self._replicas.pop(key, None)
        if replica is not None:
            replica.flusher.forget(replica.partition)
        return replica

    def _place(self, key: PartitionKey) -> tuple[LogDirectory | None, TopicPartition]:
        unusable = self._unusable.get(key)
        if unusable is not None:
            return unusable.directory, unusable.topic_partition
        replica = self._replicas[key]
        return replica.directory, replica.partition.topic_partition

    # ---- What happens to partitions --------------------------------------------------------------------

    def on_appended(self, replica: Replica) -> None:
        """The log has grown: it is synced if it must be, and readers are woken."""
        replica.flusher.on_appended(replica.partition)
        self._wake(replica.partition)

    def on_follower_appended(self, replica: Replica, *, is_high_watermark_moved: bool) -> None:
        """This broker's copy has grown, or was cut; consumers that read here see up to its high watermark (G15)."""
        replica.flusher.on_appended(replica.partition)
        if is_high_watermark_moved:
            self._wake(replica.partition)

    def on_follower_fetch(self, replica: Replica, update: FollowerUpdate) -> None:
        """A follower has told how far it is: what waits for that looks again, and the ISR may grow (G13)."""
        if update.is_high_watermark_raised or update.is_low_watermark_raised:
            self._wake(replica.partition)
        if update.proposal is not None:
            self._isr_changes.propose(replica.partition, update.proposal)

    def on_storage_error(self, replica: Replica, error: StorageError) -> ApiError:
        """What to answer."""
        partition = replica.partition
        failure = partition.log.failure
        is_replaceable = failure is not None and partition.is_leader and len(partition.isr) > 1
        if failure is not None:
            self._fetchers.remove([key_of(partition)])
        self.logs.on_log_failed(replica.directory, failure or error, error, is_replaceable=is_replaceable)
        return KafkaStorageError(f"{partition.topic_partition}: {error}")

    def on_synced(self, partitions: Sequence[Partition]) -> None:
        """What these logs held is durable: more may be committed."""
        now_ms = _now_ms()
        for partition in partitions:
            partition.maybe_increment_high_watermark(now_ms)
            self._fetchers.on_synced(partition)
            self._wake(partition)

    async def on_room(self, directory: LogDirectory) -> bool:
        """The replicas in the directory that a full disk has stopped go on, each with what is in its log's files. False
        while some do not: the directory has to count as full until then, else an append to one that has yet to be
        opened would give all leads away again.
        """
        for key in self._waiting_for_room(directory):
            await asyncio.sleep(0)  # there may be thousands
            # For each anew: what the metadata says meanwhile does not wait for all of them.
            async with self._changing:
                await self._try_again(key, directory)
        async with self._changing:
            return directory.failure is None and not self._waiting_for_room(directory)

    def _waiting_for_room(self, directory: LogDirectory) -> list[PartitionKey]:
        """Those whose log met the full disk in the middle of a change, or could not be opened on it."""
        stopped = [key for key, each in self._replicas.items() if _is_stopped(each, directory)]
        closed = [key for key, each in self._unusable.items() if each.is_for_want_of_room(directory)]
        return [*stopped, *closed]

    async def _try_again(self, key: PartitionKey, directory: LogDirectory) -> None:
        """Unless it is not here any more, or goes on already."""
        each, image = TopicIdPartition(*key), self._image
        state = None if image is None else image.partition(each)
        if image is None or state is None or not self._holds(state):
            return
        replica, unusable = self._replicas.get(key), self._unusable.get(key)
        if replica is not None and _is_stopped(replica, directory):
            self._fetchers.remove([key])  # an answer that comes meanwhile is for the log of before
            if await self._reopen(replica, state):
                await self._on_updated([replica], [replica] if replica.partition.is_leader else [])
        elif unusable is not None and unusable.is_for_want_of_room(directory):
            del self._unusable[key]
            await self._on_updated(*await self._update_all([(each, state)], image))

    async def _reopen(self, replica: Replica, state: PartitionImage) -> bool:
        """Whether the replica has a log again that takes changes."""
        partition = replica.partition
        try:
            await self.logs.reopen(replica, _now_ms())
        except DamagedLog as error:
            replica.directory.drop_damaged_log(partition.topic_partition)
            self._on_unusable(key_of(partition), partition.topic_partition, state, error)
        except StorageError as error:
            self.on_storage_error(replica, error)
        else:
            replica.flusher.forget(partition)
            return True
        return False

    def on_directory_failed(self, directory: LogDirectory, error: StorageError) -> None:
        """Its partitions answer with this error from now on."""
        failed = [each for each in self._replicas.values() if each.directory is directory]
        for replica in failed:
            replica.partition.failure = error
            self._wake(replica.partition)
        self._fetchers.remove([key_of(each.partition) for each in failed])

    def _wake(self, partition: Partition) -> None:
        self.parked.wake(key_of(partition))


def _is_stopped(replica: Replica, directory: LogDirectory) -> bool:
    """Whether its log, in this directory, met a full disk in the middle of a change."""
    return replica.directory is directory and isinstance(replica.partition.log.failure, DiskFull)


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
