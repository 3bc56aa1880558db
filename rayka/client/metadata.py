"""The topics and leaders that a client knows: asked for when needed and kept for a while.

Invariants: one request at a time, shared by all callers that ask meanwhile; a topic counts as unknown only when the
active controller says so, because a broker may not know of a new one yet; what is known is never replaced by
what a broker says that knows less (`known_topic`); a topic that is gone, or not used any more, is not kept. Kafka:
Metadata, ProducerMetadata (KIP-526), NetworkClient's metadata updater (G18).
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

# One topic as a client knows it, and when something newer may take its place.
#
# Invariants: metadata never replace what was made from a later part of the metadata log; nor does a partition get
# a former leader epoch, as in metadata of a broker that does not know the leader that another one has named.
#
# A client that misses a leader asks again and again. An answer about thousands of partitions costs the broker and the
# client tens of milliseconds, and a broker that is behind would have nothing else to do: so behind each answer a topic
# rests, in proportion to its partitions, whatever part of the client asks; one with few partitions never does.
#
# Kafka: Metadata.updateLatestMetadata, Metadata.updatePartitionLeadership (KIP-951), Metadata.timeToAllowUpdate.


_REST_S = 50e-6  # for each partition, ten times what its metadata cost the broker and the client
_NONE: Mapping[int, MetadataPartition] = MappingProxyType({})


class KnownTopic(NamedTuple):
    """A topic, when its metadata came, and which part of the metadata log they were made from. `named`: partitions of
    which a refusal has said more than these metadata.
    """

    topic: MetadataTopic
    fetched_at_s: float
    metadata_offset: int
    named: Mapping[int, MetadataPartition] = _NONE

    def is_news(self, metadata_offset: int) -> bool:
        """Whether metadata as of that offset say at least as much."""
        return self.metadata_offset <= metadata_offset

    def rest_s(self, at_s: float, *, is_asked: bool) -> float:
        """How long it is still to be left alone; while it is asked for, its rest has not begun."""
        rest_s = len(self.topic.partitions) * _REST_S
        return rest_s if is_asked else self.fetched_at_s + rest_s - at_s

    def updated(self, topic: MetadataTopic, at_s: float, metadata_offset: int) -> "KnownTopic":
        """With these newer metadata, and with leaders that were named of later epochs than theirs."""
        if topic.topic_id != self.topic.topic_id:
            return KnownTopic(topic, at_s, metadata_offset)
        later = {
            number: named
            for number, named in self.named.items()
            if number < len(topic.partitions) and topic.partitions[number].leader_epoch < named.leader_epoch
        }
        return KnownTopic(_with(topic, later), at_s, metadata_offset, later or _NONE)

    def later_leaders(self, refusals: Iterable[ResultWithLeader]) -> dict[int, MetadataPartition]:
        """The partitions of which refusals name a leader of a later epoch than is known, as they are then."""
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
        """With these leaders, which refusals have named."""
        return self._replace(topic=_with(self.topic, later), named={**self.named, **later})


def _with(topic: MetadataTopic, named: Mapping[int, MetadataPartition]) -> MetadataTopic:
    if not named:
        return topic
    partitions = list(topic.partitions)
    for number, partition in named.items():
        partitions[number] = partition
    return replace(topic, partitions=tuple(partitions))


_NAMES_SHOWN = 5
_TICK_S = 0.001  # a rest that ends sooner is over, however a clock rounds
# Old topics are asked for together up to so many partitions: a larger answer would hold the event loop up.
_AGED_PARTITIONS_MAX = 2_000

logger = logging.getLogger(__name__)


class _Listener(NamedTuple):
    on_topic: Callable[[MetadataTopic], None]
    on_gone: Callable[[str], None]
    may_forget: Callable[[str], bool]


class ClusterMetadata:
    """The metadata cache of one client. All methods belong to the loop that the client runs on."""

    def __init__(self, network: Network, cluster_name: str, config: ClientConfig, random: Random) -> None:
        self.nodes = ClusterNodes(network, cluster_name, config, random)
        self.cluster_name = cluster_name
        self._clock = LoopClock()
        self.version = 0  # grows with each response
        self._listeners: list[_Listener] = []
        self._max_age_s = config.metadata_max_age_ms / 1000
        self._max_idle_s = config.metadata_max_idle_ms / 1000
        self._used_at_s: dict[str, float] = {}
        # When topics are next looked through for old and idle ones.
        self._next_look_s = 0.0
        self._cluster_id = ""
        self._topics: dict[str, KnownTopic] = {}
        # Makes the error of each topic that the controller refused, until the topic is known.
        self._missing: dict[str, Callable[[], ApiError]] = {}
        self._wanted: dict[str, None] = {}
        self._upcoming: asyncio.Task[RaykaError | None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._under_way: asyncio.Task[RaykaError | None] | None = None
        self._asked: tuple[str, ...] = ()  # in the question that is under way

    def __repr__(self) -> str:
        return f"<ClusterMetadata of {self.cluster_name} topics={sorted(self._topics)}>"

    def listen(
        self,
        on_topic: Callable[[MetadataTopic], None],
        *,
        on_gone: Callable[[str], None] = lambda name: None,
        may_forget: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """Calls the functions from now on. `on_topic`: with each topic that is newer than what was known, before others
        use it. `on_gone`: with the name of each topic that is gone; `missing` has the reason. `may_forget`: whether an
        idle topic may be forgotten.
        """
        self._listeners.append(_Listener(on_topic, on_gone, may_forget))

    def unlisten(self, on_topic: Callable[[MetadataTopic], None]) -> None:
        """Ends `listen`; does nothing if it was not listening."""
        self._listeners = [each for each in self._listeners if each.on_topic != on_topic]

    def cached(self, name: str) -> MetadataTopic | None:
        """The topic by the newest metadata, None if there were none; its partitions stand at their numbers.

        Those that are past their maximum age are asked for again in the background.
        """
        known = self._topics.get(name)
        if known is None:
            return None
        self._used_at_s[name] = at_s = self._clock.now_s()
        if at_s - known.fetched_at_s > self._max_age_s:
            self._look_through(at_s)
        return known.topic

    def _look_through(self, at_s: float) -> None:
        """Forgets idle topics, and asks for old ones."""
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
        """As `cached`, whatever its age; from any thread."""
        known = self._topics.get(name)
        return None if known is None else known.topic

    async def topic(self, name: str, timeout_ms: int) -> MetadataTopic:
        """The topic, asked for if it is not cached.

        Raises NoSuchTopic (an UnknownTopicOrPartition) when the controller knows none of that name, InvalidTopic,
        or UnavailableError when no node has answered within timeout_ms.
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
        """The topic, asked of the active controller if the partition is not among those known: it may have been added.

        Raises as `topic`. Whether the partition exists then is for the caller to check.
        """
        topic = await self.topic(name, timeout_ms)
        if partition >= len(topic.partitions):
            await self.renew((name,), timeout_ms)
            topic = await self.topic(name, timeout_ms)
        return topic

    def partition(self, name: str, number: int) -> MetadataPartition | None:
        """The partition by the newest metadata, None if there were none."""
        topic = self.cached(name)
        return topic.partitions[number] if topic and number < len(topic.partitions) else None

    async def refresh(self, names: Iterable[str]) -> RaykaError | None:
        """Asks for the topics again, once, for all calls that ask meanwhile; returns what went wrong, or None.

        A topic that is gone is not cached any more, and `missing` says why.
        """
        return await asyncio.shield(self._ask_soon(names))

    async def refresh_leaders(self, names: Iterable[str]) -> RaykaError | None:
        """As `refresh`, for a caller that asks again as long as it misses a leader: once the topics' rest is over. What
        others are told of a topic meanwhile counts, so it waits for one question and one rest at most.
        """
        left, begun_s = tuple(names), self._clock.now_s()
        is_about_to_leave = all(name in self._wanted for name in left)  # that question tells as much
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
        """Those of which no answer has come since then."""
        return tuple(
            name
            for name in names
            if (known := self._topics.get(name)) is None or known.fetched_at_s <= since_s
        )

    def on_refused(self, refusals: Sequence[ResultWithLeader]) -> list[MetadataTopic]:
        """Takes over the leaders that an answer names beside errors, where they are of later epochs than those known;
        returns the topics of which something is known anew, as they are now. Nothing is asked.
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
        """Fetches the topics as the active controller knows them now, which no broker can be ahead of.

        Raises UnavailableError when none answers in time. Changes nothing of a topic that is gone.
        """
        response = await self.nodes.call_controller(MetadataRequest(names), timeout_ms)
        self._store(response)
        return response

    async def no_such_topic(self, name: str, timeout_ms: int) -> NoSuchTopic:
        """The error for a topic that the controller does not know, with those that it knows."""
        known = (await self.nodes.call_controller(MetadataRequest(), timeout_ms)).topics
        return no_such_topic(name, self.cluster_name, [each.name for each in known])

    def missing(self, name: str) -> ApiError | None:
        """Why the topic cannot be used, when the last refresh found that it is gone."""
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
            self._upcoming = None  # what asks from now on gets the next attempt
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
        if response.cluster_id != self._cluster_id:  # offsets of another cluster say nothing
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
    """The error for a topic that is not among those known, with the nearest name, and with what to do about it."""
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
    """The highest number of each topic."""
    last: dict[str, int] = {}
    for tp in partitions:
        last[tp.topic] = max(tp.partition, last.get(tp.topic, 0))
    return last


def check_partition(topic: MetadataTopic, partition: int) -> None:
    """Raises UnknownTopicOrPartition, not retriable, unless the topic has a partition of that number."""
    if not 0 <= partition < len(topic.partitions):
        raise no_such_partition(topic, partition)


def no_such_partition(topic: MetadataTopic, partition: int) -> NoSuchTopic:
    """The error that says how many partitions the topic has."""
    return NoSuchTopic(
        f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, found {partition}"
    )


def topic_recreated(topic: MetadataTopic, expected_id: UUID, cluster_name: str) -> TopicRecreated:
    """The error for a topic that is not the one that was asked for, but has its name."""
    return TopicRecreated(
        f"topic {topic.name!r} of cluster {cluster_name!r} was deleted and created again meanwhile: expected id"
        f" {expected_id}, found {topic.topic_id}; offsets and records of the two are never mixed: read it anew,"
        " or seek in the new one"
    )
