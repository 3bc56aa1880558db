"""Two brokers that lead one partition each and answer look-ups of offsets as they are told, in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any
from uuid import UUID

from rayka.client.leader_calls import LeaderCalls
from rayka.client.metadata import ClusterMetadata
from rayka.config.client_config import ConsumerConfig
from rayka.errors import ErrorCode, RequestTimedOut
from rayka.ids import TopicPartition
from rayka.protocol.fetch import ListOffsetsPartitionResult, ListOffsetsRequest, ListOffsetsResponse
from rayka.protocol.membership import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from rayka.sim.loop import VirtualLoop

A, B, CONTROLLER = 1, 2, 3001
AT_A, AT_B = TopicPartition("orders", 0), TopicPartition("orders", 1)
OLD_ID, NEW_ID = UUID(int=1), UUID(int=2)
SMALL_FETCHES = ConsumerConfig(
    auto_offset_reset="earliest", max_partition_fetch_bytes=100, fetch_max_bytes=1_000, local_reads=False
)


class Brokers:
    """The network: two brokers that lead one partition each. Of those in `silent` no answer comes."""

    def __init__(self) -> None:
        self.leaders = [A, B]
        self.silent: list[int] = []
        # Once offsets were asked for, those in `silent` do not answer requests for metadata either.
        self.is_mute = False
        self.refusals: dict[int, list[ErrorCode]] = {A: [], B: []}  # of their next answers
        self.topic_id = OLD_ID
        self.offsets = [10, 11]
        self.asked: list[tuple[int, int]] = []  # node, and when in ms
        self.on_asked: Callable[[], None] = lambda: None

    async def node_ids(self) -> Sequence[int]:
        return [A, B]

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if isinstance(request, MetadataRequest) and not (
            self.is_mute and self.asked and node_id in self.silent
        ):
            return self._metadata()
        assert self.is_mute or isinstance(request, ListOffsetsRequest)
        self.asked.append((node_id, now_ms()))
        if node_id in self.silent:
            await asyncio.sleep(timeout_ms / 1000)
            raise RequestTimedOut(f"node {node_id} did not answer within {timeout_ms} ms")
        code = self.refusals[node_id].pop(0) if self.refusals[node_id] else ErrorCode.NONE
        results = [
            ListOffsetsPartitionResult(
                each.topic_id, each.partition, code, offset=self.offsets[each.partition]
            )
            for each in request.partitions
        ]
        self.on_asked()
        return ListOffsetsResponse(tuple(results))

    def _metadata(self) -> MetadataResponse:
        brokers = (MetadataBroker(A, "here", False, ()), MetadataBroker(B, "here", False, ()))
        partitions = tuple(
            MetadataPartition(number, leader, 1, (A, B), (A, B)) for number, leader in enumerate(self.leaders)
        )
        topic = MetadataTopic("orders", self.topic_id, partitions)
        return MetadataResponse("id", CONTROLLER, brokers, (topic,), 7)


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


def play(brokers: Brokers, scene: Callable[[LeaderCalls], Coroutine[Any, Any, Any]]) -> Any:
    async def main() -> Any:
        config = ConsumerConfig()
        metadata = ClusterMetadata(brokers, "scripted", config, Random(1))
        return await scene(LeaderCalls(brokers, metadata))

    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.cancel_all()
