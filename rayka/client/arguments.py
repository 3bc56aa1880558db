"""Checks of the arguments of clients: a wrong type is a TypeError that names the argument, a value that no request can
carry an InvalidArgument (a ValueError).

A moment is a `datetime` (also a subclass such as `pandas.Timestamp`), a `date` (its midnight) or a text in ISO 8601.
Records have moments as milliseconds since 1970. A moment without a time zone is local time, as in all of Python.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, TypeGuard

from rayka.errors import InvalidArgument
from rayka.ids import TopicPartition

_ABOVE = 2**63


def is_int(value: object) -> TypeGuard[int]:
    """Whether the value is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole_number_of(value: Any, what: str) -> int:
    """A whole number of any size."""
    if not is_int(value):
        raise TypeError(f"{what}: expected int, found {type(value).__name__}")
    return value


def int_of(value: Any, what: str) -> int:
    """A whole number of 64 bits."""
    if not -_ABOVE <= whole_number_of(value, what) < _ABOVE:
        raise InvalidArgument(f"{what}: expected a number below 2**63, found {value}")
    return int(value)


def text_of(value: Any, what: str) -> str:
    """A text, such as a topic's name."""
    if not isinstance(value, str):
        raise TypeError(f"{what}: expected str, found {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{what}: expected text that UTF-8 can hold, found {value!r}: {error.reason}"
        ) from None
    return value


def partition_of(value: Any) -> TopicPartition:
    """A partition with a text as its topic and a whole number."""
    if not isinstance(value, TopicPartition):
        raise TypeError(f"expected a rayka.TopicPartition, found {value!r}")
    if not isinstance(value.topic, str) or not is_int(value.partition):
        raise TypeError(f"expected TopicPartition(str, int), found {tuple(value.__rich_repr__())!r}")
    text_of(value.topic, "topic")
    int_of(value.partition, "partition")
    return value


def partitions_of(given: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
    """Partitions, each once."""
    if isinstance(given, TopicPartition) or not isinstance(given, Iterable):
        raise TypeError(f"partitions: expected a list of rayka.TopicPartition, found {type(given).__name__}")
    return tuple(dict.fromkeys(partition_of(each) for each in given))


def topic_names(*topics: str | Iterable[str]) -> list[str]:
    """Names of topics, given one by one or in lists, each once."""
    names: dict[str, None] = {}
    for each in topics:
        for name in [each] if isinstance(each, str) or not isinstance(each, Iterable) else each:
            if not isinstance(name, str):
                raise TypeError(f"topics: expected names, found {type(name).__name__}")
            names[text_of(name, "topics")] = None
    return list(names)


def mapping_of(value: Any, what: str) -> Mapping[Any, Any]:
    """A mapping by partition."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{what}: expected a mapping by rayka.TopicPartition, found {type(value).__name__}")
    return value


def check_callback(given: Any, name: str) -> None:
    """Raises TypeError, naming the argument, for a value that is neither None nor a callable."""
    if given is not None and not callable(given):
        raise TypeError(f"{name}: expected a callable, found {type(given).__name__}")


# ---- Moments ----

# An int is in milliseconds.
Moment = datetime | date | str | int

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def given_timestamp_ms(given: Any, what: str) -> int:
    """The first whole millisecond at or after a moment or a timestamp in ms.

    Raises TypeError, and InvalidArgument for a text that is no moment, for NaT, and for a moment before 1970.
    """
    if isinstance(given, (date, str)):
        timestamp_ms = _timestamp_ms_of(given, what)
    else:
        try:
            timestamp_ms = int_of(given, what)
        except TypeError:
            found = type(given).__name__
            raise TypeError(f"{what}: expected a datetime, a date, a text or int, found {found}") from None
    if not 0 <= timestamp_ms < 2**63:
        raise InvalidArgument(f"{what}: expected a time since 1970, found {given}")
    return timestamp_ms


def moment_of(timestamp_ms: int) -> datetime:
    """The moment in UTC. Raises InvalidArgument for a timestamp beyond the calendar."""
    try:
        return _EPOCH + timestamp_ms * _MS
    except OverflowError:
        raise InvalidArgument(
            f"timestamp: {timestamp_ms} ms since 1970 lie beyond the calendar; use timestamp_ms"
        ) from None


def _timestamp_ms_of(given: date | str, what: str) -> int:
    if isinstance(given, str):
        try:
            moment = datetime.fromisoformat(given.strip())
        except ValueError:
            raise InvalidArgument(
                f"{what}: expected a moment as '2026-01-31' or '2026-01-31T12:00+01:00', found {given!r}"
            ) from None
    elif isinstance(given, datetime):
        # The year of pandas.NaT is NaN.
        if not isinstance(given.year, int):
            raise InvalidArgument(f"{what}: expected a time since 1970, found {given}, which is none")
        moment = _plain(given)
    else:
        moment = datetime.combine(given, time())
    left = _in_zone(moment) - _EPOCH
    # A Timestamp of pandas has nanoseconds, which a datetime cannot hold: round up.
    if getattr(given, "nanosecond", 0):
        left += timedelta(microseconds=1)
    return -(-left // _MS)


def _plain(given: datetime) -> datetime:
    """The moment as a plain datetime, because subclasses refuse some operations."""
    moment = datetime.combine(date(given.year, given.month, given.day), time())
    return moment.replace(
        hour=given.hour,
        minute=given.minute,
        second=given.second,
        microsecond=given.microsecond,
        tzinfo=given.tzinfo,
        fold=given.fold,
    )


def _in_zone(moment: datetime) -> datetime:
    """The moment in its own time zone, else in the local one.

    UTC replaces the local zone at the two ends of the calendar, where the local zone cannot be computed.
    """
    if moment.utcoffset() is not None:
        return moment
    try:
        return moment.replace(tzinfo=None).astimezone()
    except (OverflowError, ValueError, OSError):
        return moment.replace(tzinfo=UTC)
