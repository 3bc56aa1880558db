"""What messages about single partitions begin with. Kafka's answers name topics by id too (KIP-516).

Nothing here is sent by itself, and nothing is ever appended here: it would stand in the middle of the messages that
begin with it. A message gets new fields at its own end.
"""

from uuid import UUID

from rayka.errors import ErrorCode
from rayka.ports import Message


class OfPartition(Message, frozen=True, array_like=True):
    """Something of one partition."""

    topic_id: UUID
    partition: int


class PartitionAnswer(OfPartition, frozen=True, array_like=True):
    """What became of one partition of a request; beside an error the rest keeps its defaults, or says where to ask."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


class OfNamedPartition(Message, frozen=True, array_like=True):
    """Something of one partition that people name, by its topic and number."""

    topic: str
    partition: int
