"""The election that a voter remembers, the file `quorum-state` that holds it, and the decision on a vote (A7, A8,
A16-A20).

The file is one JSON object of `data_version` 1. The driver replaces the file durably before the replica acts on the
state: a voter that forgot its vote could vote twice in one epoch. Without a file the replica is new, at epoch 0 (A9).
With a damaged file the driver does not start, because this replica may have voted; Kafka would start at epoch 0. Kafka:
`ElectionState`, `FileQuorumStateStore`, `QuorumState.canGrantVote`, `EpochElection`.
"""

from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

from rayka.ids import NO_NODE, ZERO_ID, ReplicaKey
from rayka.raft.voters import VoterSet

QUORUM_STATE_FILE = "quorum-state"
# The latest epoch that another node may name: the next one is the last that the header of a batch holds.
EPOCH_MAX = 2**31 - 2
_NO_VOTE = ReplicaKey(NO_NODE, ZERO_ID)


class ElectionState(msgspec.Struct, frozen=True):
    """The newest known epoch with its leader and the vote of this replica in it."""

    leader_epoch: int = 0
    # NO_NODE while the leader is unknown.
    leader_id: int = NO_NODE
    # None: this replica has not voted in the epoch.
    voted_key: ReplicaKey | None = None

    def __repr__(self) -> str:
        vote = self.voted_key.node_id if self.voted_key else NO_NODE
        return f"<ElectionState epoch={self.leader_epoch} leader={self.leader_id} voted={vote}>"


class _File(msgspec.Struct, frozen=True, rename="camel"):
    leader_id: int
    leader_epoch: int
    voted_id: int
    voted_directory_id: UUID
    data_version: Literal[1] = msgspec.field(name="data_version", default=1)


def encode_election(election: ElectionState) -> bytes:
    """The content of `quorum-state`."""
    voted = election.voted_key or _NO_VOTE
    content = _File(election.leader_id, election.leader_epoch, voted.node_id, voted.directory_id)
    return msgspec.json.encode(content) + b"\n"


def decode_election(content: bytes) -> ElectionState | None:
    """The state in the content of the file; None for damaged content."""
    try:
        stored = msgspec.json.decode(content, type=_File)
    except msgspec.MsgspecError:
        return None
    vote = ReplicaKey(stored.voted_id, stored.voted_directory_id)
    return ElectionState(stored.leader_epoch, stored.leader_id, None if vote == _NO_VOTE else vote)


class LogPosition(NamedTuple):
    """The last epoch and the end offset of a log. The larger pair is the more up to date (A16)."""

    last_epoch: int
    end_offset: int


class Elector(NamedTuple):
    """The state of a voting replica that decides on a vote."""

    # The name of the role's class.
    role: str
    has_leader: bool
    has_fetched_from_leader: bool
    voted_key: ReplicaKey | None
    position: LogPosition


_STANDARD_VOTERS = ("Unattached", "Prospective")
_PRE_VOTERS = ("Unattached", "Prospective", "Candidate", "Resigned")


def can_grant_vote(
    elector: Elector, candidate: ReplicaKey, position: LogPosition, *, is_pre_vote: bool
) -> bool:
    """True if the candidate, which asks in the elector's epoch, gets the vote.

    A follower that has fetched from its leader refuses a pre-vote (A18).
    """
    if position < elector.position:
        return False
    if is_pre_vote and elector.role == "Follower":
        return not elector.has_fetched_from_leader
    if is_pre_vote:
        return elector.role in _PRE_VOTERS
    return (
        elector.role in _STANDARD_VOTERS and not elector.has_leader and elector.voted_key in (None, candidate)
    )


class VoteTally:
    """The answers of one election by voter. The candidate has voted for itself (A20)."""

    def __init__(self, voters: VoterSet, candidate: ReplicaKey) -> None:
        self._voters = voters
        self._answers = {candidate: True}

    def __repr__(self) -> str:
        return f"<VoteTally granted={len(self.granting)} of {len(self._voters.voters)}>"

    def record(self, voter: ReplicaKey, *, is_granted: bool) -> None:
        """Counts the first answer of a voter; ignores later answers and other nodes."""
        if voter in self._voters:
            self._answers.setdefault(voter, is_granted)

    @property
    def granting(self) -> tuple[ReplicaKey, ...]:
        return tuple(voter for voter in self._voters.voters if self._answers.get(voter))

    @property
    def unanswered(self) -> tuple[ReplicaKey, ...]:
        return tuple(voter for voter in self._voters.voters if voter not in self._answers)

    @property
    def is_won(self) -> bool:
        return len(self.granting) >= self._voters.majority

    @property
    def is_lost(self) -> bool:
        """True if the voters that have not refused are no majority."""
        return len(self.granting) + len(self.unanswered) < self._voters.majority
