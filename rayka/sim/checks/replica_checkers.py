"""The invariants of every partition's replicas, checked after each event on a broker that changed something.

The rules are P1-P6 of the published TLA+ models (kafka.md §3.8) in terms that can be seen from outside: which replica
holds which batch, what a leader says is committed, what the controller has committed about leader, ISR and ELR.
`partition_truth` remembers it, and says which losses are legal; `partition_states` looks at the controller's side.
"""

from collections.abc import Mapping, Sequence

from rayka.config.topic_config import FlushPolicy
from rayka.errors import CorruptRecord, ErrorCode
from rayka.ids import TopicIdPartition
from rayka.log.leader_epoch_cache import EpochStart
from rayka.partition.partition import Partition
from rayka.protocol.produce import ACKS_ALL, ProduceRequest, ProduceResponse
from rayka.sim.checks.checkers import Checkers
from rayka.sim.checks.compacted_logs import batch_of, first_missing, is_part_of, missing_offsets, wrongly_gone
from rayka.sim.checks.data_history import DataHistory
from rayka.sim.checks.partition_truth import Batch, PartitionTruth, epoch_at
from rayka.sim.checks.replica_views import (
    Replication,
    ReplicaView,
    agreed_end,
    batches_of,
    committed_by,
    holds_committed,
)


