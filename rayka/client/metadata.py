"""What a client knows of its cluster: brokers, topics, leaders; asked for when needed and kept for a while.

Invariants: one request at a time, shared by all who ask meanwhile; a topic counts as unknown only when the
active controller says so, because a broker may not have heard of a new one yet; what is known is never replaced by
what a broker says that has not heard as much. Kafka: Metadata, NetworkClient's metadata updater (G18). Left out: the
leader hints of KIP-951.
"""

import asyncio
import difflib
import logging
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple, TypeVar
from uuid import UUID

from rayka.client.bootstrap import ClientConfig
from rayka.client.retry import Backoff, Retry, telling
from rayka.errors import (
    ApiError,
    ErrorCode,
    InconsistentTopicId,
    LeaderNotAvailable,
    NetworkException,
    NotController,
    RaykaError,
    RequestTimedOut,
    UnavailableError,
    UnknownTopicOrPartition,
    error_for,
)
from rayka.ids import NO_NODE, NO_OFFSET, node_name
from rayka.ports import Network, Request
from rayka.protocol.active_controller import ActiveController
from rayka.protocol.cluster import MetadataBroker, MetadataRequest, MetadataResponse, MetadataTopic

ResponseT = TypeVar("ResponseT")
_NODE_TIMEOUT_MS = 5_000  # one unresponsive node must not use up the whole budget
_NAMES_SHOWN = 5
_UNREACHABLE_MAX = (
    3  # tries in a row; a broker that then cannot be reached serves nobody who might miss something
)

logger = logging.getLogger(__name__)


class NoSuchTopic(UnknownTopicOrPartition):
    """The active controller knows no such topic (or partition), so asking again is no use."""

    retriable = False


class TopicRecreated(InconsistentTopicId):
    """The topic is another one than before: deleted, and created again under its name. Asking again is no use."""

    retriable = False


class _Known(NamedTuple):
    """A topic, when its metadata came, and which part of the metadata log they were made from."""

    topic: MetadataTopic
    fetched_at_s: float
    metadata_offset: int


