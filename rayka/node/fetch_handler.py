"""Fetch and ListOffsets on a broker, for consumers and for followers.

A fetch is answered at once when it has enough, may not wait, or has an error to return (G7); otherwise it is
parked and looks again whenever one of its partitions has news (G8). One that was held back by a rate is parked no
longer than that has to wait, for no news comes when it may go on. What it is given is read at the end,
once; a follower's position counts when it is looked at first (B6). Kafka: `ReplicaManager.fetchMessages`,
`DelayedFetch`, `fetchOffsetForTimestamp` (G1-G9, G12).
"""

import asyncio
from collections.abc import Iterable
from typing import cast

import numpy as np

from rayka.errors import (
    ApiError,
    ErrorCode,
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    NotLeaderOrFollower,
    StorageError,
)
from rayka.ids import NO_EPOCH, NO_NODE
from rayka.node.clock import now_ms
from rayka.node.fetch_sessions import FetchContext, FetchSessions
from rayka.node.inbox import Response
from rayka.node.replica import PartitionKey, Replica
from rayka.node.replica_manager import ReplicaManager
from rayka.node.tasks import in_turns, result_in_turns
from rayka.partition.follower_states import FollowerFetch
from rayka.partition.partition import FoundOffset, Partition, ReadResult
from rayka.partition.quota import Quota
from rayka.protocol.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from rayka.protocol.later import Later

# What a fetch reads of each partition: up to its bounds, by the rules for its kind of reader.
#
# One `FetchReads` is one look at the partitions of one request. A follower reads to the log end, and its first look
# counts for the ISR and the high watermark (B5, B6); a consumer reads what is committed, here or at the replica that it
# is sent to (G15). A follower outside the ISR gets nothing while the throttle is exceeded (G17). Kafka:
# `ReplicaManager. readFromLog`, `updateFollowerFetchState` (G1-G6, G13).
#
# Rayka's own: of a follower's partitions those are read first in whose ISR it is, and beside them it gets at most
# `CATCH_UP_BYTES` of what it has yet to catch up with. Acknowledgements wait until it has taken the whole answer.


CATCH_UP_BYTES = 1 << 20  # two or three milliseconds of a follower's time


