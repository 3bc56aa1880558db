"""The quorum's own requests: votes, the beginning and end of an epoch, snapshots, and changes of the voters.

Every answer names the leader and epoch that the answering replica knows, and the asking replica adopts a higher epoch
from it (A28). A node is reached by its id, so no request carries endpoints. Kafka: VoteRequest,
BeginQuorumEpochRequest, EndQuorumEpochRequest, FetchSnapshotRequest, DescribeQuorumRequest, AddRaftVoterRequest,
RemoveRaftVoterRequest, UpdateRaftVoterRequest (A16-A23, A49, A55-A60). ResignRequest is Rayka's own.
"""

from uuid import UUID

import msgspec
import numpy as np

from rayka.errors import ErrorCode
from rayka.ids import NO_EPOCH, NO_NODE, NO_OFFSET, ZERO_ID, OffsetAndEpoch, ReplicaKey
from rayka.ports import Message, Request
from rayka.protocol.wire import NO_BYTES


class QuorumAnswer(Message, frozen=True, array_like=True):
    """What answers begin with: what the receiver knows of the epoch, and whether it did what was asked. It stays as it
    is: an answer gets new fields at its own end.
    """

    leader_id: int
    leader_epoch: int
    error_code: ErrorCode = ErrorCode.NONE


# ---- Elections -----------------------------------------------------------------------------------------------------


class VoteResponse(Message, frozen=True, array_like=True):
    """Whether the vote, or the pre-vote, was given."""

    leader_id: int
    leader_epoch: int
    is_granted: bool
    error_code: ErrorCode = ErrorCode.NONE


class VoteRequest(Request[VoteResponse], frozen=True, array_like=True):
    """A candidate asks `voter` for its vote in `replica_epoch`; a prospective, with `is_pre_vote`, whether it would get
    it (A16). `last_epoch` and `end_offset` say how far the candidate's log reaches.
    """

    cluster_id: str
    replica: ReplicaKey
    replica_epoch: int
    voter: ReplicaKey
    last_epoch: int
    end_offset: int
    is_pre_vote: bool


class BeginQuorumEpochResponse(QuorumAnswer, frozen=True, array_like=True):
    """What the receiver knows of the epoch."""


class BeginQuorumEpochRequest(Request[BeginQuorumEpochResponse], frozen=True, array_like=True):
    """A leader tells a voter that does not fetch from it that it leads (A13, A21)."""

    cluster_id: str
    leader_id: int
    leader_epoch: int
    voter: ReplicaKey


class EndQuorumEpochResponse(QuorumAnswer, frozen=True, array_like=True):
    """What the receiver knows of the epoch."""


class EndQuorumEpochRequest(Request[EndQuorumEpochResponse], frozen=True, array_like=True):
    """A leader has resigned; `preferred_successors` by descending fetch offset (A22)."""

    cluster_id: str
    leader_id: int
    leader_epoch: int
    preferred_successors: tuple[ReplicaKey, ...]


class ResignResponse(QuorumAnswer, frozen=True, array_like=True):
    """What the receiver knows of the epoch; NOT_LEADER_OR_FOLLOWER where it does not lead the one that was meant."""


class ResignRequest(Request[ResignResponse], frozen=True, array_like=True):
    """The leader of this epoch is to resign; of the voters these nodes should follow it before others. Rayka's own;
    Kafka's `RaftClient.resign`, which no request reaches.
    """

    leader_epoch: int
    successors: tuple[int, ...] = ()


# ---- Snapshots -----------------------------------------------------------------------------------------------------


class FetchSnapshotResponse(Message, frozen=True, array_like=True):
    """Part of a snapshot: `data` from the position asked for, of a file of `size_bytes` (A49)."""

    leader_id: int
    leader_epoch: int
    snapshot_id: OffsetAndEpoch
    error_code: ErrorCode = ErrorCode.NONE
    size_bytes: int = 0
    position: int = 0
    data: np.ndarray = msgspec.field(default_factory=lambda: NO_BYTES)


class FetchSnapshotRequest(Request[FetchSnapshotResponse], frozen=True, array_like=True):
    """A replica, or an observer such as a broker, reads a snapshot of the leader from a byte position on."""

    cluster_id: str
    snapshot_id: OffsetAndEpoch
    position: int
    max_bytes: int
    replica_id: int = NO_NODE
    replica_directory_id: UUID = ZERO_ID
    current_leader_epoch: int = NO_EPOCH


# ---- The voters -----------------------------------------------------------------------------------------------------


class QuorumReplica(Message, frozen=True, array_like=True):
    """A voter or observer as the leader knows it; -1 where it knows nothing yet. Times are milliseconds ago."""

    replica: ReplicaKey
    log_end_offset: int = NO_OFFSET
    last_fetch_ago_ms: int = -1
    last_caught_up_ago_ms: int = -1


class DescribeQuorumResponse(QuorumAnswer, frozen=True, array_like=True):
    """The quorum as its leader sees it. From another node NOT_LEADER_OR_FOLLOWER, with the leader it knows."""

    high_watermark: int = NO_OFFSET
    voters: tuple[QuorumReplica, ...] = ()
    observers: tuple[QuorumReplica, ...] = ()


class DescribeQuorumRequest(Request[DescribeQuorumResponse], frozen=True, array_like=True):
    """The leader, the voters and the observers, and how far each is."""


class VoterChangeResponse(QuorumAnswer, frozen=True, array_like=True):
    """The outcome of a change of the voters, with the leader that the answering node knows."""

    error_message: str = ""


class AddRaftVoterRequest(Request[VoterChangeResponse], frozen=True, array_like=True):
    """Makes a caught-up observer a voter; answered once that is committed, or as soon as it is appended, for a replica
    that adds itself must go on fetching to have it committed (A56, A60).
    """

    cluster_id: str
    voter: ReplicaKey
    timeout_ms: int
    ack_when_committed: bool = True


class RemoveRaftVoterRequest(Request[VoterChangeResponse], frozen=True, array_like=True):
    """Takes the vote from a replica; answered once that is committed (A57)."""

    cluster_id: str
    voter: ReplicaKey
    timeout_ms: int


class UpdateRaftVoterRequest(Request[VoterChangeResponse], frozen=True, array_like=True):
    """A voter tells the leader which versions of `kraft.version` it knows, when the log says otherwise (A58)."""

    cluster_id: str
    voter: ReplicaKey
    current_leader_epoch: int
    min_kraft_version: int
    max_kraft_version: int