class ReplicaCheckers:
    """Looks at the replicas of one run."""

    def __init__(self, checkers: Checkers, history: DataHistory, replication: Replication) -> None:
        self._checkers = checkers
        self._history = history
        self._replication = replication

    def _report(self, checker: str, view: ReplicaView, evidence: str) -> None:
        self._checkers.report(checker, view.node_id, f"{view!r}: {evidence}; {view.truth!r}")

    # ---- One replica -------------------------------------------------------------------------------------------------

    def open(self, node_id: int, partition: Partition) -> ReplicaView:
        """A process has opened its replica: what survived the end of the one before is seen."""
        key = TopicIdPartition(partition.topic_id, partition.topic_partition.partition)
        truth = self._replication.truths.get(key)
        if truth is None:
            truth = PartitionTruth(str(partition.topic_partition), key.topic_id, key.partition)
            self._replication.truths[key] = truth
        view = ReplicaView(node_id, partition, truth)
        self._replication.add(view)
        if partition.log.log_end_offset == 0:
            truth.begun.pop(node_id, None)
        elif node_id in truth.damaged:
            # The log start lasts longer than what was not synced (B32): the records, or the producers of those before.
            truth.begun[node_id] = partition.log.log_start_offset
        truth.is_compacted = truth.is_compacted or partition.config.is_compacted
        self.look(view)
        self._check_kept(view)
        if truth.is_compacted:
            self._check_compacted(view)
        return view

    def _check_kept(self, view: ReplicaView) -> None:
        """Members of the ISR and of the ELR hold all committed records, also after a restart (B33)."""
        truth, state = view.truth, self._replication.state_of(view.truth)
        if (
            state is None
            or truth.awaits_loss
            or view.node_id not in state.isr + state.eligible_leader_replicas
        ):
            return
        if not holds_committed(view):
            self._report("isr-member", view, f"it was opened so, and may be elected: {state!r}")

    def look(self, view: ReplicaView) -> None:
        """Something of the replica has changed."""
        partition, log = view.partition, view.partition.log
        before, view.epochs = view.epochs, log.epochs.entries
        # No deletion goes beyond a log's end: it fetches from the leader's start.
        if log.log_start_offset > view.end:
            view.truth.begun[view.node_id] = log.log_start_offset
        if log.truncation_count != view.truncations or log.log_end_offset < view.end:
            self._on_truncated(view, before)
        if log.log_end_offset != view.end:
            self._on_grown(view)
        if partition.leader_epoch != view.leader_epoch:
            self._on_leader_epoch(view)
        if partition.high_watermark != view.high_watermark:
            self._on_high_watermark(view)
        if partition.maximal_isr is not view.maximal_isr:
            view.maximal_isr = partition.maximal_isr
            self.check_maximal_isr(view)
        if log.replacements.count != view.replacements:
            view.replacements = log.replacements.count
            self._check_compacted(view)
        if log.log_start_offset != view.log_start_offset:
            view.log_start_offset = log.log_start_offset
            self._check_expired(view)

    def _check_expired(self, view: ReplicaView) -> None:
        """Nothing goes that retention has to keep (F11). Where losses or rot are legal, others look."""
        truth = view.truth
        is_excused = truth.losses or truth.awaits_loss or view.node_id in truth.damaged
        if not is_excused and view.node_id not in self._replication.rotten:
            offset_ms = self._checkers.machines[view.node_id].wall_offset_ms
            problem = wrongly_gone(view, self._checkers.loop.wall_clock_ms + offset_ms)
            if problem:
                self._report("retention", view, problem)
        truth.expired_up_to = max(truth.expired_up_to, view.log_start_offset)
        if view.is_leader:
            truth.log_start_offset = max(truth.log_start_offset, view.log_start_offset)

    def _check_compacted(self, view: ReplicaView) -> None:
        """Nothing disappears that compaction has to keep (F22, F23). Where losses or rot are legal, others look."""
        truth, state = view.truth, self._replication.state_of(view.truth)
        is_excused = truth.losses or truth.awaits_loss or view.node_id in truth.damaged
        is_excused = is_excused or state is None or view.node_id in self._replication.rotten
        try:
            missing = missing_offsets(view)
        except CorruptRecord as error:
            if not is_excused:
                self._report("compaction", view, str(error))
            return
        truth.compacted |= missing
        if is_excused:
            return
        has_clock_jumps = any(each.wall_offset_ms for each in self._checkers.machines.values())
        wall_ms = self._checkers.loop.wall_clock_ms
        problem = first_missing(view, missing, wall_ms, has_clock_jumps=has_clock_jumps)
        if problem:
            self._report("compaction", view, problem)

    # ---- Logs --------------------------------------------------------------------------------------------------------

    def _on_truncated(self, view: ReplicaView, before: Sequence[EpochStart]) -> None:
        """No replica cuts off committed records (B22, B27)."""
        truth, log = view.truth, view.partition.log
        kept = log.log_end_offset
        first_lost = truth.at(kept) if kept < min(view.end, truth.end) else None
        is_committed = first_lost is not None and epoch_at(before, kept) == first_lost.epoch
        is_excused = truth.awaits_loss or (truth.is_compacted and truth.losses)  # it ends before a gap
        if is_committed and not is_excused and kept >= truth.log_start_offset:
            self._report("partition-truncation", view, f"it was cut from {view.end} to {kept}")
        view.truncations = log.truncation_count
        view.end = log.log_start_offset  # it may have been cut deeper before it grew again

    def _on_grown(self, view: ReplicaView) -> None:
        """Batches are new here: of one epoch and offset there is one batch in the world (P3)."""
        truth, log = view.truth, view.partition.log
        is_rotten = view.node_id in self._replication.rotten
        for batch in batches_of(log, max(view.end, log.log_start_offset)):
            known = truth.batches.get((batch.leader_epoch, batch.base_offset))
            if is_rotten and not batch.is_crc_valid():
                continue
            found = batch_of(batch)
            if (
                known is not None
                and found.crc != known.crc
                and truth.is_compacted
                and is_part_of(batch, known)
            ):
                found = known
            if truth.hold(view.node_id, found) != found:
                self._report("log-matching", view, f"holds {found}, and another replica held {known}")
            elif known is None and view.is_leader and batch.leader_epoch != view.leader_epoch:
                self._report(
                    "partition-leader", view, f"leads epoch {view.leader_epoch} and appended {found}"
                )
        view.end = log.log_end_offset

    # ---- Leaders -----------------------------------------------------------------------------------------------------

    def _on_leader_epoch(self, view: ReplicaView) -> None:
        partition, truth = view.partition, view.truth
        view.leader_epoch, view.is_leader = partition.leader_epoch, partition.is_leader
        if not view.is_leader:
            return
        self._checkers.trace.add(
            view.node_id, "leads", f"{truth.name} in epoch {view.leader_epoch} from {view.end}"
        )
        known = truth.leaders.setdefault(view.leader_epoch, view.node_id)
        if known != view.node_id:
            self._report("partition-leader", view, f"broker {known} has led epoch {view.leader_epoch}")
        state = self._replication.state_of(truth)
        if state is not None and view.leader_epoch >= truth.loss_epoch:
            self._check_completeness(view, is_newest=state.leader_epoch == view.leader_epoch)

    def _check_completeness(self, view: ReplicaView, *, is_newest: bool) -> None:
        """A leader has everything that was committed before (P2), unless this is the loss that was expected."""
        truth = view.truth
        agreed = agreed_end(view)
        if truth.awaits_loss and is_newest:
            why, truth.awaits_loss = truth.awaits_loss, ""
            if agreed < truth.end:
                self._checkers.trace.add(view.node_id, "lost", f"{truth.name} from {agreed} on: {why}")
            self._history.on_lost(truth.lose(self._checkers.now_ms, agreed, view.leader_epoch))
            truth.damaged.pop(view.node_id, None)
            self._extend(view)  # as it was told before it led
        elif agreed < truth.end_before(view.leader_epoch) and not truth.awaits_loss:
            self._report(
                "partition-completeness", view, f"it leads, and agrees with what is committed up to {agreed}"
            )

    # ---- High watermarks ---------------------------------------------------------------------------------------------

    def _on_high_watermark(self, view: ReplicaView) -> None:
        before, view.high_watermark = view.high_watermark, view.partition.high_watermark
        if view.high_watermark > view.partition.log.log_end_offset:
            self._report("partition-high-watermark", view, "it is above the log's end")
        elif self._is_forlorn(view):
            self._on_forlorn(view, before)
        elif view.is_leader:
            self._on_committed(view, before)
        elif view.high_watermark > before:
            self._check_prefix(view)

    def _is_forlorn(self, view: ReplicaView) -> bool:
        """Whether it follows, or is, a leader that was deposed by a legal loss, though the next may not know yet."""
        truth, state = view.truth, self._replication.state_of(view.truth)
        is_deposed = state is not None and view.leader_epoch < state.leader_epoch
        return view.leader_epoch < truth.loss_epoch or (bool(truth.awaits_loss) and is_deposed)

    def _on_forlorn(self, view: ReplicaView, before: int) -> None:
        """A leader that an unclean election has deposed, and does not know it: what it says is lost as it is said."""
        if view.is_leader:
            for batch in committed_by(view, before):
                self._history.on_lost([batch])
                view.truth.lost.setdefault(batch.base_offset, []).append(batch)

    def _on_committed(self, view: ReplicaView, before: int) -> None:
        """A leader says that more is committed (B1, P5)."""
        truth = view.truth
        if view.high_watermark < before and view.leader_epoch in truth.leaders:
            self._report("partition-high-watermark", view, f"it falls from {before}")
            return
        self._check_prefix(view)
        start = view.partition.log.log_start_offset
        truth.log_start_offset = max(truth.log_start_offset, start)
        if self._extend(view):
            self._check_members(view)

    def _extend(self, view: ReplicaView) -> bool:
        """Whether the leader has said that more is committed than any leader before."""
        truth = view.truth
        news = list(committed_by(view, truth.end))
        for batch in news:
            if batch.base_offset != truth.end and not truth.losses:
                self._report("partition-prefix", view, f"{batch} does not follow what is committed")
                return False
            truth.extend(batch, view.leader_epoch)
            problem = self._history.on_committed(truth, batch)
            if problem:
                self._report(problem[0], view, problem[1])
                return False
        return bool(news)

    def _check_members(self, view: ReplicaView) -> None:
        """Each member of the committed ISR holds the committed records (`StrongIsr`, `LeaderCandidateCompleteness`)."""
        truth, state = view.truth, self._replication.state_of(view.truth)
        if state is None:
            return
        for node_id in state.isr + state.eligible_leader_replicas:
            if not truth.has_held(node_id, truth.end, truth.last_epoch):
                self._report(
                    "isr-high-watermark", view,
                    f"commits up to {truth.end}, which broker {node_id} never held: {state!r}",
                )  # fmt: skip

    def _check_prefix(self, view: ReplicaView) -> None:
        """The records below a replica's high watermark are the committed records (P3)."""
        truth = view.truth
        end = min(view.high_watermark, truth.end)
        if end > truth.log_start_offset and end > view.partition.log.log_start_offset:
            last = end - 1
            expected, found = truth.at(last), epoch_at(view.epochs, last)
            is_other = expected is not None and found != expected.epoch
            if is_other and not truth.awaits_loss and not _is_compacted_away(view, last):
                self._report(
                    "partition-prefix", view, f"at {last} it has epoch {found}, committed is {expected}"
                )
        known = max(truth.end, view.partition.log.log_start_offset)  # what is deleted is no news
        if not view.is_leader and view.high_watermark > known and not truth.awaits_loss:
            self._report(
                "partition-high-watermark", view, "a follower is the first to say that so much is committed"
            )

    # ---- Acknowledgements --------------------------------------------------------------------------------------------

    def on_produced(
        self, min_isr: Mapping[str, int], node_id: int, request: ProduceRequest, response: ProduceResponse
    ) -> None:
        """A broker has answered: what it acknowledges with acks=all is committed, and enough replicas have it (B15)."""
        if request.acks != ACKS_ALL:
            return
        for result in response.partitions:
            truth = self._replication.truths.get(TopicIdPartition(result.topic_id, result.partition))
            state = None if truth is None else self._replication.state_of(truth)
            if result.error_code is not ErrorCode.NONE or truth is None or state is None:
                continue
            batch = truth.at(result.base_offset)
            if batch is None:
                if not truth.losses and not truth.awaits_loss:
                    self._checkers.report(
                        "acknowledged-early",
                        node_id,
                        f"{truth!r}: {result.base_offset} was acknowledged: {state!r}",
                    )
                continue
            view = self._replication.views.get((node_id, TopicIdPartition(truth.topic_id, truth.number)))
            if view is not None and view.partition.config.flush is FlushPolicy.BATCH:
                self._check_flushed(view, batch)
            holders = [each for each in truth.held if truth.has_held(each, batch.next_offset, batch.epoch)]
            needed = min(
                min_isr.get(truth.name.rpartition("-")[0], 1), len(state.replicas), truth.fewest_replicas
            )
            if len(holders) < needed:
                self._checkers.report(
                    "min-isr",
                    node_id,
                    f"{truth!r}: {batch} was acknowledged; {holders} have it, {needed} must",
                )

    def _check_flushed(self, view: ReplicaView, batch: Batch) -> None:
        """With `flush=batch` an acknowledgement says that the leader's disk has it."""
        flushed = view.partition.log.flushed_offset
        if view.is_leader and view.leader_epoch == batch.epoch and flushed < batch.next_offset:
            self._report("flushed", view, f"{batch} was acknowledged, the disk has what is below {flushed}")

    # ---- ISR ---------------------------------------------------------------------------------------------------------

    def check_maximal_isr(self, view: ReplicaView) -> None:
        """The leader counts every member that the controller has committed (B2, P6)."""
        state = self._replication.state_of(view.truth)
        if state is None or not view.is_leader or state.leader_epoch != view.leader_epoch:
            return
        uncounted = [each for each in state.isr if each not in view.maximal_isr]
        if uncounted:
            self._report("maximal-isr", view, f"counts {view.maximal_isr}; committed is {state!r}")


def _is_compacted_away(view: ReplicaView, offset: int) -> bool:
    """Whether the replica has no batch there, so that it need not know an epoch of it: it copied from a log that was
    compacted already.
    """
    first = next(batches_of(view.partition.log, offset), None)
    return view.truth.is_compacted and (first is None or first.base_offset > offset)
