"""Many requests of one record each: by the network port, and by a producer that batches nothing."""

import asyncio
import threading
import time
from functools import partial
from itertools import count, cycle

import rayka
from rayka.client import io_thread
from rayka.client.bootstrap import ClusterHandle
from rayka.errors import ErrorCode
from rayka.ports import Network
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.membership import MetadataRequest, MetadataTopic
from rayka.protocol.produce import ACKS_ALL, ProducePartition, ProduceRequest

_TIMEOUT_S = 60.0


def rate_by_port(cluster: ClusterHandle, topic: str, *, in_flight: int, seconds_long: float) -> float:
    """Records/s of 1 KB of so many callers, each of which has one request of one record in flight, acks=all."""
    calling = partial(_call_for, cluster.network(), topic, in_flight, seconds_long)
    return io_thread.run(calling, seconds_long + _TIMEOUT_S)


async def _call_for(network: Network, topic: str, in_flight: int, seconds_long: float) -> float:
    known = await topic_of(network, topic)
    batch = encode_batch([bytes(1000)], timestamps_ms=0)
    requests = [
        (each.leader_id, ProduceRequest(ACKS_ALL, 30_000, (part,)))
        for each in known.partitions
        for part in [ProducePartition(known.topic_id, each.partition, batch)]
    ]
    turns, began, done = cycle(requests), time.perf_counter(), 0

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < began + seconds_long:
            leader_id, request = next(turns)
            response = await network.call(leader_id, request, 30_000)
            assert response.partitions[0].error_code is ErrorCode.NONE, response
            done += 1

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    return done / (time.perf_counter() - began)


async def topic_of(network: Network, topic: str) -> MetadataTopic:
    """What a node knows of the topic, once each of its partitions has a leader."""
    node_ids = await network.node_ids()
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            known = (await network.call(node_ids[0], MetadataRequest((topic,)), 10_000)).topics[0]
            if known.partitions and all(each.leader_id > 0 for each in known.partitions):
                return known
            await asyncio.sleep(0.05)


def rate_by_producer(
    producer: rayka.Producer, topic: str, partitions: int, *, in_flight: int, seconds_long: float
) -> float:
    """Records/s of 1 KB with so many unacknowledged, over the partitions of the topic in turn."""
    free, value, done, turns = threading.Semaphore(in_flight), bytes(1000), count(), cycle(range(partitions))

    def on_delivery(error: Exception | None, _: object) -> None:
        assert error is None, error
        next(done)
        free.release()

    began = time.perf_counter()
    while time.perf_counter() < began + seconds_long:
        free.acquire()
        producer.send(topic, value=value, partition=next(turns), on_delivery=on_delivery)
    rate = next(done) / (time.perf_counter() - began)
    producer.flush()
    return rate
