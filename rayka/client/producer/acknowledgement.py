"""What a producer learns of records that the cluster took."""

from collections.abc import Sequence

import msgspec

from rayka.ids import NO_OFFSET


class RecordMetadata(msgspec.Struct, frozen=True):
    """Where a record is in the log. `offset` is -1 with acks=0; `timestamp_ms` is the one that the log holds.

    Kafka: RecordMetadata.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class BatchMetadata(msgspec.Struct, frozen=True):
    """Where a run of records of one `send_batch` is: offsets [base_offset, base_offset + record_count) of a partition.

    `base_offset` is -1 with acks=0.
    """

    topic: str
    partition: int
    base_offset: int
    record_count: int


class BatchFailure(msgspec.Struct, frozen=True):
    """Rows of one `send_batch` that were not acknowledged, and why. They are numbered from 0 in the data as it was
    given, and ascend.
    """

    error: Exception
    rows: Sequence[int]


def offset_after(base_offset: int, index: int) -> int:
    """The offset of the record at an index, which stays unknown (-1) where the base is."""
    return NO_OFFSET if base_offset == NO_OFFSET else base_offset + index
