"""Which segments of a log have expired, by age, by the size of the log, or because it starts later (F11).

Segments go from the oldest on and only whole, up to the first that has to stay, and none that reaches above the high
watermark: a record that is not committed cannot expire. A segment is as old as its newest record says, by the wall
clock; so one timestamp in the future keeps its segment, and those after it, until that time has come. A segment whose
records have no timestamps is as old as this process knows it; Kafka asks the file system then. The active segment is
sealed when it has expired whole and no other is left; it goes once what that wrote is durable, for the snapshot of its
producers is all that is left of them then (`RetiredSegments.removable`).

One call removes what one turn of an event loop can (`SEGMENTS_PER_TURN`). Kafka: `UnifiedLog.deleteOldSegments`,
`deletableSegments`, `deleteRetentionMsBreachedSegments`, `deleteRetentionSizeBreachedSegments`.
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
    """Why segments go."""

    START = "below the log start offset"
    TIME = "retention.ms"
    SIZE = "retention.bytes"


class Expired(NamedTuple):
    """What was removed in one turn: `segment_count` segments of `size_bytes` together, up to `end_offset`."""

    cause: DeletionReason
    end_offset: int
    segment_count: int
    size_bytes: int


class Clock(NamedTuple):
    """The time: of the wall clock, which timestamps are compared with, and the monotonic one."""

    timestamp_ms: int
    now_ms: int


def expire(log: Log, high_watermark: int, clock: Clock) -> Expired | None:
    """Removes the oldest segments that have expired, so many as one turn takes; None when there are none.

    None also while `log.retired.waits_for_sync` keeps them: the caller has the log synced, and calls again. Raises
    DiskFull, with nothing changed, when not even the name of the new first segment can be written, and StorageError,
    which fails the log.
    """
    _maybe_seal(log, high_watermark, clock)
    bound = log.retired.removable(high_watermark)
    for cause, has_expired in _rules(log, clock):
        going = _going(log, bound, has_expired)
        if going:
            return _remove(log, cause, going)
    return None


def ahead_ms(log: Log, timestamp_ms: int) -> int:
    """How far the timestamps of the oldest segment are ahead of the wall clock: it stays for so much longer than
    `retention.ms`. 0 or less when they are not.
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
    """How many bytes a log may lose."""

    def __init__(self, size_bytes: int) -> None:
        self._left_bytes = size_bytes

    def __repr__(self) -> str:
        return f"<_Surplus {self._left_bytes}>"

    def covers(self, segment: Segment) -> bool:
        """Whether the segment can go too, after those that were asked about before."""
        self._left_bytes -= segment.size_bytes
        return self._left_bytes >= 0


def _maybe_seal(log: Log, high_watermark: int, clock: Clock) -> None:
    """Rolls a log of one segment that has expired whole, unless it is empty."""
    active = log.segments.active
    is_committed = active.next_offset <= high_watermark
    if len(log.segments) > 1 or not active.size_bytes or not is_committed or log.failure is not None:
        return
    if any(has_expired(active) for _, has_expired in _rules(log, clock)):
        log.roll(clock.now_ms)


def _going(log: Log, bound: int, has_expired: HasExpired) -> list[Segment]:
    """The oldest sealed segments that have expired."""
    committed = takewhile(lambda each: each.next_offset <= bound, log.segments.all[:-1])
    return list(islice(takewhile(has_expired, committed), SEGMENTS_PER_TURN))


def _remove(log: Log, cause: DeletionReason, going: list[Segment]) -> Expired:
    """The log start offset moves up first, then the files go."""
    end_offset, size_bytes = going[-1].next_offset, sum(each.size_bytes for each in going)
    if end_offset > log.log_start_offset:
        log.increment_log_start_offset(end_offset)
    else:
        log.remove_below_start()
    return Expired(cause, end_offset, len(going), size_bytes)
