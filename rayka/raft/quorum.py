"""One replica of the metadata quorum: its role, its log's tail, and what is committed.

Synchronous: the node performs the effects that a method returns, in their order, and reports back. Appending is three
steps, so that any number of appends share one flush: `append` gives offsets, `drain` writes what was appended, and once
the log is synced `on_flushed` moves the high watermark. The flush comes first (A26).

Invariants: epoch and high watermark never fall; nothing is written in an epoch before its election is
durable; the first record of an epoch is its LeaderChange (A24). Kafka: `KafkaRaftClient`, `QuorumState`. Left
out: votes between nodes, followers, snapshots, changes of the voter set. The only voter elects itself (A5).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rayka.errors import ErrorCode
from rayka.ids import METADATA_TOPIC_ID, NO_NODE, NO_OFFSET, ReplicaKey
from rayka.log.log import Log, LogRead
from rayka.protocol.fetch import FetchPartition, FetchPartitionResult
from rayka.raft.accumulator import BatchAccumulator
from rayka.raft.control_records import ControlRecord, KRaftVersionRecord, LeaderChangeRecord, VotersRecord
from rayka.raft.election_state import ElectionState, PersistElection
from rayka.raft.fetch import diverging_epoch, epoch_error
from rayka.raft.leader import Leader
from rayka.raft.roles import LEGAL_CHANGES, Candidate, Prospective, Role, role_after_restart
from rayka.raft.voters import VoterSet

METADATA_PARTITION = 0


class Quorum:
    """This node's replica. Only the leader appends and answers fetches."""

    def __init__(
        self, *, local: ReplicaKey, voters: VoterSet, log: Log, stored: ElectionState | None
    ) -> None:
        self._local = local
        self._voters = voters
        self._log = log
        self._accumulator = BatchAccumulator(log.log_end_offset, ())
        self._persisted = stored
        self.role, self.election = role_after_restart(stored, local, log.latest_epoch)

    def __repr__(self) -> str:
        return (
            f"<Quorum {self._local.node_id} {type(self.role).__name__} epoch={self.election.leader_epoch}"
            f" hw={self.high_watermark} leo={self._log.log_end_offset}>"
        )

    # ---- State -------------------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return isinstance(self.role, Leader)

    @property
    def high_watermark(self) -> int:
        """The first offset not committed; -1 while that is not known."""
        return self.role.high_watermark if isinstance(self.role, Leader) else NO_OFFSET

    @property
    def next_offset(self) -> int:
        """The offset that the next record appended gets."""
        return self._accumulator.next_offset

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    # ---- Election ----------------------------------------------------------------------------------------------------

    def start(self) -> list[PersistElection]:
        """Begins to take part. The only voter needs nobody's vote and leads at once, in a new epoch (A5)."""
        assert self._voters.is_only(self._local), f"{self!r} is not the only one of {self._voters!r}"
        effects = []
        if not isinstance(self.role, Candidate):
            self._become(Prospective(), self.election)
            voted = ElectionState(self.election.leader_epoch + 1, NO_NODE, self._local)
            effects.append(self._become(Candidate(), voted))
        effects.append(self._become_leader())
        return effects

    def on_persisted(self, effect: PersistElection) -> None:
        """The election state is durable."""
        self._persisted = effect.election

    def _become_leader(self) -> PersistElection:
        epoch, start = self.election.leader_epoch, self._log.log_end_offset
        leader = Leader(epoch, start, self._voters)
        elected = ElectionState(epoch, self._local.node_id, self.election.voted_key)
        effect = self._become(leader, elected)
        self._accumulator = BatchAccumulator(start, self._first_records())
        return effect

    def _first_records(self) -> list[ControlRecord]:
        """A24: the first leader ever also brings the voters from the checkpoint into the log."""
        voters = self._voters.voters
        change = LeaderChangeRecord(self._local.node_id, voters, granting_voters=(self._local,))
        if self._log.log_end_offset > 0:
            return [change]
        return [change, KRaftVersionRecord(), VotersRecord(self._voters)]

    def _become(self, role: Role, election: ElectionState) -> PersistElection:
        assert type(role) in LEGAL_CHANGES[type(self.role)], f"{self!r} cannot become {role!r}"
        assert election.leader_epoch >= self.election.leader_epoch, f"{self!r} cannot go back to {election!r}"
        self.role, self.election = role, election
        return PersistElection(election)

    # ---- Appending ---------------------------------------------------------------------------------------------------

    def append(self, values: Sequence[bytes]) -> int:
        """Takes records in, to be committed together; the offset of the first. Call `drain` soon."""
        assert self.is_leader, f"{self!r} does not lead"
        return self._accumulator.append(values)

    def drain(self, *, now_ms: int, timestamp_ms: int) -> bool:
        """Writes what was appended since, its records with this timestamp. Whether there is something to sync.

        Raises StorageError when the disk fails; the log takes nothing more then.
        """
        assert self._persisted == self.election, f"{self!r}: {self.election!r} is not durable"
        batches = self._accumulator.drain(timestamp_ms=timestamp_ms)
        if batches:
            self._log.append_as_leader(batches, self.election.leader_epoch, now_ms=now_ms)
        assert self._log.log_end_offset == self._accumulator.next_offset, f"{self!r}: offsets went astray"
        return not self._log.unsynced().is_empty

    def on_flushed(self) -> bool:
        """The log was synced, up to its flushed offset. Whether the high watermark moved (A26, A40)."""
        return isinstance(self.role, Leader) and self.role.on_voter_flushed(
            self._local, self._log.flushed_offset
        )

    # ---- Reading -----------------------------------------------------------------------------------------------------

    def handle_fetch(
        self, partition: FetchPartition, *, max_bytes: int, may_wait: bool
    ) -> FetchPartitionResult | None:
        """The answer to a replica that follows the log; None when it should wait for news (A28-A32).

        Records not yet committed are among the answer; the high watermark in it says how far they are.
        """
        if not self.is_leader:
            return self._result(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        error = epoch_error(partition.current_leader_epoch, self.election.leader_epoch)
        if error is not ErrorCode.NONE:
            return self._result(error)
        diverging = diverging_epoch(self._log, partition)
        if diverging is not None:
            return self._result(diverging_epoch=diverging)
        return self._read(partition, max_bytes, may_wait)

    def _read(self, partition: FetchPartition, max_bytes: int, may_wait: bool) -> FetchPartitionResult | None:
        max_bytes = min(max_bytes, partition.max_bytes)
        read = self._log.read(
            partition.fetch_offset, max_bytes=max_bytes, end_offset=self._log.log_end_offset
        )
        has_news = bool(read.records) or partition.high_watermark < self.high_watermark
        if may_wait and not has_news:
            return None
        records = np.frombuffer(read.records, dtype=np.uint8)
        return self._result(next_offset=read.next_offset, records=records)

    def _result(self, error_code: ErrorCode = ErrorCode.NONE, **found: Any) -> FetchPartitionResult:
        """Whatever the answer, it says who leads in which epoch (A28)."""
        return FetchPartitionResult(
            METADATA_TOPIC_ID,
            METADATA_PARTITION,
            error_code=error_code,
            high_watermark=self.high_watermark,
            last_stable_offset=self.high_watermark,
            log_start_offset=self._log.log_start_offset,
            leader_id=self.election.leader_id,
            leader_epoch=self.election.leader_epoch,
            **found,
        )

    def read_committed(self, offset: int, *, max_bytes: int) -> LogRead:
        """Batches below the high watermark from the one that contains the offset (A41)."""
        return self._log.read(offset, max_bytes=max_bytes, end_offset=self.high_watermark)
