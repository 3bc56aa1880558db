"""The consumer as a member of a group: what it subscribes to, and how it leaves.

The part of `Consumer` that joins a group. Kafka: KafkaConsumer.subscribe, unsubscribe, groupMetadata (E3 to E9).
"""

import logging
import re
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from rayka.client import io_thread
from rayka.client.arguments import check_callback
from rayka.client.consumer.consumer_part import in_turn, topic_names
from rayka.client.consumer.consumer_positions import ConsumerPositions
from rayka.client.group.consumer_commits import ConsumerCommits
from rayka.client.group.group_face import GroupFace
from rayka.client.group.group_member import GroupMember
from rayka.client.group.handover_stages import Listener
from rayka.client.io_thread import BlockingWork
from rayka.errors import ConfigError, InvalidArgument, UnknownTopicOrPartition
from rayka.ids import TopicPartition

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
