"""Asks the leaders for offsets: earliest, latest, or the first at or after a time. Kafka: OffsetFetcher (G12).

Invariants: all leaders are asked at once, and one that is silent, or a partition that has no leader, holds up no other
partition; the offsets of one topic are all of one topic id.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from random import Random
from typing import Any
from uuid import UUID

from rayka.client.bootstrap import ClientConfig
from rayka.client.call_watch import CallWatch, Patience
from rayka.client.metadata import ClusterMetadata, NoSuchTopic, topic_recreated
from rayka.client.retry import Backoff, Retry
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
from rayka.ports import Network
from rayka.protocol.cluster import MetadataTopic
from rayka.protocol.fetch import ListOffsetsPartition, ListOffsetsPartitionResult, ListOffsetsRequest

_NO_ANSWER = (BrokerNotAvailable, LeaderNotAvailable, NetworkException, RequestTimedOut)
_PATIENCE = Patience(least_s=0.1, most_s=1.0)  # without an answer for so long, the metadata are refreshed
_AT_ONCE_MAX = 1_000  # partitions: more would block the event loop for too long

OnFound = Callable[[Mapping[TopicPartition, ListOffsetsPartitionResult]], object]
OnRefused = Callable[[TopicPartition, RaykaError], object]
_Queries = dict[TopicPartition, ListOffsetsPartition]


def _ignore(found: Mapping[TopicPartition, ListOffsetsPartitionResult]) -> None:
    pass


def _raise(topic_partition: TopicPartition, error: RaykaError) -> None:
    raise error


class OffsetLookup:
    """Offsets of partitions, from the brokers that lead them, retried within a timeout."""

    def __init__(
        self, network: Network, metadata: ClusterMetadata, config: ClientConfig, random: Random
    ) -> None:
        self.network = network
        self.metadata = metadata
        self.request_timeout_ms = config.request_timeout_ms
        self.backoff = Backoff.of(config, random)

    async def offsets(
        self,
        wanted: Mapping[TopicPartition, int],
        timeout_ms: int,
        on_found: OnFound = _ignore,
        *,
        on_refused: OnRefused = _raise,
        topic_ids: Mapping[str, UUID] | None = None,
    ) -> dict[TopicPartition, ListOffsetsPartitionResult]:
        """One result for each partition; `on_found` gets them as they come. `wanted` gives timestamps in ms, or -1
        latest, -2 earliest. With `topic_ids` a topic of the same name with another id is refused.

        A partition that has no result within timeout_ms is refused with UnavailableError if no leader answered, else
        with the last error; at once with UnknownTopicOrPartition, TopicRecreated, or another error that no retry mends.
        The first such error is raised, unless `on_refused` takes them.
        """
        search = _Search(self, timeout_ms, on_found, on_refused, topic_ids or {})
        return await search.run(wanted)


class _Search:
    """One look-up. Each partition that has no result yet belongs to one task, which asks one leader at a time."""

    def __init__(
        self,
        lookup: OffsetLookup,
        timeout_ms: int,
        on_found: OnFound,
        on_refused: OnRefused,
        topic_ids: Mapping[str, UUID],
    ) -> None:
        self._lookup = lookup
        self._metadata = lookup.metadata
        self._budget = Retry(timeout_ms, lookup.backoff)
        self._on_found = on_found
        self._on_refused = on_refused
        self._topic_ids = dict(topic_ids)
        self._found: dict[TopicPartition, ListOffsetsPartitionResult] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._refreshes: dict[asyncio.Task[None], None] = {}
        self._is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls = CallWatch[_Queries](_PATIENCE, self._on_silent)

    async def run(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListOffsetsPartitionResult]:
        remaining = iter(wanted.items())
        while part := dict(islice(remaining, _AT_ONCE_MAX)):
            self._start(self._tasks, self._pursue(part))
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

    async def _pursue(self, wanted: dict[TopicPartition, int]) -> None:
        """Asks until each partition is found or refused. Those of a second leader get a task of their own."""
        retry = Retry(self._budget.remaining_ms, self._lookup.backoff)
        while by_leader := await self._by_leader(wanted):
            (leader_id, queries), *others = by_leader.items()
            for _, theirs in others:
                self._start(self._tasks, self._pursue({tp: wanted[tp] for tp in theirs}))
            problem = await self._ask(leader_id, queries)
            wanted = {tp: wanted[tp] for tp in queries}
            if not wanted:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._budget.remaining_ms / 1000):
                    await self._metadata.refresh(sorted({tp.topic for tp in wanted}))
            if not await retry.pause():
                self._refuse(
                    wanted, self._unavailable(problem) if isinstance(problem, _NO_ANSWER) else problem
                )
                return

    async def _by_leader(self, wanted: Mapping[TopicPartition, int]) -> dict[int, _Queries]:
        """What to ask of which leader; of NO_NODE where there is none. Partitions that do not exist are refused."""
        by_leader: dict[int, _Queries] = {}
        by_topic: dict[str, dict[TopicPartition, int]] = {}
        for tp, timestamp_ms in wanted.items():
            by_topic.setdefault(tp.topic, {})[tp] = timestamp_ms
        for name, partitions in by_topic.items():
            last = max(tp.partition for tp in partitions)
            if len(by_topic) > 1 and not self._is_known(name, last):
                self._start(self._tasks, self._pursue(partitions))
                continue
            try:
                topic = await topic_with(self._metadata, name, last, self._budget.remaining_ms)
                self._check_id(topic)
            except RaykaError as error:
                self._refuse(partitions, error)
                continue
            for tp, timestamp_ms in partitions.items():
                if not 0 <= tp.partition < len(topic.partitions):
                    self._refuse((tp,), no_such_partition(topic, tp.partition))
                    continue
                leader = topic.partitions[tp.partition]
                query = ListOffsetsPartition(topic.topic_id, tp.partition, timestamp_ms, leader.leader_epoch)
                by_leader.setdefault(leader.leader_id, {})[tp] = query
        return by_leader

    def _is_known(self, name: str, partition: int) -> bool:
        topic = self._metadata.cached(name)
        return topic is not None and partition < len(topic.partitions)

    def _check_id(self, topic: MetadataTopic) -> None:
        expected = self._topic_ids.get(topic.name, topic.topic_id)
        if expected != topic.topic_id:
            raise topic_recreated(topic, expected, self._metadata.cluster_name)

    async def _ask(self, leader_id: int, queries: _Queries) -> ApiError:
        """Takes out of the queries what is found or refused; returns why the others are left."""
        if leader_id == NO_NODE:
            return LeaderNotAvailable(f"no leader of {sorted(queries)} is known")
        timeout_ms = min(self._lookup.request_timeout_ms, self._budget.remaining_ms)
        request = ListOffsetsRequest(tuple(queries.values()))
        try:
            call = self._lookup.network.call(leader_id, request, timeout_ms)
            response = await self._calls.answer(leader_id, queries, call)
        except ApiError as error:
            if not error.retriable:
                self._refuse(queries, error)
                queries.clear()
            return error
        return self._on_results(queries, response.partitions)

    def _on_results(self, queries: _Queries, results: Iterable[ListOffsetsPartitionResult]) -> ApiError:
        news: dict[TopicPartition, ListOffsetsPartitionResult] = {}
        problem: ApiError = LeaderNotAvailable("nothing was asked")
        for (tp, query), result in zip(list(queries.items()), results, strict=True):
            if result.error_code is not ErrorCode.NONE:
                problem = error_for(result.error_code, _about(tp, result.error_message))
                if not problem.retriable:
                    del queries[tp]
                    self._refuse((tp,), problem)
            elif self._topic_ids.setdefault(tp.topic, query.topic_id) == query.topic_id:
                del queries[tp]
                news[tp] = result
        if news:
            self._found.update(news)
            self._on_found(news)
        return problem

    # ---- When a leader says nothing --------------------------------------------------------------------------------

    def _on_silent(self, node_id: int, calls: list[_Queries]) -> None:
        self._metadata.nodes.doubt(node_id)
        topics = dict.fromkeys(tp.topic for queries in calls for tp in queries)
        self._start(self._refreshes, self._look_elsewhere(tuple(topics)))

    async def _look_elsewhere(self, topics: tuple[str, ...]) -> None:
        await self._metadata.refresh(topics)
        self._calls.give_up(self._is_in_vain)

    def _is_in_vain(self, node_id: int, queries: _Queries) -> bool:
        """Whether another node is to be asked for all of it by now."""
        return not any(self._is_led_by(node_id, tp) for tp in queries)

    def _is_led_by(self, node_id: int, topic_partition: TopicPartition) -> bool:
        topic = self._metadata.cached(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.partitions):
            return False
        return topic.partitions[topic_partition.partition].leader_id == node_id

    # ---- The end of it ---------------------------------------------------------------------------------------------

    def _refuse(self, partitions: Iterable[TopicPartition], error: RaykaError) -> None:
        for tp in partitions:
            self._on_refused(tp, error)

    def _unavailable(self, problem: ApiError) -> UnavailableError:
        return UnavailableError(
            f"cluster {self._metadata.cluster_name!r} did not say which offsets there are: {problem}; "
            "are its brokers running? see `rayka status`"
        )


async def topic_with(metadata: ClusterMetadata, name: str, partition: int, timeout_ms: int) -> MetadataTopic:
    """The topic, asked of the active controller if the partition is not among those known: it may have been added.

    Raises as `ClusterMetadata.topic`. Whether the partition exists then is for the caller to check.
    """
    topic = await metadata.topic(name, timeout_ms)
    if partition >= len(topic.partitions):
        await metadata.renew(name, timeout_ms)
        topic = await metadata.topic(name, timeout_ms)
    return topic


def check_partition(topic: MetadataTopic, partition: int) -> None:
    """Raises UnknownTopicOrPartition, not retriable, unless the topic has a partition of that number."""
    if not 0 <= partition < len(topic.partitions):
        raise no_such_partition(topic, partition)


def no_such_partition(topic: MetadataTopic, partition: int) -> NoSuchTopic:
    """The error that says how many partitions the topic has."""
    return NoSuchTopic(
        f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, found {partition}"
    )


def _about(topic_partition: TopicPartition, message: str) -> str:
    """The message, with the partition it is about named once."""
    return message if message.startswith(f"{topic_partition}") else f"{topic_partition}: {message}"
