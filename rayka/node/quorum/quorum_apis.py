"""The APIs by which replicas of one quorum talk to each other, for a node to inherit: `QuorumLog` answers them.

Kafka: the part of `ControllerApis` that goes to `RaftManager.handleRequest`.
"""

from abc import ABC, abstractmethod
from typing import Any

from rayka.node.handlers.controller_requests import check_fetch
from rayka.node.quorum.quorum_log import QuorumLog
from rayka.protocol.fetch import FetchRequest, FetchResponse
from rayka.protocol.quorum_messages import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)


class QuorumApis(ABC):
    """A node with a replica of a quorum's log."""

    @abstractmethod
    def open_log(self) -> QuorumLog[Any]:
        """The replica. Raises the ApiError that refuses a call while there is none."""

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        log = self.open_log()
        check_fetch(request, log.cluster_id)
        return await log.fetch(request)

    async def fetch_snapshot(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        return await self.open_log().fetch_snapshot(request)

    async def vote(self, request: VoteRequest) -> VoteResponse:
        return await self.open_log().vote(request)

    async def begin_quorum_epoch(self, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
        return await self.open_log().begin_quorum_epoch(request)

    async def end_quorum_epoch(self, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
        return await self.open_log().end_quorum_epoch(request)

    async def describe_quorum(self, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        return await self.open_log().describe_quorum(request)

    async def add_raft_voter(self, request: AddRaftVoterRequest) -> VoterChangeResponse:
        return await self.open_log().add_raft_voter(request)

    async def remove_raft_voter(self, request: RemoveRaftVoterRequest) -> VoterChangeResponse:
        return await self.open_log().remove_raft_voter(request)

    async def update_raft_voter(self, request: UpdateRaftVoterRequest) -> VoterChangeResponse:
        return await self.open_log().update_raft_voter(request)
