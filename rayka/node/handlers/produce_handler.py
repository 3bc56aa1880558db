"""Produce on a broker: batches appended at once, in order, and acknowledged when they are as safe as was
asked for.

Invariants: every partition of the request is appended (or refused) before anything is awaited, so requests
of one caller are appended in the order of their calls; each partition succeeds or fails for itself; what
was appended stays, whatever its answer; a request that waits holds no records. Kafka: `ReplicaManager.appendRecords`,
`DelayedProduce` (G10, B15).
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rayka.errors import ApiError, RequestTimedOut, StorageError
from rayka.node.clock import now_ms
from rayka.node.handlers.parked import News, Watch
from rayka.node.replication.replica import PartitionKey, Replica, check_not_internal
from rayka.node.replication.replica_manager import ReplicaManager
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

    def handle(self, request: ProduceRequest) -> ProduceResponse | Coroutine[Any, Any, ProduceResponse]:
        """One result for each partition; all of them are appended when this returns."""
        results, waiting = self._append_all(request)
        self._answer(request.acks, waiting, results)
        if not waiting:
            return ProduceResponse(tuple(results))
        watch = self._replicas.parked.new_watch(News.APPENDED)
        self._replicas.parked.add(watch, [_key(results[place]) for place in waiting])
        return self._wait(request.acks, request.timeout_ms, waiting, results, watch)

    def _append_all(self, request: ProduceRequest) -> tuple[list[ProducePartitionResult], _Waiting]:
        results: list[ProducePartitionResult] = []
        waiting: _Waiting = {}
        for place, data in enumerate(request.partitions):
            try:
                appended, result = self._append(data, request.acks)
            except ApiError as error:
                results.append(_refused((data.topic_id, data.partition), error))
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
        self._replicas.on_appended(replica, is_high_watermark_moved=appended.is_high_watermark_raised)
        return appended, _accepted(data, replica, appended)

    async def _wait(
        self, acks: int, timeout_ms: int, waiting: _Waiting, results: list[ProducePartitionResult],
        watch: Watch[PartitionKey],
    ) -> ProduceResponse:  # fmt: skip
        """Until each append is acknowledged, refused, or the request's time is over."""
        keys = [_key(results[place]) for place in waiting]
        deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        try:
            while waiting and await watch.wait(deadline_s):
                self._answer(acks, waiting, results)
        finally:
            self._replicas.parked.remove(watch, keys)
        for place in waiting:
            timed_out = RequestTimedOut(f"appended, but not acknowledged within {timeout_ms} ms; it stays")
            results[place] = _refused(_key(results[place]), timed_out)
        return ProduceResponse(tuple(results))

    def _answer(self, acks: int, waiting: _Waiting, results: list[ProducePartitionResult]) -> None:
        """Takes out of `waiting` whatever need not wait any longer."""
        for place, appended in list(waiting.items()):
            key = _key(results[place])
            try:
                if not self._replicas.get(*key).partition.as_leader().is_acknowledged(appended, acks):
                    continue
            except ApiError as error:
                results[place] = _refused(key, error)
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


def _refused(key: PartitionKey, error: ApiError) -> ProducePartitionResult:
    return ProducePartitionResult(*key, error.code, str(error))
