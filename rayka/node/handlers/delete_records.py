"""DeleteRecords on a broker: the log of a led partition begins later, and its followers' logs follow.

Invariants: the new start is durable here before it is answered, so that no restart brings records back; a partition is
answered when every live replica begins there, with its error, or when the time is over. Kafka: `ReplicaManager.
deleteRecords`, `DelayedDeleteRecords` (G11).
"""

import asyncio
from functools import partial
from typing import NamedTuple

from rayka.errors import ApiError, RequestTimedOut, StorageError
from rayka.ids import node_name
from rayka.log.log_directory import LogDirectory
from rayka.node.clock import now_ms, now_s
from rayka.node.replication.replica import PartitionKey, Replica, check_not_internal
from rayka.node.replication.replica_manager import ReplicaManager
from rayka.partition.partition_leader import PartitionLeader
from rayka.protocol.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
)

_LOOK_S = 1  # a broker that is fenced, or that no longer fetches, wakes nothing here


class _Deletion(NamedTuple):
    """What the low watermark has to reach, in the leadership that moved the start."""

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
        """One result for each partition, in order; those that are refused do not hold up the others."""
        deadline_s = now_s() + request.timeout_ms / 1000
        results: list[DeleteRecordsResult] = []
        waiting: dict[int, _Deletion] = {}  # by place in the request
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
        # Fetches then say where the log begins now.
        self._replicas.parked.wake((asked.topic_id, asked.partition))
        return _Deletion(asked, replica, required_offset, leader)

    async def _save(self, waiting: dict[int, _Deletion], results: list[DeleteRecordsResult]) -> None:
        """Takes out of `waiting` what is not durable here: a restart might bring its records back."""

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
        """Takes out of `waiting` whatever need not wait any longer."""
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
