"""What all parts of a `Consumer` have: its fetcher and its deliveries, and how its methods reach the IO thread.

A consumer is one class to its callers, and several parts here, each with the methods of one purpose. Invariant: one
thread at a time is in a method that moves a position, and within one of them only callbacks of the group move another.
Kafka: KafkaConsumer.acquireAndEnsureOpen.
"""

import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial, wraps
from random import Random
from typing import Any, Concatenate, ParamSpec, TypeVar

from rayka.client import io_thread
from rayka.client.arguments import Moment, given_timestamp_ms, int_of, mapping_of, partition_of, text_of
from rayka.client.bootstrap import ClusterHandle, resolve
from rayka.client.consumer.delivery import Delivery
from rayka.client.consumer.fetcher import Fetcher
from rayka.client.consumer.offset_commits import OffsetAndTimestamp
from rayka.client.io_thread import BlockingWork, SyncClient, wait_for
from rayka.client.leader_calls import LIST_OFFSETS
from rayka.config.client_config import ConsumerConfig
from rayka.errors import ClosedError, InvalidArgument
from rayka.ids import NO_OFFSET, TopicPartition
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ListOffsetsPartitionResult

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


# Where a consumer stands, and where it goes: positions, seeks, and the offsets that there are.
#
# The part of `Consumer` that says from where records are read. Kafka: KafkaConsumer, SubscriptionState (G12, G16).


class ConsumerPositions(ConsumerPart):
    """See the module; its methods are those of `Consumer`."""

    @in_turn
    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """The next record of the partition is the first at or after offset.

        An offset outside the log is found out by the next poll: `auto_offset_reset` decides, "none" raises
        OffsetOutOfRange. Raises ValueError for a negative offset or a partition that is not assigned.
        """
        if not 0 <= int_of(offset, "offset") < 2**63:
            raise InvalidArgument(
                f"offset: expected 0 or more, below 2**63, found {offset}; see seek_to_beginning and seek_to_end"
            )
        self._check_assigned([topic_partition])
        self._run(self._fetcher.seek, {topic_partition: offset})
        self._delivery.drop(topic_partition)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Goes to the first offset of the partitions, of all assigned ones if none is named."""
        self._seek_to_timestamp(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Goes behind the last committed record of the partitions, of all assigned ones if none is named."""
        self._seek_to_timestamp(partitions, LATEST_TIMESTAMP)

    def seek_to_timestamp(self, timestamp: Moment, *partitions: TopicPartition) -> None:
        """Goes to the first record at or after a moment, or a timestamp in ms, and behind the last record where there
        is none; of all assigned partitions if none is named. A moment is a `datetime` (also of pandas), a `date`, or a
        text as "2026-01-31T12:00"; without a time zone it is local time. Raises TypeError, and ValueError for what is
        no moment since 1970.
        """
        self._seek_to_timestamp(partitions, given_timestamp_ms(timestamp, "timestamp"))

    # ---- Pausing ---------------------------------------------------------------------------------------------------

    @in_turn
    def pause(self, *partitions: TopicPartition) -> None:
        """Gives no more records of these partitions until `resume`, also in a loop that is under way; positions stay.

        What was fetched of them is kept. A partition that is assigned anew is not paused. Raises ValueError for one
        that is not assigned.
        """
        self._check_assigned(partitions)
        # First: if an interruption comes next, `paused` already names the partitions.
        for tp in partitions:
            self._delivery.pause(tp)
        self._run(self._fetcher.pause, partitions)

    @in_turn
    def resume(self, *partitions: TopicPartition) -> None:
        """Goes on giving records of these partitions. Raises ValueError for one that is not assigned."""
        self._check_assigned(partitions)
        # First: if an interruption comes next, `paused` still names the partitions.
        self._run(self._fetcher.resume, partitions)
        for tp in partitions:
            self._delivery.resume(tp)

    def paused(self) -> tuple[TopicPartition, ...]:
        """The partitions that are paused."""
        self._check_open()
        return self._delivery.paused()

    # ---- Offsets ---------------------------------------------------------------------------------------------------

    @in_any_turn
    def position(self, topic_partition: TopicPartition) -> int:
        """The offset of the next record that poll will give. Raises what the lookup of an unknown one raises."""
        self._check_assigned([topic_partition])
        waiting_offset = self._delivery.next_offset(topic_partition)
        if waiting_offset is not None:
            return waiting_offset
        read = self._delivery.read_up_to(topic_partition)
        timeout_ms = self._config.default_api_timeout_ms
        return int(self._run(self._fetcher.position, topic_partition, read, timeout_ms))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition. Raises UnknownTopicOrPartition, UnavailableError."""
        return self._offsets(partitions, EARLIEST_TIMESTAMP)  # G12

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermark of each partition: the offset after its last committed record."""
        return self._offsets(partitions, LATEST_TIMESTAMP)  # G12

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, Moment]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition at or after its moment, or timestamp in ms; None where there is none.

        Moments as of `seek_to_timestamp`. Raises UnknownTopicOrPartition, UnavailableError, TypeError, ValueError for
        what is no moment since 1970.
        """
        given = mapping_of(timestamps, "timestamps").items()
        found = self._look_up({partition_of(tp): given_timestamp_ms(each, f"{tp}") for tp, each in given})
        return {
            tp: None
            if each.offset == NO_OFFSET
            else OffsetAndTimestamp(each.offset, each.timestamp_ms, each.leader_epoch)
            for tp, each in found.items()
        }

    def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """How many offsets each partition's end is ahead of its position, of all assigned ones if none is named.

        Raises what `position` and `end_offsets` raise.
        """
        chosen = partitions or self.assignment()
        ends = self.end_offsets(chosen)
        return {tp: max(0, ends[tp] - self.position(tp)) for tp in chosen}

    @in_turn
    def _seek_to_timestamp(self, partitions: tuple[TopicPartition, ...], timestamp_ms: int) -> None:
        chosen = partitions or self.assignment()
        self._check_assigned(chosen)
        self._run(self._fetcher.seek_to_timestamp, chosen, timestamp_ms)
        for tp in chosen:
            self._delivery.drop(tp)

    def _offsets(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        found = self._look_up(dict.fromkeys(partitions_of(partitions), timestamp_ms))
        return {tp: each.offset for tp, each in found.items()}

    def _look_up(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListOffsetsPartitionResult]:
        """In the order of those wanted."""
        self._check_open()
        timeout_ms = self._config.default_api_timeout_ms
        found = self._run(self._fetcher.leaders.call, LIST_OFFSETS, wanted, timeout_ms)
        return {tp: found[tp] for tp in wanted}
