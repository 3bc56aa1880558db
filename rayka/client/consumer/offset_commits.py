"""The offsets that one consumer commits and reads: one commit at a time, in the order of the calls.

A commit that waits for the one before takes in further commits: of each partition the newest offset counts, and all end
with the one request. The first attempt needs no task if the partitions and the coordinator are known; a task goes on
with a commit that the first attempt did not end.

Invariants:
- An older commit never overwrites a newer one, also when it is retried.
- A commit is made as the member that asked for it: a commit of a former generation is refused, and overwrites nothing
  of the partition's new owner. A member that its group goes on without commits nothing.
- A commit is made for the topic that was read, known by its id. An offset of a topic that is not read is refused if the
  topic was deleted since the consumer learned of it.
- A commit that comes while the members of a new generation wait for their assignments is repeated until these are
there.

Kafka: ConsumerCoordinator, OffsetAndMetadata, OffsetAndTimestamp (E10).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec

from rayka.client.arguments import int_of, mapping_of, partition_of, text_of
from rayka.client.consumer.group_membership import GroupMetadata
from rayka.client.coordinator_calls import CoordinatorCalls
from rayka.client.metadata import ClusterMetadata, check_partition, topic_recreated
from rayka.client.retry import TELL_AFTER_S, Retry
from rayka.clock import now_s
from rayka.errors import (
    ApiError,
    ErrorCode,
    IllegalGeneration,
    InvalidArgument,
    RaykaError,
    RebalanceInProgress,
    UnavailableError,
    UnknownMemberId,
    error_for,
)
from rayka.ids import NO_EPOCH, NO_OFFSET, ZERO_ID, TopicPartition
from rayka.protocol.groups import (
    NO_GENERATION,
    PARTITIONS_PER_COMMIT_MAX,
    CommittedOffset,
    FetchedOffset,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from rayka.protocol.later import Later


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """The offset of the next record that a group reads, and a text of the application.

    `leader_epoch` is the epoch of the record before, or -1. A reader finds by it that this record is not in the log any
    more.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """A record's offset, its timestamp in milliseconds, and its leader epoch, or -1."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = NO_EPOCH


CommittableOffsets = Mapping[TopicPartition, int | OffsetAndMetadata]


def committable(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets of a caller, checked. Raises TypeError, InvalidArgument."""
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, given in mapping_of(offsets, "offsets").items():
        each = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(int_of(given, f"{tp}"))
        if not 0 <= int_of(each.offset, f"the offset of {tp}") < 2**63:
            raise InvalidArgument(f"the offset of {tp}: expected 0 or more, below 2**63, found {each.offset}")
        text_of(each.metadata, f"the metadata of {tp}")
        if not NO_EPOCH <= int_of(each.leader_epoch, f"the leader epoch of {tp}") < 2**31:
            raise InvalidArgument(f"the leader epoch of {tp}: expected -1 or more, found {each.leader_epoch}")
        found[partition_of(tp)] = each
    return found


logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Problems = dict[TopicPartition, RaykaError]
Successor = Callable[[GroupMetadata, Iterable[TopicPartition], RaykaError], GroupMetadata | None]
_TELL_AGAIN_S = 0.1  # no timer rings for the last microsecond of a wait again and again


class _Commit(msgspec.Struct, eq=False):
    """Offsets that are committed together."""

    group: GroupMetadata
    deadline_s: float = 0.0
    offsets: dict[TopicPartition, CommittedOffset] = {}
    # The refused partitions, for all callers.
    done: Later[Problems] = msgspec.field(default_factory=Later)
    # Topics that the consumer knows and does not read: they may have been deleted, and created again, since.
    unconfirmed: dict[str, None] = {}


