"""What is produced to the replicas of `replica_support`."""

from rayka.node.inbox import completed
from rayka.node.produce_handler import ProduceHandler
from rayka.protocol.produce import ACKS_LEADER, ProducePartition, ProducePartitionResult, ProduceRequest
from tests.metadata.support import ORDERS
from tests.node.broker_support import records
from tests.node.replica_support import Broker

WALL_CLOCK_MS, TIMEOUT_MS = 1_700_000_000_000, 10_000


async def produce(
    broker: Broker, number: int = 0, *, acks: int = ACKS_LEADER, timeout_ms: int = TIMEOUT_MS
) -> ProducePartitionResult:
    """One record."""
    request = ProduceRequest(acks, timeout_ms, (ProducePartition(ORDERS, number, records(b"a")),))
    response = await completed(ProduceHandler(broker.replicas, lambda: WALL_CLOCK_MS).handle(request))
    return response.partitions[0]
