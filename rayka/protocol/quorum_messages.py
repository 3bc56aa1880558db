"""Requests of the quorum: votes, begin and end of an epoch, snapshots, and changes of the voters.

Every answer names the leader and epoch that the answering replica knows, and the asking replica adopts a higher epoch
(A28). A node is reached by its id, so no request carries endpoints. Kafka: VoteRequest, BeginQuorumEpochRequest,
EndQuorumEpochRequest, FetchSnapshotRequest, DescribeQuorumRequest, AddRaftVoterRequest, RemoveRaftVoterRequest,
UpdateRaftVoterRequest (A16-A23, A49, A55-A60). ResignRequest is Rayka's own.
"""

from uuid import UUID

import msgspec
import numpy as np

from rayka.errors import ErrorCode
from rayka.ids import NO_EPOCH, NO_NODE, NO_OFFSET, ZERO_ID, OffsetAndEpoch, ReplicaKey
from rayka.ports import Message, Request
from rayka.protocol.wire import NO_BYTES


class QuorumAnswer(Message, frozen=True, array_like=True):
    """Begins answers: the leader and epoch that the receiver knows, and the result. It gets no new field: an answer
    gets new fields at its own end.
    """

    leader_id: int
    leader_epoch: int
    error_code: ErrorCode = ErrorCode.NONE


# ---- Elections -----------------------------------------------------------------------------------------------------


class VoteResponse(Message, frozen=True, array_like=True):
    """Grants or refuses a vote or a pre-vote."""

    leader_id: int
    leader_epoch: int
    is_granted: bool
    error_code: ErrorCode = ErrorCode.NONE


class VoteRequest(Request[VoteResponse], frozen=True, array_like=True):
    """Asks `voter` for its vote (A16)."""

    cluster_id: str
    # The candidate, or the prospective.
    replica: ReplicaKey
    replica_epoch: int
    voter: ReplicaKey
    # The end of the log of `replica`.
    last_epoch: int
    end_offset: int
    # A prospective asks whether it would get the vote.
    is_pre_vote: bool


class BeginQuorumEpochResponse(QuorumAnswer, frozen=True, array_like=True):
    """The leader and epoch that the receiver knows."""


class BeginQuorumEpochRequest(Request[BeginQuorumEpochResponse], frozen=True, array_like=True):
    """Announces a leader to a voter that does not fetch from it (A13, A21)."""

    cluster_id: str
    leader_id: int
    leader_epoch: int
    voter: ReplicaKey


class EndQuorumEpochResponse(QuorumAnswer, frozen=True, array_like=True):
    """The leader and epoch that the receiver knows."""


class EndQuorumEpochRequest(Request[EndQuorumEpochResponse], frozen=True, array_like=True):
    """Announces that a leader has resigned (A22)."""

    cluster_id: str
    leader_id: int
    leader_epoch: int
    # By descending fetch offset.
    preferred_successors: tuple[ReplicaKey, ...]


class ResignResponse(QuorumAnswer, frozen=True, array_like=True):
    """The leader and epoch that the receiver knows. NOT_LEADER_OR_FOLLOWER: the receiver does not lead the epoch of the
    request.
    """


class ResignRequest(Request[ResignResponse], frozen=True, array_like=True):
    """Asks the leader of an epoch to resign. Rayka's own: no request reaches Kafka's `RaftClient.resign`."""

    leader_epoch: int
    # Ids of the voters that are preferred as the next leader.
    successors: tuple[int, ...] = ()


# ---- Snapshots -----------------------------------------------------------------------------------------------------


class FetchSnapshotResponse(Message, frozen=True, array_like=True):
    """A part of a snapshot (A49)."""

    leader_id: int
    leader_epoch: int
    snapshot_id: OffsetAndEpoch
    error_code: ErrorCode = ErrorCode.NONE
    # Of the whole snapshot.
    size_bytes: int = 0
    # The position of `data` in the snapshot.
    position: int = 0
    data: np.ndarray = msgspec.field(default_factory=lambda: NO_BYTES)


class FetchSnapshotRequest(Request[FetchSnapshotResponse], frozen=True, array_like=True):
    """Reads a snapshot of the leader from a byte position on, for a replica, or an observer such as a broker."""

    cluster_id: str
    snapshot_id: OffsetAndEpoch
    position: int
    max_bytes: int
    replica_id: int = NO_NODE
    replica_directory_id: UUID = ZERO_ID
    current_leader_epoch: int = NO_EPOCH


# ---- The voters -----------------------------------------------------------------------------------------------------


class QuorumReplica(Message, frozen=True, array_like=True):
    """A voter or observer, as the leader knows it; -1: not known yet."""

    replica: ReplicaKey
    log_end_offset: int = NO_OFFSET
    last_fetch_ago_ms: int = -1
    last_caught_up_ago_ms: int = -1


class DescribeQuorumResponse(QuorumAnswer, frozen=True, array_like=True):
    """The quorum, as its leader knows it. Another node answers NOT_LEADER_OR_FOLLOWER with the leader that it knows."""

    high_watermark: int = NO_OFFSET
    voters: tuple[QuorumReplica, ...] = ()
    observers: tuple[QuorumReplica, ...] = ()


class DescribeQuorumRequest(Request[DescribeQuorumResponse], frozen=True, array_like=True):
    """Asks for the leader, the voters and the observers, and for the log end of each."""


class VoterChangeResponse(QuorumAnswer, frozen=True, array_like=True):
    """The result of a change of the voters."""

    error_message: str = ""


class AddRaftVoterRequest(Request[VoterChangeResponse], frozen=True, array_like=True):
    """Makes a caught-up observer a voter (A56, A60)."""

    cluster_id: str
    voter: ReplicaKey
    timeout_ms: int
    # False: answered as soon as the change is appended. A replica that adds itself fetches the change to commit it, so
    # it must not wait for the commit.
    ack_when_committed: bool = True


class RemoveRaftVoterRequest(Request[VoterChangeResponse], frozen=True, array_like=True):
    """Removes a replica from the voters; answered when the change is committed (A57)."""

    cluster_id: str
    voter: ReplicaKey
    timeout_ms: int


class UpdateRaftVoterRequest(Request[VoterChangeResponse], frozen=True, array_like=True):
    """Tells the leader the versions of `kraft.version` that a voter knows, if the log says otherwise (A58)."""

    cluster_id: str
    voter: ReplicaKey
    current_leader_epoch: int
    min_kraft_version: int
    max_kraft_version: int
