"""DescribeLogDirs on a broker: its data directories, how they are, and which replicas they hold.

Kafka: `ReplicaManager.describeLogDirs`.
"""

from rayka.errors import StorageError
from rayka.ids import TopicPartition
from rayka.log.log_directory import LogDirectory
from rayka.node.replication.replica import Replica
from rayka.node.replication.replica_manager import ReplicaManager
from rayka.node.settings import NodeSettings
from rayka.node.storage.data_directories import DataDirectories
from rayka.protocol.partition_admin import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDirDescription,
    ReplicaLog,
)


class DescribeLogDirsHandler:
    """Answers DescribeLogDirs."""

    def __init__(
        self, settings: NodeSettings, directories: DataDirectories, replicas: ReplicaManager
    ) -> None:
        self._disk = settings.disk
        self._directories = directories
        self._replicas = replicas

    async def handle(self, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        """All directories, with the replicas of the topics asked for, by topic and partition."""
        wanted = None if request.topics is None else frozenset(request.topics)
        replicas = [
            each
            for each in self._replicas.replicas
            if wanted is None or each.partition.topic_partition.topic in wanted
        ]
        replicas.sort(key=_topic_partition)
        return DescribeLogDirsResponse(
            tuple(self._describe(directory, replicas) for directory in self._directories.all)
        )

    def _describe(self, directory: LogDirectory, replicas: list[Replica]) -> LogDirDescription:
        failure, free_bytes = directory.failure, 0
        is_full = failure is None and directory.full is not None
        if failure is None:
            try:
                free_bytes = self._disk.free_bytes(directory.path)
            except StorageError as error:
                failure = error
        failure = failure or directory.full
        return LogDirDescription(
            directory.path,
            directory.directory_id,
            error="" if failure is None else str(failure),
            free_bytes=free_bytes,
            replicas=tuple(_replica_log(each) for each in replicas if each.directory is directory),
            is_full=is_full,
        )


def _topic_partition(replica: Replica) -> TopicPartition:
    return replica.partition.topic_partition


def _replica_log(replica: Replica) -> ReplicaLog:
    partition = replica.partition
    return ReplicaLog(
        partition.topic_partition.topic,
        partition.topic_id,
        partition.topic_partition.partition,
        size_bytes=partition.log.segments.size_bytes,
        log_start_offset=partition.log.log_start_offset,
        high_watermark=partition.high_watermark,
        log_end_offset=partition.log.log_end_offset,
        leader_epoch=partition.leader_epoch,
        is_leader=partition.is_leader,
    )
