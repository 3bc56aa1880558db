"""The leader of one epoch: how far each replica is, what is thereby committed, and whether a majority is still there
(A12, A13, A15, A24, A31, A40, A50).

Invariants: the high watermark is unknown until a record of this epoch is held by a majority, and never falls; the
leader's own part counts what is flushed, and only if it votes. Kafka: `LeaderState`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rayka.errors import ErrorCode, InvariantBroken, RecordBatchTooLarge, TooManyRequests
from rayka.ids import NO_OFFSET, ReplicaKey
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import RecordBatch
from rayka.protocol.quorum_messages import VoterChangeResponse
from rayka.raft.control_records import ControlRecord, encode_control_batch
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.voters import VoterSet

# Records on their way into the log: what arrives while the leader flushes becomes its next batches (A25).
#
# An append gets its offsets at once. Appends share a batch as long as it stays below `BATCH_BYTES_MAX`; one append is
# never divided, so it is replayed whole or not at all. Control records have a batch of their own. It dies with its
# leader: what was not drained by then was never in a log. Kafka: `BatchAccumulator`, without its linger: a flush is
# linger enough.


BATCH_BYTES_MAX = 8 << 20
ACCUMULATED_BYTES_MAX = 8 * BATCH_BYTES_MAX


@dataclass(slots=True, eq=False)
class _Records:
    """A batch that grows. `keys` is None as long as no record has one."""

    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] | None = None

    def extend(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None) -> None:
        if keys is not None and self.keys is None:
            self.keys = [None] * len(self.values)
        if self.keys is not None:
            self.keys.extend([None] * len(values) if keys is None else keys)
        self.values.extend(values)


class BatchAccumulator:
    """Collects the appends of one leader epoch, whose first batch is the leader's own control batch (A24)."""

    def __init__(self, first_offset: int, control_records: Sequence[ControlRecord]) -> None:
        self._batches: list[_Records | tuple[ControlRecord, ...]] = []
        self._last_batch_bytes = 0
        self._size_bytes = 0
        self.next_offset = first_offset
        if control_records:
            self.append_control(control_records)

    def __repr__(self) -> str:
        return f"<BatchAccumulator next_offset={self.next_offset} batches={len(self._batches)}>"

    @property
    def is_empty(self) -> bool:
        return not self._batches

    def append(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> int:
        """Takes the records in as one; the offset of the first. Without `keys` none has one.

        Raises RecordBatchTooLarge when they do not fit a batch, TooManyRequests when too much waits already.
        """
        if not values:
            raise InvariantBroken("an append holds at least one record")
        size_bytes = sum(len(each) for each in (*values, *(keys or ())) if each is not None)
        self._check_size(size_bytes)
        if not self._fits_last_batch(size_bytes):
            self._batches.append(_Records())
            self._last_batch_bytes = 0
        last = self._batches[-1]
        if not isinstance(last, _Records):
            raise InvariantBroken(f"{self!r}: an append goes to the end of {last!r}")
        last.extend(values, keys)
        self._last_batch_bytes += size_bytes
        self._size_bytes += size_bytes
        return self._take_offsets(len(values))

    def append_control(self, records: Sequence[ControlRecord]) -> int:
        """Takes in records of the quorum itself, as a batch of their own; the offset of the first."""
        self._batches.append(tuple(records))
        return self._take_offsets(len(records))

    def drain(self, *, timestamp_ms: int) -> list[RecordBatch]:
        """Everything taken in since the last time, encoded; the accumulator is empty then."""
        batches, self._batches, self._size_bytes = self._batches, [], 0
        return [RecordBatch(_encode(batch, timestamp_ms)) for batch in batches]

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > BATCH_BYTES_MAX:
            raise RecordBatchTooLarge(
                f"records of one append are {size_bytes} bytes, more than the {BATCH_BYTES_MAX} of a batch"
            )
        if self._size_bytes + size_bytes > ACCUMULATED_BYTES_MAX:
            raise TooManyRequests(f"{self._size_bytes} bytes wait for the disk; try again later")

    def _fits_last_batch(self, size_bytes: int) -> bool:
        is_open = bool(self._batches) and isinstance(self._batches[-1], _Records)
        return is_open and self._last_batch_bytes + size_bytes <= BATCH_BYTES_MAX

    def _take_offsets(self, count: int) -> int:
        first_offset = self.next_offset
        self.next_offset += count
        return first_offset


def _encode(batch: _Records | tuple[ControlRecord, ...], timestamp_ms: int) -> np.ndarray:
    if isinstance(batch, tuple):
        return encode_control_batch(batch, timestamp_ms=timestamp_ms)
    return encode_batch(batch.values, keys=batch.keys, timestamps_ms=timestamp_ms)


# One change of the voters on its way (A55): asked for, appended, committed, or not.


@dataclass(slots=True, eq=False)
class VoterChange:
    """`response` is None until the outcome is known; a caller that waits for it asks again after every event."""

    response: VoterChangeResponse | None = None
    offset: int = NO_OFFSET  # of the VotersRecord

    def __repr__(self) -> str:
        return f"<VoterChange offset={self.offset} {self.response or 'not committed'}>"

    def end_with_leadership(self, leader_id: int, leader_epoch: int) -> None:
        """Another leader may commit it or not: this node cannot know."""
        if self.response is None:
            self.response = VoterChangeResponse(
                leader_id,
                leader_epoch,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "the leader changed before the new voters were committed; look at who votes now",
            )


FAR_MS = 1 << 62
NEVER_MS = -1
OBSERVER_SESSION_TIMEOUT_MS = 300_000
CAUGHT_UP_WITHIN_MS = 3_600_000  # A56


@dataclass(slots=True, eq=False)
class ReplicaProgress:
    """How far one replica is. Times are -1 while it never fetched."""

    end_offset: int = NO_OFFSET
    last_fetch_ms: int = NEVER_MS
    last_caught_up_ms: int = NEVER_MS
    leader_end_offset_then: int = NO_OFFSET  # when it last fetched
    last_begin_ms: int | None = None

    def on_fetch(self, fetch_offset: int, leader_end_offset: int, now_ms: int) -> None:
        """It holds everything below the offset durably. It was caught up at the last moment when it held all that
        there was.
        """
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif NO_OFFSET < self.leader_end_offset_then <= fetch_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.leader_end_offset_then = leader_end_offset
        self.end_offset = fetch_offset
        self.last_fetch_ms = now_ms

    def next_begin_ms(self, interval_ms: int) -> int:
        """When it is to be reminded of the leader (A13)."""
        if self.last_begin_ms is None:
            return self.last_fetch_ms + interval_ms if self.last_fetch_ms >= 0 else 0
        return max(self.last_begin_ms, self.last_fetch_ms) + interval_ms


class Leader:
    """`epoch_start_offset` is the offset of its own LeaderChange record."""

    def __init__(
        self, local: ReplicaKey, accumulator: BatchAccumulator, voters: VoterSet, config: QuorumConfig,
        *, epoch_start_offset: int, now_ms: int,
    ) -> None:  # fmt: skip
        self._local = local
        self._config = config
        self._replicas: dict[ReplicaKey, ReplicaProgress] = {}
        self._others: list[tuple[ReplicaKey, ReplicaProgress]] = []  # that vote
        self._others_needed = 0  # for a majority
        # Voters that fetched since the check quorum timer began.
        self._fetched_voters: dict[ReplicaKey, None] = {}
        self._check_quorum_deadline_ms = now_ms + config.check_quorum_timeout_ms
        self._local_end_offset = NO_OFFSET
        self.accumulator = accumulator
        self.voters = voters
        self.epoch_start_offset = epoch_start_offset
        self.high_watermark = NO_OFFSET
        self.change: VoterChange | None = None  # the one that is not committed yet
        self.update_voters(voters)

    def __repr__(self) -> str:
        return f"<Leader start={self.epoch_start_offset} hw={self.high_watermark} {self.voters!r}>"

    # ---- High watermark ----------------------------------------------------------------------------------------------

    def update_voters(self, voters: VoterSet) -> None:
        """Others vote from now on. One that did not vote before counts from its next fetch on: an observer's was not
        held to what a voter's must be.
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
        """This node itself holds everything below the offset durably. Whether the high watermark moved."""
        self._local_end_offset = end_offset
        return self.maybe_update_high_watermark()

    def on_fetch(self, replica: ReplicaKey, fetch_offset: int, leader_end_offset: int, now_ms: int) -> bool:
        """A replica that is at a valid position fetches (A31). Whether the high watermark moved."""
        self._progress(replica, now_ms).on_fetch(fetch_offset, leader_end_offset, now_ms)
        return replica in self.voters and self.maybe_update_high_watermark()

    def maybe_update_high_watermark(self) -> bool:
        """A40: what a majority of the voters holds, once that reaches into this epoch."""
        descending = sorted((self._end_offset(voter) for voter in self.voters.voters), reverse=True)
        held_by_majority = descending[len(descending) // 2]
        if held_by_majority <= max(self.epoch_start_offset, self.high_watermark):
            return False
        self.high_watermark = held_by_majority
        return True

    def _end_offset(self, voter: ReplicaKey) -> int:
        return self._local_end_offset if voter == self._local else self._replicas[voter].end_offset

    def _progress(self, replica: ReplicaKey, now_ms: int) -> ReplicaProgress:
        found = self._replicas.get(replica)
        if found is None:
            self._drop_observers(now_ms)
            found = self._replicas[replica] = ReplicaProgress()
        return found

    # ---- The replicas ------------------------------------------------------------------------------------------------

    def update_check_quorum(self, replica: ReplicaKey, now_ms: int) -> None:
        """A replica fetches records or a snapshot in this epoch: it counts for check quorum (A12, A50)."""
        if replica not in self.voters or replica == self._local:
            return
        self._fetched_voters[replica] = None
        if len(self._fetched_voters) >= self._others_needed:
            self._fetched_voters.clear()
            self._check_quorum_deadline_ms = now_ms + self._config.check_quorum_timeout_ms

    def on_snapshot_fetch(self, replica: ReplicaKey, now_ms: int) -> None:
        """It is alive, and holds nothing yet that counts."""
        self._progress(replica, now_ms).last_fetch_ms = now_ms
        self.update_check_quorum(replica, now_ms)

    @property
    def check_quorum_deadline_ms(self) -> int:
        """When it resigns unless a majority fetches; never, if it is one by itself."""
        return self._check_quorum_deadline_ms if self._others_needed > 0 else FAR_MS

    def _drop_observers(self, now_ms: int) -> None:
        oldest_ms = now_ms - OBSERVER_SESSION_TIMEOUT_MS
        self._replicas = {
            replica: progress
            for replica, progress in self._replicas.items()
            if replica in self.voters or progress.last_fetch_ms > oldest_ms
        }

    def is_caught_up(self, replica: ReplicaKey, now_ms: int) -> bool:
        """Whether it could become a voter without holding the others back (A56)."""
        found = self._replicas.get(replica)
        return (
            found is not None
            and found.last_caught_up_ms >= 0
            and found.last_fetch_ms > now_ms - CAUGHT_UP_WITHIN_MS
        )

    # ---- Telling the voters ------------------------------------------------------------------------------------------

    def voters_to_remind(self, now_ms: int) -> list[ReplicaKey]:
        """The voters to be told that this node leads, for they do not fetch (A13)."""
        interval_ms = self._config.begin_quorum_epoch_interval_ms
        return [voter for voter, progress in self._others if progress.next_begin_ms(interval_ms) <= now_ms]

    def next_reminder_ms(self, now_ms: int) -> int:
        """When the next voter is to be reminded."""
        interval_ms = self._config.begin_quorum_epoch_interval_ms
        times_ms = [progress.next_begin_ms(interval_ms) for _, progress in self._others]
        return min((each for each in times_ms if each > now_ms), default=FAR_MS)

    def on_reminded(self, voter: ReplicaKey, now_ms: int) -> None:
        self._progress(voter, now_ms).last_begin_ms = now_ms

    def preferred_successors(self) -> tuple[ReplicaKey, ...]:
        """The other voters; first the one that holds most (A22)."""
        return tuple(voter for voter, _ in sorted(self._others, key=lambda other: -other[1].end_offset))

    # ---- Described ---------------------------------------------------------------------------------------------------

    def replicas(self, now_ms: int) -> dict[ReplicaKey, ReplicaProgress]:
        """All that are known, voters or not, by key."""
        self._drop_observers(now_ms)
        return dict(sorted(self._replicas.items()))
