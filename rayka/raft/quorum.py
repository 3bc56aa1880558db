"""One replica of a quorum: its role, its log's tail, what is committed, and what it has to tell the others.

A synchronous core: the driver brings the time, requests and responses, performs what the core says, and reports back.
*Persist, then send*: `election_count` names the election that a response depends on, and `requests` gives nothing
before the newest election is durable. After any event the driver's loop does poll, persist, requests, drain, flush, in
that order, until nothing is left. `rayka/docs/raft.md` is the theory of operation.

Invariants: epoch and known high watermark never fall; nothing is written or sent in an epoch before its election is
durable; the first record of an epoch is its LeaderChange (A24). Kafka: `KafkaRaftClient`. Left out: listeners (the
driver reads what is committed), endpoints (a node is reached by its id), and whatever is in the records.
"""

from collections.abc import Collection, Sequence
from random import Random
from typing import Any

from rayka.ids import OffsetAndEpoch, ReplicaKey
from rayka.log.log import Log, LogRead, PrefixCopy
from rayka.ports import Request
from rayka.protocol.fetch import FetchRequest, FetchResponse
from rayka.protocol.quorum_messages import (
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    VoteRequest,
)
from rayka.raft.election_state import ElectionState
from rayka.raft.elections import Elections
from rayka.raft.follower import Follower
from rayka.raft.leader import Leader
from rayka.raft.leading import Leading
from rayka.raft.log_fetching import Following
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.quorum_observation import ObservedQuorum
from rayka.raft.quorum_state import QuorumState
from rayka.raft.raft_log import RaftLog
from rayka.raft.roles import Role
from rayka.raft.snapshot_retention import earliest_to_keep
from rayka.raft.snapshot_store import SnapshotDownload, SnapshotStore
from rayka.raft.voter_changes import VoterChanges
from rayka.raft.voters import VoterSet


