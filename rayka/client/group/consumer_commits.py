"""What a consumer with a group commits, and reads of what was committed: when asked to, every few seconds, at close.

The part of `Consumer` that keeps positions in the cluster. Invariants: what is committed was handed over; by the time a
poll commits, the records of the poll before have been processed; a commit holds up no poll. Kafka: KafkaConsumer,
ConsumerCoordinator (E10).
"""

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from rayka.client import io_thread
from rayka.client.arguments import check_callback
from rayka.client.bootstrap import ClusterHandle
from rayka.client.consumer.consumer_part import ConsumerPart, in_any_turn, partitions_of
from rayka.client.group.committing import GroupOffsets, Offsets, Problems, first_problem
from rayka.client.group.group_face import GroupFace
from rayka.client.group.member_requests import GroupMetadata
from rayka.client.group.offset_values import CommittableOffsets, OffsetAndMetadata, committable
from rayka.client.io_thread import Work
from rayka.config.client_config import ConsumerConfig
from rayka.errors import InvalidGroupId, RaykaError
from rayka.ids import TopicPartition

OnCommit = Callable[[Offsets, RaykaError | None], object]
_CLOSE_TIMEOUT_MS = 30_000
_NEVER_S = float("inf")

logger = logging.getLogger(__name__)


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
