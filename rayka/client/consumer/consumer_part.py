"""What all parts of a `Consumer` have: its fetcher and its deliveries, and how its methods reach the IO thread.

A consumer is one class to its callers, and several parts here, each with the methods of one purpose. Invariant: one
thread at a time is in a method that moves a position, and within one of them only callbacks of the group move another.
Kafka: KafkaConsumer.acquireAndEnsureOpen.
"""

import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial, wraps
from random import Random
from typing import Any, Concatenate, ParamSpec, TypeVar

from rayka.client import io_thread
from rayka.client.arguments import partition_of, text_of
from rayka.client.bootstrap import ClusterHandle, resolve
from rayka.client.bounded_wait import wait_for
from rayka.client.consumer.delivery import Delivery
from rayka.client.consumer.fetcher import Fetcher
from rayka.client.io_thread import BlockingWork
from rayka.client.process_bound import SyncClient
from rayka.config.client_config import ConsumerConfig
from rayka.errors import ClosedError, InvalidArgument
from rayka.ids import TopicPartition

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
PartT = TypeVar("PartT", bound="ConsumerPart")


class Turn:
    """One call of a method, from its beginning to `end`.

    `end` is one call into C: an exception of a signal handler comes before it, where a `finally` still runs, or after.
    """

    __slots__ = ("_under_way", "end", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._under_way = threading.Lock()
        self._under_way.acquire()
        self.end = self._under_way.release

    def is_under_way(self) -> bool:
        return self._under_way.locked()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it ends within this time."""
        is_over = io_thread.acquire_within(self._under_way, timeout_s)
        if is_over:
            self._under_way.release()
        return is_over


class Turns:
    """Admits one call at a time to the methods of a consumer. Nested calls of the same thread have no turn."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may interrupt a method and call another one.
        self._guard = threading.RLock()
        self._last: Turn | None = None

    def locked(self) -> bool:
        """Whether a call is under way."""
        return self._last is not None and self._last.is_under_way()

    def begin(self, turn: Turn) -> Turn | None:
        """Begins the turn and returns None, or returns the turn that is under way."""
        with self._guard:
            if self.locked():
                return self._last
            self._last = turn
            return None

    def wait_and_begin(self, turn: Turn, timeout_s: float | None = None) -> Turn | None:
        """As `begin`, but waits at most `timeout_s` for the end of another thread's turn."""
        while (other := self.begin(turn)) is not None:
            if other.thread == turn.thread or not other.wait(timeout_s):
                return other
        return None


def in_turn(
    method: Callable[Concatenate[PartT, P], ResultT],
) -> Callable[Concatenate[PartT, P], ResultT]:
    """Runs the method while no other thread is in one. Refuses a nested call, such as of a deserializer or a signal
    handler, unless a callback of the group makes it.
    """
    return _turned(method, may_nest=False)


def in_any_turn(
    method: Callable[Concatenate[PartT, P], ResultT],
) -> Callable[Concatenate[PartT, P], ResultT]:
    """As `in_turn` for a method that moves no position: nested calls are allowed."""
    return _turned(method, may_nest=True)


def _turned(
    method: Callable[Concatenate[PartT, P], ResultT], *, may_nest: bool
) -> Callable[Concatenate[PartT, P], ResultT]:
    @wraps(method)
    def call(self: PartT, /, *arguments: P.args, **options: P.kwargs) -> ResultT:
        turn = Turn()
        try:
            try:
                self._begin_turn(turn, method.__name__.lstrip("_"), may_nest=may_nest)
                return method(self, *arguments, **options)
            finally:
                turn.end()
        finally:
            self._end_if_due()

    return call


class ConsumerPart(SyncClient):
    """See the module. Open once `_closed` is False."""

    _is_closing = False
    _closed = True  # until it is open: __del__ of a half-made one stays silent

    def __init__(self, cluster: str | ClusterHandle, config: ConsumerConfig) -> None:
        self._config = config
        self._delivery = Delivery(config)
        handle = resolve(cluster)
        self._cluster_name = handle.name
        self._in_use = Turns()
        self._fetcher: Fetcher = self._run(_open, handle, config)
        self._closed = False

    def __repr__(self) -> str:
        """A closed consumer shows the partitions that it read last."""
        end = " closed" * self._closed
        return (
            f"<{type(self).__name__} cluster={self._cluster_name} assignment={list(self.assignment())}{end}>"
        )

    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions that are read, in the order given; those added to a topic since come last."""
        return tuple(self._fetcher.subscription.partitions)

    def _run(
        self, work: Callable[P, Coroutine[Any, Any, ResultT]], *arguments: P.args, **options: P.kwargs
    ) -> ResultT:
        """What the work comes to, within `default_api_timeout_ms`."""
        return self._run_within(self._config.default_api_timeout_ms, partial(work, *arguments, **options))

    def _run_within(self, timeout_ms: float, work: BlockingWork[ResultT]) -> ResultT:
        return wait_for(work, timeout_ms, caller=self)

    def _begin_turn(self, turn: Turn, name: str, *, may_nest: bool) -> None:
        """Raises RuntimeError where another thread is in a method, and on the IO thread, whether one is or not."""
        self._check_open()
        if io_thread.is_current():
            io_thread.refuse(f"a method of {self!r} other than commit_async with offsets")
        before = self._turn_before(turn)
        if before is None:
            return
        if before.thread != turn.thread:
            # The other thread may be closing the consumer.
            self._check_not_closing()
            raise RuntimeError(f"{self!r} is used by two threads at once; give each its own consumer")
        if not may_nest and not self._is_in_callback():
            raise RuntimeError(
                f"{name} was called within another method of {self!r}, by a signal handler, a deserializer or an"
                " interceptor; note there what is to be done, and do it when that method has returned"
            )

    def _turn_before(self, turn: Turn) -> Turn | None:
        """The turn of another call that is under way; None where this one has begun."""
        return self._in_use.begin(turn)

    def _is_processed(self, failing: object) -> bool:
        """Whether ending the reading says that the records given last are processed: not while an exception is on its
        way, nor in another thread than the one that was given them.
        """
        return failing is None and self._delivery.attempt.thread in (None, threading.get_ident())

    def _is_in_callback(self) -> bool:
        """Whether a callback of the group runs."""
        return False

    def _end_if_due(self) -> None:
        """Does after each turn what could not be done within it."""

    def _check_not_closing(self) -> None:
        self._check_open()
        if self._is_closing:
            raise ClosedError(f"{self!r} is being closed, by another thread or a signal handler")

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self!r} was closed; make a new Consumer")

    def _check_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        assigned = self._fetcher.subscription.partitions
        for tp in partitions:
            if partition_of(tp) not in assigned:
                raise InvalidArgument(f"{tp} is not assigned to {self!r}; assign it first")


async def _open(handle: ClusterHandle, config: ConsumerConfig) -> Fetcher:
    return Fetcher(handle, config, Random())


def partitions_of(given: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
    """The partitions given, each once."""
    if isinstance(given, TopicPartition) or not isinstance(given, Iterable):
        raise TypeError(f"partitions: expected a list of rayka.TopicPartition, found {type(given).__name__}")
    return tuple(dict.fromkeys(partition_of(each) for each in given))


def topic_names(*topics: str | Iterable[str]) -> list[str]:
    """The names given, one by one or in lists, each once. Raises TypeError, ValueError for what is no name."""
    names: dict[str, None] = {}
    for each in topics:
        for name in [each] if isinstance(each, str) or not isinstance(each, Iterable) else each:
            if not isinstance(name, str):
                raise TypeError(f"topics: expected names, found {type(name).__name__}")
            names[text_of(name, "topics")] = None
    return list(names)
