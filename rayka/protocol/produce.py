"""Produce: batches into partitions. Kafka: ProduceRequest/ProduceResponse (G10, B15, B18)."""

import numpy as np

from rayka.errors import ErrorCode, InvalidRequiredAcks
from rayka.ids import NO_EPOCH, NO_NODE, NO_OFFSET, NO_TIMESTAMP
from rayka.ports import Message, Request
from rayka.protocol.of_partition import OfPartition, PartitionAnswer

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1


class ProducePartition(OfPartition, frozen=True, array_like=True, gc=False):
    """Batches for one partition; `records` is one or more whole batches, uint8.

    Part of no cycle, so the garbage collector need not count it: a request has hundreds.
    """

    records: np.ndarray


class RecordError(Message, frozen=True, array_like=True, gc=False):
    """Why a record is refused: the one at this index among the records that were sent for the partition (KIP-467).

    Kafka's has no code of its own for each record.
    """

    batch_index: int
    error_code: ErrorCode
    error_message: str


class ProducePartitionResult(PartitionAnswer, frozen=True, array_like=True, gc=False):
    """What became of one partition's batches.

    `base_offset` is the offset of the first record; `log_append_time_ms` is -1 unless the topic stamps records itself.
    `leader_id` and `leader_epoch` go with a refusal of a node that does not lead, where it knows which one does.
    `record_errors` go with a refusal that is about single records: nothing was appended, and the others may be sent
    again without them. There may be more of them than are listed.
    """

    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = NO_OFFSET
    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH
    record_errors: tuple[RecordError, ...] = ()


class ProduceResponse(Message, frozen=True, array_like=True):
    """One result for each partition of the request, in its order."""

    partitions: tuple[ProducePartitionResult, ...]


class ProduceRequest(Request[ProduceResponse], frozen=True, array_like=True):
    """Appends batches. `acks`: 0 (answered before the append is known), 1 (the leader has it), -1 (every ISR
    member has it).
    """

    acks: int
    timeout_ms: int
    partitions: tuple[ProducePartition, ...]

    def check(self) -> None:
        if self.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            raise InvalidRequiredAcks(f"acks: expected 0, 1 or -1 (all), found {self.acks}")
