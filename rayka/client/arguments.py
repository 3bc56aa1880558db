"""What callers give to clients, checked where it enters: a wrong type is a TypeError that names the argument."""

from typing import Any, TypeGuard

from rayka.ids import TopicPartition


def is_int(value: object) -> TypeGuard[int]:
    """Whether it is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def int_of(value: Any, what: str) -> int:
    """A whole number."""
    if not is_int(value):
        raise TypeError(f"{what}: expected int, found {type(value).__name__}")
    return value


def text_of(value: Any, what: str) -> str:
    """A text, such as a topic's name."""
    if not isinstance(value, str):
        raise TypeError(f"{what}: expected str, found {type(value).__name__}")
    return value


def partition_of(value: Any) -> TopicPartition:
    """One partition, whose topic is a text and whose number is one."""
    if not isinstance(value, TopicPartition):
        raise TypeError(f"expected a rayka.TopicPartition, found {value!r}")
    if not isinstance(value.topic, str) or not is_int(value.partition):
        raise TypeError(f"expected TopicPartition(str, int), found {tuple(value.__rich_repr__())!r}")
    return value


def check_callback(given: Any, name: str) -> None:
    """Raises TypeError, which names it, for what is neither None nor a callable."""
    if given is not None and not callable(given):
        raise TypeError(f"{name}: expected a callable, found {type(given).__name__}")
