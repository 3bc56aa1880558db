"""The metadata cache of a client: topics and leaders, fetched when needed and kept for a while.

Invariants: one request at a time, whose successor is shared by all callers that ask in the meantime; a topic counts as
unknown only if the active controller says so, because a broker may not know a new topic yet; metadata never replace
metadata of a later offset, nor a leader of a later epoch (`KnownTopic`); a deleted or unused topic is not kept.

A client that misses a leader asks again and again. An answer about thousands of partitions costs broker and client tens
of milliseconds, and a broker that is behind would do nothing else. After each answer a topic therefore rests, in
proportion to its partitions, whatever part of the client asks; the rest of a topic with few partitions is too short to
matter. Kafka: Metadata (updateLatestMetadata, updatePartitionLeadership (KIP-951), timeToAllowUpdate),
ProducerMetadata (KIP-526), NetworkClient's metadata updater (G18).
"""

import asyncio
import difflib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from rayka.client.bootstrap import ClientConfig
from rayka.client.cluster_nodes import ClusterNodes
from rayka.client.retry import Retry, telling
from rayka.clock import LoopClock
from rayka.errors import (
    ApiError,
    ErrorCode,
    NoSuchTopic,
    RaykaError,
    TopicRecreated,
    UnavailableError,
    error_for,
)
from rayka.ids import NO_NODE, TopicPartition
from rayka.ports import Network
from rayka.protocol.membership import MetadataPartition, MetadataRequest, MetadataResponse, MetadataTopic
from rayka.protocol.produce import ResultWithLeader

# The rest for each partition: ten times the cost of its metadata for broker and client.
_REST_S = 50e-6
_NONE: Mapping[int, MetadataPartition] = MappingProxyType({})


class KnownTopic(NamedTuple):
    """One topic in the cache, and the source of its metadata."""

    topic: MetadataTopic
    # The arrival of the metadata.
    fetched_at_s: float
    # The offset of the metadata log that the answering node had applied.
    metadata_offset: int
    # Partitions with a leader named by a refusal; each has a later leader epoch than the metadata of that offset.
    named: Mapping[int, MetadataPartition] = _NONE

    def is_news(self, metadata_offset: int) -> bool:
        """Whether metadata of this offset are at least as new."""
        return self.metadata_offset <= metadata_offset

    def rest_s(self, at_s: float, *, is_asked: bool) -> float:
        """The rest that remains before the topic may be asked for again; the full rest while a request is under way."""
        rest_s = len(self.topic.partitions) * _REST_S
        return rest_s if is_asked else self.fetched_at_s + rest_s - at_s

    def updated(self, topic: MetadataTopic, at_s: float, metadata_offset: int) -> "KnownTopic":
        """The topic with newer metadata; keeps named leaders of later epochs than the new metadata have."""
        if topic.topic_id != self.topic.topic_id:
            return KnownTopic(topic, at_s, metadata_offset)
        later = {
            number: named
            for number, named in self.named.items()
            if number < len(topic.partitions) and topic.partitions[number].leader_epoch < named.leader_epoch
        }
        return KnownTopic(_with(topic, later), at_s, metadata_offset, later or _NONE)

    def later_leaders(self, refusals: Iterable[ResultWithLeader]) -> dict[int, MetadataPartition]:
        """The partitions for which refusals name a leader of a later epoch, with that leader."""
        partitions, later = self.topic.partitions, dict[int, MetadataPartition]()
        for each in refusals:
            if each.leader_id == NO_NODE or not 0 <= each.partition < len(partitions):
                continue
            known = later.get(each.partition, partitions[each.partition])
            if each.leader_epoch > known.leader_epoch:
                later[each.partition] = replace(
                    known,
                    leader_id=each.leader_id,
                    leader_epoch=each.leader_epoch,
                    error_code=ErrorCode.NONE,
                )
        return later

    def led_by(self, later: Mapping[int, MetadataPartition]) -> "KnownTopic":
        """The topic with these leaders, named by refusals."""
        return self._replace(topic=_with(self.topic, later), named={**self.named, **later})


def _with(topic: MetadataTopic, named: Mapping[int, MetadataPartition]) -> MetadataTopic:
    if not named:
        return topic
    partitions = list(topic.partitions)
    for number, partition in named.items():
        partitions[number] = partition
    return replace(topic, partitions=tuple(partitions))


_NAMES_SHOWN = 5
# A rest that ends within it is over, whatever the rounding of the clock.
_TICK_S = 0.001
# Partitions of old topics in one request; a larger answer would block the event loop.
_AGED_PARTITIONS_MAX = 2_000

logger = logging.getLogger(__name__)


class _Listener(NamedTuple):
    on_topic: Callable[[MetadataTopic], None]
    on_gone: Callable[[str], None]
    may_forget: Callable[[str], bool]


