"""Callers and members of groups in virtual time, which find coordinators as a client does."""

import asyncio
from typing import Any

from rayka.coordinator.group_shard import OFFSETS_TOPIC, partition_of_group
from rayka.errors import ApiError, ErrorCode, RetriableApiError
from rayka.ids import TopicIdPartition
from rayka.metadata.image import PartitionImage
from rayka.ports import Request
from rayka.protocol.groups import (
    CommittedOffset,
    FindCoordinatorRequest,
    GroupHeartbeatRequest,
    JoinGroupResponse,
    MemberAssignment,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tests.coordinator.group_support import join_request
from tests.testing.virtual import REPLICAS, VirtualCluster

TIMEOUT_MS = 100_000
PARTITIONS = 6


class Caller:
    """Finds the coordinator of a group and asks it, as long as the error says that this may help."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self._network = cluster.network()
        self.refusals: list[ErrorCode] = []
        self.timeout_ms = TIMEOUT_MS

    async def to(self, node_id: int, request: Request[Any]) -> Any:
        return await self._network.call(node_id, request, self.timeout_ms)

    async def coordinator(self, group_id: str, asked: int = 1) -> int:
        response = await self.to(asked, FindCoordinatorRequest((group_id,)))
        (found,) = response.coordinators
        assert found.error_code in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE), found
        return int(found.node_id)

    async def ask(self, request: Any, group_id: str = "g") -> Any:
        for turn in range(1_000):
            try:
                node_id = await self.coordinator(group_id, REPLICAS[turn % 3])
                if node_id >= 0:
                    return await self.to(node_id, request)
            except ApiError as error:
                if not isinstance(error, RetriableApiError):
                    raise
                self.refusals.append(error.code)
            await asyncio.sleep(0.05)
        raise AssertionError(f"{request} was never answered: {self.refusals[-10:]}")


class GroupMember(Caller):
    """One member, which assigns each member's id to it where it leads."""

    def __init__(self, cluster: VirtualCluster) -> None:
        super().__init__(cluster)
        self.member_id, self.generation_id, self.assignment = "", -1, b""

    async def join(self) -> JoinGroupResponse:
        while True:
            response: JoinGroupResponse = await self.ask(join_request(self.member_id))
            self.member_id = response.member_id
            if response.error_code is not ErrorCode.MEMBER_ID_REQUIRED:
                self.generation_id = response.generation_id
                return response

    async def sync(self, response: JoinGroupResponse) -> None:
        assigned = tuple(
            MemberAssignment(each.member_id, each.member_id.encode()) for each in response.members
        )
        request = SyncGroupRequest("g", self.generation_id, self.member_id, assigned)
        self.assignment = (await self.ask(request)).assignment

    async def enter(self) -> None:
        await self.sync(await self.join())

    async def heartbeat(self) -> ErrorCode:
        request = GroupHeartbeatRequest("g", self.generation_id, self.member_id)
        return ErrorCode((await self.ask(request)).error_code)

    async def commit(self, *offsets: CommittedOffset) -> None:
        request = OffsetCommitRequest("g", offsets, self.generation_id, self.member_id)
        response = await self.ask(request)
        assert {each.error_code for each in response.partitions} == {ErrorCode.NONE}


async def settled(cluster: VirtualCluster, count: int = 2) -> list[GroupMember]:
    members = [GroupMember(cluster) for _ in range(count)]
    await asyncio.gather(*(each.enter() for each in members))
    assert [each.assignment.decode() for each in members] == [each.member_id for each in members]
    return members


async def committed(caller: Caller) -> list[int]:
    response = await caller.ask(OffsetFetchRequest("g"))
    return [each.offset for each in response.partitions]


def partition_of(cluster: VirtualCluster) -> PartitionImage:
    """That of the group, as committed."""
    image = cluster.sim.ledger.newest_image
    topic = image.topics[OFFSETS_TOPIC]
    state = image.partition(TopicIdPartition(topic.topic_id, partition_of_group("g", PARTITIONS)))
    assert state is not None
    return state


def leader_of_group(cluster: VirtualCluster) -> int:
    return partition_of(cluster).leader_id
