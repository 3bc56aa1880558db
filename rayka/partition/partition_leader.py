"""The leader of one partition in one leader epoch: it appends, tracks its followers, advances the high watermark and
proposes ISRs. The next epoch gets another object, so nothing of this one is left.

Invariants:
- The high watermark of one leadership never falls.
- A leader counts the maximal ISR, which includes the committed one.
- The partition epoch does not fall. Of two states of one partition epoch the first counts: the answer to a proposal may
  come before the metadata that say the same.
- One proposal is pending at a time, and every proposal contains the leader.
- With `flush=batch` the high watermark stays below the unsynced records of this leader's log. So a record that a power
  cut may take was neither read nor acknowledged.

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
from rayka.protocol.membership import AlterPartitionItem, AlterPartitionResult, IsrMember, LeaderRecoveryState
from rayka.protocol.produce import ACKS_ALL


class Appended(NamedTuple):
    """An append that waits for its acknowledgement."""

    base_offset: int
    # The append is committed when the high watermark reaches this offset.
    required_offset: int
    leader_epoch: int
    # -1: the records keep their own timestamps.
    log_append_time_ms: int
    # The records must be synced before they are acknowledged.
    needs_sync: bool
    # The append itself has raised the high watermark.
    is_high_watermark_raised: bool


ProduceOutcome = Appended | ApiError | StorageError


class FollowerUpdate(NamedTuple):
    """The effects of a follower's fetch, and the proposal that follows from it."""

    is_high_watermark_raised: bool = False
    is_low_watermark_raised: bool = False
    proposal: AlterPartitionItem | None = None


_NO_UPDATE = FollowerUpdate()
_PREMATURE = "unless a replica in sync that does not follow yet has it and leads next; try again"


