"""Groups on real brokers, in virtual time: coordinators are found, members join, brokers die."""

import asyncio
from collections.abc import Iterator

import pytest

from rayka.coordinator.group_shard import OFFSETS_TOPIC, partition_of_group
from rayka.errors import CoordinatorLoadInProgress, ErrorCode, NotCoordinator
from rayka.ids import NO_NODE
from rayka.protocol.groups import (
    CommittedOffset,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupState,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    MemberAssignment,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from rayka.protocol.membership import MetadataRequest
from rayka.protocol.topics import DeleteTopicsRequest
from tests.node.group_callers import (
    PARTITIONS,
    Caller,
    GroupMember,
    committed,
    leader_of_group,
    partition_of,
    settled,
)
from tests.testing.virtual import CONTROLLER, REPLICAS, TOPIC, VirtualCluster


@pytest.fixture
def cluster() -> Iterator[VirtualCluster]:
    made = VirtualCluster(default_replication_factor=3, offsets_topic_num_partitions=PARTITIONS)
    yield made
    made.sim.close()


# ---- Coordinators ----------------------------------------------------------------------------------------------------


def test_the_first_one_that_looks_for_a_coordinator_makes_the_topic_and_all_brokers_name_the_same(
    cluster: VirtualCluster,
) -> None:  # E1
    async def scenario() -> None:
        callers = [Caller(cluster) for _ in range(6)]
        asked = [each.coordinator("g", REPLICAS[place % 3]) for place, each in enumerate(callers)]
        await asyncio.gather(*asked)
        (topic,) = (await callers[0].to(CONTROLLER, MetadataRequest((OFFSETS_TOPIC,)))).topics
        assert len(topic.partitions) == PARTITIONS
        assert {len(each.replicas) for each in topic.partitions} == {3}
        await asyncio.sleep(1)
        found = {await callers[0].coordinator("g", each) for each in REPLICAS}
        assert found == {topic.partitions[partition_of_group("g", PARTITIONS)].leader_id}

    cluster.run(scenario())


def test_a_broker_that_does_not_coordinate_the_group_says_so(cluster: VirtualCluster) -> None:  # E1
    async def scenario() -> None:
        caller = Caller(cluster)
        with pytest.raises(NotCoordinator, match="there is no __consumer_offsets yet"):
            await caller.to(1, OffsetFetchRequest("g"))
        await caller.ask(OffsetFetchRequest("g"))
        other = next(each for each in REPLICAS if each != leader_of_group(cluster))
        with pytest.raises(NotCoordinator, match="does not lead"):
            await caller.to(other, OffsetFetchRequest("g"))
        described = await caller.to(other, DescribeGroupsRequest(("g",)))
        assert described.groups[0].error_code is ErrorCode.NOT_COORDINATOR
        deleted = await caller.to(other, DeleteGroupsRequest(("g",)))
        assert deleted.groups[0].error_code is ErrorCode.NOT_COORDINATOR

    cluster.run(scenario())


# ---- Members ---------------------------------------------------------------------------------------------------------


def test_members_join_sync_commit_and_leave(cluster: VirtualCluster) -> None:  # E3 E5 E6 E10
    async def scenario() -> None:
        first, second = await settled(cluster)
        await first.commit(CommittedOffset("orders", 0, 7, leader_epoch=2))
        assert await committed(second) == [7]
        assert [await each.heartbeat() for each in (first, second)] == [ErrorCode.NONE] * 2
        await second.ask(LeaveGroupRequest("g", (LeavingMember(second.member_id),)))
        assert await first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        await first.enter()
        assert (first.generation_id, first.assignment) == (2, first.member_id.encode())

    cluster.run(scenario())


def test_assignments_may_be_larger_than_a_batch_of_other_topics_may(cluster: VirtualCluster) -> None:  # E5
    async def scenario() -> None:
        member = GroupMember(cluster)
        response = await member.join()
        assigned = (MemberAssignment(member.member_id, b"x" * 5_000_000),)
        await member.ask(SyncGroupRequest("g", response.generation_id, member.member_id, assigned))
        await asyncio.sleep(1)
        (described,) = (await member.ask(DescribeGroupsRequest(("g",)))).groups
        assert len(described.members[0].assignment) == 5_000_000

    cluster.run(scenario())


def test_what_was_committed_of_a_topic_goes_with_it(cluster: VirtualCluster) -> None:  # E17
    async def scenario() -> None:
        caller = Caller(cluster)
        offsets = (CommittedOffset(TOPIC, 0, 7), CommittedOffset("other", 0, 8))
        await caller.ask(OffsetCommitRequest("g", offsets))
        await caller.to(CONTROLLER, DeleteTopicsRequest((TOPIC,)))
        for _ in range(20):
            await asyncio.sleep(0.1)
            if await committed(caller) == [8]:
                return
        raise AssertionError("the offset is still there")

    cluster.run(scenario())


def test_a_member_that_dies_is_gone_after_its_session(cluster: VirtualCluster) -> None:  # E6
    async def scenario() -> None:
        first, _ = await settled(cluster)
        for _ in range(5):
            await asyncio.sleep(3)
            if await first.heartbeat() is not ErrorCode.NONE:
                break
        response = await first.join()
        assert [each.member_id for each in response.members] == [first.member_id]

    cluster.run(scenario())


def test_groups_are_listed_described_and_deleted(cluster: VirtualCluster) -> None:
    async def scenario() -> None:
        caller = Caller(cluster)
        for number in range(8):
            offsets = (CommittedOffset("orders", 0, number),)
            await caller.ask(OffsetCommitRequest(f"g{number}", offsets), f"g{number}")
        (member,) = await settled(cluster, 1)
        listed = [
            each for node_id in REPLICAS for each in (await caller.to(node_id, ListGroupsRequest())).groups
        ]
        assert sorted(each.group_id for each in listed) == ["g", *(f"g{number}" for number in range(8))]
        (described,) = (await caller.ask(DescribeGroupsRequest(("g",)))).groups
        assert (described.state, len(described.members)) == (GroupState.STABLE, 1)
        (refused,) = (await caller.ask(DeleteGroupsRequest(("g",)))).groups
        assert refused.error_code is ErrorCode.NON_EMPTY_GROUP
        await member.ask(LeaveGroupRequest("g", (LeavingMember(member.member_id),)))
        (deleted,) = (await caller.ask(DeleteGroupsRequest(("g",)))).groups
        assert deleted.error_code is ErrorCode.NONE

    cluster.run(scenario())


# ---- Coordinators that die -------------------------------------------------------------------------------------------


def test_when_the_coordinator_dies_the_generation_goes_on_at_another_one(
    cluster: VirtualCluster,
) -> None:  # E1
    members = cluster.run(settled(cluster))
    cluster.run(members[0].commit(*(CommittedOffset("orders", each, each) for each in range(1_000))))
    before = leader_of_group(cluster)
    cluster.sim.cluster.kill(before)

    async def scenario() -> None:
        assert [await each.heartbeat() for each in members] == [ErrorCode.NONE] * 2
        assert sorted(await committed(members[1])) == list(range(1_000))
        await members[0].commit(CommittedOffset("orders", 0, 5_000))
        assert max(await committed(members[1])) == 5_000
        assert {each.generation_id for each in members} == {1}

    cluster.run(scenario())
    assert leader_of_group(cluster) != before


def test_a_commit_that_was_meant_for_a_former_epoch_of_the_coordinator_changes_nothing(
    cluster: VirtualCluster,
) -> None:  # E10
    member = cluster.run(settled(cluster, 1))[0]
    before = leader_of_group(cluster)
    cluster.sim.cluster.kill(before)
    cluster.until(lambda: leader_of_group(cluster) not in (before, NO_NODE))

    async def scenario() -> None:
        assert await committed(member) == []
        asked = next(each for each in REPLICAS if each != before)
        (found,) = (await member.to(asked, FindCoordinatorRequest(("g",)))).coordinators
        epoch = partition_of(cluster).leader_epoch
        assert (found.node_id, found.leader_epoch) == (leader_of_group(cluster), epoch)
        commits = [
            OffsetCommitRequest(
                "g",
                (CommittedOffset("orders", 0, offset),),
                member.generation_id,
                member.member_id,
                coordinator_epoch=meant,
            )
            for offset, meant in ((7, epoch), (3, epoch - 1), (4, epoch + 1))
        ]
        together = (member.to(found.node_id, each) for each in commits)
        taken, *refused = await asyncio.gather(*together, return_exceptions=True)
        assert [each.error_code for each in taken.partitions] == [ErrorCode.NONE]
        assert [type(each) for each in refused] == [NotCoordinator, CoordinatorLoadInProgress]
        assert await committed(member) == [7]

    cluster.run(scenario())


def test_a_coordinator_that_shuts_down_hands_its_groups_over_without_a_rebalance(
    cluster: VirtualCluster,
) -> None:  # E1 H5
    members = cluster.run(settled(cluster))
    before = leader_of_group(cluster)
    cluster.sim.cluster.stop(before)
    cluster.until(lambda: leader_of_group(cluster) != before)

    async def scenario() -> None:
        assert [await each.heartbeat() for each in members] == [ErrorCode.NONE] * 2
        await members[0].commit(CommittedOffset("orders", 0, 3))

    cluster.run(scenario())


def test_members_that_wait_for_the_others_go_on_at_another_coordinator(cluster: VirtualCluster) -> None:  # E1
    first, second = cluster.run(settled(cluster))
    waiting = cluster.start(first.join())
    cluster.go_on(500)
    assert not waiting.done()
    cluster.sim.cluster.kill(leader_of_group(cluster))

    async def scenario() -> None:
        for _ in range(20):
            await asyncio.sleep(0.5)
            if await second.heartbeat() is not ErrorCode.NONE:
                break
        response, _ = await asyncio.gather(second.join(), waiting)
        assert response.generation_id == waiting.result().generation_id == 2

    cluster.run(scenario())
