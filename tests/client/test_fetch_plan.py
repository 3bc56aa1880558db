"""Which broker is asked for what: how many partitions at a time, and what newer metadata change (G15)."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from rayka.client.consumer.fetch_plan import FetchPlanner
from rayka.client.consumer.fetch_state import FetchState
from rayka.client.metadata import ClusterMetadata
from rayka.config.client_config import ConsumerConfig
from rayka.ids import TopicPartition
from rayka.protocol.membership import MetadataBroker, MetadataPartition, MetadataResponse, MetadataTopic
from rayka.sim.loop import VirtualLoop
from tests.client.offset_support import CONTROLLER, OLD_ID, SMALL_FETCHES, A, B, Brokers

ORDERS = TopicPartition("orders", 0)
AT_ONCE = 500


class Cluster(Brokers):
    """Broker 1 leads all partitions, broker 2 follows, fenced or not."""

    def __init__(self, partition_count: int) -> None:
        super().__init__()
        self.partition_count = partition_count
        self.is_follower_fenced = False

    def _metadata(self) -> MetadataResponse:
        brokers = (
            MetadataBroker(A, "here", False, ()),
            MetadataBroker(B, "there", self.is_follower_fenced, ()),
        )
        partitions = tuple(
            MetadataPartition(number, A, 1, (A, B), (A, B)) for number in range(self.partition_count)
        )
        return MetadataResponse("id", CONTROLLER, brokers, (MetadataTopic("orders", OLD_ID, partitions),), 7)


class Planned:
    """A consumer of all partitions, each with a position, whose metadata are known."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.metadata = ClusterMetadata(cluster, "scripted", ConsumerConfig(), Random(1))
        self.state = FetchState(SMALL_FETCHES)
        self.planner = FetchPlanner(self.state, self.metadata, 100)

    async def begin(self) -> None:
        await self.metadata.topic("orders", 1_000)
        wanted = [TopicPartition("orders", number) for number in range(self.cluster.partition_count)]
        self.state.assign(wanted)
        for each in wanted:
            self.state.seek(each, 5)

    def asked(self) -> dict[int, int]:
        """How many partitions each broker is to be asked for."""
        return {node_id: len(list(node.tickets())) for node_id, node in self.planner.nodes.items()}


def play(partition_count: int, scene: Callable[[Planned], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        planned = Planned(Cluster(partition_count))
        await planned.begin()
        await scene(planned)

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.cancel_all()


def test_so_many_partitions_are_placed_at_a_time_and_the_rest_next() -> None:
    async def scene(planned: Planned) -> None:
        for count, is_done in ((AT_ONCE, False), (AT_ONCE + 1, True)):
            planned.planner.update()
            assert (planned.asked(), not planned.state.changed) == ({A: count}, is_done)

    play(AT_ONCE + 1, scene)


def test_a_consumer_goes_back_to_the_leader_once_the_follower_it_reads_from_is_fenced() -> None:  # G15
    async def scene(planned: Planned) -> None:
        ticket = planned.state.ticket(ORDERS)
        assert ticket is not None
        planned.state.read_from(ticket, B, 1_000_000)
        planned.planner.update()
        assert planned.asked() == {B: 1}
        planned.cluster.is_follower_fenced = True
        await planned.metadata.refresh(["orders"])
        planned.planner.update()
        assert planned.asked() == {A: 1, B: 0}

    play(1, scene)


def test_brokers_that_have_not_changed_leave_every_partition_where_it_is_asked_for() -> None:  # G15
    async def scene(planned: Planned) -> None:
        ticket = planned.state.ticket(ORDERS)
        assert ticket is not None
        planned.state.read_from(ticket, B, 1_000_000)
        planned.planner.update()
        await asyncio.sleep(1)
        planned.state.changed.take()
        planned.planner.update()
        assert (planned.asked(), not planned.state.changed) == ({B: 1}, True)

    play(1, scene)
