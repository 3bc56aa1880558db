"""What a voter must remember of elections, and the file `quorum-state` that holds it (A7, A8).

The file is one JSON object of `data_version` 1. It is replaced durably before the state is acted on: a voter that
forgot its vote could vote twice in one epoch. A missing file is that of a new replica: nothing known, epoch 0 (A9). A
damaged one is None: unlike Kafka's, the driver then does not start, for this replica may have voted. Kafka:
`ElectionState`, `FileQuorumStateStore`.
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
    """The newest epoch known, its leader (-1: unknown), and the replica that this node gave its one vote in it
    (None: no replica).
    """

    leader_epoch: int = 0
    leader_id: int = NO_NODE
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
    """The state in the file; None when the content is damaged."""
    try:
        stored = msgspec.json.decode(content, type=_File)
    except msgspec.MsgspecError:
        return None
    vote = ReplicaKey(stored.voted_id, stored.voted_directory_id)
    return ElectionState(stored.leader_epoch, stored.leader_id, None if vote == _NO_VOTE else vote)


# Which candidate gets a vote, and which has enough of them (A17-A20). Pure.
#
# Kafka: `QuorumState.canGrantVote`, `EpochElection`.


class LogPosition(NamedTuple):
    """How far a log reaches, newest epoch first: the larger pair is the more up to date (A16)."""

    last_epoch: int
    end_offset: int


class Elector(NamedTuple):
    """What an electing replica is, as far as it decides on a vote."""

    role: str  # the name of the role's class
    has_leader: bool
    has_fetched_from_leader: bool
    voted_key: ReplicaKey | None
    position: LogPosition


_STANDARD_VOTERS = ("Unattached", "Prospective")
_PRE_VOTERS = ("Unattached", "Prospective", "Candidate", "Resigned")


def can_grant_vote(
    elector: Elector, candidate: ReplicaKey, position: LogPosition, *, is_pre_vote: bool
) -> bool:
    """Whether the candidate, which asks in the elector's own epoch, gets the vote."""
    if position < elector.position:
        return False
    if is_pre_vote:
        return _can_grant_pre_vote(elector)
    return (
        elector.role in _STANDARD_VOTERS and not elector.has_leader and elector.voted_key in (None, candidate)
    )


def _can_grant_pre_vote(elector: Elector) -> bool:
    """A18: a follower that has fetched from its leader keeps to it."""
    if elector.role == "Follower":
        return not elector.has_fetched_from_leader
    return elector.role in _PRE_VOTERS


class VoteTally:
    """The answers of one election, one for each voter; the candidate has voted for itself (A20)."""

    def __init__(self, voters: VoterSet, candidate: ReplicaKey) -> None:
        self._voters = voters
        self._answers = {candidate: True}

    def __repr__(self) -> str:
        return f"<VoteTally granted={len(self.granting)} of {len(self._voters.voters)}>"

    def record(self, voter: ReplicaKey, *, is_granted: bool) -> None:
        """The first answer of a voter counts; that of another node does not."""
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
        """Whether the voters that have not said no are too few."""
        return len(self.granting) + len(self.unanswered) < self._voters.majority
