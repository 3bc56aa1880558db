"""Producer ids: a client gets one from a broker, a broker a block of them from the controller.

Kafka: InitProducerIdRequest, AllocateProducerIdsRequest (C12). Left out: transactional ids.
"""

from rayka.ports import Message, Request


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
