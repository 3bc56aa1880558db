"""Where partitions begin to be read that have no position: looked up in the background, while the others are read.

Invariants: a position is looked up once at a time; what comes for an older generation (the partition was sought
meanwhile, or its topic created again) changes nothing; a partition whose leader is silent, or that cannot be looked up
at all, holds up no other. Kafka: OffsetFetcher.resetPositionsIfNeeded (G12, G16).
"""

from collections.abc import Callable, Coroutine, Mapping
from itertools import islice
from typing import Any

from rayka.client.fetch_state import FetchState
from rayka.client.offset_lookup import OffsetLookup
from rayka.errors import OffsetOutOfRange, RaykaError
from rayka.ids import NO_OFFSET, TopicPartition
from rayka.protocol.fetch import LATEST_TIMESTAMP, ListOffsetsPartitionResult

_AT_ONCE_MAX = 1_000  # partitions: more hold up the loop for longer than others should wait for it
Hear = Callable[[TopicPartition, RaykaError], object]


class FetchStarts:
    """See the module. `wake` is called when partitions have a position, `hear` with the reason when one has none."""

    def __init__(
        self, state: FetchState, lookup: OffsetLookup, timeout_ms: int, wake: Callable[[], object], hear: Hear
    ) -> None:
        self._state = state
        self._lookup = lookup
        self._timeout_ms = timeout_ms
        self._wake = wake
        self._hear = hear
        self._asked: dict[TopicPartition, int] = {}  # generations that are looked up just now

    def __repr__(self) -> str:
        return f"<FetchStarts asked={len(self._asked)}>"

    def begin(self) -> Coroutine[Any, Any, None] | None:
        """The look-up of partitions without a position that are not looked up yet, of a part of them if they are many;
        None when there is none.
        """
        unknown = (each for each in self._state.without_offset() if not self._is_asked(each[0]))
        part = dict(islice(unknown, _AT_ONCE_MAX))
        return self.look_up(part) if part else None

    def look_up(self, unknown: Mapping[TopicPartition, int | None]) -> Coroutine[Any, Any, None]:
        """Each partition has a position then, or the application hears why not."""
        wanted: dict[TopicPartition, int] = {}
        for tp, timestamp_ms in unknown.items():
            if timestamp_ms is not None:
                wanted[tp] = timestamp_ms
                continue
            reason = f"{tp} has no position and auto_offset_reset is 'none'; seek first"
            self._hear(tp, OffsetOutOfRange(reason))
        generations = {tp: self._state.generation(tp) for tp in wanted}
        self._asked.update(generations)
        return self._look_up(wanted, generations)

    async def _look_up(
        self, wanted: Mapping[TopicPartition, int], generations: Mapping[TopicPartition, int]
    ) -> None:
        try:
            await self._lookup.offsets(
                wanted,
                self._timeout_ms,
                lambda found: self._on_found(generations, found),
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
            self._hear(topic_partition, error)

    def _is_asked(self, topic_partition: TopicPartition) -> bool:
        asked = self._asked.get(topic_partition)
        return asked is not None and asked == self._state.generation(topic_partition)

    def _end(self, topic_partition: TopicPartition, generation: int) -> None:
        if self._asked.get(topic_partition) == generation:
            del self._asked[topic_partition]
