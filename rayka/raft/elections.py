"""Elections: timers, votes, and the begin and end of a leadership (A10-A14, A16-A23).

`poll` turns timers that are due into changes of role. `targets` names the replicas that the role has a request for, and
`request_to` makes the request. Kafka: the election half of `KafkaRaftClient`.
"""

from rayka.errors import ErrorCode, InvariantBroken
from rayka.ids import NO_NODE, ReplicaKey
from rayka.ports import Message, Request
from rayka.protocol.quorum_messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    VoteRequest,
    VoteResponse,
)
from rayka.raft.election_state import EPOCH_MAX, Elector, LogPosition, can_grant_vote
from rayka.raft.leader import FAR_MS, Leader
from rayka.raft.quorum_state import QuorumState
from rayka.raft.roles import Candidate, Follower, Prospective, Resigned


class QuorumElections:
    """The part of a quorum core that elects."""

    def __init__(self, state: QuorumState) -> None:
        self._state = state

    # ---- Timers ------------------------------------------------------------------------------------------------------

    def deadline_ms(self) -> int:
        """The time of the next timer, if nothing else happens."""
        state, role = self._state, self._state.role
        if isinstance(role, Leader):
            return role.check_quorum_deadline_ms
        # A log that is about to restart at a snapshot or to be truncated must not win an election.
        is_truncating = isinstance(role, Follower) and role.truncation is not None
        if state.is_shutting_down or state.finished_download is not None or is_truncating:
            return FAR_MS
        if isinstance(role, Resigned):
            return role.election_deadline_ms
        if not state.is_voter:
            return FAR_MS
        return role.fetch_deadline_ms if isinstance(role, Follower) else role.election_deadline_ms

    def poll(self, now_ms: int) -> None:
        """Runs the timers that are due. A replica that shuts down stands for no election (A23)."""
        state = self._state
        while self.deadline_ms() <= now_ms:
            role = state.role
            if isinstance(role, Leader):
                # A12: no majority has fetched.
                state.become_resigned(now_ms)
            elif isinstance(role, Prospective):
                self._on_election_lost(now_ms)
            elif isinstance(role, Resigned) and not state.is_only_voter:
                # A22
                state.become_unattached(state.epoch + 1, now_ms)
            else:
                state.become_prospective(now_ms)

    def _on_election_lost(self, now_ms: int) -> None:
        """A2. Returns to the last leader, if one is known: the others may still follow it."""
        state = self._state
        if state.leader_id == NO_NODE:
            state.become_unattached(state.epoch, now_ms)
        else:
            state.become_follower(state.leader_id, state.epoch, now_ms)

    # ---- Requests ----------------------------------------------------------------------------------------------------

    def targets(self, now_ms: int) -> list[int]:
        """The node ids of the replicas that the role has a request for now."""
        role = self._state.role
        if isinstance(role, Prospective | Candidate):
            return [voter.node_id for voter in role.tally.unanswered]
        if isinstance(role, Leader):
            return [voter.node_id for voter in role.voters_to_remind(now_ms)]
        if isinstance(role, Resigned):
            return role.unacknowledged
        return []

    def request_to(self, node_id: int, now_ms: int) -> Request[Message]:
        """The request to one of the targets."""
        state, role = self._state, self._state.role
        if isinstance(role, Resigned):
            return EndQuorumEpochRequest(
                state.cluster_id, state.local.node_id, state.epoch, role.preferred_successors
            )
        voters = state.voters
        voter = voters.with_id(node_id) if voters is not None else None
        if voter is None:
            raise InvariantBroken(f"{state!r}: node {node_id} does not vote")
        if isinstance(role, Leader):
            role.on_reminded(voter, now_ms)
            return BeginQuorumEpochRequest(state.cluster_id, state.local.node_id, state.epoch, voter)
        return VoteRequest(
            cluster_id=state.cluster_id,
            replica=state.local,
            replica_epoch=state.epoch,
            voter=voter,
            last_epoch=state.log.position.last_epoch,
            end_offset=state.log.position.end_offset,
            is_pre_vote=isinstance(role, Prospective),
        )

    # ---- Votes -------------------------------------------------------------------------------------------------------

    def handle_vote(self, request: VoteRequest, now_ms: int) -> VoteResponse:
        """Decides on a vote. A vote that is given is durable before the response may be sent (A8)."""
        error = self._vote_error(request)
        if error is not ErrorCode.NONE:
            return self._vote_response(error_code=error)
        state = self._state
        if request.replica_epoch > state.epoch:
            state.become_unattached(request.replica_epoch, now_ms)
        if request.voter != state.local:
            return self._vote_response(error_code=ErrorCode.INVALID_VOTER_KEY)
        role = state.role
        elector = Elector(
            role=type(role).__name__,
            has_leader=state.leader_id != NO_NODE,
            has_fetched_from_leader=isinstance(role, Follower) and role.has_fetched_from_leader,
            voted_key=state.election.voted_key,
            position=state.log.position,
        )
        is_granted = can_grant_vote(
            elector,
            request.replica,
            LogPosition(request.last_epoch, request.end_offset),
            is_pre_vote=request.is_pre_vote,
        )
        if is_granted and not request.is_pre_vote:
            state.give_vote(request.replica, now_ms)
        return self._vote_response(is_granted=is_granted)

    def _vote_error(self, request: VoteRequest) -> ErrorCode:
        """A17. Checks the request, in the order of the rule."""
        if request.cluster_id != self._state.cluster_id:
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        newest_allowed = request.replica_epoch if request.is_pre_vote else request.replica_epoch - 1
        is_possible = request.end_offset >= 0 and 0 <= request.last_epoch <= newest_allowed
        if not is_possible or request.replica_epoch > EPOCH_MAX:
            return ErrorCode.INVALID_REQUEST
        if request.replica_epoch < self._state.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE

    def _vote_response(
        self, *, is_granted: bool = False, error_code: ErrorCode = ErrorCode.NONE
    ) -> VoteResponse:
        state = self._state
        return VoteResponse(state.leader_id, state.epoch, is_granted, error_code)

    def on_vote(self, request: VoteRequest, response: VoteResponse, now_ms: int) -> None:
        """Takes the answer of a voter in this election (A20)."""
        role = self._state.role
        if not isinstance(role, Prospective | Candidate):
            return
        if response.error_code is ErrorCode.UNSUPPORTED_VERSION and isinstance(role, Prospective):
            self._state.become_candidate(now_ms)
        elif response.error_code in (ErrorCode.NONE, ErrorCode.INVALID_VOTER_KEY):
            role.tally.record(request.voter, is_granted=response.is_granted)
            if isinstance(role, Candidate):
                # A candidate that has lost waits for its election timeout (A2).
                self._state.maybe_become_leader(now_ms)
            elif role.tally.is_won:
                self._state.become_candidate(now_ms)
            elif role.tally.is_lost:
                self._on_election_lost(now_ms)
        else:
            self._state.request_manager.back_off(request.voter.node_id, now_ms)

    # ---- Begin and end of an epoch -----------------------------------------------------------------------------------

    def handle_begin_quorum_epoch(
        self, request: BeginQuorumEpochRequest, now_ms: int
    ) -> BeginQuorumEpochResponse:
        """Follows a new leader that asks for it (A21)."""
        state = self._state
        error = self._leader_error(request.cluster_id, request.leader_id, request.leader_epoch)
        if error is ErrorCode.NONE:
            state.learn(request.leader_id, request.leader_epoch, now_ms)
            if request.voter != state.local:
                error = ErrorCode.INVALID_VOTER_KEY
            elif isinstance(state.role, Follower):
                # A11
                state.role.fetch_deadline_ms = now_ms + state.config.fetch_timeout_ms
        return BeginQuorumEpochResponse(state.leader_id, state.epoch, error)

    def handle_end_quorum_epoch(self, request: EndQuorumEpochRequest, now_ms: int) -> EndQuorumEpochResponse:
        """Shortens the fetch timeout after the resignation of a leader, so that its preferred successor becomes a
        candidate first (A14, A22).
        """
        state = self._state
        error = self._leader_error(request.cluster_id, request.leader_id, request.leader_epoch)
        if error is ErrorCode.NONE:
            state.learn(request.leader_id, request.leader_epoch, now_ms)
            if isinstance(state.role, Follower):
                backoff_ms = end_epoch_backoff_ms(
                    request.preferred_successors, state.local, state.config.election_backoff_max_ms
                )
                # min: a second EndQuorumEpoch must not put the election off.
                state.role.fetch_deadline_ms = min(state.role.fetch_deadline_ms, now_ms + backoff_ms)
        return EndQuorumEpochResponse(state.leader_id, state.epoch, error)

    def _leader_error(self, cluster_id: str, leader_id: int, epoch: int) -> ErrorCode:
        state = self._state
        if cluster_id != state.cluster_id:
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if leader_id < 0 or not 0 <= epoch <= EPOCH_MAX:
            return ErrorCode.INVALID_REQUEST
        if epoch < state.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        is_another = epoch == state.epoch and state.leader_id not in (NO_NODE, leader_id)
        # A21
        if leader_id == state.local.node_id or is_another:
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def on_end_quorum_epoch(self, node_id: int, response: EndQuorumEpochResponse, now_ms: int) -> None:
        """Takes the answer of a voter to this node's resignation."""
        role = self._state.role
        if isinstance(role, Resigned) and response.error_code is ErrorCode.NONE:
            role.on_acknowledged(node_id)
        else:
            self._state.request_manager.back_off(node_id, now_ms)


def end_epoch_backoff_ms(successors: tuple[ReplicaKey, ...], local: ReplicaKey, max_ms: int) -> int:
    """The time that a voter leaves to the voters before it in the leader's list; each place doubles it (A14)."""
    if local not in successors:
        return max_ms
    place = successors.index(local)
    return 0 if place == 0 else min(max_ms, (max_ms >> (len(successors) - 1)) << (place - 1))
