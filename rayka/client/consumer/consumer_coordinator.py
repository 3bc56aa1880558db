"""One consumer's membership of its group on the IO loop: sends what the core wants, keeps its time, watches its topics.

Heartbeats, joins and syncs run here and never in a thread of the application. What changes for the application is
offered to its face as `ready`. The face says when it polls, so a member whose application does not poll for
`max_poll_interval_ms` leaves (E6). Invariants: a failure of the coordinator changes nothing of what is read; after the
end nothing is sent but one leave, and nothing is offered. Kafka: AbstractCoordinator, ConsumerCoordinator,
HeartbeatThread.
"""

import asyncio
import logging
import re
from collections.abc import Coroutine, Iterable, Mapping
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
from rayka.client.retry import now_s, telling
from rayka.config.client_config import ConsumerConfig
from rayka.coordinator.assignors.assignor import PartitionRacks
from rayka.errors import ErrorCode, RaykaError, UnknownTopicOrPartition
from rayka.ids import ZERO_ID, TopicPartition, is_internal
from rayka.protocol.groups import (
    GroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from rayka.protocol.membership import MetadataRequest, MetadataTopic

# Which topics there are for a member of a group, how many partitions they have, and in which racks.
#
# A pattern matches whole names, as Kafka's does, and no internal topic. What is newer than the member's subscription, a
# partition that was added or a topic that has come to match, is known as such: all its records are newer, too. Kafka:
# ConsumerMetadata (E8).


class TopicWatch:
    """See the module. Belongs to the loop; asks when it is called, and raises RaykaError where no node can say."""

    def __init__(self, metadata: ClusterMetadata, timeout_ms: int) -> None:
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        # By topic: its id, and how many partitions it had when the member subscribed to it, none if it came later.
        self._begun: dict[str, tuple[UUID, int]] = {}

    def __repr__(self) -> str:
        return f"<TopicWatch {self._metadata!r}>"

    async def named(self, names: Iterable[str]) -> list[MetadataTopic]:
        """The topics of these names. Raises UnknownTopicOrPartition of one that does not exist."""
        return [await self._metadata.topic(name, self._timeout_ms) for name in names]

    async def matching(self, pattern: re.Pattern[str]) -> list[MetadataTopic]:
        """The topics that match now, by name."""
        response = await self._metadata.nodes.ask_any_broker(MetadataRequest())
        found = (each for each in response.topics if each.error_code is ErrorCode.NONE)
        matching = (each for each in found if pattern.fullmatch(each.name) and not is_internal(each.name))
        return sorted(matching, key=lambda each: each.name)

    def subscribe(self, topics: Iterable[MetadataTopic]) -> None:
        """The member reads these from now on, and no others."""
        begun, self._begun = self._begun, {}
        for each in topics:
            self._begun[each.name] = begun.get(each.name, (each.topic_id, len(each.partitions)))

    def match(self, topics: Iterable[MetadataTopic]) -> None:
        """These match the member's pattern now; those that did not before are newer than its subscription."""
        for each in topics:
            self._begun.setdefault(each.name, (each.topic_id, 0))

    def is_newer(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition is newer than the member's subscription. One of a topic that was deleted and created
        again is not: what is read of that is another rule's.
        """
        topic_id, count = self._begun.get(topic_partition.topic, (ZERO_ID, 0))
        topic = self._metadata.cached(topic_partition.topic)
        return topic is not None and topic.topic_id == topic_id and topic_partition.partition >= count

    async def partitions(self, topics: Iterable[str], *, has_racks: bool) -> dict[str, PartitionRacks]:
        """The partitions that each topic has now, none for one that is not there: as `racks_of` says."""
        names = tuple(topics)
        problem = await self._metadata.refresh(names)
        if problem is not None:
            raise problem
        known = {name: self._metadata.cached(name) for name in names}
        return {
            name: self.racks_of(topic, has_racks=has_racks) if topic else () for name, topic in known.items()
        }

    def racks_of(self, topic: MetadataTopic, *, has_racks: bool) -> PartitionRacks:
        """By partition: the racks of its replicas. Without `has_racks` all are empty, and only their number counts."""
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
        """Those of an assignment, once their topics are known here; without those whose topic is gone by now: the
        leader of the group will assign anew.
        """
        for name, partition in last_partitions(partitions).items():
            try:
                await self._metadata.topic_with(name, partition, self._timeout_ms)
            except UnknownTopicOrPartition as error:
                logger.warning("group %r was assigned partitions of %r: %s", group_id, name, error)
        return self.existing(partitions)

    def existing(self, partitions: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
        """Those that there are, by the newest metadata."""
        return tuple(each for each in partitions if self._metadata.partition(each.topic, each.partition))


logger = logging.getLogger(__name__)
_PARKED_SLACK_MS = 5_000  # for the answer to a join that has waited for as long as it may
_BESIDE = (GroupHeartbeatRequest, LeaveGroupRequest)  # steps that wait for no other
_LEAVE_TIMEOUT_MS = 5_000
# Longer than a rebalance in which all members poll: they learn of it by a heartbeat, every 3 s.
_TELL_PARKED_AFTER_S = 10.0


class ConsumerCoordinator:
    """See the module. On the loop, but for what is for the face: `ready`, `metadata`, and `topics` and `failure` of the
    core, which it may read, and `polled_s` and `is_waiting`, which it sets.
    """

    def __init__(self, config: ConsumerConfig, fetcher: Fetcher, client_host: str = "") -> None:
        # When the application last called poll, or a waiting poll took its next turn.
        self.polled_s = now_s()
        # A poll waits for the IO thread: no code of the application runs in it.
        self.is_waiting = False
        self._is_ended = False
        self.core = Membership(config, client_host)
        self._config = config
        self._group_id = self.core.metadata.group_id
        self._fetcher = fetcher
        self._metadata = fetcher.metadata
        self._topics = TopicWatch(fetcher.metadata, config.default_api_timeout_ms)
        self._pattern: re.Pattern[str] | None = None
        # What the core wants. It is `ready` for the face once the topics of what is new are known, until the face has
        # read it or the core wants something else.
        self._offered: Handover | None = None
        self.ready: Handover | None = None
        self._tasks: dict[asyncio.Task[None], Step | None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._last: Handover | None = None
        self._watching: asyncio.Task[None] | None = None
        self._metadata.listen(self._on_topic)
        if fetcher.group_offsets is not None:
            fetcher.group_offsets.successor = self.core.successor

    def __repr__(self) -> str:
        return f"<ConsumerCoordinator {self.core!r} ready={self.ready is not None}>"

    # ---- For the face, from any thread -------------------------------------------------------------------------------

    @property
    def metadata(self) -> GroupMetadata:
        return self.core.metadata

    @property
    def is_settled(self) -> bool:
        """Whether the member has its assignment, and nothing is to change."""
        return self.core.state is MemberState.STABLE and self.core.handover is None

    # ---- For the face, on the loop -----------------------------------------------------------------------------------

    async def subscribe(self, topics: tuple[str, ...], pattern: re.Pattern[str] | None = None) -> None:
        """Joins with these topics, or with those that match, when the application polls. Raises
        UnknownTopicOrPartition.
        """
        found = await (self._topics.named(topics) if pattern is None else self._topics.matching(pattern))
        self._pattern, self._fetcher.is_in_group = pattern, True
        self._topics.subscribe(found)
        self.core.subscribe(tuple(each.name for each in found))
        if self._watching is None:
            self._watching = self._spawn(self._keep_up())
        self._advance()

    async def take_failure(self) -> RaykaError | None:
        failure = self.core.take_failure()
        self._advance()
        return failure

    async def read(self, ready: Handover) -> bool:
        """The application was told what it gives up: from now on it reads what the handover says. False when the core
        wants something else by now, such as that all is lost.
        """
        if ready is self._last:  # the face was interrupted after it
            return True
        if ready is not self.ready:
            return False
        self._last = ready
        newer = [each for each in ready.added or () if self._topics.is_newer(each)]
        self._fetcher.read(ready.read, newer=newer)
        self.core.on_handed_over(ready)
        if ready.added is not None:
            logger.info("%r reads %d partitions", self.core, len(ready.read))
        self._advance()
        return True

    async def begin_leaving(self) -> None:
        """The next handover is the last one: what the member owns is revoked, and then it leaves."""
        self._pattern = None
        self.core.begin_leaving()
        self._advance()

    async def close(self) -> None:
        """Leaves if the member has not left, waits for the leave that may be under way, and ends all else."""
        await asyncio.gather(*self.abandon(), return_exceptions=True)

    def abandon(self) -> "list[asyncio.Task[None]]":
        """As `close`, and waits for nothing; returns the tasks that are ending."""
        self.core.expire("the consumer was closed or is gone")
        self._advance()
        return self.end()

    def end(self) -> "list[asyncio.Task[None]]":
        """Ends all but a leave that is under way, and sends none, as the death of its process would; returns the tasks
        that are ending.
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

    # ---- What the core wants -----------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """After anything that the core was told, and when its time comes."""
        # A callback of the group, or another thread, may go on for a while after the end.
        if self._is_ended:
            return
        self._look_at_polls()
        while (step := self.core.next_step(_now_ms())) is not None:
            if not isinstance(step, _BESIDE):
                _end_abandoned(self._tasks)
            self._spawn(self._take(step), step)
        self._offer(self.core.handover)
        if self.core.failure is not None:
            self._fetcher.interrupt()
        self._arm()

    def _offer(self, handover: Handover | None) -> None:
        """What the core wants now takes the place of what it wanted before."""
        if handover == self._offered:
            return
        self._offered, self.ready = handover, None
        if handover is not None and handover.added:
            self._spawn(self._learn_topics(handover))
        elif handover is not None:
            self.ready = handover
            self._fetcher.interrupt()

    async def _learn_topics(self, handover: Handover) -> None:
        """Of what is added, until they are known or the core wants something else."""
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
        if self.core.state is MemberState.UNJOINED or self.is_waiting:
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
            self.core.expire("the application did not poll within max_poll_interval_ms")

    def _arm(self) -> None:
        due_s = []
        if (due_ms := self.core.next_due_ms()) is not None:
            due_s.append(due_ms / 1000)
        if self.core.state is not MemberState.UNJOINED:
            polled_s = now_s() if self.is_waiting else self.polled_s
            due_s.append(polled_s + self._config.max_poll_interval_ms / 1000)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(min(due_s), self._advance) if due_s else None

    def _spawn(self, coroutine: Coroutine[Any, Any, None], step: Step | None = None) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = step
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        """An exception of ours must not end a member in silence."""
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a member of group %r failed", self._group_id, exc_info=error)
            self.core.fail(RaykaError(f"a member of group {self._group_id!r} failed: {error!r}"))
            self._advance()

    async def _take(self, step: Step) -> None:
        try:
            response = await self._answer(step)
        except RaykaError as error:
            logger.debug("%r: %s", self, error)
            self.core.on_error(step, error, _now_ms())
        else:
            self.core.on_response(step, response, _now_ms())
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
        """The warning of a consumer that joins and gets nothing for long."""
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
        """Asks for the topics that concern the group: the member may subscribe to others now, the leader may have to
        assign anew, and what is gone is not read, nor asked for, until it is there again.
        """
        pattern, led = self._pattern, self.core.leader_topics or {}
        owned = {tp.topic: None for tp in self.core.owned}
        found = await self._topics.partitions({**owned, **led}, has_racks=self.core.has_racks)
        if pattern is not None:
            matching = await self._topics.matching(pattern)
            if pattern is self._pattern:
                self._topics.match(matching)
                self.core.subscribe(tuple(each.name for each in matching))
        self.core.on_topics({name: found[name] for name in led})
        self._read_existing()
        self._advance()

    def _read_existing(self) -> None:
        former = self._fetcher.subscription.partitions
        existing = self._topics.existing(self.core.owned)
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
        """The leader need not wait for the next look."""
        led = self.core.leader_topics
        if led is not None and topic.name in led:
            racks = self._topics.racks_of(topic, has_racks=self.core.has_racks)
            self.core.on_topics({**led, topic.name: racks})
            self._advance()


def _now_ms() -> int:
    return int(now_s() * 1000)


def _end_abandoned(tasks: Mapping["asyncio.Task[None]", Step | None]) -> None:
    """The core asks for one thing after the other. What it waits for no more must not be tried on: the assignment of a
    generation that has ended would be taken for that of the next one, which may have its number where another
    coordinator took over.
    """
    for task, step in tasks.items():
        if step is not None and not isinstance(step, _BESIDE) and task is not asyncio.current_task():
            task.cancel()
