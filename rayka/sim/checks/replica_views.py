"""All replicas of partitions with records as they were last seen, and what is known of each partition.

`replica_checkers` compares the two after each event; clients and operators ask here what is committed.
"""

from collections.abc import Iterable, Iterator, Sequence

from rayka.errors import CorruptRecord, RaykaError, StorageError
from rayka.ids import NO_EPOCH, TopicIdPartition, TopicPartition
from rayka.log.leader_epoch_cache import EpochStart
from rayka.log.log import Log
from rayka.metadata.image import MetadataImage, PartitionImage
from rayka.partition.partition import Partition
from rayka.protocol.batch_format import RecordBatch, split_batches
from rayka.sim.checks.checkers import Checkers
from rayka.sim.checks.partition_truth import Batch, PartitionTruth, epoch_at

_READ_BYTES = 1 << 20


class ReplicaView:
    """The state of one replica at the last look."""

    __slots__ = (
        "end", "epochs", "high_watermark", "is_leader", "leader_epoch", "log_start_offset", "maximal_isr", "node_id",
        "partition", "replacements", "truncations", "truth",
    )  # fmt: skip

    def __init__(self, node_id: int, partition: Partition, truth: PartitionTruth) -> None:
        self.node_id = node_id
        self.partition = partition
        self.truth = truth
        self.end = partition.log.log_start_offset
        self.epochs: Sequence[EpochStart] = ()
        self.high_watermark = partition.high_watermark
        self.is_leader = False
        self.leader_epoch = NO_EPOCH
        self.maximal_isr: tuple[int, ...] = ()
        self.truncations = partition.log.truncation_count
        self.replacements = partition.log.replacements.count
        self.log_start_offset = 0

    def __repr__(self) -> str:
        return f"broker {self.node_id}: {self.partition!r}"

    def has_changed(self) -> bool:
        """Whether there is anything to look at. Asked of each replica after each callback, so it goes by attributes:
        properties would take twice as long.
        """
        partition = self.partition
        log, role = partition.log, partition.role
        return (
            log.segments.active.next_offset != self.end
            or partition.high_watermark != self.high_watermark
            or role.state.leader_epoch != self.leader_epoch
            or log.truncation_count != self.truncations
            or log.replacements.count != self.replacements
            or log.log_start_offset != self.log_start_offset
            or role.isr.maximal is not self.maximal_isr
        )


