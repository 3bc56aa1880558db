"""How many bytes the logs in each directory of a broker take, for its heartbeats.

Invariant: thousands of logs with many segments are added up in turns, so nothing waits for it. What moves into a
directory counts in the one where it is. Kafka's brokers count partitions (`LogManager.nextLogDirs`).
"""

import asyncio
from typing import Protocol

from rayka.log.log_directory import LogDirectory
from rayka.node.replication.replica import Replica
from rayka.node.storage.data_directories import DataDirectories
from rayka.node.turns import in_turns

_LOGS_PER_TURN = 50  # which may have hundreds of segments each


class ReplicaOwner(Protocol):
    """What serves the partitions."""

    @property
    def replicas(self) -> list[Replica]: ...


async def measure_directories(directories: DataDirectories, owner: ReplicaOwner, interval_ms: int) -> None:
    """Keeps `directories.size_bytes` what it is, for ever; empty where there is no choice between directories."""
    while len(directories.all) > 1:
        sizes: dict[LogDirectory, int] = dict.fromkeys(directories.all, 0)
        async for replica in in_turns(owner.replicas, _LOGS_PER_TURN):
            sizes[replica.directory] += replica.partition.log.segments.size_bytes
        directories.size_bytes = tuple(sizes.values())
        await asyncio.sleep(interval_ms / 1000)
