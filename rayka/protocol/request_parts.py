"""How a message checks what is asked: with an error that names the field, what was expected and what was found."""

from collections import Counter
from collections.abc import Iterable
from uuid import UUID

from rayka.errors import ErrorCode, InvalidRequest
from rayka.ports import Message


def require(holds: bool, field: str, expected: str, found: object) -> None:
    """Raises InvalidRequest unless it holds."""
    if not holds:
        raise InvalidRequest(f"{field}: expected {expected}, found {found}")


def check_each_once(field: str, names: Iterable[str]) -> None:
    """Raises InvalidRequest that lists the names which stand there more than once."""
    given = tuple(names)
    if len(set(given)) < len(given):  # to count them takes ten times as long
        repeated = sorted(name for name, count in Counter(given).items() if count > 1)
        require(False, field, "each once", repeated)


# What messages about single partitions begin with. Kafka's answers name topics by id too (KIP-516).
#
# Nothing here is sent by itself, and nothing is ever appended here: it would stand in the middle of the messages that
# begin with it. A message gets new fields at its own end.


class PartitionMessage(Message, frozen=True, array_like=True):
    """Something of one partition."""

    topic_id: UUID
    partition: int


class PartitionAnswer(PartitionMessage, frozen=True, array_like=True):
    """What became of one partition of a request; beside an error the rest keeps its defaults, or says where to ask."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


class NamedPartitionMessage(Message, frozen=True, array_like=True):
    """Something of one partition that people name, by its topic and number."""

    topic: str
    partition: int
