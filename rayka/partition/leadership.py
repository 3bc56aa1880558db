"""The leader of a partition and its epoch, and for the leader: its followers, the ISR, and the ISR that it proposes.

Invariants: neither epoch falls; of two states of one partition epoch the first counts, for the answer to a proposal may
come before the metadata says the same; one proposal is pending at a time; no proposal lacks the leader; a follower's
position is known only from this leader epoch. Kafka: the state of `cluster/Partition.scala` (B2, B5, B10-B12, B16, B17,
B41).
"""

from collections.abc import Callable
from uuid import UUID

from rayka.errors import InvariantBroken, NotLeaderOrFollower
from rayka.ids import NO_EPOCH, NO_NODE, TopicPartition
from rayka.metadata.image import BrokerImage, PartitionImage
from rayka.partition.follower_states import NEVER_MS, FollowerFetch, FollowerState, new_states
from rayka.partition.isr import IsrState, Outcome, outcome_of
from rayka.partition.watermarks import low_watermark
from rayka.protocol.replica_reports import (
    AlterPartitionItem,
    AlterPartitionResult,
    IsrMember,
    LeaderRecoveryState,
)


class Leadership:
    """The replicas of one partition, as one of their brokers knows them."""

    def __init__(
        self, topic_partition: TopicPartition, topic_id: UUID, broker_id: int,
        *, brokers: Callable[[int], BrokerImage | None], replica_lag_time_max_ms: int,
    ) -> None:  # fmt: skip
        self._topic_partition = topic_partition
        self._topic_id = topic_id
        self._broker_id = broker_id
        self._brokers = brokers
        self._lag_max_ms = replica_lag_time_max_ms
        self.leader_id = NO_NODE
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        self.recovery_state = LeaderRecoveryState.RECOVERED
        self.replicas: tuple[int, ...] = ()
        self._directories: tuple[UUID, ...] = ()  # in the order of the replicas
        self.isr = IsrState()
        self.followers: dict[int, FollowerState] = {}
        self._led_since_ms = NEVER_MS  # since when in this leader epoch

    def __repr__(self) -> str:
        return (
            f"<Leadership {self._topic_partition} leader={self.leader_id} epoch={self.leader_epoch}"
            f" partition_epoch={self.partition_epoch} {self.isr!r}>"
        )

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self._broker_id

    # ---- What the metadata says ------------------------------------------------------------------------

    def update(self, state: PartitionImage, now_ms: int) -> None:
        """Takes over a state that is not older (B16, B17).

        A newer one ends a pending proposal, which the controller can only refuse now. A state of this very partition
        epoch does not: it is what the proposal was made upon, and may still be accepted.
        """
        if state.partition_epoch < self.partition_epoch:
            raise InvariantBroken(f"{self!r}: {state!r} is of an earlier partition epoch")
        if state.leader_epoch < self.leader_epoch:
            raise InvariantBroken(f"{self!r}: {state!r} is of an earlier leader epoch")
        is_new_leader_epoch = state.leader_epoch > self.leader_epoch
        is_newer = state.partition_epoch > self.partition_epoch
        self.leader_id, self.leader_epoch = state.leader_id, state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas, self._directories = state.replicas, state.directories
        self.recovery_state = state.leader_recovery_state
        if not self.is_leader:
            self.isr, self.followers = IsrState(), {}
            return
        if is_newer:
            self.isr = IsrState(state.isr)
        if is_new_leader_epoch:
            self._led_since_ms = now_ms
        self._update_followers({} if is_new_leader_epoch else self.followers, now_ms)

    def _update_followers(self, known: dict[int, FollowerState], now_ms: int) -> None:
        """What is known of a follower counts within a leader epoch; a new one has not fetched (B16)."""
        others = [each for each in self.replicas if each != self._broker_id]
        fresh = new_states(others, self.isr.committed, now_ms)
        self.followers = {each: known.get(each, fresh[each]) for each in others}
        if not all(each == self._broker_id or each in self.followers for each in self.isr.maximal):
            raise InvariantBroken(f"{self!r}: a member of the ISR is no follower")

    # ---- What followers have ---------------------------------------------------------------------------

    def follower(self, fetch: FollowerFetch) -> FollowerState:
        """The follower that fetches. Raises NotLeaderOrFollower when it is no replica, or an older process of its
        broker: that says nothing about the log which its successor has (B5).
        """
        follower = self.followers.get(fetch.replica_id)
        if follower is None:
            raise NotLeaderOrFollower(
                f"{self._topic_partition}: broker {fetch.replica_id} is none of its replicas {list(self.replicas)}"
            )
        if fetch.broker_epoch != NO_EPOCH:
            broker = self._brokers(fetch.replica_id)
            known = follower.broker_epoch if broker is None else broker.broker_epoch
            if fetch.broker_epoch < max(known, follower.broker_epoch):
                raise NotLeaderOrFollower(
                    f"{self._topic_partition}: expected broker {fetch.replica_id} in epoch"
                    f" {max(known, follower.broker_epoch)} or later, found {fetch.broker_epoch}; register again"
                )
        return follower

    def committed_offset(self, own_offset: int, log_end_offset: int, now_ms: int) -> int:
        """What the maximal ISR has, and every follower that is about to join it (B1).

        The latter, because a follower that is as far as the leader would otherwise never stay so: a leader alone in the
        ISR would commit each record at once, and the follower would be behind whenever it is looked at.
        """
        lowest, maximal = own_offset, self.isr.maximal
        for each in self.followers.values():
            if each.log_end_offset < lowest and (
                each.replica_id in maximal or self._is_joining(each, log_end_offset, now_ms)
            ):
                lowest = each.log_end_offset
        return lowest

    def _is_joining(self, follower: FollowerState, log_end_offset: int, now_ms: int) -> bool:
        is_caught_up = follower.is_caught_up(log_end_offset, now_ms, self._lag_max_ms)
        return is_caught_up and self._is_eligible(follower)

    def low_watermark(self, own_start_offset: int, now_ms: int) -> int:
        """The lowest log start offset of all live replicas; -1 while one of them has not told it (G11)."""
        return low_watermark(own_start_offset, self.live_followers(now_ms))

    def live_followers(self, now_ms: int) -> list[FollowerState]:
        """Those that can be expected to have soon what this log has: their brokers are not fenced.

        Beyond Kafka, a replica is not waited for whose directory is offline, or that is out of sync and has not fetched
        for as long as takes a member out of the ISR: its disk may be full. Before it is in sync again, it begins where
        this log begins.
        """
        return [each for each in self.followers.values() if self._is_alive(each, now_ms)]

    def in_sync_followers(self, log_end_offset: int, now_ms: int) -> list[FollowerState]:
        """Members of the committed ISR that are not about to leave it."""
        members = [each for each in self.followers.values() if each.replica_id in self.isr.committed]
        return [each for each in members if each.is_caught_up(log_end_offset, now_ms, self._lag_max_ms)]

    def _is_alive(self, follower: FollowerState, now_ms: int) -> bool:
        broker = self._brokers(follower.replica_id)
        if broker is None or broker.is_fenced or self._is_offline(follower, broker):
            return False
        heard_ms = max(follower.last_fetch_ms, self._led_since_ms)
        return follower.replica_id in self.isr.maximal or now_ms - heard_ms <= self._lag_max_ms

    def _is_offline(self, follower: FollowerState, broker: BrokerImage) -> bool:
        """Whether its broker has told that the directory of this replica failed, or is full."""
        return self._directories[self.replicas.index(follower.replica_id)] in broker.offline_directories

    # ---- Proposals -------------------------------------------------------------------------------------

    def maybe_expand(self, follower: FollowerState, needed_offset: int) -> AlterPartitionItem | None:
        """A proposal with this follower, if it reaches the offset (B11)."""
        if follower.replica_id in self.isr.committed or self.isr.is_pending:
            return None
        if follower.log_end_offset < needed_offset or not self._is_eligible(follower):
            return None
        return self._propose((*self.isr.committed, follower.replica_id))

    def _is_eligible(self, follower: FollowerState) -> bool:
        """Whether the metadata lets it into the ISR: it is active, and the process that fetched is that one (B11).

        Beyond Kafka, the directory of its replica is not offline: it would be waited for until it lags.
        """
        broker = self._brokers(follower.replica_id)
        if broker is None or not broker.is_active or not follower.has_fetched:
            return False
        if self._is_offline(follower, broker):
            return False
        return follower.broker_epoch in (NO_EPOCH, broker.broker_epoch)

    def maybe_shrink(self, log_end_offset: int, now_ms: int) -> AlterPartitionItem | None:
        """A proposal without the members that have not been caught up for too long (B10)."""
        if not self.is_leader or self.isr.is_pending:
            return None
        late = [
            each.replica_id
            for each in self.followers.values()
            if not each.is_caught_up(log_end_offset, now_ms, self._lag_max_ms)
        ]
        kept = tuple(each for each in self.isr.committed if each not in late)
        return self._propose(kept) if len(kept) < len(self.isr.committed) else None

    def maybe_recover(self) -> AlterPartitionItem | None:
        """A proposal that only says that this leader, elected uncleanly, has recovered: its log is what it is (B41).
        None while another one is pending, which says so too.
        """
        is_recovering = self.recovery_state is LeaderRecoveryState.RECOVERING
        if not self.is_leader or self.isr.is_pending or not is_recovering:
            return None
        return self._propose(self.isr.committed)

    def _propose(self, isr: tuple[int, ...]) -> AlterPartitionItem:
        """The proposal is pending from now on."""
        if self.isr.is_pending:
            raise InvariantBroken(f"{self!r}: an ISR is proposed already")
        if self._broker_id not in isr:
            raise InvariantBroken(f"{self!r}: a leader does not leave the ISR {isr}")
        item = AlterPartitionItem(
            self._topic_id,
            self._topic_partition.partition,
            self.leader_epoch,
            self.partition_epoch,
            tuple(IsrMember(each, self._broker_epoch(each)) for each in isr),
            LeaderRecoveryState.RECOVERED,
        )
        self.isr = IsrState(self.isr.committed, item)
        return item

    def _broker_epoch(self, replica_id: int) -> int:
        """Of the process that was seen to fetch; another one that the metadata knows by now may lack records."""
        if replica_id != self._broker_id:
            return self.followers[replica_id].broker_epoch
        broker = self._brokers(replica_id)
        return NO_EPOCH if broker is None else broker.broker_epoch

    def on_alter_partition(
        self, item: AlterPartitionItem, result: AlterPartitionResult
    ) -> AlterPartitionItem | None:
        """What became of a proposal; what is returned is to be proposed again (B12).

        An answer to a proposal that is not pending any more is ignored: newer metadata came first.
        """
        if self.isr.proposal != item:
            return None
        outcome = outcome_of(result.error_code)
        if outcome is Outcome.RETRIED:
            return item
        if outcome is Outcome.REVERTED:
            self.isr = IsrState(self.isr.committed)
        elif outcome is Outcome.ACCEPTED:
            self._accept(result)
        return None

    def _accept(self, result: AlterPartitionResult) -> None:
        """The ISR is what the controller says, if that is of this leader epoch; of another the metadata will tell."""
        if result.leader_epoch != self.leader_epoch or result.partition_epoch < self.partition_epoch:
            return
        self.isr, self.partition_epoch = IsrState(result.isr), result.partition_epoch
        self.recovery_state = result.leader_recovery_state
