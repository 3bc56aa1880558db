"""What this broker does as the leader of one partition, in one leader epoch: it appends, counts what its followers
have, advances the high watermark and proposes ISRs. The next epoch gets another object: nothing of this one is left.

Invariants: the high watermark of one leadership never falls; a leader counts the maximal ISR, of which the committed
one is a part; the partition epoch does not fall, and of two states of one partition epoch the first counts, for the
answer to a proposal may come before the metadata says the same; one proposal is pending at a time; no proposal lacks
the leader; with `flush=batch` the high watermark stays below what a power cut would take of this leader's log, so no
reader gets a record that can vanish, and no producer got its acknowledgement.
Kafka: the leader's half of `cluster/Partition.scala` (B1, B2, B5, B10-B12, B15, B16, B18, B41; G11, G13, G15).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from rayka.errors import (
    ApiError,
    InvariantBroken,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordsRefused,
    RecordTooLarge,
    StorageError,
)
from rayka.ids import NO_NODE, NO_OFFSET, NO_TIMESTAMP, OffsetAndEpoch
from rayka.metadata.image import PartitionImage
from rayka.partition.follower_states import (
    PROPOSAL_OUTCOMES,
    FollowerFetch,
    FollowerState,
    FollowerStates,
    IsrState,
    ProposalOutcome,
)
from rayka.partition.replica_log import ReplicaLog
from rayka.partition.validation import is_stamped_by_broker, own_batch, validate_batches
from rayka.ports import Buffer
from rayka.protocol.batch_format import RecordBatch, split_batches
from rayka.protocol.membership import (
    AlterPartitionItem,
    AlterPartitionResult,
    IsrMember,
    LeaderRecoveryState,
)
from rayka.protocol.produce import ACKS_ALL


class Appended(NamedTuple):
    """An append that is to be acknowledged: where it is, in which epoch, whether a sync must come first, and whether it
    has moved the high watermark."""

    base_offset: int
    required_offset: int
    leader_epoch: int
    log_append_time_ms: int
    needs_sync: bool
    is_high_watermark_raised: bool


ProduceOutcome = Appended | ApiError | StorageError


class FollowerUpdate(NamedTuple):
    """What a follower's fetch has changed, and what is to be proposed to the controller because of it."""

    is_high_watermark_raised: bool = False
    is_low_watermark_raised: bool = False
    proposal: AlterPartitionItem | None = None


_NO_UPDATE = FollowerUpdate()
_PREMATURE = "unless a replica in sync that does not follow yet has it and leads next; try again"


