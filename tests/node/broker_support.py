"""What the tests of the broker node share: a cluster on memory disks, spoken to in requests and responses."""

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

import rayka.testing
from rayka.client import io_thread
from rayka.errors import ErrorCode
from rayka.ids import ZERO_ID
from rayka.ports import Request
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import split_batches
from rayka.protocol.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
)
from rayka.protocol.membership import MetadataRequest
from rayka.protocol.produce import (
    ACKS_ALL,
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
)
from rayka.protocol.topics import CreateTopicsRequest, DeleteTopicsRequest, NewTopic
from rayka.testing import InProcessCluster, MemoryDisk

BROKER, CONTROLLER = 1, 3001
TIMEOUT_MS = 10_000
ResultT = TypeVar("ResultT")


def run(coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
    return io_thread.run(lambda: coroutine, 20)


def records(*values: bytes, timestamp_ms: int = 1_700_000_000_000) -> np.ndarray:
    return encode_batch(list(values), timestamps_ms=timestamp_ms)


def values_in(result: FetchPartitionResult) -> list[bytes | None]:
    return [value for batch in split_batches(result.records) for value in decode(batch).values_list()]


class Topic:
    """A topic of a cluster, in the words of the protocol. Methods with an `a` are coroutines of the IO thread."""

    def __init__(self, cluster: InProcessCluster, name: str) -> None:
        self._network = cluster.network()
        self.name = name
        self.topic_id = ZERO_ID

    async def a_call(self, request: Request[ResultT], node_id: int = BROKER) -> ResultT:
        return await self._network.call(node_id, request, TIMEOUT_MS)

    def call(self, request: Request[ResultT], node_id: int = BROKER) -> ResultT:
        return run(self.a_call(request, node_id))

    async def a_produce(
        self, data: dict[int, np.ndarray], *, acks: int = ACKS_ALL, timeout_ms: int = TIMEOUT_MS
    ) -> ProduceResponse:
        partitions = tuple(ProducePartition(self.topic_id, number, each) for number, each in data.items())
        return await self.a_call(ProduceRequest(acks, timeout_ms, partitions))

    def produce(self, *values: bytes, partition: int = 0, **options: Any) -> ProducePartitionResult:
        return run(self.a_produce({partition: records(*values)}, **options)).partitions[0]

    def fetch_request(self, offsets: dict[int, int], **changes: Any) -> FetchRequest:
        limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20} | changes
        partition_bytes = limits.pop("partition_bytes", 1 << 20)
        partitions = tuple(
            FetchPartition(self.topic_id, number, offset, partition_bytes)
            for number, offset in offsets.items()
        )
        return FetchRequest(partitions=partitions, **limits)

    async def a_fetch(self, offsets: dict[int, int], **changes: Any) -> FetchResponse:
        return await self.a_call(self.fetch_request(offsets, **changes))

    def fetch(self, offset: int = 0, *, partition: int = 0, **changes: Any) -> FetchPartitionResult:
        return run(self.a_fetch({partition: offset}, **changes)).partitions[0]

    def values(self, partition: int = 0) -> list[bytes | None]:
        """All values of one partition."""
        found: list[bytes | None] = []
        offset = 0
        while (result := self.fetch(offset, partition=partition)).records.size:
            found += values_in(result)
            offset = result.next_offset
        assert result.error_code is ErrorCode.NONE, result
        return found

    def find_offset(self, timestamp_ms: int, partition: int = 0) -> ListOffsetsPartitionResult:
        asked = ListOffsetsPartition(self.topic_id, partition, timestamp_ms)
        return self.call(ListOffsetsRequest((asked,))).partitions[0]

    async def a_delete(self) -> int:
        return (await self.a_call(DeleteTopicsRequest((self.name,)), CONTROLLER)).metadata_offset


def create_topic(
    cluster: InProcessCluster, partitions: int = 1, name: str = "orders", **configs: Any
) -> Topic:
    """A new topic that the broker knows already; keyword arguments are its configuration, in snake_case."""
    topic = Topic(cluster, name)
    named = {key.replace("_", "."): str(value) for key, value in configs.items()}
    created = topic.call(CreateTopicsRequest((NewTopic(name, partitions, 1, named),)), CONTROLLER)
    (result,) = created.topics
    assert result.error_code is ErrorCode.NONE, result
    topic.topic_id = result.topic_id
    topic.call(MetadataRequest(min_metadata_offset=created.metadata_offset))
    return topic


@contextmanager
def memory_cluster(
    disk: MemoryDisk | None = None,
    controller_disk: MemoryDisk | None = None,
    *,
    data_dir: Any = "/data",
    **config: Any,
) -> Iterator[InProcessCluster]:
    """A cluster that touches no real disk; `disk` is the broker's. Nothing expires, whatever its timestamp, unless
    `log_retention_ms` says so.
    """
    config = {"log_retention_ms": -1, **config}
    disks = {BROKER: disk or MemoryDisk(), CONTROLLER: controller_disk or MemoryDisk()}
    named = {key.replace("_", "."): value for key, value in config.items()}
    with rayka.testing.cluster(data_dir=data_dir, disks=disks, config=named) as cluster:
        yield cluster
