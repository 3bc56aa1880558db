"""Makes the replicas on one broker what the metadata say: opens them, makes them lead or follow, deletes them.

Invariants:

- A delta is applied deletions first, then leaders, then followers (H10). The epochs that begin are durable before the
  delta is visible, but for those on a disk that takes longer than a second.
- One change is made at a time.
- A log that is on disk and not in the metadata is set aside, never served.
- Replicas that a full disk has stopped go on when it has room.

Kafka: `ReplicaManager.applyDelta`; `state-change.log`, and "Shrinking ISR" of `Partition`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from uuid import UUID

from rayka import clock
from rayka.errors import DamagedLog, PassingStorageError, StorageError
from rayka.ids import TopicIdPartition, TopicPartition
from rayka.log.log import Log
from rayka.log.log_directory import LogDirectory
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage, PartitionImage, broker_config, topic_config
from rayka.node.replica import Replica, Unusable, key_of
from rayka.node.replica_manager import ReplicaManager
from rayka.node.tasks import ITEMS_PER_TURN, Tasks, in_turns
from rayka.partition.partition import Partition
from rayka.protocol.fetch import PartitionKey

_NAMES_MAX = 10
_EPOCHS_WAIT_S = 1.0
# A partition and its new state.
_Changed = tuple[TopicIdPartition, PartitionImage]
_logger = logging.getLogger(__name__)


class ReplicaChanges:
    """The changes of one broker's replicas."""

    def __init__(self, replicas: ReplicaManager, tasks: Tasks) -> None:
        self._settings = replicas.settings
        self._node_id = replicas.settings.node_id
        self._directories = replicas.directories
        self._replicas = replicas
        self._logs = replicas.logs
        self._tasks = tasks
        self._changing = asyncio.Lock()
        tasks.start("look for room", self._logs.look_for_room(self._on_room))
        for number in range(replicas.moves.worker_count):
            tasks.start(f"move replicas {number}", replicas.moves.run(self._exchange))

    # ---- Metadata --------------------------------------------------------------------------------------

    async def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Makes this broker's replicas what the new image says (H10)."""
        async with self._changing:
            await self._apply(delta, image)

    async def _apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        before, self._replicas.image = self._replicas.image, image
        changed = [
            (each, state)
            async for each in in_turns(delta.changed_partitions())
            if (state := image.partition(each)) is not None
        ]
        local = [(each, state) async for each, state in in_turns(changed) if self._holds(state)]
        await self._delete(await self._gone(delta, changed))
        if before is None:
            await self._logs.tidy(image)
        self._reconfigure(delta, image)
        await self._share(delta, changed, image)
        updated, new_leaders = await self._update_all(local, image)
        await self._on_updated(updated, new_leaders)
        if before is None:
            self._replicas.moves.resume(self._replicas.hosted)
        self._replicas.moves.metadata.notify()
        await log_leadership(self._node_id, changed, before, image)

    async def _on_updated(self, updated: Sequence[Replica], new_leaders: Sequence[Replica]) -> None:
        for begin in range(0, len(updated), ITEMS_PER_TURN):
            self._replicas.fetchers.assign(updated[begin : begin + ITEMS_PER_TURN])
            await asyncio.sleep(0)
        for replica in new_leaders:
            # Records that it will commit may be in the page cache only.
            if replica.partition.needs_sync:
                replica.flusher.request(replica.partition)
        by_directory: dict[LogDirectory, list[Replica]] = {}
        for replica in updated:
            by_directory.setdefault(replica.directory, []).append(replica)
        syncs = []
        for directory, replicas in by_directory.items():
            logs = [each.partition.log for each in new_leaders if each.directory is directory]
            waking = self._wake_synced(directory, logs, replicas)
            if logs:
                syncs.append(self._tasks.start(f"sync epochs in {directory.path}", waking))
            else:
                await waking
        # A slow disk must hold up no other one, and the next metadata only for a while.
        with suppress(TimeoutError):
            async with asyncio.timeout(_EPOCHS_WAIT_S):
                for task in syncs:
                    await asyncio.shield(task)

    async def _wake_synced(
        self, directory: LogDirectory, logs: Sequence[Log], updated: Sequence[Replica]
    ) -> None:
        """Wakes the waiting requests of the replicas, once the epochs of these logs are durable."""
        await self._logs.sync_epochs(directory, logs)
        async for replica in in_turns(updated):
            self._replicas.wake(replica.partition)

    def _holds(self, state: PartitionImage) -> bool:
        return self._node_id in state.replicas

    async def _gone(self, delta: MetadataDelta, changed: Iterable[_Changed]) -> list[PartitionKey]:
        """The replicas that must go: their topic was deleted, or they moved to other brokers, or into another directory
        here.
        """
        deleted = set(delta.deleted_topics())
        here = list(self._replicas.hosted) if deleted else []
        moved = [
            (each.topic_id, each.partition)
            async for each, state in in_turns(changed)
            if self._is_moved((each.topic_id, each.partition), state)
        ]
        return [key for key in here if key[0] in deleted] + moved

    def _is_moved(self, key: PartitionKey, state: PartitionImage) -> bool:
        """True if the replica is here, and the metadata place it on other brokers or in another directory here."""
        hosted = self._replicas.hosted.get(key)
        if hosted is None:
            return False
        home = self._directories.get(state.directory_of(self._node_id))
        if not self._holds(state):
            return True
        if home is None or home is hosted.directory:
            return False
        return not (isinstance(hosted, Replica) and self._replicas.moves.is_bound_for(home, hosted))

    async def _update_all(
        self, local: Sequence[_Changed], image: MetadataImage
    ) -> tuple[list[Replica], list[Replica]]:
        """Brings replicas to their new state, leaders first, because clients wait for them (H10). Returns those that
        are usable, and those among them that begin to lead.
        """
        updated, new_leaders = [], []
        for each, state in sorted(local, key=lambda each: each[1].leader_id != self._node_id):
            # There may be thousands.
            await asyncio.sleep(0)
            known = self._replicas.find((each.topic_id, each.partition))
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
        """Brings one replica to its new state; returns None when it is not usable."""
        key = (each.topic_id, each.partition)
        hosted = self._replicas.hosted.get(key)
        if isinstance(hosted, Unusable) and not self._may_try_again(hosted, state):
            return None
        topic_partition = TopicPartition(image.topics_by_id[each.topic_id].name, each.partition)
        try:
            replica = self._replicas.find(key)
            if replica is None:
                replica = await self._open(topic_partition, each.topic_id, state, image)
                self._replicas.add(replica)
            replica.partition.update_state(state, now_ms=clock.now_ms())
        except StorageError as error:
            replica = self._replicas.find(key)
            if replica is not None and isinstance(replica.partition.log.failure, PassingStorageError):
                replica.flusher.forget(replica.partition)
                self._replicas.on_storage_error(replica, error)
                self._replicas.wake(replica.partition)
            else:
                self._replicas.give_up(key, topic_partition, state, error)
            return None
        return replica

    def _may_try_again(self, unusable: Unusable, state: PartitionImage) -> bool:
        """True if the log was damaged and may be copied from a leader by now."""
        return isinstance(unusable.error, DamagedLog) and self._logs.can_be_copied(state)

    async def _open(
        self, topic_partition: TopicPartition, topic_id: UUID, state: PartitionImage, image: MetadataImage
    ) -> Replica:
        settings = self._settings
        config = topic_config(image, settings.config, topic_partition.topic, settings.node_id)
        directory, log = await self._logs.open(topic_partition, topic_id, state, config, clock.now_ms())
        partition = Partition(
            topic_partition,
            topic_id,
            settings.node_id,
            log,
            config,
            brokers=self._replicas.broker,
            replica_lag_time_max_ms=settings.config.replica_lag_time_max_ms,
        )
        partition.load_high_watermark(directory.checkpoints.high_watermarks.get(topic_partition))
        return Replica(partition, directory, self._logs.flushers[directory])

    def _reconfigure(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Applies new configurations of topics, and of this broker, from the next request on."""
        settings = self._settings
        names: Iterable[str] = delta.reconfigured_topics()
        if delta.is_reconfigured(self._node_id):
            names = image.topics
            own = broker_config(image, settings.config, self._node_id)
            leading = self._replicas.leader_quotas
            leading.named.bytes_per_second = own.leader_replication_throttled_rate
            leading.added.bytes_per_second = own.reassignment_replication_throttled_rate
            self._replicas.follower_quotas.configure(own)
            self._logs.cleaner.config = self._replicas.moves.config = own
            self._logs.retention.configure(own)
        for topic in [image.topics[name] for name in names if name in image.topics]:
            config = topic_config(image, settings.config, topic.name, self._node_id)
            for number in range(len(topic.partitions)):
                replica = self._replicas.find((topic.topic_id, number))
                if replica is not None:
                    replica.partition.update_config(config)

    async def _share(self, delta: MetadataDelta, changed: Iterable[_Changed], image: MetadataImage) -> None:
        """Applies this broker's part of the rate at which replicas leave other brokers."""
        departing = self._replicas.follower_quotas.departing
        departing.forget(delta.deleted_topics())
        async for each, state in in_turns(changed):
            departing.put(each, state)
        departing.share(image)

    # ---- Deletion --------------------------------------------------------------------------------------

    async def _delete(self, keys: Sequence[PartitionKey]) -> None:
        """Deletes replicas: ends their fetches, then takes them out of the checkpoints, then deletes their logs."""
        self._replicas.fetchers.remove(keys)
        gone = [self._replicas.hosted[key] for key in keys]
        await self._logs.forget([(each.directory, each.topic_partition) for each in gone])
        for key in keys:
            # There may be thousands.
            await asyncio.sleep(0)
            each = self._replicas.drop(key)
            self._replicas.moves.on_gone(key)
            if each is not None and each.directory is not None:
                delay_ms = self._settings.config.log_segment_delete_delay_ms
                if isinstance(each, Replica):
                    delay_ms = each.partition.config.file_delete_delay_ms
                self._logs.delete(each.directory, each.topic_partition, delay_ms)
            self._replicas.parked.wake(key)

    # ---- Another directory ---------------------------------------------------------------------------------

    async def _exchange(self, key: PartitionKey, exchanged: Callable[[], Replica | None]) -> bool:
        """Lets a move exchange the replica's log for the one in another directory; False if it could not yet. No change
        of metadata is made during the exchange. Raises what the exchange raises.
        """
        async with self._changing:
            # An answer that is under way belongs to the old log.
            self._replicas.fetchers.remove([key])
            try:
                return exchanged() is not None
            finally:
                replica = self._replicas.find(key)
                if replica is not None and replica.partition.failure is None:
                    await self._on_updated([replica], [replica] if replica.partition.is_leader else [])

    # ---- Room after a full disk ------------------------------------------------------------------------

    async def _on_room(self, directory: LogDirectory) -> bool:
        """Lets the replicas go on that a full disk has stopped, each with the records in its log's files. False while
        some do not: the directory must count as full until then, else an append to a log that is not open yet would
        give all leads away again.
        """
        for key in self._waiting_for_room(directory):
            # There may be thousands.
            await asyncio.sleep(0)
            # The lock is taken for each replica, so new metadata do not wait for all of them.
            async with self._changing:
                await self._try_again(key, directory)
        async with self._changing:
            return directory.failure is None and not self._waiting_for_room(directory)

    def _waiting_for_room(self, directory: LogDirectory) -> list[PartitionKey]:
        """The replicas whose log met the full disk in the middle of a change, or could not be opened on it."""
        return [key for key, each in self._replicas.hosted.items() if each.waits_for_room(directory)]

    async def _try_again(self, key: PartitionKey, directory: LogDirectory) -> None:
        """Opens one replica again, unless it is not here any more, or goes on already."""
        each, image, hosted = TopicIdPartition(*key), self._replicas.image, self._replicas.hosted.get(key)
        state = None if image is None else image.partition(each)
        if image is None or state is None or not self._holds(state):
            return
        if hosted is None or not hosted.waits_for_room(directory):
            return
        if isinstance(hosted, Unusable):
            self._replicas.drop(key)
            await self._on_updated(*await self._update_all([(each, state)], image))
            return
        # An answer that is under way belongs to the old log.
        self._replicas.fetchers.remove([key])
        if await self._reopen(hosted, state):
            await self._on_updated([hosted], [hosted] if hosted.partition.is_leader else [])

    async def _reopen(self, replica: Replica, state: PartitionImage) -> bool:
        """Opens the replica's log again; False if it takes no changes."""
        partition = replica.partition
        try:
            await self._logs.reopen(replica, clock.now_ms())
        except DamagedLog as error:
            replica.directory.drop_damaged_log(partition.topic_partition)
            self._replicas.give_up(key_of(partition), partition.topic_partition, state, error)
        except StorageError as error:
            self._replicas.on_storage_error(replica, error)
        else:
            replica.flusher.forget(partition)
            return True
        return False


# ---- The log of leaders ----------------------------------------------------------------------------------------------


async def log_leadership(
    broker_id: int,
    changed: Iterable[tuple[TopicIdPartition, PartitionImage]],
    before: MetadataImage | None,
    image: MetadataImage,
) -> None:
    """Logs the partitions that this broker leads from now on or no more, and the new ISRs of those that it leads.

    One line for each kind of change, whatever the number of partitions. `changed` are the partitions that changed
    between the two images and are still there.
    """
    won: list[str] = []
    lost: list[str] = []
    isrs: list[str] = []
    async for each, state in in_turns(changed):
        former = before.partition(each) if before is not None else None
        was_leader = former is not None and former.leader_id == broker_id
        name = f"{image.topics_by_id[each.topic_id].name}-{each.partition}"
        if state.leader_id != broker_id:
            if was_leader:
                successor = f"broker {state.leader_id}" if state.leader_id >= 0 else "no broker"
                lost.append(f"{name} ({successor} in epoch {state.leader_epoch})")
        elif not was_leader or former is None or former.leader_epoch != state.leader_epoch:
            won.append(f"{name} (epoch {state.leader_epoch}, ISR {_ids(state.isr)})")
        elif former.isr != state.isr:
            isrs.append(f"{name} {_ids(state.isr)}, was {_ids(former.isr)}")
    for what, partitions in (("leads", won), ("leads no more", lost), ("has other ISRs of", isrs)):
        others = len(partitions) - _NAMES_MAX
        rest = f"; and {others} more" if others > 0 else ""
        if partitions:
            _logger.info("broker %d %s %s%s", broker_id, what, "; ".join(partitions[:_NAMES_MAX]), rest)


def _ids(node_ids: Sequence[int]) -> str:
    return "[" + ",".join(map(str, node_ids)) + "]"
