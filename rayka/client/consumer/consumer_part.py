"""What all parts of a `Consumer` have: its fetcher and its deliveries, and how its methods reach the IO thread.

A consumer is one class to its callers, and several parts here, each with the methods of one purpose. Invariant: one
thread at a time is in a method that moves a position. Kafka: KafkaConsumer.acquireAndEnsureOpen.
"""

import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, ParamSpec, TypeVar

from rayka.client import io_thread
from rayka.client.arguments import partition_of, text_of
from rayka.client.bootstrap import ClusterHandle, resolve
from rayka.client.bounded_wait import wait_for
from rayka.client.consumer.delivery import Delivery
from rayka.client.consumer.fetcher import Fetcher
from rayka.client.io_thread import BlockingWork
from rayka.client.process_bound import SyncClient
from rayka.config import ConsumerConfig
from rayka.errors import ClosedError
from rayka.ids import TopicPartition

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class ConsumerPart(SyncClient):
    """See the module. Open once `_closed` is False."""

    _closed = True  # until it is open: __del__ of a half-made one stays silent

    def __init__(self, cluster: str | ClusterHandle, config: ConsumerConfig) -> None:
        self._config = config
        self._delivery = Delivery(config)
        handle = resolve(cluster)
        self._cluster_name = handle.name
        self._in_use = threading.Lock()
        self._user: int | None = None  # the thread that is in a method
        self._fetcher: Fetcher = self._run(_open, handle, config)
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} cluster={self._cluster_name} assignment={list(self.assignment())}>"

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

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """A callback of the group, which runs within a poll, may call other methods. One on the IO thread may not,
        whether another thread is in a method just now or not.
        """
        self._check_open()
        if self._user == threading.get_ident():
            yield
            return
        if io_thread.is_current():
            io_thread.refuse(f"a method of {self!r} other than commit_async with offsets")
        if not self._takes_turn():
            raise RuntimeError(f"{self!r} is used by two threads at once; give each its own consumer")
        with self._turn():
            yield

    def _takes_turn(self) -> bool:
        """Whether no other thread is in a method; `_turn` ends it."""
        return self._in_use.acquire(blocking=False)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The one that `_in_use` was taken for."""
        self._user = threading.get_ident()
        try:
            yield
        finally:
            self._user = None
            self._in_use.release()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self!r} was closed; make a new Consumer")

    def _check_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        assigned = self._fetcher.subscription.partitions
        for tp in partitions:
            if partition_of(tp) not in assigned:
                raise ValueError(f"{tp} is not assigned to {self!r}; assign it first")


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
