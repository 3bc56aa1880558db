"""One consumer's membership of its group on the IO loop: sends what the core wants, keeps its time, watches its topics.

Heartbeats, joins and syncs run here and never in a thread of the application. What changes for the application is
offered to its face as `ready` once nothing more has to be asked for it: the committed offsets of partitions that are
new, and their topics. The face says when it polls, so a member whose application does not poll for
`max_poll_interval_ms` leaves (E6). Invariants: `ready` is offered until the face has read it or the core wants
something else; a failure of the coordinator changes nothing of what is read. Kafka: AbstractCoordinator,
ConsumerCoordinator, HeartbeatThread.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from rayka.client.consumer.fetcher import Fetcher
from rayka.client.coordinator_calls import CoordinatorCalls
from rayka.client.group.member_requests import GroupMetadata, MemberOptions
from rayka.client.group.membership import CountPartitions, Handover, Membership, MemberState, Step
from rayka.client.loop_time import now_s
from rayka.errors import ErrorCode, RaykaError, UnknownTopicOrPartition, error_for
from rayka.ids import ZERO_ID, TopicPartition
from rayka.protocol.group_offsets import FetchedOffset, OffsetFetchRequest
from rayka.protocol.groups import (
    GroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from rayka.protocol.membership import MetadataTopic

logger = logging.getLogger(__name__)
_PARKED_SLACK_MS = 5_000  # for the answer to a join that has waited for as long as it may
_LEAVE_TIMEOUT_MS = 5_000


class Ready(NamedTuple):
    """A handover with what the face needs for it: where the group has come to in what is added."""

    handover: Handover
    committed: Mapping[TopicPartition, FetchedOffset]


class GroupMember:
    """See the module. On the loop, but for the attributes that are for the face: `ready`, `failure`, `metadata`, which
    it may read, and `polled_s` and `is_polling`, which it sets.
    """

    def __init__(
        self,
        options: MemberOptions,
        calls: CoordinatorCalls,
        fetcher: Fetcher,
        *,
        metadata_max_age_ms: int,
        timeout_ms: int,
    ) -> None:
        self.ready: Ready | None = None
        self.polled_s = now_s()
        self.is_polling = False
        self._core = Membership(options)
        self._options = options
        self._calls = calls
        self._fetcher = fetcher
        self._metadata = fetcher.metadata
        self._max_age_s = metadata_max_age_ms / 1000
        self._timeout_ms = timeout_ms
        self._tasks: dict[asyncio.Task[None], Step | None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._offered: Handover | None = None
        self._last: Ready | None = None
        self._metadata.listen(self._on_topic)

    def __repr__(self) -> str:
        return f"<GroupMember {self._core!r} ready={self.ready is not None}>"

    # ---- For the face, from any thread -------------------------------------------------------------------------------

    @property
    def metadata(self) -> GroupMetadata:
        return self._core.metadata

    @property
    def failure(self) -> RaykaError | None:
        """For the application; `take_failure`."""
        return self._core.failure

    @property
    def is_settled(self) -> bool:
        """Whether the member has its assignment, and nothing is to change."""
        return self._core.state is MemberState.STABLE and self._core.handover is None

    # ---- For the face, on the loop -----------------------------------------------------------------------------------

    async def subscribe(self, topics: tuple[str, ...]) -> None:
        """Joins with these topics when the application polls. Raises UnknownTopicOrPartition."""
        for name in topics:
            await self._metadata.topic(name, self._timeout_ms)
        self._core.subscribe(topics)
        self._advance()

    async def take_failure(self) -> RaykaError | None:
        failure = self._core.take_failure()
        self._advance()
        return failure

    async def read(self, ready: Ready) -> bool:
        """The application was told what it gives up: from now on it reads what the handover says. False when the core
        wants something else by now, such as that all is lost.
        """
        if ready is self._last:  # the face was interrupted after it
            return True
        if ready is not self.ready:
            return False
        self._last = ready
        handover = ready.handover
        starts = {tp: (each.offset, each.leader_epoch) for tp, each in ready.committed.items()}
        self._fetcher.read((*handover.kept, *(handover.added or ())), starts)
        self._core.on_handed_over(handover)
        self._advance()
        return True

    async def begin_leaving(self) -> None:
        """The next handover is the last one: what the member owns is revoked, and then it leaves."""
        self._core.begin_leaving()
        self._advance()

    async def close(self) -> None:
        """Waits for the leave that may be under way, and ends all else."""
        leaves = [task for task, step in self._tasks.items() if isinstance(step, LeaveGroupRequest)]
        tasks = self.abandon(except_for=leaves)
        await asyncio.gather(*leaves, *tasks, return_exceptions=True)

    def abandon(self, except_for: "list[asyncio.Task[None]] | None" = None) -> "list[asyncio.Task[None]]":
        """Ends all that is under way; returns the tasks that are ending. The session of the member ends by itself."""
        self._metadata.unlisten(self._on_topic)
        if self._timer is not None:
            self._timer.cancel()
        tasks = [each for each in self._tasks if each not in (except_for or ())]
        for task in tasks:
            task.cancel()
        return tasks

    # ---- What the core wants -----------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """After anything that the core was told, and when its time comes."""
        self._look_at_polls()
        while (step := self._core.next_step(_now_ms())) is not None:
            self._spawn(self._take(step), step)
        self._offer()
        self._arm()

    def _look_at_polls(self) -> None:
        if self._core.state is MemberState.UNJOINED or self.is_polling:
            return
        if now_s() - self.polled_s >= self._options.rebalance_timeout_ms / 1000:
            logger.warning(
                "group %r: the application has not polled for max_poll_interval_ms=%d: the consumer leaves the group,"
                " and joins again with the next poll; poll more often, take fewer records (max_poll_records), or raise"
                " the limit",
                self._options.group_id,
                self._options.rebalance_timeout_ms,
            )
            self._core.expire()

    def _arm(self) -> None:
        due_s = []
        if (due_ms := self._core.next_due_ms()) is not None:
            due_s.append(due_ms / 1000)
        if self._core.state is not MemberState.UNJOINED:
            polled_s = now_s() if self.is_polling else self.polled_s
            due_s.append(polled_s + self._options.rebalance_timeout_ms / 1000)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(min(due_s), self._advance) if due_s else None

    def _spawn(self, coroutine: Coroutine[Any, Any, None], step: Step | None = None) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = step
        task.add_done_callback(self._tasks.pop)

    async def _take(self, step: Step) -> None:
        try:
            response = await self._answer(step)
        except RaykaError as error:
            logger.debug("%r: %s", self, error)
            self._core.on_error(step, error, _now_ms())
        except Exception as error:
            logger.exception("a member of group %r", self._options.group_id)
            self._core.on_error(step, RaykaError(f"the member failed: {error!r}"), _now_ms())
        else:
            self._core.on_response(step, response, _now_ms())
        self._advance()

    async def _answer(self, step: Step) -> Any:
        group_id, options = self._options.group_id, self._options
        if isinstance(step, CountPartitions):
            return await self._counts(step.topics)
        if isinstance(step, (JoinGroupRequest, SyncGroupRequest)):
            timeout_ms = options.rebalance_timeout_ms + _PARKED_SLACK_MS
            return await self._calls.call(group_id, step, timeout_ms, may_park=True)
        is_heartbeat = isinstance(step, GroupHeartbeatRequest)
        timeout_ms = options.session_timeout_ms if is_heartbeat else _LEAVE_TIMEOUT_MS
        return await self._calls.call(group_id, step, timeout_ms)

    # ---- What the face is offered ------------------------------------------------------------------------------------

    def _offer(self) -> None:
        handover = self._core.handover
        if handover == self._offered:
            return
        self._offered, self.ready = handover, None
        if handover is not None and handover.added:
            self._spawn(self._prepare(handover))
        elif handover is not None:
            self._set_ready(Ready(handover, {}))

    def _set_ready(self, ready: Ready) -> None:
        self.ready = ready
        self._fetcher.interrupt()

    async def _prepare(self, handover: Handover) -> None:
        """Asks where the group has come to, until it is known or the core wants something else."""
        while handover is self._offered:
            try:
                added = await self._existing(handover.added or ())
                committed = await self._committed(added)
            except RaykaError as error:
                logger.debug("group %r: committed offsets: %s", self._options.group_id, error)
                await asyncio.sleep(self._options.retry_backoff_ms / 1000)
                continue
            if handover is self._offered:
                self._set_ready(Ready(replace(handover, added=added), committed))
            return

    async def _existing(self, partitions: tuple[TopicPartition, ...]) -> tuple[TopicPartition, ...]:
        """Without those whose topic is gone by now: its leader will assign anew."""
        found = []
        for tp in partitions:
            try:
                topic = await self._metadata.topic_with(tp.topic, tp.partition, self._timeout_ms)
            except UnknownTopicOrPartition as error:
                logger.warning("group %r was assigned %s: %s", self._options.group_id, tp, error)
                continue
            if tp.partition < len(topic.partitions):
                found.append(tp)
        return tuple(found)

    async def _committed(self, partitions: tuple[TopicPartition, ...]) -> dict[TopicPartition, FetchedOffset]:
        """The offsets that the group has committed of these partitions of these topics, where there are any."""
        group_id = self._options.group_id
        request = OffsetFetchRequest(group_id, partitions)
        response = await self._calls.call(group_id, request, self._timeout_ms)
        found = {}
        for each in response.partitions:
            tp = TopicPartition(each.topic, each.partition)
            if each.error_code is not ErrorCode.NONE:
                raise error_for(each.error_code, f"group {group_id!r}, {tp}: {each.error_message}")
            topic = self._metadata.cached(each.topic)
            is_same = topic is not None and each.topic_id in (ZERO_ID, topic.topic_id)
            if each.offset >= 0 and is_same:
                found[tp] = each
        return found

    # ---- Topics ------------------------------------------------------------------------------------------------------

    async def _counts(self, topics: tuple[str, ...]) -> dict[str, int]:
        """How many partitions each topic has now, 0 for one that is not there."""
        problem = await self._metadata.refresh(topics)
        if problem is not None:
            raise problem
        known = {name: self._metadata.cached(name) for name in topics}
        return {name: len(topic.partitions) if topic else 0 for name, topic in known.items()}

    def _on_topic(self, topic: MetadataTopic) -> None:
        counts = self._core.leader_counts
        if counts is not None and counts.get(topic.name, len(topic.partitions)) != len(topic.partitions):
            self._core.on_counts({**counts, topic.name: len(topic.partitions)})
            self._advance()


def _now_ms() -> int:
    return int(now_s() * 1000)
