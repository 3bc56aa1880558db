"""Groups on coordinators, in virtual time: placed there, handed over, lost and brought back (E1)."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from rayka.coordinator.group_shard import OFFSETS_TOPIC, partition_of_group
from rayka.errors import ErrorCode
from rayka.ids import Role
from rayka.metadata.image import PartitionImage
from rayka.protocol.groups import CommittedOffset
from rayka.protocol.membership import MetadataRequest, StatusRequest
from rayka.protocol.topics import AlterPartitionReassignmentsRequest, Reassignment
from tests.node.group_callers import (
    PARTITIONS,
    Caller,
    GroupMember,
    committed,
    leader_of_group,
    partition_of,
    settled,
)
from tests.node.log_support import until
from tests.testing.virtual import CONTROLLER, TOPIC, VirtualCluster

COORDINATORS = (1001, 1002)
SESSION_MS = 9_000


@pytest.fixture
def cluster() -> Iterator[VirtualCluster]:
    made = VirtualCluster(
        coordinators=2, default_replication_factor=3, offsets_topic_num_partitions=PARTITIONS
    )
    yield made
    made.sim.close()


def offsets_partitions(cluster: VirtualCluster) -> tuple[PartitionImage, ...]:
    return cluster.sim.ledger.newest_image.topics[OFFSETS_TOPIC].partitions


def restart(cluster: VirtualCluster, node_id: int) -> None:
    cluster.sim.cluster.start(node_id)
    cluster.until(lambda: cluster.sim.cluster.machines[node_id].is_serving)


async def go_on_in_one_generation(members: list[GroupMember], offset: int) -> None:
    """Heartbeats and commits of all members are taken, and none is told to join again."""
    for each in members:
        assert await each.heartbeat() is ErrorCode.NONE
        await each.commit(CommittedOffset(TOPIC, 0, offset))
    assert await committed(members[0]) == [offset]
    assert {each.generation_id for each in members} == {1}


def test_coordinators_lead_all_groups_and_brokers_hold_the_other_replicas(
    cluster: VirtualCluster,
) -> None:  # E1
    cluster.run(settled(cluster))
    partitions = offsets_partitions(cluster)
    assert Counter(each.leader_id for each in partitions) == {1001: 3, 1002: 3}
    assert all(set(each.replicas[:2]) == set(COORDINATORS) and each.replicas[2] < 1001 for each in partitions)


def test_a_coordinator_says_what_it_is(cluster: VirtualCluster) -> None:
    async def scenario() -> None:
        caller = Caller(cluster)
        assert (await caller.to(1001, StatusRequest())).roles == (Role.COORDINATOR,)
        assert (await caller.to(1, StatusRequest())).roles == (Role.BROKER,)
        metadata = await caller.to(CONTROLLER, MetadataRequest())
        assert {each.node_id: each.roles for each in metadata.brokers} == {
            **dict.fromkeys((1, 2, 3), (Role.BROKER,)),
            **dict.fromkeys(COORDINATORS, (Role.COORDINATOR,)),
        }

    cluster.run(scenario())


def test_any_node_names_the_coordinator(cluster: VirtualCluster) -> None:  # E1
    cluster.run(settled(cluster))
    cluster.go_on(500)

    async def scenario() -> None:
        caller = Caller(cluster)
        found = {await caller.coordinator("g", asked) for asked in (1, 2, 3, *COORDINATORS)}
        assert found == {leader_of_group(cluster)}

    cluster.run(scenario())


def test_a_coordinator_that_shuts_down_hands_its_groups_to_another_one(
    cluster: VirtualCluster,
) -> None:  # E1 H5
    members = cluster.run(settled(cluster))
    before = leader_of_group(cluster)
    cluster.sim.cluster.stop(before)
    cluster.until(lambda: leader_of_group(cluster) != before)
    cluster.run(go_on_in_one_generation(members, 3))
    assert leader_of_group(cluster) in COORDINATORS


def test_a_group_goes_on_at_another_coordinator_and_then_at_a_broker(cluster: VirtualCluster) -> None:  # E1
    members = cluster.run(settled(cluster))
    for offset, lost in enumerate((leader_of_group(cluster), *COORDINATORS)):
        cluster.sim.cluster.kill(lost)
        cluster.until(lambda lost=lost: leader_of_group(cluster) not in (lost, -1))  # type: ignore[misc]
        cluster.run(go_on_in_one_generation(members, offset))
    assert leader_of_group(cluster) in (1, 2, 3)


def test_a_coordinator_that_comes_back_leads_again_and_no_member_joins_again(
    cluster: VirtualCluster,
) -> None:  # E1 B46
    members = cluster.run(settled(cluster))
    preferred = partition_of(cluster).replicas[0]
    cluster.sim.cluster.kill(preferred)
    cluster.until(lambda: leader_of_group(cluster) not in (preferred, -1))
    restart(cluster, preferred)
    cluster.until(lambda: leader_of_group(cluster) == preferred)
    cluster.run(go_on_in_one_generation(members, 4))


def test_a_killed_coordinator_costs_a_heartbeat_the_time_until_it_is_fenced(
    cluster: VirtualCluster,
) -> None:  # E1
    members = cluster.run(settled(cluster))
    cluster.silence(leader_of_group(cluster))
    for each in members:
        each.timeout_ms = 1_000
    began_ms = cluster.now_ms
    cluster.run(go_on_in_one_generation(members, 5))
    assert cluster.now_ms - began_ms < SESSION_MS + SESSION_MS // 8 + 1_000


def test_members_whose_sessions_the_new_coordinator_does_not_know_of_have_a_whole_one(
    cluster: VirtualCluster,
) -> None:  # E6
    first, second = cluster.run(settled(cluster))
    cluster.sim.cluster.kill(leader_of_group(cluster))

    async def scenario() -> None:
        await first.heartbeat()
        await asyncio.sleep(8)  # of a session of 10 s
        assert await second.heartbeat() is ErrorCode.NONE

    cluster.run(scenario())


def test_coordinators_that_come_later_take_over_the_groups_without_a_rebalance() -> None:  # E1
    cluster = VirtualCluster(
        coordinators=2, default_replication_factor=3, offsets_topic_num_partitions=PARTITIONS
    )
    for each in COORDINATORS:
        cluster.sim.cluster.kill(each)
    cluster.until(
        lambda: all(cluster.sim.ledger.newest_image.brokers[each].is_fenced for each in COORDINATORS)
    )
    members = cluster.run(settled(cluster))
    assert leader_of_group(cluster) in (1, 2, 3)
    for each in COORDINATORS:
        restart(cluster, each)
    cluster.until(lambda: {each.leader_id for each in offsets_partitions(cluster)} == set(COORDINATORS))
    assert {tuple(sorted(each.replicas)[1:]) for each in offsets_partitions(cluster)} == {COORDINATORS}
    cluster.run(go_on_in_one_generation(members, 6))
    cluster.sim.close()


def test_a_coordinator_goes_on_when_another_replica_is_moved(cluster: VirtualCluster) -> None:
    """The end of a reassignment raises the leader epoch (B14): the groups notice nothing, for nothing is loaded."""
    first, _ = cluster.run(settled(cluster))
    number, before = partition_of_group("g", PARTITIONS), partition_of(cluster)
    broker = cluster.sim.cluster.machines[before.leader_id].broker
    assert broker is not None
    loaded = broker.shards.get(OFFSETS_TOPIC, number).shard

    async def move() -> None:
        """One member waits for the other to join while the last replica goes to another broker."""
        joining = asyncio.ensure_future(first.join())
        await asyncio.sleep(0.5)
        spare = min({1, 2, 3} - set(before.replicas))
        wanted = Reassignment(OFFSETS_TOPIC, number, (*before.replicas[:2], spare))
        await first.to(CONTROLLER, AlterPartitionReassignmentsRequest((wanted,)))
        await until(lambda: partition_of(cluster).replicas == wanted.replicas)
        await asyncio.sleep(0.5)
        assert not joining.done()
        joining.cancel()

    cluster.run(move())
    after = partition_of(cluster)
    assert (after.leader_id, after.leader_epoch) == (before.leader_id, before.leader_epoch + 1)
    assert broker.shards.get(OFFSETS_TOPIC, number).shard is loaded
    assert first.refusals == []
