"""One replica of a quorum: its role, its log, its high watermark, and its requests to the other replicas.

The core is synchronous. The driver brings the time, requests and responses, does the IO that the core asks for, and
reports back. *Persist, then send*: a response depends on the election that `election_count` counts, and `requests`
returns nothing before the newest election is durable. After any event the driver repeats poll, persist, requests,
drain and flush, in this order, until nothing is left. `rayka/docs/raft.md` is the theory of operation.

Invariants: epoch and known high watermark never fall; nothing is written or sent in an epoch before its election is
durable; the first record of an epoch is its LeaderChange (A24). Kafka: `KafkaRaftClient`. Left out: listeners (the
driver reads committed records), endpoints (a node is reached by its id), and the content of the records.
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
from rayka.raft.elections import QuorumElections
from rayka.raft.leader import Leader
from rayka.raft.leader_log import LeaderLog
from rayka.raft.log_fetcher import LogFetcher
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.quorum_state import QuorumState
from rayka.raft.raft_log import RaftLog
from rayka.raft.roles import Follower
from rayka.raft.snapshot import SnapshotStore, earliest_to_keep
from rayka.raft.voter_changes import VoterChanges


class Quorum(QuorumState):
    """This node's replica: the state, which drivers and checkers read, and the four parts that change it.

    Requests of other nodes and reports of the driver go to one of the parts: `elections`, `leader_log`, `fetcher`,
    `changes`.
    """

    def __init__(  # noqa: PLR0913 - the parts of a replica
        self, *, cluster_id: str, local: ReplicaKey, log: Log, snapshots: SnapshotStore,
        stored: ElectionState | None, config: QuorumConfig, random: Random, now_ms: int,
        bootstrap_ids: Sequence[int],
    ) -> None:  # fmt: skip
        """`stored` is the content of `quorum-state`, None without the file. The 0-0 checkpoint, if any, names the first
        voters; snapshot and log name the later ones. A replica that knows no voters asks `bootstrap_ids` for the
        leader.
        """
        super().__init__(
            cluster_id=cluster_id, local=local, config=config, random=random, log=RaftLog(log, snapshots),
            stored=stored, now_ms=now_ms,
        )  # fmt: skip
        self.changes = VoterChanges(self)
        self.elections = QuorumElections(self)
        self.leader_log = LeaderLog(self, self.changes)
        self.fetcher = LogFetcher(self, bootstrap_ids)
        self._senders = (self.changes, self.elections, self.fetcher)

    # ---- State -------------------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return isinstance(self.role, Leader)

    @property
    def leading_epoch(self) -> int | None:
        """The epoch that this node leads; None while it does not lead."""
        return self.epoch if self.is_leader else None

    @property
    def next_offset(self) -> int:
        """The offset of the next record that is appended."""
        role = self.role
        return role.accumulator.next_offset if isinstance(role, Leader) else self.log.log_end_offset

    # ---- Time --------------------------------------------------------------------------------------------------------

    def poll(self, now_ms: int) -> None:
        """Runs the timers that are due."""
        self.elections.poll(now_ms)

    def next_poll_ms(self, now_ms: int) -> int:
        """The latest time for the next `poll` and `requests`, if nothing happens before."""
        role = self.role
        wakings_ms = [self.fetcher.deadline_ms(), self.changes.deadline_ms()]
        if isinstance(role, Leader):
            wakings_ms.append(role.next_reminder_ms(now_ms))
        # A time in the past has a target already, which the loop below looks at.
        times_ms = [each for each in wakings_ms if each > now_ms]
        times_ms.append(self.elections.deadline_ms())
        if self.is_persisted:
            for sender in self._senders:
                times_ms.extend(self.request_manager.ready_ms(node_id) for node_id in sender.targets(now_ms))
        return max(now_ms, min(times_ms))

    # ---- Requests to other nodes -------------------------------------------------------------------------------------

    def requests(self, now_ms: int) -> list[tuple[int, Request[Any]]]:
        """The requests to send now, by node id. A request is under way until one of the next two methods ends it."""
        if not self.is_persisted:
            return []
        sent: list[tuple[int, Request[Any]]] = []
        for sender in self._senders:
            for node_id in sender.targets(now_ms):
                if self.request_manager.ready_ms(node_id) <= now_ms:
                    request = sender.request_to(node_id, now_ms)
                    self.request_manager.on_sent(node_id, request, now_ms)
                    sent.append((node_id, request))
        return sent

    def on_response(self, node_id: int, request: Request[Any], response: Any, now_ms: int) -> None:
        """Takes the response of a node. A later epoch or a new leader counts in any response (A28, A36)."""
        is_awaited = self.request_manager.on_answered(node_id, request)
        self.fetcher.on_ended(node_id)
        header: Any = response.partitions[0] if isinstance(response, FetchResponse) else response
        if header.leader_epoch < self.epoch:
            # A response of an earlier epoch says nothing about this one.
            if is_awaited:
                self.request_manager.back_off(node_id, now_ms)
            return
        role = self.role
        self.learn(header.leader_id, header.leader_epoch, now_ms)
        if not is_awaited or self.role is not role:
            return
        if isinstance(request, FetchRequest):
            self.fetcher.on_fetch(node_id, request, header, now_ms)
        elif isinstance(request, FetchSnapshotRequest):
            self.fetcher.on_fetch_snapshot(header, now_ms)
        elif isinstance(request, VoteRequest):
            self.elections.on_vote(request, header, now_ms)
        elif isinstance(request, EndQuorumEpochRequest):
            self.elections.on_end_quorum_epoch(node_id, header, now_ms)

    def on_no_response(self, node_id: int, request: Request[Any], now_ms: int) -> None:
        """Ends a request that failed or timed out."""
        self.fetcher.on_ended(node_id)
        if self.request_manager.on_answered(node_id, request):
            self.request_manager.back_off(node_id, now_ms)

    def on_persisted(self, election: ElectionState) -> None:
        """Records that `quorum-state` holds the election durably (A8)."""
        self.persisted = election

    # ---- The log -----------------------------------------------------------------------------------------------------

    @property
    def needed_copy(self) -> PrefixCopy | None:
        """The copy that a truncation waits for: the driver makes it and tells `fetcher` (A33)."""
        role = self.role
        truncation = role.truncation if isinstance(role, Follower) else None
        return None if truncation is None else truncation.copy

    def read_committed(self, offset: int, *, max_bytes: int) -> LogRead:
        """Reads batches below the high watermark, from the batch that contains the offset on (A41)."""
        return self.log.read(offset, max_bytes=max_bytes, end_offset=self.known_high_watermark)

    # ---- Snapshots ---------------------------------------------------------------------------------------------------

    def create_snapshot_allowed(self, snapshot_id: OffsetAndEpoch) -> bool:
        """True if the snapshot may be written, False if it exists. Raises ValueError for an impossible one (A46)."""
        return self.log.may_create_snapshot(
            snapshot_id, high_watermark=self.known_high_watermark, epoch=self.epoch
        )

    def clean_snapshots(self, *, retention_bytes: int, retention_ms: int, timestamp_ms: int) -> bool:
        """Deletes snapshots, and the log before them, beyond the limits; the newest stays (A51). True if any went.

        -1 is no limit. The log shrinks by whole segments only, so the maker of a snapshot rolls the log.
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
        """Ends the leadership of this node, if it leads, and tells the voters. `successors` are preferred as the next
        leader (A22).
        """
        if isinstance(self.role, Leader):
            self.become_resigned(now_ms, successors)

    def shut_down(self, now_ms: int) -> None:
        """Resigns and stands for no further election. The core answers requests until the driver ends it (A23)."""
        self.is_shutting_down = True
        self.resign(now_ms)
