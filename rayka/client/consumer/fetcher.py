"""The fetching half of one consumer, on the IO loop: its assignment and positions, and the wait of a poll.

`FetchState` has the positions, `FetchBuffer` the data that have arrived. `FetchLoop` fetches in the background, ahead
of the reader. Invariant: a poll that waits is woken by data, by an error for the application, or by its timeout. Kafka:
Fetcher, FetchCollector (G14, G15, G16, G18).
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

from rayka.client.bootstrap import ClusterHandle
from rayka.client.consumer.delivery import Position
from rayka.client.consumer.fetch_buffer import FetchBuffer, Fetched
from rayka.client.consumer.fetch_loop import FetchLoop
from rayka.client.consumer.fetch_state import FetchStart, FetchState, FetchTicket, Subscription
from rayka.client.consumer.offset_commits import GroupOffsets, OffsetAndMetadata
from rayka.client.coordinator_calls import CoordinatorCalls
from rayka.client.leader_calls import LeaderCalls
from rayka.client.metadata import ClusterMetadata, check_partition, last_partitions, topic_recreated
from rayka.client.silence import SilenceWatch
from rayka.clock import now_s
from rayka.config.client_config import ConsumerConfig
from rayka.errors import InvariantBroken, UnavailableError
from rayka.ids import TopicPartition
from rayka.protocol.fetch import EARLIEST_TIMESTAMP
from rayka.protocol.later import Later
from rayka.protocol.membership import MetadataTopic

# A silence is looked at again after so long: answers may have arrived while the process or its loop stood still.
_ARRIVED_S = 0.1
# The shortest timer. A timer may ring a moment early, and the rest may be too short to pass.
_LEAST_S = 0.001
OnEnd = Callable[[UnavailableError | None], object]


class Fetcher:
    """The fetches of one consumer. Belongs to the IO loop."""

    def __init__(
        self,
        handle: ClusterHandle,
        config: ConsumerConfig,
        random: Random,
        metadata: ClusterMetadata | None = None,
    ) -> None:
        """`metadata` is shared by fetchers of the same topics one after another; None: the fetcher has its own."""
        network = self._network = SilenceWatch(handle.network(config.transport), handle.name)
        self.metadata = metadata or ClusterMetadata(network, handle.name, config, random)
        self.leaders = LeaderCalls(network, self.metadata)
        self.state = FetchState(config)
        self.coordinators = CoordinatorCalls(self.metadata.nodes)
        self.subscription = Subscription(self.state, handle.name)
        self.group_offsets: GroupOffsets | None = None
        if (group_id := config.group_id) is not None:
            timeout_ms, is_read = config.default_api_timeout_ms, self.subscription.reads
            self.group_offsets = GroupOffsets(self.coordinators, self.metadata, group_id, timeout_ms, is_read)
        self.metadata.listen(self._on_topic, may_forget=lambda name: not self.subscription.reads(name))
        self._config = config
        self._wait = PollWait(network, self._has_for_poll, self._is_asking)
        self.state.buffer.on_error = self._wait.tell_soon
        self._loop = FetchLoop(
            self.state,
            self.leaders,
            config,
            random,
            on_arrived=self._wait.tell,
            group_offsets=self.group_offsets,
        )
        self._is_closed = False
        self._is_interrupted = False
        self._is_keeping_up = False
        # The coordinator of a group is asked, so a silence counts also while nothing is assigned.
        self.is_in_group = False

    async def assign(
        self, partitions: Sequence[TopicPartition], topic_ids: Mapping[str, UUID] | None = None
    ) -> None:
        """Reads these partitions from now on; with `topic_ids`, only while the topics have these ids.

        Raises UnknownTopicOrPartition for a partition that does not exist, TopicRecreated for another topic id.
        """
        topics = await self._topics(last_partitions(partitions))
        for tp in partitions:
            check_partition(topics[tp.topic], tp.partition)
        known_ids = {name: topic.topic_id for name, topic in topics.items()}
        for name, topic in topics.items():
            if topic_ids is not None and topic_ids[name] != topic.topic_id:
                raise topic_recreated(topic, topic_ids[name], self.metadata.cluster_name)
        self._assign(partitions, known_ids, is_bounded=topic_ids is not None)
        self._loop.wake()

    def _assign(
        self, partitions: Sequence[TopicPartition], topic_ids: Mapping[str, UUID], *, is_bounded: bool
    ) -> None:
        if not self.state.by_topic:
            self._network.forget()
        self.subscription.assign(partitions, topic_ids, is_bounded=is_bounded)

    async def follow(self, topics: Iterable[str]) -> None:
        """Reads all partitions of these topics from now on, later ones too. Raises as `assign`."""
        found = await self._topics(dict.fromkeys(topics, 0))
        self.subscription.follow(list(found.values()))
        if not self._is_keeping_up:
            self._is_keeping_up = True
            self._loop.spawn(self._keep_up())
        self._loop.wake()

    async def _topics(self, last_partitions: Mapping[str, int]) -> dict[str, MetadataTopic]:
        timeout_ms = self._config.default_api_timeout_ms
        topics = {
            name: await self.metadata.topic_with(name, last, timeout_ms)
            for name, last in last_partitions.items()
        }
        return {name: self.metadata.cached(name) or topic for name, topic in topics.items()}

    def read(self, partitions: Sequence[TopicPartition], *, newer: Iterable[TopicPartition] = ()) -> None:
        """Reads these partitions, of topics that are known, from now on. The `newer` partitions, which were not read
        before, are newer than the subscription: without a committed offset they begin with their first record.
        """
        topics = [self.metadata.cached(name) for name in dict.fromkeys(tp.topic for tp in partitions)]
        known_ids = {topic.name: topic.topic_id for topic in topics if topic is not None}
        self._assign(partitions, known_ids, is_bounded=False)
        for tp in newer:
            self.state.seek_to_timestamp(tp, EARLIEST_TIMESTAMP, is_committed=True)
        self._loop.wake()

    def interrupt(self) -> None:
        """Ends a poll that waits, or else the next one, before anything is delivered."""
        self._is_interrupted = True
        self._wait.tell()

    async def seek(self, partitions: Mapping[TopicPartition, int]) -> None:
        """Begins the next fetch of each partition at its offset."""
        for tp, offset in partitions.items():
            self.state.seek(tp, offset)
        self._loop.wake()

    async def seek_to_timestamp(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> None:
        """Begins the next fetch of each partition at a time, or at -2 the earliest, -1 the latest offset."""
        for tp in partitions:
            self.state.seek_to_timestamp(tp, timestamp_ms)
        self._loop.wake()

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops fetching the partitions until `resume`."""
        self.state.pause(partitions)

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches the partitions again."""
        self.state.resume(partitions)
        self._loop.wake()

    def consumed(self, read: Mapping[TopicPartition, Position]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions to commit: the end of the records that the application was given, partition by partition.
        `read` has the positions that the application's thread knows.

        Records that were fetched ahead count as not given. Records of a former topic of the name are no position in
        the new one.
        """
        waiting: dict[tuple[TopicPartition, int], Fetched] = {}
        for fetched in self.state.buffer.waiting():
            waiting.setdefault((fetched.topic_partition, fetched.position_version), fetched)
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for tp in self.subscription.partitions:
            at, known = self.state.position(tp), read.get(tp)
            ahead = waiting.get((tp, at.position_version))
            if known is not None and known.position_version == at.position_version:
                found[tp] = OffsetAndMetadata(known.offset, leader_epoch=known.leader_epoch)
            elif ahead is not None:
                found[tp] = OffsetAndMetadata(ahead.fetch_offset)
            elif isinstance(at, FetchTicket):
                found[tp] = OffsetAndMetadata(at.fetch_offset, leader_epoch=at.last_fetched_epoch)
        return found

    async def position(self, topic_partition: TopicPartition, read: Position | None, timeout_ms: int) -> int:
        """The offset of the next record, when all that was delivered is `read` up to there. Looks up an unknown one."""
        state, buffer = self.state, self.state.buffer
        if read is not None and read.position_version == state.position(topic_partition).position_version:
            return read.offset
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                at = state.position(topic_partition)
                while isinstance(at, FetchStart) and buffer.error(topic_partition) is None:
                    await self._loop.starts.look_up([at])
                    at = state.position(topic_partition)
        except TimeoutError:
            raise UnavailableError(
                f"cluster {self.metadata.cluster_name!r} did not say within {timeout_ms} ms where {topic_partition}"
                " begins; are its brokers running? see `rayka status`"
            ) from None
        waiting_offset = buffer.first_offset(topic_partition)
        if waiting_offset is not None:
            return waiting_offset
        if isinstance(at, FetchTicket):
            return at.fetch_offset
        raise buffer.take_error(topic_partition)

    def poll(
        self,
        timeout_ms: float,
        deliver: Callable[[Sequence[Fetched]], object],
        silence_ms_max: float = math.inf,
    ) -> Later[bool]:
        """Delivers all that was fetched. Waits up to timeout_ms for data; False when none came.

        Data are taken and delivered in one step: a Ctrl-C in the thread that waits for the answer loses nothing. Ends
        in errors of partitions, and in UnavailableError when no node has answered anything for silence_ms_max. A poll
        that waits while the fetcher is closed or interrupted ends at once.
        """
        ended: Later[bool] = Later(self._wait.give_up)
        if self._is_closed:
            ended.end(False)
            return ended
        if self._loop.start():
            self._loop.spawn(self._network.watch_clock())
        # A fetch without news is answered only after its wait, so a shorter silence does not count.
        silence_ms_max = max(silence_ms_max, 2 * self._config.fetch_max_wait_ms)
        on_end = partial(self._end_poll, ended, deliver)
        self._wait.begin(timeout_ms / 1000, silence_ms_max / 1000, on_end)
        return ended

    def _end_poll(
        self,
        ended: Later[bool],
        deliver: Callable[[Sequence[Fetched]], object],
        silence: UnavailableError | None,
    ) -> None:
        is_interrupted, self._is_interrupted = self._is_interrupted, False
        if silence is not None:
            ended.end(silence)
            return
        if is_interrupted or self._is_closed or not self.state.buffer.has_news():
            ended.end(False)
            return
        was_full, outcome = not self.state.buffer.has_room, _delivered(self.state.buffer, deliver)
        if was_full or self.state.changed:  # a partition whose error was raised is asked again, too
            self._loop.send()
            # Behind the requests: the thread that waits goes on with the records then, and each further step of the
            # loop has to wait for the interpreter.
            asyncio.get_running_loop().call_soon(ended.end, outcome)
        else:
            ended.end(outcome)

    def _has_for_poll(self) -> bool:
        return self._is_interrupted or self._is_closed or self.state.buffer.has_news()

    def _is_asking(self) -> bool:
        """Whether a silence counts: without an assignment, and without a group, no node is asked."""
        return self.is_in_group or bool(self.state.by_topic)

    async def close(self) -> None:
        """Stops fetching, gives up requests in flight, and ends the fetch sessions."""
        await asyncio.gather(*self.abandon(), return_exceptions=True)
        await self._loop.end_sessions()

    def abandon(self) -> "list[asyncio.Task[Any]]":
        """Cancels all that is under way; returns the tasks that are ending."""
        self._is_closed = True
        self.metadata.unlisten(self._on_topic)
        self._wait.tell()
        commits = self.group_offsets.abandon() if self.group_offsets is not None else []
        return [*self._loop.cancel(), *commits, *self.coordinators.abandon()]

    async def _keep_up(self) -> None:
        """Refreshes the metadata of followed topics at their maximum age, also while nothing else asks for them."""
        try:
            while followed := tuple(self.subscription.followed):
                await asyncio.sleep(self._config.metadata_max_age_ms / 1000)
                await self._loop.refresh(followed)
        finally:
            self._is_keeping_up = False

    def _on_topic(self, topic: MetadataTopic) -> None:
        if self.subscription.on_metadata(topic):
            self._loop.wake()


