"""A broker measures its own load: bytes and records of each replica, its share of a processor, its disks.

Requests count their bytes and records in each replica's `Traffic`. At each interval the meter takes these counts, in
turns, so that thousands of logs hold nothing up, and makes one report: sums, and the partitions with the largest logs
and with the most traffic. The heartbeat carries the report until a controller has answered one. Rayka's own.
"""

import asyncio
import posixpath
from collections.abc import Iterator
from heapq import nlargest

from rayka.clock import now_ms
from rayka.errors import StorageError
from rayka.log.meta_properties import META_PROPERTIES_FILE
from rayka.node.data_directories import DataDirectories
from rayka.node.log_cleaner import weight_of
from rayka.node.replica import ReplicaOwner, key_of
from rayka.node.settings import NodeSettings
from rayka.node.tasks import in_turns
from rayka.partition.partition import Partition
from rayka.partition.replica_log import NO_TRAFFIC, TrafficCounts
from rayka.protocol.load import AMOUNT_MAX, REPORTED_PARTITIONS_MAX, LoadReport, PartitionLoad

# Half of the reported partitions are chosen by size, half by traffic.
_LEADERS_MAX = REPORTED_PARTITIONS_MAX // 2


class LoadMeter:
    """Measures one broker."""

    def __init__(self, settings: NodeSettings, directories: DataDirectories, owner: ReplicaOwner) -> None:
        self._disk = settings.disk
        self._processor_seconds = settings.processor_seconds
        self._interval_s = settings.config.broker_load_report_interval_ms / 1000
        self._directories = directories
        self._owner = owner
        self._last_ms = now_ms()
        self._last_processor_s = settings.processor_seconds()
        # The report that no controller has answered yet; None: there is no new one.
        self.unreported: LoadReport | None = None

    def on_reported(self, report: LoadReport | None) -> None:
        """A controller has answered the heartbeat that carried this report."""
        if report is self.unreported:
            self.unreported = None

    async def run(self) -> None:
        """Measures at each interval, for ever."""
        while True:
            await asyncio.sleep(self._interval_s)
            self.unreported = await self.measure()

    async def measure(self) -> LoadReport:
        """The load since the last measurement."""
        began_ms, processor_s = now_ms(), self._processor_seconds()
        interval_ms = max(1, began_ms - self._last_ms)
        spent_s = max(0.0, processor_s - self._last_processor_s)
        self._last_ms, self._last_processor_s = began_ms, processor_s
        tally = _Tally(interval_ms)
        async for replica in in_turns(self._owner.replicas, weigh=weight_of):
            tally.add(replica.partition)
        return tally.report(int(spent_s * 1_000_000 / interval_ms), self._free_bytes())

    def _free_bytes(self) -> int:
        """The free bytes of all disks, each counted once. A disk that fails is left out: it is reported as offline."""
        free: dict[object, int] = {}
        for directory in self._directories.online():
            try:
                free[self._device_of(directory.path)] = self._disk.free_bytes(directory.path)
            except StorageError:
                continue
        return min(sum(free.values()), AMOUNT_MAX)

    def _device_of(self, path: str) -> object:
        try:
            return self._disk.identity(posixpath.join(path, META_PROPERTIES_FILE)).device
        except StorageError:
            return path


_Entry = tuple[Partition, int, TrafficCounts]


def _size_of(entry: _Entry) -> int:
    return entry[1]


def _traffic_of(entry: _Entry) -> int:
    return entry[2].bytes_in + entry[2].bytes_out


class _Tally:
    """The sums over replicas. Rates are computed from sums, rounded down."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._entries: list[_Entry] = []
        self._sums = list(NO_TRAFFIC)
        self._size_bytes = self._count = self._leader_count = 0

    def add(self, partition: Partition) -> None:
        counts = partition.traffic.take()
        size_bytes = partition.log.segments.size_bytes
        self._count += 1
        self._leader_count += partition.is_leader
        self._size_bytes += size_bytes
        self._entries.append((partition, size_bytes, counts))
        if counts != NO_TRAFFIC:
            self._sums = [total + each for total, each in zip(self._sums, counts, strict=True)]

    def report(self, processor_permille: int, free_bytes: int) -> LoadReport:
        chosen = {key_of(entry[0]): self._load(*entry) for entry in self._chosen()}
        return LoadReport(
            self._interval_ms,
            processor_permille,
            free_bytes,
            self._size_bytes,
            self._count,
            self._leader_count,
            **{
                name: self._rate(total) for name, total in zip(TrafficCounts._fields, self._sums, strict=True)
            },
            partitions=tuple(chosen.values()),
        )

    def _chosen(self) -> Iterator[_Entry]:
        """The largest replicas, then those with the most traffic; of equals the first ones."""
        for rank_of in (_size_of, _traffic_of):
            yield from nlargest(_LEADERS_MAX, filter(rank_of, self._entries), key=rank_of)

    def _load(self, partition: Partition, size_bytes: int, counts: TrafficCounts) -> PartitionLoad:
        rates = map(self._rate, counts[:4])
        number = partition.topic_partition.partition
        return PartitionLoad(partition.topic_id, number, partition.is_leader, size_bytes, *rates)

    def _rate(self, count: int) -> int:
        return count * 1000 // self._interval_ms
