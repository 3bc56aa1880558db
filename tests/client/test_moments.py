"""Moments as callers write them: all kinds name the same millisecond, and what is none is refused in our words."""

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka import Record
from rayka.cli.output import parse_moment
from rayka.client.arguments import given_timestamp_ms, moment_of
from rayka.ids import TopicPartition
from rayka.protocol.batch_decode import Header

WEST, EAST = "America/New_York", "Asia/Tokyo"
FIRST, LAST = (datetime.fromisoformat(each) for each in ("0001-01-01", "9999-12-31T23:59:59.999999"))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(params=[WEST, "UTC", EAST])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ZoneInfo]:
    """Of the process."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield ZoneInfo(request.param)
    monkeypatch.undo()
    time.tzset()


def ms(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


def test_all_kinds_of_a_moment_name_the_same_millisecond(zone: ZoneInfo) -> None:
    local = datetime.fromisoformat("2024-03-09T05:30")
    expected = ms(local.replace(tzinfo=zone))
    kinds: list[Any] = [
        local,
        pd.Timestamp(local),
        pd.Timestamp(local, tz=str(zone)),
        local.replace(tzinfo=zone),
        local.astimezone(UTC),
        local.astimezone(timezone(timedelta(hours=-7))),
        "2024-03-09T05:30",
        " 2024-03-09 05:30:00.000 ",
        local.astimezone(UTC).isoformat(),
        expected,
    ]
    assert [given_timestamp_ms(each, "start") for each in kinds] == [expected] * len(kinds)


def test_a_date_is_its_midnight(zone: ZoneInfo) -> None:
    expected = ms(datetime(2026, 11, 28, tzinfo=zone))
    for each in (date(2026, 11, 28), "2026-11-28", pd.Timestamp("2026-11-28")):
        assert given_timestamp_ms(each, "start") == expected
    assert given_timestamp_ms(parse_moment("2026-11-28"), "start") == expected


def test_what_a_millisecond_does_not_hold_is_the_next_one() -> None:
    at = datetime(2024, 3, 9, 5, tzinfo=UTC)
    assert given_timestamp_ms(at + timedelta(microseconds=1), "start") == ms(at) + 1
    assert given_timestamp_ms(pd.Timestamp(at) + pd.Timedelta(1, "ns"), "start") == ms(at) + 1
    assert given_timestamp_ms(pd.Timestamp(at) + pd.Timedelta(999_999, "ns"), "start") == ms(at) + 1


def test_the_end_of_the_calendar_is_a_moment_in_every_time_zone(zone: ZoneInfo) -> None:
    last = ms(datetime.max.replace(tzinfo=UTC))
    ends = [
        LAST,
        date.max,
        pd.Timestamp.max,
        datetime.max.replace(tzinfo=zone),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-23))),
        "9999-12-31T23:59:59.999999",
    ]
    for each in ends:
        assert ms(datetime(2262, 1, 1, tzinfo=UTC)) < given_timestamp_ms(each, "end") <= last + 86_400_000 + 1


@pytest.mark.parametrize(
    "moment",
    [
        FIRST,
        date.min,
        pd.Timestamp.min,
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.fromisoformat("1960-01-01"),
        "0001-01-01",
        pd.NaT,
        -1,
        2**63,
        2**70,
    ],
)
def test_what_is_no_moment_since_1970_is_a_value_error_that_says_so(zone: ZoneInfo, moment: Any) -> None:
    with pytest.raises(ValueError, match=r"start: expected a (time since 1970|number below)"):
        given_timestamp_ms(moment, "start")


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "1700000000000", "2026-11-28T25:00"])
def test_a_text_that_is_no_moment_is_a_value_error_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"start: expected a moment as '2026-01-31'"):
        given_timestamp_ms(text, "start")
    with pytest.raises(ValueError, match="expected a moment"):
        parse_moment(text)


@pytest.mark.parametrize("moment", [1.5, None, True, timedelta(1), float("nan"), b"2026-11-28"])
def test_what_is_of_another_type_is_a_type_error(moment: Any) -> None:
    with pytest.raises(TypeError, match="start: expected a datetime, a date, a text or int, found"):
        given_timestamp_ms(moment, "start")


@given(st.datetimes(timezones=st.none() | st.timezones()))
def test_any_moment_is_taken_or_refused_in_our_words(moment: datetime) -> None:
    if moment.year >= 1971:
        assert 0 < given_timestamp_ms(moment, "start") < 2**63
    elif moment.year < 1969:
        with pytest.raises(ValueError, match="expected a time since 1970"):
            given_timestamp_ms(moment, "start")


@given(st.integers(0, ms(datetime.max.replace(tzinfo=UTC))))
def test_a_record_has_its_timestamp_as_a_moment(timestamp_ms: int) -> None:
    moment = record(timestamp_ms).timestamp
    assert moment == moment_of(timestamp_ms)
    assert moment.tzinfo is UTC
    assert given_timestamp_ms(moment, "start") == timestamp_ms


def test_a_timestamp_beyond_the_calendar_is_no_moment_and_stays_in_ms() -> None:
    for timestamp_ms in (2**63 - 1, -(2**63)):
        with pytest.raises(ValueError, match="beyond the calendar; use timestamp_ms"):
            _ = record(timestamp_ms).timestamp
        assert record(timestamp_ms).timestamp_ms == timestamp_ms


def record(timestamp_ms: int) -> Record[bytes]:
    headers: list[Header] = []
    tp = TopicPartition("orders", 0)
    return Record(tp.topic, tp.partition, 0, timestamp_ms, None, b"", headers)
