"""The APIs by which replicas of one quorum talk to each other, for a node to inherit: `QuorumRequests` answers them.

Kafka: the part of `ControllerApis` that goes to `RaftManager.handleRequest`.
"""

from abc import ABC, abstractmethod

from rayka.node.handlers.controller_requests import check_fetch
from rayka.node.quorum.quorum_requests import QuorumRequests
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
    def quorum_requests(self) -> QuorumRequests:
        """Those of the replica. Raises the ApiError that refuses a call while there is none."""

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        requests = self.quorum_requests()
        check_fetch(request, requests.cluster_id)
        return await requests.fetch(request)

    async def fetch_snapshot(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        return await self.quorum_requests().fetch_snapshot(request)

    async def vote(self, request: VoteRequest) -> VoteResponse:
        return await self.quorum_requests().vote(request)

    async def begin_quorum_epoch(self, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
        return await self.quorum_requests().begin_quorum_epoch(request)

    async def end_quorum_epoch(self, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
        return await self.quorum_requests().end_quorum_epoch(request)

    async def describe_quorum(self, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        return await self.quorum_requests().describe_quorum(request)

    async def add_raft_voter(self, request: AddRaftVoterRequest) -> VoterChangeResponse:
        return await self.quorum_requests().add_raft_voter(request)

    async def remove_raft_voter(self, request: RemoveRaftVoterRequest) -> VoterChangeResponse:
        return await self.quorum_requests().remove_raft_voter(request)

    async def update_raft_voter(self, request: UpdateRaftVoterRequest) -> VoterChangeResponse:
        return await self.quorum_requests().update_raft_voter(request)
