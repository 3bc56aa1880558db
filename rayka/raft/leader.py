"""The leader of one epoch: how far each replica is, what is thereby committed, and whether a majority is still there
(A12, A13, A15, A24, A31, A40, A50).

Invariants: the high watermark is unknown until a record of this epoch is held by a majority, and never falls; the
leader's own part counts what is flushed, and only if it votes. Kafka: `LeaderState`.
"""

from dataclasses import dataclass

from rayka.ids import NO_OFFSET, ReplicaKey
from rayka.raft.batch_accumulator import BatchAccumulator
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.voter_change import VoterChange
from rayka.raft.voters import VoterSet

FAR_MS = 1 << 62
NEVER_MS = -1
OBSERVER_SESSION_TIMEOUT_MS = 300_000
CAUGHT_UP_WITHIN_MS = 3_600_000  # A56


@dataclass(slots=True, eq=False)
class Progress:
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
        self._replicas: dict[ReplicaKey, Progress] = {}
        self._others: list[tuple[ReplicaKey, Progress]] = []  # that vote
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
            progress = self._replicas.setdefault(voter, Progress())
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

    def _progress(self, replica: ReplicaKey, now_ms: int) -> Progress:
        found = self._replicas.get(replica)
        if found is None:
            self._drop_observers(now_ms)
            found = self._replicas[replica] = Progress()
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

    def replicas(self, now_ms: int) -> dict[ReplicaKey, Progress]:
        """All that are known, voters or not, by key."""
        self._drop_observers(now_ms)
        return dict(sorted(self._replicas.items()))