class PollWait:
    """The wait of a poll for data, for an error of the application, for an interruption, or for its timeout.

    Invariants: one poll waits at a time; a wait ends once, in the step that brings the data, since one more step of the
    loop would take about as long as the work in it; a silence of all nodes is an error, once in as long a time.

    The end of a wait is a callback: with a coroutine for each poll one record in flight takes 7 % more processor time,
    of client and broker together (1,431 instead of 1,334 us, the least of three runs). Kafka:
    `FetchBuffer.awaitWakeup`.
    """

    def __init__(
        self, network: SilenceWatch, is_over: Callable[[], bool], is_asking: Callable[[], bool]
    ) -> None:
        self._network = network
        # Whether the poll has something to take.
        self._is_over = is_over
        # Whether a silence of the nodes counts.
        self._is_asking = is_asking
        self._on_end: OnEnd | None = None
        self._deadline_s = 0.0
        self._silence_s_max = 0.0
        # The nodes have been silent for too long, unless answers that have arrived are about to be taken.
        self._is_silent = False
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<PollWait {'waiting' if self._on_end is not None else 'idle'}>"

    def begin(self, timeout_s: float, silence_s_max: float, on_end: OnEnd) -> None:
        """Calls `on_end` at the end of the wait, which may be at once: with None, or with the error of a silence that
        has lasted too long. The next such error comes after another silence as long.
        """
        if self._on_end is not None:
            raise InvariantBroken(f"{self!r} has begun already")
        self._on_end = on_end
        self._deadline_s, self._silence_s_max = now_s() + timeout_s, silence_s_max
        self._is_silent = False
        self._look()

    def tell(self) -> None:
        """Ends the wait if there is something to take."""
        if self._on_end is not None and self._is_over():
            self._end(None)

    def tell_soon(self) -> None:
        """As `tell`, behind this step of the loop, which may bring more."""
        if self._on_end is not None:
            asyncio.get_running_loop().call_soon(self.tell)

    def give_up(self) -> None:
        """Ends the wait without a call."""
        self._on_end = None
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self._is_over():
            self._end(None)
            return
        silence_left_s = self._silence_left_s()
        if silence_left_s <= 0:
            if self._is_silent:
                self._network.forget()
                self._end(self._network.error(self._silence_s_max))
                return
            self._is_silent = True
            wait_s = _ARRIVED_S
        else:
            self._is_silent = False
            wait_s = min(self._deadline_s - now_s(), silence_left_s)
        if wait_s <= 0:
            self._end(None)
        else:
            self._timer = asyncio.get_running_loop().call_later(max(wait_s, _LEAST_S), self._look)

    def _silence_left_s(self) -> float:
        return self._network.remaining_s(self._silence_s_max) if self._is_asking() else self._silence_s_max

    def _end(self, error: UnavailableError | None) -> None:
        on_end = self._on_end
        self.give_up()
        if on_end is not None:
            on_end(error)


def _delivered(buffer: FetchBuffer, deliver: Callable[[Sequence[Fetched]], object]) -> bool | Exception:
    """True, or the error for the application."""
    try:
        deliver(buffer.take())
    except Exception as error:
        return error
    return True
