"""Produce: appends batches to partitions, names the leader of a partition, and gives producers their ids.

Kafka: ProduceRequest, ProduceResponse (G10, B15, B18), `CurrentLeader` (KIP-951), InitProducerIdRequest,
AllocateProducerIdsRequest (C12). Left out: transactional ids.
"""

from typing import NamedTuple

import numpy as np

from rayka.errors import ErrorCode, InvalidRequiredAcks
from rayka.ids import NO_EPOCH, NO_NODE, NO_OFFSET, NO_TIMESTAMP
from rayka.ports import Message, Request
from rayka.protocol.fetch import FetchPartitionResult
from rayka.protocol.request_parts import PartitionAnswer, PartitionMessage

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1


class ProducePartition(PartitionMessage, frozen=True, array_like=True, gc=False):
    """Batches for one partition. Not tracked by the garbage collector: a request has hundreds, and none is part of a
    cycle.
    """

    # One or more whole batches, uint8.
    records: np.ndarray


class RecordError(Message, frozen=True, array_like=True, gc=False):
    """The refusal of one record (KIP-467). Kafka's version has no error code for each record."""

    # The record's index among the records that were sent for the partition.
    batch_index: int
    error_code: ErrorCode
    error_message: str


class ProducePartitionResult(PartitionAnswer, frozen=True, array_like=True, gc=False):
    """The result of appending one partition's batches."""

    # The offset of the first record.
    base_offset: int = NO_OFFSET
    # NO_TIMESTAMP unless the topic stamps records itself.
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = NO_OFFSET
    # Beside the refusal of a node that does not lead: the leader, if the node knows it.
    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH
    # Beside a refusal because of single records, perhaps not all of them. Nothing was appended, and the other records
    # may be sent again without these.
    record_errors: tuple[RecordError, ...] = ()


class ProduceResponse(Message, frozen=True, array_like=True):
    """One result for each partition of the request, in its order."""

    partitions: tuple[ProducePartitionResult, ...]


class ProduceRequest(Request[ProduceResponse], frozen=True, array_like=True):
    """Appends batches."""

    # 0: answered before the append, 1: when the leader has appended, -1: when every ISR member has.
    acks: int
    timeout_ms: int
    partitions: tuple[ProducePartition, ...]

    def check(self) -> None:
        if self.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            raise InvalidRequiredAcks(f"acks: expected 0, 1 or -1 (all), found {self.acks}")


class InitProducerIdResponse(Message, frozen=True, array_like=True):
    """An id that no other producer of the cluster has had, and the first epoch of the id."""

    producer_id: int
    producer_epoch: int


class InitProducerIdRequest(Request[InitProducerIdResponse], frozen=True, array_like=True):
    """An idempotent producer asks any broker for a producer id."""


class AllocateProducerIdsResponse(Message, frozen=True, array_like=True):
    """Gives the broker the ids [producer_id_start, producer_id_start + producer_id_count) to hand out."""

    producer_id_start: int
    producer_id_count: int


class AllocateProducerIdsRequest(Request[AllocateProducerIdsResponse], frozen=True, array_like=True):
    """A broker asks the controller for a block of producer ids."""

    broker_id: int
    broker_epoch: int


# A broker that refuses a request with one of these errors may name the leader, and the client continues there without
# asking for metadata.
LEADER_NAMING_CODES = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class CurrentLeader(NamedTuple):
    """The leader that a broker knows and the leader's epoch; NO_NODE: the broker knows none."""

    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH


# A result that may name the leader. The leader counts beside an error only, and only if its epoch is new.
ResultWithLeader = FetchPartitionResult | ProducePartitionResult
