"""The followers of one leader, by their fetches in its leader epoch (B5), and the ISR that the leader and the
controller agree on (B2, B12).

Invariants:
- A follower's position comes from a fetch in the leader's current epoch. No position is left of the time before the
  replica followed this log (B16, B24).
- `last_caught_up_ms` never goes back within an epoch.
- A fetch of an older broker process changes nothing.
- There is one proposed ISR at a time.

Kafka: `Replica`, `ReplicaState`, `RackAwareReplicaSelector` (KIP-392), `PartitionState`, `CommittedPartitionState`,
`PendingExpandIsr`, `PendingShrinkIsr`.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple
from uuid import UUID

from rayka.errors import ErrorCode, NotLeaderOrFollower
from rayka.ids import NO_EPOCH, NO_NODE, NO_OFFSET, TopicPartition
from rayka.metadata.image import BrokerImage, PartitionImage
from rayka.protocol.membership import AlterPartitionItem

NEVER_MS = -(2**63)


class FollowerFetch(NamedTuple):
    """The position from which a replica asked to read: it has everything below `fetch_offset`. A `broker_epoch` of -1
    is not checked.
    """

    replica_id: int
    broker_epoch: int
    fetch_offset: int
    log_start_offset: int


@dataclass(slots=True, eq=False, repr=False)
class FollowerState:
    """One replica, by its fetches. -1: no fetch has told yet."""

    replica_id: int
    # Of the process that fetched last.
    broker_epoch: int = NO_EPOCH
    log_start_offset: int = NO_OFFSET
    # The offset of the last fetch: the replica has everything below it.
    log_end_offset: int = NO_OFFSET
    last_fetch_ms: int = NEVER_MS
    # The leader's log end offset when it came.
    last_fetch_leader_end_offset: int = NO_OFFSET
    # When the replica last had all records that the leader had then; never goes back.
    last_caught_up_ms: int = NEVER_MS

    def __repr__(self) -> str:
        return f"<FollowerState {self.replica_id} epoch={self.broker_epoch} leo={self.log_end_offset}>"

    @property
    def has_fetched(self) -> bool:
        """Whether the replica has fetched in this leader epoch."""
        return self.log_end_offset != NO_OFFSET

    def on_fetch(self, fetch: FollowerFetch, leader_end_offset: int, now_ms: int) -> None:
        """Counts the replica as caught up now if it has everything, and as of its last fetch if it has everything from
        that time (B5).
        """
        if fetch.fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch.fetch_offset >= self.last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.broker_epoch = fetch.broker_epoch
        self.log_start_offset = fetch.log_start_offset
        self.log_end_offset = fetch.fetch_offset
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_max_ms: int) -> bool:
        """Whether the replica has everything, or had everything at most `lag_max_ms` ago (B10)."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_max_ms


