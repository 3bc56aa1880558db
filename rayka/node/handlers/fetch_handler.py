"""Fetch and ListOffsets on a broker, for consumers and for followers.

A fetch is answered at once when it has enough, may not wait, or has an error to tell (G7); otherwise it is
parked and looks again whenever one of its partitions has news (G8). What it is given is read at the end,
once; a follower's position counts when it is looked at first (B6). Kafka: `ReplicaManager.fetchMessages`,
`DelayedFetch`, `fetchOffsetForTimestamp` (G1-G9, G12).
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from rayka.errors import (
    ApiError,
    ErrorCode,
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    NotLeaderOrFollower,
    StorageError,
)
from rayka.ids import NO_NODE
from rayka.node.clock import now_ms
from rayka.node.handlers.fetch_reads import FetchReads, Leader
from rayka.node.handlers.fetch_sessions import FetchContext, FetchSessions
from rayka.node.replication.replica_manager import ReplicaManager
from rayka.node.settings import NodeSettings
from rayka.partition.partition_reads import FoundOffset
from rayka.protocol.fetch import (
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

_REFRESHES_PER_LAG = 8  # how often in replica.lag.time.max.ms a follower's idle partitions count as fetched
_SESSION_ERRORS = (FetchSessionIdNotFound, InvalidFetchSessionEpoch)


class FetchHandler:
    """Answers Fetch."""

    def __init__(self, replicas: ReplicaManager, settings: NodeSettings) -> None:
        config = settings.config
        self._leader = Leader(settings.node_id, replicas, config.fetch_max_bytes)
        self._sessions = FetchSessions(
            replicas.parked, config.max_incremental_fetch_session_cache_slots, settings.random
        )
        self._refresh_ms = config.replica_lag_time_max_ms // _REFRESHES_PER_LAG

    def __repr__(self) -> str:
        return f"<FetchHandler {self._sessions!r}>"

    def handle(self, request: FetchRequest) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
        """One result for each partition, in order; within a session, those with news (G14). The first look has been
        taken when this returns."""
        try:
            context = self._sessions.begin(request, now_ms())
        except _SESSION_ERRORS as error:
            return FetchResponse((), error.code, str(error))
        reads = self._reads(request, context)
        if request.replica_id != NO_NODE and context.is_refresh_due(now_ms(), self._refresh_ms):
            reads.refresh()
        results = reads.read_all(is_first=True)
        if not _is_complete(request, context, results):
            return self._wait(
                request, context, asyncio.get_running_loop().time() + request.max_wait_ms / 1000
            )
        response = _told(context, reads, results)
        self._sessions.end(context)
        return response

    async def _wait(self, request: FetchRequest, context: FetchContext, deadline_s: float) -> FetchResponse:
        try:
            while context.is_current and await context.watch.wait(deadline_s):
                reads = self._reads(request, context)
                if request.min_bytes > 1 and not reads.has_enough():  # else a read tells as well
                    continue
                results = reads.read_all(is_first=False)
                if _is_complete(request, context, results):
                    return _told(context, reads, results)
            context.check_current()
            reads = self._reads(request, context)
            return _told(context, reads, reads.read_all(is_first=False))
        except _SESSION_ERRORS as error:
            return FetchResponse((), error.code, str(error))
        finally:
            self._sessions.end(context)

    def _reads(self, request: FetchRequest, context: FetchContext) -> FetchReads:
        return FetchReads(self._leader, request, context, now_ms())


class ListOffsetsHandler:
    """Answers ListOffsets."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    async def handle(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """One result for each partition, in order (G12)."""
        is_follower = request.replica_id != NO_NODE
        return ListOffsetsResponse(
            tuple([await self._describe(each, is_follower) for each in request.partitions])
        )

    async def _describe(self, each: ListOffsetsPartition, is_follower: bool) -> ListOffsetsPartitionResult:
        try:
            found = await self._find(each, is_follower)
        except ApiError as error:
            return ListOffsetsPartitionResult(each.topic_id, each.partition, error.code, str(error))
        return ListOffsetsPartitionResult(
            each.topic_id,
            each.partition,
            timestamp_ms=found.timestamp_ms,
            offset=found.offset,
            leader_epoch=found.leader_epoch,
        )

    async def _find(self, each: ListOffsetsPartition, is_follower: bool) -> FoundOffset:
        """Others get their turn after each slice of the search; meanwhile the replica may go."""
        replica = self._replicas.get(each.topic_id, each.partition)
        search = replica.partition.find_offset(
            each.timestamp_ms, each.current_leader_epoch, is_follower=is_follower
        )
        while self._replicas.get(each.topic_id, each.partition) is replica:
            try:
                next(search)
            except StopIteration as end:
                found: FoundOffset = end.value
                return found
            except StorageError as error:
                raise self._replicas.on_storage_error(replica, error) from error
            await asyncio.sleep(0)
        raise NotLeaderOrFollower(f"{replica.partition.topic_partition} was opened anew; try again")


def _told(context: FetchContext, reads: FetchReads, results: list[FetchPartitionResult]) -> FetchResponse:
    told = context.tell(results)
    reads.record_sent(told)
    return FetchResponse(told, session_id=context.session.session_id)


def _is_complete(request: FetchRequest, context: FetchContext, results: list[FetchPartitionResult]) -> bool:
    """Whether the answer must not wait (G7)."""
    if request.max_wait_ms <= 0 or context.is_empty:
        return True
    return any(map(_is_urgent, results)) or sum(each.size_bytes for each in results) >= request.min_bytes


def _is_urgent(result: FetchPartitionResult) -> bool:
    """Whether the caller has to act on it, data or not."""
    return (
        result.error_code is not ErrorCode.NONE
        or result.diverging_epoch is not None
        or result.preferred_read_replica != NO_NODE
    )