class ClusterMetadata:
    """The metadata cache of one client. All methods belong to the client's loop unless they say otherwise."""

    def __init__(self, network: Network, cluster_name: str, config: ClientConfig, random: Random) -> None:
        self.nodes = ClusterNodes(network, cluster_name, config, random)
        self.cluster_name = cluster_name
        self._clock = LoopClock()
        # Grows with each response.
        self.version = 0
        self._listeners: list[_Listener] = []
        self._max_age_s = config.metadata_max_age_ms / 1000
        self._max_idle_s = config.metadata_max_idle_ms / 1000
        # The last use of each topic.
        self._used_at_s: dict[str, float] = {}
        # The next search for old and idle topics.
        self._next_look_s = 0.0
        # All topics are of this cluster.
        self._cluster_id = ""
        self._topics: dict[str, KnownTopic] = {}
        # Makes the error of each topic that the controller refused, until the topic is known.
        self._missing: dict[str, Callable[[], ApiError]] = {}
        # The topics of the next request, and the task that will send it.
        self._wanted: dict[str, None] = {}
        self._upcoming: asyncio.Task[RaykaError | None] | None = None
        self._one_at_a_time = asyncio.Lock()
        # The request under way, and its topics.
        self._under_way: asyncio.Task[RaykaError | None] | None = None
        self._asked: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<ClusterMetadata of {self.cluster_name} topics={sorted(self._topics)}>"

    def listen(
        self,
        on_topic: Callable[[MetadataTopic], None],
        *,
        on_gone: Callable[[str], None] = lambda name: None,
        may_forget: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """Registers a listener.

        `on_topic` gets each topic with newer metadata, before other callers use them. `on_gone` gets the name of each
        topic that is gone; `missing` has the reason. `may_forget` says whether an idle topic may be forgotten.
        """
        self._listeners.append(_Listener(on_topic, on_gone, may_forget))

    def unlisten(self, on_topic: Callable[[MetadataTopic], None]) -> None:
        """Removes the listener with this `on_topic`, if there is one."""
        self._listeners = [each for each in self._listeners if each.on_topic != on_topic]

    def cached(self, name: str) -> MetadataTopic | None:
        """The topic by the newest metadata, None if it is unknown; partition n is at index n.

        Refreshes a topic past its maximum age in the background.
        """
        known = self._topics.get(name)
        if known is None:
            return None
        self._used_at_s[name] = at_s = self._clock.now_s()
        if at_s - known.fetched_at_s > self._max_age_s:
            self._look_through(at_s)
        return known.topic

    def _look_through(self, at_s: float) -> None:
        """Forgets idle topics, and refreshes old ones."""
        self._next_look_s = at_s + min(self._max_age_s, self._max_idle_s) / 2
        self._missing.clear()
        aged: list[str] = []
        partition_count = 0
        for name, known in list(self._topics.items()):
            if at_s - self._used_at_s.setdefault(name, at_s) > self._max_idle_s:
                if all(each.may_forget(name) for each in self._listeners):
                    del self._topics[name], self._used_at_s[name]
            elif at_s - known.fetched_at_s > self._max_age_s and partition_count < _AGED_PARTITIONS_MAX:
                partition_count += len(known.topic.partitions)
                self._topics[name] = known._replace(fetched_at_s=at_s)
                aged.append(name)
        if aged:
            self._ask_soon(aged)

    def last_known(self, name: str) -> MetadataTopic | None:
        """The topic by the newest metadata, of any age, without a refresh; for any thread."""
        known = self._topics.get(name)
        return None if known is None else known.topic

    async def topic(self, name: str, timeout_ms: int) -> MetadataTopic:
        """The topic, fetched unless cached.

        Raises NoSuchTopic (an UnknownTopicOrPartition) when the controller knows no topic of this name, InvalidTopic,
        or UnavailableError when no node has answered within `timeout_ms`.
        """
        retry = Retry(timeout_ms, self.nodes.backoff)
        problem: RaykaError | None = None
        with telling(lambda: self.nodes.awaited(f"the metadata of topic {name!r}", problem)):
            while True:
                known = self.cached(name)
                if known is not None:
                    return known
                problem = await self._bounded(self._ask_soon((name,)), retry)
                if name in self._missing:
                    raise self._missing.pop(name)()
                if isinstance(problem, ApiError) and not problem.retriable:
                    raise problem
                if name not in self._topics and not await retry.pause():
                    if isinstance(problem, UnavailableError):
                        raise problem
                    raise self.nodes.unavailable(str(problem), problem)

    async def topic_with(self, name: str, partition: int, timeout_ms: int) -> MetadataTopic:
        """The topic; fetched from the active controller if the partition is unknown, because it may be a new one.

        The caller checks whether the partition exists. Raises like `topic`.
        """
        topic = await self.topic(name, timeout_ms)
        if partition >= len(topic.partitions):
            await self.renew((name,), timeout_ms)
            topic = await self.topic(name, timeout_ms)
        return topic

    def partition(self, name: str, number: int) -> MetadataPartition | None:
        """The partition by the newest metadata, None if it is unknown."""
        topic = self.cached(name)
        return topic.partitions[number] if topic and number < len(topic.partitions) else None

    async def refresh(self, names: Iterable[str]) -> RaykaError | None:
        """Fetches the topics again in one request shared with other callers; returns its error, or None.

        A topic that is gone leaves the cache, and `missing` has the reason.
        """
        return await asyncio.shield(self._ask_soon(names))

    async def refresh_leaders(self, names: Iterable[str]) -> RaykaError | None:
        """Does the same as `refresh`, after the topics' rest; for a caller that repeats it while it misses a leader.

        Answers that other callers get in the meantime count, so the call waits for one request and one rest at most.
        """
        left, begun_s = tuple(names), self._clock.now_s()
        # The next request asks for all of these topics already.
        is_about_to_leave = all(name in self._wanted for name in left)
        if is_about_to_leave or self._rest_s(left) <= _TICK_S:
            return await self.refresh(left)
        if self._under_way is not None and not set(left).isdisjoint(self._asked):
            await asyncio.shield(self._under_way)
            left = self._untold(left, begun_s)
        await asyncio.sleep(self._rest_s(left))
        left = self._untold(left, begun_s)
        return await self.refresh(left) if left else None

    def _rest_s(self, names: Iterable[str]) -> float:
        """The longest rest of these topics."""
        at_s = self._clock.now_s()
        known = ((name, self._topics.get(name)) for name in names)
        return max(
            (each.rest_s(at_s, is_asked=name in self._asked) for name, each in known if each), default=0
        )

    def _untold(self, names: Iterable[str], since_s: float) -> tuple[str, ...]:
        """The topics without an answer since `since_s`."""
        return tuple(
            name
            for name in names
            if (known := self._topics.get(name)) is None or known.fetched_at_s <= since_s
        )

    def on_refused(self, refusals: Sequence[ResultWithLeader]) -> list[MetadataTopic]:
        """Takes over leaders of later epochs that a response names beside errors; returns the changed topics.

        Sends no request. Kafka: KIP-951.
        """
        by_id: dict[UUID, list[ResultWithLeader]] = {}
        for each in refusals:
            if each.error_code is not ErrorCode.NONE and each.leader_id != NO_NODE:
                by_id.setdefault(each.topic_id, []).append(each)
        changed: list[MetadataTopic] = []
        for name, known in self._topics.items() if by_id else ():
            later = known.later_leaders(by_id.get(known.topic.topic_id, ()))
            if later:
                self._topics[name] = led = known.led_by(later)
                changed.append(led.topic)
        self.version += bool(changed)
        return changed

    async def renew(self, names: tuple[str, ...], timeout_ms: int) -> MetadataResponse:
        """Fetches the topics from the active controller, which no broker is ahead of.

        Does not remove a topic that is gone. Raises UnavailableError when no controller answers in time.
        """
        response = await self.nodes.call_controller(MetadataRequest(names), timeout_ms)
        self._store(response)
        return response

    async def no_such_topic(self, name: str, timeout_ms: int) -> NoSuchTopic:
        """The error for an unknown topic, which names topics that the controller knows."""
        known = (await self.nodes.call_controller(MetadataRequest(), timeout_ms)).topics
        return no_such_topic(name, self.cluster_name, [each.name for each in known])

    def missing(self, name: str) -> ApiError | None:
        """The reason why the topic cannot be used; None if the last refresh did not refuse it."""
        missing = self._missing.get(name)
        return None if missing is None else missing()

    # ---- One attempt, shared ------------------------------------------------------------------------------

    def _ask_soon(self, names: Iterable[str]) -> "asyncio.Task[RaykaError | None]":
        self._wanted.update(dict.fromkeys(names))
        if self._upcoming is None:
            self._upcoming = asyncio.get_running_loop().create_task(self._attempt())
        return self._upcoming

    async def _attempt(self) -> RaykaError | None:
        async with self._one_at_a_time:
            names, self._wanted = tuple(self._wanted), {}
            self._under_way, self._asked = self._upcoming, names
            # Later callers get the next attempt.
            self._upcoming = None
            try:
                await self._update(names)
            except RaykaError as error:
                logger.debug("metadata of %s: %s", self.cluster_name, error)
                return error
            finally:
                self._under_way, self._asked = None, ()
            return None

    async def _update(self, names: tuple[str, ...]) -> None:
        node_id, response = await self.nodes.ask_any(names)
        unknown = tuple(each.name for each in response.topics if _is_unknown(each))
        self._store(response)
        if unknown and response.controller_id != node_id:
            newest = await self._ask_controller(unknown)
            unknown = tuple(each.name for each in newest.topics if _is_unknown(each))
            if len(unknown) < len(newest.topics):
                request = MetadataRequest(names, min_metadata_offset=newest.metadata_offset)
                self._store(await self.nodes.network.call(node_id, request, self.nodes.node_timeout_ms))
        if unknown:
            await self._explain_missing(unknown)

    async def _explain_missing(self, names: tuple[str, ...]) -> None:
        everything = await self._ask_controller(None)
        self.version += 1
        known = [each.name for each in everything.topics]
        for name in names:
            if name not in known:
                self._topics.pop(name, None)
                self._used_at_s.pop(name, None)
                advice = f"create it with `rayka topic create {name}` or Admin.create_topic"
                self._missing[name] = partial(no_such_topic, name, self.cluster_name, known, advice=advice)
                for listener in self._listeners:
                    listener.on_gone(name)

    async def _ask_controller(self, names: tuple[str, ...] | None) -> MetadataResponse:
        return await self.nodes.active.call(MetadataRequest(names), self.nodes.node_timeout_ms)

    def _store(self, response: MetadataResponse) -> None:
        at_s, offset = self._clock.now_s(), response.metadata_offset
        if at_s >= self._next_look_s:
            self._look_through(at_s)
        self.version += 1
        self.nodes.learn(response)
        # Offsets of another cluster cannot be compared.
        if response.cluster_id != self._cluster_id:
            self._cluster_id = response.cluster_id
            self._topics.clear()
            self._used_at_s.clear()
        for topic in response.topics:
            if topic.error_code is ErrorCode.NONE:
                assert all(each.partition == index for index, each in enumerate(topic.partitions)), topic
                self._missing.pop(topic.name, None)
                known = self._topics.get(topic.name, KnownTopic(topic, at_s, offset))
                if not known.is_news(offset):
                    self._topics[topic.name] = known._replace(fetched_at_s=at_s)
                    continue
                self._topics[topic.name] = known.updated(topic, at_s, offset)
                for listener in self._listeners:
                    listener.on_topic(self._topics[topic.name].topic)
            elif not _is_unknown(topic):
                self._missing[topic.name] = partial(error_for, topic.error_code, f"topic {topic.name!r}")

    async def _bounded(self, attempt: "asyncio.Task[RaykaError | None]", retry: Retry) -> RaykaError | None:
        try:
            return await asyncio.wait_for(asyncio.shield(attempt), retry.remaining_ms / 1000)
        except TimeoutError:
            return self.nodes.unavailable("no node answered in time")


def _is_unknown(topic: MetadataTopic) -> bool:
    return topic.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def no_such_topic(name: str, cluster_name: str, known: Sequence[str], *, advice: str = "") -> NoSuchTopic:
    """The error for a topic that is not in `known`, with the nearest name and the advice."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        hint = f"the nearest name is {near[0]!r}"
    elif known:
        more = f" and {len(known) - _NAMES_SHOWN} more" if len(known) > _NAMES_SHOWN else ""
        hint = f"it has {', '.join(sorted(known)[:_NAMES_SHOWN])}{more}"
    else:
        hint = "it has no topics"
    return NoSuchTopic(
        f"cluster {cluster_name!r} has no topic {name!r}: {hint}" + (f"; {advice}" if advice else "")
    )


def last_partitions(partitions: Iterable[TopicPartition]) -> dict[str, int]:
    """The highest partition number of each topic."""
    last: dict[str, int] = {}
    for tp in partitions:
        last[tp.topic] = max(tp.partition, last.get(tp.topic, 0))
    return last


def check_partition(topic: MetadataTopic, partition: int) -> None:
    """Raises NoSuchTopic, which is not retriable, unless the topic has a partition of this number."""
    if not 0 <= partition < len(topic.partitions):
        raise no_such_partition(topic, partition)


def no_such_partition(topic: MetadataTopic, partition: int) -> NoSuchTopic:
    """The error for a missing partition, which names the topic's partitions."""
    return NoSuchTopic(
        f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, found {partition}"
    )


def topic_recreated(topic: MetadataTopic, expected_id: UUID, cluster_name: str) -> TopicRecreated:
    """The error for another topic of the same name."""
    return TopicRecreated(
        f"topic {topic.name!r} of cluster {cluster_name!r} was deleted and created again meanwhile: expected id"
        f" {expected_id}, found {topic.topic_id}; offsets and records of the two are never mixed: read it anew,"
        " or seek in the new one"
    )
