"""High watermarks, recovery points and log start offsets, saved now and then (B4, F13).

Invariant: nothing is written while nothing has changed. Kafka: `ReplicaManager.checkpointHighWatermarks`,
`LogManager.checkpointLogRecoveryOffsets`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from rayka.config import BrokerConfig
from rayka.errors import DiskFull, StorageError
from rayka.ids import TopicPartition
from rayka.log.log_directory import LogDirectory
from rayka.node.repeats import Repeats
from rayka.node.replication.replica import Replica

_State = dict[TopicPartition, tuple[int, int, int]]
_logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoint files of all directories of one broker."""

    def __init__(
        self,
        replicas: Callable[[], Iterable[Replica]],
        on_failed: Callable[[LogDirectory, StorageError], None],
    ) -> None:
        self._replicas = replicas
        self._on_failed = on_failed
        self._saved: dict[LogDirectory, _State] = {}
        self._repeats = Repeats(_logger)

    def __repr__(self) -> str:
        return f"<Checkpoints directories={len(self._saved)}>"

    def high_watermarks(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        """By partition, as the checkpoint has them (B4)."""
        return {
            each.partition.topic_partition: each.partition.high_watermark
            for each in self._replicas()
            if each.directory is directory
        }

    async def run(self, directories: Iterable[LogDirectory], config: BrokerConfig) -> None:
        """Saves them for ever."""
        interval_ms = min(
            config.replica_high_watermark_checkpoint_interval_ms,
            config.log_flush_offset_checkpoint_interval_ms,
        )
        while True:
            await asyncio.sleep(interval_ms / 1000)
            for directory in directories:
                await self._save(directory)

    async def _save(self, directory: LogDirectory) -> None:
        if directory.failure is not None or self._state(directory) == self._saved.get(directory):
            return
        try:
            await directory.checkpoint(partial(self._take, directory))
            self._repeats.succeeded(directory)
        except DiskFull as error:
            self._saved.pop(directory, None)
            self._repeats.failed(directory, f"{directory.path}: no checkpoint: {error}")
        except StorageError as error:
            self._on_failed(directory, error)

    def _take(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        """The high watermarks that are saved now."""
        state = self._saved[directory] = self._state(directory)
        return {key: high_watermark for key, (high_watermark, _, _) in state.items()}

    def _state(self, directory: LogDirectory) -> _State:
        return {
            each.partition.topic_partition: (
                each.partition.high_watermark,
                each.partition.log.flushed_offset,
                each.partition.log.log_start_offset,
            )
            for each in self._replicas()
            if each.directory is directory
        }
