"""The consumer as a member of a group: what it subscribes to, and how it leaves.

The part of `Consumer` that joins a group. Kafka: KafkaConsumer.subscribe, unsubscribe, groupMetadata (E3 to E9).
"""

import logging
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

from rayka.client import io_thread
from rayka.client.arguments import check_callback
from rayka.client.bootstrap import ClusterHandle
from rayka.client.consumer.consumer_coordinator import GroupMember
from rayka.client.consumer.consumer_part import (
    ConsumerPart,
    ConsumerPositions,
    in_any_turn,
    in_turn,
    partitions_of,
    topic_names,
)
from rayka.client.consumer.group_membership import GroupMetadata
from rayka.client.consumer.offset_commits import (
    CommittableOffsets,
    GroupOffsets,
    OffsetAndMetadata,
    Offsets,
    Problems,
    committable,
    first_problem,
)
from rayka.client.consumer.rebalance_listener import GroupFace, Listener
from rayka.client.io_thread import BlockingWork, Work
from rayka.config.client_config import ConsumerConfig
from rayka.errors import ConfigError, InvalidArgument, InvalidGroupId, RaykaError, UnknownTopicOrPartition
from rayka.ids import TopicPartition

# What a consumer with a group commits, and reads of what was committed: when asked to, every few seconds, at close.
#
# The part of `Consumer` that keeps positions in the cluster. Invariants: what is committed was handed over; by the time
# a poll commits, the records of the poll before have been processed; a commit holds up no poll. Kafka: KafkaConsumer,
# ConsumerCoordinator (E10).


OnCommit = Callable[[Offsets, RaykaError | None], object]
_CLOSE_TIMEOUT_MS = 30_000
_NEVER_S = float("inf")


class ConsumerCommits(ConsumerPart):
    """See the module; its methods are those of `Consumer`."""

    _group: GroupFace | None = None  # which it is a member of, or is to be

    def __init__(self, cluster: str | ClusterHandle, config: ConsumerConfig) -> None:
        super().__init__(cluster, config)
        is_automatic = config.group_id is not None and config.enable_auto_commit
        interceptors = self._delivery.interceptors
        self._on_commit: Callable[[Offsets], object] = (
            interceptors.tell if interceptors else lambda offsets: None
        )
        self._commit_due_s = time.monotonic() + config.auto_commit_interval_ms / 1000
        if not is_automatic:
            self._commit_due_s = _NEVER_S

    @in_any_turn
    def commit(self, offsets: CommittableOffsets | None = None) -> None:
        """Commits these offsets, of the next records that the group is to read, or, with None, all positions.

        Returns when all brokers in sync have them. Of a partition that several commits name the last one counts. Raises
        InvalidGroupId without `group_id`, UnknownTopicOrPartition, OffsetMetadataTooLarge (the other partitions are
        committed then), IllegalGeneration, UnknownMemberId or FencedInstanceId when the group goes on without this
        member; InconsistentTopicId for a topic that this consumer does not read, and that was created again since it
        learned of it (commit again for the new topic); UnavailableError, or RebalanceInProgress when the members of a
        new generation have waited for their assignments all the time: commit again.
        """
        self._run(self._ask("commit", None if offsets is None else committable(offsets)).commit)

    def commit_async(
        self, offsets: CommittableOffsets | None = None, callback: OnCommit | None = None
    ) -> None:
        """As `commit`, but does not wait. `callback(offsets, error)` is called on the IO thread when it has ended, with
        None for an error when all went well; without a callback an error is logged.

        It never overwrites a later commit of this consumer. A callback on the IO thread, its own too, may call it with
        offsets, also while another thread polls; without them it raises RuntimeError there, since the thread that polls
        has not processed all up to its positions.
        """
        check_callback(callback, "callback")
        if not io_thread.is_current():
            self._begin_commit_in_turn(offsets, callback)
            return
        self._check_open()
        if offsets is None:
            raise RuntimeError(
                "commit_async: a callback on rayka's IO thread cannot know what the thread that polls has processed;"
                " name the offsets, such as those that the callback was given, or commit in the thread that polls"
            )
        self._begin_commit(offsets, callback)

    def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed of each partition; None where that is nothing. Raises InvalidGroupId without
        `group_id`, UnavailableError.
        """
        wanted = partitions_of(partitions)
        self._check_open()
        found: dict[TopicPartition, OffsetAndMetadata | None] = self._run(
            self._of_group("committed").fetch, wanted
        )
        return {tp: found[tp] for tp in wanted}

    def group_metadata(self) -> GroupMetadata:
        """The group, the generation and the member's ids. Raises InvalidGroupId without `group_id`."""
        self._of_group("group_metadata")
        if self._group is not None:
            return self._group.member.metadata
        return GroupMetadata(
            self._config.group_id or "", group_instance_id=self._config.group_instance_id or ""
        )

    @in_any_turn
    def _begin_commit_in_turn(self, offsets: CommittableOffsets | None, callback: OnCommit | None) -> None:
        self._begin_commit(offsets, callback)

    def _begin_commit(self, offsets: CommittableOffsets | None, callback: OnCommit | None) -> None:
        ask = self._ask("commit_async", None if offsets is None else committable(offsets))
        io_thread.call_next(ask.commit_and_tell, callback or _log)

    # ---- Automatic commits -------------------------------------------------------------------------------------------

    def _maybe_auto_commit(self, late_s: float = 0.0) -> None:
        """In a poll that has given nothing yet: the records that were given before have been processed. With `late_s`
        only a commit that is as late.
        """
        at_s = time.monotonic()
        if at_s < self._commit_due_s + late_s:
            return
        self._commit_due_s = at_s + self._config.auto_commit_interval_ms / 1000
        io_thread.call_next(self._ask("auto commit").commit_and_tell, _log)

    def _commit_before_handover(self) -> None:
        """Before partitions go to another member, if positions are committed automatically. An error is logged: the
        other member is given some records again.
        """
        if self._commit_due_s < _NEVER_S:
            self._commit_or_log(self._ask("commit").commit)

    def _commit_at_end(self) -> None:
        """Before the consumer closes: what `commit_async` has begun ends, and the positions of one that reads what
        `assign` named are committed; those of a member are when it leaves.
        """
        group_offsets = self._fetcher.group_offsets
        if group_offsets is not None:
            is_due = self._commit_due_s < _NEVER_S and self._group is None
            self._commit_or_log(self._ask("commit").commit if is_due else group_offsets.settle)

    def _commit_or_log(self, commit: Work[object]) -> None:
        try:
            self._run_within(min(_CLOSE_TIMEOUT_MS, self._config.default_api_timeout_ms), commit)
        except RaykaError as error:
            logger.warning("%r: its positions were not committed: %s", self, error)

    # ---- Within ------------------------------------------------------------------------------------------------------

    def _of_group(self, what: str) -> GroupOffsets:
        found = self._fetcher.group_offsets
        if found is None:
            raise InvalidGroupId(f"{what}: {self!r} has no group; give it a group_id: Consumer(group_id=...)")
        return found

    def _ask(self, what: str, offsets: Offsets | None = None) -> "_Ask":
        group_offsets, group = self._of_group(what), self.group_metadata()
        read = self._delivery.read() if offsets is None else {}
        chosen = partial(self._fetcher.consumed, read) if offsets is None else lambda: offsets
        return _Ask(group_offsets, group, chosen, self._group is not None, self._on_commit)


