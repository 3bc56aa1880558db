"""The leader of one epoch: the records on their way into its log, the progress of each replica, the high watermark, and
check quorum (A12, A13, A15, A24, A25, A31, A40, A50).

Invariants: the high watermark is unknown until a majority holds a record of this epoch, and never falls. The leader
itself counts with its flushed records, and only if it votes. Kafka: `LeaderState`, `BatchAccumulator`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rayka.errors import ErrorCode, InvariantBroken, RecordBatchTooLarge, TooManyRequests
from rayka.ids import NO_OFFSET, ReplicaKey
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import RecordBatch
from rayka.protocol.quorum_messages import VoterChangeResponse
from rayka.raft.control_records import ControlRecord, encode_control_batch
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.voters import VoterSet

BATCH_BYTES_MAX = 8 << 20
ACCUMULATED_BYTES_MAX = 8 * BATCH_BYTES_MAX
FAR_MS = 1 << 62
NEVER_MS = -1
OBSERVER_SESSION_TIMEOUT_MS = 300_000
# A replica is caught up if its last fetch is no older (A56).
CAUGHT_UP_WITHIN_MS = 3_600_000


@dataclass(slots=True, eq=False)
class _Records:
    """A batch that still grows."""

    values: list[bytes | None] = field(default_factory=list)
    # None as long as no record has a key; else as long as `values`.
    keys: list[bytes | None] | None = None

    def extend(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None) -> None:
        if keys is not None and self.keys is None:
            self.keys = [None] * len(self.values)
        if self.keys is not None:
            self.keys.extend([None] * len(values) if keys is None else keys)
        self.values.extend(values)


class BatchAccumulator:
    """Collects the appends of one leader epoch while the leader flushes; they become its next batches (A25).

    An append gets its offsets at once. Appends share a batch as long as the batch stays below `BATCH_BYTES_MAX`. One
    append is never divided, so replicas replay all of its records or none. Control records get a batch of their own;
    the first batch of the epoch is one (A24). The accumulator ends with the leader: records that were not drained were
    never in a log. Kafka's linger is left out, because a flush takes long enough.
    """

    def __init__(self, first_offset: int, control_records: Sequence[ControlRecord]) -> None:
        self._batches: list[_Records | tuple[ControlRecord, ...]] = []
        self._last_batch_bytes = 0
        self._size_bytes = 0
        # The offset of the next record.
        self.next_offset = first_offset
        if control_records:
            self.append_control(control_records)

    def __repr__(self) -> str:
        return f"<BatchAccumulator next_offset={self.next_offset} batches={len(self._batches)}>"

    @property
    def is_empty(self) -> bool:
        return not self._batches

    def append(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> int:
        """Adds the records as one unit and returns the offset of the first. Without `keys` no record has a key.

        Raises RecordBatchTooLarge for records that do not fit a batch, TooManyRequests while too many bytes wait.
        """
        if not values:
            raise InvariantBroken("an append holds at least one record")
        size_bytes = sum(len(each) for each in (*values, *(keys or ())) if each is not None)
        if size_bytes > BATCH_BYTES_MAX:
            raise RecordBatchTooLarge(
                f"records of one append are {size_bytes} bytes, more than the {BATCH_BYTES_MAX} of a batch"
            )
        if self._size_bytes + size_bytes > ACCUMULATED_BYTES_MAX:
            raise TooManyRequests(f"{self._size_bytes} bytes wait for the disk; try again later")
        last = self._batches[-1] if self._batches else None
        if not isinstance(last, _Records) or self._last_batch_bytes + size_bytes > BATCH_BYTES_MAX:
            last = _Records()
            self._batches.append(last)
            self._last_batch_bytes = 0
        last.extend(values, keys)
        self._last_batch_bytes += size_bytes
        self._size_bytes += size_bytes
        return self._take_offsets(len(values))

    def append_control(self, records: Sequence[ControlRecord]) -> int:
        """Adds control records as a batch of their own and returns the offset of the first."""
        self._batches.append(tuple(records))
        return self._take_offsets(len(records))

    def _take_offsets(self, count: int) -> int:
        first_offset = self.next_offset
        self.next_offset += count
        return first_offset

    def drain(self, *, timestamp_ms: int) -> list[RecordBatch]:
        """Encodes and removes all collected batches."""
        batches, self._batches, self._size_bytes = self._batches, [], 0
        encoded: list[RecordBatch] = []
        for batch in batches:
            if isinstance(batch, tuple):
                content = encode_control_batch(batch, timestamp_ms=timestamp_ms)
            else:
                content = encode_batch(batch.values, keys=batch.keys, timestamps_ms=timestamp_ms)
            encoded.append(RecordBatch(content))
        return encoded


@dataclass(slots=True, eq=False)
class VoterChange:
    """A change of the voters that a caller asked for (A55)."""

    # None until the outcome is known. A waiting caller looks again after every event.
    response: VoterChangeResponse | None = None
    # Of the VotersRecord; NO_OFFSET if the change was refused or changes nothing.
    offset: int = NO_OFFSET

    def __repr__(self) -> str:
        return f"<VoterChange offset={self.offset} {self.response or 'not committed'}>"

    def end_with_leadership(self, leader_id: int, leader_epoch: int) -> None:
        """Answers a change that is not committed: another leader may commit it or drop it."""
        if self.response is None:
            self.response = VoterChangeResponse(
                leader_id,
                leader_epoch,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "the leader changed before the new voters were committed; look at who votes now",
            )


@dataclass(slots=True, eq=False)
class ReplicaProgress:
    """The progress of one replica, as its fetches show it."""

    # The replica holds everything below durably; NO_OFFSET before its first fetch that counts.
    end_offset: int = NO_OFFSET
    # Times are NEVER_MS before the first fetch.
    last_fetch_ms: int = NEVER_MS
    last_caught_up_ms: int = NEVER_MS
    # The leader's log end offset at `last_fetch_ms`.
    leader_end_offset_then: int = NO_OFFSET
    # Of the last BeginQuorumEpoch; None before the first one.
    last_begin_ms: int | None = None

    def on_fetch(self, fetch_offset: int, leader_end_offset: int, now_ms: int) -> None:
        """Records a fetch: the replica holds everything below the offset durably.

        The replica is caught up now if it has the whole log. It was caught up at its last fetch if it now has
        everything that the leader had then.
        """
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif NO_OFFSET < self.leader_end_offset_then <= fetch_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.leader_end_offset_then = leader_end_offset
        self.end_offset = fetch_offset
        self.last_fetch_ms = now_ms

    def next_begin_ms(self, interval_ms: int) -> int:
        """The time of the next BeginQuorumEpoch, unless the replica fetches before (A13)."""
        if self.last_begin_ms is None:
            return self.last_fetch_ms + interval_ms if self.last_fetch_ms >= 0 else 0
        return max(self.last_begin_ms, self.last_fetch_ms) + interval_ms


class Leader:
    """The role of the leader of one epoch."""

    def __init__(
        self, local: ReplicaKey, accumulator: BatchAccumulator, voters: VoterSet, config: QuorumConfig,
        *, epoch_start_offset: int, now_ms: int,
    ) -> None:  # fmt: skip
        self._local = local
        self._config = config
        # By replica: all voters, and observers that fetched within OBSERVER_SESSION_TIMEOUT_MS.
        self._replicas: dict[ReplicaKey, ReplicaProgress] = {}
        # The other voters.
        self._others: list[tuple[ReplicaKey, ReplicaProgress]] = []
        # How many of the other voters make a majority; 0 if this voter is one by itself.
        self._others_needed = 0
        # The voters that fetched since the check quorum timer began.
        self._fetched_voters: dict[ReplicaKey, None] = {}
        self._check_quorum_deadline_ms = now_ms + config.check_quorum_timeout_ms
        # This replica holds everything below durably.
        self._local_end_offset = NO_OFFSET
        self.accumulator = accumulator
        self.voters = voters
        # The offset of this epoch's LeaderChange record.
        self.epoch_start_offset = epoch_start_offset
        # NO_OFFSET or > epoch_start_offset.
        self.high_watermark = NO_OFFSET
        # The change of voters that is not committed yet.
        self.change: VoterChange | None = None
        self.update_voters(voters)

    def __repr__(self) -> str:
        return f"<Leader start={self.epoch_start_offset} hw={self.high_watermark} {self.voters!r}>"

    # ---- High watermark ----------------------------------------------------------------------------------------------

    def update_voters(self, voters: VoterSet) -> None:
        """Takes a new voter set. A new voter counts from its next fetch on, because the fetches of an observer were not
        checked like those of a voter.
        """
        former, self.voters = self.voters, voters
        for voter in voters.voters:
            progress = self._replicas.setdefault(voter, ReplicaProgress())
            if voter not in former:
                progress.end_offset = NO_OFFSET
        self._others = [(each, self._replicas[each]) for each in voters.voters if each != self._local]
        self._others_needed = voters.majority - (self._local in voters)
        for voter in [each for each in self._fetched_voters if each not in voters]:
            del self._fetched_voters[voter]

    def on_flushed(self, end_offset: int) -> bool:
        """Records that this replica holds everything below the offset durably. True: the high watermark moved."""
        self._local_end_offset = end_offset
        return self.maybe_update_high_watermark()

    def on_fetch(self, replica: ReplicaKey, fetch_offset: int, leader_end_offset: int, now_ms: int) -> bool:
        """Records a fetch from a valid position (A31). True: the high watermark moved."""
        self._progress(replica, now_ms).on_fetch(fetch_offset, leader_end_offset, now_ms)
        return replica in self.voters and self.maybe_update_high_watermark()

    def maybe_update_high_watermark(self) -> bool:
        """A40. Raises the high watermark to the offset that a majority holds, once that lies in this epoch."""
        descending = sorted((self._end_offset(voter) for voter in self.voters.voters), reverse=True)
        held_by_majority = descending[len(descending) // 2]
        if held_by_majority <= max(self.epoch_start_offset, self.high_watermark):
            return False
        self.high_watermark = held_by_majority
        return True

    def _end_offset(self, voter: ReplicaKey) -> int:
        return self._local_end_offset if voter == self._local else self._replicas[voter].end_offset

    # ---- Replicas ----------------------------------------------------------------------------------------------------

    def _progress(self, replica: ReplicaKey, now_ms: int) -> ReplicaProgress:
        found = self._replicas.get(replica)
        if found is None:
            self._drop_observers(now_ms)
            found = self._replicas[replica] = ReplicaProgress()
        return found

    def _drop_observers(self, now_ms: int) -> None:
        oldest_ms = now_ms - OBSERVER_SESSION_TIMEOUT_MS
        self._replicas = {
            replica: progress
            for replica, progress in self._replicas.items()
            if replica in self.voters or progress.last_fetch_ms > oldest_ms
        }

    def update_check_quorum(self, replica: ReplicaKey, now_ms: int) -> None:
        """Counts a fetch of records or of a snapshot for check quorum; a majority restarts the timer (A12, A50)."""
        if replica not in self.voters or replica == self._local:
            return
        self._fetched_voters[replica] = None
        if len(self._fetched_voters) >= self._others_needed:
            self._fetched_voters.clear()
            self._check_quorum_deadline_ms = now_ms + self._config.check_quorum_timeout_ms

    @property
    def check_quorum_deadline_ms(self) -> int:
        """The leader resigns at this time unless a majority fetches; FAR_MS if it is a majority by itself."""
        return self._check_quorum_deadline_ms if self._others_needed > 0 else FAR_MS

    def on_snapshot_fetch(self, replica: ReplicaKey, now_ms: int) -> None:
        """Records a fetch of a snapshot: the replica is alive, but its log does not count yet."""
        self._progress(replica, now_ms).last_fetch_ms = now_ms
        self.update_check_quorum(replica, now_ms)

    def is_caught_up(self, replica: ReplicaKey, now_ms: int) -> bool:
        """True if the replica could become a voter without holding the others back (A56)."""
        found = self._replicas.get(replica)
        return (
            found is not None
            and found.last_caught_up_ms >= 0
            and found.last_fetch_ms > now_ms - CAUGHT_UP_WITHIN_MS
        )

    def replicas(self, now_ms: int) -> dict[ReplicaKey, ReplicaProgress]:
        """The progress of all known voters and observers, by key."""
        self._drop_observers(now_ms)
        return dict(sorted(self._replicas.items()))

    # ---- BeginQuorumEpoch and EndQuorumEpoch -------------------------------------------------------------------------

    def voters_to_remind(self, now_ms: int) -> list[ReplicaKey]:
        """The voters that do not fetch and need a BeginQuorumEpoch now (A13)."""
        interval_ms = self._config.begin_quorum_epoch_interval_ms
        return [voter for voter, progress in self._others if progress.next_begin_ms(interval_ms) <= now_ms]

    def next_reminder_ms(self, now_ms: int) -> int:
        """The next time, later than now, at which a voter will need a BeginQuorumEpoch."""
        interval_ms = self._config.begin_quorum_epoch_interval_ms
        times_ms = [progress.next_begin_ms(interval_ms) for _, progress in self._others]
        return min((each for each in times_ms if each > now_ms), default=FAR_MS)

    def on_reminded(self, voter: ReplicaKey, now_ms: int) -> None:
        self._progress(voter, now_ms).last_begin_ms = now_ms

    def preferred_successors(self) -> tuple[ReplicaKey, ...]:
        """The other voters, the longest log first (A22)."""
        return tuple(voter for voter, _ in sorted(self._others, key=lambda other: -other[1].end_offset))