class FetchReads:
    """One look of a request at its partitions, at one time."""

    def __init__(
        self, replicas: ReplicaManager, request: FetchRequest, context: FetchContext, now_ms: int
    ) -> None:
        self._replicas = replicas
        self._request = request
        self._context = context
        self._now_ms = now_ms
        self._is_follower = request.replica_id != NO_NODE
        self._left_bytes = request.max_bytes
        if not self._is_follower:  # the broker bounds what a consumer gets at once (G5)
            self._left_bytes = min(request.max_bytes, replicas.settings.config.fetch_max_bytes)
        self._min_one_batch = True
        self.pause_ms = 0  # after which something that was held back may be given; 0: nothing was held back

    def read_all(self, *, is_first: bool) -> list[FetchPartitionResult]:
        """In the order of the session, for a follower those first in whose ISR it is. The first batch of the first
        partition that has one is given anyway (G6).
        """
        fetches = self._context.to_read()
        if not self._is_follower or not self._context.session.has_caught_up:
            return [self._read(each, is_first=is_first) for each in fetches]
        in_sync: list[FetchPartition] = []
        lacking: list[FetchPartition] = []
        for each in fetches:
            (lacking if self._is_out_of_sync(each) else in_sync).append(each)
        catch_up_bytes = min(CATCH_UP_BYTES, self._left_bytes // 2) if lacking else 0
        self._left_bytes -= catch_up_bytes
        results = [self._read(each, is_first=is_first) for each in in_sync]
        self._left_bytes, self._min_one_batch = catch_up_bytes, True  # else they might never have their turn
        return results + [self._read(each, is_first=is_first) for each in lacking]

    def has_enough(self) -> bool:
        """Whether a parked fetch is to be answered now (G8): min_bytes are there, or something is wrong."""
        missing_bytes = max(1, self._request.min_bytes)
        for fetch in self._context.due():
            try:
                replica = self._replicas.get(fetch.topic_id, fetch.partition)
                partition = replica.partition
                partition.check_readable(fetch.current_leader_epoch, any_replica=self._may_read_anywhere)
                if not self._pause_ms_of(partition):
                    missing_bytes -= partition.available_bytes(
                        fetch.fetch_offset,
                        min(missing_bytes, fetch.max_bytes),
                        is_follower=self._is_follower,
                    )
            except (ApiError, StorageError):
                return True  # reading it gives the error to the caller
            if missing_bytes <= 0:
                return True
        return False

    def refresh(self, fetches: Iterable[FetchPartition]) -> None:
        """The follower still has all of these, which are not looked at; every fetch tells Kafka's leader so (B5)."""
        for fetch in fetches:
            if not self._is_refreshed(fetch):
                self._replicas.parked.wake((fetch.topic_id, fetch.partition))  # a look will tell

    def _is_refreshed(self, fetch: FetchPartition) -> bool:
        """Not where something is wrong: a log that was opened anew after a full disk may end earlier, for example."""
        try:
            replica = self._replicas.get(fetch.topic_id, fetch.partition)
            replica.partition.check_readable(fetch.current_leader_epoch)
            if fetch.fetch_offset > replica.partition.log.log_end_offset:
                return False
            self._record(replica, fetch)
        except ApiError:
            return False
        return True

    def record_sent(self, results: tuple[FetchPartitionResult, ...]) -> None:
        """Counts what was given, and apart from that what out-of-sync followers of throttled partitions were given."""
        for each in results:
            size_bytes = each.size_bytes
            if size_bytes:
                self._count(self._replicas.get(each.topic_id, each.partition).partition, each, size_bytes)

    def _count(self, partition: Partition, given: FetchPartitionResult, size_bytes: int) -> None:
        traffic = partition.traffic
        if not self._is_follower:
            traffic.bytes_out += size_bytes
            traffic.records_out += given.next_offset - self._context.fetch_offset(given)
            return
        traffic.replication_bytes_out += size_bytes
        for each in self._counting(partition):
            each.record(size_bytes, self._now_ms)

    def _is_out_of_sync(self, fetch: FetchPartition) -> bool:
        """Whether no acknowledgement waits for this follower."""
        replica = self._replicas.find((fetch.topic_id, fetch.partition))
        return replica is not None and self._request.replica_id not in replica.partition.isr

    # ---- One partition -------------------------------------------------------------------------------------

    def _read(self, fetch: FetchPartition, *, is_first: bool) -> FetchPartitionResult:
        try:
            replica = self._replicas.get(fetch.topic_id, fetch.partition)
            try:
                return self._read_replica(replica, fetch, is_first=is_first)
            except StorageError as error:
                raise self._replicas.on_storage_error(replica, error) from error
        except ApiError as error:
            return self._refused((fetch.topic_id, fetch.partition), error)

    def _refused(self, key: PartitionKey, error: ApiError) -> FetchPartitionResult:
        leader_id, leader_epoch = self._replicas.current_leader(key, error)
        return FetchPartitionResult(
            *key, error.code, str(error), leader_id=leader_id, leader_epoch=leader_epoch
        )

    def _read_replica(
        self, replica: Replica, fetch: FetchPartition, *, is_first: bool
    ) -> FetchPartitionResult:
        partition = replica.partition
        preferred = self._preferred_read_replica(partition, fetch)
        if preferred != NO_NODE:
            nothing = ReadResult(partition.high_watermark, partition.log.log_start_offset, fetch.fetch_offset)
            return _result(fetch, partition, nothing, preferred)
        pause_ms = self._pause_ms_of(partition)
        if pause_ms:
            self.pause_ms = min(self.pause_ms or pause_ms, pause_ms)
        read = partition.read(
            fetch,
            max_bytes=0 if pause_ms else self._left_bytes,
            min_one_batch=self._min_one_batch and not pause_ms,
            as_file_ranges=replica.directory.directory_id in self._request.local_directory_ids,
            is_follower=self._is_follower,
            any_replica=self._may_read_anywhere,
        )
        if read.size_bytes:
            self._min_one_batch, self._left_bytes = False, max(0, self._left_bytes - read.size_bytes)
        if self._is_follower and is_first and read.diverging_epoch is None:
            self._record(replica, fetch)
            read = read._replace(high_watermark=partition.high_watermark)
        result = _result(fetch, partition, read)
        if self._is_at_end(partition, fetch):
            self._context.settle(result)
        return result

    def _preferred_read_replica(self, partition: Partition, fetch: FetchPartition) -> int:
        """Where a consumer in a rack is to read instead; -1: here (G15)."""
        if self._is_follower or not self._request.rack_id or not partition.is_leader:
            return NO_NODE
        partition.check_readable(fetch.current_leader_epoch)
        return partition.as_leader().preferred_read_replica(
            rack_id=self._request.rack_id, fetch_offset=fetch.fetch_offset, now_ms=self._now_ms
        )

    @property
    def _may_read_anywhere(self) -> bool:
        return bool(self._request.rack_id) and not self._is_follower

    def _record(self, replica: Replica, fetch: FetchPartition) -> None:
        """The follower has what lies below its fetch offset (B5, G13)."""
        follower = FollowerFetch(
            self._request.replica_id, self._request.replica_epoch, fetch.fetch_offset, fetch.log_start_offset
        )
        update = replica.partition.as_leader().record_fetch(follower, now_ms=self._now_ms)
        self._replicas.on_follower_fetch(replica, update)

    def _is_at_end(self, partition: Partition, fetch: FetchPartition) -> bool:
        """Whether only news can bring more. A follower outside the ISR is looked at again: what keeps it out may end
        without a sign (B11).
        """
        if not self._is_follower:
            return fetch.fetch_offset >= partition.high_watermark
        is_in_sync = self._request.replica_id in partition.isr
        return is_in_sync and fetch.fetch_offset >= partition.log.log_end_offset

    # ---- Throttle ------------------------------------------------------------------------------------------

    def _pause_ms_of(self, partition: Partition) -> int:
        """How long the follower goes without the partition; 0: it gets what there is."""
        if not self._is_follower:
            return 0
        return max((each.pause_ms(self._now_ms) for each in self._counting(partition)), default=0)

    def _counting(self, partition: Partition) -> tuple[Quota, ...]:
        """The quotas that what the follower is given of the partition counts for (G17)."""
        follower_id = self._request.replica_id
        if follower_id in partition.isr:
            return ()
        return self._replicas.leader_quotas.of(
            partition.config.leader_replication_throttled_replicas,
            partition.topic_partition.partition,
            self._replicas.settings.node_id,
            is_added=follower_id in partition.role.state.adding_replicas,
        )


def _result(
    fetch: FetchPartition, partition: Partition, read: ReadResult, preferred: int = NO_NODE
) -> FetchPartitionResult:
    return FetchPartitionResult(
        fetch.topic_id,
        fetch.partition,
        high_watermark=read.high_watermark,
        log_start_offset=read.log_start_offset,
        next_offset=read.next_offset,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        diverging_epoch=read.diverging_epoch,
        records=cast(np.ndarray, read.records),  # or a slice, of which the reader gets the bytes
        file_ranges=read.file_ranges,
        preferred_read_replica=preferred,
        last_fetched_epoch=partition.log.epochs.epoch_of(read.next_offset - 1)
        if read.size_bytes
        else NO_EPOCH,
    )


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