class _Ask(NamedTuple):
    """A commit as the caller's thread asks for it. `chosen`: of all positions, or of the offsets given."""

    group_offsets: GroupOffsets
    group: GroupMetadata
    chosen: Callable[[], Offsets]
    is_member: bool
    on_commit: Callable[[Offsets], object]

    async def commit(self) -> None:
        offsets = self.chosen()
        await self.group_offsets.commit(offsets, self.group, is_member=self.is_member)
        if offsets:
            self.on_commit(offsets)

    def commit_and_tell(self, callback: OnCommit) -> None:
        """Begins it, on the IO thread, without a task of its own: ten thousand a second are asked for."""
        offsets = self.chosen()
        if not offsets:
            _tell(callback, offsets, None)
            return
        try:
            ended = self.group_offsets.begin(offsets, self.group, is_member=self.is_member)
        except RaykaError as error:
            _tell(callback, offsets, error)
        else:
            ended.observe(partial(self._on_ended, callback, offsets))

    def _on_ended(self, callback: OnCommit, offsets: Offsets, ended: Problems | BaseException) -> None:
        if isinstance(ended, BaseException):  # the consumer was closed first
            return
        error = first_problem(ended, offsets)
        if error is None:
            self.on_commit(offsets)
        _tell(callback, offsets, error)


def _tell(callback: OnCommit, offsets: Offsets, error: RaykaError | None) -> None:
    """Runs the application's code, which may raise anything: a SystemExit would end the step of the IO thread that has
    other answers to bring.
    """
    try:
        callback(offsets, error)
    except BaseException:
        logger.exception("a callback of commit_async raised")


def _log(offsets: Offsets, error: RaykaError | None) -> None:
    if error is not None:
        logger.warning("offsets of %d partitions were not committed: %s", len(offsets), error)


OnPartitions = Callable[[list[TopicPartition]], Any]

logger = logging.getLogger(__name__)


