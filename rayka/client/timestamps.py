"""Moments as people write them, and as records have them: milliseconds since 1970."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp_ms_of(moment: datetime) -> int:
    """The first whole millisecond at or after the moment. One without a time zone is local time, as everywhere in
    Python.
    """
    return -((_EPOCH - moment.astimezone(UTC)) // timedelta(milliseconds=1))
