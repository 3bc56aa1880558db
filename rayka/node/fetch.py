"""Fetch and ListOffsets on a broker.

A fetch is answered at once when it has enough, may not wait, or has an error to tell (G7); otherwise it is
parked and looks again whenever one of its partitions has news (G8). What it is given is read at the end,
once. Kafka: `ReplicaManager. fetchMessages`, `DelayedFetch`, `fetchOffsetForTimestamp` (G1-G9, G12).
"""

import asyncio
from uuid import UUID

import numpy as np

from rayka.errors import ApiError, ErrorCode, StorageError
from rayka.node.replica_manager import ReplicaManager
from rayka.protocol.fetch import (
    NO_RECORDS,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
)


class FetchHandler:
    """Answers Fetch. `max_bytes` is the broker's own bound of a response (G5)."""

    def __init__(self, replicas: ReplicaManager, max_bytes: int) -> None:
        self._replicas = replicas
        self._max_bytes = max_bytes

    async def handle(self, request: FetchRequest) -> FetchResponse:
        """One result for each partition, in order."""
        results = self._read_all(request)
        if _is_complete(request, results):
            return FetchResponse(tuple(results))
        deadline_s = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        keys = [(each.topic_id, each.partition) for each in request.partitions]
        with self._replicas.parked.watch(keys) as watch:
            while await watch.wait(deadline_s):
                if self._has_enough(request):
                    break
        return FetchResponse(tuple(self._read_all(request)))

    def _read_all(self, request: FetchRequest) -> list[FetchPartitionResult]:
        """Up to the bounds, in request order; the first batch of the first partition that has one is given
        anyway (G6)."""
        left_bytes, min_one_batch = min(request.max_bytes, self._max_bytes), True
        results = []
        for fetch in request.partitions:
            result = self._read(fetch, left_bytes, min_one_batch, request.local_directory_ids)
            size_bytes = _size_bytes(result)
            if size_bytes:
                min_one_batch, left_bytes = False, max(0, left_bytes - size_bytes)
            results.append(result)
        return results

    def _read(
        self, fetch: FetchPartition, max_bytes: int, min_one_batch: bool, local_ids: tuple[UUID, ...]
    ) -> FetchPartitionResult:
        try:
            replica = self._replicas.get(fetch.topic_id, fetch.partition)
            partition = replica.partition
            try:
                read = partition.read(
                    fetch,
                    max_bytes=max_bytes,
                    min_one_batch=min_one_batch,
                    as_file_ranges=replica.directory.directory_id in local_ids,
                )
            except StorageError as error:
                raise self._replicas.on_storage_error(replica, error) from error
        except ApiError as error:
            return FetchPartitionResult(fetch.topic_id, fetch.partition, error.code, str(error))
        return FetchPartitionResult(
            fetch.topic_id,
            fetch.partition,
            high_watermark=read.high_watermark,
            last_stable_offset=read.high_watermark,
            log_start_offset=read.log_start_offset,
            next_offset=read.next_offset,
            leader_id=partition.leader_id,
            leader_epoch=partition.leader_epoch,
            diverging_epoch=read.diverging_epoch,
            records=np.frombuffer(read.records, dtype=np.uint8) if read.records else NO_RECORDS,
            file_ranges=read.file_ranges,
        )

    def _has_enough(self, request: FetchRequest) -> bool:
        """Whether a parked fetch is to be answered now (G8): min_bytes are there, or something is wrong."""
        found_bytes = 0
        for fetch in request.partitions:
            try:
                partition = self._replicas.get(fetch.topic_id, fetch.partition).partition
                partition.check_readable(fetch.current_leader_epoch)
                found_bytes += partition.available_bytes(fetch.fetch_offset, fetch.max_bytes)
            except (ApiError, StorageError):
                return True  # reading it gives the error to the caller
            if found_bytes >= max(1, request.min_bytes):
                return True
        return False


class ListOffsetsHandler:
    """Answers ListOffsets."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def handle(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """One result for each partition, in order (G12)."""
        return ListOffsetsResponse(tuple(map(self._find, request.partitions)))

    def _find(self, each: ListOffsetsPartition) -> ListOffsetsPartitionResult:
        try:
            replica = self._replicas.get(each.topic_id, each.partition)
            try:
                found = replica.partition.find_offset(each.timestamp_ms, each.current_leader_epoch)
            except StorageError as error:
                raise self._replicas.on_storage_error(replica, error) from error
        except ApiError as error:
            return ListOffsetsPartitionResult(each.topic_id, each.partition, error.code, str(error))
        return ListOffsetsPartitionResult(
            each.topic_id,
            each.partition,
            timestamp_ms=found.timestamp_ms,
            offset=found.offset,
            leader_epoch=found.leader_epoch,
        )


def _is_complete(request: FetchRequest, results: list[FetchPartitionResult]) -> bool:
    """Whether the answer must not wait (G7)."""
    if request.max_wait_ms <= 0 or not results:
        return True
    if any(each.error_code is not ErrorCode.NONE or each.diverging_epoch for each in results):
        return True
    return sum(map(_size_bytes, results)) >= request.min_bytes


def _size_bytes(result: FetchPartitionResult) -> int:
    return int(result.records.size) + sum(each.size_bytes for each in result.file_ranges)
