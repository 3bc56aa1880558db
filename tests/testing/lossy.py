"""A cluster as a client sees it over a bad network."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from rayka.client.bootstrap import ClusterHandle
from rayka.errors import NetworkException
from rayka.ports import Network
from rayka.protocol.produce import InitProducerIdRequest, ProduceRequest


class LossyCluster:
    """A cluster as a client sees it over a bad network: of the produce calls some are lost before or after they were
    executed, some are executed twice, and some are late, so that others overtake them.
    """

    def __init__(self, cluster: ClusterHandle, seed: int) -> None:
        self._cluster = cluster
        self._random = Random(seed)
        self.name = cluster.name

    def network(self, transport: str = "auto") -> "LossyNetwork":
        return LossyNetwork(self._cluster, self._random)


class LossyNetwork:
    def __init__(self, cluster: ClusterHandle, random: Random) -> None:
        self._network = cluster.network()
        self._random = random
        self._other: Network = cluster.network()  # another way for a second copy

    async def node_ids(self) -> Sequence[int]:
        return await self._network.node_ids()

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        fate = self._random.random() if isinstance(request, ProduceRequest | InitProducerIdRequest) else 1.0
        if fate < 0.1:
            raise NetworkException("the call was lost")
        if fate < 0.2:
            await self._be_late()
        response = await self._network.call(node_id, request, timeout_ms)
        if 0.2 <= fate < 0.3:
            await self._other.call(node_id, request, timeout_ms)
        if 0.3 <= fate < 0.5:
            await self._be_late()
        if 0.5 <= fate < 0.6:
            raise NetworkException("the answer was lost")
        return response

    async def _be_late(self) -> None:
        for _ in range(self._random.randrange(200)):
            await asyncio.sleep(0)
