"""The future logs of one data directory: copies of replicas that move here from another one.

A future log is a directory `<topic>-<partition>.<topic id>-future`. It is nothing but a copy until it gets the name of
its partition, by one rename; whatever ends a move before that leaves the log that it is copied from as it is.

Invariants: a future log has its directory from the begin, so that after a crash its presence tells of the move; it is
scanned from its first batch after an unclean shutdown, for no checkpoint knows of it. Kafka: `LogManager.futureLogs`.
"""

from uuid import UUID

from rayka.config.topic_config import TopicConfig
from rayka.ids import TopicPartition
from rayka.log.log import Log
from rayka.log.log_opening import Left, opening_log
from rayka.log.partition_directories import PartitionDirectories
from rayka.log.partition_metadata import PARTITION_METADATA_FILE, encode_partition_metadata
from rayka.log.recovery import Tearing
from rayka.log.slices import Slices
from rayka.ports import Disk


class FutureLogs:
    """Those of one data directory."""

    def __init__(self, disk: Disk, partitions: PartitionDirectories) -> None:
        self._disk = disk
        self._partitions = partitions
        self._open: dict[str, Log] = {}

    def __repr__(self) -> str:
        return f"<FutureLogs {list(self._open)}>"

    @property
    def logs(self) -> list[Log]:
        """Those that are open."""
        return list(self._open.values())

    def exists(self, topic_partition: TopicPartition, topic_id: UUID) -> bool:
        """Whether a copy was begun, by this process or one before."""
        return self._disk.exists(self._partitions.future_path(topic_partition, topic_id))

    def opening(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: TopicConfig,
        *,
        start_offset: int,
        was_clean: bool,
        now_ms: int,
    ) -> Slices[Log]:
        """The copy as the last process left it, by slices, or a new one that begins at the offset. Raises DamagedLog,
        StorageError.
        """
        path = self._partitions.future_path(topic_partition, topic_id)
        left = Left(0, start_offset, Tearing.NOTHING if was_clean else Tearing.ANYWHERE)
        new_files = {PARTITION_METADATA_FILE: encode_partition_metadata(topic_id)}
        log = yield from opening_log(self._disk, path, config, left, now_ms=now_ms, new_files=new_files)
        log.make_files()
        self._open[path] = log
        return log

    def promote(self, topic_partition: TopicPartition, topic_id: UUID) -> Log:
        """Gives the copy the name of its partition; durable once the data directory is synced. Raises StorageError, and
        then it is a copy still.
        """
        path = self._partitions.future_path(topic_partition, topic_id)
        log = self._open[path]
        log.move_to(self._partitions.path(topic_partition))
        del self._open[path]
        return log

    def delete(self, path: str) -> str | None:
        """Gives up the copy with this path, open or not; returns where it is now. Raises StorageError."""
        self._open.pop(path, None)
        return self._partitions.delete_future(path)
