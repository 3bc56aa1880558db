"""One replica of a quorum: its role, its log's tail, what is committed, and what it has to tell the others.

A synchronous core: the driver brings the time, requests and responses, performs what the core says, and reports back.
*Persist, then send*: `election_count` names the election that a response depends on, and `requests` gives nothing
before the newest election is durable. After any event the driver's loop does poll, persist, requests, drain, flush, in
that order, until nothing is left. `rayka/docs/raft.md` is the theory of operation.

Invariants: epoch and known high watermark never fall; nothing is written or sent in an epoch before its election is
durable; the first record of an epoch is its LeaderChange (A24). Kafka: `KafkaRaftClient`. Left out: listeners (the
driver reads what is committed), endpoints (a node is reached by its id), and whatever is in the records.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from rayka.ids import OffsetAndEpoch, ReplicaKey
from rayka.log.log import Log, LogRead, PrefixCopy
from rayka.ports import Request
from rayka.protocol.fetch import FetchPartitionResult, FetchRequest, FetchResponse
from rayka.protocol.quorum_messages import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
    VoteRequest,
    VoteResponse,
)
from rayka.raft.election_state import ElectionState
from rayka.raft.elections import Elections
from rayka.raft.leader import Leader
from rayka.raft.leading import METADATA_PARTITION, Leading
from rayka.raft.log_fetching import Following
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.quorum_description import describe
from rayka.raft.quorum_observation import ObservedQuorum
from rayka.raft.quorum_state import QuorumState
from rayka.raft.raft_log import RaftLog
from rayka.raft.roles import Role
from rayka.raft.snapshot_retention import earliest_to_keep
from rayka.raft.snapshot_store import SnapshotDownload, SnapshotStore
from rayka.raft.voter_change import VoterChange
from rayka.raft.voter_changes import VoterChanges
from rayka.raft.voters import VoterSet

__all__ = ["METADATA_PARTITION", "Quorum"]


class Quorum:
    """This node's replica."""

    def __init__(  # noqa: PLR0913 - what a replica is made of
        self, *, cluster_id: str, local: ReplicaKey, log: Log, snapshots: SnapshotStore,
        stored: ElectionState | None, config: QuorumConfig, random: Random, now_ms: int,
        bootstrap_ids: Sequence[int],
    ) -> None:  # fmt: skip
        """`stored` is what `quorum-state` holds, None if there is none. The 0-0 checkpoint, if any, names the first
        voters, later ones come from snapshot and log; a replica that knows no voters asks `bootstrap_ids` for the
        leader.
        """
        self._log = RaftLog(log, snapshots)
        self._state = QuorumState(
            cluster_id=cluster_id, local=local, config=config, random=random, log=self._log, stored=stored,
            now_ms=now_ms,
        )  # fmt: skip
        self._changes = VoterChanges(self._state)
        self._elections = Elections(self._state)
        self._leading = Leading(self._state, self._changes)
        self._following = Following(self._state, bootstrap_ids)
        self._senders = (self._changes, self._elections, self._following)

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
    def is_voter(self) -> bool:
        return self._state.is_voter

    @property
    def leader_id(self) -> int:
        """-1 while no leader is known."""
        return self._state.leader_id

    @property
    def high_watermark(self) -> int:
        """The first offset not known to be committed; -1 on a leader before a record of its epoch is (A24)."""
        return self._state.high_watermark

    @property
    def next_offset(self) -> int:
        """The offset that the next record appended gets."""
        role = self._state.role
        return role.accumulator.next_offset if isinstance(role, Leader) else self._log.log_end_offset

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def observed(self) -> ObservedQuorum:
        """All of the state, for checkers to read."""
        return self._state

    # ---- Time --------------------------------------------------------------------------------------------------------

    def poll(self, now_ms: int) -> None:
        """Runs the timers that are due."""
        self._elections.poll(now_ms)

    def next_poll_ms(self, now_ms: int) -> int:
        """When to call `poll` and `requests` again at the latest, if nothing happens before."""
        role = self._state.role
        wakings_ms = [self._following.deadline_ms(), self._changes.deadline_ms()]
        if isinstance(role, Leader):
            wakings_ms.append(role.next_reminder_ms(now_ms))
        times_ms = [each for each in wakings_ms if each > now_ms]  # what is due already has a target
        times_ms.append(self._elections.deadline_ms())
        if self._state.is_persisted:
            for sender in self._senders:
                times_ms.extend(self._state.book.ready_ms(node_id) for node_id in sender.targets(now_ms))
        return max(now_ms, min(times_ms))

    def is_searching(self, now_ms: int) -> bool:
        """Whether this is an observer that no node has told of a leader, or whose leader is silent (A36)."""
        return self._following.is_searching(now_ms)

    def learn_nodes(self, node_ids: Sequence[int]) -> None:
        """Nodes that may know the leader, in place of the `bootstrap_ids`: an observer may begin before they do."""
        self._following.learn_nodes(node_ids)

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
        self._following.on_ended(node_id)
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
            self._following.on_fetch(node_id, request, response, now_ms)
        elif isinstance(request, FetchSnapshotRequest):
            self._following.on_fetch_snapshot(request, response, now_ms)
        elif isinstance(request, VoteRequest):
            self._elections.on_vote(request, response, now_ms)
        elif isinstance(request, EndQuorumEpochRequest):
            self._elections.on_end_quorum_epoch(node_id, response, now_ms)

    def on_no_response(self, node_id: int, request: Request[Any], now_ms: int) -> None:
        """The request failed, or was not answered in time."""
        self._following.on_ended(node_id)
        if self._state.book.on_answered(node_id, request):
            self._state.book.back_off(node_id, now_ms)

    def on_persisted(self, election: ElectionState) -> None:
        """`quorum-state` holds the election durably (A8)."""
        self._state.on_persisted(election)

    # ---- From other nodes --------------------------------------------------------------------------------------------

    def handle_vote(self, request: VoteRequest, now_ms: int) -> VoteResponse:
        return self._elections.handle_vote(request, now_ms)

    def handle_begin_quorum_epoch(
        self, request: BeginQuorumEpochRequest, now_ms: int
    ) -> BeginQuorumEpochResponse:
        return self._elections.handle_begin_quorum_epoch(request, now_ms)

    def handle_end_quorum_epoch(self, request: EndQuorumEpochRequest, now_ms: int) -> EndQuorumEpochResponse:
        return self._elections.handle_end_quorum_epoch(request, now_ms)

    def handle_fetch(
        self, request: FetchRequest, *, now_ms: int, may_wait: bool
    ) -> FetchPartitionResult | None:
        """None: park the request until there is news, then ask again (A32)."""
        return self._leading.handle_fetch(request, now_ms=now_ms, may_wait=may_wait)

    def handle_fetch_snapshot(self, request: FetchSnapshotRequest, now_ms: int) -> FetchSnapshotResponse:
        return self._leading.handle_fetch_snapshot(request, now_ms)

    def handle_describe_quorum(self, request: DescribeQuorumRequest, now_ms: int) -> DescribeQuorumResponse:
        return describe(self._state, now_ms)

    def add_voter(self, request: AddRaftVoterRequest, now_ms: int) -> VoterChange:
        return self._changes.add_voter(request, now_ms)

    def remove_voter(self, request: RemoveRaftVoterRequest, now_ms: int) -> VoterChange:
        return self._changes.remove_voter(request, now_ms)

    def update_voter(self, request: UpdateRaftVoterRequest, now_ms: int) -> VoterChange:
        return self._changes.update_voter(request, now_ms)

    # ---- The log -----------------------------------------------------------------------------------------------------

    def append(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> int:
        """Takes records in, to be committed together; the offset of the first. Call `drain` soon.

        Raises NotLeaderOrFollower, RecordBatchTooLarge, TooManyRequests.
        """
        return self._leading.append(values, keys)

    def drain(self, *, now_ms: int, timestamp_ms: int) -> bool:
        """Writes what was appended since, its records with this timestamp. Whether the log has something to sync.

        Raises StorageError when the disk fails; the log takes nothing more then.
        """
        self._leading.drain(now_ms=now_ms, timestamp_ms=timestamp_ms)
        return self._log.has_unsynced

    def on_flushed(self, now_ms: int) -> bool:
        """The log was synced, up to its flushed offset. Whether the high watermark moved (A26, A40)."""
        return self._leading.on_flushed(now_ms)

    @property
    def needed_copy(self) -> PrefixCopy | None:
        """What a truncation waits for: the driver copies it and says so (A33)."""
        truncation = self._state.truncation
        return None if truncation is None else truncation.copy

    def on_copied(self, copied: PrefixCopy, now_ms: int) -> None:
        """The log is truncated, if it still is to be. Raises StorageError when the disk fails."""
        self._following.on_copied(copied, now_ms)

    def read_committed(self, offset: int, *, max_bytes: int) -> LogRead:
        """Batches below the high watermark from the one that contains the offset (A41)."""
        return self._log.read(offset, max_bytes=max_bytes, end_offset=self._state.known_high_watermark)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch of an offset below the log end offset: half of the id of a snapshot that ends there."""
        return self._log.epoch_of(offset)

    # ---- Snapshots ---------------------------------------------------------------------------------------------------

    @property
    def latest_snapshot_id(self) -> OffsetAndEpoch | None:
        return self._log.snapshots.latest

    @property
    def finished_download(self) -> SnapshotDownload | None:
        """A snapshot fetched whole: the driver freezes it and says so (A49)."""
        return self._state.finished_download

    def on_snapshot_frozen(self, now_ms: int) -> None:
        """The download is one of the store's: the log begins anew at its end, and all of it is committed (A49)."""
        self._following.on_snapshot_frozen(now_ms)

    def on_snapshot_damaged(self, now_ms: int) -> None:
        """The store refused the download, for it is no whole snapshot. It will be asked for again."""
        self._following.on_snapshot_damaged(now_ms)

    def create_snapshot_allowed(self, snapshot_id: OffsetAndEpoch) -> bool:
        """Whether to write this snapshot; False when it exists. Raises ValueError when it can be none (A46)."""
        state = self._state
        return self._log.may_create_snapshot(
            snapshot_id, high_watermark=state.known_high_watermark, epoch=state.epoch
        )

    def clean_snapshots(self, *, retention_bytes: int, retention_ms: int, timestamp_ms: int) -> bool:
        """Deletes snapshots, and the log before them, that are too many or too old; one stays (A51). Whether any.

        -1 is no limit. The log is smaller only by whole segments: a snapshot's maker rolls the log.
        """
        keep = earliest_to_keep(
            self._log.snapshots,
            log_bytes=self._log.size_bytes,
            retention_bytes=retention_bytes,
            retention_ms=retention_ms,
            timestamp_ms=timestamp_ms,
        )
        if keep is not None:
            self._log.delete_before(keep)
        return keep is not None

    def voters_at(self, end_offset: int) -> VoterSet | None:
        """The voters by the records below the offset: what a snapshot of them says."""
        return self._log.history.voters_at(end_offset)

    # ---- End ---------------------------------------------------------------------------------------------------------

    def resign(self, now_ms: int) -> None:
        """A leader gives up its epoch and tells the voters (A22). Nothing happens on a node that does not lead."""
        if isinstance(self._state.role, Leader):
            self._state.become_resigned(now_ms)

    def shut_down(self, now_ms: int) -> None:
        """Resigns, and stands for no election any more; it goes on answering until the driver ends it (A23)."""
        self._state.is_shutting_down = True
        self.resign(now_ms)
