"""One consumer's membership of its group on the IO loop: sends the requests of the core, keeps its time, and watches
its topics.

Joins, syncs, heartbeats and leaves run here, and never in a thread of the application. Each is awaited by a task of its
own. A change of the assignment is offered as `ready`, and the thread that polls applies it. That thread notes when it
polls: a member whose application does not poll for `max_poll_interval_ms` leaves (E6).

Invariants: a failure of the coordinator changes nothing of the assignment; after the end nothing is sent but one leave,
and nothing is offered. Kafka: AbstractCoordinator, ConsumerCoordinator, HeartbeatThread.
"""

import asyncio
import logging
import re
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from rayka.client.consumer.fetcher import Fetcher
from rayka.client.consumer.group_membership import (
    GroupMetadata,
    Handover,
    LookUpTopics,
    Membership,
    MemberState,
    Step,
)
from rayka.client.metadata import ClusterMetadata, last_partitions
from rayka.client.retry import telling
from rayka.clock import now_s
from rayka.config.client_config import ConsumerConfig
from rayka.coordinator.assignors.subscribers import PartitionRacks
from rayka.errors import ErrorCode, RaykaError, UnknownTopicOrPartition
from rayka.ids import ZERO_ID, TopicPartition, is_internal
from rayka.protocol.groups import (
    GroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from rayka.protocol.membership import MetadataRequest, MetadataTopic

# For the answer to a join that has waited for as long as it may.
_PARKED_SLACK_MS = 5_000
# Steps that wait for no other.
_BESIDE = (GroupHeartbeatRequest, LeaveGroupRequest)
_LEAVE_TIMEOUT_MS = 5_000
# Longer than a rebalance in which all members poll: they learn of it by a heartbeat, every 3 s.
_TELL_PARKED_AFTER_S = 10.0

logger = logging.getLogger(__name__)


class ConsumerCoordinator:
    """Runs one member's protocol on the IO loop.

    The polling thread only reads `ready`, `metadata`, `membership.topics` and `membership.failure`, and sets
    `polled_s` and `is_waiting`.
    """

    def __init__(self, config: ConsumerConfig, fetcher: Fetcher, client_host: str = "") -> None:
        # The time of the last call of poll, or of the last step of a poll that waits.
        self.polled_s = now_s()
        # A poll waits for the IO thread, and runs no code of the application.
        self.is_waiting = False
        self._is_ended = False
        self.membership = Membership(config, client_host)
        self._config = config
        self._group_id = self.membership.metadata.group_id
        self._fetcher = fetcher
        self._metadata = fetcher.metadata
        self._topics = TopicWatch(fetcher.metadata, config.default_api_timeout_ms)
        self._pattern: re.Pattern[str] | None = None
        # The handover of the core. It is `ready` once the topics of its new partitions are known, until it is applied
        # or the core replaces it.
        self._offered: Handover | None = None
        self.ready: Handover | None = None
        # By task: its step, or None for one that looks after topics.
        self._tasks: dict[asyncio.Task[None], Step | None] = {}
        self._timer: asyncio.TimerHandle | None = None
        # The handover that was applied last.
        self._applied: Handover | None = None
        self._watching: asyncio.Task[None] | None = None
        self._metadata.listen(self._on_topic)
        if fetcher.group_offsets is not None:
            fetcher.group_offsets.successor = self.membership.successor

    def __repr__(self) -> str:
        return f"<ConsumerCoordinator {self.membership!r} ready={self.ready is not None}>"

    # ---- For the thread that polls -----------------------------------------------------------------------------------

    @property
    def metadata(self) -> GroupMetadata:
        return self.membership.metadata

    @property
    def is_settled(self) -> bool:
        """Whether the member has its assignment, and no change is due."""
        return self.membership.state is MemberState.STABLE and self.membership.handover is None

    # ---- For the thread that polls, on the loop ----------------------------------------------------------------------

    async def subscribe(self, topics: tuple[str, ...], pattern: re.Pattern[str] | None = None) -> None:
        """Subscribes to these topics, or to those that match. The next poll joins. Raises UnknownTopicOrPartition."""
        found = await (self._topics.named(topics) if pattern is None else self._topics.matching(pattern))
        self._pattern, self._fetcher.is_in_group = pattern, True
        self._topics.subscribe(found)
        self.membership.subscribe(tuple(each.name for each in found))
        if self._watching is None:
            self._watching = self._spawn(self._keep_up())
        self._advance()

    async def take_failure(self) -> RaykaError | None:
        failure = self.membership.take_failure()
        self._advance()
        return failure

    async def read(self, ready: Handover) -> bool:
        """Reads the new assignment, after the application was told of revoked partitions. False when the core has
        replaced the handover, for example because all partitions are lost.
        """
        # A poll that was interrupted behind this call repeats it.
        if ready is self._applied:
            return True
        if ready is not self.ready:
            return False
        self._applied = ready
        newer = [each for each in ready.added or () if self._topics.is_newer(each)]
        self._fetcher.read(ready.read, newer=newer)
        self.membership.on_handed_over(ready)
        if ready.added is not None:
            logger.info("%r reads %d partitions", self.membership, len(ready.read))
        self._advance()
        return True

    async def begin_leaving(self) -> None:
        """Leaves behind the next handover, which revokes all partitions."""
        self._pattern = None
        self.membership.begin_leaving()
        self._advance()

    async def close(self) -> None:
        """Leaves if the member has not left, waits for a leave that is under way, and ends all other tasks."""
        await asyncio.gather(*self.abandon(), return_exceptions=True)

    def abandon(self) -> "list[asyncio.Task[None]]":
        """As `close` without waiting; returns the tasks that are ending."""
        self.membership.expire("the consumer was closed or is gone")
        self._advance()
        return self.end()

    def end(self) -> "list[asyncio.Task[None]]":
        """Ends all tasks but a leave that is under way, and sends no leave, as the death of the process would; returns
        the tasks that are ending.
        """
        self._is_ended, self._offered, self.ready = True, None, None
        self._fetcher.is_in_group = False
        self._metadata.unlisten(self._on_topic)
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            if not isinstance(self._tasks[task], LeaveGroupRequest):
                task.cancel()
        return tasks

    # ---- Steps of the core -------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Sends the steps that are due, and offers the handover. Called after each input of the core, and when its time
        comes.
        """
        # A callback of the group, or another thread, may go on for a while after the end.
        if self._is_ended:
            return
        self._look_at_polls()
        while (step := self.membership.next_step(_now_ms())) is not None:
            if not isinstance(step, _BESIDE):
                self._end_abandoned()
            self._spawn(self._take(step), step)
        self._offer(self.membership.handover)
        if self.membership.failure is not None:
            self._fetcher.interrupt()
        self._arm()

    def _offer(self, handover: Handover | None) -> None:
        """Replaces the handover that was offered."""
        if handover == self._offered:
            return
        self._offered, self.ready = handover, None
        if handover is not None and handover.added:
            self._spawn(self._learn_topics(handover))
        elif handover is not None:
            self.ready = handover
            self._fetcher.interrupt()

    async def _learn_topics(self, handover: Handover) -> None:
        """Learns the topics of added partitions, until they are known or the core replaces the handover."""
        while handover is self._offered:
            try:
                added = await self._topics.learn(handover.added or (), self._group_id)
            except RaykaError as error:
                logger.debug("group %r: topics: %s", self._group_id, error)
                await asyncio.sleep(self._config.retry_backoff_ms / 1000)
                continue
            if handover is self._offered:
                self.ready = replace(handover, added=added)
                self._fetcher.interrupt()
            return

    def _look_at_polls(self) -> None:
        if self.membership.state is MemberState.UNJOINED or self.is_waiting:
            return
        if now_s() - self.polled_s >= self._config.max_poll_interval_ms / 1000:
            logger.warning(
                "group %r: the application has not polled for max_poll_interval_ms=%d, or what it runs within poll (a"
                " deserializer, an interceptor, a callback of the group) has not returned: the consumer leaves the"
                " group, and joins again with the next poll; poll more often, take fewer records (max_poll_records),"
                " or raise the limit",
                self._group_id,
                self._config.max_poll_interval_ms,
            )
            self.membership.expire("the application did not poll within max_poll_interval_ms")

    def _arm(self) -> None:
        due_s = []
        if (due_ms := self.membership.next_due_ms()) is not None:
            due_s.append(due_ms / 1000)
        if self.membership.state is not MemberState.UNJOINED:
            polled_s = now_s() if self.is_waiting else self.polled_s
            due_s.append(polled_s + self._config.max_poll_interval_ms / 1000)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(min(due_s), self._advance) if due_s else None

    def _end_abandoned(self) -> None:
        """Ends the step that the core does not wait for any more. It must not be tried on: the assignment of a
        generation that has ended would be taken for that of the next one, which may have the same number after a
        fail-over.
        """
        for task, step in self._tasks.items():
            if step is not None and not isinstance(step, _BESIDE) and task is not asyncio.current_task():
                task.cancel()

    def _spawn(self, coroutine: Coroutine[Any, Any, None], step: Step | None = None) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = step
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        """Reports an unforeseen exception, which must not end a member in silence."""
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a member of group %r failed", self._group_id, exc_info=error)
            self.membership.fail(RaykaError(f"a member of group {self._group_id!r} failed: {error!r}"))
            self._advance()

    async def _take(self, step: Step) -> None:
        try:
            response = await self._answer(step)
        except RaykaError as error:
            logger.debug("%r: %s", self, error)
            self.membership.on_error(step, error, _now_ms())
        else:
            self.membership.on_response(step, response, _now_ms())
        self._advance()

    async def _answer(self, step: Step) -> Any:
        call, config = self._fetcher.coordinators.call, self._config
        if isinstance(step, LookUpTopics):
            return await self._topics.partitions(step.topics, has_racks=step.has_racks)
        if isinstance(step, (JoinGroupRequest, SyncGroupRequest)):
            logger.info("group %r: %s as member %r", self._group_id, type(step).__name__, step.member_id)
            timeout_ms = config.max_poll_interval_ms + _PARKED_SLACK_MS
            with telling(partial(self._awaited, step), _TELL_PARKED_AFTER_S):
                return await call(self._group_id, step, timeout_ms, may_park=True)
        is_heartbeat = isinstance(step, GroupHeartbeatRequest)
        timeout_ms = config.session_timeout_ms if is_heartbeat else _LEAVE_TIMEOUT_MS
        return await call(self._group_id, step, timeout_ms)

    def _awaited(self, step: JoinGroupRequest | SyncGroupRequest) -> str:
        """The warning of a join or sync that waits for long."""
        waits = f"group {self._group_id!r}: this consumer has waited {_TELL_PARKED_AFTER_S:g} s"
        if isinstance(step, SyncGroupRequest):
            return f"{waits} for the assignments that the leader of the group is to send; see `rayka group describe`"
        return (
            f"{waits} for other members to join the rebalance. A member that does not poll is waited for until its"
            f" max_poll_interval_ms is over (here {self._config.max_poll_interval_ms} ms). That may be a consumer of"
            " this process that was not closed, such as one of a notebook cell that ran before: close it; `rayka group"
            f" describe {self._group_id}` lists the members"
        )

    # ---- Topics ------------------------------------------------------------------------------------------------------

    async def look_at_topics(self) -> None:
        """Asks for the topics of the member and of the group. A member with a pattern may subscribe to others then, a
        leader may have to assign anew, and partitions that are gone are not read until they are there again.
        """
        pattern, led = self._pattern, self.membership.leader_topics or {}
        owned = {tp.topic: None for tp in self.membership.owned}
        found = await self._topics.partitions({**owned, **led}, has_racks=self.membership.has_racks)
        if pattern is not None:
            matching = await self._topics.matching(pattern)
            if pattern is self._pattern:
                self._topics.match(matching)
                self.membership.subscribe(tuple(each.name for each in matching))
        self.membership.on_topics({name: found[name] for name in led})
        self._read_existing()
        self._advance()

    def _read_existing(self) -> None:
        former = self._fetcher.subscription.partitions
        existing = self._topics.existing(self.membership.owned)
        gone = [tp for tp in former if tp not in existing]
        if gone or len(existing) > len(former):
            self._fetcher.read(existing)
        if gone:
            logger.warning(
                "group %r: %s: there is no such partition any more",
                self._group_id,
                ", ".join(f"{tp}" for tp in gone),
            )

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(self._config.metadata_max_age_ms / 1000)
            try:
                await self.look_at_topics()
            except RaykaError as error:
                logger.debug("group %r: its topics: %s", self._group_id, error)

    def _on_topic(self, topic: MetadataTopic) -> None:
        """Tells a leader of a changed topic without waiting for the next look."""
        led = self.membership.leader_topics
        if led is not None and topic.name in led:
            racks = self._topics.racks_of(topic, has_racks=self.membership.has_racks)
            self.membership.on_topics({**led, topic.name: racks})
            self._advance()


class TopicWatch:
    """The topics of a member: their partitions, and the racks of these. Methods that ask raise RaykaError.

    A pattern matches whole names, as Kafka's does, and no internal topic. A partition is newer than the member's
    subscription if it was added since, or if its topic came to match since: all its records are newer, too. Kafka:
    ConsumerMetadata (E8).
    """

    def __init__(self, metadata: ClusterMetadata, timeout_ms: int) -> None:
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        # By topic: its id, and its partition count when the member subscribed, 0 if the topic came to match later.
        self._begun: dict[str, tuple[UUID, int]] = {}

    async def named(self, names: Iterable[str]) -> list[MetadataTopic]:
        """The topics of these names. Raises UnknownTopicOrPartition."""
        return [await self._metadata.topic(name, self._timeout_ms) for name in names]

    async def matching(self, pattern: re.Pattern[str]) -> list[MetadataTopic]:
        """The topics that match now, by name."""
        response = await self._metadata.nodes.ask_any_broker(MetadataRequest())
        found = (each for each in response.topics if each.error_code is ErrorCode.NONE)
        matching = (each for each in found if pattern.fullmatch(each.name) and not is_internal(each.name))
        return sorted(matching, key=lambda each: each.name)

    def subscribe(self, topics: Iterable[MetadataTopic]) -> None:
        """Notes the topics that the member subscribes to from now on."""
        begun, self._begun = self._begun, {}
        for each in topics:
            self._begun[each.name] = begun.get(each.name, (each.topic_id, len(each.partitions)))

    def match(self, topics: Iterable[MetadataTopic]) -> None:
        """Notes the topics that match the member's pattern now. Topics that did not match before are newer."""
        for each in topics:
            self._begun.setdefault(each.name, (each.topic_id, 0))

    def is_newer(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition is newer than the member's subscription. False after the topic was created again:
        `Subscription` decides where reading starts then.
        """
        topic_id, count = self._begun.get(topic_partition.topic, (ZERO_ID, 0))
        topic = self._metadata.cached(topic_partition.topic)
        return topic is not None and topic.topic_id == topic_id and topic_partition.partition >= count

    async def partitions(self, topics: Iterable[str], *, has_racks: bool) -> dict[str, PartitionRacks]:
        """`racks_of` of each topic by newest metadata; empty for a topic that does not exist."""
        names = tuple(topics)
        problem = await self._metadata.refresh(names)
        if problem is not None:
            raise problem
        known = {name: self._metadata.cached(name) for name in names}
        return {
            name: self.racks_of(topic, has_racks=has_racks) if topic else () for name, topic in known.items()
        }

    def racks_of(self, topic: MetadataTopic, *, has_racks: bool) -> PartitionRacks:
        """The racks of the replicas of each partition. Without `has_racks` all are empty, and only their number
        counts.
        """
        if not has_racks:
            return ((),) * len(topic.partitions)
        rack_of = {each.node_id: each.rack for each in self._metadata.nodes.brokers if each.rack}
        racks_of = {
            replicas: tuple(sorted({rack_of[each] for each in replicas if each in rack_of}))
            for replicas in dict.fromkeys(each.replicas for each in topic.partitions)
        }
        return tuple(racks_of[each.replicas] for each in topic.partitions)

    async def learn(
        self, partitions: tuple[TopicPartition, ...], group_id: str
    ) -> tuple[TopicPartition, ...]:
        """The partitions of an assignment, once their topics are known. Partitions of a topic that is gone are left
        out: the leader of the group will assign anew.
        """
        for name, partition in last_partitions(partitions).items():
            try:
                await self._metadata.topic_with(name, partition, self._timeout_ms)
            except UnknownTopicOrPartition as error:
                logger.warning("group %r was assigned partitions of %r: %s", group_id, name, error)
        return self.existing(partitions)

    def existing(self, partitions: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
        """The partitions that exist by the newest metadata."""
        return tuple(each for each in partitions if self._metadata.partition(each.topic, each.partition))


def _now_ms() -> int:
    return int(now_s() * 1000)