class ConsumerMembership(ConsumerCommits, ConsumerPositions):
    """See the module; its methods are those of `Consumer`."""

    _topics: tuple[str, ...] = ()
    _is_assigned = False

    @in_turn
    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Reads these topics from now on, instead of those before, and shares their partitions with the other members
        of its group; without a group, reads all of them. With `pattern`, a regular expression for whole names, the
        group reads the topics that match, those that are created later too, within `metadata_max_age_ms`.

        The group is joined when `poll` is called, and what changes later is told by `poll` too, in its thread:
        `on_assign` with the partitions that are new, before any record of them, `on_revoke` with those that another
        member is to get, after which none of their records is given, `on_lost` (else `on_revoke`) with those that
        others may have already, because this member was silent for too long. Each gets a list of TopicPartition, and
        may call the consumer's other methods, `commit` and `seek` among them, but not `poll`.
        A callback that raises ends nothing: a poll raises it when the member has its partitions. Raises
        UnknownTopicOrPartition for a topic that does not exist, ConfigError for what needs a group, ValueError for a
        pattern that is none, RuntimeError while partitions are assigned.
        """
        names, matching = tuple(topic_names(topics)), _compiled(pattern)
        listener = Listener(on_assign, on_revoke, on_lost)
        for name, callback in listener._asdict().items():
            check_callback(callback, name)
        if bool(names) == (matching is not None):
            raise InvalidArgument(
                "subscribe: expected topics or a pattern; `unsubscribe` ends a subscription"
            )
        if self._is_assigned:
            raise RuntimeError(
                f"{self!r} reads what `assign` named; assign([]) ends that, and then subscribe"
            )
        if self._config.group_id is None:
            if listener != Listener() or matching is not None:
                raise ConfigError(
                    "subscribe: a pattern and callbacks expect a group; give the consumer a group_id"
                )
            self._run(self._fetcher.follow, names)
            self._delivery.keep_only(self._fetcher.subscription.partitions)
        else:
            group = self._group = self._group or self._face()
            group.listener = listener
            self._run(group.member.subscribe, names, matching)
        self._topics = names

    def unsubscribe(self) -> None:
        """Reads nothing from now on; a member of a group leaves it, after `on_revoke`. Does nothing otherwise.

        Automatic commits count what was given last as for `close`.
        """
        self._unsubscribe(is_processed=self._is_processed(sys.exc_info()[0]))

    @in_turn
    def _unsubscribe(self, *, is_processed: bool) -> None:
        if self._group is not None:
            if not is_processed:
                self._delivery.take_back()
            self._leave_group(self._group)
        else:
            self._run(self._fetcher.assign, [])
            self._delivery.keep_only({})
        self._topics = ()

    def subscription(self) -> tuple[str, ...]:
        """The topics that are subscribed to, or that match the pattern as far as is known."""
        return self._topics if self._group is None else self._group.member.core.topics

    # ---- Within ----------------------------------------------------------------------------------------------------

    def _face(self) -> GroupFace:
        member = self._run(self._member)
        return GroupFace(member, self._delivery)

    async def _member(self) -> GroupMember:
        return GroupMember(self._config, self._fetcher, socket.gethostname())

    def _check_not_subscribed(self) -> None:
        if self._group is not None:
            topics = ", ".join(self._topics)
            raise RuntimeError(
                f"{self!r} is subscribed to {topics} in a group; unsubscribe first, or do not assign"
            )

    # ---- In poll -----------------------------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        """What changes in the group, before any record is given."""
        self._check_not_closing()
        if self._group is not None:
            self._group.polled()
            self._group.hand_over(self._run, self._commit_before_handover)
            # A callback may have closed the consumer, or another thread while the callback ran.
            self._check_not_closing()

    def _polls(self, poll: BlockingWork[bool], remaining_ms: float) -> bool:
        """What the fetcher's poll says. That a topic is gone is no error to a group: the leader assigns the others."""
        try:
            with nullcontext() if self._group is None else self._group.waiting():
                return self._run_within(remaining_ms, poll)
        except UnknownTopicOrPartition:
            if self._group is None:
                raise
        self._run(self._group.member.look_at_topics)
        return True

    @property
    def _has_handover(self) -> bool:
        return self._is_closing or (self._group is not None and self._group.is_waiting)

    # ---- The end -----------------------------------------------------------------------------------------------------

    def _leave_group(self, group: GroupFace) -> None:
        """Raises what a callback has raised, in the end."""
        self._run(group.member.begin_leaving)
        group.hand_over(self._run, self._commit_before_handover)
        self._run(group.member.close)
        self._group = None
        group.raise_error()

    def _end_membership(self, *, is_telling: bool) -> None:
        """Leaves the group. Calls no callback unless `is_telling`: another thread may be in one."""
        group = self._group
        if group is None:
            return
        try:
            if is_telling:
                self._leave_group(group)
            else:
                logger.warning("%r is closed while a callback of its group runs: nothing more is told", self)
                self._run(group.member.close)
        finally:  # also when Ctrl-C came before it had left
            io_thread.call_soon(group.member.abandon)

    def _interrupt(self) -> None:
        """Ends the poll that is under way, by ClosedError."""
        self._is_closing = True
        io_thread.call_soon(self._fetcher.interrupt)

    def _is_in_callback(self) -> bool:
        return self._group is not None and self._group.is_telling

    def _abandons(self) -> list[Callable[[], object]]:
        """What ends the work on the loop without this object."""
        of_group = [] if self._group is None else [self._group.member.abandon]
        return [*of_group, self._fetcher.abandon]


def _compiled(pattern: str | re.Pattern[str] | None) -> re.Pattern[str] | None:
    """Raises ValueError for what is no regular expression."""
    if pattern is None or (isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str)):
        return pattern
    if not isinstance(pattern, str):
        raise TypeError(f"pattern: expected a regular expression of str, found {pattern!r}")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidArgument(f"pattern: expected a regular expression, found {pattern!r}: {error}") from None
