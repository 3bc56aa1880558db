"""Fetches for a consumer in the background: one session of fetches per broker for all partitions that want data, ahead
of the reader.

Invariants: a poll that waits is woken by data, by an error for the application, or by its timeout; errors that pass by
themselves are retried with back-off, after a refresh of the metadata where they ask for one; an error of one partition
holds up no other. A wake-up of the loop costs as much as has changed, not as much as is assigned. A node that is silent
for longer than a fetch without news takes is given up as soon as the metadata name another one to ask (`call_watch`). A
leader may send the reader to a follower in its rack; any error there sends it back to the leader, which alone decides
about offsets and epochs. Kafka: Fetcher, FetchCollector (G14, G15, G16, G18).
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any
from uuid import UUID

from rayka.client.bootstrap import ClusterHandle
from rayka.client.call_watch import CallWatch, Patience
from rayka.client.consumer.delivery import Position
from rayka.client.consumer.fetch_exchange import FetchExchange
from rayka.client.consumer.fetch_plan import FetchPlanner
from rayka.client.consumer.fetch_starts import FetchStarts
from rayka.client.consumer.fetch_state import Fetched, FetchState, FetchTicket
from rayka.client.consumer.node_fetches import NodeFetches
from rayka.client.consumer.subscription import Subscription
from rayka.client.leader_calls import LeaderCalls
from rayka.client.metadata import ClusterMetadata, check_partition, topic_recreated
from rayka.client.retry import Backoff
from rayka.client.silence import SilenceWatch
from rayka.config import ConsumerConfig
from rayka.errors import ApiError, RaykaError, UnavailableError, needs_metadata
from rayka.ids import TopicPartition
from rayka.protocol.fetch_session import SessionRequest
from rayka.protocol.membership import MetadataTopic

logger = logging.getLogger(__name__)
_LATE_S = 0.1  # an answer is late when it comes so long after the broker's wait
_ARRIVED_S = 0.1  # for answers that arrived while the process or its loop stood still


class Fetcher:
    """The fetching half of one consumer, on the IO loop; `rayka.client.consumer.consumer` is its sync face."""

    def __init__(
        self,
        handle: ClusterHandle,
        config: ConsumerConfig,
        random: Random,
        metadata: ClusterMetadata | None = None,
    ) -> None:
        """`metadata`: shared by fetchers of the same topics one after another; else the fetcher has its own."""
        network = self._network = SilenceWatch(handle.network(), handle.name)
        self.metadata = metadata or ClusterMetadata(network, handle.name, config, random)
        self.leaders = LeaderCalls(network, self.metadata)
        self.state = FetchState(
            auto_offset_reset=config.auto_offset_reset,
            partition_bytes_max=config.max_partition_fetch_bytes,
            total_bytes_max=config.fetch_max_bytes,
        )
        self.subscription = Subscription(self.state, handle.name, self._on_error)
        self.metadata.listen(self._on_topic)
        self._config = config
        self._backoff = Backoff.of(config, random)
        self._planner = FetchPlanner(self.state, self.metadata, config.max_partition_fetch_bytes)
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._starts = FetchStarts(
            self.state,
            self.leaders,
            config.default_api_timeout_ms,
            wake=self._wake.set,
            on_error=self._on_error,
        )
        self._driver: asyncio.Task[None] | None = None
        self._is_closed = False
        self._fetches: dict[asyncio.Task[None], None] = {}
        self._refreshed: dict[str, None] = {}
        answer_s = config.fetch_max_wait_ms / 1000 + _LATE_S
        self._calls = CallWatch[NodeFetches](Patience(answer_s, answer_s), self._on_silent)
        self._exchange = FetchExchange(network, config, self.metadata, self.state, self._calls)

    # ---- For the consumer ------------------------------------------------------------------------------------------

    async def assign(
        self, partitions: Sequence[TopicPartition], topic_ids: Mapping[str, UUID] | None = None
    ) -> None:
        """Reads these partitions from now on; with `topic_ids`, only while the topics have these ids.

        Raises UnknownTopicOrPartition for one that does not exist, TopicRecreated for one of another topic.
        """
        topics = await self._topics(_last_partitions(partitions))
        for tp in partitions:
            check_partition(topics[tp.topic], tp.partition)
        known_ids = {name: topic.topic_id for name, topic in topics.items()}
        for name, topic in topics.items():
            if topic_ids is not None and topic_ids[name] != topic.topic_id:
                raise topic_recreated(topic, topic_ids[name], self.metadata.cluster_name)
        if not self.state.by_topic:
            self._network.forget()
        self.subscription.assign(partitions, known_ids, is_bounded=topic_ids is not None)
        self._wake.set()

    async def follow(self, topics: Iterable[str]) -> None:
        """Reads all partitions of these topics from now on, and those that will be added. Raises as `assign`."""
        found = await self._topics(dict.fromkeys(topics, 0))
        self.subscription.follow(list(found.values()))
        self._spawn(self._keep_up())
        self._wake.set()

    async def _topics(self, last_partitions: Mapping[str, int]) -> dict[str, MetadataTopic]:
        timeout_ms = self._config.default_api_timeout_ms
        topics = {
            name: await self.metadata.topic_with(name, last, timeout_ms)
            for name, last in last_partitions.items()
        }
        return {name: self.metadata.cached(name) or topic for name, topic in topics.items()}

    async def seek(self, partitions: Mapping[TopicPartition, int]) -> None:
        """The next fetch of each partition begins at its offset."""
        for tp, offset in partitions.items():
            self.state.seek(tp, offset)
        self._wake.set()

    async def seek_to_timestamp(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> None:
        """The next fetch of each partition begins at a time, or at -2 the earliest, -1 the latest offset."""
        for tp in partitions:
            self.state.seek_to_timestamp(tp, timestamp_ms)
        self._wake.set()

    async def position(self, topic_partition: TopicPartition, read: Position | None, timeout_ms: int) -> int:
        """Of the next record, when all that was delivered is `read` up to there; looked up if it is unknown."""
        if read is not None and read.generation == self.state.generation(topic_partition):
            return read.offset
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while start := self.state.start(topic_partition):
                    await self._starts.look_up(start)
        except TimeoutError:
            raise UnavailableError(
                f"cluster {self.metadata.cluster_name!r} did not say within {timeout_ms} ms where {topic_partition}"
                " begins; are its brokers running? see `rayka status`"
            ) from None
        return self.state.oldest_offset(topic_partition)

    async def poll(
        self,
        timeout_ms: float,
        deliver: Callable[[Sequence[Fetched]], object],
        *,
        silence_ms_max: float = math.inf,
    ) -> bool:
        """Delivers everything fetched; waits up to timeout_ms for something, False when nothing came.

        What is taken is delivered in the same step: a Ctrl-C in the thread that waits for the answer loses nothing.
        Raises errors of partitions, and UnavailableError whenever no node has answered anything for
        silence_ms_max. A poll that waits while the fetcher is closed ends at once.
        """
        if self._is_closed:
            return False
        if self._driver is None:
            self._driver = asyncio.get_running_loop().create_task(self._drive())
            self._spawn(self._network.watch_clock())
        # A fetch without news is answered after its wait: so long a silence is none.
        silence_ms_max = max(silence_ms_max, 2 * self._config.fetch_max_wait_ms)
        await self._wait_for_news(timeout_ms / 1000, silence_ms_max / 1000)
        if self._is_closed or not self.state.has_news():
            return False
        deliver(self.state.take())
        self._wake.set()
        return True

    async def _wait_for_news(self, timeout_s: float, silence_s_max: float) -> None:
        """Raises UnavailableError when a silence has lasted too long, and then not again before as long a one."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while not self.state.has_news() and not self._is_closed:
            if self._silence_remaining_s(silence_s_max) <= 0:
                await asyncio.sleep(_ARRIVED_S)
                if self._silence_remaining_s(silence_s_max) <= 0 and not self.state.has_news():
                    self._network.forget()
                    raise self._network.error(silence_s_max)
            remaining_s = deadline_s - loop.time()
            if remaining_s <= 0:
                return
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(remaining_s, self._silence_remaining_s(silence_s_max))):
                    await self._news.wait()

    def _silence_remaining_s(self, silence_s_max: float) -> float:
        """Without an assignment nothing is asked, so no silence counts."""
        return self._network.remaining_s(silence_s_max) if self.state.by_topic else math.inf

    async def close(self) -> None:
        """Stops fetching; what is in flight is given up, and the brokers forget what was asked."""
        await asyncio.gather(*self.abandon(), return_exceptions=True)
        await self._exchange.close(self._planner.nodes.values())

    def abandon(self) -> "list[asyncio.Task[None]]":
        """Cancels what is under way; returns the tasks that are ending."""
        self._is_closed = True
        self.metadata.unlisten(self._on_topic)
        self._news.set()
        tasks = [*self._fetches, *([self._driver] if self._driver else [])]
        for task in tasks:
            task.cancel()
        return tasks

    # ---- The loop --------------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._look_up_unknown()
                self._send_fetches()
                await self._plan_all()
            except Exception as error:  # ours to report: the application waits for it in poll
                self._fail_all(error)
            await self._wake.wait()

    async def _keep_up(self) -> None:
        """Refreshes the metadata of topics that are followed at their maximum age, also while nothing else asks."""
        while followed := self.subscription.followed:
            await asyncio.sleep(self._config.metadata_max_age_ms / 1000)
            await self._refresh(followed)

    def _on_topic(self, topic: MetadataTopic) -> None:
        if self.subscription.on_metadata(topic):
            self._wake.set()

    def _look_up_unknown(self) -> None:
        look_up = self._starts.begin()
        if look_up is not None:
            self._spawn(look_up)
            asyncio.get_running_loop().call_soon(self._wake.set)  # there may be more

    async def _plan_all(self) -> None:
        """In steps, between which other tasks run: there may be thousands of partitions."""
        while not self._planner.is_done:
            await asyncio.sleep(0)
            self._send_fetches()

    def _send_fetches(self) -> None:
        self._planner.update()
        for tp, error in self._planner.take_gone().items():
            self._on_error(tp, error)
        for node in self._planner.nodes.values() if self.state.has_room else ():
            if node.may_send:
                self._spawn(self._fetch(node, *node.begin()))
        topics = tuple(each for each in self._planner.stale_topics if each not in self._refreshed)
        if topics:
            self._refreshed.update(dict.fromkeys(topics))
            self._spawn(self._refresh_later(topics))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._fetches[task] = None
        task.add_done_callback(self._on_done)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        del self._fetches[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail_all(error)
        self._wake.set()

    # ---- One fetch -------------------------------------------------------------------------------------------------

    async def _fetch(self, node: NodeFetches, number: int, session: SessionRequest) -> None:
        trouble = await self._exchange.run(node, number, session)
        if self.state.has_news():
            self._news.set()
        if trouble.node_error is not None:
            node.is_paused = True
            self._spawn(self._recover_node(node, trouble.node_error, _topics(node.tickets())))
        if trouble.partitions:
            tickets = [ticket for ticket, _ in trouble.partitions]
            for ticket in tickets:
                self.state.rest(ticket)
            self._spawn(self._recover(tickets, [error for _, error in trouble.partitions]))

    async def _recover_node(self, node: NodeFetches, error: ApiError, topics: tuple[str, ...]) -> None:
        """Pauses the node. The refreshed metadata may name other nodes for its partitions."""
        try:
            await self._pause(topics, [error])
        finally:
            node.is_paused = False

    async def _recover(self, tickets: Sequence[FetchTicket], errors: Sequence[ApiError]) -> None:
        try:
            await self._pause(_topics(tickets), errors)
        finally:
            for ticket in tickets:
                self.state.end_rest(ticket)

    async def _pause(self, topics: tuple[str, ...], errors: Sequence[ApiError]) -> None:
        if any(needs_metadata(each.code) for each in errors):
            await self._refresh(topics)
            self._wake.set()
        await asyncio.sleep(self._backoff.pause_ms(1) / 1000)

    def _on_silent(self, node_id: int, fetches: list[NodeFetches]) -> None:
        self.metadata.nodes.doubt(node_id)
        self._spawn(self._look_elsewhere(_topics(ticket for node in fetches for ticket in node.tickets())))

    async def _look_elsewhere(self, topics: tuple[str, ...]) -> None:
        """Gives up calls to nodes from which, by newer metadata, nothing is wanted any more."""
        await self._refresh(topics)
        self._send_fetches()
        await self._plan_all()
        self._calls.give_up(lambda _, node: not node.is_any_wanted)

    async def _refresh_later(self, topics: tuple[str, ...]) -> None:
        """One at a time for a topic: else each wake-up of the loop would begin another while there is no leader."""
        try:
            await self._refresh(topics)
            await asyncio.sleep(self._backoff.pause_ms(1) / 1000)
        finally:
            for name in topics:
                del self._refreshed[name]

    async def _refresh(self, topics: tuple[str, ...]) -> None:
        await self.metadata.refresh(topics)
        for name, partitions in self.state.by_topic.items():
            if (gone := self.metadata.missing(name)) is not None:
                for tp in partitions:
                    self._on_error(tp, gone)

    # ---- Errors ----------------------------------------------------------------------------------------------------

    def _on_error(self, topic_partition: TopicPartition, error: RaykaError) -> None:
        self.state.fail(topic_partition, error)
        self._news.set()

    def _fail_all(self, error: BaseException) -> None:
        known = error if isinstance(error, RaykaError) else RaykaError(f"fetching failed: {error!r}")
        if known is not error:
            logger.error("fetching failed", exc_info=error)
        for tp in self.state.assignment:
            self._on_error(tp, known)


def _topics(tickets: Iterable[FetchTicket]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.topic_partition.topic for each in tickets))


def _last_partitions(partitions: Iterable[TopicPartition]) -> dict[str, int]:
    """The highest number of each topic."""
    last: dict[str, int] = {}
    for tp in partitions:
        last[tp.topic] = max(tp.partition, last.get(tp.topic, 0))
    return last
