"""Offsets with what is known beside them, as users give and get them. Kafka: OffsetAndMetadata, OffsetAndTimestamp."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayka.client.arguments import int_of, mapping_of, partition_of, text_of
from rayka.errors import InvalidArgument
from rayka.ids import NO_EPOCH, TopicPartition


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """The offset of the next record that a group is to read, and a text of the application's beside it.

    `leader_epoch` is that of the record before it, -1 where it is not known: by it a reader finds out that this record
    is not in the log any more.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """A record's offset, its timestamp in milliseconds, and its leader epoch, -1 where it is not known."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = NO_EPOCH


CommittableOffsets = Mapping[TopicPartition, int | OffsetAndMetadata]


def committable(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """What a caller gave to be committed. Raises TypeError, and ValueError of an offset below 0."""
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, given in mapping_of(offsets, "offsets").items():
        each = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(int_of(given, f"{tp}"))
        if not 0 <= int_of(each.offset, f"the offset of {tp}") < 2**63:
            raise InvalidArgument(f"the offset of {tp}: expected 0 or more, below 2**63, found {each.offset}")
        text_of(each.metadata, f"the metadata of {tp}")
        if not NO_EPOCH <= int_of(each.leader_epoch, f"the leader epoch of {tp}") < 2**31:
            raise InvalidArgument(f"the leader epoch of {tp}: expected -1 or more, found {each.leader_epoch}")
        found[partition_of(tp)] = each
    return found
