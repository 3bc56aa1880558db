"""One open consumer below its public methods: its state, and the story of a poll, of automatic commits and of the end.

`Fetcher` fetches ahead on the IO thread; `Delivery` decodes, and keeps positions, on the caller's thread. Both
`rayka.Consumer` and `rayka.aio.Consumer` have one.

A poll:
1. By asking, the application says that it has processed the records given before: `Delivery.begin`. An automatic commit
   that is much too late is begun.
2. Changes of the group are applied, with the callbacks of the application (`RebalanceListenerInvoker.apply`).
3. What is here is taken. If that is something, the poll ends.
4. An automatic commit that is due is begun: it leaves beside the next fetch, and holds up no poll.
5. The poll waits until something has arrived, or the group has a change, and goes on with 2.

Automatic commits: every `auto_commit_interval_ms` a poll begins one, of the records given before it (1 and 4); the
partitions that another member is to get are committed before they are revoked (`commit_before_handover`); the rest is
committed when the consumer closes (`close`), unless an exception is on its way. So each record is given at least once.

Kafka: ClassicKafkaConsumer, ConsumerCoordinator.maybeAutoCommitOffsetsAsync (E10, G16).
"""

import logging
import socket
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from random import Random
from re import Pattern
from typing import Any, NamedTuple, ParamSpec, TypeVar

from rayka.client import io_thread
from rayka.client.arguments import is_int, partition_of
from rayka.client.bootstrap import ClusterHandle, resolve
from rayka.client.consumer.call_guard import CallGuard, MethodCall
from rayka.client.consumer.consumer_coordinator import ConsumerCoordinator
from rayka.client.consumer.delivery import Delivery
from rayka.client.consumer.fetcher import Fetcher
from rayka.client.consumer.group_membership import GroupMetadata
from rayka.client.consumer.offset_commits import GroupOffsets, Offsets, Problems, first_problem
from rayka.client.consumer.rebalance_listener import RebalanceListener, RebalanceListenerInvoker
from rayka.client.io_thread import BlockingWork, Work, wait_for
from rayka.config.client_config import ConsumerConfig
from rayka.errors import ClosedError, InvalidArgument, InvalidGroupId, RaykaError, UnknownTopicOrPartition
from rayka.ids import TopicPartition

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
OnCommit = Callable[[Offsets, RaykaError | None], object]
# An automatic commit that is due waits so long for a poll that waits itself. While this thread works, each step of the
# IO thread waits for the interpreter: 5 ms, and the next records as long.
COMMIT_LATE_S = 0.1
# How long `close` waits until the thread that polls has noticed it.
_CLOSE_CALL_TIMEOUT_S = 5.0
_CLOSE_COMMIT_TIMEOUT_MS = 30_000
_NEVER_S = float("inf")

logger = logging.getLogger(__name__)


