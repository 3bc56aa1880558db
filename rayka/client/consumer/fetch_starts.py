"""Start offsets of partitions that have no position: looked up in the background, while the other partitions are read.

Invariants: a position is looked up once at a time; a result for an older generation (`seek` came meanwhile, or the
topic was created again) changes nothing; a partition whose leader is silent, or that cannot be looked up at all, holds
up no other. Kafka: OffsetFetcher.resetPositionsIfNeeded (G12, G16).
"""

from collections.abc import Callable, Coroutine, Mapping
from itertools import islice
from typing import Any

from rayka.client.consumer.fetch_state import FetchState, OnError
from rayka.client.leader_calls import LeaderCalls
from rayka.client.list_offsets import LIST_OFFSETS
from rayka.errors import OffsetOutOfRange, RaykaError
from rayka.ids import NO_OFFSET, TopicPartition
from rayka.protocol.fetch import LATEST_TIMESTAMP, ListOffsetsPartitionResult

_AT_ONCE_MAX = 1_000  # partitions: more would block the event loop for too long


class FetchStarts:
    """See the module. `wake` is called when partitions got a position, `on_error` when one cannot get any."""

    def __init__(
        self,
        state: FetchState,
        leaders: LeaderCalls,
        timeout_ms: int,
        *,
        wake: Callable[[], object],
        on_error: OnError,
    ) -> None:
        self._state = state
        self._leaders = leaders
        self._timeout_ms = timeout_ms
        self._wake = wake
        self._on_error = on_error
        self._asked: dict[TopicPartition, int] = {}  # generations that are looked up just now

    def __repr__(self) -> str:
        return f"<FetchStarts asked={len(self._asked)}>"

    def begin(self) -> Coroutine[Any, Any, None] | None:
        """The look-up of partitions that have no position and are not looked up yet, or of the first of them when they
        are many; None when there are none.
        """
        unknown = (each for each in self._state.without_offset() if not self._is_asked(each[0]))
        part = dict(islice(unknown, _AT_ONCE_MAX))
        return self.look_up(part) if part else None

    def look_up(self, unknown: Mapping[TopicPartition, int | None]) -> Coroutine[Any, Any, None]:
        """Gives each partition a position, or the application the reason why not."""
        wanted: dict[TopicPartition, int] = {}
        for tp, timestamp_ms in unknown.items():
            if timestamp_ms is not None:
                wanted[tp] = timestamp_ms
                continue
            reason = f"{tp} has no position and auto_offset_reset is 'none'; seek first"
            self._on_error(tp, OffsetOutOfRange(reason))
        generations = {tp: self._state.generation(tp) for tp in wanted}
        self._asked.update(generations)
        return self._look_up(wanted, generations)

    async def _look_up(
        self, wanted: Mapping[TopicPartition, int], generations: Mapping[TopicPartition, int]
    ) -> None:
        try:
            await self._leaders.call(
                LIST_OFFSETS,
                wanted,
                self._timeout_ms,
                on_found=lambda found: self._on_found(generations, found),
                on_refused=lambda tp, error: self._on_refused(generations[tp], tp, error),
            )
        finally:
            for tp, generation in generations.items():
                self._end(tp, generation)

    def _on_found(
        self,
        generations: Mapping[TopicPartition, int],
        found: Mapping[TopicPartition, ListOffsetsPartitionResult],
    ) -> None:
        for tp, result in found.items():
            self._end(tp, generations[tp])
            if result.offset != NO_OFFSET:
                self._state.on_offset(tp, generations[tp], result.offset, result.leader_epoch)
            elif self._state.lacks_offset(tp, generations[tp]):  # nothing at or after that time
                self._state.seek_to_timestamp(tp, LATEST_TIMESTAMP)
        self._wake()

    def _on_refused(self, generation: int, topic_partition: TopicPartition, error: RaykaError) -> None:
        self._end(topic_partition, generation)
        if self._state.lacks_offset(topic_partition, generation):
            self._on_error(topic_partition, error)

    def _is_asked(self, topic_partition: TopicPartition) -> bool:
        asked = self._asked.get(topic_partition)
        return asked is not None and asked == self._state.generation(topic_partition)

    def _end(self, topic_partition: TopicPartition, generation: int) -> None:
        if self._asked.get(topic_partition) == generation:
            del self._asked[topic_partition]
