"""Produce on a broker: what arrives in one turn of the event loop is appended together, in order, and acknowledged when
it is as safe as was asked for.

A small batch costs far less to append beside others than alone: there is one write, one look at the high watermark and
one wake-up of what waits for the partition. Invariants: produce requests are appended before any later request of
another kind is looked at, so the requests of one caller act in the order of their calls; each partition succeeds or
fails for itself; what was appended stays, whatever its answer; what waits for the end of the turn is bounded. Kafka:
`ReplicaManager.appendRecords` (G10, B15).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rayka.errors import ApiError, StorageError
from rayka.node.answering import Response
from rayka.node.clock import now_ms
from rayka.node.handlers.unacknowledged import (
    OpenProduce,
    ParkedAppends,
    Unacknowledged,
    refused,
    unsettled,
)
from rayka.node.replication.replica import PartitionKey, Replica, check_not_internal
from rayka.node.replication.replica_manager import ReplicaManager
from rayka.partition.partition_leader import Appended, ProduceOutcome
from rayka.protocol.produce import ACKS_NONE, ProducePartitionResult, ProduceRequest, ProduceResponse

DUE_COUNT_MAX = 128  # appended in one turn: a few milliseconds
DUE_BYTES_MAX = 1 << 20


class _Due(NamedTuple):
    """One partition of a request, to be appended."""

    produce: OpenProduce
    place: int
    records: np.ndarray


class ProduceHandler:
    """Answers Produce."""

    def __init__(self, replicas: ReplicaManager, wall_clock_ms: Callable[[], int]) -> None:
        self._replicas = replicas
        self._wall_clock_ms = wall_clock_ms
        self._due: dict[PartitionKey, list[_Due]] = {}
        self._due_count = self._due_bytes = 0
        self._end_of_turn: asyncio.Handle | None = None

    def __repr__(self) -> str:
        return f"<ProduceHandler due={self._due_count}>"

    def handle(self, request: ProduceRequest) -> Response:
        """One result for each partition."""
        if not request.partitions:
            return ProduceResponse(())
        loop = asyncio.get_running_loop()
        produce = OpenProduce(request, loop.time())
        for place, data in enumerate(request.partitions):
            due = _Due(produce, place, data.records)
            self._due.setdefault((data.topic_id, data.partition), []).append(due)
            self._due_bytes += data.records.size
        self._due_count += len(request.partitions)
        if self._due_count >= DUE_COUNT_MAX or self._due_bytes >= DUE_BYTES_MAX:
            self.append_due()
        elif self._end_of_turn is None:
            self._end_of_turn = loop.call_soon(self.append_due)
        return produce.response

    def append_due(self) -> None:
        """Appends all that has come and is not appended yet."""
        due = self._take_due()
        for key, parts in due.items():
            try:
                self._append(key, parts)
            except ApiError as error:
                for each in parts:
                    each.produce.settle(each.place, refused(self._replicas, key, error))
            except Exception as error:
                for each in parts:
                    each.produce.response.end(error)

    def abandon(self) -> None:
        """The process has ended, as far as its disk is concerned: what is not appended yet never will be."""
        self._take_due()

    def _take_due(self) -> dict[PartitionKey, list[_Due]]:
        if self._end_of_turn is not None:
            self._end_of_turn.cancel()
            self._end_of_turn = None
        due, self._due = self._due, {}
        self._due_count = self._due_bytes = 0
        return due

    def _append(self, key: PartitionKey, parts: Sequence[_Due]) -> None:
        replica = self._replicas.get(*key)
        check_not_internal(replica.partition)
        outcomes = replica.partition.as_leader().append_all(
            [(each.records, each.produce.acks) for each in parts],
            now_ms=now_ms(),
            timestamp_ms=self._wall_clock_ms(),
        )
        appended = [each for each in outcomes if isinstance(each, Appended)]
        if appended:
            traffic = replica.partition.traffic
            traffic.records_in += sum([each.required_offset - each.base_offset for each in appended])
            is_raised = appended[0].is_high_watermark_raised
            self._replicas.on_appended(replica, is_high_watermark_moved=is_raised)
        self._answer(replica, key, parts, outcomes)

    def _answer(
        self, replica: Replica, key: PartitionKey, parts: Sequence[_Due], outcomes: Sequence[ProduceOutcome]
    ) -> None:
        """What need not wait gets its result; the rest waits together."""
        traffic, log_start_offset = replica.partition.traffic, replica.partition.log.log_start_offset
        waiting: list[Unacknowledged] = []
        for part, outcome in zip(parts, outcomes, strict=True):
            if not isinstance(outcome, Appended):
                error = (
                    self._replicas.on_storage_error(replica, outcome)
                    if isinstance(outcome, StorageError)
                    else outcome
                )
                part.produce.settle(part.place, refused(self._replicas, key, error))
                continue
            traffic.bytes_in += part.records.size
            result = ProducePartitionResult(
                *key,
                base_offset=outcome.base_offset,
                log_append_time_ms=outcome.log_append_time_ms,
                log_start_offset=log_start_offset,
            )
            if part.produce.acks == ACKS_NONE:
                part.produce.settle(part.place, result)
            else:
                waiting.append(Unacknowledged(part.produce, part.place, outcome, result))
        waiting = unsettled(self._replicas, key, waiting)
        if waiting:
            ParkedAppends(self._replicas, key, waiting)
