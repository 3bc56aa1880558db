"""What a leader knows of each replica that follows it, from the fetches of its own leader epoch (B5).

Invariants: a position is known only from a fetch in the leader's current epoch, so that none is left of what a replica
had before it followed this log (B16, B24); `last_caught_up_ms` never goes back within an epoch; a fetch of an older
broker process changes nothing. Kafka: `Replica`, `ReplicaState`, `RackAwareReplicaSelector` (KIP-392).
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
    """Where a replica asked to read from: it has everything below `fetch_offset`. `broker_epoch` -1 is not checked."""

    replica_id: int
    broker_epoch: int
    fetch_offset: int
    log_start_offset: int


@dataclass(slots=True, eq=False, repr=False)
class FollowerState:
    """One replica, as its fetches show it; -1 stands for what no fetch has told yet."""

    replica_id: int
    broker_epoch: int = NO_EPOCH
    log_start_offset: int = NO_OFFSET
    log_end_offset: int = NO_OFFSET
    last_fetch_ms: int = NEVER_MS
    last_fetch_leader_end_offset: int = NO_OFFSET
    last_caught_up_ms: int = NEVER_MS

    def __repr__(self) -> str:
        return f"<FollowerState {self.replica_id} epoch={self.broker_epoch} leo={self.log_end_offset}>"

    @property
    def has_fetched(self) -> bool:
        """Whether anything is known of it."""
        return self.log_end_offset != NO_OFFSET

    def on_fetch(self, fetch: FollowerFetch, leader_end_offset: int, now_ms: int) -> None:
        """It is caught up now when it has all, and as of its last fetch when it has all that was there then (B5)."""
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
        """Whether it has everything, or had everything not too long ago (B10)."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_max_ms


class FollowerStates:
    """All replicas that follow one leader in one epoch, which began at `now_ms`. `brokers` gives what the metadata says
    of a broker now.
    """

    def __init__(
        self, name: TopicPartition, brokers: Callable[[int], BrokerImage | None],
        *, replica_lag_time_max_ms: int, now_ms: int,
    ) -> None:  # fmt: skip
        self._name = name
        self._brokers = brokers
        self.lag_max_ms = replica_lag_time_max_ms
        self._led_since_ms = now_ms
        self._directories: dict[int, UUID] = {}
        self.by_id: dict[int, FollowerState] = {}

    def __repr__(self) -> str:
        return f"<FollowerStates {list(self.by_id.values())}>"

    def update(self, state: PartitionImage, leader_id: int, in_sync: Sequence[int], now_ms: int) -> None:
        """The replicas may have changed. One in sync gets time to show it (B16)."""
        self._directories = dict(zip(state.replicas, state.directories, strict=True))
        self.by_id = {
            each: self.by_id.get(each)
            or FollowerState(each, last_caught_up_ms=now_ms if each in in_sync else NEVER_MS)
            for each in state.replicas
            if each != leader_id
        }

    def find(self, fetch: FollowerFetch) -> FollowerState:
        """The follower that fetches. Raises NotLeaderOrFollower when it is no replica, or an older process of its
        broker: that says nothing about the log which its successor has (B5).
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
        """Whether all of these followers have, so that none has records any more that the leader lacks."""
        return all(each.has_fetched for each in self.by_id.values() if each.replica_id in replica_ids)

    # ---- Which of them count -----------------------------------------------------------------------------------------

    def is_eligible(self, follower: FollowerState) -> bool:
        """Whether the metadata lets it into the ISR: it is active, and the process that fetched is that one (B11).

        Beyond Kafka, the directory of its replica is not offline: it would be waited for until it lags.
        """
        broker = self._brokers(follower.replica_id)
        if broker is None or not broker.is_active or not follower.has_fetched:
            return False
        if self._is_offline(follower, broker):
            return False
        return follower.broker_epoch in (NO_EPOCH, broker.broker_epoch)

    def live(self, maximal_isr: Sequence[int], now_ms: int) -> list[FollowerState]:
        """Those that can be expected to have soon what the leader's log has: their brokers are not fenced.

        Beyond Kafka, a replica is not waited for whose directory is offline, or that is out of sync and has not fetched
        for as long as takes a member out of the ISR: its disk may be full. Before it is in sync again, it begins where
        this log begins.
        """
        return [each for each in self.by_id.values() if self._is_alive(each, maximal_isr, now_ms)]

    def _is_alive(self, follower: FollowerState, maximal_isr: Sequence[int], now_ms: int) -> bool:
        broker = self._brokers(follower.replica_id)
        if broker is None or broker.is_fenced or self._is_offline(follower, broker):
            return False
        seen_ms = max(follower.last_fetch_ms, self._led_since_ms)
        return follower.replica_id in maximal_isr or now_ms - seen_ms <= self.lag_max_ms

    def _is_offline(self, follower: FollowerState, broker: BrokerImage) -> bool:
        """Whether its broker has told that the directory of this replica failed, or is full."""
        return self._directories[follower.replica_id] in broker.offline_directories

    def read_replica(self, candidates: Sequence[FollowerState], rack_id: str, fetch_offset: int) -> int:
        """The most caught up of the candidates in the reader's rack that have the offset; -1: there is none (G15)."""
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
        """Whether the broker is there to read from, in that rack."""
        broker = self._brokers(broker_id)
        return broker is not None and not broker.is_fenced and broker.registration.rack == rack_id

    def broker_epoch(self, broker_id: int) -> int:
        """Of the process that was seen to fetch, for another one that the metadata knows by now may lack records; the
        leader's own is what the metadata says.
        """
        follower = self.by_id.get(broker_id)
        if follower is not None:
            return follower.broker_epoch
        broker = self._brokers(broker_id)
        return NO_EPOCH if broker is None else broker.broker_epoch


# The ISR: what the controller has committed, and what the leader has proposed without an answer yet (B2, B12).
#
# Invariants: one proposal at a time; `maximal` holds every replica that may be in the committed ISR once the controller
# has answered, whatever it answers, so a leader that counts all of them commits nothing that a member lacks.
# Kafka: `PartitionState`, `CommittedPartitionState`, `PendingExpandIsr`, `PendingShrinkIsr`.


@dataclass(frozen=True, slots=True, repr=False)
class IsrState:
    """The committed ISR and the proposal that would change it."""

    committed: tuple[int, ...] = ()
    proposal: AlterPartitionItem | None = None
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
    """What a leader does after an answer to its proposal."""

    ACCEPTED = auto()
    REVERTED = auto()  # the controller has not done it, and will not: it has raised the partition epoch
    AWAITS_METADATA = auto()  # the leader's picture is too old to propose anything
    RETRIED = auto()


# B12. An error that is not known says nothing about what was done: the same is proposed again (RETRIED).
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
