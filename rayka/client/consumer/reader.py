"""`rayka.read`: a bounded range of topics, between offsets that exist at the call.

Invariants: the ends are fixed before the first record, of topics known by their ids, and no record of another topic of
the same name is given; each record in range is given once, in offset order per partition; a partition is done when its
position, which follows the broker's `next_offset`, reaches its end, so gaps and control records cannot stall a read; no
progress for `default_api_timeout_ms` is an error, never a hang.
"""

import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, Unpack
from uuid import UUID
from weakref import ReferenceType, ref

import pyarrow as pa

from rayka.client import io_thread
from rayka.client.arguments import Moment, given_timestamp_ms, int_of, topic_names
from rayka.client.bootstrap import DEFAULT_CLUSTER, ClusterHandle, resolve
from rayka.client.consumer.delivery import Delivery
from rayka.client.consumer.fetch_buffer import Fetched
from rayka.client.consumer.fetcher import Fetcher
from rayka.client.consumer.record import Record
from rayka.client.io_thread import wait_for
from rayka.client.leader_calls import LeaderCalls, offsets_at
from rayka.client.metadata import ClusterMetadata
from rayka.config.client_config import ConsumerConfig
from rayka.errors import (
    ConfigError,
    OffsetOutOfRange,
    RaykaError,
    SerializationError,
    TopicRecreated,
    UnavailableError,
)
from rayka.ids import NO_OFFSET, TopicPartition
from rayka.options import ConsumerOptions
from rayka.protocol.configs import ConfigResourceName, DescribeConfigsRequest, ResourceType
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from rayka.protocol.later import Later

Bound = Moment | Mapping[TopicPartition, int]
OnPoison = Literal["stop", "skip"] | Callable[[None, SerializationError], object]
P = ParamSpec("P")
# If the controller does not answer in this time, records are counted by reading them.
_POLICY_TIMEOUT_MS = 3_000

logger = logging.getLogger(__name__)
_ItemT = TypeVar("_ItemT")


def read(
    topics: str | Iterable[str],
    *,
    cluster: str | ClusterHandle = DEFAULT_CLUSTER,
    start: Bound = "earliest",
    end: Bound = "latest",
    on_poison: OnPoison = "stop",
    config: Mapping[str, Any] | None = None,
    **options: Unpack[ConsumerOptions],
) -> "Reader":
    """The records of topics between two bounds, as an iterable that ends and cannot hang.

    `start` (inclusive) and `end` (exclusive) are "earliest", "latest", a moment or a timestamp in ms (the first record
    at or after it), or offsets by TopicPartition, where partitions not named are read from the earliest, to the
    latest. "latest" is the high watermark at the call. A moment is a `datetime` (also of pandas), a `date`, or a text
    as "2026-01-31" or "2026-01-31T12:00"; without a time zone it is local time. Options are those of `Consumer`.

    A record that cannot be deserialized ends an iteration with SerializationError, which names it. With
    `on_poison="skip"` it is logged and passed over; so it is with a callable of (None, error), as of `rayka.workers`.

    Raises OffsetOutOfRange when a bound lies outside a log, UnknownTopicOrPartition, ClusterNotFound, ConfigError;
    while iterating UnavailableError when nothing arrives for `default_api_timeout_ms`, and InconsistentTopicId when a
    topic was deleted and created again since the call: the range is one of the topic that there was.
    """
    parsed = ConsumerConfig.given(config, {"auto_offset_reset": "none", **options}, what="consumer")
    if parsed.group_id is not None:
        raise ConfigError(
            "read: expected no group_id: a bounded range is read without a group; use a Consumer"
        )
    if on_poison not in ("stop", "skip") and not callable(on_poison):
        raise ConfigError(f"read: on_poison: expected 'stop', 'skip' or a callable, found {on_poison!r}")
    return Reader(topic_names(topics), resolve(cluster), start, end, parsed, on_poison)


