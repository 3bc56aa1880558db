"""Fetch and ListOffsets on a broker, for consumers and for followers.

A fetch is answered at once when it has enough, may not wait, or has an error to tell (G7); otherwise it is
parked and looks again whenever one of its partitions has news (G8). What it is given is read at the end,
once; a follower's position counts when it is looked at first (B6). Kafka: `ReplicaManager.fetchMessages`,
`DelayedFetch`, `fetchOffsetForTimestamp` (G1-G9, G12).
"""

import asyncio

from rayka.errors import (
    ApiError,
    ErrorCode,
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    InvalidRequest,
    NotLeaderOrFollower,
    StorageError,
)
from rayka.ids import NO_EPOCH, NO_NODE, NO_OFFSET
from rayka.node.handlers.fetch_reads import FetchReads, Leader, size_bytes
from rayka.node.handlers.fetch_sessions import FetchContext, FetchSessions
from rayka.node.replication.replica_manager import ReplicaManager
from rayka.node.settings import NodeSettings
from rayka.partition.partition_reads import FoundOffset
from rayka.protocol.fetch import (
    FINAL_SESSION_EPOCH,
    FIRST_SESSION_EPOCH,
    NO_SESSION,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

_REFRESHES_PER_LAG = 8  # how often in replica.lag.time.max.ms a follower's idle partitions count as fetched


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

    async def handle(self, request: FetchRequest) -> FetchResponse:
        """One result for each partition, in order; within a session, those with news (G14).

        Raises InvalidRequest, with nothing read.
        """
        _check(request)
        try:
            context = self._sessions.begin(request, _now_ms())
            try:
                return await self._answer(request, context)
            finally:
                self._sessions.end(context)
        except (FetchSessionIdNotFound, InvalidFetchSessionEpoch) as error:
            return FetchResponse((), error.code, str(error))

    async def _answer(self, request: FetchRequest, context: FetchContext) -> FetchResponse:
        deadline_s = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        reads = self._reads(request, context)
        if request.replica_id != NO_NODE and context.is_refresh_due(_now_ms(), self._refresh_ms):
            reads.refresh()
        results = reads.read_all(is_first=True)
        if not _is_complete(request, context, results):
            while await context.watch.wait(deadline_s):
                if not context.is_current or self._reads(request, context).has_enough():
                    break
            context.check_current()
            reads = self._reads(request, context)
            results = reads.read_all(is_first=False)
        told = context.tell(results)
        reads.record_sent(told)
        return FetchResponse(told, session_id=context.session.session_id)

    def _reads(self, request: FetchRequest, context: FetchContext) -> FetchReads:
        return FetchReads(self._leader, request, context, _now_ms())


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


def _is_complete(request: FetchRequest, context: FetchContext, results: list[FetchPartitionResult]) -> bool:
    """Whether the answer must not wait (G7)."""
    if request.max_wait_ms <= 0 or context.is_empty:
        return True
    return any(map(_is_urgent, results)) or sum(map(size_bytes, results)) >= request.min_bytes


def _is_urgent(result: FetchPartitionResult) -> bool:
    """Whether the caller has to act on it, data or not."""
    return (
        result.error_code is not ErrorCode.NONE
        or result.diverging_epoch is not None
        or result.preferred_read_replica != NO_NODE
    )


def _check(request: FetchRequest) -> None:
    """Raises InvalidRequest for what no caller of ours sends."""
    amounts = (request.min_bytes, request.max_bytes, request.session_id)
    if min(amounts) < 0 or min(request.replica_id, request.replica_epoch, request.session_epoch) < -1:
        raise InvalidRequest(f"fetch: an amount, an id or an epoch is negative: {request!r:.500}")
    is_new = request.session_epoch in (FIRST_SESSION_EPOCH, FINAL_SESSION_EPOCH)
    if is_new and request.forgotten:
        raise InvalidRequest(
            "fetch: expected no forgotten partitions in a request that begins or has no session"
        )
    if not is_new and request.session_id == NO_SESSION:
        raise InvalidRequest(
            f"fetch: expected the id of a session with its epoch {request.session_epoch}, found none"
        )
    named = {(each.topic_id, each.partition) for each in request.partitions}
    if len(named) < len(request.partitions):
        raise InvalidRequest("fetch: expected each partition once, found one twice")
    for each in request.partitions:
        _check_partition(each)


def _check_partition(fetch: FetchPartition) -> None:
    if fetch.max_bytes < 0 or min(fetch.current_leader_epoch, fetch.last_fetched_epoch) < NO_EPOCH:
        raise InvalidRequest(f"fetch: an amount or an epoch is negative: {fetch!r}")
    if not NO_OFFSET <= fetch.log_start_offset <= max(fetch.fetch_offset, NO_OFFSET):
        raise InvalidRequest(f"fetch: a log starts at or before its end, found {fetch!r}")


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
