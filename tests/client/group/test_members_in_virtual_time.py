"""Members of a group on three brokers in virtual time: what a dead coordinator costs, when others rejoin (E1, E6)."""

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from rayka.client.consumer.consumer_coordinator import ConsumerCoordinator
from rayka.client.consumer.fetcher import Fetcher
from rayka.config.client_config import ConsumerConfig
from rayka.coordinator.group_shard import OFFSETS_TOPIC, partition_of_group
from rayka.ids import TopicIdPartition
from tests.testing.virtual import TOPIC, VirtualCluster, virtual_cluster

SESSION_MS, INTERVAL_MS, POLL_MS = 10_000, 3_000, 40_000
_PARTITIONS = 6


class VirtualMember:
    """A member whose application polls every 50 ms, unless it `is_idle`; `told` is what it was told, with the time."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.told: list[tuple[int, str]] = []
        self.is_idle = False
        self.is_dead = False
        self._cluster = cluster
        self.member: ConsumerCoordinator | None = None
        self.task = cluster.start(self._run())

    async def _run(self) -> None:
        options = {
            "group_id": "g",
            "session_timeout_ms": SESSION_MS,
            "max_poll_interval_ms": POLL_MS,
            "heartbeat_interval_ms": INTERVAL_MS,
            "partition_assignment_strategy": "range",
            "local_reads": False,
        }
        config = ConsumerConfig.parse(options, what="consumer")
        fetcher = Fetcher(self._cluster, config, Random(1))
        member = self.member = ConsumerCoordinator(config, fetcher)
        await member.subscribe((TOPIC,))
        while not self.is_dead:
            if not self.is_idle:
                member.polled_s = self._cluster.loop.time()
                if (ready := member.ready) is not None and await member.read(ready):
                    what = "lost" if ready.is_lost else "revoked" if ready.added is None else "assigned"
                    self.told.append((self._cluster.now_ms, what))
            await asyncio.sleep(0.05)
        for task in member.end():
            task.cancel()

    @property
    def is_settled(self) -> bool:
        return self.member is not None and self.member.is_settled

    @property
    def generation_id(self) -> int:
        assert self.member is not None
        return self.member.metadata.generation_id


@pytest.fixture
def cluster() -> Iterator[VirtualCluster]:
    options: dict[str, Any] = {"default_replication_factor": 3, "offsets_topic_num_partitions": _PARTITIONS}
    with virtual_cluster(**options) as made:
        yield made


def coordinator_id(cluster: VirtualCluster) -> int:
    image = cluster.sim.ledger.newest_image
    topic_id = image.topics[OFFSETS_TOPIC].topic_id
    state = image.partition(TopicIdPartition(topic_id, partition_of_group("g", _PARTITIONS)))
    assert state is not None
    return state.leader_id


def settled(cluster: VirtualCluster, count: int) -> list[VirtualMember]:
    members = [VirtualMember(cluster) for _ in range(count)]
    cluster.until(lambda: all(each.is_settled for each in members))
    cluster.go_on(INTERVAL_MS * 3)
    for each in members:
        each.told.clear()
    return members


def test_the_death_of_the_coordinator_is_no_rebalance(cluster: VirtualCluster) -> None:  # E1
    members = settled(cluster, 2)
    cluster.silence(coordinator_id(cluster))
    cluster.go_on(3 * SESSION_MS)
    assert [each.told for each in members] == [[], []]
    assert [each.generation_id for each in members] == [1, 1]


def test_a_member_that_is_gone_costs_the_others_its_session_and_a_heartbeat(
    cluster: VirtualCluster,
) -> None:  # E6
    first, second = settled(cluster, 2)
    second.is_dead = True
    died_ms = cluster.now_ms
    cluster.until(lambda: len(first.told) == 2 and first.is_settled)
    assert [what for _, what in first.told] == ["revoked", "assigned"]
    assert first.told[-1][0] - died_ms < SESSION_MS + INTERVAL_MS + 1_000


def test_a_new_member_becomes_known_with_the_next_heartbeat_and_soon_in_a_new_generation(
    cluster: VirtualCluster,
) -> None:  # E6 E8
    (first,) = settled(cluster, 1)
    began_ms = cluster.now_ms
    second = VirtualMember(cluster)
    cluster.until(lambda: first.is_settled and second.is_settled)
    assert cluster.now_ms - began_ms < INTERVAL_MS + 500
    began_ms = cluster.now_ms
    third = VirtualMember(cluster)
    cluster.until(lambda: all(each.is_settled for each in (first, second, third)))
    assert cluster.now_ms - began_ms < 1_000


def test_a_member_says_that_it_waits_for_one_that_does_not_poll(
    cluster: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "rayka.client")  # a virtual cluster is silent
    (first,) = settled(cluster, 1)
    first.is_idle = True
    second = VirtualMember(cluster)
    cluster.go_on(POLL_MS - 2 * INTERVAL_MS)
    assert not second.is_settled
    (said,) = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert said.startswith("group 'g': this consumer has waited 10 s for other members to join the rebalance")
    assert "one of a notebook cell that ran before" in said


def test_members_that_poll_say_nothing_of_their_rebalances(
    cluster: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "rayka.client")
    members = settled(cluster, 3)
    assert all(each.is_settled for each in members)
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == []


def test_a_member_whose_application_is_idle_leaves_when_the_time_is_up(
    cluster: VirtualCluster,
) -> None:  # E4 E6
    first, second = settled(cluster, 2)
    second.is_idle = True
    cluster.go_on(POLL_MS - 1_000)
    assert first.told == []
    cluster.go_on(INTERVAL_MS + 2_000)
    assert [what for _, what in first.told] == ["revoked", "assigned"]
    second.is_idle = False
    cluster.until(lambda: len(second.told) > 1 and second.is_settled)
    assert [what for _, what in second.told][:1] == ["lost"]
