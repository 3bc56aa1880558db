"""Changes of the voters, one at a time, effective when appended (A55-A60).

The leader's side checks a change and appends it. The other side is a follower that updates its entry, or joins by
itself. Kafka: `AddVoterHandler`, `RemoveVoterHandler`, `UpdateVoterHandler`,
`KafkaRaftClient.maybeSendAddOrRemove…`. Left out: an ApiVersions request to a new voter. The new voter has fetched this
log with its control records, so it is alive and knows them.
"""

from rayka.errors import ErrorCode, InvariantBroken
from rayka.ids import NO_NODE, NO_OFFSET, ZERO_ID, ReplicaKey
from rayka.ports import Message, Request
from rayka.protocol.quorum_messages import (
    AddRaftVoterRequest,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
    VoterChangeResponse,
)
from rayka.raft.control_records import VotersRecord
from rayka.raft.leader import FAR_MS, Leader, VoterChange
from rayka.raft.quorum_state import QuorumState
from rayka.raft.roles import Follower
from rayka.raft.voters import VersionRange, VoterSet

_Refusal = tuple[ErrorCode, str]


class VoterChanges:
    """The part of a quorum core that changes its voters."""

    def __init__(self, state: QuorumState) -> None:
        self._state = state

    # ---- On the leader -----------------------------------------------------------------------------------------------

    def add_voter(self, request: AddRaftVoterRequest, now_ms: int) -> VoterChange:
        """A56. Adds a voter that has caught up."""
        leader, voter = self._state.role, request.voter
        refusal = self._refusal(request.cluster_id)
        if refusal is not None:
            return self._refuse(*refusal)
        assert isinstance(leader, Leader)
        if voter.directory_id == ZERO_ID:
            message = f"node {voter.node_id} names no directory, as brokers do: it cannot vote"
            return self._refuse(ErrorCode.INVALID_REQUEST, message)
        present = self._state.known_voters.with_id(voter.node_id)
        if present is not None:
            message = f"node {voter.node_id} votes already, as {_name(present)}"
            return self._refuse(ErrorCode.DUPLICATE_VOTER, message)
        if not leader.is_caught_up(voter, now_ms):
            message = (
                f"{_name(voter)} does not follow the log, or is not caught up yet; start it, and try again"
            )
            return self._refuse(ErrorCode.REQUEST_TIMED_OUT, message)
        change = self._append(self._state.known_voters.with_voter(voter))
        if not request.ack_when_committed:
            change.response = self._response()
        return change

    def remove_voter(self, request: RemoveRaftVoterRequest) -> VoterChange:
        """A57. Removes a voter, but not the last one."""
        refusal = self._refusal(request.cluster_id)
        if refusal is not None:
            return self._refuse(*refusal)
        voters = self._state.known_voters
        remaining = voters.without_voter(request.voter)
        if remaining is None:
            others = ", ".join(_name(each) for each in voters.voters)
            reason = (
                "it is the last one" if request.voter in voters else f"it does not vote; voters: {others}"
            )
            return self._refuse(
                ErrorCode.VOTER_NOT_FOUND, f"{_name(request.voter)} cannot be removed: {reason}"
            )
        return self._append(remaining)

    def update_voter(self, request: UpdateRaftVoterRequest) -> VoterChange:
        """A58. Changes the supported versions of a voter.

        The response does not wait for the commit: the asking voter must fetch, or the change would never be committed.
        """
        versions = VersionRange(request.min_kraft_version, request.max_kraft_version)
        refusal = self._refusal(request.cluster_id, request.current_leader_epoch)
        if refusal is not None:
            return self._refuse(*refusal)
        voters, finalised = self._state.known_voters, self._state.log.history.kraft_version
        if request.voter not in voters:
            return self._refuse(ErrorCode.VOTER_NOT_FOUND, f"{_name(request.voter)} does not vote")
        if finalised not in versions:
            message = f"{_name(request.voter)} does not know kraft.version {finalised}"
            return self._refuse(ErrorCode.INVALID_REQUEST, message)
        updated = voters.with_kraft_versions(request.voter, versions)
        change = VoterChange() if updated == voters else self._append(updated)
        change.response = self._response()
        return change

    def _refusal(self, cluster_id: str, leader_epoch: int | None = None) -> _Refusal | None:
        """The error for any change at this time; None if a change is possible (A55)."""
        state, role = self._state, self._state.role
        if cluster_id != state.cluster_id:
            return ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {state.cluster_id}, not {cluster_id}"
        if leader_epoch is not None and leader_epoch != state.epoch:
            is_behind = leader_epoch < state.epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if is_behind else ErrorCode.UNKNOWN_LEADER_EPOCH
            return code, f"the epoch is {state.epoch}, not {leader_epoch}"
        if not isinstance(role, Leader):
            is_known = state.leader_id != NO_NODE
            leader = f"node {state.leader_id} does" if is_known else "no leader is known; try again"
            message = f"node {state.local.node_id} does not lead; {leader}"
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, message
        if role.high_watermark == NO_OFFSET:
            return ErrorCode.REQUEST_TIMED_OUT, "the leader has not committed anything yet; try again"
        if state.log.history.kraft_version < 1:
            return ErrorCode.UNSUPPORTED_VERSION, "the voters are fixed while kraft.version is below 1"
        if role.change is not None or state.log.history.voters_offset >= role.high_watermark:
            return ErrorCode.REQUEST_TIMED_OUT, "another change of the voters is not committed yet; try again"
        return None

    def _append(self, voters: VoterSet) -> VoterChange:
        leader = self._state.role
        assert isinstance(leader, Leader)
        if not self._state.known_voters.has_overlapping_majority(voters):
            raise InvariantBroken(f"{self._state!r}: {voters!r} at once")
        leader.change = VoterChange(offset=leader.accumulator.append_control([VotersRecord(voters)]))
        return leader.change

    def _refuse(self, error_code: ErrorCode, message: str) -> VoterChange:
        return VoterChange(self._response(error_code, message))

    def _response(self, error_code: ErrorCode = ErrorCode.NONE, message: str = "") -> VoterChangeResponse:
        return VoterChangeResponse(self._state.leader_id, self._state.epoch, error_code, message)

    def on_high_watermark(self, now_ms: int) -> None:
        """Ends a change that is committed. A leader that no longer votes resigns then (A57)."""
        state, leader = self._state, self._state.role
        assert isinstance(leader, Leader)
        change = leader.change
        if change is not None and change.offset < leader.high_watermark:
            leader.change = None
            change.response = change.response or self._response()
        if not state.is_voter and state.log.history.voters_offset < leader.high_watermark:
            state.become_resigned(now_ms)

    # ---- On a follower -----------------------------------------------------------------------------------------------

    def deadline_ms(self) -> int:
        """The time at which the follower next asks for a change of its entry."""
        role = self._state.role
        return role.next_voter_request_ms if isinstance(role, Follower) and self._wants_change() else FAR_MS

    def targets(self, now_ms: int) -> list[int]:
        """The leader, if this node asks it for a change of its entry now."""
        role = self._state.role
        if isinstance(role, Follower) and role.next_voter_request_ms <= now_ms and self._wants_change():
            return [role.leader_id]
        return []

    def _wants_change(self) -> bool:
        state, voters = self._state, self._state.voters
        if voters is None or state.log.history.kraft_version < 1:
            return False
        if state.local in voters:
            return voters.kraft_versions_of(state.local) != state.config.kraft_versions
        return state.config.auto_join

    def request_to(self, node_id: int, now_ms: int) -> Request[Message]:
        """The request for this node's entry: A58 for a voter, A60 for a node that joins by itself.

        A node with a wiped disk first removes its former entry.
        """
        state, role, voters = self._state, self._state.role, self._state.known_voters
        assert isinstance(role, Follower)
        role.next_voter_request_ms = now_ms + state.config.fetch_timeout_ms
        cluster_id, local, timeout_ms = state.cluster_id, state.local, state.config.request_timeout_ms
        if local in voters:
            versions = state.config.kraft_versions
            return UpdateRaftVoterRequest(cluster_id, local, state.epoch, versions.lowest, versions.highest)
        former = voters.with_id(local.node_id)
        if former is not None:
            return RemoveRaftVoterRequest(cluster_id, former, timeout_ms)
        return AddRaftVoterRequest(cluster_id, local, timeout_ms, ack_when_committed=False)


def _name(voter: ReplicaKey) -> str:
    return f"node {voter.node_id} with directory {voter.directory_id}"