class ClusterMetadata:
    """The metadata cache of one client. All methods belong to the loop that the client runs on."""

    def __init__(
        self,
        network: Network,
        cluster_name: str,
        config: ClientConfig,
        random: Random,
        *,
        on_topic: Callable[[MetadataTopic], None] | None = None,
    ) -> None:
        """`on_topic` is called with each topic that is newer than what was known, before anything uses it."""
        self.cluster_name = cluster_name
        self.brokers: tuple[MetadataBroker, ...] = ()
        self.controller_id = NO_NODE
        self.version = 0  # grows with each response
        self._network = network
        self._listeners = [on_topic] if on_topic is not None else []
        self._max_age_s = config.metadata_max_age_ms / 1000
        self._request_timeout_ms = config.request_timeout_ms
        self._node_timeout_ms = min(config.request_timeout_ms, _NODE_TIMEOUT_MS)
        self._backoff = Backoff.of(config, random)
        self._cluster_id = ""
        self._brokers_offset = NO_OFFSET
        self._topics: dict[str, _Known] = {}
        self._missing: dict[str, ApiError] = {}  # topics that the controller refused, until they are known
        self._wanted: dict[str, None] = {}
        self._upcoming: asyncio.Task[RaykaError | None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._last_answered = NO_NODE
        self._doubted: dict[int, None] = {}  # nodes that failed, asked after the others
        self._does_anyone_answer = True
        self._active = ActiveController(network)
        self._failed_controller_id = NO_NODE

    def __repr__(self) -> str:
        return f"<ClusterMetadata of {self.cluster_name} topics={sorted(self._topics)}>"

    def listen(self, on_topic: Callable[[MetadataTopic], None]) -> None:
        """Calls it from now on like the `on_topic` of the constructor."""
        self._listeners.append(on_topic)

    def unlisten(self, on_topic: Callable[[MetadataTopic], None]) -> None:
        """Ends `listen`; does nothing if it was not listening."""
        self._listeners = [each for each in self._listeners if each != on_topic]

    def cached(self, name: str) -> MetadataTopic | None:
        """The topic as last heard of, None if never; its partitions stand at their numbers.

        One that is past its maximum age is asked for again in the background.
        """
        known = self._topics.get(name)
        if known is None:
            return None
        now_s = asyncio.get_running_loop().time()
        if now_s - known.fetched_at_s > self._max_age_s:
            self._topics[name] = known._replace(fetched_at_s=now_s)
            self._ask_soon((name,))
        return known.topic

    async def topic(self, name: str, timeout_ms: int) -> MetadataTopic:
        """The topic, asked for if it is not cached.

        Raises NoSuchTopic (an UnknownTopicOrPartition) when the controller knows none of that name, InvalidTopic,
        or UnavailableError when nobody could say within timeout_ms.
        """
        retry = Retry(timeout_ms, self._backoff)
        problem: RaykaError | None = None
        with telling(lambda: self._awaited(f"the metadata of topic {name!r}", problem)):
            while True:
                known = self.cached(name)
                if known is not None:
                    return known
                problem = await self._bounded(self._ask_soon((name,)), retry)
                if name in self._missing:
                    raise self._missing.pop(name)
                if isinstance(problem, ApiError) and not problem.retriable:
                    raise problem
                if name not in self._topics and not await retry.pause():
                    if isinstance(problem, UnavailableError):
                        raise problem
                    raise self._unavailable(str(problem), problem)

    async def refresh(self, names: Iterable[str]) -> RaykaError | None:
        """Asks for the topics again, once, together with all who ask meanwhile; returns what went wrong, or None.

        A topic that is gone is not cached any more, and `missing` says why.
        """
        return await asyncio.shield(self._ask_soon(names))

    async def renew(self, name: str, timeout_ms: int) -> None:
        """Fetches the topic as the active controller knows it now, which no broker can be ahead of.

        Raises UnavailableError when none answers in time. Changes nothing when the topic is gone.
        """
        self._store(await self.describe((name,), timeout_ms))

    def missing(self, name: str) -> ApiError | None:
        """Why the topic cannot be used, when the last refresh found that it is gone."""
        return self._missing.get(name)

    def doubt(self, node_id: int) -> None:
        """The node failed to answer something: others are asked before it, until it answers."""
        self._doubted[node_id] = None

    def trusted_broker(self, node_id: int) -> int:
        """This broker, or another that runs if it failed to answer something; for what any broker can do."""
        if node_id not in self._doubted:
            return node_id
        others = (each.node_id for each in self.brokers if not each.is_fenced)
        return next((each for each in others if each not in self._doubted), node_id)

    async def describe(self, names: tuple[str, ...] | None, timeout_ms: int) -> MetadataResponse:
        """The controller's own, newest image of these topics, or of all; not cached."""
        return await self.call_controller(MetadataRequest(names), timeout_ms)

    async def call_controller(self, request: "Request[ResponseT]", timeout_ms: int) -> ResponseT:
        """The active controller's answer; it is found and asked again until timeout_ms.

        A request that is asked again may have been executed before. Raises UnavailableError, or the ApiError of a
        request that failed as a whole.
        """
        return (await self.call_controller_again(request, timeout_ms))[0]

    async def call_controller_again(
        self, request: "Request[ResponseT]", timeout_ms: int
    ) -> "tuple[ResponseT, bool]":
        """As `call_controller`, and whether an earlier attempt that failed may have been executed."""
        retry, may_have_run = Retry(timeout_ms, self._backoff), False
        problem: RaykaError | None = None
        with telling(lambda: self._awaited(self._controller_name(), problem)):
            while True:
                try:
                    if self.controller_id == NO_NODE:
                        self.controller_id = await self._find_controller()
                    attempt_ms = min(retry.remaining_ms, self._request_timeout_ms)
                    return await self._network.call(self.controller_id, request, attempt_ms), may_have_run
                except (ApiError, UnavailableError) as error:
                    if isinstance(error, ApiError) and not error.retriable:
                        raise
                    may_have_run |= _may_have_run(error)
                    self._on_controller_failed(error)
                    problem = error
                if not await retry.pause():
                    raise self._unavailable(_no_controller(problem), problem) from problem

    async def wait_until_applied(self, metadata_offset: int, timeout_ms: int) -> None:
        """Returns when every usable broker has applied the metadata log up to an offset, or is UnavailableError.

        One that is fenced meanwhile, or cannot be reached, is not waited for: it hears of everything before it serves
        again (H5).
        """
        retry, tries = Retry(timeout_ms, self._backoff), 0
        if not self.brokers:
            await self._refresh_brokers()
        waiting = [each.node_id for each in self.brokers if not each.is_fenced]
        while waiting:
            asking = (self._problem_of(each, metadata_offset, retry.remaining_ms) for each in waiting)
            problems = dict(zip(waiting, await asyncio.gather(*asking), strict=True))
            tries += 1
            behind = {
                node_id: problem
                for node_id, problem in problems.items()
                if problem and not (isinstance(problem, NetworkException) and tries >= _UNREACHABLE_MAX)
            }
            if behind and not await retry.pause():
                node_id, problem = next(iter(behind.items()))
                late = f"{node_name(node_id)} is behind metadata offset {metadata_offset}"
                raise self._unavailable(f"{late}: {problem}", problem) from problem
            if behind:
                await self._refresh_brokers()
            waiting = [each.node_id for each in self.brokers if each.node_id in behind and not each.is_fenced]

    async def _problem_of(self, broker_id: int, metadata_offset: int, timeout_ms: int) -> ApiError | None:
        """Why the broker has not applied the metadata log up to that offset. Raises what no retry mends."""
        request = MetadataRequest((), min_metadata_offset=metadata_offset)
        try:
            await self._network.call(broker_id, request, min(timeout_ms, self._node_timeout_ms))
        except ApiError as error:
            if not error.retriable:
                raise
            return error
        return None

    async def _refresh_brokers(self) -> None:
        """Which brokers are fenced, as the controller knows it; stays as it was when no controller answers."""
        try:
            self._store(await self._ask_controller(()))
        except ApiError as error:
            logger.debug("brokers of %s: %s", self.cluster_name, error)

    # ---- One attempt, shared ------------------------------------------------------------------------------

    def _ask_soon(self, names: Iterable[str]) -> "asyncio.Task[RaykaError | None]":
        self._wanted.update(dict.fromkeys(names))
        if self._upcoming is None:
            self._upcoming = asyncio.get_running_loop().create_task(self._attempt())
        return self._upcoming

    async def _attempt(self) -> RaykaError | None:
        async with self._one_at_a_time:
            names, self._wanted = tuple(self._wanted), {}
            self._upcoming = None  # who asks from now on gets the next attempt
            try:
                await self._update(names)
            except RaykaError as error:
                logger.debug("metadata of %s: %s", self.cluster_name, error)
                return error
            return None

    async def _update(self, names: tuple[str, ...]) -> None:
        node_id, response = await self._ask_anyone(names)
        unknown = tuple(each.name for each in response.topics if _is_unknown(each))
        self._store(response)
        if unknown and response.controller_id != node_id:
            newest = await self._ask_controller(unknown)
            unknown = tuple(each.name for each in newest.topics if _is_unknown(each))
            if len(unknown) < len(newest.topics):
                request = MetadataRequest(names, min_metadata_offset=newest.metadata_offset)
                self._store(await self._network.call(node_id, request, self._node_timeout_ms))
        if unknown:
            await self._explain_missing(unknown)

    async def _explain_missing(self, names: tuple[str, ...]) -> None:
        everything = await self._ask_controller(None)
        self.version += 1
        known = [each.name for each in everything.topics]
        for name in names:
            if name not in known:
                self._topics.pop(name, None)
                advice = f"create it with `rayka topic create {name}` or Admin.create_topic"
                self._missing[name] = no_such_topic(name, self.cluster_name, known, advice=advice)

    def _store(self, response: MetadataResponse) -> None:
        now_s, offset = asyncio.get_running_loop().time(), response.metadata_offset
        self.version += 1
        if response.cluster_id != self._cluster_id:  # offsets of another cluster say nothing
            self._cluster_id, self._brokers_offset = response.cluster_id, NO_OFFSET
            self._topics.clear()
        self.controller_id = response.controller_id
        if offset >= self._brokers_offset:
            self.brokers, self._brokers_offset = response.brokers, offset
        for topic in response.topics:
            if topic.error_code is ErrorCode.NONE:
                assert all(each.partition == index for index, each in enumerate(topic.partitions)), topic
                known = self._topics.get(topic.name)
                is_news = known is None or known.metadata_offset <= offset
                self._topics[topic.name] = (
                    known._replace(fetched_at_s=now_s)
                    if known is not None and not is_news
                    else _Known(topic, now_s, offset)
                )
                self._missing.pop(topic.name, None)
                if is_news:
                    for listener in self._listeners:
                        listener(topic)
            elif not _is_unknown(topic):
                self._missing[topic.name] = error_for(topic.error_code, f"topic {topic.name!r}")

    # ---- Whom to ask --------------------------------------------------------------------------------------

    async def _ask_anyone(self, names: tuple[str, ...]) -> tuple[int, MetadataResponse]:
        problem: RaykaError | None = None
        tried: list[int] = []
        for candidates in (self._trusted, self._all):
            for node_id in await candidates():
                if node_id in tried:
                    continue
                tried.append(node_id)
                try:
                    response = await self._network.call(
                        node_id, MetadataRequest(names), self._node_timeout_ms
                    )
                except ApiError as error:
                    if not error.retriable:
                        raise
                    problem = error
                    self.doubt(node_id)
                else:
                    self._last_answered, self._does_anyone_answer = node_id, True
                    self._doubted.pop(node_id, None)
                    return node_id, response
        self._does_anyone_answer = False
        asked = ", ".join(node_name(each) for each in tried) or "no node (none is known)"
        raise self._unavailable(f"asked {asked}; last error: {problem}", problem) from problem

    async def _trusted(self) -> list[int]:
        """Of those known the ones that have not failed since they answered."""
        return [each for each in self._known() if each not in self._doubted]

    async def _all(self) -> list[int]:
        """Those known and those the network knows; who failed comes last. To ask the network costs a call."""
        found = dict.fromkeys([*self._known(), *await self._network.node_ids()])
        return sorted(found, key=lambda each: each in self._doubted)

    def _known(self) -> list[int]:
        """The node that answered last, then the brokers."""
        order = [self._last_answered, *(each.node_id for each in self.brokers if not each.is_fenced)]
        return [each for each in dict.fromkeys(order) if each != NO_NODE]

    async def _find_controller(self) -> int:
        """What the brokers say, unless that is who has just failed: then the controllers themselves are asked."""
        try:
            _, response = await self._ask_anyone(())
        except UnavailableError:
            return await self._active.find()
        self._store(response)
        if response.controller_id in (NO_NODE, self._failed_controller_id):
            return await self._active.find()
        return response.controller_id

    def _on_controller_failed(self, error: RaykaError) -> None:
        self._failed_controller_id = self.controller_id
        self._active.forget(self.controller_id)
        if isinstance(error, NotController):
            self._active.learn(error.leader_id, error.leader_epoch)
        self.controller_id = self._active.leader_id

    async def _ask_controller(self, names: tuple[str, ...] | None) -> MetadataResponse:
        if self.controller_id == NO_NODE:
            raise LeaderNotAvailable(f"cluster {self.cluster_name!r} has no active controller just now")
        return await self._network.call(self.controller_id, MetadataRequest(names), self._node_timeout_ms)

    async def _bounded(self, attempt: "asyncio.Task[RaykaError | None]", retry: Retry) -> RaykaError | None:
        try:
            return await asyncio.wait_for(asyncio.shield(attempt), retry.remaining_ms / 1000)
        except TimeoutError:
            return self._unavailable("no node answered in time")

    def _unavailable(self, reason: str, problem: RaykaError | None = None) -> UnavailableError:
        """The hint asks whether the cluster runs only when none of its nodes answers."""
        if self._does_anyone_answer or isinstance(problem, NotController):
            hint = "a majority of its controllers must run, see `rayka quorum status`"
        else:
            hint = "is it running?"
        return UnavailableError(f"cluster {self.cluster_name!r} is not available: {reason}; {hint}")

    def _awaited(self, what: str, problem: RaykaError | None) -> str:
        return f"cluster {self.cluster_name!r}: still waiting for {what}" + (
            f" ({problem})" if problem else ""
        )

    def _controller_name(self) -> str:
        return "an active controller" if self.controller_id == NO_NODE else node_name(self.controller_id)


def _no_controller(problem: RaykaError) -> str:
    """A NotController problem says it already: then the controllers were asked which of them leads."""
    is_said = isinstance(problem, NotController)
    return str(problem) if is_said else f"the active controller did not answer: {problem}"


def _may_have_run(error: RaykaError) -> bool:
    """Whether the request that failed so may have been executed, now or later."""
    is_lost = isinstance(error, (NetworkException, RequestTimedOut))
    return is_lost or (isinstance(error, NotController) and error.may_have_run)


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


def topic_recreated(topic: MetadataTopic, expected_id: UUID, cluster_name: str) -> TopicRecreated:
    """The error for a topic that is not the one that was asked for, but has its name."""
    return TopicRecreated(
        f"topic {topic.name!r} of cluster {cluster_name!r} was deleted and created again meanwhile: expected id"
        f" {expected_id}, found {topic.topic_id}; offsets and records of the two are never mixed: read it anew,"
        " or seek in the new one"
    )