class GroupOffsets:
    """The commits of one consumer. Belongs to the IO loop.

    The first attempt of a commit is a callback: with a task for each commit one that is waited for takes 23 % more
    processor time, of client and broker together, and one of many in flight 8 % (393 instead of 320 us, 26 instead of
    24, the least of three runs).
    """

    def __init__(
        self,
        coordinators: CoordinatorCalls,
        metadata: ClusterMetadata,
        group_id: str,
        timeout_ms: int,
        is_read: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        """`is_read`: whether this consumer reads the topic, and so learns at once when the topic is created again."""
        self._group_id = group_id
        self._is_read = is_read
        self._coordinators = coordinators
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        self._waiting: deque[_Commit] = deque()
        # The commit that is under way, by an attempt or by the sender.
        self._current: _Commit | None = None
        # The first attempt that is under way, and its beginning.
        self._attempt: Later[OffsetCommitResponse] | None = None
        self._attempt_s = 0.0
        # The timer of the warning about a slow attempt.
        self._tells: asyncio.TimerHandle | None = None
        # The task that goes on with a commit that the first attempt did not end.
        self._sender: asyncio.Task[None] | None = None
        self._is_abandoned = False
        # The member as which a commit goes on that a rebalance has refused; None: the commit fails. A member's is
        # `Membership.successor`.
        self.successor: Successor = _nobody

    # ---- Commit ------------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Offsets, group: GroupMetadata, *, is_member: bool = False) -> None:
        """Commits offsets behind all commits that were asked for before; of one partition the last call counts. `group`
        is the member that commits; it has no id in a group without members.

        With `is_member` a caller of no generation is refused here: if all other members were gone, the coordinator
        would take the commit for that of a group without members, and forget the offsets that they have committed
        since.

        Raises the error of a partition when all others are committed, and for all partitions an error that no retry
        mends: IllegalGeneration, UnknownMemberId, FencedInstanceId. When the time is over, raises UnavailableError, or
        the last error, such as RebalanceInProgress.
        """
        if not offsets:
            return
        error = first_problem(await asyncio.shield(self.begin(offsets, group, is_member=is_member)), offsets)
        if error is not None:
            raise error

    def begin(self, offsets: Offsets, group: GroupMetadata, *, is_member: bool = False) -> Later[Problems]:
        """As `commit`, without waiting; the result has the refused partitions, and is cancelled by `abandon`."""
        if is_member and group.generation_id == NO_GENERATION:
            raise UnknownMemberId(
                f"group {group.group_id!r} goes on without this consumer, which did not poll, or did not reach its"
                " coordinator, in time; nothing is committed: poll to join again"
            )
        if not self._waiting or self._waiting[-1].group != group:
            self._waiting.append(_Commit(group))
        commit = self._waiting[-1]
        commit.deadline_s = now_s() + self._timeout_ms / 1000
        for tp, offset in offsets.items():
            commit.offsets[tp] = committed = self._committed(tp, offset)
            if committed.topic_id != ZERO_ID and not self._is_read(tp.topic):
                commit.unconfirmed[tp.topic] = None
        if self._is_abandoned:
            self._drop_waiting()
        elif self._current is None:
            self._begin_next()
        return commit.done

    def _begin_next(self) -> None:
        commit = self._current = self._waiting.popleft() if self._waiting else None
        if commit is not None and not self._begin_attempt(commit):
            self._send_on(commit)

    def _begin_attempt(self, commit: _Commit) -> bool:
        """Sends the commit without a task. Returns False where that is not possible."""
        if len(commit.offsets) > PARTITIONS_PER_COMMIT_MAX or commit.unconfirmed or any(self._unseen(commit)):
            return False
        loop, on_answer = asyncio.get_running_loop(), partial(self._on_answer, commit)
        self._attempt_s = loop.time()
        request = self._request(commit, tuple(commit.offsets))
        attempt = self._coordinators.begin(commit.group.group_id, request, self._timeout_ms, on_answer)
        if attempt is None:
            return False
        # An attempt may have ended within `begin`.
        if self._current is commit and self._sender is None:
            self._attempt = attempt
            if self._tells is None:
                self._tells = loop.call_later(TELL_AFTER_S, self._tell)
        return True

    def _tell(self) -> None:
        """Warns of an attempt that is late. Attempts are short and many, so one timer serves all of them."""
        self._tells = None
        if self._attempt is None:
            return
        loop = asyncio.get_running_loop()
        left_s = self._attempt_s + TELL_AFTER_S - loop.time()
        if left_s <= 0:
            logger.warning("%s", self._coordinators.awaited(self._group_id))
            left_s = self._timeout_ms / 1000
        self._tells = loop.call_later(max(left_s, _TELL_AGAIN_S), self._tell)

    def _on_answer(self, commit: _Commit, outcome: OffsetCommitResponse | BaseException) -> None:
        self._attempt = None
        problems = _problems_of(commit, outcome)
        if problems is None or self._goes_on(commit, problems):
            self._send_on(commit)
        else:
            commit.done.end(problems)
            self._begin_next()

    def _send_on(self, commit: _Commit) -> None:
        self._sender = asyncio.get_running_loop().create_task(self._send_until_done(commit))

    async def _send_until_done(self, commit: _Commit) -> None:
        try:
            commit.done.end(await self._send(commit))
        finally:
            self._sender = self._current = None
            # Does nothing, unless this task was cancelled.
            commit.done.cancel()
        self._begin_next()

    async def _send(self, commit: _Commit) -> Problems:
        problems = await self._former(commit) | await self._unknown(commit)
        for tp in problems:
            del commit.offsets[tp]
        for some in _in_parts(commit.offsets):
            try:
                problems |= await self._send_some(commit, some)
            except RaykaError as error:
                problems |= dict.fromkeys(some, error)
        return problems

    async def _former(self, commit: _Commit) -> Problems:
        """Asks the controller for topics that are not read here, and returns the partitions of topics that were deleted
        since the consumer learned of them, also of topics that were created again: their offsets may be meant for
        either topic of the name.
        """
        names, commit.unconfirmed = tuple(commit.unconfirmed), {}
        if not names:
            return {}
        of_names = {tp: each.topic_id for tp, each in commit.offsets.items() if tp.topic in names}
        problems: Problems = {}
        try:
            response = await self._metadata.renew(names, _remaining_ms(commit))
            newest = {each.name: each for each in response.topics if each.error_code is ErrorCode.NONE}
            for tp, topic_id in of_names.items():
                topic = newest.get(tp.topic)
                if topic is None:
                    problems[tp] = await self._metadata.no_such_topic(tp.topic, _remaining_ms(commit))
                elif topic_id not in (ZERO_ID, topic.topic_id):
                    problems[tp] = topic_recreated(topic, topic_id, self._metadata.cluster_name)
        except RaykaError as error:
            return dict.fromkeys(of_names, error)
        return problems

    async def _unknown(self, commit: _Commit) -> Problems:
        """The partitions that do not exist."""
        problems: Problems = {}
        for tp in list(self._unseen(commit)):
            try:
                found = await self._metadata.topic_with(tp.topic, tp.partition, _remaining_ms(commit))
                check_partition(found, tp.partition)
            except RaykaError as error:
                problems[tp] = error
        return problems

    def _unseen(self, commit: _Commit) -> Iterator[TopicPartition]:
        """The partitions that the metadata do not know."""
        counts: dict[str, int] = {}
        for tp in commit.offsets:
            if (count := counts.get(tp.topic)) is None:
                topic = self._metadata.cached(tp.topic)
                count = counts[tp.topic] = 0 if topic is None else len(topic.partitions)
            if not 0 <= tp.partition < count:
                yield tp

    async def _send_some(self, commit: _Commit, partitions: tuple[TopicPartition, ...]) -> Problems:
        """Sends one request until no retry mends the rest; returns the refused partitions."""
        retry = Retry(_remaining_ms(commit), self._metadata.nodes.backoff)
        while True:
            try:
                problems = await self._call(commit, partitions)
            except RaykaError as error:
                problems = dict.fromkeys(partitions, error)
            if not self._goes_on(commit, problems) or not await retry.pause():
                return problems

    def _goes_on(self, commit: _Commit, problems: Problems) -> bool:
        """Whether the commit goes on after a rebalance has refused it: its member still has the partitions."""
        error = next(iter(problems.values()), None)
        if not isinstance(error, (RebalanceInProgress, IllegalGeneration)):
            return False
        successor = self.successor(commit.group, commit.offsets, error)
        if successor is not None:
            commit.group = successor
        return successor is not None

    async def _call(self, commit: _Commit, partitions: tuple[TopicPartition, ...]) -> Problems:
        problems = Problems()

        def check(response: OffsetCommitResponse) -> None:
            problems.clear()
            problems.update(_refused(response))
            for error in problems.values():
                if isinstance(error, ApiError) and error.retriable:
                    raise error

        request, group_id = self._request(commit, partitions), commit.group.group_id
        await self._coordinators.call(group_id, request, _remaining_ms(commit), check=check)
        return problems

    def _request(self, commit: _Commit, partitions: tuple[TopicPartition, ...]) -> OffsetCommitRequest:
        group = commit.group
        instance_id = group.group_instance_id if group.member_id else ""
        offsets = tuple([self._of_topic(commit.offsets[tp]) for tp in partitions])
        return OffsetCommitRequest(group.group_id, offsets, group.generation_id, group.member_id, instance_id)

    def _committed(self, tp: TopicPartition, given: OffsetAndMetadata) -> CommittedOffset:
        """The offset with the topic's id of now, as the commit is asked for: the topic may be created again before the
        commit is sent.
        """
        topic_id = self._topic_id(tp.topic)
        return CommittedOffset(
            tp.topic, tp.partition, given.offset, given.leader_epoch, given.metadata, topic_id=topic_id
        )

    def _of_topic(self, committed: CommittedOffset) -> CommittedOffset:
        """The offset with the topic's id, if the topic was not known when the commit was asked for."""
        if committed.topic_id != ZERO_ID:
            return committed
        return msgspec.structs.replace(committed, topic_id=self._topic_id(committed.topic))

    def _topic_id(self, topic: str) -> UUID:
        known = self._metadata.cached(topic)
        return ZERO_ID if known is None else known.topic_id

    # ---- Read --------------------------------------------------------------------------------------------------------

    async def fetch(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offset of each partition; None without one, and for an offset of a former topic of the name."""
        group_id, found = self._group_id, dict[TopicPartition, OffsetAndMetadata | None]()
        for some in _in_parts(dict.fromkeys(partitions)):
            request = OffsetFetchRequest(group_id, some)
            response = await self._coordinators.call(
                group_id, request, self._timeout_ms, check=_check_fetched
            )
            differing = [each.topic for each in response.partitions if self._is_of_another(each)]
            # Either this client's metadata are older than the commit, or the topic was created again after the commit.
            if differing:
                await self._metadata.renew(tuple(dict.fromkeys(differing)), self._timeout_ms)
            for each in response.partitions:
                tp = TopicPartition(each.topic, each.partition)
                is_nothing = each.offset == NO_OFFSET or self._is_of_another(each)
                value = OffsetAndMetadata(each.offset, each.metadata, each.leader_epoch)
                found[tp] = None if is_nothing else value
        return found

    def _is_of_another(self, fetched: FetchedOffset) -> bool:
        """Whether the offset is of another topic than the known one of that name."""
        return fetched.topic_id not in (ZERO_ID, self._topic_id(fetched.topic))

    async def settle(self) -> None:
        """Waits until all commits have ended."""
        while self._current is not None:
            await asyncio.gather(asyncio.shield(self._current.done), return_exceptions=True)

    # ---- End ---------------------------------------------------------------------------------------------------------

    def abandon(self) -> "list[asyncio.Task[None]]":
        """Cancels all commits; returns the task that is ending. A cancelled commit may have been executed."""
        self._is_abandoned = True
        self._drop_waiting()
        if self._tells is not None:
            self._tells.cancel()
        if self._attempt is not None and self._current is not None:
            self._attempt.cancel()
            self._current.done.cancel()
            self._attempt = self._current = None
        if self._sender is None:
            return []
        self._sender.cancel()
        return [self._sender]

    def _drop_waiting(self) -> None:
        for each in self._waiting:
            each.done.cancel()
        self._waiting.clear()


def _refused(response: OffsetCommitResponse) -> Problems:
    """The partitions that the coordinator has not committed."""
    return {
        (tp := TopicPartition(each.topic, each.partition)): error_for(
            each.error_code, f"{tp}: {each.error_message}"
        )
        for each in response.partitions
        if each.error_code is not ErrorCode.NONE
    }


def _problems_of(commit: _Commit, outcome: OffsetCommitResponse | BaseException) -> Problems | None:
    """The refused partitions of a first attempt; None if the commit has to go on."""
    if isinstance(outcome, OffsetCommitResponse):
        refused = _refused(outcome)
        return None if any(map(_passes, refused.values())) else refused
    if isinstance(outcome, RaykaError) and not _passes(outcome):
        return dict.fromkeys(commit.offsets, outcome)
    return None


def _passes(error: RaykaError) -> bool:
    """Whether a retry may mend the error."""
    return isinstance(error, UnavailableError) or (isinstance(error, ApiError) and error.retriable)


def first_problem(problems: Problems, offsets: Offsets) -> RaykaError | None:
    """The first error of these partitions, in their order."""
    return next((problems[tp] for tp in offsets if tp in problems), None) if problems else None


def _remaining_ms(commit: _Commit) -> int:
    """The time left for the commit. Raises UnavailableError when there is none."""
    remaining_ms = int((commit.deadline_s - now_s()) * 1000)
    if remaining_ms <= 0:
        raise UnavailableError(
            f"group {commit.group.group_id!r}: there was no time left for a commit, since those before it took it; does"
            " its coordinator run? see `rayka status`"
        )
    return remaining_ms


def _nobody(former: GroupMetadata, partitions: Iterable[TopicPartition], error: RaykaError) -> None:
    """The `successor` of a consumer that is no member."""


def _in_parts(partitions: Iterable[TopicPartition]) -> Iterator[tuple[TopicPartition, ...]]:
    """The partitions in parts, each as large as one request may be."""
    remaining = iter(partitions)
    while some := tuple(islice(remaining, PARTITIONS_PER_COMMIT_MAX)):
        yield some


def _check_fetched(response: OffsetFetchResponse) -> None:
    for each in response.partitions:
        if each.error_code is not ErrorCode.NONE:
            raise error_for(each.error_code, f"{each.topic}-{each.partition}: {each.error_message}")
