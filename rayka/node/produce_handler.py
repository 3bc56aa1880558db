"""Produce on a broker: what arrives in one turn of the event loop is appended together, in order, and acknowledged when
it is as safe as the producer asks.

A small batch costs far less to append beside others than alone: the batches share one write, one look at the high
watermark and one wake-up of the partition's waiting requests. Appends of one turn are committed together, almost
always, so they also wait together: one watch, one timer and one look.

Invariants:

- Produce requests are appended before any later request of another kind is looked at, so the requests of one caller act
  in the order of their calls.
- Each partition succeeds or fails for itself. An append stays, whatever its answer.
- The requests that wait for the end of the turn are bounded.
- No look is missed between an append and its acknowledgement; each request is answered by its own deadline; a request
  that waits holds no records.

Kafka: `ReplicaManager.appendRecords`, `DelayedProduce` (G10, B15); for producer ids `RPCProducerIdManager` (C12).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rayka.clock import now_ms
from rayka.config.broker_config import BrokerConfig
from rayka.errors import ApiError, RecordsRefused, RequestTimedOut, StorageError
from rayka.node.broker_lifecycle import BrokerLifecycle
from rayka.node.inbox import Response
from rayka.node.parked import News, Watch
from rayka.node.replica import check_not_internal
from rayka.node.replica_manager import ReplicaManager
from rayka.node.tasks import in_turns
from rayka.partition.partition import Partition
from rayka.partition.partition_leader import Appended
from rayka.protocol.fetch import PartitionKey
from rayka.protocol.later import Later
from rayka.protocol.produce import (
    ACKS_NONE,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    RecordError,
)

# Appended in one turn: a few milliseconds.
DUE_COUNT_MAX = 128
DUE_BYTES_MAX = 1 << 20


class OpenProduce:
    """A request that is not answered yet, with the results of its partitions so far."""

    __slots__ = ("_results", "_unsettled_count", "acks", "deadline_s", "response", "timeout_ms")

    def __init__(self, request: ProduceRequest, now_s: float) -> None:
        # In the order of the request; None: not known yet. `_unsettled_count` is the number of Nones.
        self._results: list[ProducePartitionResult | None] = [None] * len(request.partitions)
        self._unsettled_count = len(request.partitions)
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        self.deadline_s = now_s + request.timeout_ms / 1000
        self.response: Later[ProduceResponse] = Later()

    def settle(self, place: int, result: ProducePartitionResult) -> None:
        """Sets the result of the partition at this place; the last one answers the request."""
        self._results[place] = result
        self._unsettled_count -= 1
        if not self._unsettled_count:
            self.response.end(ProduceResponse(tuple(self._results)))  # type: ignore[arg-type]  # none is missing


class _Due(NamedTuple):
    """One partition of a request, not appended yet."""

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

    def handle(self, request: ProduceRequest) -> Response:
        """Answers with one result for each partition, once the last of them is settled."""
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
        """Appends all records that have come and are not appended yet."""
        if not self._due_count:
            return
        for key, parts in self._take_due().items():
            try:
                self._append(key, parts)
            except ApiError as error:
                for each in parts:
                    each.produce.settle(each.place, refused(self._replicas, key, error))
            except Exception as error:
                for each in parts:
                    each.produce.response.end(error)

    def abandon(self) -> None:
        """Drops the records that are not appended yet: the process has ended, as far as its disk is concerned."""
        self._take_due()

    def _take_due(self) -> dict[PartitionKey, list[_Due]]:
        if self._end_of_turn is not None:
            self._end_of_turn.cancel()
            self._end_of_turn = None
        due, self._due = self._due, {}
        self._due_count = self._due_bytes = 0
        return due

    def _append(self, key: PartitionKey, parts: Sequence[_Due]) -> None:
        """Appends the records of one partition. Refused ones are answered; the others wait together."""
        replica = self._replicas.get(*key)
        partition = replica.partition
        check_not_internal(partition)
        outcomes = partition.as_leader().append_all(
            [(each.records, each.produce.acks) for each in parts],
            now_ms=now_ms(),
            timestamp_ms=self._wall_clock_ms(),
        )
        appended = [each for each in outcomes if isinstance(each, Appended)]
        traffic = partition.traffic
        if appended:
            traffic.records_in += sum([each.required_offset - each.base_offset for each in appended])
            is_raised = appended[0].is_high_watermark_raised
            self._replicas.on_appended(replica, is_high_watermark_moved=is_raised)
        log_start_offset = partition.log.log_start_offset
        waiting: list[Unacknowledged] = []
        for part, outcome in zip(parts, outcomes, strict=True):
            if not isinstance(outcome, Appended):
                error: ApiError | StorageError = outcome
                if isinstance(error, StorageError):
                    error = self._replicas.on_storage_error(replica, error)
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
        if waiting:
            waiting = unsettled(self._replicas, key, waiting)
        if waiting:
            ParkedAppends(self._replicas, key, partition, waiting)


# ---- Waiting for the acknowledgement ---------------------------------------------------------------------------------


class Unacknowledged(NamedTuple):
    """One partition of a request, appended."""

    produce: OpenProduce
    place: int
    appended: Appended
    # The answer, once the append is acknowledged.
    result: ProducePartitionResult


class ParkedAppends(Watch[PartitionKey]):
    """Appends of one turn to one partition, until each of them is acknowledged, refused, or late.

    Sleeps through appends, and through commits that do not reach any of its offsets.
    """

    __slots__ = ("_key", "_partition", "_replicas", "_required_offset", "_waiting")

    def __init__(
        self,
        replicas: ReplicaManager,
        key: PartitionKey,
        partition: Partition,
        appends: Sequence[Unacknowledged],
    ) -> None:
        super().__init__(News.APPENDED)
        self._replicas = replicas
        self._key = key
        self._partition = partition
        self._waiting = appends
        # The least high watermark that settles one of the appends.
        self._required_offset = 0
        replicas.parked.add(self, (key,))
        self._wait()

    def wake(self, key: PartitionKey, news: News = News.CHANGED) -> None:
        if news is not News.COMMITTED or self._partition.high_watermark >= self._required_offset:
            self.is_woken = True
            self.release()

    def _wait(self) -> None:
        self._required_offset = min([each.appended.required_offset for each in self._waiting])
        self.call_when_woken(self._on_news, min([each.produce.deadline_s for each in self._waiting]))

    def _on_news(self) -> None:
        waiting: Sequence[Unacknowledged]
        try:
            self.take()
            waiting = unsettled(self._replicas, self._key, self._waiting)
        except Exception as error:
            for each in self._waiting:
                each.produce.response.end(error)
            waiting = []
        self._waiting = self._not_late(waiting) if waiting else waiting
        if self._waiting:
            self._wait()
        else:
            self._replicas.parked.remove(self, (self._key,))
            self.close()

    def _not_late(self, waiting: Sequence[Unacknowledged]) -> Sequence[Unacknowledged]:
        """Answers the appends whose deadline has passed; returns the others."""
        now_s = asyncio.get_running_loop().time()
        late = [each for each in waiting if each.produce.deadline_s <= now_s]
        for each in late:
            error = RequestTimedOut(
                f"appended, but not acknowledged within {each.produce.timeout_ms} ms; it stays"
            )
            each.produce.settle(each.place, refused(self._replicas, self._key, error))
        return [each for each in waiting if each.produce.deadline_s > now_s] if late else waiting


def unsettled(
    replicas: ReplicaManager, key: PartitionKey, appends: Sequence[Unacknowledged]
) -> list[Unacknowledged]:
    """Gives their results to the appends that are acknowledged or refused by now; returns the others."""
    waiting: list[Unacknowledged] = []
    try:
        leader = replicas.get(*key).partition.as_leader()
    except ApiError as error:
        for each in appends:
            each.produce.settle(each.place, refused(replicas, key, error))
        return waiting
    for each in appends:
        try:
            if leader.is_acknowledged(each.appended, each.produce.acks):
                each.produce.settle(each.place, each.result)
            else:
                waiting.append(each)
        except ApiError as error:
            each.produce.settle(each.place, refused(replicas, key, error))
    return waiting


def refused(replicas: ReplicaManager, key: PartitionKey, error: ApiError) -> ProducePartitionResult:
    """The answer for a partition that the error is about."""
    leader_id, leader_epoch = replicas.current_leader(key, error)
    refusals = error.refusals if isinstance(error, RecordsRefused) else {}
    return ProducePartitionResult(
        *key,
        error.code,
        str(error),
        leader_id=leader_id,
        leader_epoch=leader_epoch,
        record_errors=tuple(RecordError(index, each.code, str(each)) for index, each in refusals.items()),
    )


# ---- Producer ids ----------------------------------------------------------------------------------------------------


class ProducerIdHandler:
    """Answers InitProducerId from blocks of ids that the controller gives this broker (C12).

    Invariants: an id is handed out once; one block is requested at a time, and producers that need an id until then
    wait for that block. The rest of a block is never used once the broker has ended.
    """

    def __init__(self, lifecycle: BrokerLifecycle) -> None:
        self._lifecycle = lifecycle
        self._free = range(0)
        self._one_at_a_time = asyncio.Lock()

    async def handle(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """Gives a new id. Raises BrokerNotAvailable while the controller gives none."""
        async with self._one_at_a_time:
            if not self._free:
                self._free = await self._lifecycle.allocate_producer_ids()
            producer_id, self._free = self._free[0], self._free[1:]
        return InitProducerIdResponse(producer_id, producer_epoch=0)


async def expire_producers(replicas: ReplicaManager, config: BrokerConfig) -> None:
    """Lets every partition forget the producers that have been silent for too long, for ever (C8)."""

    def weight_of(partition: Partition) -> int:
        return 1 + len(partition.log.producers)

    while True:
        await asyncio.sleep(config.producer_id_expiration_check_interval_ms / 1000)
        async for partition in in_turns(replicas.partitions, weigh=weight_of):
            partition.log.producers.expire(now_ms(), config.producer_id_expiration_ms)
