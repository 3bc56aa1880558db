"""`rayka.read`: a bounded range of topics, from offsets that exist now to offsets that exist now, and then it ends.

Invariants: the ends are fixed before the first record, of topics known by their ids, and no record of another topic of
the same name is given; each record in range is given once, in offset order per partition; a partition is done when its
position, which follows the broker's `next_offset`, reaches its end, so gaps and control records cannot stall it; no
progress for `default_api_timeout_ms` is an error, never a hang.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from random import Random
from typing import Any, NamedTuple, ParamSpec, TypeVar, Unpack
from uuid import UUID

import pyarrow as pa

from rayka.client import io_thread
from rayka.client.arguments import int_of, is_int
from rayka.client.bootstrap import DEFAULT_CLUSTER, ClusterHandle, resolve
from rayka.client.bounded_wait import wait_for
from rayka.client.consumer.consumer_part import topic_names
from rayka.client.consumer.delivery import Delivery
from rayka.client.consumer.fetcher import Fetcher
from rayka.client.consumer.record import Record
from rayka.client.leader_calls import LeaderCalls
from rayka.client.list_offsets import offsets_at
from rayka.client.metadata import ClusterMetadata
from rayka.client.timestamps import timestamp_ms_of
from rayka.config import ConsumerConfig
from rayka.errors import ConfigError, OffsetOutOfRange, TopicRecreated, UnavailableError
from rayka.ids import NO_OFFSET, TopicPartition
from rayka.options import ConsumerOptions
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from rayka.protocol.later import Later

Bound = str | int | datetime | Mapping[TopicPartition, int]
P = ParamSpec("P")
_ItemT = TypeVar("_ItemT")


def read(
    topics: str | Iterable[str],
    *,
    cluster: str | ClusterHandle = DEFAULT_CLUSTER,
    start: Bound = "earliest",
    end: Bound = "latest",
    config: Mapping[str, Any] | None = None,
    **options: Unpack[ConsumerOptions],
) -> "Reader":
    """The records of topics between two bounds, as an iterable that ends and cannot hang.

    `start` (inclusive) and `end` (exclusive) are "earliest", "latest", a `datetime` or a timestamp in ms (the first
    record at or after it), or offsets by TopicPartition, where partitions not named are read from the earliest, to the
    latest. "latest" is the high watermark at the call. A `datetime` without a time zone is local time. Options are
    those of `Consumer`.

    Raises OffsetOutOfRange when a bound lies outside a log, UnknownTopicOrPartition, ClusterNotFound, ConfigError;
    while iterating UnavailableError when nothing arrives for `default_api_timeout_ms`, and InconsistentTopicId when a
    topic was deleted and created again since the call: the range is one of the topic that there was.
    """
    parsed = ConsumerConfig.given(config, {"auto_offset_reset": "none", **options}, what="consumer")
    if parsed.group_id is not None:
        raise ConfigError(
            "read: expected no group_id: a bounded range is read without a group; use a Consumer"
        )
    return Reader(topic_names(topics), resolve(cluster), start, end, parsed)


class Reader:
    """A bounded range; iterate it for `Record`s, or `arrow_batches()` for Arrow. Each iteration reads the
    range anew.
    """

    def __init__(
        self, topics: list[str], handle: ClusterHandle, start: Bound, end: Bound, config: Any
    ) -> None:
        self._handle = handle
        self._config = config
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
        """How many offsets the range spans: its records, unless some were compacted away."""
        return sum(max(0, self.end_offsets[tp] - start) for tp, start in self.start_offsets.items())

    def __iter__(self) -> Iterator[Record]:
        for records in self._read(Delivery.iterator):
            yield from records

    def arrow_batches(self) -> Iterator[pa.RecordBatch]:
        """The records as Arrow batches, with the columns of `Consumer.poll_arrow`."""
        return self._read(Delivery.next_arrow)

    # ---- Within ----------------------------------------------------------------------------------------------------

    def _read(self, take: Callable[[Delivery], _ItemT | None]) -> Iterator[_ItemT]:
        remaining = {tp: start for tp, start in self.start_offsets.items() if start < self.end_offsets[tp]}
        delivery = Delivery(self._config, self.end_offsets)
        fetcher = self._wait_for(self._start, remaining)
        try:
            while remaining:
                if not self._wait_for(fetcher.poll, self._config.default_api_timeout_ms, delivery.add):
                    raise self._stalled(remaining)
                while (item := take(delivery)) is not None:
                    yield item
                behind = {
                    tp: at for tp in remaining if (at := delivery.position(tp) or 0) < self.end_offsets[tp]
                }
                if len(behind) < len(remaining):
                    self._wait_for(fetcher.assign, list(behind), self._topic_ids)
                remaining = behind
        finally:
            self._end(fetcher)

    def _end(self, fetcher: Fetcher) -> None:
        """Python ends an iteration that was left in the middle on any thread, also after the IO thread's end."""
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
            # Created again before the call; the broker that was asked for the topic did not know that yet.
            with suppress(TopicRecreated):
                available = _Available(await lookup(EARLIEST_TIMESTAMP), await lookup(LATEST_TIMESTAMP))
                break
        bounds = []
        for name, given in (("start", start), ("end", end)):
            bound = timestamp_ms_of(given) if isinstance(given, datetime) else given
            if isinstance(bound, Mapping):
                bounds.append(available.named(name, bound))
            elif isinstance(bound, str) and bound in available._fields:
                bounds.append(getattr(available, bound))
            elif is_int(bound) and 0 <= bound < 2**63:
                bounds.append(available.clamped(await lookup(bound)))
            else:
                raise ConfigError(
                    f"read: {name}: expected 'earliest', 'latest', a datetime, a timestamp in ms or offsets, found "
                    f"{given!r}"
                )
        return bounds[0], bounds[1]

    async def _partitions(self, metadata: ClusterMetadata, topics: Iterable[str]) -> list[TopicPartition]:
        """Of the topics that have these names now, and no others from then on."""
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


class _Available(NamedTuple):
    """The offsets that there are at the call; records that arrive meanwhile are not among them."""

    earliest: dict[TopicPartition, int]
    latest: dict[TopicPartition, int]

    def named(self, name: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offsets that a bound names, and the whole range of the partitions that it does not name."""
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
        """Offsets by time; where there is no record so late, the end."""
        return {
            tp: self.latest[tp] if offset == NO_OFFSET else min(offset, self.latest[tp])
            for tp, offset in offsets.items()
        }
