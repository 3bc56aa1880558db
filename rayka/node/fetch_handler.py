"""Fetch and ListOffsets on a broker, for consumers and for followers.

A fetch is answered at once when it has enough, may not wait, or has an error to return (G7). Otherwise it is parked and
looks again at each news of its partitions (G8). A rate limit ends without news, so a fetch that a rate holds back waits
no longer than the rate's pause. Data is read once, for the answer; a follower's position counts at the first look (B6).

A follower reads to the log end, and its first look counts for the ISR and the high watermark (B5, B6). A consumer reads
what is committed, here or at the replica that it is sent to (G15). A follower outside the ISR gets nothing while the
throttle is exceeded (G17).

Rayka's own: a follower's partitions in whose ISR it is are read first, and it gets at most `CATCH_UP_BYTES` of the
others beside them. Acknowledgements wait until the follower has taken the whole answer.

Kafka: `ReplicaManager.fetchMessages`, `readFromLog`, `updateFollowerFetchState`, `DelayedFetch`,
`fetchOffsetForTimestamp` (G1-G9, G12, G13).
"""

import asyncio
from collections.abc import Iterable
from typing import cast

import numpy as np

from rayka.clock import now_ms
from rayka.errors import (
    ApiError,
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    NotLeaderOrFollower,
    StorageError,
)
from rayka.ids import NO_EPOCH, NO_NODE
from rayka.node.fetch_sessions import FetchContext, FetchSessions
from rayka.node.inbox import Response
from rayka.node.replica import Replica
from rayka.node.replica_manager import ReplicaManager
from rayka.node.tasks import in_turns, result_in_turns
from rayka.partition.follower_states import FollowerFetch
from rayka.partition.partition import FoundOffset, Partition
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

# Two or three milliseconds of a follower's time.
CATCH_UP_BYTES = 1 << 20
# How often in replica.lag.time.max.ms a follower's idle partitions count as fetched.
_REFRESHES_PER_LAG = 8
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

    def handle(self, request: FetchRequest) -> Response:
        """Answers with one result for each partition, in order; within a session, with those that have news (G14). The
        first look is taken when this returns.
        """
        time_ms = now_ms()
        try:
            context = self._sessions.begin(request, time_ms)
        except _SESSION_ERRORS as error:
            return FetchResponse((), error.code, str(error))
        look = FetchLook(self._replicas, request, context, time_ms)
        if request.replica_id != NO_NODE:
            look.refresh(context.to_refresh(time_ms, self._refresh_ms))
        results = look.read_all(is_first=True)
        if not look.is_complete:
            wait_ms = min(request.max_wait_ms, look.pause_ms or request.max_wait_ms)
            return ParkedFetch(self._replicas, self._sessions, request, context, wait_ms).response
        response = look.answer(results)
        self._sessions.end(context)
        return response


