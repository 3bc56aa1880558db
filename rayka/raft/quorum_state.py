"""This replica's identity, its role, and every way to another role (A1-A5, A9, A10).

It holds the role, the election that must be durable, the log, and what is committed; each `become_…` is one row of
`LEGAL_CHANGES`, and there is no other way. Invariants: the epoch and the known high watermark never fall; in one epoch
the leader, once known, stays, and the vote, once given, stays. Kafka: `QuorumState`.
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

# Which requests are under way, one for each node, and when the next may be sent to it (A11).
#
# A request is under way until its response, its failure or the request timeout. After a failure the node is left alone
# for the retry back-off, which doubles with each further one: no node calls a dead one a hundred times a second. A
# change of role forgets what is under way: its late responses are dropped. Kafka: `RequestManager`, and the reconnect
# back-off of its `NetworkClient`.


DOUBLINGS_MAX = 4


class _Sent(NamedTuple):
    request: Request[Message]
    deadline_ms: int


class RequestManager:
    """In-flight requests and back-offs by node id."""

    def __init__(self, *, request_timeout_ms: int, retry_backoff_ms: int) -> None:
        self._request_timeout_ms = request_timeout_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._sent: dict[int, _Sent] = {}
        self._backing_off_until_ms: dict[int, int] = {}
        self._failures: dict[int, int] = {}  # one after another

    def __repr__(self) -> str:
        return f"<RequestManager under_way={list(self._sent)} backing_off={self._backing_off_until_ms}>"

    def ready_ms(self, node_id: int) -> int:
        """From when on the node may be sent something, as far as is known now; 0 or the past: at once."""
        sent = self._sent.get(node_id)
        return sent.deadline_ms if sent is not None else self._backing_off_until_ms.get(node_id, 0)

    def on_sent(self, node_id: int, request: Request[Message], now_ms: int) -> None:
        if self.ready_ms(node_id) > now_ms:
            raise InvariantBroken(f"{self!r}: node {node_id} is not ready")
        if self._backing_off_until_ms.pop(node_id, None) is None:
            self._failures.pop(node_id, None)
        self._sent[node_id] = _Sent(request, now_ms + self._request_timeout_ms)

    def on_answered(self, node_id: int, request: Request[Message]) -> bool:
        """Whether the response is for the request under way; a late one is not."""
        sent = self._sent.get(node_id)
        if sent is None or sent.request is not request:
            return False
        del self._sent[node_id]
        return True

    def back_off(self, node_id: int, now_ms: int) -> None:
        """Leaves the node alone for a moment: it gave no answer, or one that is no use."""
        failures = self._failures.get(node_id, 0)
        self._failures[node_id] = min(failures + 1, DOUBLINGS_MAX)
        self._backing_off_until_ms[node_id] = now_ms + (self._retry_backoff_ms << failures)

    def reset(self) -> None:
        """Forgets everything: what asks next is another role."""
        self._sent.clear()
        self._backing_off_until_ms.clear()
        self._failures.clear()


class QuorumState:
    """Shared by all parts of one quorum core; only the parts change it, others read it. `election` is to be made
    durable whenever `election_count` has risen, which is above 0 from the start when what was stored is not up to date.
    `finished_download` is a snapshot fetched whole: the driver freezes it and tells `fetcher` (A49).
    """

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
        self.finished_download: SnapshotDownload | None = None
        self.known_high_watermark = NO_OFFSET
        self.random = random
        self.persisted = stored
        self.election = election_after_restart(stored, log.last_epoch)
        self.election_count = 0 if self.is_persisted else 1
        self.role: Role = self._role_after_restart(now_ms)

    def __repr__(self) -> str:
        return (
            f"<Quorum {self.local.node_id} {type(self.role).__name__} epoch={self.election.leader_epoch}"
            f" hw={self.high_watermark} leo={self.log.log_end_offset}>"
        )

    # ---- What is known -----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.election.leader_epoch

    @property
    def leader_id(self) -> int:
        """-1 while no leader of the epoch is known."""
        return self.election.leader_id

    @property
    def voters(self) -> VoterSet | None:
        """The newest set, effective from the moment it is appended; None while there is none."""
        return self.log.history.voters

    @property
    def known_voters(self) -> VoterSet:
        """As `voters`, where a role needs them."""
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
        """The first offset not known to be committed; -1 while a leader does not know it in its epoch (A24)."""
        return self.role.high_watermark if isinstance(self.role, Leader) else self.known_high_watermark

    @property
    def is_persisted(self) -> bool:
        """Whether the election may be acted on (A8)."""
        return self.persisted == self.election

    def random_election_timeout_ms(self) -> int:
        """Between one and two election timeouts, so that voters seldom stand up together (A10)."""
        timeout_ms = self.config.election_timeout_ms
        return self.random.randrange(timeout_ms, 2 * timeout_ms)

    def advance_high_watermark(self, offset: int) -> bool:
        """Everything below is committed. Whether that is news."""
        if not self.known_high_watermark <= offset <= self.log.log_end_offset:
            raise InvariantBroken(f"{self!r}: high watermark {offset}")
        has_moved = offset > self.known_high_watermark
        self.known_high_watermark = offset
        return has_moved

    # ---- Beginning ---------------------------------------------------------------------------------------------------

    def _role_after_restart(self, now_ms: int) -> Role:
        """A9. The only voter waits for no other node, nor for a timeout (A5)."""
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

    # ---- Changing ----------------------------------------------------------------------------------------------------

    def learn(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Another node says which node leads in an epoch that is not below this one's; -1: it does not know.

        A node that was wiped may be told that it leads. It does not: its former self, with another directory id, did.
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
        """A higher epoch without a leader and without this replica's vote; or none was elected in this one (A10)."""
        voted_key = self.election.voted_key if epoch == self.epoch else None
        deadline_ms = self._remaining_election_deadline_ms(now_ms)
        self._become(Unattached(deadline_ms), ElectionState(epoch, NO_NODE, voted_key))

    def _remaining_election_deadline_ms(self, now_ms: int) -> int:
        role = self.role
        is_lost = isinstance(role, Prospective) and role.tally.is_lost
        if isinstance(role, Unattached | Prospective | Candidate | Resigned) and not is_lost:
            return max(role.election_deadline_ms, now_ms)
        return now_ms + self.random_election_timeout_ms()

    def give_vote(self, candidate: ReplicaKey, now_ms: int) -> None:
        """The one vote of this epoch; it must be durable before it is sent to the candidate (A4, A19)."""
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
        """Asks for pre-votes; the only voter goes straight on (A5)."""
        if not self.is_voter:
            raise InvariantBroken(f"{self!r} is no voter")
        tally = VoteTally(self.known_voters, self.local)
        self._become(Prospective(now_ms + self.random_election_timeout_ms(), tally), self.election)
        if tally.is_won:
            self.become_candidate(now_ms)

    def become_candidate(self, now_ms: int) -> None:
        """Raises the epoch and votes for itself."""
        tally = VoteTally(self.known_voters, self.local)
        election = ElectionState(self.epoch + 1, NO_NODE, self.local)
        self._become(Candidate(now_ms + self.random_election_timeout_ms(), tally), election)
        self.maybe_become_leader(now_ms)

    def maybe_become_leader(self, now_ms: int) -> None:
        """Leads, once a majority has voted for it; its log then begins the epoch with a LeaderChange record (A24)."""
        role, start = self.role, self.log.log_end_offset
        if not isinstance(role, Candidate):
            raise InvariantBroken(f"{self!r} is no candidate")
        if not role.tally.is_won:
            return
        if start < self.known_high_watermark:
            raise InvariantBroken(f"{self!r} lacks what is committed")
        voters = self.known_voters
        accumulator = BatchAccumulator(start, self._first_records(voters, role.tally.granting))
        leader = Leader(self.local, accumulator, voters, self.config, epoch_start_offset=start, now_ms=now_ms)
        self._become(leader, ElectionState(self.epoch, self.local.node_id, self.election.voted_key))

    def _first_records(self, voters: VoterSet, granting: tuple[ReplicaKey, ...]) -> list[ControlRecord]:
        """A24: the first leader ever also brings the voters of the checkpoint into the log."""
        change = LeaderChangeRecord(self.local.node_id, voters.voters, granting)
        if not self.log.history.is_bootstrap:
            return [change]
        return [change, KRaftVersionRecord(), VotersRecord(voters)]

    def become_follower(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Follows a leader; within one epoch the vote is kept."""
        voted_key = self.election.voted_key if epoch == self.epoch else None
        self._become(self._follower(leader_id, now_ms), ElectionState(epoch, leader_id, voted_key))

    def become_resigned(self, now_ms: int, wanted: Collection[int] = ()) -> None:
        """Leads no more, and tells the voters, the most advanced of which should follow, first of the wanted ones
        (A22).
        """
        leader = self.role
        if not isinstance(leader, Leader):
            raise InvariantBroken(f"{self!r} does not lead")
        found = leader.preferred_successors()
        successors = tuple(sorted(found, key=lambda voter: voter.node_id not in wanted))
        deadline_ms = now_ms + self.random_election_timeout_ms()
        self._become(Resigned(deadline_ms, [each.node_id for each in successors], successors), self.election)

    def _become(self, role: Role, election: ElectionState) -> None:
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
    """What a replica knows when it begins: what it stored, unless its log knows of a later epoch (A9 (i), (v))."""
    if stored is None or stored.leader_epoch < last_epoch:
        return ElectionState(last_epoch)
    return stored
