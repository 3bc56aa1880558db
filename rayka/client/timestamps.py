"""Moments as people write them, and as records have them: milliseconds since 1970."""

from datetime import UTC, datetime, timedelta
from typing import Any

from rayka.client.arguments import int_of
from rayka.errors import InvalidArgument

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp_ms_of(moment: datetime) -> int:
    """The first whole millisecond at or after the moment. One without a time zone is local time, as everywhere in
    Python.
    """
    return -((_EPOCH - moment.astimezone(UTC)) // timedelta(milliseconds=1))


def given_timestamp_ms(given: Any, what: str) -> int:
    """A moment or a timestamp in ms, as a caller gave it. Raises TypeError, and ValueError for one before 1970."""
    timestamp_ms = timestamp_ms_of(given) if isinstance(given, datetime) else int_of(given, what)
    if not 0 <= timestamp_ms < 2**63:
        raise InvalidArgument(f"{what}: expected a time since 1970, found {given}")
    return timestamp_ms