class Quorum:
    """This node's replica. What other nodes ask, and what the driver reports, goes to the part that it concerns:
    `elections`, `leading`, `following`, `changes`. `observed` is all of the state, for checkers to read.
    """

    def __init__(  # noqa: PLR0913 - what a replica is made of
        self, *, cluster_id: str, local: ReplicaKey, log: Log, snapshots: SnapshotStore,
        stored: ElectionState | None, config: QuorumConfig, random: Random, now_ms: int,
        bootstrap_ids: Sequence[int],
    ) -> None:  # fmt: skip
        """`stored` is what `quorum-state` holds, None if there is none. The 0-0 checkpoint, if any, names the first
        voters, later ones come from snapshot and log; a replica that knows no voters asks `bootstrap_ids` for the
        leader.
        """
        self.log = RaftLog(log, snapshots)
        self._state = QuorumState(
            cluster_id=cluster_id, local=local, config=config, random=random, log=self.log, stored=stored,
            now_ms=now_ms,
        )  # fmt: skip
        self.observed: ObservedQuorum = self._state
        self.changes = VoterChanges(self._state)
        self.elections = Elections(self._state)
        self.leading = Leading(self._state, self.changes)
        self.following = Following(self._state, bootstrap_ids)
        self._senders = (self.changes, self.elections, self.following)

    def __repr__(self) -> str:
        return repr(self._state)

    # ---- State -------------------------------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return self._state.role

    @property
    def election(self) -> ElectionState:
        """The newest: epoch, leader, vote. To be made durable whenever `election_count` has risen."""
        return self._state.election

    @property
    def election_count(self) -> int:
        """Rises with every change of `election`; above 0 from the start when what was stored is not up to date."""
        return self._state.election_count

    @property
    def voters(self) -> VoterSet | None:
        """The newest set, effective from the moment it is appended; None while there is none."""
        return self._state.voters

    @property
    def is_leader(self) -> bool:
        return isinstance(self._state.role, Leader)

    @property
    def leading_epoch(self) -> int | None:
        """The epoch that this node leads; None while it does not."""
        return self._state.epoch if self.is_leader else None

    @property
    def high_watermark(self) -> int:
        """The first offset not known to be committed; -1 on a leader before a record of its epoch is (A24)."""
        return self._state.high_watermark

    @property
    def next_offset(self) -> int:
        """The offset that the next record appended gets."""
        role = self._state.role
        return role.accumulator.next_offset if isinstance(role, Leader) else self.log.log_end_offset

    # ---- Time --------------------------------------------------------------------------------------------------------

    def poll(self, now_ms: int) -> None:
        """Runs the timers that are due."""
        self.elections.poll(now_ms)

    def next_poll_ms(self, now_ms: int) -> int:
        """When to call `poll` and `requests` again at the latest, if nothing happens before."""
        role = self._state.role
        wakings_ms = [self.following.deadline_ms(), self.changes.deadline_ms()]
        if isinstance(role, Leader):
            wakings_ms.append(role.next_reminder_ms(now_ms))
        times_ms = [each for each in wakings_ms if each > now_ms]  # what is due already has a target
        times_ms.append(self.elections.deadline_ms())
        if self._state.is_persisted:
            for sender in self._senders:
                times_ms.extend(self._state.book.ready_ms(node_id) for node_id in sender.targets(now_ms))
        return max(now_ms, min(times_ms))

    # ---- To other nodes ----------------------------------------------------------------------------------------------

    def requests(self, now_ms: int) -> list[tuple[int, Request[Any]]]:
        """What to send now, each to a node id. It is under way until it is reported to one of the next two methods."""
        if not self._state.is_persisted:
            return []
        book = self._state.book
        sent: list[tuple[int, Request[Any]]] = []
        for sender in self._senders:
            for node_id in sender.targets(now_ms):
                if book.ready_ms(node_id) <= now_ms:
                    request = sender.request_to(node_id, now_ms)
                    book.on_sent(node_id, request, now_ms)
                    sent.append((node_id, request))
        return sent

    def on_response(self, node_id: int, request: Request[Any], response: Any, now_ms: int) -> None:
        """A node has answered. Whatever else it says, a later epoch or a leader not known here counts (A28, A36)."""
        state = self._state
        is_awaited = state.book.on_answered(node_id, request)
        self.following.on_ended(node_id)
        header = response.partitions[0] if isinstance(response, FetchResponse) else response
        if header.leader_epoch < state.epoch:
            if is_awaited:  # an answer of an earlier epoch says nothing of this one
                state.book.back_off(node_id, now_ms)
            return
        role = state.role
        state.learn(header.leader_id, header.leader_epoch, now_ms)
        if is_awaited and state.role is role:
            self._dispatch(node_id, request, header, now_ms)

    def _dispatch(self, node_id: int, request: Request[Any], response: Any, now_ms: int) -> None:
        if isinstance(request, FetchRequest):
            self.following.on_fetch(node_id, request, response, now_ms)
        elif isinstance(request, FetchSnapshotRequest):
            self.following.on_fetch_snapshot(response, now_ms)
        elif isinstance(request, VoteRequest):
            self.elections.on_vote(request, response, now_ms)
        elif isinstance(request, EndQuorumEpochRequest):
            self.elections.on_end_quorum_epoch(node_id, response, now_ms)

    def on_no_response(self, node_id: int, request: Request[Any], now_ms: int) -> None:
        """The request failed, or was not answered in time."""
        self.following.on_ended(node_id)
        if self._state.book.on_answered(node_id, request):
            self._state.book.back_off(node_id, now_ms)

    def on_persisted(self, election: ElectionState) -> None:
        """`quorum-state` holds the election durably (A8)."""
        self._state.persisted = election

    # ---- The log -----------------------------------------------------------------------------------------------------

    @property
    def needed_copy(self) -> PrefixCopy | None:
        """What a truncation waits for: the driver copies it and tells `following` (A33)."""
        role = self._state.role
        truncation = role.truncation if isinstance(role, Follower) else None
        return None if truncation is None else truncation.copy

    def read_committed(self, offset: int, *, max_bytes: int) -> LogRead:
        """Batches below the high watermark from the one that contains the offset (A41)."""
        return self.log.read(offset, max_bytes=max_bytes, end_offset=self._state.known_high_watermark)

    # ---- Snapshots ---------------------------------------------------------------------------------------------------

    @property
    def finished_download(self) -> SnapshotDownload | None:
        """A snapshot fetched whole: the driver freezes it and tells `following` (A49)."""
        return self._state.finished_download

    def create_snapshot_allowed(self, snapshot_id: OffsetAndEpoch) -> bool:
        """Whether to write this snapshot; False when it exists. Raises ValueError when it can be none (A46)."""
        state = self._state
        return self.log.may_create_snapshot(
            snapshot_id, high_watermark=state.known_high_watermark, epoch=state.epoch
        )

    def clean_snapshots(self, *, retention_bytes: int, retention_ms: int, timestamp_ms: int) -> bool:
        """Deletes snapshots, and the log before them, that are too many or too old; one stays (A51). Whether any.

        -1 is no limit. The log is smaller only by whole segments: a snapshot's maker rolls the log.
        """
        keep = earliest_to_keep(
            self.log.snapshots,
            log_bytes=self.log.size_bytes,
            retention_bytes=retention_bytes,
            retention_ms=retention_ms,
            timestamp_ms=timestamp_ms,
        )
        if keep is not None:
            self.log.delete_before(keep)
        return keep is not None

    # ---- End ---------------------------------------------------------------------------------------------------------

    def resign(self, now_ms: int, successors: Collection[int] = ()) -> None:
        """A leader gives up its epoch and tells the voters, of which these nodes are to follow before others (A22).
        Nothing happens on a node that does not lead.
        """
        if isinstance(self._state.role, Leader):
            self._state.become_resigned(now_ms, successors)

    def shut_down(self, now_ms: int) -> None:
        """Resigns, and stands for no election any more; it goes on answering until the driver ends it (A23)."""
        self._state.is_shutting_down = True
        self.resign(now_ms)