class Reader:
    """A bounded range; iterate it for `Record`s, or `arrow_batches()` for Arrow. Each iteration reads the
    range anew.
    """

    def __init__(
        self,
        topics: list[str],
        handle: ClusterHandle,
        start: Bound,
        end: Bound,
        config: Any,
        on_poison: OnPoison = "stop",
    ) -> None:
        self._handle = handle
        self._config = config
        self._on_poison = on_poison
        self._count: int | None = None
        # The last iteration over records, which may have yet to begin.
        self._iteration: ReferenceType[_Iteration] | None = None
        self._topic_ids: dict[str, UUID] = {}
        # One for all iterations, so that none goes back to older metadata.
        self._metadata: ClusterMetadata | None = None
        self.start_offsets, self.end_offsets = self._wait_for(self._bounds, topics, start, end)

    def __repr__(self) -> str:
        ranges = " ".join(
            f"{tp}[{start}, {self.end_offsets[tp]})" for tp, start in self.start_offsets.items()
        )
        return f"<Reader cluster={self._handle.name} {ranges}>"

    def __len__(self) -> int:
        """The number of records in the range. Offsets of a compacted topic have gaps, so its records are counted by
        reading them.

        `list` makes an iterator, asks for the length, and then for the records: an iterator that was not used yet gets
        the fetches that were counted.
        """
        if self._count is None:
            count = sum(max(0, self.end_offsets[tp] - start) for tp, start in self.start_offsets.items())
            if count and self._wait_for(self._may_have_gaps):
                iteration = None if self._iteration is None else self._iteration()
                is_upcoming = iteration is not None and not iteration.has_begun
                kept: list[Sequence[Fetched]] | None = [] if is_upcoming else None
                count = sum(each.num_rows for each in self._read(Delivery.next_arrow, kept))
                if iteration is not None and kept is not None:
                    iteration.fetched = kept
            self._count = count
        return self._count

    def __bool__(self) -> bool:
        """Whether the range has offsets. Their records may all have been compacted away. Asks no broker."""
        return any(self.start_offsets[tp] < end for tp, end in self.end_offsets.items())

    def __iter__(self) -> Iterator[Record]:
        iteration = _Iteration()
        self._iteration = ref(iteration)
        return self._records(iteration)

    def arrow_batches(self) -> Iterator[pa.RecordBatch]:
        """The records as Arrow batches, with the columns of `Consumer.poll_arrow`."""
        return self._read(Delivery.next_arrow)

    # ---- Within ----------------------------------------------------------------------------------------------------

    async def _may_have_gaps(self) -> bool:
        """Whether a topic is compacted; True also if no controller answers."""
        assert self._metadata is not None
        names = (ConfigResourceName(ResourceType.TOPIC, name) for name in self._topic_ids)
        timeout_ms = min(_POLICY_TIMEOUT_MS, self._config.default_api_timeout_ms)
        try:
            request = DescribeConfigsRequest(tuple(names))
            response = await self._metadata.nodes.call_controller(request, timeout_ms)
        except RaykaError:
            return True
        policies = [
            [entry.value for entry in each.entries if entry.name == "cleanup.policy"]
            for each in response.resources
        ]
        return any(each != ["delete"] for each in policies)

    def _records(self, iteration: "_Iteration") -> Iterator[Record]:
        iteration.has_begun = True
        fetched, iteration.fetched = iteration.fetched, None
        if fetched is None:
            for records in self._read(Delivery.iterator):
                yield from records
            return
        delivery = Delivery(self._config, self.end_offsets)
        for each in fetched:
            delivery.add(each)
        fetched.clear()
        while (taken := self._taken(Delivery.iterator, delivery)) is not None:
            yield from taken

    def _read(
        self, take: Callable[[Delivery], _ItemT | None], kept: list[Sequence[Fetched]] | None = None
    ) -> Iterator[_ItemT]:
        """Reads the range; `kept` gets all that is fetched."""
        remaining = {tp: start for tp, start in self.start_offsets.items() if start < self.end_offsets[tp]}
        delivery = Delivery(self._config, self.end_offsets)

        def add(fetched: Sequence[Fetched]) -> None:
            delivery.add(fetched)
            if kept is not None:
                kept.append(fetched)

        fetcher = self._wait_for(self._start, remaining)
        try:
            while remaining:
                if not self._wait_for(fetcher.poll, self._config.default_api_timeout_ms, add):
                    raise self._stalled(remaining)
                while (item := self._taken(take, delivery)) is not None:
                    yield item
                behind = {
                    tp: at for tp in remaining if (at := delivery.position(tp) or 0) < self.end_offsets[tp]
                }
                if len(behind) < len(remaining):
                    self._wait_for(fetcher.assign, list(behind), self._topic_ids)
                remaining = behind
        finally:
            self._end(fetcher)

    def _taken(self, take: Callable[[Delivery], _ItemT | None], delivery: Delivery) -> _ItemT | None:
        while True:
            try:
                return take(delivery)
            except SerializationError as error:
                if self._on_poison == "stop":
                    raise
                delivery.pass_over()
                if callable(self._on_poison):
                    self._on_poison(None, error)
                else:
                    logger.error("%r passes over a record: %s", self, error)

    def _end(self, fetcher: Fetcher) -> None:
        """Closes the fetcher of an iteration. Python ends an iteration that was left in the middle on any thread, also
        after the end of the IO thread.
        """
        if io_thread.is_current():
            fetcher.abandon()
        elif not io_thread.is_lost():
            self._wait_for(fetcher.close)

    def _wait_for(
        self,
        work: Callable[P, Coroutine[Any, Any, _ItemT] | Later[_ItemT]],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> _ItemT:
        bound_ms = self._config.default_api_timeout_ms
        work_now = partial(work, *arguments, **options)
        return wait_for(work_now, bound_ms, caller=f"read of cluster {self._handle.name!r}")

    async def _start(self, offsets: Mapping[TopicPartition, int]) -> Fetcher:
        fetcher = Fetcher(self._handle, self._config, Random(), self._metadata)
        try:
            await fetcher.assign(list(offsets), self._topic_ids)
        except BaseException:
            await fetcher.close()
            raise
        await fetcher.seek(offsets)
        return fetcher

    async def _bounds(
        self, topics: list[str], start: Bound, end: Bound
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        config, random = self._config, Random()
        network = self._handle.network(config.transport)
        metadata = self._metadata = ClusterMetadata(network, self._handle.name, config, random)
        leaders = LeaderCalls(network, metadata)

        async def lookup(timestamp_ms: int) -> dict[TopicPartition, int]:
            timeout_ms = config.default_api_timeout_ms
            return await offsets_at(leaders, partitions, timestamp_ms, timeout_ms, self._topic_ids)

        while True:
            partitions = await self._partitions(metadata, topics)
            # A topic was created again before the call, and the broker that was asked did not know that yet.
            with suppress(TopicRecreated):
                available = _Available(await lookup(EARLIEST_TIMESTAMP), await lookup(LATEST_TIMESTAMP))
                break
        bounds = []
        for name, given in (("start", start), ("end", end)):
            if isinstance(given, Mapping):
                bounds.append(available.named(name, given))
            elif isinstance(given, str) and given in available._fields:
                bounds.append(getattr(available, given))
            else:
                bounds.append(available.clamped(await lookup(_timestamp_ms_of(given, name))))
        return bounds[0], bounds[1]

    async def _partitions(self, metadata: ClusterMetadata, topics: Iterable[str]) -> list[TopicPartition]:
        """The partitions of the topics that have these names now. Later topics of these names are refused."""
        partitions: list[TopicPartition] = []
        for name in topics:
            topic = await metadata.topic(name, self._config.default_api_timeout_ms)
            self._topic_ids[name] = topic.topic_id
            partitions += [TopicPartition(name, each.partition) for each in topic.partitions]
        return partitions

    def _stalled(self, remaining: Mapping[TopicPartition, int]) -> UnavailableError:
        where = ", ".join(f"{tp} at {at} of {self.end_offsets[tp]}" for tp, at in remaining.items())
        return UnavailableError(
            f"cluster {self._handle.name!r} gave nothing for {self._config.default_api_timeout_ms} ms: {where}; "
            "are its brokers running? see `rayka status`"
        )


class _Iteration:
    """An iteration over the records of a range. `fetched`: all of the range, if `len` has read it for the iteration."""

    has_begun = False
    fetched: list[Sequence[Fetched]] | None = None


def _timestamp_ms_of(given: Any, name: str) -> int:
    """Raises ConfigError."""
    try:
        return given_timestamp_ms(given, name)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"read: {name}: expected 'earliest', 'latest', a moment since 1970 as a date, a text ('2026-01-31T12:00')"
            f" or a datetime, a timestamp in ms or offsets by TopicPartition, found {given!r}"
        ) from error


class _Available(NamedTuple):
    """The offsets that exist at the call."""

    earliest: dict[TopicPartition, int]
    latest: dict[TopicPartition, int]

    def named(self, name: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offsets that a bound names. Partitions that it does not name keep their whole range."""
        for tp, offset in offsets.items():
            if tp not in self.latest:
                topics = dict.fromkeys(each.topic for each in self.latest)
                raise ConfigError(f"read: {tp} is not a partition of {', '.join(topics)}")
            if not self.earliest[tp] <= int_of(offset, f"read: {name} offset of {tp}") <= self.latest[tp]:
                raise OffsetOutOfRange(
                    f"read: {name} offset {offset} of {tp} does not exist; "
                    f"available: [{self.earliest[tp]}, {self.latest[tp]}]"
                )
        return {**(self.earliest if name == "start" else self.latest), **offsets}

    def clamped(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Offsets by time. Where there is no record so late, the end."""
        return {
            tp: self.latest[tp] if offset == NO_OFFSET else min(offset, self.latest[tp])
            for tp, offset in offsets.items()
        }