class ConsumerCore:
    """The state of one consumer, and what its methods have in common. `name` is the class that users know."""

    def __init__(
        self,
        name: str,
        cluster: str | ClusterHandle,
        config: ConsumerConfig,
        *,
        waits_for_calls: bool = False,
    ) -> None:
        """With `waits_for_calls` a call waits for that of another thread, which is refused otherwise."""
        self.config = config
        self.delivery = Delivery(config)
        handle = resolve(cluster)
        self.guard = CallGuard()
        # What `subscribe` named without a pattern.
        self.topics: tuple[str, ...] = ()
        # Whether partitions are read that `assign` named.
        self.is_assigned = False
        # Applies the handovers of the consumer's group membership; None without a membership.
        self.rebalance_listener: RebalanceListenerInvoker | None = None
        # Called on the IO thread with the offsets of each commit that went well.
        self.on_commit: Callable[[Offsets], object] | None = None
        if self.delivery.interceptors is not None:
            self.on_commit = self.delivery.interceptors.tell
        is_automatic = config.group_id is not None and config.enable_auto_commit
        # The time of the next automatic commit.
        self._commit_due_s = _NEVER_S
        if is_automatic:
            self._commit_due_s = time.monotonic() + config.auto_commit_interval_ms / 1000
        # Closing has begun: the call that is under way ends by ClosedError. Closed: nothing is under way any more.
        self.is_closing = self.is_closed = False
        # `close` was called within another method, and is done when that method ends.
        self._is_close_due = False
        self._is_warned = False
        self._name = name
        self._cluster_name = handle.name
        self._waits_for_calls = waits_for_calls
        self.fetcher: Fetcher = self.run(_open, handle, config)

    def __repr__(self) -> str:
        """A closed consumer shows the partitions that it read last."""
        assignment = list(self.fetcher.subscription.partitions)
        return (
            f"<{self._name} cluster={self._cluster_name} assignment={assignment}{' closed' * self.is_closed}>"
        )

    def run(
        self, work: Callable[P, Coroutine[Any, Any, ResultT]], *arguments: P.args, **options: P.kwargs
    ) -> ResultT:
        """The result of the work on the IO thread, within `default_api_timeout_ms`."""
        return self._run_within(self.config.default_api_timeout_ms, partial(work, *arguments, **options))

    def _run_within(self, timeout_ms: float, work: BlockingWork[ResultT]) -> ResultT:
        return wait_for(work, timeout_ms, caller=self)

    # ---- One call at a time ------------------------------------------------------------------------------------------

    def exclusively(self, name: str, work: Callable[[], ResultT], *, may_nest: bool = False) -> ResultT:
        """Runs the work of a method while no other thread is in one. Raises RuntimeError where one is, for a nested
        call unless it `may_nest` or a callback of the group makes it, and on the IO thread in any case.
        """
        call = MethodCall()
        try:
            try:
                self._begin_call(call, name, may_nest=may_nest)
                return work()
            finally:
                call.end()
        finally:
            if self._is_close_due and not self.is_closed:
                self.close(is_processed=False)

    def _begin_call(self, call: MethodCall, name: str, *, may_nest: bool) -> None:
        self.check_open()
        if io_thread.is_current():
            io_thread.refuse(f"a method of {self!r} other than commit_async with offsets")
        before = self.guard.wait_and_begin(call) if self._waits_for_calls else self.guard.begin(call)
        if before is None:
            return
        if before.thread != call.thread:
            # The other thread may be closing the consumer.
            self._check_not_closing()
            raise RuntimeError(f"{self!r} is used by two threads at once; give each its own consumer")
        if not may_nest and not self._is_in_callback():
            raise RuntimeError(
                f"{name} was called within another method of {self!r}, by a signal handler, a deserializer or an"
                " interceptor; note there what is to be done, and do it when that method has returned"
            )

    def _is_in_callback(self) -> bool:
        return self.rebalance_listener is not None and self.rebalance_listener.is_telling

    def check_open(self) -> None:
        if self.is_closed:
            raise ClosedError(f"{self!r} was closed; make a new Consumer")

    def _check_not_closing(self) -> None:
        self.check_open()
        if self.is_closing:
            raise ClosedError(f"{self!r} is being closed, by another thread or a signal handler")

    def check_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        assigned = self.fetcher.subscription.partitions
        for tp in partitions:
            if partition_of(tp) not in assigned:
                raise InvalidArgument(f"{tp} is not assigned to {self!r}; assign it first")

    # ---- Polling -----------------------------------------------------------------------------------------------------

    def poll(
        self,
        timeout_ms: float,
        take: Callable[[], ResultT | None],
        check: Callable[[], object] = lambda: None,
    ) -> ResultT | None:
        """The result of `take`, once it is not empty; waits for fetches until then. None after timeout_ms. `check` may
        raise before each step.
        """
        return self.exclusively("poll", partial(self._poll, timeout_ms, take, check))

    def _poll(
        self, timeout_ms: float, take: Callable[[], ResultT | None], check: Callable[[], object]
    ) -> ResultT | None:
        if not is_int(timeout_ms) and not isinstance(timeout_ms, float):
            raise TypeError(f"timeout_ms: expected a number, found {type(timeout_ms).__name__}")
        if not timeout_ms / 1000 < threading.TIMEOUT_MAX:  # a NaN neither
            raise InvalidArgument(f"timeout_ms: expected a time that ends, found {timeout_ms}")
        deadline_s = time.monotonic() + timeout_ms / 1000
        self.delivery.begin()
        self.maybe_auto_commit(late_s=COMMIT_LATE_S)
        if self._is_in_callback():
            raise RuntimeError("poll was called in a callback of the group; return from it, and poll then")
        while True:
            check()
            self._check_not_closing()
            if self.rebalance_listener is not None:
                self.rebalance_listener.polled()
                self.rebalance_listener.apply(self.run, self.commit_before_handover)
                # A callback may have closed the consumer, or another thread while the callback ran.
                self._check_not_closing()
            taken = take()
            # `take` runs deserializers and interceptors, which may close the consumer, and so may a signal handler.
            self._check_not_closing()
            if taken:
                return taken
            self.maybe_auto_commit()
            if self._has_arrived(max(0.0, (deadline_s - time.monotonic()) * 1000)):
                continue
            self.check_open()
            is_over = time.monotonic() >= deadline_s
            if is_over and not self.is_closing and not self.has_changes:
                if self.rebalance_listener is not None:
                    self.rebalance_listener.raise_error()
                return None

    @property
    def has_changes(self) -> bool:
        """Whether the group has something to apply, or to raise."""
        return self.rebalance_listener is not None and self.rebalance_listener.has_changes

    def _has_arrived(self, timeout_ms: float) -> bool:
        """Waits until something has arrived, or the group has a change. That a topic is gone is no error to a
        group: the leader assigns the others.
        """
        fetcher_poll = partial(
            self.fetcher.poll, timeout_ms, self.delivery.add, self.config.default_api_timeout_ms
        )
        if self.rebalance_listener is None:
            return self._run_within(timeout_ms, fetcher_poll)
        try:
            with self.rebalance_listener.waiting():
                return self._run_within(timeout_ms, fetcher_poll)
        except UnknownTopicOrPartition:
            self.run(self.rebalance_listener.coordinator.look_at_topics)
            return True

    # ---- The group ---------------------------------------------------------------------------------------------------

    def join(
        self, listener: RebalanceListener, topics: tuple[str, ...], pattern: Pattern[str] | None
    ) -> None:
        """Subscribes as a member of the group, which the next poll joins."""
        if self.rebalance_listener is None:
            coordinator = self.run(_member, self.config, self.fetcher)
            self.rebalance_listener = RebalanceListenerInvoker(coordinator, self.delivery)
        self.rebalance_listener.listener = listener
        self.run(self.rebalance_listener.coordinator.subscribe, topics, pattern)

    def unsubscribe(self, *, is_processed: bool) -> None:
        """Reads nothing from now on; a member of a group leaves it."""
        self.exclusively("unsubscribe", partial(self._unsubscribe, is_processed=is_processed))

    def _unsubscribe(self, *, is_processed: bool) -> None:
        if self.rebalance_listener is not None:
            if not is_processed:
                self.delivery.take_back()
            self._leave(self.rebalance_listener)
        else:
            self.run(self.fetcher.assign, [])
            self.delivery.keep_only({})
        self.topics = ()

    def _leave(self, listener: RebalanceListenerInvoker) -> None:
        """Revokes all partitions, and leaves the group. Raises the error of a callback at the end."""
        self.run(listener.coordinator.begin_leaving)
        listener.apply(self.run, self.commit_before_handover)
        self.run(listener.coordinator.close)
        self.rebalance_listener = None
        listener.raise_error()

    def member_metadata(self, what: str) -> GroupMetadata:
        """The member as which the consumer speaks to its group. Raises InvalidGroupId without one."""
        self.group_offsets(what)
        if self.rebalance_listener is not None:
            return self.rebalance_listener.coordinator.metadata
        group_id, instance_id = self.config.group_id or "", self.config.group_instance_id or ""
        return GroupMetadata(group_id, group_instance_id=instance_id)

    # ---- Commits -----------------------------------------------------------------------------------------------------

    def group_offsets(self, what: str) -> GroupOffsets:
        """The offsets of the group; `what` needs them. Raises InvalidGroupId without a group."""
        found = self.fetcher.group_offsets
        if found is None:
            raise InvalidGroupId(f"{what}: {self!r} has no group; give it a group_id: Consumer(group_id=...)")
        return found

    def commit_call(self, what: str, offsets: Offsets | None = None) -> "_CommitCall":
        """A commit of these offsets, or of all positions, as the member that the consumer is now."""
        group_offsets, member = self.group_offsets(what), self.member_metadata(what)
        chosen = (
            (lambda: offsets) if offsets is not None else partial(self.fetcher.consumed, self.delivery.read())
        )
        return _CommitCall(group_offsets, member, chosen, self.rebalance_listener is not None, self.on_commit)

    def maybe_auto_commit(self, late_s: float = 0.0) -> None:
        """Begins an automatic commit that is due, or with `late_s` one that is as late. To be called in a poll that has
        given nothing yet: the records that were given before have been processed.
        """
        at_s = time.monotonic()
        if at_s < self._commit_due_s + late_s:
            return
        self._commit_due_s = at_s + self.config.auto_commit_interval_ms / 1000
        io_thread.call_next(self.commit_call("auto commit").begin, log_refusal)

    def commit_before_handover(self) -> None:
        """Commits the positions if commits are automatic. An error is logged: the member that gets the partitions is
        given some records again.
        """
        if self._commit_due_s < _NEVER_S:
            self._run_or_log(self.commit_call("commit").commit)

    def _run_or_log(self, commit: Work[object]) -> None:
        try:
            self._run_within(min(_CLOSE_COMMIT_TIMEOUT_MS, self.config.default_api_timeout_ms), commit)
        except RaykaError as error:
            logger.warning("%r: its positions were not committed: %s", self, error)

    # ---- The end -----------------------------------------------------------------------------------------------------

    def is_processed(self, failing: object) -> bool:
        """Whether `close` or `unsubscribe` may commit the last records returned: no exception is in flight, and the
        same thread polled.
        """
        return failing is None and self.delivery.attempt.thread in (None, threading.get_ident())

    def close(self, *, is_processed: bool) -> None:
        """Ends all once. A call of another thread is interrupted and waited for; within a call of the same thread, but
        for a callback of the group, closing waits for the end of that call.
        """
        if self.is_closed or io_thread.is_lost():
            return
        io_thread.refuse("close")
        call = MethodCall()
        try:
            before = self.guard.begin(call)
            is_within = before is not None and before.thread == call.thread
            if is_within and not self._is_in_callback():
                self._is_close_due = True
                self._interrupt()
                return
            if before is not None and not is_within and self.config.group_id is not None:
                self._interrupt()
                before = self.guard.wait_and_begin(call, _CLOSE_CALL_TIMEOUT_S)
            self.is_closing = True
            self._end(is_alone=before is None or is_within, is_processed=is_processed)
        finally:
            call.end()

    def _interrupt(self) -> None:
        """Ends the poll that is under way, by ClosedError."""
        self.is_closing = True
        io_thread.call_soon(self.fetcher.interrupt)

    def _end(self, *, is_alone: bool, is_processed: bool) -> None:
        """Unless the call `is_alone`, another thread may be in a callback of the group: nothing is committed, and
        nothing more is told.
        """
        try:
            if is_alone and not is_processed:
                self.delivery.take_back()
            if is_alone and (group_offsets := self.fetcher.group_offsets) is not None:
                # What `commit_async` has begun ends, too. The positions of a member are committed when it leaves.
                is_due = self._commit_due_s < _NEVER_S and self.rebalance_listener is None
                self._run_or_log(self.commit_call("commit").commit if is_due else group_offsets.settle)
            if self.rebalance_listener is not None:
                coordinator = self.rebalance_listener.coordinator
                try:
                    if is_alone:
                        self._leave(self.rebalance_listener)
                    else:
                        logger.warning(
                            "%r is closed while a callback of its group runs: nothing more is told", self
                        )
                        self.run(coordinator.close)
                # Also if Ctrl-C came before the member had left.
                finally:
                    io_thread.call_soon(coordinator.abandon)
        finally:
            self.is_closed = True
            self.delivery.end()
            self.run(self.fetcher.close)

    def abandon(self) -> None:
        """For a finalizer: ends the work on the IO thread without waiting, and leaves the group."""
        if self.is_closed or io_thread.is_lost():
            return
        if self.rebalance_listener is not None:
            io_thread.call_soon(self.rebalance_listener.coordinator.abandon)
        io_thread.call_soon(self.fetcher.abandon)

    def warn_unclosed(self) -> None:
        """For a finalizer: warns its caller, once."""
        if self.is_closed or self._is_warned or io_thread.is_lost():
            return
        self._is_warned = True
        warnings.warn(f"{self!r} was not closed; use `with` or close()", ResourceWarning, stacklevel=3)


