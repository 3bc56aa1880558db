"""What must hold of the moves that the controller makes by itself, by healing, drains and balances, and of all replica
sets: looked at whenever metadata is committed, and in the end (decisions 062, 065, 067, 093).

A move is another target of a partition's replicas. Those that a client has asked for, and that it has no answer to yet,
are its own; all others are the controller's. One whose replicas that go are on drained brokers is a drain's, one whose
replicas that go are on what is gone is healing's, any other a balance's.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from rayka.controller.decided_events import EventKind
from rayka.controller.placeable_directories import Drain, drain_of
from rayka.ids import TopicIdPartition, TopicPartition, is_internal
from rayka.log.partition_directories import PartitionDirectories
from rayka.metadata.image import BrokerImage, MetadataImage, PartitionImage
from rayka.ports import Request
from rayka.protocol.configs import CORDONED
from rayka.protocol.drains import DrainBrokerRequest, DrainCause
from rayka.protocol.load import BalanceRequest
from rayka.protocol.topics import AlterPartitionReassignmentsRequest
from rayka.sim.checks.checkers import Checkers
from rayka.sim.checks.partition_states import StateChange, changed
from rayka.sim.world.machines import SimCluster

REST_MS = 60_000
_ASKED_MS = 15_000  # for so long a request without an answer may be what has moved a partition
_EARLY_PERCENTAGE = 25  # of the timeout: a record is appended some time after the controller decided on it
_BALANCE_KINDS = (EventKind.BALANCE_BEGUN, EventKind.BALANCE_ENDED, EventKind.BALANCE_CANCELLED)


class _Flow(NamedTuple):
    """A replica, or with `is_lead` the place of the first one, that went from a broker to another."""

    key: TopicIdPartition
    source: int
    target: int
    is_lead: bool

    @property
    def back(self) -> "_Flow":
        """The way back."""
        return _Flow(self.key, self.target, self.source, self.is_lead)


class Moves:
    """Looks at every committed image, and at what clients ask for."""

    def __init__(self, checkers: Checkers, cluster: SimCluster) -> None:
        self._checkers = checkers
        self._cluster = cluster
        self._config = cluster.config
        self._asked: dict[TopicPartition, dict[tuple[int, ...], int]] = {}
        self._own: dict[TopicIdPartition, bool] = {}  # under way: whether the controller began it
        self._fenced_ms: dict[int, int] = {}  # by the wall clock of the controller that fenced it
        self._epoch, self._epoch_ms = -1, 0
        self._flows: dict[_Flow, None] = {}
        self.count = 0
        self.last_ms = 0

    def __repr__(self) -> str:
        return f"<Moves {self.count}, under way {list(self._own)}>"

    def on_request(self, request: Request[object]) -> None:
        """A client is about to ask for something."""
        if isinstance(request, AlterPartitionReassignmentsRequest):
            for each in request.partitions:
                targets = self._asked.setdefault(TopicPartition(each.topic, each.partition), {})
                if each.replicas is not None:
                    targets[each.replicas] = self._checkers.now_ms
        if isinstance(request, BalanceRequest | DrainBrokerRequest | AlterPartitionReassignmentsRequest):
            self._flows.clear()

    def on_answer(self, request: Request[object] | None) -> None:
        """A reassignment or balance of a client was committed or refused."""
        if isinstance(request, AlterPartitionReassignmentsRequest):
            for each in request.partitions:
                if each.replicas is not None:
                    self._asked[TopicPartition(each.topic, each.partition)].pop(each.replicas, None)

    def on_image(self, before: MetadataImage, after: MetadataImage) -> None:
        """A batch of metadata is committed."""
        ledger = self._checkers.ledger
        if ledger.last_epoch != self._epoch:
            self._epoch, self._epoch_ms = ledger.last_epoch, ledger.appended_ms
        if not self._checkers.is_enabled:
            return
        if _is_other_cluster(before, after):
            self._flows.clear()
        changes = list(changed(before, after))
        count = self.count
        for change in changes:
            self._check_state(change, after)
            if change.old is not None:
                self._check_dropped(change, change.old, change.new)
                is_taken_back = (
                    change.old.is_reassigned and change.new.replicas == change.old.original_replicas
                )
                if change.new.target_replicas != change.old.target_replicas and not is_taken_back:
                    self._on_move(change, change.old, change.new)
        if changes:
            self._own = {key: is_own for key, is_own in self._own.items() if _is_reassigned(after, key)}
        if self.count > count:
            self._check_bound(before, after)
        if before.brokers is not after.brokers:
            self._on_brokers(before.brokers, after.brokers)

    def is_at_rest(self, since_ms: int) -> bool:
        """Whether nothing has moved for a minute, nor since then."""
        return not self._own and self._checkers.now_ms - max(self.last_ms, since_ms) >= REST_MS

    def check_final(self, image: MetadataImage) -> str:
        """No broker keeps the log of a replica that is elsewhere."""
        for machine in self._cluster.brokers:
            if not machine.is_serving:
                continue
            for tp, topic_id in PartitionDirectories(machine.disk, machine.data_dir).all().items():
                state = (
                    None if topic_id is None else image.partition(TopicIdPartition(topic_id, tp.partition))
                )
                if state is not None and machine.node_id not in state.replicas:
                    return f"broker {machine.node_id} keeps the log of {tp}, which is on {state.replicas}"
        return ""

    def _report(self, checker: str, change: StateChange, evidence: str) -> None:
        states = f"{_told(change.old)}, then {_told(change.new)}"
        self._checkers.report(checker, 0, f"{change.name}: {evidence}: {states}")

    # ---- Replica sets ----------------------------------------------------------------------------------------------

    def _check_state(self, change: StateChange, image: MetadataImage) -> None:
        state = change.new
        replicas, adding, removing = {*state.replicas}, {*state.adding_replicas}, {*state.removing_replicas}
        if len(replicas) < len(state.replicas):
            self._report("replica-set", change, "two replicas on one broker")
        if not adding | removing <= replicas or adding & removing:
            self._report("replica-set", change, "what is added and removed does not fit the replicas")
        unknown = [each for each in state.replicas if each not in image.brokers]
        if unknown:
            self._report("replica-set", change, f"brokers {unknown} are not registered")

    def _check_dropped(self, change: StateChange, old: PartitionImage, new: PartitionImage) -> None:
        """A replica goes when those that come are in sync (B45)."""
        before = old.original_replicas
        is_dropped = any(each not in new.replicas for each in before)
        missing = [each for each in new.replicas if each not in before and each not in new.isr]
        if new.partition_epoch == old.partition_epoch + 1 and is_dropped and missing:
            self._report("replica-set", change, f"replicas were removed before {missing} are in sync")

    # ---- Moves -----------------------------------------------------------------------------------------------------

    def _on_move(self, change: StateChange, old: PartitionImage, new: PartitionImage) -> None:
        self.last_ms = self._checkers.now_ms
        if self._is_asked_for(change, new):
            self._own[change.key] = False
            return
        self.count += 1
        is_in_place = old.is_reassigned and not self._own.get(change.key, False)
        self._own[change.key] = not is_in_place  # in the place of another caller's it does not count
        self._check_targets(change, old, new)
        lost = [each for each in old.target_replicas if _is_lost(change.images[0], old, each)]
        removed = [each for each in old.target_replicas if each not in new.target_replicas]
        is_healing = bool(removed) and all(each in lost for each in removed)
        drains = [_drain_of(change.images, each) for each in removed]
        if len(new.target_replicas) < len(old.target_replicas):
            self._report("replica-set", change, "fewer replicas, which no caller has asked for")
        elif removed and None not in drains:
            self._check_drain(change, old, {each.cause for each in drains if each is not None})
        elif is_healing and not _is_share(change, old, new):
            self._check_healing(change, old, removed)
        # A coordinator gets its share; no balance waits for that, nor is it bound.
        elif is_internal(change.topic):
            self._own[change.key] = False
        else:
            self._check_balance(change, old, new)

    def _check_drain(self, change: StateChange, old: PartitionImage, causes: Collection[DrainCause]) -> None:
        """An operator's takes the place of any other move, and is not bound; others only begin where nothing moves."""
        if DrainCause.OPERATOR in causes:
            self._own[change.key] = False
        elif old.is_reassigned and change.new.partition_epoch == old.partition_epoch + 1:
            self._report("against-reassignment", change, "a drain moves what is being moved")

    def _is_asked_for(self, change: StateChange, new: PartitionImage) -> bool:
        targets = self._asked.get(TopicPartition(change.topic, change.key.partition), {})
        asked_ms = targets.get(new.target_replicas)
        return asked_ms is not None and self._checkers.now_ms - asked_ms < _ASKED_MS

    def _check_targets(self, change: StateChange, old: PartitionImage, new: PartitionImage) -> None:
        for each in new.target_replicas:
            if each in old.replicas:
                continue
            if not any(_is_active(image, each) for image in change.images):
                self._report("move-target", change, f"broker {each} does not run")
            elif all(CORDONED in image.broker_configs(each) for image in change.images):
                self._report("move-target", change, f"broker {each} is cordoned")
            elif all(drain_of(image, each) is not None for image in change.images):
                self._report("move-target", change, f"broker {each} is drained")

    def _check_healing(self, change: StateChange, old: PartitionImage, removed: list[int]) -> None:
        """Not before its time; and in the place of another move only where that waits for what is gone."""
        now_ms, timeout_ms = self._checkers.ledger.appended_ms, self._config.broker_unavailable_timeout_ms
        for each in removed:
            if each not in self._fenced_ms or _is_directory_lost(change.images[0], old, each):
                continue
            away_ms = now_ms - max(self._fenced_ms[each], self._epoch_ms)
            if away_ms * 100 < timeout_ms * (100 - _EARLY_PERCENTAGE):
                self._report("healed-early", change, f"broker {each} has been away for {away_ms} ms")
        # It waits for all that stay (B45).
        is_shrinking = len(old.removing_replicas) > len(old.adding_replicas)
        awaited = old.target_replicas if is_shrinking else old.adding_replicas
        if old.is_reassigned and not any(each in removed for each in awaited):
            self._report("against-reassignment", change, "healing moves what is being moved")

    def _check_balance(self, change: StateChange, old: PartitionImage, new: PartitionImage) -> None:
        images = change.images
        if old.is_reassigned and new.partition_epoch == old.partition_epoch + 1:
            self._report("against-reassignment", change, "a balance moves what is being moved")
        others = [key for key, is_own in self._own.items() if not is_own and key != change.key]
        others = [each for each in others if all(_is_reassigned(image, each) for image in images)]
        if others:
            self._report(
                "against-reassignment", change, f"a balance moves it beside another caller's {others}"
            )
        away = [each for each in images[0].brokers if not any(_is_active(image, each) for image in images)]
        if any(_holds(images[1], each) for each in away):
            self._report("balance-beside", change, f"brokers {away} are away")
        if images[1].has_events and not any(map(_is_balance_open, images)):
            self._report("balance-told", change, "no balance is under way, by the events")
        self._check_flows(change, old.target_replicas, new.target_replicas)

    def _check_flows(self, change: StateChange, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        """Nothing goes back to where a balance has taken it from, while the cluster is as it was."""
        gone, come = ([each for each in one if each not in other] for one, other in ((old, new), (new, old)))
        if gone:
            flows = [_Flow(change.key, one, other, False) for one, other in zip(gone, come, strict=True)]
        else:
            flows = [_Flow(change.key, old[0], new[0], True)]
        for flow in flows:
            if flow.back in self._flows:
                self._report("ping-pong", change, "it goes back, and the cluster is as it was")
            self._flows[flow] = None

    def _check_bound(self, *images: MetadataImage) -> None:
        """When one begins; what no broker leads does not count."""
        own = [key for key, is_own in self._own.items() if is_own]
        count = sum(all(_is_led(image, each) for image in images) for each in own)
        if count > self._config.balancer_moves_max:
            bound = self._config.balancer_moves_max
            self._checkers.report(
                "moves-bound", 0, f"{count} moves are under way, {self._own}; at most {bound}"
            )

    def _on_brokers(self, before: Mapping[int, BrokerImage], after: Mapping[int, BrokerImage]) -> None:
        for broker_id, broker in after.items():
            old = before.get(broker_id)
            if not broker.is_fenced:
                self._fenced_ms.pop(broker_id, None)
            elif old is None or not old.is_fenced:
                self._fenced_ms[broker_id] = self._checkers.ledger.appended_ms


def _drain_of(images: tuple[MetadataImage, MetadataImage], broker_id: int) -> Drain | None:
    """The drain of the broker before or after a change."""
    found = (drain_of(image, broker_id) for image in images)
    return next((each for each in found if each is not None), None)


def _told(state: PartitionImage | None) -> str:
    if state is None:
        return "nothing"
    return f"{state!r} adding={list(state.adding_replicas)} removing={list(state.removing_replicas)}"


def _is_reassigned(image: MetadataImage, key: TopicIdPartition) -> bool:
    state = image.partition(key)
    return state is not None and state.is_reassigned


def _is_led(image: MetadataImage, key: TopicIdPartition) -> bool:
    state = image.partition(key)
    return state is not None and state.has_leader


def _is_active(image: MetadataImage, broker_id: int) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.is_active


def _is_lost(image: MetadataImage, state: PartitionImage, broker_id: int) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is None or broker.is_fenced or _is_directory_lost(image, state, broker_id)


def _is_directory_lost(image: MetadataImage, state: PartitionImage, broker_id: int) -> bool:
    """Of which no check knows since when."""
    broker = image.brokers.get(broker_id)
    return broker is not None and state.directory_of(broker_id) in broker.offline_directories


def _is_share(change: StateChange, old: PartitionImage, new: PartitionImage) -> bool:
    """Whether coordinators that held nothing are added: they take the places of brokers, gone or not."""
    added = [each for each in new.target_replicas if each not in old.replicas]
    before, after = change.images
    return is_internal(change.topic) and all(
        after.brokers[each].is_coordinator and not _holds(before, each) for each in added
    )


def _holds(image: MetadataImage, broker_id: int) -> bool:
    return any(broker_id in each.replicas for _, each in image.partitions())


def _is_balance_open(image: MetadataImage) -> bool:
    kinds = (each.kind for each in reversed(image.events) if each.kind in _BALANCE_KINDS)
    return next(kinds, None) == EventKind.BALANCE_BEGUN


def _is_other_cluster(before: MetadataImage, after: MetadataImage) -> bool:
    """Whether brokers, their configurations or the partitions that there are have changed."""
    return (
        before.configs is not after.configs
        or (before.brokers is not after.brokers and _brokers(before) != _brokers(after))
        or (before.topics is not after.topics and _partition_counts(before) != _partition_counts(after))
    )


def _brokers(image: MetadataImage) -> dict[int, tuple[bool, object]]:
    return {
        broker_id: (each.is_active, each.offline_directories) for broker_id, each in image.brokers.items()
    }


def _partition_counts(image: MetadataImage) -> dict[str, int]:
    return {name: len(topic.partitions) for name, topic in image.topics.items()}