class ParkedFetch:
    """A fetch that looks again at each news until it has enough or an error to return. After `wait_ms`, and when a
    later request has come in its place, it answers with what is there.
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
            outcome = self._look()
        except Exception as error:
            outcome = error
        if outcome is None:
            self._watch.call_when_woken(self._on_news, self._deadline_s)
        else:
            self._sessions.end(self._context)
            self.response.end(outcome)

    def _look(self) -> FetchResponse | None:
        """The answer; None: there is not enough yet."""
        is_last = not self._context.is_current or not self._watch.take()
        if is_last:
            try:
                self._context.check_current()
            except _SESSION_ERRORS as error:
                return FetchResponse((), error.code, str(error))
        look = FetchLook(self._replicas, self._request, self._context, now_ms())
        # For one byte the read itself shows whether there is enough.
        if not is_last and self._request.min_bytes > 1 and not look.has_enough():
            return None
        results = look.read_all(is_first=False)
        return look.answer(results) if is_last or look.is_complete else None

    def _give_up(self) -> None:
        self._watch.forget(self._on_news)
        self._sessions.end(self._context)


class FetchLook:
    """One look of a request at its partitions, at one time."""

    def __init__(
        self, replicas: ReplicaManager, request: FetchRequest, context: FetchContext, now_ms: int
    ) -> None:
        self._replicas = replicas
        self._request = request
        self._context = context
        self._now_ms = now_ms
        self._follower_id = request.replica_id
        self._is_follower = request.replica_id != NO_NODE
        # A consumer with a rack may read at a follower (G15).
        self._may_read_anywhere = bool(request.rack_id) and not self._is_follower
        self._left_bytes = request.max_bytes
        # The broker bounds what a consumer gets at once (G5).
        if not self._is_follower:
            self._left_bytes = min(request.max_bytes, replicas.settings.config.fetch_max_bytes)
        # True until a batch was read: the first batch is given even if it is larger than the bounds (G6).
        self._min_one_batch = True
        # The results with data, whose sum of bytes is `_size_bytes`.
        self._given: list[tuple[Partition, FetchPartitionResult]] = []
        self._size_bytes = 0
        # True if the caller has to act on one of the results, data or not.
        self._is_urgent = False
        # After this time a partition that was held back may be read; 0: none was held back.
        self.pause_ms = 0

    @property
    def is_complete(self) -> bool:
        """True if the answer must not wait (G7)."""
        request = self._request
        return (
            self._is_urgent
            or self._size_bytes >= request.min_bytes
            or request.max_wait_ms <= 0
            or not self._context.session.partitions
        )

    def answer(self, results: list[FetchPartitionResult]) -> FetchResponse:
        """Makes the answer and counts its data; for a throttled follower that is not in sync, in its quotas too."""
        told = self._context.tell(results)
        for partition, result in self._given:
            traffic, size_bytes = partition.traffic, result.size_bytes
            if self._is_follower:
                traffic.replication_bytes_out += size_bytes
                for quota in self._quotas_of(partition):
                    quota.record(size_bytes, self._now_ms)
            else:
                traffic.bytes_out += size_bytes
                traffic.records_out += result.next_offset - self._context.fetch_offset(result)
        return FetchResponse(told, session_id=self._context.session.session_id)

    # ---- All partitions ----------------------------------------------------------------------------------------------

    def read_all(self, *, is_first: bool) -> list[FetchPartitionResult]:
        """Reads in the order of the session; for a follower, first the partitions in whose ISR it is."""
        fetches = self._context.to_read()
        if not self._is_follower or not self._context.session.has_caught_up:
            return [self._read(each, None, is_first) for each in fetches]
        in_sync: list[tuple[FetchPartition, Replica | None]] = []
        lacking: list[tuple[FetchPartition, Replica | None]] = []
        for each in fetches:
            replica = self._replicas.find((each.topic_id, each.partition))
            is_lacking = replica is not None and self._follower_id not in replica.partition.role.isr.committed
            (lacking if is_lacking else in_sync).append((each, replica))
        catch_up_bytes = min(CATCH_UP_BYTES, self._left_bytes // 2) if lacking else 0
        self._left_bytes -= catch_up_bytes
        results = [self._read(each, replica, is_first) for each, replica in in_sync]
        if lacking:
            # With the in-sync partitions' bounds, the lacking ones might never have their turn.
            self._left_bytes, self._min_one_batch = catch_up_bytes, True
            results += [self._read(each, replica, is_first) for each, replica in lacking]
        return results

    def has_enough(self) -> bool:
        """True if a parked fetch can be answered now (G8): `min_bytes` are there, or an error is."""
        missing_bytes = max(1, self._request.min_bytes)
        for fetch in self._context.due():
            try:
                partition = self._replicas.get(fetch.topic_id, fetch.partition).partition
                partition.check_readable(fetch.current_leader_epoch, any_replica=self._may_read_anywhere)
                if not self._is_follower or not self._pause_ms_of(partition):
                    missing_bytes -= partition.available_bytes(
                        fetch.fetch_offset,
                        min(missing_bytes, fetch.max_bytes),
                        is_follower=self._is_follower,
                    )
            except (ApiError, StorageError):
                # The read gives the error to the caller.
                return True
            if missing_bytes <= 0:
                return True
        return False

    def refresh(self, fetches: Iterable[FetchPartition]) -> None:
        """Records that the follower still has all of these partitions, which get no look: in Kafka every fetch tells
        the leader so (B5). A partition where something is wrong gets a look.
        """
        for fetch in fetches:
            try:
                replica = self._replicas.get(fetch.topic_id, fetch.partition)
                replica.partition.check_readable(fetch.current_leader_epoch)
                # A log that was opened anew after a full disk may end earlier.
                is_right = fetch.fetch_offset <= replica.partition.log.log_end_offset
                if is_right:
                    self._record(replica, fetch)
            except ApiError:
                is_right = False
            if not is_right:
                self._replicas.parked.wake((fetch.topic_id, fetch.partition))

    # ---- One partition -----------------------------------------------------------------------------------------------

    def _read(self, fetch: FetchPartition, replica: Replica | None, is_first: bool) -> FetchPartitionResult:
        try:
            if replica is None:
                replica = self._replicas.get(fetch.topic_id, fetch.partition)
            try:
                return self._read_replica(replica, fetch, is_first)
            except StorageError as error:
                raise self._replicas.on_storage_error(replica, error) from error
        except ApiError as error:
            self._is_urgent = True
            key = (fetch.topic_id, fetch.partition)
            leader_id, leader_epoch = self._replicas.current_leader(key, error)
            return FetchPartitionResult(
                *key, error.code, str(error), leader_id=leader_id, leader_epoch=leader_epoch
            )

    def _read_replica(self, replica: Replica, fetch: FetchPartition, is_first: bool) -> FetchPartitionResult:
        partition = replica.partition
        if self._may_read_anywhere and partition.is_leader:
            elsewhere = self._preferred_read_replica(partition, fetch)
            if elsewhere is not None:
                return elsewhere
        is_in_sync = self._is_follower and self._follower_id in partition.role.isr.committed
        pause_ms = 0
        if self._is_follower and not is_in_sync:
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
        high_watermark, size_bytes = read.high_watermark, read.size_bytes
        if self._is_follower and is_first and read.diverging_epoch is None:
            self._record(replica, fetch)
            high_watermark = partition.high_watermark
        state = partition.role.state
        result = FetchPartitionResult(
            fetch.topic_id,
            fetch.partition,
            high_watermark=high_watermark,
            log_start_offset=read.log_start_offset,
            next_offset=read.next_offset,
            leader_id=state.leader_id,
            leader_epoch=state.leader_epoch,
            diverging_epoch=read.diverging_epoch,
            # Or a slice, of which the reader gets the bytes.
            records=cast("np.ndarray", read.records),
            file_ranges=read.file_ranges,
            last_fetched_epoch=partition.log.epochs.epoch_of(read.next_offset - 1)
            if size_bytes
            else NO_EPOCH,
        )
        if read.diverging_epoch is not None:
            self._is_urgent = True
        if size_bytes:
            self._given.append((partition, result))
            self._size_bytes += size_bytes
            self._min_one_batch, self._left_bytes = False, max(0, self._left_bytes - size_bytes)
        # Only news can bring more to a reader at the end. A follower outside the ISR is looked at again: what keeps it
        # out may end without a sign (B11).
        elif self._is_follower:
            if is_in_sync and fetch.fetch_offset >= partition.log.log_end_offset:
                self._context.settle(result)
        elif fetch.fetch_offset >= partition.high_watermark:
            self._context.settle(result)
        return result

    def _preferred_read_replica(
        self, partition: Partition, fetch: FetchPartition
    ) -> FetchPartitionResult | None:
        """Sends a consumer in a rack to the replica that it should read (G15); None: it reads here."""
        partition.check_readable(fetch.current_leader_epoch)
        replica_id = partition.as_leader().preferred_read_replica(
            rack_id=self._request.rack_id, fetch_offset=fetch.fetch_offset, now_ms=self._now_ms
        )
        if replica_id == NO_NODE:
            return None
        self._is_urgent = True
        return FetchPartitionResult(
            fetch.topic_id,
            fetch.partition,
            high_watermark=partition.high_watermark,
            log_start_offset=partition.log.log_start_offset,
            next_offset=fetch.fetch_offset,
            leader_id=partition.leader_id,
            leader_epoch=partition.leader_epoch,
            preferred_read_replica=replica_id,
        )

    def _record(self, replica: Replica, fetch: FetchPartition) -> None:
        """Records that the follower has everything below its fetch offset (B5, G13)."""
        follower = FollowerFetch(
            self._follower_id, self._request.replica_epoch, fetch.fetch_offset, fetch.log_start_offset
        )
        update = replica.partition.as_leader().record_fetch(follower, now_ms=self._now_ms)
        self._replicas.on_follower_fetch(replica, update)

    # ---- Throttle ----------------------------------------------------------------------------------------------------

    def _pause_ms_of(self, partition: Partition) -> int:
        """How long the follower goes without the partition; 0: it gets what there is."""
        return max([each.pause_ms(self._now_ms) for each in self._quotas_of(partition)], default=0)

    def _quotas_of(self, partition: Partition) -> tuple[Quota, ...]:
        """The quotas that count the data for this follower (G17); none for a follower in sync."""
        if self._follower_id in partition.role.isr.committed:
            return ()
        return self._replicas.leader_quotas.of(
            partition.config.leader_replication_throttled_replicas,
            partition.topic_partition.partition,
            self._replicas.settings.node_id,
            is_added=self._follower_id in partition.role.state.adding_replicas,
        )


class ListOffsetsHandler:
    """Answers ListOffsets."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    async def handle(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """One result for each partition, in order (G12). There may be thousands, so other work gets its turn."""
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
        """Searches in slices; between two slices other work has its turn, and the replica may go."""
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
