"""Appends that wait until they are as safe as was asked for.

What was appended together is committed together, almost always, so it waits together: one watch, one timer and one look
for all requests of one append. Invariants: no look is missed between an append and its acknowledgement; each request is
answered by its own deadline; what waits holds no records. Kafka: `DelayedProduce` (B15).
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from rayka.errors import ApiError, RecordsRefused, RequestTimedOut
from rayka.node.handlers.parked import News, Watch
from rayka.node.replication.replica import PartitionKey
from rayka.node.replication.replica_manager import ReplicaManager
from rayka.partition.partition import Partition
from rayka.partition.partition_leader import Appended
from rayka.protocol.later import Later
from rayka.protocol.produce import ProducePartitionResult, ProduceRequest, ProduceResponse, RecordError


class OpenProduce:
    """A request that is not answered yet: the results of its partitions, as far as they are known."""

    __slots__ = ("_results", "_unsettled_count", "acks", "deadline_s", "response", "timeout_ms")

    def __init__(self, request: ProduceRequest, now_s: float) -> None:
        self._unsettled_count = len(request.partitions)
        self._results: list[ProducePartitionResult | None] = [None] * self._unsettled_count
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        self.deadline_s = now_s + request.timeout_ms / 1000
        self.response: Later[ProduceResponse] = Later()

    def __repr__(self) -> str:
        return f"<OpenProduce unsettled={self._unsettled_count} of {len(self._results)}>"

    def settle(self, place: int, result: ProducePartitionResult) -> None:
        """The result of the partition at this place; the last one answers the request."""
        self._results[place] = result
        self._unsettled_count -= 1
        if not self._unsettled_count:
            self.response.end(ProduceResponse(tuple(self._results)))  # type: ignore[arg-type]  # none is missing


class Unacknowledged(NamedTuple):
    """One partition of a request, appended; `result` is what is answered once that is acknowledged."""

    produce: OpenProduce
    place: int
    appended: Appended
    result: ProducePartitionResult


class _CommitWatch(Watch[PartitionKey]):
    """Sleeps through appends, and through commits that do not reach what it waits for."""

    __slots__ = ("_partition", "required_offset")

    def __init__(self, partition: Partition) -> None:
        super().__init__(News.APPENDED)
        self._partition = partition
        self.required_offset = 0

    def wake(self, key: PartitionKey, news: News = News.CHANGED) -> None:
        if news is not News.COMMITTED or self._partition.high_watermark >= self.required_offset:
            super().wake(key, news)


class ParkedAppends:
    """What was appended to one partition together, until each request of it is acknowledged, refused, or late."""

    __slots__ = ("_key", "_replicas", "_waiting", "_watch")

    def __init__(
        self, replicas: ReplicaManager, key: PartitionKey, appends: Sequence[Unacknowledged]
    ) -> None:
        self._replicas = replicas
        self._key = key
        self._waiting = appends
        self._watch = _CommitWatch(replicas.get(*key).partition)
        replicas.parked.begin(self._watch)
        replicas.parked.add(self._watch, (key,))
        self._wait()

    def __repr__(self) -> str:
        return f"<ParkedAppends {len(self._waiting)}>"

    def _wait(self) -> None:
        self._watch.required_offset = min([each.appended.required_offset for each in self._waiting])
        self._watch.call_when_woken(self._on_news, min([each.produce.deadline_s for each in self._waiting]))

    def _on_news(self) -> None:
        try:
            self._watch.take()
            waiting = unsettled(self._replicas, self._key, self._waiting)
        except Exception as error:
            for each in self._waiting:
                each.produce.response.end(error)
            waiting = []
        self._waiting = self._not_late(waiting)
        if self._waiting:
            self._wait()
        else:
            self._replicas.parked.remove(self._watch, (self._key,))

    def _not_late(self, waiting: Sequence[Unacknowledged]) -> Sequence[Unacknowledged]:
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
    """Those that have to wait; the others get their results."""
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
    """What is answered of a partition that this error is about."""
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
