"""A client's calls to the leaders of partitions: split by leader, with a result or an error for each partition.

Retriable errors (no leader, another leader, a call that broke off) are retried with back-off and refreshed metadata
until a timeout. A silent leader is given up as soon as the metadata name another one (`call_watch`). Each API is a
`LeaderRequest`: its requests and the wording of its refusals. Invariants: all leaders are asked at once; a silent
leader, or a partition without a leader, delays no other partition; all results of one topic are of one topic id.

Left out: the streams of requests of producer and consumer, which keep their order and their sessions (`sender`,
`fetcher`); they share the metadata, the back-off and the call watch. Kafka: PartitionLeaderStrategy, AdminApiDriver.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

from rayka.client.call_watch import CallWatch, SilenceLimits
from rayka.client.metadata import ClusterMetadata, no_such_partition, topic_recreated
from rayka.client.retry import Retry
from rayka.errors import (
    ApiError,
    BrokerNotAvailable,
    ErrorCode,
    LeaderNotAvailable,
    NetworkException,
    RaykaError,
    RequestTimedOut,
    UnavailableError,
    error_for,
)
from rayka.ids import NO_NODE, TopicPartition
from rayka.ports import Network, Request
from rayka.protocol.fetch import ListOffsetsPartition, ListOffsetsPartitionResult, ListOffsetsRequest
from rayka.protocol.membership import MetadataPartition, MetadataTopic

# Partitions of one task; more would block the event loop for too long.
_AT_ONCE_MAX = 1_000

WantedT = TypeVar("WantedT")
ResultT = TypeVar("ResultT")
OnFound = Callable[[Mapping[TopicPartition, ResultT]], object]
OnRefused = Callable[[TopicPartition, RaykaError], object]
_Parts = dict[TopicPartition, Any]


class LeaderRequest(ABC, Generic[WantedT, ResultT]):
    """One API that leaders serve.

    The parts of its requests have a `topic_id`. Its responses have `partitions`: one `ResultT` for each part, in order,
    with `error_code` and `error_message`.
    """

    # After a longer silence the metadata may name another leader.
    silence_limits: ClassVar = SilenceLimits(least_s=0.1, most_s=1.0)
    # The time for an answer beyond the request's own timeout.
    grace_ms: ClassVar = 0
    # Retriable error codes of results that are not retried here.
    final_codes: ClassVar[tuple[ErrorCode, ...]] = ()

    @abstractmethod
    def part(self, topic: MetadataTopic, partition: MetadataPartition, wanted: WantedT) -> Any:
        """The part of the request for one partition."""

    @abstractmethod
    def request(self, parts: tuple[Any, ...], timeout_ms: int) -> Request[Any]:
        """The request for these parts."""

    def refusal(self, where: TopicPartition, node_id: int, message: str, cluster_name: str) -> str:
        """The message of a leader's error for a partition; names the partition once."""
        return message if message.startswith(f"{where}") else f"{where}: {message}"

    def too_late(self, problem: ApiError, cluster_name: str) -> RaykaError:
        """The error of partitions without a result in time; `problem` is the last error."""
        return problem


def _raise(topic_partition: TopicPartition, error: RaykaError) -> None:
    raise error


class LeaderCalls:
    """Calls the leaders of partitions. All methods belong to the client's loop."""

    def __init__(self, network: Network, metadata: ClusterMetadata) -> None:
        self.network = network
        self.metadata = metadata

    async def call(
        self,
        api: LeaderRequest[WantedT, ResultT],
        wanted: Mapping[TopicPartition, WantedT],
        timeout_ms: int,
        *,
        on_found: OnFound[ResultT] = lambda found: None,
        on_refused: OnRefused = _raise,
        topic_ids: Mapping[str, UUID] | None = None,
    ) -> dict[TopicPartition, ResultT]:
        """Returns one result for each partition; `on_found` gets the results as they come.

        A partition is refused with `api.too_late` if it has no result within `timeout_ms`, and at once with
        UnknownTopicOrPartition, TopicRecreated (`topic_ids` has another id of the topic), or another error that no
        retry mends. The first refusal is raised, unless `on_refused` takes the refusals.
        """
        asking = _Asking(self, api, timeout_ms, on_found, on_refused)
        return await asking.run(wanted, topic_ids or {})


