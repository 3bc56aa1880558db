"""A replica as the parts of a broker see it: the partition, where it lives, and the work on its directory's disk.

A replica whose disk could not give it a log is `Unusable`. The replicas of one data directory share its `Flusher`, and
the long truncations of all of them run one at a time (`Truncations`). Kafka: `HostedPartition`; for syncs the flush
part of `UnifiedLog` and `LogManager`.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rayka.errors import ApiError, InvalidTopic, PassingStorageError, StorageError
from rayka.ids import TopicPartition, is_internal
from rayka.log.log import PrefixCopy
from rayka.log.log_directory import LogDirectory
from rayka.metadata.image import BrokerImage, MetadataImage
from rayka.partition.partition import Partition
from rayka.ports import Disk
from rayka.protocol.fetch import PartitionKey

if TYPE_CHECKING:
    from rayka.node.data_directories import DataDirectories
    from rayka.node.follower_quotas import FollowerQuotas
    from rayka.node.settings import NodeSettings

_NEVER_MS = 2**63 - 1


class Flusher:
    """Syncs the logs of one data directory: all that wait for the disk share one sync (group commit).

    Invariants: one sync at a time in a directory; requests during a sync share the next one; a failed sync is the last,
    because the directory is offline then (F13). A log is synced only for a reason: `flush=batch`, `flush.messages`,
    `flush.ms`, or a segment that was sealed, so that a recovery never scans more than the active segment.
    """

    def __init__(
        self,
        directory: LogDirectory,
        on_synced: Callable[[Sequence[Partition]], None],
        on_failed: Callable[[StorageError], None],
    ) -> None:
        self._directory = directory
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._wanted: dict[Partition, None] = {}
        self._timers: dict[Partition, asyncio.TimerHandle] = {}
        # The base offsets of the active segments at the last look.
        self._active_bases: dict[Partition, int] = {}
        # Held partitions; True: a sync was requested since.
        self._held: dict[Partition, bool] = {}
        self._has_work = asyncio.Event()

    def on_appended(self, partition: Partition) -> None:
        """Arranges the sync of the append that the topic's configuration asks for."""
        log, config = partition.log, partition.config
        # A sealed segment is found by its successor's base offset, not by the number of segments: compaction and
        # retention make them fewer.
        base_offset = log.segments.active.base_offset
        has_rolled = self._active_bases.get(partition) != base_offset
        if has_rolled:
            self._active_bases[partition] = base_offset
            # A power cut may take what the sealed segment holds, or what the roll wrote.
            has_rolled = log.flushed_offset < base_offset or log.retired.waits_for_sync
        if has_rolled or partition.needs_sync:
            self.request(partition)
        elif config.flush_ms < _NEVER_MS and partition not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[partition] = loop.call_later(config.flush_ms / 1000, self._on_timer, partition)

    def request(self, partition: Partition) -> None:
        """Makes the partition part of the next sync."""
        if partition in self._held:
            self._held[partition] = True
            return
        self._wanted[partition] = None
        self._has_work.set()

    def hold(self, partition: Partition) -> None:
        """Begins no sync of the partition until `release`. Its log is about to move into another directory, where the
        records that are synced here must be synced first.
        """
        self._held[partition] = partition in self._wanted
        self._wanted.pop(partition, None)

    def release(self, partition: Partition) -> None:
        """Goes on with the syncs of the partition, if it is still here."""
        if self._held.pop(partition, False):
            self.request(partition)

    def forget(self, partition: Partition) -> None:
        """Forgets a partition that is gone."""
        self._wanted.pop(partition, None)
        if partition in self._held:
            self._held[partition] = False
        self._active_bases.pop(partition, None)
        timer = self._timers.pop(partition, None)
        if timer is not None:
            timer.cancel()

    async def run(self) -> None:
        """Syncs until the disk fails."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            partitions, self._wanted = list(self._wanted), {}
            try:
                await self._directory.sync([each.log for each in partitions])
            except StorageError as error:
                self._on_failed(error)
                return
            self._on_synced(partitions)

    def _on_timer(self, partition: Partition) -> None:
        del self._timers[partition]
        self.request(partition)


# Topic id and partition number: cheaper to hash than a struct, and looked up in every request.


class Replica(NamedTuple):
    """A partition, and the directory and the flusher that it shares with others."""

    partition: Partition
    directory: LogDirectory
    flusher: Flusher

    @property
    def topic_partition(self) -> TopicPartition:
        return self.partition.topic_partition

    def waits_for_room(self, directory: LogDirectory) -> bool:
        """True if its log, in that directory, met a full disk in the middle of a change."""
        return self.directory is directory and isinstance(self.partition.log.failure, PassingStorageError)


class Unusable(NamedTuple):
    """A partition whose log could not be opened, its directory if that is on this broker, and the error."""

    topic_partition: TopicPartition
    directory: LogDirectory | None
    error: StorageError

    def waits_for_room(self, directory: LogDirectory) -> bool:
        """True if it could not be opened because that directory was full."""
        return self.directory is directory and isinstance(self.error, PassingStorageError)


class ReplicaOwner(Protocol):
    """The owner of all replicas of a broker (`ReplicaManager`), as its parts see it: they look up replicas here, and
    tell what has happened to them.
    """

    settings: "NodeSettings"
    directories: "DataDirectories"
    follower_quotas: "FollowerQuotas"
    # The metadata that the replicas follow; None before the first.
    image: MetadataImage | None

    @property
    def replicas(self) -> list[Replica]: ...

    def find(self, key: PartitionKey) -> Replica | None: ...

    def add(self, replica: Replica) -> None: ...

    def broker(self, broker_id: int) -> BrokerImage | None: ...

    def wake(self, partition: Partition) -> None:
        """Lets requests that wait for the partition look again, for example when its log begins later now."""

    def on_follower_appended(self, replica: Replica, *, is_high_watermark_moved: bool) -> None: ...

    def on_synced(self, partitions: Sequence[Partition]) -> None:
        """The records that these logs held when the sync began are durable."""

    def on_storage_error(self, replica: Replica, error: StorageError) -> ApiError: ...

    def on_directory_failed(self, directory: LogDirectory, error: StorageError) -> None:
        """The directory is offline from now on."""


def check_not_internal(partition: Partition) -> None:
    """Raises InvalidTopic for a topic whose records belong to a state machine: a client's change would break it."""
    if is_internal(partition.topic_partition.topic):
        raise InvalidTopic(
            f"{partition.topic_partition} is the cluster's own; clients read it and write nothing"
        )


