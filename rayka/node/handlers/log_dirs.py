"""A broker's data directories: how they are and which replicas they hold, and replicas moved from one to another.

Kafka: `ReplicaManager.describeLogDirs`, `alterReplicaLogDirs`.
"""

import posixpath
from operator import attrgetter

from rayka.errors import (
    ApiError,
    ErrorCode,
    InvalidReplicaAssignment,
    KafkaStorageError,
    LogDirNotFound,
    ReplicaNotAvailable,
    StorageError,
)
from rayka.ids import NO_TIMESTAMP, ZERO_ID, TopicPartition, node_name
from rayka.log.log import Log
from rayka.log.log_directory import LogDirectory
from rayka.metadata.image import named_partition
from rayka.node.replication.replica import Replica, Unusable, key_of
from rayka.node.replication.replica_manager import ReplicaManager
from rayka.node.storage.directory_move import DirectoryMove
from rayka.node.storage.log_cleaner import weight_of
from rayka.node.turns import in_turns
from rayka.protocol.topics import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDirDescription,
    PartitionResult,
    ReplicaInfo,
    ReplicaLogDir,
)


class LogDirsHandler:
    """Answers DescribeLogDirs and AlterReplicaLogDirs."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._disk = replicas.settings.disk
        self._name = node_name(replicas.settings.node_id)
        self._directories = replicas.directories
        self._replicas = replicas

    async def describe(self, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        """All directories, with the replicas of the topics asked for, by topic and partition."""
        wanted = None if request.topics is None else frozenset(request.topics)
        replicas = [
            each
            for each in self._replicas.replicas
            if wanted is None or each.partition.topic_partition.topic in wanted
        ]
        replicas.sort(key=attrgetter("topic_partition"))
        logs = [self._replica_log(each) async for each in in_turns(replicas, weigh=weight_of)]
        described = [self._describe(directory, replicas, logs) for directory in self._directories.all]
        absent = [
            LogDirDescription(path, ZERO_ID, error=str(error), free_bytes=0, replicas=())
            for path, error in self._directories.absent.items()
        ]
        return DescribeLogDirsResponse((*described, *absent))

    def _replica_log(self, replica: Replica) -> ReplicaInfo:
        partition, log = replica.partition, replica.partition.log
        return ReplicaInfo(
            partition.topic_partition.topic,
            partition.topic_id,
            partition.topic_partition.partition,
            size_bytes=log.segments.size_bytes,
            log_start_offset=log.log_start_offset,
            high_watermark=partition.high_watermark,
            log_end_offset=log.log_end_offset,
            leader_epoch=partition.leader_epoch,
            is_leader=partition.is_leader,
            segment_count=len(log.segments),
            oldest_timestamp_ms=_oldest_timestamp_ms(log),
            cleaning=self._replicas.logs.cleaner.cleaning(replica),
            retention=self._replicas.logs.retention.last(log),
        )

    def _describe(
        self, directory: LogDirectory, replicas: list[Replica], logs: list[ReplicaInfo]
    ) -> LogDirDescription:
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
            replicas=(
                *(log for each, log in zip(replicas, logs, strict=True) if each.directory is directory),
                *self._futures(directory, replicas),
            ),
            is_full=is_full,
            is_cordoned=self._replicas.moves.config.is_cordoned(directory.path),
        )

    def _futures(self, directory: LogDirectory, replicas: list[Replica]) -> list[ReplicaInfo]:
        """The copies on their way into the directory, of these replicas."""
        running = self._replicas.moves.running
        moves = [(each, running.get(key_of(each.partition))) for each in replicas]
        return [
            _future_log(replica, move)
            for replica, move in moves
            if move is not None and move.target is directory and replica.directory is not directory
        ]

    async def alter(self, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
        """Begins each move that can be made; one that is refused does not hold up the others."""
        return AlterReplicaLogDirsResponse(tuple(self._altered(each) for each in request.replicas))

    def _altered(self, asked: ReplicaLogDir) -> PartitionResult:
        try:
            target = self._directory(asked)
            self._replicas.moves.want(self._replica(asked), target)
        except ApiError as refusal:
            return PartitionResult(asked.topic, asked.partition, ErrorCode(refusal.code), str(refusal))
        return PartitionResult(asked.topic, asked.partition)

    def _directory(self, asked: ReplicaLogDir) -> LogDirectory:
        path = posixpath.normpath(asked.path)
        for absent, error in self._directories.absent.items():
            if posixpath.normpath(absent) == path:
                raise KafkaStorageError(f"{absent} is offline: {error}")
        for directory in self._directories.all:
            if posixpath.normpath(directory.path) == path:
                if directory.failure is not None:
                    raise KafkaStorageError(f"{directory.path} is offline: {directory.failure}")
                if self._replicas.moves.config.is_cordoned(directory.path):
                    raise InvalidReplicaAssignment(
                        f"{directory.path} is cordoned; take it out of cordoned.log.dirs of"
                        f" {self._name} first"
                    )
                return directory
        raise LogDirNotFound(
            f"{self._name} has data directories {[each.path for each in self._directories.all]},"
            f" found {asked.path!r}"
        )

    def _replica(self, asked: ReplicaLogDir) -> Replica:
        """Raises UnknownTopicOrPartition, ReplicaNotAvailable, and KafkaStorageError when its disk has failed."""
        name, image = TopicPartition(asked.topic, asked.partition), self._replicas.image
        if image is None:
            raise ReplicaNotAvailable(f"{self._name} knows no topic yet; try again soon")
        key, _ = named_partition(image, name)
        hosted = self._replicas.hosted.get((key.topic_id, key.partition))
        if hosted is None:
            raise ReplicaNotAvailable(f"{self._name} holds no replica of {name!r}")
        if isinstance(hosted, Unusable):
            raise KafkaStorageError(str(hosted.error))
        if hosted.partition.failure is not None:
            raise KafkaStorageError(f"{name!r}: {hosted.partition.failure}")
        return hosted


def _oldest_timestamp_ms(log: Log) -> int:
    """Unknown, too, where the disk does not give the oldest batch."""
    try:
        return log.segments.first.first_timestamp_ms
    except (ApiError, StorageError):
        return NO_TIMESTAMP


def _future_log(replica: Replica, move: DirectoryMove) -> ReplicaInfo:
    partition, copy = replica.partition, move.copy
    log_end_offset = partition.log.log_start_offset if copy is None else copy.log.log_end_offset
    return ReplicaInfo(
        partition.topic_partition.topic,
        partition.topic_id,
        partition.topic_partition.partition,
        size_bytes=0 if copy is None else copy.log.segments.size_bytes,
        log_start_offset=partition.log.log_start_offset if copy is None else copy.log.log_start_offset,
        high_watermark=min(partition.high_watermark, log_end_offset),
        log_end_offset=log_end_offset,
        leader_epoch=partition.leader_epoch,
        is_leader=False,
        is_future=True,
        offset_lag=max(0, partition.log.log_end_offset - log_end_offset),
    )
