"""A cluster as a client sees it over a bad network."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from rayka.errors import NetworkException
from rayka.protocol.produce import ProduceRequest
from rayka.protocol.producer_ids import InitProducerIdRequest
from rayka.testing import InProcessCluster
from rayka.testing.network import InProcessNetwork


class LossyCluster:
    """A cluster as a client sees it over a bad network: produce calls are lost before or after they were executed,
    executed twice, or answered late.
    """

    def __init__(self, cluster: InProcessCluster, seed: int) -> None:
        self._cluster = cluster
        self._random = Random(seed)
        self.name = cluster.name

    def network(self) -> "LossyNetwork":
        return LossyNetwork(self._cluster, self._random)


class LossyNetwork:
    def __init__(self, cluster: InProcessCluster, random: Random) -> None:
        self._cluster = cluster
        self._network = cluster.network()
        self._random = random
        self._other: InProcessNetwork = cluster.network()  # another way for a second copy

    async def node_ids(self) -> Sequence[int]:
        return await self._network.node_ids()

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        fate = self._random.random() if isinstance(request, ProduceRequest | InitProducerIdRequest) else 1.0
        if fate < 0.2:
            self._cluster.switch.fail_calls("produce", is_executed=fate < 0.1)
        response = await self._network.call(node_id, request, timeout_ms)
        if 0.2 <= fate < 0.3:
            await self._other.call(node_id, request, timeout_ms)
        if 0.3 <= fate < 0.5:
            for _ in range(self._random.randrange(200)):
                await asyncio.sleep(0)
        if 0.5 <= fate < 0.55:
            raise NetworkException("the answer came too late")
        return response
