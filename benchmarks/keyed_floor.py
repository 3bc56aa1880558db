"""The least that keyed records to many partitions cost in Python: the fewest batches that a producer could make of
them, by code that keeps none of its promises.

Every record is hashed and noted for its partition, every partition's records become one batch, encoded and numbered as
the producer's are, and the batches go over Ray in requests of the producer's size, two under way. Every result is
checked, and every batch completed. There is no lock and no second thread while records are gathered, no bound of
memory, no linger, no retry, no deadline, no callback, and no batch that goes before it is full.
"""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from rayka.client import io_thread
from rayka.client.producer.drain_schedule import REQUEST_BATCHES_MAX
from rayka.cluster import Cluster
from rayka.errors import ErrorCode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import ProducerSequence
from rayka.protocol.membership import MetadataRequest
from rayka.protocol.murmur2 import partition_for_key
from rayka.protocol.produce import ACKS_ALL, InitProducerIdRequest, ProducePartition, ProduceRequest

_TIMEOUT_MS = 60_000
_UNDER_WAY = 2


class Batch:
    """The records of one partition."""

    __slots__ = ("base_offset", "partition", "records")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.records: list[Future] = []
        self.base_offset = -1


class Future:
    """What `send` would return."""

    __slots__ = ("batch", "key", "value")

    def __init__(self, batch: Batch, key: bytes, value: bytes) -> None:
        self.batch = batch
        self.key = key
        self.value = value


class LeastSends:
    """Sends to one topic, each time as a producer of its own."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._broker_id = next(each.node_id for each in cluster.describe().nodes if "broker" in each.roles)
        self._network = cluster.network()
        self._topic_id, self._partition_count = self._run(self._known(topic))

    def send_all(self, keys: Sequence[bytes], value: bytes) -> None:
        """Returns when all are acknowledged."""
        producer_id = self._run(self._new_producer_id())
        batches: dict[int, Batch] = {}
        for key in keys:
            partition = partition_for_key(key, self._partition_count)
            batch = batches.get(partition)
            if batch is None:
                batch = batches[partition] = Batch(partition)
            batch.records.append(Future(batch, key, value))
        self._run(self._send(list(batches.values()), ProducerSequence(producer_id, 0, 0)))

    async def _known(self, topic: str) -> tuple[UUID, int]:
        response = await self._network.call(self._broker_id, MetadataRequest((topic,)), _TIMEOUT_MS)
        return response.topics[0].topic_id, len(response.topics[0].partitions)

    async def _new_producer_id(self) -> int:
        response = await self._network.call(self._broker_id, InitProducerIdRequest(), _TIMEOUT_MS)
        return response.producer_id

    async def _send(self, batches: list[Batch], sequence: ProducerSequence) -> None:
        under_way: list[asyncio.Task[None]] = []
        for begin in range(0, len(batches), REQUEST_BATCHES_MAX):
            if len(under_way) == _UNDER_WAY:
                await under_way.pop(0)
            request = batches[begin : begin + REQUEST_BATCHES_MAX]
            under_way.append(asyncio.create_task(self._send_request(request, sequence)))
            await asyncio.sleep(0)
        await asyncio.gather(*under_way)

    async def _send_request(self, batches: list[Batch], sequence: ProducerSequence) -> None:
        parts, now_ms = [], io_thread.wall_clock_ms()
        for each in batches:
            values, keys = [record.value for record in each.records], [record.key for record in each.records]
            encoded = encode_batch(values, keys=keys, timestamps_ms=now_ms, sequence=sequence)
            parts.append(ProducePartition(self._topic_id, each.partition, encoded))
        request = ProduceRequest(ACKS_ALL, _TIMEOUT_MS, tuple(parts))
        response = await self._network.call(self._broker_id, request, _TIMEOUT_MS)
        for batch, result in zip(batches, response.partitions, strict=True):
            if result.error_code is not ErrorCode.NONE:
                raise RuntimeError(f"partition {batch.partition}: {result}")
            batch.base_offset = result.base_offset

    def _run(self, coroutine: Any) -> Any:
        return io_thread.run(lambda: coroutine, _TIMEOUT_MS / 1000)
