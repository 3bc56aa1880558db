"""The quota of replication traffic (B45, G17)."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.partition.quota import (
    PACE_MS,
    SAMPLE_MS,
    SAMPLES_MAX,
    PacedQuota,
    ReplicationQuota,
    is_throttled,
)

WINDOW_MS = SAMPLE_MS * SAMPLES_MAX


def test_nothing_recorded_exceeds_nothing() -> None:  # G17
    assert ReplicationQuota(0).pause_ms(now_ms=0) == 0


def test_the_first_second_counts_as_a_whole_one() -> None:  # G17
    quota = ReplicationQuota(1_000)
    quota.record(1_000, now_ms=0)
    assert quota.pause_ms(now_ms=0) == 0
    quota.record(1, now_ms=10)
    assert quota.pause_ms(now_ms=10) == SAMPLE_MS


def test_a_burst_is_over_once_enough_time_has_passed() -> None:  # G17
    quota = ReplicationQuota(1_000)
    quota.record(5_000, now_ms=0)
    assert [quota.pause_ms(now_ms) > 0 for now_ms in (1_000, 4_999, 5_000)] == [True, True, False]


def test_what_is_older_than_the_window_is_forgotten() -> None:  # G17
    quota = ReplicationQuota(1)
    quota.record(1_000_000, now_ms=0)
    assert [quota.pause_ms(now_ms) > 0 for now_ms in (WINDOW_MS - 1, WINDOW_MS)] == [True, False]


def test_only_the_time_that_has_passed_counts() -> None:  # G17
    start_ms, quota = 10_000_000, ReplicationQuota(1_000)
    quota.record(2_000, start_ms)
    assert [quota.pause_ms(start_ms + after_ms) > 0 for after_ms in (1_999, 2_000)] == [True, False]
    quota.record(2_000, start_ms + 2_000)
    assert [quota.pause_ms(start_ms + after_ms) > 0 for after_ms in (3_999, 4_000)] == [True, False]


def test_what_comes_within_a_second_is_forgotten_together_and_what_comes_later_is_not() -> None:  # G17
    quota = ReplicationQuota(1)
    quota.record(1_000, now_ms=SAMPLE_MS - 1)
    for each in (2 * SAMPLE_MS - 2, 2 * SAMPLE_MS - 1):
        quota.record(1_000, now_ms=each)
    assert repr(quota) == "<ReplicationQuota 1 B/s held=3000>"
    assert quota.pause_ms(now_ms=WINDOW_MS + SAMPLE_MS - 1) == SAMPLE_MS
    assert repr(quota) == "<ReplicationQuota 1 B/s held=1000>"


def test_the_bound_can_be_changed_while_it_counts() -> None:  # B45
    quota = ReplicationQuota(1_000)
    quota.record(5_000, now_ms=0)
    quota.bytes_per_second = 5_000
    assert quota.pause_ms(now_ms=1) == 0


@pytest.mark.parametrize("kind", [ReplicationQuota, PacedQuota])
@given(st.integers(0, 10_000), st.lists(st.integers(0, 1 << 30), min_size=1, max_size=5))
def test_a_raised_rate_counts_within_a_second_for_whatever_waits_at_the_old_one(
    kind: type[ReplicationQuota | PacedQuota], slow: int, sizes: list[int]
) -> None:
    quota = kind(slow)
    for each in sizes:
        quota.record(each, 0)
    assert quota.pause_ms(0) <= SAMPLE_MS
    quota.bytes_per_second = 1 << 40
    assert quota.pause_ms(SAMPLE_MS) == 0


@given(st.lists(st.tuples(st.integers(0, 1_500), st.integers(0, 10_000)), min_size=1, max_size=60))
def test_a_caller_that_asks_before_each_transfer_stays_within_one_transfer_of_the_bound(
    transfers: Sequence[tuple[int, int]],
) -> None:  # G17
    quota, now_ms, sent = ReplicationQuota(2_000), 0, 0
    for wait_ms, size_bytes in transfers:
        now_ms += wait_ms
        if quota.pause_ms(now_ms) == 0:
            quota.record(size_bytes, now_ms)
            sent += size_bytes
    # A window's sample may be forgotten up to a second late or early: at most a tenth is sent beyond the bound.
    assert sent <= 2_000 * 1.1 * (now_ms + SAMPLE_MS) / 1_000 + 10_000


def test_what_is_paced_is_never_farther_ahead_than_its_pace() -> None:
    quota = PacedQuota(1_000)
    quota.record(PACE_MS, now_ms=50_000)
    assert quota.pause_ms(now_ms=50_000) == 0
    quota.record(1, now_ms=50_000)
    assert [quota.pause_ms(now_ms) > 0 for now_ms in (50_000, 50_001)] == [True, False]
    quota.record(1_000, now_ms=60_000)
    end_ms = 61_000 - PACE_MS
    assert [quota.pause_ms(now_ms) > 0 for now_ms in (end_ms - 1, end_ms)] == [True, False]


@pytest.mark.parametrize(
    ("bytes_per_second", "pause_ms"), [(1_000, 600 - PACE_MS), (700, 858 - PACE_MS), (1, 1_000), (0, 1_000)]
)
def test_a_pause_is_as_long_as_the_pace_asks_and_a_second_at_most(
    bytes_per_second: int, pause_ms: int
) -> None:
    quota = PacedQuota(bytes_per_second)
    assert quota.pause_ms(now_ms=50_000) == 0
    quota.record(600, now_ms=50_000)
    assert quota.pause_ms(now_ms=50_000) == pause_ms
    if pause_ms < SAMPLE_MS:
        assert [quota.pause_ms(50_000 + each) > 0 for each in (pause_ms - 1, pause_ms)] == [True, False]


def test_a_rate_that_was_exceeded_is_asked_for_again_after_a_sample() -> None:  # B45
    quota = ReplicationQuota(1_000)
    assert quota.pause_ms(now_ms=0) == 0
    quota.record(5_000, now_ms=0)
    assert quota.pause_ms(now_ms=0) == SAMPLE_MS


@given(st.lists(st.tuples(st.integers(0, 1_500), st.integers(0, 10_000)), min_size=1, max_size=60))
def test_what_is_paced_stays_within_one_transfer_of_the_bound_from_any_moment_on(
    transfers: Sequence[tuple[int, int]],
) -> None:
    quota, now_ms = PacedQuota(2_000), 0
    sent: list[tuple[int, int]] = []
    for wait_ms, size_bytes in transfers:
        now_ms += wait_ms
        if quota.pause_ms(now_ms) == 0:
            quota.record(size_bytes, now_ms)
            sent.append((now_ms, size_bytes))
    for number, (begin_ms, _) in enumerate(sent):
        assert sum(size for _, size in sent[number:]) <= 2 * (now_ms - begin_ms + PACE_MS) + 10_000


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [("", False), ("*", True), ("0:1", True), ("0:2,0:1", True), ("0:2", False), ("1:1,10:1,0:11", False)],
)
def test_a_topic_names_the_replicas_that_are_throttled(replicas: str, *, expected: bool) -> None:  # B45
    assert is_throttled(replicas, partition=0, broker_id=1) is expected
