"""A broker that is gone for good is forgotten. Kafka: `QuorumController.unregisterBroker`, which also forgets one that
runs or holds replicas; here that is refused, since no node could say any more where those replicas were.
"""

from rayka.controller.request_context import RequestContext
from rayka.errors import BrokerIdNotRegistered, InvalidRequest
from rayka.metadata.metadata_records import MetadataRecord, UnregisterBrokerRecord, config_record
from rayka.protocol.configs import ResourceType
from rayka.protocol.partition_admin import UnregisterBrokerRequest, UnregisterBrokerResponse
from rayka.shard.shard import Result


def unregister_broker(
    context: RequestContext, request: UnregisterBrokerRequest
) -> Result[MetadataRecord, UnregisterBrokerResponse]:
    """Forgets the broker and its configuration. Raises BrokerIdNotRegistered, or InvalidRequest that says what to do
    first.
    """
    image = context.image
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        raise BrokerIdNotRegistered(
            f"broker {request.broker_id} is not registered; those that are: {sorted(image.brokers)}"
        )
    if not broker.is_fenced:
        raise InvalidRequest(f"broker {broker.broker_id} runs: expected one that is fenced; stop it first")
    held_count = context.replicas.of(broker.broker_id).directories.total()
    if held_count:
        raise InvalidRequest(
            f"broker {broker.broker_id} holds replicas of {held_count:,} partitions, expected none; reassign them first"
        )
    configs = [
        config_record(ResourceType.BROKER, str(broker.broker_id), name, None)
        for name in image.broker_configs(broker.broker_id)
    ]
    forgotten = UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
    return Result([*configs, forgotten], UnregisterBrokerResponse())