class FollowerStates:
    """All followers of one leader in one epoch, which began at `now_ms`. `brokers` gives the current metadata of a
    broker.
    """

    def __init__(
        self, name: TopicPartition, brokers: Callable[[int], BrokerImage | None],
        *, replica_lag_time_max_ms: int, now_ms: int,
    ) -> None:  # fmt: skip
        self._name = name
        self._brokers = brokers
        self.lag_max_ms = replica_lag_time_max_ms
        self._led_since_ms = now_ms
        # The data directory of each replica, the leader's among them.
        self._directories: dict[int, UUID] = {}
        # All replicas but the leader's.
        self.by_id: dict[int, FollowerState] = {}

    def __repr__(self) -> str:
        return f"<FollowerStates {list(self.by_id.values())}>"

    def update(self, state: PartitionImage, leader_id: int, in_sync: Sequence[int], now_ms: int) -> None:
        """Takes over the replicas of the metadata. A new replica in sync gets time to show it (B16)."""
        self._directories = dict(zip(state.replicas, state.directories, strict=True))
        self.by_id = {
            each: self.by_id.get(each)
            or FollowerState(each, last_caught_up_ms=now_ms if each in in_sync else NEVER_MS)
            for each in state.replicas
            if each != leader_id
        }

    def find(self, fetch: FollowerFetch) -> FollowerState:
        """The follower that fetches. Raises NotLeaderOrFollower when it is no replica, or an older process of its
        broker, whose fetch says nothing about the log of the newer process (B5).
        """
        follower = self.by_id.get(fetch.replica_id)
        if follower is None:
            raise NotLeaderOrFollower(
                f"{self._name}: broker {fetch.replica_id} is none of its replicas {list(self._directories)}"
            )
        if fetch.broker_epoch != NO_EPOCH:
            broker = self._brokers(fetch.replica_id)
            known = follower.broker_epoch if broker is None else broker.broker_epoch
            if fetch.broker_epoch < max(known, follower.broker_epoch):
                raise NotLeaderOrFollower(
                    f"{self._name}: expected broker {fetch.replica_id} in epoch"
                    f" {max(known, follower.broker_epoch)} or later, found {fetch.broker_epoch}; register again"
                )
        return follower

    def have_fetched(self, replica_ids: Collection[int]) -> bool:
        """Whether all of these followers have fetched. Then none of them has records that the leader lacks."""
        return all(each.has_fetched for each in self.by_id.values() if each.replica_id in replica_ids)

    # ---- Which of them count -----------------------------------------------------------------------------------------

    def is_eligible(self, follower: FollowerState) -> bool:
        """Whether the metadata allow the replica into the ISR: its broker is active, and is the process that fetched
        (B11).

        Beyond Kafka, the directory of the replica must not be offline: the leader would wait for the replica until it
        lags.
        """
        broker = self._brokers(follower.replica_id)
        if broker is None or not broker.is_active or not follower.has_fetched:
            return False
        if self._is_offline(follower, broker):
            return False
        return follower.broker_epoch in (NO_EPOCH, broker.broker_epoch)

    def live(self, maximal_isr: Sequence[int], now_ms: int) -> list[FollowerState]:
        """The followers that will soon have the leader's records: their brokers are not fenced.

        Beyond Kafka, a replica does not count if its directory is offline, or if it is out of sync and has not fetched
        for `lag_max_ms`: its disk may be full. Before such a replica is in sync again, its log begins where the
        leader's log begins.
        """
        found = []
        for each in self.by_id.values():
            broker = self._brokers(each.replica_id)
            if broker is None or broker.is_fenced or self._is_offline(each, broker):
                continue
            seen_ms = max(each.last_fetch_ms, self._led_since_ms)
            if each.replica_id in maximal_isr or now_ms - seen_ms <= self.lag_max_ms:
                found.append(each)
        return found

    def _is_offline(self, follower: FollowerState, broker: BrokerImage) -> bool:
        """Whether the broker has reported that the directory of this replica failed or is full."""
        return self._directories[follower.replica_id] in broker.offline_directories

    def read_replica(self, candidates: Sequence[FollowerState], rack_id: str, fetch_offset: int) -> int:
        """The most caught up candidate in the reader's rack that has the offset; -1 without one (G15)."""
        able = [
            each
            for each in candidates
            if each.log_start_offset <= fetch_offset <= each.log_end_offset
            and self.is_in_rack(each.replica_id, rack_id)
        ]
        best = max(
            able,
            key=lambda each: (each.log_end_offset, each.last_caught_up_ms, each.replica_id),
            default=None,
        )
        return NO_NODE if best is None else best.replica_id

    def is_in_rack(self, broker_id: int, rack_id: str) -> bool:
        """Whether the broker is in that rack and not fenced."""
        broker = self._brokers(broker_id)
        return broker is not None and not broker.is_fenced and broker.registration.rack == rack_id

    def broker_epoch(self, broker_id: int) -> int:
        """The epoch of the broker process that fetched: a newer process, which the metadata may know already, may lack
        records. The leader's own epoch comes from the metadata.
        """
        follower = self.by_id.get(broker_id)
        if follower is not None:
            return follower.broker_epoch
        broker = self._brokers(broker_id)
        return NO_EPOCH if broker is None else broker.broker_epoch


@dataclass(frozen=True, slots=True, repr=False)
class IsrState:
    """The committed ISR, and the proposal that would change it (B2, B12).

    Invariant: `maximal` holds every replica that may be in the committed ISR after the controller's answer, whatever it
    is. So a leader that counts all of them commits nothing that a member lacks.
    """

    committed: tuple[int, ...] = ()
    # Sent to the controller, and not answered yet.
    proposal: AlterPartitionItem | None = None
    # Every replica that may be in the committed ISR after any answer of the controller, the committed ones first.
    maximal: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        proposed = () if self.proposal is None else tuple(each.broker_id for each in self.proposal.isr)
        joining = tuple(each for each in proposed if each not in self.committed)
        object.__setattr__(self, "maximal", self.committed + joining)

    def __repr__(self) -> str:
        pending = "" if self.proposal is None else " pending"
        return f"<IsrState {list(self.committed)} maximal={list(self.maximal)}{pending}>"

    @property
    def is_pending(self) -> bool:
        return self.proposal is not None


class ProposalOutcome(Enum):
    """The reaction of a leader to the answer to its proposal."""

    ACCEPTED = auto()
    # The controller has refused the proposal for good, and has raised the partition epoch.
    REVERTED = auto()
    # The leader's metadata are too old for any proposal.
    AWAITS_METADATA = auto()
    RETRIED = auto()


# B12. After any other error the controller may have done it or not: the leader proposes the same again (RETRIED).
PROPOSAL_OUTCOMES = {
    ErrorCode.NONE: ProposalOutcome.ACCEPTED,
    ErrorCode.OPERATION_NOT_ATTEMPTED: ProposalOutcome.REVERTED,
    ErrorCode.INELIGIBLE_REPLICA: ProposalOutcome.REVERTED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ProposalOutcome.AWAITS_METADATA,
    ErrorCode.UNKNOWN_TOPIC_ID: ProposalOutcome.AWAITS_METADATA,
    ErrorCode.FENCED_LEADER_EPOCH: ProposalOutcome.AWAITS_METADATA,
    ErrorCode.INVALID_UPDATE_VERSION: ProposalOutcome.AWAITS_METADATA,
    ErrorCode.INVALID_REQUEST: ProposalOutcome.AWAITS_METADATA,
    ErrorCode.NEW_LEADER_ELECTED: ProposalOutcome.AWAITS_METADATA,
}
