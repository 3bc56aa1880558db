"""What callers give to clients, checked where it enters: a wrong type is a TypeError that names the argument, a number
or a text that no request can carry a ValueError.
"""

from collections.abc import Mapping
from typing import Any, TypeGuard

from rayka.errors import InvalidArgument
from rayka.ids import TopicPartition

_ABOVE = 2**63


def is_int(value: object) -> TypeGuard[int]:
    """Whether it is a whole number; True and False are none."""
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
    """One partition, whose topic is a text and whose number is one."""
    if not isinstance(value, TopicPartition):
        raise TypeError(f"expected a rayka.TopicPartition, found {value!r}")
    if not isinstance(value.topic, str) or not is_int(value.partition):
        raise TypeError(f"expected TopicPartition(str, int), found {tuple(value.__rich_repr__())!r}")
    text_of(value.topic, "topic")
    int_of(value.partition, "partition")
    return value


def mapping_of(value: Any, what: str) -> Mapping[Any, Any]:
    """A mapping by partition."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{what}: expected a mapping by rayka.TopicPartition, found {type(value).__name__}")
    return value


def check_callback(given: Any, name: str) -> None:
    """Raises TypeError, which names it, for what is neither None nor a callable."""
    if given is not None and not callable(given):
        raise TypeError(f"{name}: expected a callable, found {type(given).__name__}")