class Replication:
    """All partitions with records of one run."""

    def __init__(self, checkers: Checkers) -> None:
        self._checkers = checkers
        self.truths: dict[TopicIdPartition, PartitionTruth] = {}
        # The newest of each replica, running or not.
        self.views: dict[tuple[int, TopicIdPartition], ReplicaView] = {}
        # The same by partition, then by node.
        self._views_of: dict[PartitionTruth, dict[int, ReplicaView]] = {}
        self.rotten: dict[int, None] = {}  # nodes with a bit flipped on their disk

    def add(self, view: ReplicaView) -> None:
        """A replica was opened, perhaps not for the first time."""
        truth = view.truth
        self.views[view.node_id, TopicIdPartition(truth.topic_id, truth.number)] = view
        self._views_of.setdefault(truth, {})[view.node_id] = view

    @property
    def image(self) -> MetadataImage:
        """The metadata as committed."""
        return self._checkers.ledger.newest_image

    def state_of(self, truth: PartitionTruth) -> PartitionImage | None:
        """The partition's state in the committed metadata; None once the partition is deleted."""
        return self.image.partition(TopicIdPartition(truth.topic_id, truth.number))

    def truth_named(self, name: TopicPartition) -> PartitionTruth | None:
        """The partition by its topic's name."""
        topic = self.image.topics.get(name.topic)
        return None if topic is None else self.truths.get(TopicIdPartition(topic.topic_id, name.partition))

    def has_lost(self, name: TopicPartition) -> bool:
        """Whether the partition has legally lost something, or its next leader may lack something."""
        truth = self.truth_named(name)
        return truth is not None and bool(truth.losses or truth.awaits_loss)

    def log_ends(self) -> dict[tuple[int, TopicIdPartition], int]:
        """Up to where each replica has copied."""
        return {replica: view.end for replica, view in self.views.items()}

    def leader_view(self, truth: PartitionTruth, leader_id: int, leader_epoch: int) -> ReplicaView | None:
        """The replica that leads, if it knows already."""
        view = self.views.get((leader_id, TopicIdPartition(truth.topic_id, truth.number)))
        return view if view is not None and view.is_leader and view.leader_epoch == leader_epoch else None

    def look_at_starts(self, truth: PartitionTruth) -> None:
        """Notes deleted records: a log's start can rise without any other change."""
        for view in self._views_of.get(truth, {}).values():
            truth.log_start_offset = max(truth.log_start_offset, view.partition.log.log_start_offset)

    # ---- Damage ------------------------------------------------------------------------------------------------------

    def on_damaged(self, node_id: int, why: str, is_all: bool) -> None:
        """A broker has lost what it had not synced or, with `is_all`, perhaps everything."""
        if is_all:
            self.rotten[node_id] = None
        for (owner, _), view in self.views.items():
            log = view.partition.log
            if owner == node_id and (is_all or log.flushed_offset < log.log_end_offset):
                view.truth.damaged[node_id] = None
                self.expect_loss(view.truth, f"{why} of broker {node_id}")

    def expect_loss(self, truth: PartitionTruth, why: str) -> None:
        """If no replica that may be elected is sure to have what is committed, the next leader may lack it (B33)."""
        state = self.state_of(truth)
        candidates = () if state is None else state.isr + state.eligible_leader_replicas
        if all(each in truth.damaged for each in candidates) and not truth.awaits_loss:
            truth.awaits_loss = why
            self._checkers.trace.add("-", "may-lose", f"{truth.name}: {why}; {state!r}")


# ---- Logs, from outside ----------------------------------------------------------------------------------------------


def batches_of(log: Log, offset: int) -> Iterator[RecordBatch]:
    """The batches from an offset on, as far as they can be read."""
    end = log.log_end_offset
    try:
        while offset < end:
            read = log.read(offset, max_bytes=_READ_BYTES, end_offset=end)
            if not read.records:
                return
            yield from split_batches(read.records)
            offset = read.next_offset
    except (CorruptRecord, StorageError, RaykaError):  # rot, or a disk that fails: the brokers' business
        return


def committed_by(view: ReplicaView, offset: int) -> Iterable[Batch]:
    """The batches between an offset and the leader's high watermark."""
    offset = max(offset, view.partition.log.log_start_offset)
    while offset < view.high_watermark:
        batch = view.truth.written(view.epochs, offset)
        if batch is None:
            return
        yield batch
        offset = batch.next_offset


def agreed_end(view: ReplicaView) -> int:
    """The end of the prefix of the replica's log that equals the committed log."""
    truth, start = view.truth, view.partition.log.log_start_offset
    end = min(truth.end, view.end)
    while end > start:
        batch = truth.at(end - 1)
        if batch is None or (batch.next_offset <= view.end and epoch_at(view.epochs, end - 1) == batch.epoch):
            return end
        end = batch.base_offset
    return min(truth.end, max(start, end))


def proposed_to(view: ReplicaView, partition_epoch: int) -> tuple[int, ...]:
    """The members of the ISR that the leader proposes on top of this partition epoch."""
    proposal = view.partition.pending_isr
    if proposal is None or proposal.partition_epoch != partition_epoch:
        return ()
    return tuple(each.broker_id for each in proposal.isr)


def holds_committed(view: ReplicaView) -> bool:
    """Whether the replica has everything that is committed, now."""
    return agreed_end(view) >= view.truth.end
