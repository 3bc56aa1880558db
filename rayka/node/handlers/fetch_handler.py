"""Fetch and ListOffsets on a broker, for consumers and for followers.

A fetch is answered at once when it has enough, may not wait, or has an error to return (G7); otherwise it is
parked and looks again whenever one of its partitions has news (G8). One that was held back by a rate is parked no
longer than that has to wait, for no news comes when it may go on. What it is given is read at the end,
once; a follower's position counts when it is looked at first (B6). Kafka: `ReplicaManager.fetchMessages`,
`DelayedFetch`, `fetchOffsetForTimestamp` (G1-G9, G12).
"""

import asyncio

from rayka.errors import (
    ApiError,
    ErrorCode,
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    NotLeaderOrFollower,
    StorageError,
)
from rayka.ids import NO_NODE
from rayka.node.answering import Response
from rayka.node.clock import now_ms
from rayka.node.handlers.fetch_reads import FetchReads
from rayka.node.handlers.fetch_sessions import FetchContext, FetchSessions
from rayka.node.replication.replica_manager import ReplicaManager
from rayka.node.turns import in_turns, result_in_turns
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
from rayka.protocol.later import Later

_REFRESHES_PER_LAG = 8  # how often in replica.lag.time.max.ms a follower's idle partitions count as fetched
_SESSION_ERRORS = (FetchSessionIdNotFound, InvalidFetchSessionEpoch)


class FetchHandler:
    """Answers Fetch."""

    def __init__(self, replicas: ReplicaManager) -> None:
        settings, config = replicas.settings, replicas.settings.config
        self._replicas = replicas
        self._sessions = FetchSessions(
            replicas.parked, config.max_incremental_fetch_session_cache_slots, settings.random
        )
        self._refresh_ms = config.replica_lag_time_max_ms // _REFRESHES_PER_LAG

    def __repr__(self) -> str:
        return f"<FetchHandler {self._sessions!r}>"

    def handle(self, request: FetchRequest) -> Response:
        """One result for each partition, in order; within a session, those with news (G14). The first look has been
        taken when this returns."""
        try:
            context = self._sessions.begin(request, now_ms())
        except _SESSION_ERRORS as error:
            return FetchResponse((), error.code, str(error))
        reads = FetchReads(self._replicas, request, context, now_ms())
        if request.replica_id != NO_NODE:
            reads.refresh(context.to_refresh(now_ms(), self._refresh_ms))
        results = reads.read_all(is_first=True)
        if not _is_complete(request, context, results):
            wait_ms = min(request.max_wait_ms, reads.pause_ms or request.max_wait_ms)
            return ParkedFetch(self._replicas, self._sessions, request, context, wait_ms).response
        response = _told(context, reads, results)
        self._sessions.end(context)
        return response


class ParkedFetch:
    """A fetch that looks again at each news, until there is enough, or something else to answer; after `wait_ms` it
    answers with what is there, and as soon as a later request has come in its place.
    """

    __slots__ = ("_context", "_deadline_s", "_replicas", "_request", "_sessions", "_watch", "response")

    def __init__(
        self,
        replicas: ReplicaManager,
        sessions: FetchSessions,
        request: FetchRequest,
        context: FetchContext,
        wait_ms: int,
    ) -> None:
        self._replicas = replicas
        self._sessions = sessions
        self._request = request
        self._context = context
        self._watch = context.session.watch
        self._deadline_s = asyncio.get_running_loop().time() + wait_ms / 1000
        self.response: Later[FetchResponse] = Later(self._give_up)
        self._watch.call_when_woken(self._on_news, self._deadline_s)

    def _on_news(self) -> None:
        outcome: FetchResponse | Exception | None
        try:
            outcome = self._look() if self._context.is_current and self._watch.take() else self._last_look()
        except Exception as error:
            outcome = error
        if outcome is None:
            self._watch.call_when_woken(self._on_news, self._deadline_s)
        else:
            self._sessions.end(self._context)
            self.response.end(outcome)

    def _look(self) -> FetchResponse | None:
        reads = self._reads()
        # Of one byte a read shows as well whether there is enough.
        if self._request.min_bytes > 1 and not reads.has_enough():
            return None
        results = reads.read_all(is_first=False)
        is_complete = _is_complete(self._request, self._context, results)
        return _told(self._context, reads, results) if is_complete else None

    def _last_look(self) -> FetchResponse:
        try:
            self._context.check_current()
        except _SESSION_ERRORS as error:
            return FetchResponse((), error.code, str(error))
        reads = self._reads()
        return _told(self._context, reads, reads.read_all(is_first=False))

    def _reads(self) -> FetchReads:
        return FetchReads(self._replicas, self._request, self._context, now_ms())

    def _give_up(self) -> None:
        self._watch.forget(self._on_news)
        self._sessions.end(self._context)


class ListOffsetsHandler:
    """Answers ListOffsets."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    async def handle(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """One result for each partition, in order (G12); others get their turn, for there may be thousands."""
        is_follower = request.replica_id != NO_NODE
        found = [await self._describe(each, is_follower) async for each in in_turns(request.partitions)]
        return ListOffsetsResponse(tuple(found))

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
        partition = replica.partition

        def check() -> None:
            if self._replicas.get(each.topic_id, each.partition) is not replica:
                raise NotLeaderOrFollower(f"{partition.topic_partition} was opened anew; try again")
            partition.check_readable(each.current_leader_epoch)

        search = partition.find_offset(each.timestamp_ms, each.current_leader_epoch, is_follower=is_follower)
        try:
            return await result_in_turns(search, 1, check=check)
        except StorageError as error:
            raise self._replicas.on_storage_error(replica, error) from error


def _told(context: FetchContext, reads: FetchReads, results: list[FetchPartitionResult]) -> FetchResponse:
    told = context.tell(results)
    reads.record_sent(told)
    return FetchResponse(told, session_id=context.session.session_id)


def _is_complete(request: FetchRequest, context: FetchContext, results: list[FetchPartitionResult]) -> bool:
    """Whether the answer must not wait (G7)."""
    if request.max_wait_ms <= 0 or not context.session.partitions:
        return True
    return any(map(_is_urgent, results)) or sum(each.size_bytes for each in results) >= request.min_bytes


def _is_urgent(result: FetchPartitionResult) -> bool:
    """Whether the caller has to act on it, data or not."""
    return (
        result.error_code is not ErrorCode.NONE
        or result.diverging_epoch is not None
        or result.preferred_read_replica != NO_NODE
    )
