"""Start offsets of partitions that have no position: looked up in the background, while the other partitions are read.

What the group has committed comes first; where that is nothing, the reset policy says where to begin.

Invariants: a position is looked up once at a time; a result for an older generation (`seek` came meanwhile, or the
topic was created again) changes nothing; a partition whose leader is silent, or that cannot be looked up at all, holds
up no other. Kafka: OffsetFetcher.resetPositionsIfNeeded (G12, G16).
"""

import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import islice
from typing import Any

from rayka.client.consumer.fetch_state import FetchStart, FetchState
from rayka.client.group.committing import GroupOffsets
from rayka.client.leader_calls import LeaderCalls
from rayka.client.list_offsets import LIST_OFFSETS
from rayka.errors import OffsetOutOfRange, RaykaError
from rayka.ids import NO_OFFSET, TopicPartition
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ListOffsetsPartitionResult

_AT_ONCE_MAX = 1_000  # partitions: more would block the event loop for too long
_Starts = Mapping[TopicPartition, FetchStart]

logger = logging.getLogger(__name__)


class FetchStarts:
    """See the module. `wake` is called when partitions got a position."""

    def __init__(
        self,
        state: FetchState,
        leaders: LeaderCalls,
        timeout_ms: int,
        wake: Callable[[], object],
        *,
        group_offsets: GroupOffsets | None = None,
    ) -> None:
        self._state = state
        self._leaders = leaders
        self._timeout_ms = timeout_ms
        self._wake = wake
        self._group_offsets = group_offsets
        self._asked: dict[TopicPartition, FetchStart] = {}  # those that are looked up just now

    def __repr__(self) -> str:
        return f"<FetchStarts asked={len(self._asked)}>"

    def begin(self) -> Coroutine[Any, Any, None] | None:
        """The look-up of partitions that have no position and are not looked up yet, or of the first of them when they
        are many; None when there are none.
        """
        unknown = (
            each for each in self._state.without_offset() if self._asked.get(each.topic_partition) != each
        )
        part = list(islice(unknown, _AT_ONCE_MAX))
        return self.look_up(part) if part else None

    def look_up(self, starts: Iterable[FetchStart]) -> Coroutine[Any, Any, None]:
        """Gives each partition a position, or the application the reason why not."""
        wanted: dict[TopicPartition, FetchStart] = {}
        for each in starts:
            tp = each.topic_partition
            if each.timestamp_ms is None and not each.is_committed:
                reason = f"{tp} has no position and auto_offset_reset is 'none'; seek first"
                self._state.on_error(each, OffsetOutOfRange(reason))
            else:
                wanted[tp] = each
        self._asked.update(wanted)
        return self._look_up(wanted)

    async def _look_up(self, starts: _Starts) -> None:
        committed = {tp: each for tp, each in starts.items() if each.is_committed}
        try:
            if committed:
                await self._look_up_committed(committed)
            await self._look_up_timestamps({tp: each for tp, each in starts.items() if tp not in committed})
        finally:
            for each in starts.values():
                self._end(each)

    async def _look_up_committed(self, starts: _Starts) -> None:
        """Partitions of which nothing is committed are looked up anew, by the reset policy."""
        assert self._group_offsets is not None
        try:
            found = await self._group_offsets.fetch(starts)
        except RaykaError as error:
            for each in starts.values():
                self._on_refused(each, error)
            return
        for tp, start in starts.items():
            self._end(start)
            value = found[tp]
            if value is None:
                self._state.on_nothing_committed(start)
            else:
                self._state.on_offset(start, value.offset, value.leader_epoch)
        self._wake()

    async def _look_up_timestamps(self, starts: _Starts) -> None:
        timestamps = {tp: each.timestamp_ms for tp, each in starts.items() if each.timestamp_ms is not None}
        await self._leaders.call(
            LIST_OFFSETS,
            timestamps,
            self._timeout_ms,
            on_found=lambda found: self._on_found(starts, found),
            on_refused=lambda tp, error: self._on_refused(starts[tp], error),
        )

    def _on_found(self, starts: _Starts, found: Mapping[TopicPartition, ListOffsetsPartitionResult]) -> None:
        for tp, result in found.items():
            self._end(starts[tp])
            self._log_reset(starts[tp], result.offset)
            if result.offset != NO_OFFSET:
                self._state.on_offset(starts[tp], result.offset, result.leader_epoch)
            elif self._state.is_current(starts[tp]):  # nothing at or after that time
                self._state.seek_to_timestamp(tp, LATEST_TIMESTAMP)
        self._wake()

    def _log_reset(self, start: FetchStart, offset: int) -> None:
        if start.reset_from != NO_OFFSET and self._state.is_current(start):
            bound = "earliest" if start.timestamp_ms == EARLIEST_TIMESTAMP else "latest"
            logger.warning(
                "%s: offset %d is out of range; reading goes on at offset %d, the %s, as auto_offset_reset says",
                start.topic_partition,
                start.reset_from,
                offset,
                bound,
            )

    def _on_refused(self, start: FetchStart, error: RaykaError) -> None:
        self._end(start)
        self._state.on_error(start, error)

    def _end(self, start: FetchStart) -> None:
        if self._asked.get(start.topic_partition) == start:
            del self._asked[start.topic_partition]
