"""The producer ids that a broker hands out, from blocks that the controller gives it (C12), and those that its
partitions forget (C8).

Invariants: an id is handed out once; one block is asked for at a time, and a producer that needs an id meanwhile waits
for that one. What is left of a block when the broker ends is never used. Kafka: `RPCProducerIdManager`.
"""

import asyncio

from rayka.config.broker_config import BrokerConfig
from rayka.node.broker_lifecycle import BrokerLifecycle
from rayka.node.clock import now_ms
from rayka.node.replication.replica_manager import ReplicaManager
from rayka.node.turns import in_turns
from rayka.partition.partition import Partition
from rayka.protocol.produce import InitProducerIdRequest, InitProducerIdResponse


async def expire_producers(replicas: ReplicaManager, config: BrokerConfig) -> None:
    """Lets every partition forget the producers that have been silent for too long, for ever (C8)."""
    while True:
        await asyncio.sleep(config.producer_id_expiration_check_interval_ms / 1000)
        async for partition in in_turns(replicas.partitions, weigh=_producer_count):
            partition.log.producers.expire(now_ms(), config.producer_id_expiration_ms)


def _producer_count(partition: Partition) -> int:
    return 1 + len(partition.log.producers)


class ProducerIdHandler:
    """Answers InitProducerId."""

    def __init__(self, lifecycle: BrokerLifecycle) -> None:
        self._lifecycle = lifecycle
        self._free = range(0)
        self._one_at_a_time = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<ProducerIdHandler free={self._free}>"

    async def handle(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """A new id. Raises BrokerNotAvailable while the controller gives none."""
        async with self._one_at_a_time:
            if not self._free:
                self._free = await self._lifecycle.allocate_producer_ids()
            producer_id, self._free = self._free[0], self._free[1:]
        return InitProducerIdResponse(producer_id, producer_epoch=0)