class _Asking(Generic[WantedT, ResultT]):
    """One call. Each partition without a result belongs to exactly one task, which asks one leader at a time."""

    def __init__(
        self,
        calls: LeaderCalls,
        api: LeaderRequest[WantedT, ResultT],
        timeout_ms: int,
        on_found: OnFound[ResultT],
        on_refused: OnRefused,
    ) -> None:
        self._network = calls.network
        self._metadata = calls.metadata
        self._nodes = calls.metadata.nodes
        self._api = api
        self._budget = Retry(timeout_ms, self._nodes.backoff)
        self._on_found = on_found
        self._on_refused = on_refused
        self._topic_ids: dict[str, UUID] = {}
        self._found: dict[TopicPartition, ResultT] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._refreshes: dict[asyncio.Task[None], None] = {}
        self._is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls = CallWatch[_Parts](api.silence_limits, self._on_silent)

    async def run(
        self, wanted: Mapping[TopicPartition, WantedT], topic_ids: Mapping[str, UUID]
    ) -> dict[TopicPartition, ResultT]:
        self._topic_ids.update(topic_ids)
        remaining = iter(wanted.items())
        while these := dict(islice(remaining, _AT_ONCE_MAX)):
            self._start(self._tasks, self._pursue(these))
        if not wanted:
            return {}
        try:
            await self._is_over
        finally:
            left = [*self._tasks, *self._refreshes]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        return self._found

    def _start(self, tasks: "dict[asyncio.Task[None], None]", coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        tasks[task] = None
        task.add_done_callback(lambda _: self._on_done(tasks, task))

    def _on_done(self, tasks: "dict[asyncio.Task[None], None]", task: "asyncio.Task[None]") -> None:
        del tasks[task]
        error = None if task.cancelled() else task.exception()
        if self._is_over.done():
            return
        if error is not None:
            self._is_over.set_exception(error)
        elif not self._tasks:
            self._is_over.set_result(None)

    # ---- One leader ------------------------------------------------------------------------------------------------

    async def _pursue(self, wanted: dict[TopicPartition, WantedT]) -> None:
        """Asks until each partition has a result or a refusal. Partitions of another leader get a task of their own."""
        retry = Retry(self._budget.remaining_ms, self._nodes.backoff)
        while by_leader := await self._by_leader(wanted):
            (leader_id, parts), *others = by_leader.items()
            for _, theirs in others:
                self._start(self._tasks, self._pursue({tp: wanted[tp] for tp in theirs}))
            problem = await self._ask(leader_id, parts)
            wanted = {tp: wanted[tp] for tp in parts}
            if not wanted:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._budget.remaining_ms / 1000):
                    await self._metadata.refresh_leaders(sorted({tp.topic for tp in wanted}))
            if not await retry.pause():
                self._refuse(wanted, self._api.too_late(problem, self._metadata.cluster_name))
                return

    async def _by_leader(self, wanted: Mapping[TopicPartition, WantedT]) -> dict[int, _Parts]:
        """The request parts by leader; NO_NODE for partitions without one. Refuses partitions that do not exist."""
        by_leader: dict[int, _Parts] = {}
        by_topic: dict[str, dict[TopicPartition, WantedT]] = {}
        for tp, asked in wanted.items():
            by_topic.setdefault(tp.topic, {})[tp] = asked
        for name, partitions in by_topic.items():
            last = max(tp.partition for tp in partitions)
            if len(by_topic) > 1 and self._metadata.partition(name, last) is None:
                self._start(self._tasks, self._pursue(partitions))
                continue
            try:
                topic = await self._metadata.topic_with(name, last, self._budget.remaining_ms)
                self._check_id(topic)
            except RaykaError as error:
                self._refuse(partitions, error)
                continue
            for tp, asked in partitions.items():
                if not 0 <= tp.partition < len(topic.partitions):
                    self._refuse((tp,), no_such_partition(topic, tp.partition))
                    continue
                leader = topic.partitions[tp.partition]
                by_leader.setdefault(leader.leader_id, {})[tp] = self._api.part(topic, leader, asked)
        return by_leader

    def _check_id(self, topic: MetadataTopic) -> None:
        expected = self._topic_ids.get(topic.name, topic.topic_id)
        if expected != topic.topic_id:
            raise topic_recreated(topic, expected, self._metadata.cluster_name)

    async def _ask(self, leader_id: int, parts: _Parts) -> ApiError:
        """Asks once and removes found and refused partitions from `parts`; returns the error of those left."""
        if leader_id == NO_NODE:
            return LeaderNotAvailable(f"no leader of {sorted(parts)} is known")
        timeout_ms = min(self._nodes.request_timeout_ms, self._budget.remaining_ms)
        request = self._api.request(tuple(parts.values()), timeout_ms)
        try:
            call = self._network.call(leader_id, request, timeout_ms + self._api.grace_ms)
            response = await self._calls.answer(leader_id, parts, call)
        except ApiError as error:
            if not error.retriable:
                self._refuse(parts, error)
                parts.clear()
            return error
        return self._on_results(leader_id, parts, response.partitions)

    def _on_results(self, leader_id: int, parts: _Parts, results: Iterable[Any]) -> ApiError:
        news: dict[TopicPartition, ResultT] = {}
        problem: ApiError = LeaderNotAvailable("nothing was asked")
        for (tp, part), result in zip(list(parts.items()), results, strict=True):
            if result.error_code is not ErrorCode.NONE:
                said = self._api.refusal(tp, leader_id, result.error_message, self._metadata.cluster_name)
                problem = error_for(result.error_code, said)
                if not problem.retriable or result.error_code in self._api.final_codes:
                    del parts[tp]
                    self._refuse((tp,), problem)
            elif self._topic_ids.setdefault(tp.topic, part.topic_id) == part.topic_id:
                del parts[tp]
                news[tp] = result
        if news:
            self._found.update(news)
            self._on_found(news)
        return problem

    # ---- Silent leaders --------------------------------------------------------------------------------

    def _on_silent(self, node_id: int, calls: list[_Parts]) -> None:
        self._nodes.on_unanswered(node_id)
        topics = dict.fromkeys(tp.topic for parts in calls for tp in parts)
        self._start(self._refreshes, self._look_elsewhere(tuple(topics)))

    async def _look_elsewhere(self, topics: tuple[str, ...]) -> None:
        await self._metadata.refresh_leaders(topics)
        self._calls.give_up(lambda node_id, parts: not any(self._is_led_by(node_id, tp) for tp in parts))

    def _is_led_by(self, node_id: int, topic_partition: TopicPartition) -> bool:
        partition = self._metadata.partition(topic_partition.topic, topic_partition.partition)
        return partition is not None and partition.leader_id == node_id

    def _refuse(self, partitions: Iterable[TopicPartition], error: RaykaError) -> None:
        for tp in partitions:
            self._on_refused(tp, error)


