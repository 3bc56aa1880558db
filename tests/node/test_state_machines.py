"""One state machine on every kind of replicated log: what a coordinator may rely on wherever it is hosted.

Kafka: `CoordinatorRuntimeTest`, `CoordinatorLoaderImplTest`.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from rayka.errors import BrokerNotAvailable, InvalidRequest, NotLeaderOrFollower
from rayka.sim.registers import Get, Put, Register
from tests.node.log_support import until
from tests.node.state_machine_support import Cluster, OnPartition, OnQuorum, active, active_shard, ask


@pytest.fixture(params=[OnQuorum, OnPartition], ids=["quorum", "partition"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made: Cluster = request.param()
    yield made
    made.close()


def run(cluster: Cluster, scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await cluster.start()
            await scenario

    cluster.run(bounded())


def test_what_was_acknowledged_is_there_for_the_next_leader(cluster: Cluster) -> None:  # A41, A66
    async def scenario() -> None:
        versions = [await ask(cluster, Put("a", str(number))) for number in range(3)]
        assert versions == [1, 2, 3]
        cluster.kill(await active(cluster))
        assert await ask(cluster, Get("a")) == Register("2", 3)
        assert await ask(cluster, Put("a", "later")) == 4

    run(cluster, scenario())


def test_every_replica_makes_the_same_of_the_records(cluster: Cluster) -> None:
    async def scenario() -> None:
        for number in range(30):
            await ask(cluster, Put(f"key-{number % 4}", str(number)))
        states = [shard.shard.registers for shard in cluster.shards().values()]
        await until(lambda: all(len(each) == 4 and each == states[0] for each in states))
        assert states[0]["key-1"] == Register("29", 8)

    run(cluster, scenario())


def test_a_replica_that_comes_back_loads_what_was_committed_meanwhile(cluster: Cluster) -> None:
    async def scenario() -> None:
        await ask(cluster, Put("a", "1"))
        leader = await active(cluster)
        other = next(each for each in cluster.shards() if each != leader)
        cluster.kill(other)
        for number in range(50):
            await ask(cluster, Put("a", f"{number:50}"))
        await cluster.restart(other)
        await until(lambda: other in cluster.shards())
        await until(lambda: cluster.shards()[other].shard.registers.get("a") == Register(f"{49:50}", 51))

    run(cluster, scenario())


def test_a_replica_that_does_not_lead_says_so_with_the_error_of_the_shard(cluster: Cluster) -> None:
    async def scenario() -> None:
        leader = await active(cluster)
        other = next(shard for node_id, shard in cluster.shards().items() if node_id != leader)
        with pytest.raises(NotLeaderOrFollower, match="does not lead"):
            await other.submit(Get("a"))

    run(cluster, scenario())


def test_a_request_that_is_refused_writes_nothing(cluster: Cluster) -> None:
    async def scenario() -> None:
        shard = await active_shard(cluster)
        before = shard.replayed_offset
        with pytest.raises(InvalidRequest, match="expected a value"):
            await shard.submit(Put("a", ""))
        assert await shard.submit(Get("a")) is None
        assert shard.replayed_offset in (before, before + 1)  # the quorum's own record, if any

    run(cluster, scenario())


def test_a_timer_deletes_a_key_by_a_record_without_a_value(cluster: Cluster) -> None:
    async def scenario() -> None:
        await ask(cluster, Put("a", "1", lease_ms=400))
        await asyncio.sleep(0.3)
        assert await ask(cluster, Get("a")) == Register("1", 1, 400)
        await asyncio.sleep(0.2)
        assert await ask(cluster, Get("a")) is None
        await until(lambda: not any(each.shard.registers for each in cluster.shards().values()))

    run(cluster, scenario())


def test_a_new_leader_goes_on_with_the_timers(cluster: Cluster) -> None:
    async def scenario() -> None:
        await ask(cluster, Put("a", "1", lease_ms=400))
        cluster.kill(await active(cluster))
        assert await ask(cluster, Get("a")) == Register("1", 1, 400)
        await asyncio.sleep(0.5)
        assert await ask(cluster, Get("a")) is None

    run(cluster, scenario())


def test_callers_that_wait_are_told_when_the_leader_can_commit_nothing_any_more(
    cluster: Cluster,
) -> None:  # A66
    async def scenario() -> None:
        await ask(cluster, Put("a", "1"))
        leader = await active(cluster)
        shard = cluster.shards()[leader]
        waiting = asyncio.ensure_future(shard.submit(Put("a", "2")))
        for node_id in list(cluster.shards()):
            if node_id != leader:
                cluster.kill(node_id)
        await asyncio.wait([waiting])
        error = waiting.exception()
        assert error is None or getattr(error, "retriable", False), error

    run(cluster, scenario())


def test_a_shard_on_a_quorum_begins_with_the_newest_snapshot() -> None:  # A46
    cluster = OnQuorum()

    async def scenario() -> None:
        for number in range(60):
            await ask(cluster, Put(f"key-{number % 3}", str(number)))
        await until(lambda: min(cluster.snapshot_ends) > 0)
        node_id = next(iter(cluster.shards()))
        expected = dict((await active_shard(cluster)).shard.registers)
        cluster.kill(node_id)
        await cluster.restart(node_id)
        await until(lambda: cluster.shards()[node_id].shard.registers == expected)

    try:
        run(cluster, scenario())
    finally:
        cluster.close()


def test_a_partition_that_is_not_loaded_yet_is_not_available() -> None:
    cluster = OnPartition()

    async def scenario() -> None:
        await ask(cluster, Put("a", "1"))
        leader = await active(cluster)
        shard = cluster.shards()[leader]
        partition = cluster.partition_on(leader)
        partition.as_leader().epoch_start_offset = (
            partition.high_watermark + 1
        )  # as if it had just been elected
        shard.end(shard.not_here("leads no more"))
        with pytest.raises(BrokerNotAvailable, match="leads, and has yet to load"):
            await shard.submit(Get("a"))

    try:
        run(cluster, scenario())
    finally:
        cluster.close()
