"""The roles of a replica of the quorum, except the leader, and the legal changes of role (A1-A3).

The `ElectionState` is the durable part: epoch, leader and vote. A role holds the rest, such as deadlines and counted
votes. `LEGAL_CHANGES` lists all transitions; `QuorumState` refuses any other. Kafka: one class per state, and the table
in `QuorumState`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from rayka.ids import OffsetAndEpoch, ReplicaKey
from rayka.log.log import PrefixCopy
from rayka.raft.election_state import EPOCH_MAX, VoteTally
from rayka.raft.leader import Leader
from rayka.raft.snapshot import SnapshotDownload


class Truncation(NamedTuple):
    """A truncation of the log that waits for a copy."""

    # The leader's log parts from this one here at the latest.
    end: OffsetAndEpoch
    copy: PrefixCopy


@dataclass(slots=True, eq=False)
class Follower:
    """Follows one leader in one epoch (A11, A14, A33, A49)."""

    leader_id: int
    # The leader must answer a fetch until then, or the follower gives it up.
    fetch_deadline_ms: int
    # When the follower next compares its entry among the voters (A58, A60).
    next_voter_request_ms: int
    has_fetched_from_leader: bool = False
    # The snapshot that the follower fetches.
    download: SnapshotDownload | None = None
    # The truncation that waits for a copy.
    truncation: Truncation | None = None

    def __repr__(self) -> str:
        loading = f" loads={self.download!r}" if self.download else ""
        return f"<Follower of={self.leader_id} until={self.fetch_deadline_ms}{loading}>"

    def on_fetched(self, fetch_deadline_ms: int) -> None:
        """Records an answer of the leader and moves the deadline."""
        self.fetch_deadline_ms = fetch_deadline_ms
        self.has_fetched_from_leader = True

    def drop_download(self) -> None:
        if self.download is not None:
            self.download.abandon()
            self.download = None


@dataclass(slots=True, eq=False)
class Unattached:
    """Knows an epoch without a leader."""

    election_deadline_ms: int

    def __repr__(self) -> str:
        return f"<Unattached until={self.election_deadline_ms}>"


@dataclass(slots=True, eq=False)
class _Electing:
    """Counts the votes of an election."""

    election_deadline_ms: int
    tally: VoteTally

    def __repr__(self) -> str:
        return f"<{type(self).__name__} until={self.election_deadline_ms} {self.tally!r}>"


class Prospective(_Electing):
    """Asks for pre-votes, without raising the epoch."""


class Candidate(_Electing):
    """Has raised the epoch and votes for itself."""


@dataclass(slots=True, eq=False)
class Resigned:
    """Led this epoch, and tells the voters that it resigned (A22).

    A resigned replica does not lead or vote in the epoch again: two different records could get one offset and epoch
    (A9).
    """

    election_deadline_ms: int
    # Node ids of the voters that have not acknowledged the resignation.
    unacknowledged: list[int]
    preferred_successors: tuple[ReplicaKey, ...]

    def __repr__(self) -> str:
        return f"<Resigned until={self.election_deadline_ms} unacknowledged={self.unacknowledged}>"

    def on_acknowledged(self, node_id: int) -> None:
        self.unacknowledged = [each for each in self.unacknowledged if each != node_id]


Role = Unattached | Prospective | Candidate | Leader | Follower | Resigned


class EpochChange(Enum):
    """The least and the most that a change of role may raise the epoch; the epoch never falls."""

    NONE = (0, 0)
    BY_ONE = (1, 1)
    RAISED = (1, EPOCH_MAX)
    NOT_LOWERED = (0, EPOCH_MAX)

    def allows(self, before: int, after: int) -> bool:
        """True if the epoch may change from `before` to `after`."""
        least, most = self.value
        return least <= after - before <= most


LEGAL_CHANGES: dict[tuple[type[Role], type[Role]], EpochChange] = {
    (Unattached, Unattached): EpochChange.NOT_LOWERED,  # a higher epoch; or a vote given
    (Unattached, Prospective): EpochChange.NONE,  # election timeout
    (Unattached, Follower): EpochChange.NOT_LOWERED,  # a leader
    (Prospective, Unattached): EpochChange.NOT_LOWERED,  # a higher epoch; or lost, and no leader known
    (Prospective, Prospective): EpochChange.NONE,  # a vote given
    (Prospective, Candidate): EpochChange.BY_ONE,  # a majority of pre-votes
    (Prospective, Follower): EpochChange.NOT_LOWERED,  # a leader; or lost, and the last leader is known
    (Candidate, Unattached): EpochChange.RAISED,  # a higher epoch
    (Candidate, Prospective): EpochChange.NONE,  # election timeout, which a loss waits out too
    (Candidate, Leader): EpochChange.NONE,  # a majority of votes
    (Candidate, Follower): EpochChange.NOT_LOWERED,  # a leader: another won this epoch, or a later one
    (Leader, Unattached): EpochChange.RAISED,  # a higher epoch
    (Leader, Resigned): EpochChange.NONE,  # shutdown, resign, check quorum
    (Leader, Follower): EpochChange.RAISED,  # a leader of a higher epoch
    (Resigned, Unattached): EpochChange.RAISED,  # a higher epoch; or election timeout, one higher
    (Resigned, Follower): EpochChange.RAISED,  # a leader; that of the same epoch was itself
    (Resigned, Prospective): EpochChange.NONE,  # the only voter does not wait (A5)
    (Follower, Unattached): EpochChange.RAISED,  # a higher epoch, and no leader known
    (Follower, Prospective): EpochChange.NONE,  # fetch timeout, or its leader has resigned
    (Follower, Follower): EpochChange.RAISED,  # a leader of a higher epoch
}
