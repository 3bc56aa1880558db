"""The APIs by which replicas of one quorum talk to each other.

The core gives an answer at once, in an election. The answer leaves the node when an election at least as new is durable
(A8). Kafka: the part of `ControllerApis` that goes to
`RaftManager.handleRequest`.
"""

from collections.abc import Coroutine
from typing import Any, TypeVar

from rayka.clock import now_ms, now_s
from rayka.config.broker_config import BrokerConfig
from rayka.errors import ErrorCode, InconsistentClusterId, InvalidRequest
from rayka.ids import METADATA_TOPIC
from rayka.node.quorum_driver import QuorumDriver
from rayka.ports import Message, Request
from rayka.protocol.apis import api_of
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
    ResignRequest,
    ResignResponse,
    UpdateRaftVoterRequest,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from rayka.raft.leader import VoterChange

ResponseT = TypeVar("ResponseT", bound=Message)


class QuorumRequests:
    """A method for each API, request to response. The methods raise KafkaStorageError and BrokerNotAvailable when the
    replica ends while they wait.
    """

    def __init__(self, driver: QuorumDriver, config: BrokerConfig) -> None:
        self._driver = driver
        self._quorum = driver.quorum
        self._request_timeout_ms = config.controller_quorum_request_timeout_ms
        self._cluster_id = driver.directory.cluster_id

    def handle(self, request: Request[Any]) -> Coroutine[Any, Any, Any]:
        """Answers by the method of the API's name."""
        answering: Coroutine[Any, Any, Any] = getattr(self, api_of(request).name)(request)
        return answering

    async def vote(self, request: VoteRequest) -> VoteResponse:
        return await self._when_durable(self._quorum.elections.handle_vote(request, now_ms()))

    async def begin_quorum_epoch(self, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
        return await self._when_durable(self._quorum.elections.handle_begin_quorum_epoch(request, now_ms()))

    async def end_quorum_epoch(self, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
        return await self._when_durable(self._quorum.elections.handle_end_quorum_epoch(request, now_ms()))

    async def resign(self, request: ResignRequest) -> ResignResponse:
        """Ends the lead; a successor is elected after the answer. A repeated request ends no later epoch."""
        leads = self._quorum.leading_epoch == request.leader_epoch
        if leads:
            self._quorum.resign(now_ms(), request.successors)
        election = self._quorum.election
        error = ErrorCode.NONE if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return await self._when_durable(ResignResponse(election.leader_id, election.leader_epoch, error))

    async def fetch_snapshot(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        with self._driver.failing():
            response = self._quorum.leader_log.handle_fetch_snapshot(request, now_ms())
        return await self._when_durable(response)

    async def describe_quorum(self, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        return await self._when_durable(self._quorum.leader_log.handle_describe_quorum(now_ms()))

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        """Answers a replica that follows the log: when there is news for it, at the latest after the time that it gave
        (A32). Raises BrokerNotAvailable when the node stops during the wait (A28), InconsistentClusterId naming both
        clusters (A27).
        """
        if not request.is_of_metadata:
            found = f"{request.partitions!r:.500}"
            raise InvalidRequest(f"partitions: expected that of {METADATA_TOPIC} alone, found {found}")
        if request.cluster_id not in ("", self._cluster_id):
            raise InconsistentClusterId(
                f"node {request.replica_id} of cluster {request.cluster_id} fetches from cluster {self._cluster_id}; "
                "check the data directory that it was given"
            )
        deadline_s = now_s() + request.max_wait_ms / 1000
        while True:
            self._driver.check_open()
            may_wait = now_s() < deadline_s
            with self._driver.failing():
                result = self._quorum.leader_log.handle_fetch(request, now_ms=now_ms(), may_wait=may_wait)
            if result is not None:
                return await self._when_durable(FetchResponse((result,)))
            self._driver.wake()
            await self._driver.news.wait(deadline_s)

    async def add_raft_voter(self, request: AddRaftVoterRequest) -> VoterChangeResponse:
        change = self._quorum.changes.add_voter(request, now_ms())
        return await self._decided(change, request.timeout_ms)

    async def remove_raft_voter(self, request: RemoveRaftVoterRequest) -> VoterChangeResponse:
        change = self._quorum.changes.remove_voter(request)
        return await self._decided(change, request.timeout_ms)

    async def update_raft_voter(self, request: UpdateRaftVoterRequest) -> VoterChangeResponse:
        change = self._quorum.changes.update_voter(request)
        return await self._decided(change, self._request_timeout_ms)

    async def _decided(self, change: VoterChange, timeout_ms: int) -> VoterChangeResponse:
        """The outcome of a change, or REQUEST_TIMED_OUT: then it may still be made (A55)."""
        deadline_s = now_s() + timeout_ms / 1000
        self._driver.wake()
        while change.response is None and now_s() < deadline_s:
            await self._driver.news.wait(deadline_s)
            self._driver.check_open()
        if change.response is not None:
            return await self._when_durable(change.response)
        missing = self._driver.peers.commit_problem(now_ms()) or "it is not committed yet"
        leader_id, epoch = self._quorum.election.leader_id, self._quorum.election.leader_epoch
        return VoterChangeResponse(
            leader_id, epoch, ErrorCode.REQUEST_TIMED_OUT, f"in {timeout_ms} ms: {missing}"
        )

    async def _when_durable(self, response: ResponseT) -> ResponseT:
        """Returns the response once the election that it depends on is durable."""
        count = self._quorum.election_count
        self._driver.wake()
        while self._driver.durable_count < count:
            self._driver.check_open()
            await self._driver.news.wait(float("inf"))
        return response
