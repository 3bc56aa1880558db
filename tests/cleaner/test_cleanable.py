"""The part of a log that may be cleaned, and when the log is due (F20)."""

from typing import Any

import pytest

from rayka.cleaner.compaction import cleanable
from rayka.ids import NO_TIMESTAMP
from rayka.log.log import Log
from rayka.testing.memory_disk import MemoryDisk
from tests.cleaner.support import COMPACTED, clean, put
from tests.log.support import new_log, sync

NOW_MS = 100_000


def five_segments(*timestamps_ms: int, **changes: Any) -> tuple[MemoryDisk, Log]:
    """A log of five segments with ten records each, all durable, and an active one with one record."""
    disk, log = new_log(COMPACTED.model_copy(update=changes))
    for timestamp_ms in timestamps_ms or [1000] * 5:
        put(log, *[(b"%d" % number, b"1") for number in range(10)], timestamp_ms=timestamp_ms)
        log.roll(0)
    put(log, (b"a", b"1"))
    sync(disk, log)
    return disk, log


def end_of(log: Log, high_watermark: int = 51) -> int:
    return cleanable(log, high_watermark, NOW_MS).end_offset


def test_all_but_the_active_segment_may_be_cleaned() -> None:  # F20
    _, log = five_segments()
    part = cleanable(log, 51, NOW_MS)
    sealed = sum(each.size_bytes for each in log.segments.all[:-1])
    assert (part.first_dirty_offset, part.end_offset) == (0, 50)
    assert (part.clean_bytes, part.cleanable_bytes, part.dirty_ratio) == (0, sealed, 1.0)


@pytest.mark.parametrize(("high_watermark", "end_offset"), [(9, 0), (10, 10), (39, 30), (40, 40), (51, 50)])
def test_what_is_not_committed_stays(high_watermark: int, end_offset: int) -> None:  # F20
    _, log = five_segments()
    assert end_of(log, high_watermark) == end_offset


def test_what_a_power_cut_may_take_stays() -> None:  # F20
    """Else the newest record of a key would be lost with it, and the one before it gone already."""
    disk, log = five_segments()
    put(log, *[(b"%d" % number, b"2") for number in range(10)])
    log.roll(0)
    assert end_of(log, log.log_end_offset) == 50
    sync(disk, log)
    assert end_of(log, log.log_end_offset) == 61


def test_nothing_behind_a_record_that_is_too_young_is_cleaned() -> None:  # F20
    """An older record of its key may be in front of the young one, which must outlive it."""
    young_ms = NOW_MS - 999
    _, log = five_segments(1000, 1000, young_ms, 1000, 1000, min_compaction_lag_ms=1000)
    assert end_of(log) == 20
    log.config = log.config.model_copy(update={"min_compaction_lag_ms": 999})
    assert end_of(log) == 50


@pytest.mark.parametrize(("lag_ms", "is_due"), [(99_000, False), (98_999, True)])
def test_a_record_that_waited_too_long_makes_a_log_due(lag_ms: int, *, is_due: bool) -> None:  # F20
    _, log = five_segments(min_cleanable_dirty_ratio=1, max_compaction_lag_ms=lag_ms)
    part = cleanable(log, 51, NOW_MS)
    assert (part.is_overdue, part.is_due(log.config)) == (is_due, is_due)


def test_batches_without_timestamps_make_no_log_overdue() -> None:  # F20
    """The first one with a timestamp counts, whichever segment it begins."""
    _, log = five_segments(NO_TIMESTAMP, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=98_999)
    assert not cleanable(log, 51, NOW_MS).is_overdue
    _, log = five_segments(
        NO_TIMESTAMP, NO_TIMESTAMP, 1000, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=98_999
    )
    assert cleanable(log, 51, NOW_MS).is_overdue


def test_a_damaged_begin_of_a_segment_does_not_end_the_look_at_its_log() -> None:  # F27
    disk, log = five_segments(max_compaction_lag_ms=1)
    disk.flip_bit(log.segments.first.path, 16)  # the magic of the first batch
    assert cleanable(log, 51, NOW_MS).is_overdue


def test_a_log_is_due_when_more_of_it_is_dirty_than_it_may_be() -> None:  # F20
    _, log = five_segments(min_cleanable_dirty_ratio=0.5)
    log.cleaned_offset = 30
    assert not cleanable(log, 51, NOW_MS).is_due(log.config)
    log.cleaned_offset = 20
    assert cleanable(log, 51, NOW_MS).is_due(log.config)


def test_a_clean_log_is_not_due_however_little_may_be_dirty() -> None:  # F20
    disk, log = five_segments(max_compaction_lag_ms=1)
    clean(disk, log)
    assert not cleanable(log, log.log_end_offset, NOW_MS).is_due(log.config)


def test_what_was_deleted_at_the_begin_counts_neither_as_clean_nor_as_dirty() -> None:  # F20
    _, log = five_segments()
    log.cleaned_offset = 10
    log.increment_log_start_offset(25)
    part = cleanable(log, 51, NOW_MS)
    assert (part.first_dirty_offset, part.end_offset, part.clean_bytes) == (25, 50, 0)


def test_a_clock_that_jumped_back_puts_a_cleaning_off_and_takes_nothing_too_early() -> None:  # F20
    """All that was written before it lies in the future then: young, and never overdue."""
    _, young = five_segments(NOW_MS, min_compaction_lag_ms=1000)
    _, waiting = five_segments(NOW_MS, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=2000)
    for now_ms, end_offset, is_due in (
        (NOW_MS - 50_000, 0, False),
        (NOW_MS + 999, 0, False),
        (NOW_MS + 2001, 10, True),
    ):
        assert cleanable(young, 51, now_ms).end_offset == end_offset
        assert cleanable(waiting, 51, now_ms).is_due(waiting.config) is is_due


def test_a_timestamp_in_the_future_keeps_what_lies_behind_it_until_then() -> None:  # F20
    future_ms = NOW_MS + 3_600_000
    _, log = five_segments(1000, future_ms, 1000, 1000, 1000, min_compaction_lag_ms=1)
    assert end_of(log) == 10
    assert cleanable(log, 51, future_ms).end_offset == 10
    assert cleanable(log, 51, future_ms + 1).end_offset == 50
    log.config = log.config.model_copy(update={"min_compaction_lag_ms": 0})
    assert end_of(log) == 50
