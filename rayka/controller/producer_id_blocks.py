"""Blocks of producer ids, each given to one broker once (C12).

Invariant: `next_producer_id` of the image only rises, and everything below it is given away; what a broker has not
handed out when it ends is never used. Kafka: `ProducerIdControlManager`.
"""

from rayka.controller.heartbeats import registered_broker
from rayka.controller.request_context import RequestContext
from rayka.errors import UnknownServerError
from rayka.metadata.metadata_records import MetadataRecord, ProducerIdsRecord
from rayka.protocol.produce import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from rayka.shard.shard import Result

PRODUCER_IDS_PER_BLOCK = 1000
PRODUCER_ID_MAX = 2**63 - 1


def allocate_producer_ids(
    context: RequestContext, request: AllocateProducerIdsRequest
) -> Result[MetadataRecord, AllocateProducerIdsResponse]:
    """The next block. Raises BrokerIdNotRegistered, StaleBrokerEpoch, UnknownServerError when no id is left."""
    registered_broker(context.image, request.broker_id, request.broker_epoch)
    first = context.image.next_producer_id
    if first > PRODUCER_ID_MAX - PRODUCER_IDS_PER_BLOCK:
        raise UnknownServerError(f"every producer id up to {PRODUCER_ID_MAX} was given away")
    record = ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=first + PRODUCER_IDS_PER_BLOCK,
    )
    return Result([record], AllocateProducerIdsResponse(first, PRODUCER_IDS_PER_BLOCK))
