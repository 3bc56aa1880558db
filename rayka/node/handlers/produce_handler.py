"""Produce on a broker: batches appended at once, in order, and acknowledged when they are as safe as was
asked for.

Invariants: every partition of the request is appended (or refused) before anything is awaited, so requests
of one caller are appended in the order of their calls; each partition succeeds or fails for itself; what
was appended stays, whatever its answer; a request that waits holds no records. Kafka: `ReplicaManager.appendRecords`,
`DelayedProduce` (G10, B15).
"""

import asyncio
from collections.abc import Callable, Mapping

from rayka.errors import ApiError, RequestTimedOut, StorageError
from rayka.node.answering import Response
from rayka.node.clock import now_ms
from rayka.node.handlers.parked import News, ParkedRequest, Watch
from rayka.node.replication.replica import PartitionKey, Replica, check_not_internal
from rayka.node.replication.replica_manager import ReplicaManager
from rayka.partition.partition import Partition
from rayka.partition.partition_leader import Appended
from rayka.protocol.produce import (
    ACKS_NONE,
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
)

_Waiting = dict[int, Appended]  # by place in the request


class ProduceHandler:
    """Answers Produce."""

    def __init__(self, replicas: ReplicaManager, wall_clock_ms: Callable[[], int]) -> None:
        self._replicas = replicas
        self._wall_clock_ms = wall_clock_ms

    def handle(self, request: ProduceRequest) -> Response:
        """One result for each partition; all of them are appended when this returns."""
        results, waiting = self._append_all(request)
        _settle(self._replicas, request.acks, results, waiting)
        if not waiting:
            return ProduceResponse(tuple(results))
        return _ParkedProduce(self._replicas, request.acks, request.timeout_ms, results, waiting).response

    def _append_all(self, request: ProduceRequest) -> tuple[list[ProducePartitionResult], _Waiting]:
        results: list[ProducePartitionResult] = []
        waiting: _Waiting = {}
        for place, data in enumerate(request.partitions):
            try:
                appended, result = self._append(data, request.acks)
            except ApiError as error:
                results.append(_refused(self._replicas, (data.topic_id, data.partition), error))
            else:
                results.append(result)
                if request.acks != ACKS_NONE:
                    waiting[place] = appended
        return results, waiting

    def _append(self, data: ProducePartition, acks: int) -> tuple[Appended, ProducePartitionResult]:
        replica = self._replicas.get(data.topic_id, data.partition)
        check_not_internal(replica.partition)
        try:
            appended = replica.partition.as_leader().append(
                data.records, acks, now_ms=now_ms(), timestamp_ms=self._wall_clock_ms()
            )
        except StorageError as error:
            raise self._replicas.on_storage_error(replica, error) from error
        traffic = replica.partition.traffic
        traffic.bytes_in += data.records.size
        traffic.records_in += appended.required_offset - appended.base_offset
        self._replicas.on_appended(replica, is_high_watermark_moved=appended.is_high_watermark_raised)
        return appended, _accepted(data, replica, appended)


class _CommitWatch(Watch[PartitionKey]):
    """Sleeps through appends, and through commits that do not reach what it waits for: of hundreds of requests for one
    partition each commit acknowledges a few.
    """

    __slots__ = ("_required",)

    def __init__(self, required: Mapping[PartitionKey, tuple[Partition, int]]) -> None:
        super().__init__(News.APPENDED)
        self._required = required

    def wake(self, key: PartitionKey, news: News = News.CHANGED) -> None:
        if news is News.COMMITTED:
            partition, required_offset = self._required[key]
            if partition.high_watermark < required_offset:
                return
        super().wake(key, news)


class _ParkedProduce(ParkedRequest):
    """Until each append is acknowledged, refused, or the request's time is over."""

    __slots__ = ("_acks", "_keys", "_replicas", "_results", "_timeout_ms", "_waiting")

    def __init__(
        self, replicas: ReplicaManager, acks: int, timeout_ms: int, results: list[ProducePartitionResult],
        waiting: _Waiting,
    ) -> None:  # fmt: skip
        self._replicas = replicas
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._results = results
        self._waiting = waiting
        required = {_key(results[place]): appended.required_offset for place, appended in waiting.items()}
        self._keys = list(required)
        watch = _CommitWatch({key: (replicas.get(*key).partition, required[key]) for key in required})
        replicas.parked.begin(watch)
        replicas.parked.add(watch, self._keys)
        super().__init__(watch, asyncio.get_running_loop().time() + timeout_ms / 1000)

    def look(self) -> ProduceResponse | None:
        _settle(self._replicas, self._acks, self._results, self._waiting)
        return None if self._waiting else ProduceResponse(tuple(self._results))

    def last_look(self) -> ProduceResponse:
        results, late = (
            self._results,
            f"appended, but not acknowledged within {self._timeout_ms} ms; it stays",
        )
        for place in self._waiting:
            results[place] = _refused(self._replicas, _key(results[place]), RequestTimedOut(late))
        return ProduceResponse(tuple(results))

    def end(self) -> None:
        self._replicas.parked.remove(self._watch, self._keys)


def _settle(
    replicas: ReplicaManager, acks: int, results: list[ProducePartitionResult], waiting: _Waiting
) -> None:
    """Takes out of `waiting` whatever need not wait any longer."""
    for place, appended in list(waiting.items()):
        key = _key(results[place])
        try:
            if not replicas.get(*key).partition.as_leader().is_acknowledged(appended, acks):
                continue
        except ApiError as error:
            results[place] = _refused(replicas, key, error)
        del waiting[place]


def _key(result: ProducePartitionResult) -> PartitionKey:
    return result.topic_id, result.partition


def _accepted(data: ProducePartition, replica: Replica, appended: Appended) -> ProducePartitionResult:
    return ProducePartitionResult(
        data.topic_id,
        data.partition,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.log_append_time_ms,
        log_start_offset=replica.partition.log.log_start_offset,
    )


def _refused(replicas: ReplicaManager, key: PartitionKey, error: ApiError) -> ProducePartitionResult:
    leader_id, leader_epoch = replicas.current_leader(key, error)
    return ProducePartitionResult(
        *key, error.code, str(error), leader_id=leader_id, leader_epoch=leader_epoch
    )
