"""What a producer keeps of topics whose leaders it has asked for: nothing, once they have come."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from rayka.client.metadata import ClusterMetadata
from rayka.client.producer.partition_leaders import PartitionLeaders
from rayka.client.producer.partition_queue import Limits
from rayka.config.client_config import ProducerConfig
from rayka.sim.loop import VirtualLoop
from tests.client.support import ScriptedCluster, new_accumulator

COUNT = 2_000  # partitions: a tenth of a second of rest


def play(scene: Callable[[ScriptedCluster, PartitionLeaders], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()
    cluster = ScriptedCluster({"orders": COUNT})

    async def main() -> None:
        metadata = ClusterMetadata(cluster, "scripted", ProducerConfig(), Random(1))
        limits = Limits(batch_bytes=1_000, memory_bytes=1_000, linger_ms=0, delivery_timeout_ms=1_000)
        accumulator = new_accumulator(limits, partitions=COUNT)
        await scene(
            cluster,
            PartitionLeaders(metadata, accumulator, 100, loop.create_task, lambda topic: None),
        )

    try:
        loop.run_until_complete(main())
    finally:
        loop.cancel_all()


@pytest.mark.parametrize("is_gone", [False, True])
def test_nothing_is_kept_of_a_topic_once_its_rest_is_over_or_it_is_gone(is_gone: bool) -> None:
    async def scene(cluster: ScriptedCluster, leaders: PartitionLeaders) -> None:
        leaders.refresh("orders")
        await asyncio.sleep(0.05)
        assert repr(leaders) == "<PartitionLeaders <LeaderWatch {}> refreshing=[]>"
        if is_gone:
            leaders.refresh("orders")
            cluster.topics.clear()
        await asyncio.sleep(0.1)
        assert repr(leaders) == "<PartitionLeaders <LeaderWatch {}> refreshing=[]>"
        assert (cluster.metadata_calls > 1) == is_gone

    play(scene)


def test_a_topic_is_asked_for_again_when_its_rest_is_over() -> None:
    async def scene(cluster: ScriptedCluster, leaders: PartitionLeaders) -> None:
        leaders.refresh("orders")
        await asyncio.sleep(0.05)
        leaders.refresh("orders")
        leaders.refresh("orders")
        await asyncio.sleep(0.04)
        assert cluster.metadata_calls == 1
        await asyncio.sleep(0.02)
        assert cluster.metadata_calls == 2
        leaders.close()
        await asyncio.sleep(1)

    play(scene)
