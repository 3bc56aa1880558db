"""The state of a replica: identity, role, election, log and high watermark, every way to another role, and the requests
under way (A1-A5, A9-A11).

Each `become_…` is one row of `LEGAL_CHANGES`; the role changes in no other way. Invariants: the epoch and the known
high watermark never fall; within one epoch the leader, once known, stays, and the vote, once given, stays. Kafka:
`QuorumState`, `RequestManager`, and the reconnect back-off of `NetworkClient`.
"""

from collections.abc import Collection
from random import Random
from typing import NamedTuple

import msgspec

from rayka.errors import InvariantBroken
from rayka.ids import NO_NODE, NO_OFFSET, ReplicaKey
from rayka.ports import Message, Request
from rayka.raft.control_records import ControlRecord, KRaftVersionRecord, LeaderChangeRecord, VotersRecord
from rayka.raft.election_state import ElectionState, VoteTally
from rayka.raft.leader import BatchAccumulator, Leader
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.raft_log import RaftLog
from rayka.raft.roles import LEGAL_CHANGES, Candidate, Follower, Prospective, Resigned, Role, Unattached
from rayka.raft.snapshot import SnapshotDownload
from rayka.raft.voters import VoterSet

DOUBLINGS_MAX = 4


class _Sent(NamedTuple):
    request: Request[Message]
    deadline_ms: int


class RequestManager:
    """The request under way to each node, and the back-off after failures (A11).

    A request is under way until its response, its failure or the request timeout. The back-off doubles with each
    failure, so no node calls a dead one a hundred times a second. A change of role forgets all requests; their late
    responses are dropped.
    """

    def __init__(self, *, request_timeout_ms: int, retry_backoff_ms: int) -> None:
        self._request_timeout_ms = request_timeout_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._sent: dict[int, _Sent] = {}
        self._backing_off_until_ms: dict[int, int] = {}
        # Consecutive failures by node id, at most DOUBLINGS_MAX.
        self._failures: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<RequestManager under_way={list(self._sent)} backing_off={self._backing_off_until_ms}>"

    def ready_ms(self, node_id: int) -> int:
        """The time from which the next request to the node may be sent; 0 or the past: at once."""
        sent = self._sent.get(node_id)
        return sent.deadline_ms if sent is not None else self._backing_off_until_ms.get(node_id, 0)

    def on_sent(self, node_id: int, request: Request[Message], now_ms: int) -> None:
        if self.ready_ms(node_id) > now_ms:
            raise InvariantBroken(f"{self!r}: node {node_id} is not ready")
        if self._backing_off_until_ms.pop(node_id, None) is None:
            self._failures.pop(node_id, None)
        self._sent[node_id] = _Sent(request, now_ms + self._request_timeout_ms)

    def on_answered(self, node_id: int, request: Request[Message]) -> bool:
        """Ends the request under way; False if the response is late, for an earlier request."""
        sent = self._sent.get(node_id)
        if sent is None or sent.request is not request:
            return False
        del self._sent[node_id]
        return True

    def back_off(self, node_id: int, now_ms: int) -> None:
        """Delays the next request to a node whose answer is missing or of no use."""
        failures = self._failures.get(node_id, 0)
        self._failures[node_id] = min(failures + 1, DOUBLINGS_MAX)
        self._backing_off_until_ms[node_id] = now_ms + (self._retry_backoff_ms << failures)

    def reset(self) -> None:
        """Forgets all requests and back-offs: the next requests belong to another role."""
        self._sent.clear()
        self._backing_off_until_ms.clear()
        self._failures.clear()