class PartitionLeader:
    """The leader of a partition. Its epoch begins at the log end offset, even if it never appends a record (B16)."""

    def __init__(
        self, replica: ReplicaLog, state: PartitionImage, followers: FollowerStates, now_ms: int
    ) -> None:
        self._replica = replica
        self.followers = followers
        self.epoch_start_offset = replica.log.log_end_offset
        # The first of the consecutive epochs in which this broker leads; everything it appended since is in the log.
        self.lead_began = OffsetAndEpoch(self.epoch_start_offset, state.leader_epoch)
        self.state = state
        self.isr = IsrState(state.isr)
        self._update_followers(now_ms)

    def __repr__(self) -> str:
        return f"<PartitionLeader {self._replica.topic_partition} {self.state!r} {self.isr!r}>"

    # ---- What the metadata says -------------------------------------------------------------------------------------

    def update(self, state: PartitionImage, now_ms: int) -> None:
        """Takes over a state of this leader epoch that is not older.

        A newer state ends a pending proposal, which the controller can only refuse now. A state of the same partition
        epoch does not: the proposal was based on it, and may still be accepted.
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
        """Raises the high watermark to the offset that the maximal ISR has, if the ISR is large enough (B1). True if it
        rose.
        """
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
        """The offset that the maximal ISR has, and every follower that is about to join it (B1).

        Joining followers count, because they could never join otherwise: a leader alone in the ISR would commit each
        record at once, and a follower would be behind whenever it is looked at.
        """
        lowest, maximal = own_offset, self.isr.maximal
        for each in self.followers.by_id.values():
            if each.log_end_offset < lowest and (
                each.replica_id in maximal
                or (
                    each.is_caught_up(log_end_offset, now_ms, self.followers.lag_max_ms)
                    and self.followers.is_eligible(each)
                )
            ):
                lowest = each.log_end_offset
        return lowest

    # ---- Producing --------------------------------------------------------------------------------------------------

    def append_all(
        self, requests: Iterable[tuple[Buffer, int]], *, now_ms: int, timestamp_ms: int
    ) -> list[ProduceOutcome]:
        """Validates the batches and acks of each request, and appends them (B18): in the order of the requests, in one
        write if possible. `now_ms` is monotonic, `timestamp_ms` the wall clock's.

        An error of a request is its outcome: NotEnoughReplicas (B15, nothing written), the errors of
        `validate_batches`, OutOfOrderSequence, InvalidProducerEpoch, RecordBatchTooLarge, and StorageError when the
        disk fails. A duplicate batch gets its old offsets (C3), even if the topic would refuse it now, because time has
        passed or its configuration has changed.

        OutOfOrderSequence is final: a producer then numbers its batches anew (C11). So while a replica in sync may lead
        next with records that this log lacks, the outcome is NotEnoughReplicas.
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
        """Appends one batch with acks=all that this process has just encoded (`own_batch`). A batch larger than
        `segment.bytes` gets a larger segment. Raises the error that would be the outcome of such a request.
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
                # A member of the ISR that has not fetched yet may lead next, with records that this log lacks.
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
        """Records that a replica has everything below its fetch offset (B5, B11, G13).

        Only for the first read of a fetch, without error, in the current leader epoch and without diverging (B6, B24).
        Raises NotLeaderOrFollower when the sender is not a replica, or is an older process of its broker.
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
        """The lowest log start offset of all live replicas; -1 while one of them has not reported it (G11)."""
        starts = [each.log_start_offset for each in self.live_followers(now_ms)]
        return min([self._replica.log.log_start_offset, *starts])

    def live_followers(self, now_ms: int) -> list[FollowerState]:
        """The followers that a deletion waits for (G11)."""
        return self.followers.live(self.isr.maximal, now_ms)

    def delete_records(self, before_offset: int) -> int:
        """Deletes the records below an offset; -1 stands for the high watermark. Returns the offset; the records are
        gone everywhere once the low watermark has reached it (G11). Raises OffsetOutOfRange above the high watermark.
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
        """The replica in the reader's rack to read from, a caught-up member of the ISR; -1: this broker (G15)."""
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
        """Proposes an ISR with this follower, if it has reached `needed_offset` (B11)."""
        if follower.replica_id in self.isr.committed or self.isr.is_pending:
            return None
        if follower.log_end_offset < needed_offset or not self.followers.is_eligible(follower):
            return None
        return self._propose((*self.isr.committed, follower.replica_id))

    def maybe_shrink_isr(self, *, now_ms: int) -> AlterPartitionItem | None:
        """Proposes an ISR without the members that have not been caught up for too long (B10). Called regularly.

        None when the disk has failed: no replica can follow then, and a proposal with this replica alone would give up
        records that the others have.
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
        """Proposes the committed ISR, which tells that this leader, elected uncleanly, has recovered: its log counts as
        it is (B41). Called regularly. None while another proposal is pending, which tells the same.
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
        """Handles the answer to a proposal; returns the proposal if it must be sent again (B12).

        Ignores an answer to a proposal that is no longer pending: newer metadata came first.
        """
        if self.isr.proposal != item:
            return None
        outcome = PROPOSAL_OUTCOMES.get(result.error_code, ProposalOutcome.RETRIED)
        if outcome is ProposalOutcome.RETRIED:
            return item
        if outcome is ProposalOutcome.REVERTED:
            self.isr = IsrState(self.isr.committed)
        elif outcome is ProposalOutcome.ACCEPTED:
            state = self.state
            # Of another leader epoch the metadata will tell.
            if result.leader_epoch == state.leader_epoch and result.partition_epoch >= state.partition_epoch:
                self.isr = IsrState(result.isr)
                self.state = msgspec.structs.replace(
                    state,
                    isr=result.isr,
                    partition_epoch=result.partition_epoch,
                    leader_recovery_state=result.leader_recovery_state,
                )
        self.maybe_increment_high_watermark(now_ms)
        return None


def _validated(replica: ReplicaLog, records: Buffer, where: str, timestamp_ms: int) -> Sequence[RecordBatch]:
    """The batches, if the topic takes them or the log has them already. Raises as `validate_batches`."""
    try:
        return validate_batches(records, replica.config, where=where, timestamp_ms=timestamp_ms)
    except (RecordsRefused, RecordTooLarge):
        batch = next(split_batches(records), None)
        if batch is None or not replica.log.producers.has(batch) or not batch.is_crc_valid():
            raise
        return [batch]
