"""What the parts of a broker node call a replica: the partition, and where it lives.

A replica that has no log here, because its disk could not give it one, is `Unusable`. Kafka: `HostedPartition`.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol
from uuid import UUID

from rayka.errors import ApiError, InvalidTopic, PassingStorageError, StorageError
from rayka.ids import TopicPartition, is_internal
from rayka.log.log import PrefixCopy
from rayka.log.log_directory import LogDirectory
from rayka.metadata.image import BrokerImage, MetadataImage
from rayka.partition.partition import Partition
from rayka.ports import Disk

# Group commit: whatever waits for a data directory's disk shares one sync; what comes meanwhile shares the
# next one.
#
# Invariants: one sync at a time in a directory; a failed one is the last (the directory is offline, F13); a
# log is not synced unless something asks: `flush=batch`, `flush.messages`, `flush.ms`, or a segment that was
# sealed, so that a recovery never has to scan more than the active one. Kafka: the flush part of `UnifiedLog`
# and `LogManager`.


_NEVER_MS = 2**63 - 1


class Flusher:
    """Syncs the logs of one data directory."""

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
        self._active_bases: dict[Partition, int] = {}  # of the active segments when last looked at
        self._held: dict[Partition, bool] = {}  # whether a sync was asked for meanwhile
        self._has_work = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Flusher {self._directory.path} wanted={len(self._wanted)}>"

    def on_appended(self, partition: Partition) -> None:
        """Arranges for what was appended to be synced when the topic's configuration wants it."""
        if partition.needs_sync or self._has_rolled(partition):
            self.request(partition)
        elif partition.config.flush_ms < _NEVER_MS and partition not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[partition] = loop.call_later(
                partition.config.flush_ms / 1000, self._on_timer, partition
            )

    def _has_rolled(self, partition: Partition) -> bool:
        """Whether a segment was sealed since the last look, and a power cut may take what it holds, or what the roll
        wrote. Not by the number of segments: compaction and retention make them fewer.
        """
        log = partition.log
        base_offset = log.segments.active.base_offset
        if self._active_bases.get(partition) == base_offset:
            return False
        self._active_bases[partition] = base_offset
        return log.flushed_offset < base_offset or log.retired.waits_for_sync

    def request(self, partition: Partition) -> None:
        """Makes the partition part of the next sync."""
        if partition in self._held:
            self._held[partition] = True
            return
        self._wanted[partition] = None
        self._has_work.set()

    def hold(self, partition: Partition) -> None:
        """No sync of the partition begins until `release`: its log is about to be in another directory, where what was
        synced here has to be synced before.
        """
        self._held[partition] = partition in self._wanted
        self._wanted.pop(partition, None)

    def release(self, partition: Partition) -> None:
        """Syncs of the partition go on, if it is still here."""
        if self._held.pop(partition, False):
            self.request(partition)

    def forget(self, partition: Partition) -> None:
        """The partition is gone."""
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


# Topic id and number: cheaper to hash than a struct, and asked for in every request.
PartitionKey = tuple[UUID, int]


class Replica(NamedTuple):
    """A partition, and the directory and the flusher that it shares with others."""

    partition: Partition
    directory: LogDirectory
    flusher: Flusher

    @property
    def topic_partition(self) -> TopicPartition:
        return self.partition.topic_partition

    def waits_for_room(self, directory: LogDirectory) -> bool:
        """Whether its log, in that directory, met a full disk in the middle of a change."""
        return self.directory is directory and isinstance(self.partition.log.failure, PassingStorageError)


class Unusable(NamedTuple):
    """A partition whose log could not be opened, the directory that holds it if that is here, and why."""

    topic_partition: TopicPartition
    directory: LogDirectory | None
    error: StorageError

    def waits_for_room(self, directory: LogDirectory) -> bool:
        """Whether it could not be opened because that directory was full."""
        return self.directory is directory and isinstance(self.error, PassingStorageError)


class ReplicaOwner(Protocol):
    """What serves the replicas of a broker, as its parts see it: where they find them, and say what has happened."""

    image: MetadataImage | None

    @property
    def replicas(self) -> list[Replica]: ...

    def find(self, key: PartitionKey) -> Replica | None: ...

    def add(self, replica: Replica) -> None: ...

    def broker(self, broker_id: int) -> BrokerImage | None: ...

    def wake(self, partition: Partition) -> None:
        """Requests that wait for the partition look at it again, as when its log begins later now."""

    def on_follower_appended(self, replica: Replica, *, is_high_watermark_moved: bool) -> None: ...

    def on_synced(self, partitions: Sequence[Partition]) -> None:
        """What these partitions' logs held when the sync began is durable."""

    def on_storage_error(self, replica: Replica, error: StorageError) -> ApiError: ...

    def on_directory_failed(self, directory: LogDirectory, error: StorageError) -> None:
        """The directory is offline from now on."""


def check_not_internal(partition: Partition) -> None:
    """Raises InvalidTopic for a topic whose records are a state machine's: what clients did to them would break it."""
    if is_internal(partition.topic_partition.topic):
        raise InvalidTopic(
            f"{partition.topic_partition} is the cluster's own; clients read it and write nothing"
        )


def key_of(partition: Partition) -> PartitionKey:
    """How requests name the partition."""
    return partition.topic_id, partition.topic_partition.partition


# Truncations that need a copy of what is kept: made one at a time in each data directory, off the event loop.
#
# Invariants: a log is as it was until its copy is complete, and is truncated in one step then; a truncation that is not
# wanted any more by then, because its replica leads, follows in another epoch or is gone, leaves the log alone; no two
# copies are made at once in a data directory, so that a broker that comes back with many diverging logs serves the
# others meanwhile. Kafka truncates in place, for no reader maps its files (`LogSegment.truncateTo`).


Truncate = Callable[[PrefixCopy | None], PrefixCopy | None]  # as `Log.truncate_to`, with its offset


class Truncations:
    """The truncations of one broker."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._turns: dict[LogDirectory, asyncio.Lock] = {}

    def __repr__(self) -> str:
        copying = [each.path for each, turn in self._turns.items() if turn.locked()]
        return f"<Truncations copying in {copying}>"

    async def run(self, directory: LogDirectory, truncate: Truncate, is_wanted: Callable[[], bool]) -> bool:
        """Whether the log in the directory was truncated; if not, it was not wanted any more. Raises what `truncate`
        raises, and StorageError when the copy fails: then the log is as it was.
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
            # When the log is opened the next time the copy is removed, too; that may be much later.
            if copied is not None and self._disk.exists(copied.target):
                with suppress(StorageError):
                    self._disk.unlink(copied.target)
            return False
