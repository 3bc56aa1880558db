"""Admin requests about a broker's replicas: DescribeLogDirs, AlterReplicaLogDirs, DeleteRecords.

After DeleteRecords the log of a led partition begins later, and its followers' logs follow. Invariants: the new start
is durable here before the answer, so no restart brings records back; a partition is answered when every live replica
begins at the new start, with its error, or at the timeout.

Kafka: `ReplicaManager.describeLogDirs`, `alterReplicaLogDirs`, `deleteRecords`, `DelayedDeleteRecords` (G11).
"""

import asyncio
import posixpath
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from rayka.clock import now_ms, now_s
from rayka.errors import (
    ApiError,
    ErrorCode,
    InvalidReplicaAssignment,
    KafkaStorageError,
    LogDirNotFound,
    ReplicaNotAvailable,
    RequestTimedOut,
    StorageError,
)
from rayka.ids import NO_TIMESTAMP, ZERO_ID, TopicPartition, node_name
from rayka.log.log import Log
from rayka.log.log_directory import LogDirectory
from rayka.metadata.image import named_partition
from rayka.node.directory_moves import DirectoryMove
from rayka.node.log_cleaner import weight_of
from rayka.node.replica import Replica, Unusable, check_not_internal, key_of
from rayka.node.replica_manager import ReplicaManager
from rayka.node.tasks import in_turns
from rayka.partition.partition_leader import PartitionLeader
from rayka.protocol.fetch import PartitionKey
from rayka.protocol.topics import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDirDescription,
    PartitionResult,
    ReplicaInfo,
    ReplicaLogDir,
)

# A broker that is fenced, or that no longer fetches, wakes no request here.
_LOOK_S = 1


class LogDirsHandler:
    """Answers DescribeLogDirs and AlterReplicaLogDirs."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._disk = replicas.settings.disk
        self._name = node_name(replicas.settings.node_id)
        self._directories = replicas.directories
        self._replicas = replicas

    async def describe(self, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        """Describes all directories, with the replicas of the topics asked for, by topic and partition."""
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
        """The copies of these replicas on their way into the directory."""
        running = self._replicas.moves.running
        moves = [(each, running.get(key_of(each.partition))) for each in replicas]
        return [
            _future_log(replica, move)
            for replica, move in moves
            if move is not None and move.target is directory and replica.directory is not directory
        ]

    async def alter(self, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
        """Begins each move that can be made; a refused move does not hold up the others."""
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
    """The timestamp of the oldest batch; unknown where the disk does not give it."""
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


# ---- DeleteRecords ---------------------------------------------------------------------------------------------------


class _Deletion(NamedTuple):
    """A deletion that waits until the low watermark reaches an offset, in the leadership that moved the start."""

    asked: DeleteRecordsPartition
    replica: Replica
    required_offset: int
    leader: PartitionLeader

    @property
    def key(self) -> PartitionKey:
        return self.asked.topic_id, self.asked.partition


class DeleteRecordsHandler:
    """Answers DeleteRecords."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    async def handle(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """One result for each partition, in order; a refused partition does not hold up the others."""
        deadline_s = now_s() + request.timeout_ms / 1000
        results: list[DeleteRecordsResult] = []
        # By place in the request.
        waiting: dict[int, _Deletion] = {}
        for place, asked in enumerate(request.partitions):
            try:
                deletion = self._delete(asked)
            except ApiError as error:
                results.append(_refused(asked, error))
            else:
                results.append(DeleteRecordsResult(asked.topic_id, asked.partition))
                waiting[place] = deletion
        await self._save(waiting, results)
        with self._replicas.parked.watch(each.key for each in waiting.values()) as watch:
            self._answer(waiting, results)
            while waiting and now_s() < deadline_s:
                await watch.wait(min(deadline_s, now_s() + _LOOK_S))
                self._answer(waiting, results)
        for place, deletion in waiting.items():
            results[place] = _refused(deletion.asked, _timed_out(deletion, request.timeout_ms))
        return DeleteRecordsResponse(tuple(results))

    def _delete(self, asked: DeleteRecordsPartition) -> _Deletion:
        replica = self._replicas.get(asked.topic_id, asked.partition)
        check_not_internal(replica.partition)
        try:
            leader = replica.partition.as_leader()
            required_offset = leader.delete_records(asked.before_offset)
        except StorageError as error:
            raise self._replicas.on_storage_error(replica, error) from error
        self._replicas.logs.retention.look_soon()
        # Answers to fetches tell the new start.
        self._replicas.parked.wake((asked.topic_id, asked.partition))
        return _Deletion(asked, replica, required_offset, leader)

    async def _save(self, waiting: dict[int, _Deletion], results: list[DeleteRecordsResult]) -> None:
        """Makes the new starts durable. Refuses the deletions, and takes them out of `waiting`, where that fails: a
        restart might bring their records back.
        """

        async def save(directory: LogDirectory) -> None:
            try:
                await directory.checkpoint(partial(self._replicas.logs.high_watermarks, directory))
            except StorageError as error:
                for place, deletion in list(waiting.items()):
                    if deletion.replica.directory is directory:
                        refusal = self._replicas.on_storage_error(deletion.replica, error)
                        results[place] = _refused(deletion.asked, refusal)
                        del waiting[place]

        await asyncio.gather(*map(save, dict.fromkeys(each.replica.directory for each in waiting.values())))

    def _answer(self, waiting: dict[int, _Deletion], results: list[DeleteRecordsResult]) -> None:
        """Answers the deletions that need not wait any longer, and takes them out of `waiting`."""
        for place, deletion in list(waiting.items()):
            try:
                low_watermark = self._low_watermark(deletion)
            except ApiError as error:
                results[place] = _refused(deletion.asked, error)
            else:
                if low_watermark < deletion.required_offset:
                    continue
                asked = deletion.asked
                results[place] = DeleteRecordsResult(
                    asked.topic_id, asked.partition, low_watermark=low_watermark
                )
            del waiting[place]

    def _low_watermark(self, deletion: _Deletion) -> int:
        partition = self._replicas.get(*deletion.key).partition
        partition.check_readable(deletion.leader.state.leader_epoch)
        return partition.as_leader().low_watermark(now_ms())


def _timed_out(deletion: _Deletion, timeout_ms: int) -> ApiError:
    partition, offset = deletion.replica.partition, deletion.required_offset
    behind = [
        node_name(each.replica_id)
        + (f" begins at {each.log_start_offset}" if each.has_fetched else " has not fetched")
        for each in deletion.leader.live_followers(now_ms())
        if each.log_start_offset < offset
    ]
    return RequestTimedOut(
        f"{partition.topic_partition}: the log begins at {offset} on its leader, but not on every live replica within"
        f" {timeout_ms} ms ({', '.join(behind)}); the others follow by themselves as soon as they fetch, so there is no"
        f" need to delete again. `rayka topic describe {partition.topic_partition.topic}` says how far they are behind"
    )


def _refused(asked: DeleteRecordsPartition, error: ApiError) -> DeleteRecordsResult:
    return DeleteRecordsResult(asked.topic_id, asked.partition, error.code, str(error))
