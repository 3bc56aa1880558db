"""What the active controller answers about the load of brokers and partitions. Rayka's own."""

from collections.abc import Iterator

from rayka.controller.request_context import RequestContext
from rayka.metadata.image import BrokerImage
from rayka.metadata.metadata_records import MetadataRecord
from rayka.protocol.load import DescribeLoadRequest, DescribeLoadResponse, NamedPartitionLoad
from rayka.shard.shard import Result

_AT_REST = ("partition", "size_bytes")
_SHARED = ("partition", "is_leader", "size_bytes", "bytes_in", "records_in", "bytes_out", "records_out")


def describe_load(
    context: RequestContext, request: DescribeLoadRequest
) -> Result[MetadataRecord, DescribeLoadResponse]:
    """Every registered broker; a fenced one leads nothing and does nothing for clients. A partition that there is not,
    or that the broker does not hold, is left out.
    """
    brokers = context.image.brokers.values()
    wanted = None if request.topics is None else frozenset(request.topics)
    named = [
        each
        for broker in brokers
        for each in _named(context, broker)
        if wanted is None or each.topic in wanted
    ]
    named.sort(key=lambda each: (each.topic, each.partition, each.broker_id))
    loads = tuple(context.loads.of(each, context.now_ms) for each in brokers)
    return Result((), DescribeLoadResponse(loads, tuple(named)))


def _named(context: RequestContext, broker: BrokerImage) -> Iterator[NamedPartitionLoad]:
    report = context.loads.newest(broker)
    for each in report.partitions if report is not None else ():
        topic = context.image.topics_by_id.get(each.topic_id)
        is_there = topic is not None and 0 <= each.partition < len(topic.partitions)
        if is_there and topic is not None and broker.broker_id in topic.partitions[each.partition].replicas:
            said = {name: getattr(each, name) for name in (_AT_REST if broker.is_fenced else _SHARED)}
            yield NamedPartitionLoad(topic.name, broker_id=broker.broker_id, **said)
