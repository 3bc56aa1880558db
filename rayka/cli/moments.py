"""Moments as users write them, `2026-01-31T12:00`, or `@MS`, in milliseconds since 1970; and as they read them."""

import re
from datetime import datetime

from rayka.client.timestamps import given_timestamp_ms


def parse_moment(text: str) -> datetime | int:
    """A moment since 1970. Raises ValueError for what is none."""
    if re.fullmatch(r"@[0-9]{1,15}", text):
        return int(text[1:])
    given_timestamp_ms(text, "moment")
    return datetime.fromisoformat(text.strip())


def local_time(timestamp_ms: int) -> str:
    """`2026-01-31 12:00:00`. A record may have any timestamp, also one that is no date."""
    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
