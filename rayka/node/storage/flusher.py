"""Group commit: whatever waits for a data directory's disk shares one sync; what comes meanwhile shares the
next one.

Invariants: one sync at a time in a directory; a failed one is the last (the directory is offline, F13); a
log is not synced unless something asks: `flush=batch`, `flush.messages`, `flush.ms`, or a segment that was
sealed, so that a recovery never has to scan more than the active one. Kafka: the flush part of `UnifiedLog`
and `LogManager`.
"""

import asyncio
from collections.abc import Callable, Sequence

from rayka.errors import StorageError
from rayka.log.log_directory import LogDirectory
from rayka.partition.partition import Partition

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