class _CommitCall(NamedTuple):
    """A commit as the caller's thread asks for it, to be carried out on the IO thread."""

    group_offsets: GroupOffsets
    member: GroupMetadata
    # Gives the offsets: those named, or all positions.
    chosen: Callable[[], Offsets]
    # Whether `member` has to be of a generation.
    is_member: bool
    on_commit: Callable[[Offsets], object] | None

    async def commit(self) -> None:
        """Commits. Raises the refusal."""
        offsets = self.chosen()
        await self.group_offsets.commit(offsets, self.member, is_member=self.is_member)
        if offsets and self.on_commit is not None:
            self.on_commit(offsets)

    def begin(self, callback: OnCommit) -> None:
        """Begins the commit, without a task of its own: ten thousand a second are asked for."""
        offsets = self.chosen()
        if not offsets:
            _tell(callback, offsets, None)
            return
        try:
            ended = self.group_offsets.begin(offsets, self.member, is_member=self.is_member)
        except RaykaError as error:
            _tell(callback, offsets, error)
        else:
            ended.observe(partial(self._on_ended, callback, offsets))

    def _on_ended(self, callback: OnCommit, offsets: Offsets, ended: Problems | BaseException) -> None:
        if isinstance(ended, BaseException):  # the consumer was closed first
            return
        error = first_problem(ended, offsets)
        if error is None and self.on_commit is not None:
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


def log_refusal(offsets: Offsets, error: RaykaError | None) -> None:
    """The callback of a commit without one."""
    if error is not None:
        logger.warning("offsets of %d partitions were not committed: %s", len(offsets), error)


async def _open(handle: ClusterHandle, config: ConsumerConfig) -> Fetcher:
    return Fetcher(handle, config, Random())


async def _member(config: ConsumerConfig, fetcher: Fetcher) -> ConsumerCoordinator:
    return ConsumerCoordinator(config, fetcher, socket.gethostname())
