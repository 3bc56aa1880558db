"""Moments as users write them: `2026-01-31T12:00`, or `@MS`, which is milliseconds since 1970."""

import re
from datetime import UTC, datetime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_moment(text: str) -> datetime | int:
    """A moment since 1970. Raises ValueError for what is none."""
    if re.fullmatch(r"@[0-9]{1,15}", text):
        return int(text[1:])
    moment = datetime.fromisoformat(text)
    try:
        is_before = moment.astimezone(UTC) < _EPOCH
    except OverflowError as error:  # a year that is none in another time zone
        raise ValueError(str(error)) from error
    if is_before:
        raise ValueError(f"{text} is before 1970")
    return moment
