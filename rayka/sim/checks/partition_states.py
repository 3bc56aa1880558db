"""What must hold of the controller's decisions about partitions, looked at whenever metadata is committed.

B13, B14, B40-B44 as they can be seen in two images that follow each other: which replicas may be in the ISR, which may
lead, which epochs rise. Every topic is looked at, with or without records.
"""

from collections.abc import Iterator
from typing import NamedTuple

from rayka.errors import ConfigError
from rayka.ids import NO_EPOCH, TopicIdPartition
from rayka.metadata.image import MetadataImage, PartitionImage
from rayka.sim.checks.checkers import Checkers
from rayka.sim.checks.partition_truth import PartitionTruth
from rayka.sim.checks.replica_checkers import ReplicaCheckers
from rayka.sim.checks.replica_views import Replication, holds_committed, proposed_to
from rayka.sim.world.machines import SimCluster


class StateChange(NamedTuple):
    """A partition that is another one in the next image; `old` is None when it is new there."""

    key: TopicIdPartition
    topic: str
    images: tuple[MetadataImage, MetadataImage]  # before and after
    old: PartitionImage | None
    new: PartitionImage

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.key.partition}"


class PartitionStates:
    """Looks at every committed image."""

    def __init__(
        self,
        checkers: Checkers,
        replica_checkers: ReplicaCheckers,
        replication: Replication,
        cluster: SimCluster,
    ) -> None:
        self._checkers = checkers
        self._replica_checkers = replica_checkers
        self._replication = replication
        self._cluster = cluster
        # Topics for which the operator has ever asked for an unclean election.
        self.unclean_asked: dict[str, None] = {}
        self.min_isr_floor: dict[str, int] = {}  # by topic: the lowest that was ever in force

    def on_image(self, before: MetadataImage, after: MetadataImage) -> None:
        """A batch of metadata is committed."""
        if not self._checkers.is_enabled:
            return
        if before.configs is not after.configs or before.topics is not after.topics:
            for name in after.topics:
                if name not in before.topics or before.topic_configs(name) != after.topic_configs(name):
                    floor = self.min_isr_floor.get(name, 1 << 30)
                    self.min_isr_floor[name] = min(floor, self._min_isr(after, name))
        for change in changed(before, after):
            self._check_state(change.name, after, change.new)
            if change.old is not None:
                self._check_change(change, change.old, change.new)
        if before.brokers is not after.brokers:
            self._check_fenced(after)

    def _min_isr(self, image: MetadataImage, name: str) -> int:
        try:
            return self._cluster.config.topic_config(image.topic_configs(name)).min_insync_replicas
        except ConfigError:
            return 1

    def _report(self, checker: str, name: str, evidence: str) -> None:
        self._checkers.report(checker, 0, f"{name}: {evidence}")

    def waiting(self) -> list[str]:
        """Partitions with records that are not what they should be in the end: led, fully in sync, not on the move."""
        found = []
        for truth in self._replication.truths.values():
            state = self._replication.state_of(truth)
            if state is None:
                continue
            if not state.has_leader and self._is_gone(state):
                continue
            is_whole = state.has_leader and {*state.isr} == {*state.replicas}
            if not is_whole or state.adding_replicas or state.removing_replicas:
                found.append(f"{truth!r} is {state!r}")
        return found

    def needs_rescue(self, truth: PartitionTruth) -> bool:
        """Whether the last that are known to be whole are on disks that are gone, and others are there."""
        state = self._replication.state_of(truth)
        return (
            state is not None
            and not state.has_leader
            and self._has_lost_last(state)
            and not self._is_gone(state)
        )

    def _has_lost_last(self, state: PartitionImage) -> bool:
        """A broker that comes back on another disk leaves the ELR, and the last known leader leads; one on a machine
        that is dead stays there for ever.
        """
        rotten, whole = self._replication.rotten, state.isr + state.eligible_leader_replicas
        dead = [each for each in rotten if self._cluster.machines[each].is_absent]
        are_dead = bool(whole) and all(each in dead for each in whole)
        return are_dead or all(each in rotten for each in whole + state.last_known_elr)

    def _is_gone(self, state: PartitionImage) -> bool:
        """Whether every replica's disk was lost: only deleting the topic would help."""
        return all(each in self._replication.rotten for each in state.replicas)

    # ---- One state ---------------------------------------------------------------------------------------------------

    def _check_state(self, name: str, image: MetadataImage, state: PartitionImage) -> None:
        """B13, B42: which replica may be where."""
        isr, elr, replicas = state.isr, state.eligible_leader_replicas, state.replicas
        if len({*isr}) < len(isr) or not {*isr, *elr} <= {*replicas} or {*isr} & {*elr}:
            self._report("partition-state", name, f"ISR and ELR do not fit the replicas: {state!r}")
        if state.has_leader and state.leader_id not in isr:
            self._report("partition-state", name, f"the leader is not in the ISR: {state!r}")
        broker = image.brokers.get(state.leader_id)
        if state.has_leader and (broker is None or broker.is_fenced):
            self._report("partition-state", name, f"led by {broker!r}: {state!r}")

    def _check_fenced(self, image: MetadataImage) -> None:
        """A broker that is fenced leads nothing, and with ELR it is in no ISR (B44)."""
        fenced = [broker_id for broker_id, each in image.brokers.items() if each.is_fenced]
        if not fenced:
            return
        for topic in image.topics.values():
            for number, state in enumerate(topic.partitions):
                if state.leader_id in fenced:
                    self._report(
                        "partition-state", f"{topic.name}-{number}", f"its leader is fenced: {state!r}"
                    )
                elif image.has_eligible_leader_replicas and any(each in fenced for each in state.isr):
                    self._report("partition-state", f"{topic.name}-{number}", f"fenced {fenced} in {state!r}")

    # ---- A change ----------------------------------------------------------------------------------------------------

    def _check_change(self, change: StateChange, old: PartitionImage, new: PartitionImage) -> None:
        """B14: epochs rise; B40, B41: which replica is elected."""
        if new.partition_epoch <= old.partition_epoch or new.leader_epoch < old.leader_epoch:
            self._report("partition-epochs", change.name, f"{old!r}, then {new!r}")
        if new.leader_id != old.leader_id and new.leader_epoch == old.leader_epoch:
            self._report(
                "partition-epochs", change.name, f"another leader in the same epoch: {old!r}, then {new!r}"
            )
        truth = self._replication.truths.get(change.key)
        view = None
        if truth is not None:
            view = self._replication.leader_view(truth, old.leader_id, old.leader_epoch)
        if view is not None and new.leader_epoch == old.leader_epoch:
            self._replica_checkers.check_maximal_isr(view)
        joining = () if view is None else proposed_to(view, old.partition_epoch)
        eligible = {*old.isr, *old.eligible_leader_replicas, *joining}
        if new.leader_epoch > old.leader_epoch and not _elected(new) <= eligible:
            self._check_unclean(change, old, new)
        if truth is not None:
            # What was committed with fewer replicas may be acknowledged when there are more: a request has partitions
            # that wait longer.
            truth.fewest_replicas = min(truth.fewest_replicas, len(old.replicas), len(new.replicas))
            self._on_members(change.key, old, new)
            self._replication.expect_loss(truth, f"no other is left of {old!r}")

    def _check_unclean(self, change: StateChange, old: PartitionImage, new: PartitionImage) -> None:
        others_are_gone = all(
            _is_another_process(change, each) or self._is_registering(each)
            for each in old.isr + old.eligible_leader_replicas
        )
        is_last_known = others_are_gone and _elected(new) == {*old.last_known_elr}
        is_allowed = change.topic in self.unclean_asked or self._is_unclean_allowed(change)
        truth = self._replication.truths.get(change.key)
        if not (is_last_known or is_allowed):
            self._report("unclean-election", change.name, f"{old!r}, then {new!r}")
        elif truth is not None:
            self._cluster.trace.add(new.leader_id, "unclean", f"{change.name} in epoch {new.leader_epoch}")
            truth.awaits_loss = truth.awaits_loss or "unclean election"

    def _is_registering(self, broker_id: int) -> bool:
        """Whether the broker's process waits for its first registration, whose own record is the last that is written:
        what the process before it held may be dropped in an earlier batch.
        """
        broker = self._cluster.machines[broker_id].broker
        observed = broker.observed if broker is not None else None
        return observed is not None and observed.lifecycle.broker_epoch == NO_EPOCH

    def _is_unclean_allowed(self, change: StateChange) -> bool:
        config = self._cluster.config.topic_config(change.images[0].topic_configs(change.topic))
        return config.unclean_leader_election_enable or self._cluster.config.unclean_leader_election_enable

    def _on_members(self, key: TopicIdPartition, old: PartitionImage, new: PartitionImage) -> None:
        """A replica that joins the ISR has everything (B11); one that was damaged and is whole again counts again."""
        truth = self._replication.truths[key]
        for node_id in new.isr:
            if node_id in old.isr or new.leader_epoch > old.leader_epoch:
                continue
            view = self._replication.views.get((node_id, key))
            if view is not None and holds_committed(view):
                truth.damaged.pop(node_id, None)
            elif truth.committed and not truth.awaits_loss:
                self._report(
                    "isr-member",
                    truth.name,
                    f"broker {node_id} joins without all of {truth!r}: {view!r}, {new!r}",
                )


def _elected(new: PartitionImage) -> set[int]:
    """One batch may hold several elections: one that was elected and fenced again is left in the ELR."""
    return {new.leader_id} if new.has_leader else {*new.isr, *new.eligible_leader_replicas}


def _is_another_process(change: StateChange, broker_id: int) -> bool:
    """Whether the broker registered anew in between, in the batch in which it left the ELR."""
    brokers = [each.brokers for each in change.images]
    return len({each[broker_id].broker_epoch for each in brokers if broker_id in each}) != 1


def changed(before: MetadataImage, after: MetadataImage) -> Iterator[StateChange]:
    """The partitions that are others now."""
    if before.topics is after.topics:
        return
    for topic_id, topic in after.topics_by_id.items():
        old = before.topics_by_id.get(topic_id)
        if old is topic:
            continue
        for number, state in enumerate(topic.partitions):
            past = old.partitions[number] if old is not None and number < len(old.partitions) else None
            if past is not state:
                key = TopicIdPartition(topic_id, number)
                yield StateChange(key, topic.name, (before, after), past, state)