def key_of(partition: Partition) -> PartitionKey:
    """The key by which requests name the partition."""
    return partition.topic_id, partition.topic_partition.partition


# As `Log.truncate_to`, with its offset.
Truncate = Callable[[PrefixCopy | None], PrefixCopy | None]


class Truncations:
    """Makes truncations that need a copy of the kept records: one at a time in each data directory, off the event loop.

    Invariants: a log is unchanged until its copy is complete, and is truncated in one step then. A truncation that is
    no longer wanted, because the replica leads, follows in another epoch or is gone, leaves the log alone. A broker
    that comes back with many diverging logs serves the others, because each directory makes one copy at a time. Kafka
    truncates in place, for no reader maps its files (`LogSegment.truncateTo`).
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._turns: dict[LogDirectory, asyncio.Lock] = {}

    async def run(self, directory: LogDirectory, truncate: Truncate, is_wanted: Callable[[], bool]) -> bool:
        """Truncates the log in the directory; False if that is not wanted any more. Raises what `truncate` raises, and
        StorageError when the copy fails: then the log is unchanged.
        """
        async with self._turns.setdefault(directory, asyncio.Lock()):
            copied: PrefixCopy | None = None
            while is_wanted():
                needed = truncate(copied)
                if needed is None:
                    return True
                copied = needed
                try:
                    await self._disk.copy_prefix(needed.source, needed.target, needed.size_bytes)
                except StorageError:
                    if is_wanted():
                        raise
            # The next opening of the log would remove the copy, too, but may come much later.
            if copied is not None and self._disk.exists(copied.target):
                with suppress(StorageError):
                    self._disk.unlink(copied.target)
            return False
