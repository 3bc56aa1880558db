"""Which candidate gets a vote, and which has enough of them (A17-A20). Pure.

Kafka: `QuorumState.canGrantVote`, `EpochElection`.
"""

from typing import NamedTuple

from rayka.ids import ReplicaKey
from rayka.raft.voters import VoterSet


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
