"""Produce: batches into partitions. Kafka: ProduceRequest/ProduceResponse (G10, B15, B18)."""

from typing import NamedTuple

import numpy as np

from rayka.errors import ErrorCode, InvalidRequiredAcks
from rayka.ids import NO_EPOCH, NO_NODE, NO_OFFSET, NO_TIMESTAMP
from rayka.ports import Message, Request
from rayka.protocol.fetch import FetchPartitionResult
from rayka.protocol.request_parts import PartitionAnswer, PartitionMessage

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1


class ProducePartition(PartitionMessage, frozen=True, array_like=True, gc=False):
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


# Producer ids: a client gets one from a broker, a broker a block of them from the controller.
#
# Kafka: InitProducerIdRequest, AllocateProducerIdsRequest (C12). Left out: transactional ids.


class InitProducerIdResponse(Message, frozen=True, array_like=True):
    """An id that no other producer of the cluster has had, and its first epoch."""

    producer_id: int
    producer_epoch: int


class InitProducerIdRequest(Request[InitProducerIdResponse], frozen=True, array_like=True):
    """An idempotent producer asks any broker for its id."""


class AllocateProducerIdsResponse(Message, frozen=True, array_like=True):
    """The ids [producer_id_start, producer_id_start + producer_id_count) are the broker's to hand out."""

    producer_id_start: int
    producer_id_count: int


class AllocateProducerIdsRequest(Request[AllocateProducerIdsResponse], frozen=True, array_like=True):
    """A broker asks the controller for ids."""

    broker_id: int
    broker_epoch: int


# Which node leads a partition: what a broker says beside its refusal of a client that asked the wrong node.
#
# The client goes on there without a question for metadata. Kafka: `CurrentLeader` in answers to Produce and Fetch
# (KIP-951).


LEADER_NAMING_CODES = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class CurrentLeader(NamedTuple):
    """The leader and its epoch, as far as the broker knows; -1 when it knows of none."""

    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH


# What an answer says of one partition. The leader counts beside an error only, and if its epoch is news.
ResultWithLeader = FetchPartitionResult | ProducePartitionResult
