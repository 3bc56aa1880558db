"""Which part of a log may be cleaned, and how much there is to gain (F20).

Never cleaned: the active segment, what is above the high watermark, what a power cut may still take, and what is
younger than `min.compaction.lag.ms`. A log is due when the share of bytes that were never cleaned exceeds
`min.cleanable.dirty.ratio`, or its oldest such record is older than `max.compaction.lag.ms`. Kafka:
`LogCleanerManager.grabFilthiestCompactedLog`, `cleanableOffsets`, `LogToClean`.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from math import inf
from typing import NamedTuple

from rayka.config.topic_config import TopicConfig
from rayka.errors import CorruptRecord
from rayka.ids import NO_TIMESTAMP
from rayka.log.log import Log
from rayka.log.segment import Segment

# The default of `max.compaction.lag.ms`.
_UNLIMITED_MS = 2**63 - 1


class Cleanable(NamedTuple):
    """What there is to clean of one log: [first_dirty_offset, end_offset), whole segments at the end."""

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        """The share of what was never cleaned in what may be cleaned, 0 to 1."""
        total_bytes = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total_bytes if total_bytes else 0.0

    def is_due(self, config: TopicConfig) -> bool:
        """Whether the log is worth a cleaning now."""
        if not self.cleanable_bytes:
            return False
        return self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio


def cleanable(log: Log, high_watermark: int, timestamp_ms: int) -> Cleanable:
    """What may be cleaned of the log at this time of the wall clock."""
    segments = log.segments.all
    first_dirty_offset = max(log.cleaned_offset, log.log_start_offset, segments[0].base_offset)
    if first_dirty_offset > log.log_end_offset:
        first_dirty_offset = log.log_start_offset
    clean = [each for each in segments[:-1] if each.next_offset <= first_dirty_offset]
    bound = min(high_watermark, log.flushed_offset)
    lag_ms = log.config.min_compaction_lag_ms
    dirty = _before(segments[len(clean) : -1], bound, timestamp_ms - lag_ms if lag_ms else inf)
    return Cleanable(
        first_dirty_offset=first_dirty_offset,
        end_offset=dirty[-1].next_offset if dirty else first_dirty_offset,
        clean_bytes=sum(each.size_bytes for each in clean),
        cleanable_bytes=sum(each.size_bytes for each in dirty),
        is_overdue=_is_overdue(dirty, timestamp_ms, log.config.max_compaction_lag_ms),
    )


def _is_overdue(dirty: Sequence[Segment], timestamp_ms: int, max_lag_ms: int) -> bool:
    """Whether a segment begins with a batch that is older than the lag. One without timestamps says nothing, and one
    that is damaged is named when it is cleaned.
    """
    if max_lag_ms >= _UNLIMITED_MS:
        return False
    for segment in dirty:
        with suppress(CorruptRecord):
            first_ms = segment.first_timestamp_ms
            if first_ms != NO_TIMESTAMP and timestamp_ms - first_ms > max_lag_ms:
                return True
    return False


def _before(segments: Sequence[Segment], bound: int, newest_ms: float) -> list[Segment]:
    """The first segments that lie wholly below the bound and are old enough."""

    def may_be_cleaned(segment: Segment) -> bool:
        return segment.next_offset <= bound and segment.indexes.largest.timestamp_ms <= newest_ms

    return list(takewhile(may_be_cleaned, segments))
