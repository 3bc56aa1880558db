"""Retention: which segments of a log have expired, by age, by the size of the log, or below its start (F11).

Segments go whole, from the oldest on up to the first that has to stay. No segment that reaches above the high watermark
goes: a record that is not committed cannot expire. A segment is as old as its newest record, by the wall clock. So one
timestamp in the future keeps its segment, and all after it, until that time has come. A segment without timestamps is
as old as this process knows it; Kafka asks the file system. The active segment is sealed when it has expired whole and
is the only one. It goes once the roll is durable: the snapshot is then all that is left of its producers
(`RetiredSegments.removable`).

One call removes as much as one turn of an event loop allows (`SEGMENTS_PER_TURN`). Kafka:
`UnifiedLog.deleteOldSegments`, `deletableSegments`, `deleteRetentionMsBreachedSegments`,
`deleteRetentionSizeBreachedSegments`.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import islice, takewhile
from typing import NamedTuple

from rayka.ids import NO_TIMESTAMP
from rayka.log.log import Log
from rayka.log.segment import Segment
from rayka.log.segment_removal import SEGMENTS_PER_TURN

UNLIMITED = -1


class DeletionReason(StrEnum):
    """Why segments are deleted."""

    START = "below the log start offset"
    TIME = "retention.ms"
    SIZE = "retention.bytes"


class Expired(NamedTuple):
    """The segments that one turn removed."""

    cause: DeletionReason
    # The log starts here now.
    end_offset: int
    segment_count: int
    size_bytes: int


class Clock(NamedTuple):
    """The wall clock, for timestamps, and the monotonic clock."""

    timestamp_ms: int
    now_ms: int


def expire(log: Log, high_watermark: int, clock: Clock) -> Expired | None:
    """Removes the oldest expired segments, at most one turn's worth; None when there are none.

    Also None while `log.retired.waits_for_sync` keeps them: the caller syncs the log and calls again. Raises DiskFull,
    with nothing changed, when not even the marker of the new log start can be written, and StorageError, which fails
    the log.
    """
    active = log.segments.active
    is_alone = len(log.segments) == 1 and active.size_bytes > 0 and active.next_offset <= high_watermark
    if is_alone and log.failure is None and any(has_expired(active) for _, has_expired in _rules(log, clock)):
        log.roll(clock.now_ms)
    bound = log.retired.removable(high_watermark)
    for cause, has_expired in _rules(log, clock):
        going = _going(log, bound, has_expired)
        if going:
            end_offset, size_bytes = going[-1].next_offset, sum(each.size_bytes for each in going)
            # The log start offset moves up first, then the files go.
            if end_offset > log.log_start_offset:
                log.increment_log_start_offset(end_offset)
            else:
                log.remove_below_start()
            return Expired(cause, end_offset, len(going), size_bytes)
    return None


def ahead_ms(log: Log, timestamp_ms: int) -> int:
    """How far the timestamps of the oldest segment are ahead of the wall clock: the segment stays for so much longer
    than `retention.ms`. 0 or less when they are not ahead.
    """
    if not log.config.is_expiring or log.config.retention_ms == UNLIMITED:
        return 0
    return log.segments.first.indexes.largest.timestamp_ms - timestamp_ms


HasExpired = Callable[[Segment], bool]


def _rules(log: Log, clock: Clock) -> Iterator[tuple[DeletionReason, HasExpired]]:
    config, start_offset = log.config, log.log_start_offset
    yield (
        DeletionReason.START,
        lambda segment: segment.next_offset <= start_offset and segment is not log.segments.active,
    )
    if not config.is_expiring:
        return
    if config.retention_ms != UNLIMITED:
        yield DeletionReason.TIME, lambda segment: _age_ms(segment, clock) > config.retention_ms
    if config.retention_bytes != UNLIMITED:
        yield DeletionReason.SIZE, _Surplus(log.segments.size_bytes - config.retention_bytes).covers


def _age_ms(segment: Segment, clock: Clock) -> int:
    newest_ms = segment.indexes.largest.timestamp_ms
    return clock.now_ms - segment.created_ms if newest_ms == NO_TIMESTAMP else clock.timestamp_ms - newest_ms


class _Surplus:
    """The bytes that a log may lose."""

    def __init__(self, size_bytes: int) -> None:
        self._left_bytes = size_bytes

    def covers(self, segment: Segment) -> bool:
        """Whether the segment can go too, after the segments asked about before."""
        self._left_bytes -= segment.size_bytes
        return self._left_bytes >= 0


def _going(log: Log, bound: int, has_expired: HasExpired) -> list[Segment]:
    """The oldest sealed segments that have expired."""
    committed = takewhile(lambda each: each.next_offset <= bound, log.segments.all[:-1])
    return list(islice(takewhile(has_expired, committed), SEGMENTS_PER_TURN))