class PartitionLeader:
    """The leader of a partition. Its epoch begins at the log end offset, also when it will own no record (B16)."""

    def __init__(
        self, replica: ReplicaLog, state: PartitionImage, followers: FollowerStates, now_ms: int
    ) -> None:
        self._replica = replica
        self.followers = followers
        self.epoch_start_offset = replica.log.log_end_offset
        # The first of the epochs without a gap in which this broker leads; all it appended since then is in the log.
        self.lead_began = OffsetAndEpoch(self.epoch_start_offset, state.leader_epoch)
        self.state = state
        self.isr = IsrState(state.isr)
        self._update_followers(now_ms)

    def __repr__(self) -> str:
        return f"<PartitionLeader {self._replica.topic_partition} {self.state!r} {self.isr!r}>"

    # ---- What the metadata says -------------------------------------------------------------------------------------

    def update(self, state: PartitionImage, now_ms: int) -> None:
        """Takes over a state of this leader epoch that is not older.

        A newer one ends a pending proposal, which the controller can only refuse now. A state of this very partition
        epoch does not: it is what the proposal was made upon, and may still be accepted.
        """
        if state.partition_epoch > self.state.partition_epoch:
            self.isr = IsrState(state.isr)
        self.state = state
        self._update_followers(now_ms)

    def _update_followers(self, now_ms: int) -> None:
        leader_id, isr = self._replica.broker_id, self.isr
        self.followers.update(self.state, leader_id, isr.committed, now_ms)
        if not all(each == leader_id or each in self.followers.by_id for each in isr.maximal):
            raise InvariantBroken(f"{self!r}: a member of the ISR is no follower")

    # ---- What is committed ------------------------------------------------------------------------------------------

    def maybe_increment_high_watermark(self, now_ms: int) -> bool:
        """Whether the high watermark rose: to what the maximal ISR has, if the ISR is large enough (B1)."""
        if len(self.isr.committed) < self.effective_min_isr:
            return False
        replica, log = self._replica, self._replica.log
        log_end_offset = log.log_end_offset
        own_offset = log.flushed_offset if replica.is_flushed_in_batches else log_end_offset
        committed = self.committed_offset(own_offset, log_end_offset, now_ms)
        if committed <= replica.high_watermark:
            return False
        replica.high_watermark = committed
        if not log.log_start_offset <= committed <= log_end_offset:
            raise InvariantBroken(f"{replica!r}: {committed} is outside the log")
        return True

    @property
    def effective_min_isr(self) -> int:
        """How many replicas must be in sync for records to be committed (B1)."""
        return min(self._replica.config.min_insync_replicas, len(self.state.replicas))

    def committed_offset(self, own_offset: int, log_end_offset: int, now_ms: int) -> int:
        """What the maximal ISR has, and every follower that is about to join it (B1).

        The latter, because a follower that is as far as the leader would otherwise never stay so: a leader alone in the
        ISR would commit each record at once, and the follower would be behind whenever it is looked at.
        """
        lowest, maximal = own_offset, self.isr.maximal
        for each in self.followers.by_id.values():
            if each.log_end_offset < lowest and (
                each.replica_id in maximal or self._is_joining(each, log_end_offset, now_ms)
            ):
                lowest = each.log_end_offset
        return lowest

    def _is_joining(self, follower: FollowerState, log_end_offset: int, now_ms: int) -> bool:
        is_caught_up = follower.is_caught_up(log_end_offset, now_ms, self.followers.lag_max_ms)
        return is_caught_up and self.followers.is_eligible(follower)

    # ---- Producing --------------------------------------------------------------------------------------------------

    def append_all(
        self, requests: Iterable[tuple[Buffer, int]], *, now_ms: int, timestamp_ms: int
    ) -> list[ProduceOutcome]:
        """Validates the batches of each request, its records and acks, and appends them (B18): in the order of the
        requests, and in one write where that can be. `now_ms` is monotonic, `timestamp_ms` the wall clock's.

        What is wrong with a request is its outcome: NotEnoughReplicas (B15, nothing written), what `validate_batches`
        raises, OutOfOrderSequence, InvalidProducerEpoch, RecordBatchTooLarge, and StorageError when the disk fails. A
        batch that its producer sent before is where it was (C3), even if the topic would refuse the batch by now,
        because time has gone on or its configuration has changed. OutOfOrderSequence is for good: a producer numbers
        its batches anew then (C11), so as long as a replica in sync may lead next with what this log lacks, it is
        NotEnoughReplicas.
        """
        where = str(self._replica.topic_partition)
        refused: list[ApiError | None] = []
        accepted: list[Sequence[RecordBatch]] = []
        for records, acks in requests:
            try:
                self._check_enough_replicas(acks)
                accepted.append(_validated(self._replica, records, where, timestamp_ms))
                refused.append(None)
            except ApiError as error:
                refused.append(error)
        appended = iter(self._append(accepted, now_ms, timestamp_ms))
        return [next(appended) if each is None else each for each in refused]

    def append_own(self, records: Buffer, *, now_ms: int, timestamp_ms: int) -> Appended:
        """Appends one batch with acks=all that this process has encoded just now (`own_batch`); one that is larger than
        `segment.bytes` gets a larger segment. Raises what would be the outcome of such a request.
        """
        self._check_enough_replicas(ACKS_ALL)
        replica = self._replica
        batch = own_batch(records, replica.config, where=str(replica.topic_partition))
        (outcome,) = self._append([[batch]], now_ms, timestamp_ms, batch_bytes_max=batch.size_bytes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _check_enough_replicas(self, acks: int) -> None:
        if acks == ACKS_ALL and len(self.isr.committed) < self.effective_min_isr:
            raise NotEnoughReplicas(self._too_few_replicas())

    def _append(
        self,
        requests: Sequence[Sequence[RecordBatch]],
        now_ms: int,
        timestamp_ms: int,
        *,
        batch_bytes_max: int | None = None,
    ) -> list[ProduceOutcome]:
        replica, leader_epoch = self._replica, self.state.leader_epoch
        stamp_ms = timestamp_ms if is_stamped_by_broker(replica.config) else None
        found = replica.log.append_all_as_leader(
            requests,
            leader_epoch,
            now_ms=now_ms,
            log_append_time_ms=stamp_ms,
            batch_bytes_max=batch_bytes_max,
        )
        is_raised, needs_sync = self.maybe_increment_high_watermark(now_ms), replica.needs_sync
        outcomes: list[ProduceOutcome] = []
        for info in found:
            if isinstance(info, Exception):
                # A member of the ISR that does not follow yet may lead next, with records that this log lacks.
                is_gap = isinstance(info, OutOfOrderSequence)
                is_premature = is_gap and not self.followers.have_fetched(self.isr.maximal)
                outcomes.append(NotEnoughReplicas(f"{info}, {_PREMATURE}") if is_premature else info)
                continue
            append_time_ms = NO_TIMESTAMP
            if stamp_ms is not None:
                append_time_ms = info.max_timestamp_ms if info.is_duplicate else stamp_ms
            outcomes.append(
                Appended(
                    info.first_offset,
                    info.last_offset + 1,
                    leader_epoch,
                    append_time_ms,
                    needs_sync,
                    is_raised,
                )
            )
        return outcomes

    def is_acknowledged(self, appended: Appended, acks: int) -> bool:
        """Whether the append may be acknowledged to the producer (B15).

        Raises NotLeaderOrFollower when it was appended in an earlier epoch, and NotEnoughReplicasAfterAppend.
        """
        replica = self._replica
        if self.state.leader_epoch != appended.leader_epoch:
            raise NotLeaderOrFollower(
                f"{replica.topic_partition}: the leadership changed before the append was committed"
            )
        if appended.needs_sync and replica.log.flushed_offset < appended.required_offset:
            return False
        if acks != ACKS_ALL:
            return True
        if replica.high_watermark < appended.required_offset:
            return False
        if len(self.isr.committed) < self.effective_min_isr:
            raise NotEnoughReplicasAfterAppend(self._too_few_replicas())
        return True

    def _too_few_replicas(self) -> str:
        return (
            f"{self._replica.topic_partition}: in sync are {list(self.isr.committed)},"
            f" min.insync.replicas={self._replica.config.min_insync_replicas}"
        )

    # ---- Followers --------------------------------------------------------------------------------------------------

    def record_fetch(self, fetch: FollowerFetch, *, now_ms: int) -> FollowerUpdate:
        """A replica has everything below its fetch offset: what changes with that (B5, B11, G13).

        Only for the first read of a fetch that was read without error, in the current leader epoch and without
        diverging (B6, B24). Raises NotLeaderOrFollower when it is not a replica, or an older process of its broker.
        """
        replica = self._replica
        follower = self.followers.find(fetch)
        log_end_offset = replica.log.log_end_offset
        if not 0 <= fetch.fetch_offset <= log_end_offset:
            raise InvariantBroken(f"{replica!r}: {fetch!r} is outside the log")
        is_moved = fetch.fetch_offset != follower.log_end_offset
        old_low = self.low_watermark(now_ms) if fetch.log_start_offset != follower.log_start_offset else None
        follower.on_fetch(fetch, log_end_offset, now_ms)
        proposal = self.maybe_expand(follower, max(replica.high_watermark, self.epoch_start_offset))
        is_raised = is_moved and self.maybe_increment_high_watermark(now_ms)
        is_low_raised = old_low is not None and self.low_watermark(now_ms) > old_low
        if not (is_raised or is_low_raised or proposal):
            return _NO_UPDATE
        return FollowerUpdate(is_raised, is_low_raised, proposal)

    def low_watermark(self, now_ms: int) -> int:
        """The lowest log start offset of all live replicas; -1 while one of them has not told it (G11)."""
        starts = [each.log_start_offset for each in self.live_followers(now_ms)]
        return min([self._replica.log.log_start_offset, *starts])

    def live_followers(self, now_ms: int) -> list[FollowerState]:
        """Those for which a deletion waits (G11)."""
        return self.followers.live(self.isr.maximal, now_ms)

    def delete_records(self, before_offset: int) -> int:
        """Deletes the records below an offset, -1 for the high watermark. They are gone everywhere once the low
        watermark has reached the offset returned (G11). Raises OffsetOutOfRange above the high watermark.
        """
        replica = self._replica
        offset = replica.high_watermark if before_offset == NO_OFFSET else before_offset
        if not 0 <= offset <= replica.high_watermark:
            raise OffsetOutOfRange(
                f"{replica.topic_partition}: expected an offset of 0 to the high watermark {replica.high_watermark},"
                f" or -1 for that, found {before_offset}"
            )
        replica.log.increment_log_start_offset(offset)
        return offset

    def preferred_read_replica(self, *, rack_id: str, fetch_offset: int, now_ms: int) -> int:
        """The replica in the reader's rack that it should read from, a member of the ISR that is not about to leave it;
        -1: from here (G15).
        """
        if not rack_id or self.followers.is_in_rack(self._replica.broker_id, rack_id):
            return NO_NODE
        followers, log_end_offset = self.followers, self._replica.log.log_end_offset
        in_sync = [
            each
            for each in followers.by_id.values()
            if each.replica_id in self.isr.committed
            and each.is_caught_up(log_end_offset, now_ms, followers.lag_max_ms)
        ]
        return followers.read_replica(in_sync, rack_id, fetch_offset)

    # ---- Proposals --------------------------------------------------------------------------------------------------

    def maybe_expand(self, follower: FollowerState, needed_offset: int) -> AlterPartitionItem | None:
        """A proposal with this follower, if it reaches the offset (B11)."""
        if follower.replica_id in self.isr.committed or self.isr.is_pending:
            return None
        if follower.log_end_offset < needed_offset or not self.followers.is_eligible(follower):
            return None
        return self._propose((*self.isr.committed, follower.replica_id))

    def maybe_shrink_isr(self, *, now_ms: int) -> AlterPartitionItem | None:
        """A proposal without the members that have not been caught up for too long (B10). To be asked regularly.

        None when the disk has failed: no replica can follow then, and alone in the ISR this replica would take along
        what the others have.
        """
        if self._replica.failure is not None or self.isr.is_pending:
            return None
        log_end_offset = self._replica.log.log_end_offset
        late = [
            each.replica_id
            for each in self.followers.by_id.values()
            if not each.is_caught_up(log_end_offset, now_ms, self.followers.lag_max_ms)
        ]
        kept = tuple(each for each in self.isr.committed if each not in late)
        return self._propose(kept) if len(kept) < len(self.isr.committed) else None

    def maybe_recover(self) -> AlterPartitionItem | None:
        """A proposal that only says that this leader, elected uncleanly, has recovered: its log is what it is (B41). To
        be asked regularly. None while another one is pending, which says so too.
        """
        is_recovering = self.state.leader_recovery_state is LeaderRecoveryState.RECOVERING
        return self._propose(self.isr.committed) if is_recovering and not self.isr.is_pending else None

    def _propose(self, isr: tuple[int, ...]) -> AlterPartitionItem:
        """The proposal is pending from now on."""
        replica = self._replica
        if self.isr.is_pending:
            raise InvariantBroken(f"{self!r}: an ISR is proposed already")
        if replica.broker_id not in isr:
            raise InvariantBroken(f"{self!r}: a leader does not leave the ISR {isr}")
        item = AlterPartitionItem(
            replica.topic_id,
            replica.topic_partition.partition,
            self.state.leader_epoch,
            self.state.partition_epoch,
            tuple(IsrMember(each, self.followers.broker_epoch(each)) for each in isr),
            LeaderRecoveryState.RECOVERED,
        )
        self.isr = IsrState(self.isr.committed, item)
        return item

    def on_alter_partition(
        self, item: AlterPartitionItem, result: AlterPartitionResult, *, now_ms: int
    ) -> AlterPartitionItem | None:
        """What became of a proposal; what is returned is to be proposed again (B12).

        An answer to a proposal that is not pending any more is ignored: newer metadata came first.
        """
        if self.isr.proposal != item:
            return None
        outcome = PROPOSAL_OUTCOMES.get(result.error_code, ProposalOutcome.RETRIED)
        if outcome is ProposalOutcome.RETRIED:
            return item
        if outcome is ProposalOutcome.REVERTED:
            self.isr = IsrState(self.isr.committed)
        elif outcome is ProposalOutcome.ACCEPTED:
            self._accept(result)
        self.maybe_increment_high_watermark(now_ms)
        return None

    def _accept(self, result: AlterPartitionResult) -> None:
        """The ISR is what the controller says, if that is of this leader epoch; the metadata will say of another."""
        state = self.state
        if result.leader_epoch != state.leader_epoch or result.partition_epoch < state.partition_epoch:
            return
        self.isr = IsrState(result.isr)
        self.state = msgspec.structs.replace(
            state,
            isr=result.isr,
            partition_epoch=result.partition_epoch,
            leader_recovery_state=result.leader_recovery_state,
        )


def _validated(replica: ReplicaLog, records: Buffer, where: str, timestamp_ms: int) -> Sequence[RecordBatch]:
    """The batches, if the topic takes them or the log has them already; raises as `validate_batches`."""
    try:
        return validate_batches(records, replica.config, where=where, timestamp_ms=timestamp_ms)
    except (RecordsRefused, RecordTooLarge):
        batch = next(split_batches(records), None)
        if batch is None or not replica.log.producers.has(batch) or not batch.is_crc_valid():
            raise
        return [batch]
