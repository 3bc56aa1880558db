"""Parts that requests and answers share: the fields that messages about single partitions begin with, and checks.

The messages here are bases and are never sent by themselves. They get no new field: the field would stand in the middle
of the messages that begin with them. A message gets new fields at its own end. Kafka's answers name topics by id too
(KIP-516).
"""

from collections import Counter
from collections.abc import Iterable
from uuid import UUID

from rayka.errors import ErrorCode, InvalidRequest
from rayka.ports import Message


def require(holds: bool, field: str, expected: str, found: object) -> None:
    """Raises InvalidRequest with the field, what was expected and what was found, unless the condition holds."""
    if not holds:
        raise InvalidRequest(f"{field}: expected {expected}, found {found}")


def check_each_once(field: str, names: Iterable[str]) -> None:
    """Raises InvalidRequest with the names that occur more than once."""
    found = tuple(names)
    # The set first: to count the names takes ten times as long.
    if len(set(found)) < len(found):
        repeated = sorted(name for name, count in Counter(found).items() if count > 1)
        require(False, field, "each once", repeated)


class PartitionMessage(Message, frozen=True, array_like=True):
    """Begins messages about one partition."""

    topic_id: UUID
    partition: int


class PartitionAnswer(PartitionMessage, frozen=True, array_like=True):
    """Begins results for one partition of a request. Beside an error the other fields keep their defaults, or name the
    node to ask.
    """

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


class NamedPartitionMessage(Message, frozen=True, array_like=True):
    """Begins messages about one partition that people name, by topic name and number."""

    topic: str
    partition: int
