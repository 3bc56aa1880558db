"""What consumers say to each other through their coordinator, which passes it on: subscriptions and assignments.

A member sends its subscription with each join; the leader of the group sends an assignment for each member with its
sync. Both are bytes to the protocol of groups. Kafka: ConsumerProtocolSubscription, ConsumerProtocolAssignment.
"""

from typing import TypeVar

import msgspec

from rayka.errors import CorruptRecord
from rayka.ids import NO_EPOCH, TopicPartition
from rayka.ports import Message

CONSUMER_PROTOCOL_TYPE = "consumer"
NO_GENERATION = NO_EPOCH
_SaidT = TypeVar("_SaidT", bound=Message)


class ConsumerSubscription(Message, frozen=True, array_like=True):
    """What a member wants to read, and what it reads since the assignment of that generation."""

    topics: tuple[str, ...]
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    rack: str = ""
    user_data: bytes = b""


class ConsumerAssignment(Message, frozen=True, array_like=True):
    """What a member is to read from now on."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes = b""


def encode_said(said: Message) -> bytes:
    """The bytes of a subscription or of an assignment; no partition is none."""
    return msgspec.msgpack.encode(said)


def decode_said(said_type: type[_SaidT], data: bytes) -> _SaidT:
    """A subscription or an assignment from its bytes. Raises CorruptRecord that says what was expected."""
    try:
        return msgspec.msgpack.decode(data, type=said_type)
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"expected a {said_type.__name__}, found {data[:40]!r}: {error}") from error
