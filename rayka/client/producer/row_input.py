"""What `send` takes, checked: an error names the argument, what was expected and what was found."""

import sys
import warnings
from collections.abc import Mapping
from types import NoneType
from typing import Any

from rayka.client.producer.record_columns import HEADER_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, Headers, Row
from rayka.client.serializers import Serializer
from rayka.errors import InvalidArgument, SerializationError

_SECONDS_OF_2001, _SECONDS_OF_2286 = 10**9, 10**10


class _Omitted:
    def __repr__(self) -> str:
        return "<omitted>"


OMITTED: Any = _Omitted()


def given_value(value: Any, key: Any) -> Any:
    """The value of a `send`, None where it was left out. Warns where the key was left out too: the likely slip is a
    forgotten value, and a null record without a key says nothing.
    """
    if value is not OMITTED:
        return value
    if key is None:
        _warn(
            "value: expected one, found none, and a null record is sent; if you mean that, write value=None"
        )
    return None


def as_bytes(
    value: Any, convert: Serializer | None, name: str, topic: str = "", headers: Headers | None = None
) -> bytes | None:
    """A value or a key as bytes; None stays None and reaches no serializer. Raises TypeError or SerializationError."""
    if value is None or (type(value) is bytes and convert is None):
        return value
    if convert is not None:
        value = convert(value, topic, headers or [])
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    hint = "" if convert else f"; encode it, or give {name}_serializer"
    source = f"{name}_serializer: expected it to return" if convert else f"{name}: expected"
    error = SerializationError if convert else TypeError
    raise error(f"{source} bytes or None, found {type(value).__name__}{hint}")


def as_headers(headers: Any) -> Headers | None:
    """Headers as pairs, from pairs or a mapping. Raises TypeError, and SerializationError for what is no text."""
    if headers is None:
        return None
    if not isinstance(headers, (Mapping, list, tuple)):
        raise TypeError(
            f"headers: expected a list of (str, bytes or None) pairs, found {type(headers).__name__}"
        )
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"headers: expected (str, bytes or None) pairs, found {pair!r}")
        if not pair[0].isascii():
            _check_text(pair[0])
        if not isinstance(pair[1], (bytes, NoneType)):
            raise TypeError(
                f"headers: expected bytes or None for {pair[0]!r}, found {type(pair[1]).__name__}"
            )
    return pairs


def _check_text(key: str) -> None:
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise SerializationError(
            f"headers: expected text that UTF-8 can hold, found {key!r}: {error}"
        ) from error


def as_timestamp(timestamp_ms: Any) -> int | None:
    """A timestamp in ms, or None. Raises TypeError, and ValueError out of range."""
    if timestamp_ms is None:
        return None
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool):
        raise TypeError(f"timestamp_ms: expected int, found {type(timestamp_ms).__name__}")
    if not 0 <= timestamp_ms < 2**63:
        raise InvalidArgument(f"timestamp_ms: expected milliseconds since 1970, found {timestamp_ms}")
    warn_of_seconds(timestamp_ms, "timestamp_ms")
    return timestamp_ms


def warn_of_seconds(timestamp_ms: int, what: str) -> None:
    """Warns of a timestamp that is a time of 2001 to 2286 in seconds, and a day of early 1970 in milliseconds.

    The record is taken: retention will delete it soon, and nothing else is wrong with it. The text names no number, so
    that Python shows the warning once for each line that sends.
    """
    if _SECONDS_OF_2001 <= timestamp_ms < _SECONDS_OF_2286:
        _warn(
            f"{what}: a number between 10**9 and 10**10 is a day of early 1970 in milliseconds; "
            "if it is a time in seconds, multiply it by 1000"
        )


def _warn(text: str) -> None:
    """Warns at the line outside this package that called it."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("rayka."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)


def size_of(slot: Any) -> int:
    """What the record takes in a batch at most."""
    if type(slot) is not Row:
        return RECORD_OVERHEAD_BYTES + len(slot or b"")
    size_bytes = RECORD_OVERHEAD_BYTES + len(slot.value or b"")
    if slot.key is not None:
        size_bytes += RECORD_OVERHEAD_BYTES + len(slot.key)
    if slot.headers:
        pairs = sum(
            len(key.encode()) + len(value or b"") + HEADER_OVERHEAD_BYTES for key, value in slot.headers
        )
        size_bytes += pairs + HEADER_OVERHEAD_BYTES
    return size_bytes