class QuorumState:
    """The state that all parts of one quorum core share. Only the parts change it; drivers and checkers read it."""

    def __init__(
        self, *, cluster_id: str, local: ReplicaKey, config: QuorumConfig, random: Random, log: RaftLog,
        stored: ElectionState | None, now_ms: int,
    ) -> None:  # fmt: skip
        self.cluster_id = cluster_id
        self.local = local
        self.config = config
        self.log = log
        self.request_manager = RequestManager(
            request_timeout_ms=config.request_timeout_ms, retry_backoff_ms=config.retry_backoff_ms
        )
        self.is_shutting_down = False
        # A snapshot that was fetched whole: the driver freezes it and tells `fetcher` (A49).
        self.finished_download: SnapshotDownload | None = None
        # Everything below is committed; never falls. NO_OFFSET <= known_high_watermark <= log end offset.
        self.known_high_watermark = NO_OFFSET
        self.random = random
        # The election that is durable.
        self.persisted = stored
        # The newest election. The driver makes it durable whenever `election_count` has risen.
        self.election = election_after_restart(stored, log.last_epoch)
        # Above 0 from the start if the stored election is out of date.
        self.election_count = 0 if self.is_persisted else 1
        self.role: Role = self._role_after_restart(now_ms)

    def __repr__(self) -> str:
        return (
            f"<Quorum {self.local.node_id} {type(self.role).__name__} epoch={self.election.leader_epoch}"
            f" hw={self.high_watermark} leo={self.log.log_end_offset}>"
        )

    # ---- State -------------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.election.leader_epoch

    @property
    def leader_id(self) -> int:
        """The leader of the epoch; -1 while it is unknown."""
        return self.election.leader_id

    @property
    def voters(self) -> VoterSet | None:
        """The newest voter set, effective from the moment it is appended; None without one."""
        return self.log.history.voters

    @property
    def known_voters(self) -> VoterSet:
        """The voters, for a role that exists only with voters. Raises InvariantBroken without them."""
        voters = self.voters
        if voters is None:
            raise InvariantBroken(f"{self!r} knows no voters")
        return voters

    @property
    def is_voter(self) -> bool:
        voters = self.voters
        return voters is not None and self.local in voters

    @property
    def is_only_voter(self) -> bool:
        voters = self.voters
        return voters is not None and voters.is_only(self.local)

    @property
    def high_watermark(self) -> int:
        """The first offset that is not known to be committed; -1 for a new leader that does not know it yet (A24)."""
        return self.role.high_watermark if isinstance(self.role, Leader) else self.known_high_watermark

    @property
    def is_persisted(self) -> bool:
        """True if the newest election is durable, so that the replica may act on it (A8)."""
        return self.persisted == self.election

    def random_election_timeout_ms(self) -> int:
        """One to two election timeouts, so that voters seldom become candidates together (A10)."""
        timeout_ms = self.config.election_timeout_ms
        return self.random.randrange(timeout_ms, 2 * timeout_ms)

    def advance_high_watermark(self, offset: int) -> None:
        """Records that everything below the offset is committed."""
        if not self.known_high_watermark <= offset <= self.log.log_end_offset:
            raise InvariantBroken(f"{self!r}: high watermark {offset}")
        self.known_high_watermark = offset

    # ---- Restart -----------------------------------------------------------------------------------------------------

    def _role_after_restart(self, now_ms: int) -> Role:
        """A9. A replica that is the only voter waits for no timeout (A5)."""
        election = self.election
        deadline_ms = now_ms if self.is_only_voter else now_ms + self.random_election_timeout_ms()
        if election.leader_id == self.local.node_id:
            voters = self.voters.voters if self.voters else ()
            return Resigned(deadline_ms, [each.node_id for each in voters if each != self.local], ())
        if election.leader_id != NO_NODE:
            return self._follower(election.leader_id, now_ms)
        if election.voted_key == self.local and self.voters is not None and self.is_voter:
            return Candidate(deadline_ms, VoteTally(self.voters, self.local))
        return Unattached(deadline_ms)

    def _follower(self, leader_id: int, now_ms: int) -> Follower:
        deadline_ms = now_ms + self.config.fetch_timeout_ms
        return Follower(leader_id, fetch_deadline_ms=deadline_ms, next_voter_request_ms=deadline_ms)

    # ---- Changes of role ---------------------------------------------------------------------------------------------

    def learn(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Takes from another node the leader of an epoch, -1 if unknown; the epoch is not below this replica's.

        A node whose disk was wiped may hear that it leads itself. Its former replica did, with another directory id, so
        the name is ignored.
        """
        if epoch < self.epoch:
            raise InvariantBroken(f"{self!r} learns of epoch {epoch}")
        known_id = NO_NODE if leader_id == self.local.node_id else leader_id
        if epoch > self.epoch:
            if known_id == NO_NODE:
                self.become_unattached(epoch, now_ms)
            else:
                self.become_follower(known_id, epoch, now_ms)
        elif known_id != NO_NODE:
            if self.leader_id not in (NO_NODE, known_id):
                raise InvariantBroken(f"{self!r}: node {known_id} leads this epoch, too")
            if self.leader_id == NO_NODE:
                self.become_follower(known_id, epoch, now_ms)

    def become_unattached(self, epoch: int, now_ms: int) -> None:
        """Enters a higher epoch without a leader, or returns to this one after a lost election.

        A running election timeout goes on; a lost pre-vote, and a role without such a timeout, begin one (A10).
        """
        role = self.role
        voted_key = self.election.voted_key if epoch == self.epoch else None
        is_lost = isinstance(role, Prospective) and role.tally.is_lost
        if isinstance(role, Unattached | Prospective | Candidate | Resigned) and not is_lost:
            deadline_ms = max(role.election_deadline_ms, now_ms)
        else:
            deadline_ms = now_ms + self.random_election_timeout_ms()
        self._become(Unattached(deadline_ms), ElectionState(epoch, NO_NODE, voted_key))

    def give_vote(self, candidate: ReplicaKey, now_ms: int) -> None:
        """Gives the one vote of this epoch, which must be durable before the candidate hears of it (A4, A19)."""
        if self.election.voted_key not in (None, candidate):
            raise InvariantBroken(f"{self!r} has voted: {self.election!r}")
        role = self.role
        if not isinstance(role, Unattached | Prospective):
            raise InvariantBroken(f"{self!r} does not vote")
        if self.election.voted_key == candidate:
            return
        deadline_ms = now_ms + self.random_election_timeout_ms()
        voted = msgspec.structs.replace(self.election, voted_key=candidate)
        if isinstance(role, Prospective):
            self._become(Prospective(deadline_ms, role.tally), voted)
        else:
            self._become(Unattached(deadline_ms), voted)

    def become_prospective(self, now_ms: int) -> None:
        """Asks for pre-votes. A replica that is the only voter becomes a candidate at once (A5)."""
        if not self.is_voter:
            raise InvariantBroken(f"{self!r} is no voter")
        tally = VoteTally(self.known_voters, self.local)
        self._become(Prospective(now_ms + self.random_election_timeout_ms(), tally), self.election)
        if tally.is_won:
            self.become_candidate(now_ms)

    def become_candidate(self, now_ms: int) -> None:
        """Raises the epoch and votes for this replica."""
        tally = VoteTally(self.known_voters, self.local)
        election = ElectionState(self.epoch + 1, NO_NODE, self.local)
        self._become(Candidate(now_ms + self.random_election_timeout_ms(), tally), election)
        self.maybe_become_leader(now_ms)

    def maybe_become_leader(self, now_ms: int) -> None:
        """Becomes the leader if a majority has voted for this candidate.

        The log begins the epoch with a LeaderChange record. The first leader ever adds the voters of the 0-0 checkpoint
        (A24).
        """
        role, start = self.role, self.log.log_end_offset
        if not isinstance(role, Candidate):
            raise InvariantBroken(f"{self!r} is no candidate")
        if not role.tally.is_won:
            return
        if start < self.known_high_watermark:
            raise InvariantBroken(f"{self!r} lacks what is committed")
        voters = self.known_voters
        first: list[ControlRecord] = [
            LeaderChangeRecord(self.local.node_id, voters.voters, role.tally.granting)
        ]
        if self.log.history.is_bootstrap:
            first += [KRaftVersionRecord(), VotersRecord(voters)]
        accumulator = BatchAccumulator(start, first)
        leader = Leader(self.local, accumulator, voters, self.config, epoch_start_offset=start, now_ms=now_ms)
        self._become(leader, ElectionState(self.epoch, self.local.node_id, self.election.voted_key))

    def become_follower(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Follows the leader of an epoch. The vote of this epoch stays."""
        voted_key = self.election.voted_key if epoch == self.epoch else None
        self._become(self._follower(leader_id, now_ms), ElectionState(epoch, leader_id, voted_key))

    def become_resigned(self, now_ms: int, wanted: Collection[int] = ()) -> None:
        """Ends this leadership and tells the voters (A22).

        The preferred successors are the `wanted` voters first, then the others; the longest log first in both.
        """
        leader = self.role
        if not isinstance(leader, Leader):
            raise InvariantBroken(f"{self!r} does not lead")
        found = leader.preferred_successors()
        successors = tuple(sorted(found, key=lambda voter: voter.node_id not in wanted))
        deadline_ms = now_ms + self.random_election_timeout_ms()
        self._become(Resigned(deadline_ms, [each.node_id for each in successors], successors), self.election)

    def _become(self, role: Role, election: ElectionState) -> None:
        """Makes a legal change of role. Raises InvariantBroken for any other change."""
        before = self.election
        change = LEGAL_CHANGES.get((type(self.role), type(role)))
        if change is None:
            raise InvariantBroken(f"{self!r} cannot become {role!r}")
        if not change.allows(before.leader_epoch, election.leader_epoch):
            raise InvariantBroken(f"{self!r} cannot become {role!r} of {election!r}")
        if election.leader_epoch == before.leader_epoch:
            if before.leader_id not in (NO_NODE, election.leader_id):
                raise InvariantBroken(f"{self!r} would forget its leader")
            if before.voted_key not in (None, election.voted_key):
                raise InvariantBroken(f"{self!r} would forget its vote")
        if isinstance(self.role, Follower):
            self.role.drop_download()
        former, self.role = self.role, role
        self.request_manager.reset()
        if election != before:
            self.election = election
            self.election_count += 1
        if isinstance(former, Leader) and former.change is not None:
            former.change.end_with_leadership(self.leader_id, self.epoch)


def election_after_restart(stored: ElectionState | None, last_epoch: int) -> ElectionState:
    """The election that a restarted replica begins with: the stored one, unless the log has a later epoch (A9 (i),
    (v)).
    """
    if stored is None or stored.leader_epoch < last_epoch:
        return ElectionState(last_epoch)
    return stored