# ---- Offsets by timestamp. Kafka: OffsetFetcher (G12) ----------------------------------------------------------------

_NO_ANSWER = (BrokerNotAvailable, LeaderNotAvailable, NetworkException, RequestTimedOut)


class ListOffsets(LeaderRequest[int, ListOffsetsPartitionResult]):
    """Looks up offsets by timestamp in ms; -1 is the latest offset, -2 the earliest.

    A partition whose leader did not answer in time is refused with UnavailableError.
    """

    def part(self, topic: MetadataTopic, partition: MetadataPartition, wanted: int) -> ListOffsetsPartition:
        return ListOffsetsPartition(topic.topic_id, partition.partition, wanted, partition.leader_epoch)

    def request(self, parts: tuple[Any, ...], timeout_ms: int) -> ListOffsetsRequest:
        return ListOffsetsRequest(parts)

    def too_late(self, problem: ApiError, cluster_name: str) -> RaykaError:
        if not isinstance(problem, _NO_ANSWER):
            return problem
        return UnavailableError(
            f"cluster {cluster_name!r} did not say which offsets there are: {problem}; "
            "are its brokers running? see `rayka status`"
        )


LIST_OFFSETS = ListOffsets()


async def offsets_at(
    leaders: LeaderCalls,
    partitions: Iterable[TopicPartition],
    timestamp_ms: int,
    timeout_ms: int,
    topic_ids: Mapping[str, UUID] | None = None,
) -> dict[TopicPartition, int]:
    """The offset of each partition at a timestamp, in the order of `partitions`. Raises like `LeaderCalls.call`."""
    wanted = dict.fromkeys(partitions, timestamp_ms)
    found = await leaders.call(LIST_OFFSETS, wanted, timeout_ms, topic_ids=topic_ids)
    return {tp: found[tp].offset for tp in wanted}
