"""One balance that the active controller carries out: why, what waits, what is under way, what has come of it.

Soft state: a new active controller knows from the events that a balance had begun and not ended, and plans anew when
everything under way has ended and every broker has reported. Invariant: what is under way are reassignments that this
controller began for the balance and that no other caller has changed since the last look.
"""

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from rayka.config.broker_config import BrokerConfig
from rayka.controller.decided_events import EventKind
from rayka.controller.placeable_directories import placeable_directories
from rayka.controller.planning.balance_plan import Goal, Move, Plan
from rayka.ids import TopicIdPartition, node_name
from rayka.metadata.image import MetadataImage
from rayka.metadata.metadata_records import EventRecord
from rayka.protocol.load import DISK_USE_MAX, BalanceState, capacities

if TYPE_CHECKING:
    from rayka.controller.request_context import RequestContext


PLANS_MAX = 50
# So begins the reason of a balance that relieves disks alone.
DISKS_ARE_FULL = f"disks are above {DISK_USE_MAX:.0%}"
_OPEN = (EventKind.BALANCE_BEGUN,)
_OVER = (EventKind.BALANCE_ENDED, EventKind.BALANCE_CANCELLED)


class Cause(NamedTuple):
    """Why a balance begins. `subjects`: the brokers that are badly off, none where an operator asks for it.
    `last_goal`: the last of the goals that it looks after; `moves_max`: how many moves at a time, 0: as configured.
    """

    subjects: tuple[str, ...]
    reason: str
    last_goal: Goal = Goal.BYTES_OUT
    moves_max: int = 0


NO_CAUSE = Cause((), "")  # while there is no balance


class _Begun(NamedTuple):
    """A move under way, and the epoch that its partition had before."""

    move: Move
    partition_epoch: int


class BalanceRun:
    """See the module."""

    def __init__(self) -> None:
        self.outcome = BalanceState.NONE, ""
        self.begin(NO_CAUSE)

    def begin(self, cause: Cause) -> None:
        """A balance is to be planned and carried out."""
        self.cause = cause
        self.plan: Plan | None = None  # None: one is to be made
        self.plan_count = 0
        self.waiting: deque[Move] = deque()
        self.under_way: dict[TopicIdPartition, _Begun] = {}
        self._leaderless: dict[TopicIdPartition, None] = {}  # those of them that no broker leads
        self.is_told = False  # the event that it has begun is written
        self.is_cancelled = False  # another caller has cancelled one of its moves
        self.waits_for = ""
        self.planned_count = self.moved_count = self.moved_bytes = 0
        self.settled_ms = 0  # when a move of it ended last
        self.planned_ms: int | None = None

    @classmethod
    def resumed(cls, image: MetadataImage) -> "BalanceRun":
        """Of a new active controller."""
        run = cls()
        last = last_balance_event(image)
        if last is not None and last.kind in _OPEN:
            run.begin(Cause(last.subjects, "it had begun under an earlier controller", _last_goal(last)))
            run.is_told = True
        return run

    def __repr__(self) -> str:
        return f"<BalanceRun {self.cause} waiting={len(self.waiting)} under_way={len(self.under_way)}>"

    @property
    def state(self) -> BalanceState:
        if self.is_idle:
            return self.outcome[0]
        return BalanceState.PLANNING if self.plan is None else BalanceState.MOVING

    @property
    def is_idle(self) -> bool:
        return self.cause is NO_CAUSE

    @property
    def copying_count(self) -> int:
        """How many moves are under way, but those of partitions that no broker leads, which copy nothing."""
        return sum(each not in self._leaderless for each in self.under_way)

    def settle(self, image: MetadataImage, now_ms: int) -> list[TopicIdPartition]:
        """Forgets the moves that have ended, and gives those that ended as planned. After one that another caller has
        changed the plan is to be made anew.
        """
        ended = []
        self._leaderless = {}
        for key, (move, partition_epoch) in list(self.under_way.items()):
            partition = image.partition(key)
            if partition is not None and partition.target_replicas == move.after:
                if partition.is_reassigned:
                    if not partition.has_leader:
                        self._leaderless[key] = None
                    continue
                ended.append(key)
                self.moved_count += 1
                self.moved_bytes += move.copied_bytes
                self.settled_ms = now_ms
            else:
                self.replan()
                is_as_before = partition is not None and partition.replicas == move.before
                has_begun = partition is not None and partition.partition_epoch > partition_epoch
                self.is_cancelled |= is_as_before and has_begun  # else the log did not take its record
            del self.under_way[key]
        return ended

    def replan(self) -> None:
        """What waits does not begin any more."""
        self.waiting.clear()
        self.plan = None

    def on_planned(self, plan: Plan, now_ms: int) -> None:
        self.plan, self.planned_ms = plan, now_ms
        self.plan_count += 1
        self.waiting = deque(plan.moves)
        self.planned_count = self.moved_count + len(plan.moves)

    def on_begun(self, key: TopicIdPartition, move: Move, partition_epoch: int) -> None:
        self.under_way[key] = _Begun(move, partition_epoch)

    @property
    def is_over(self) -> bool:
        """Whether everything planned has moved, and more would not improve it."""
        is_done = self.plan is not None and not self.waiting and not self.under_way
        return is_done and self.plan is not None and (self.plan.is_whole or self.plan_count >= PLANS_MAX)

    def end(self, state: BalanceState, reason: str) -> None:
        """Its counts stay, for what asks what came of it."""
        self.replan()
        self.under_way.clear()
        self.cause, self.waits_for, self.outcome = NO_CAUSE, "", (state, reason)


def last_balance_event(image: MetadataImage) -> EventRecord | None:
    """The newest event of a balance."""
    kinds = (*_OPEN, *_OVER)
    return next((each for each in reversed(image.events) if each.kind in kinds), None)


def _last_goal(begun: EventRecord) -> Goal:
    """The goal of the balance that the event is about; of one that began by itself the reason says which it is."""
    if not begun.subjects:
        return Goal.BYTES_OUT
    return Goal.CAPACITY if begun.reason.startswith(DISKS_ARE_FULL) else Goal.LEADERS


# When the controller begins a balance by itself: brokers that are badly off, and have been so for a while. Soft state.
#
# Badly off is a broker that holds less than a tenth of what the others hold on average, as one that has just joined,
# and one whose disk is above 80 %. A cordoned broker is neither: it is to hold nothing more. What is seen has to last
# for `balancer.settle.ms`, so a broker that flaps begins nothing; and for the same brokers a balance does not begin
# again within five minutes, nor after an operator has cancelled it, until others are badly off. Rayka's own.


REPEAT_MS = 300_000
NEARLY_EMPTY = 0.1  # of the mean number of replicas


class BadlyOff:
    """See the module."""

    def __init__(self) -> None:
        self._seen: Cause | None = None
        self._since_ms = 0
        self._begun_ms: dict[tuple[str, ...], int] = {}
        self._declined: tuple[str, ...] | None = None

    @classmethod
    def of(cls, image: MetadataImage) -> "BadlyOff":
        """Of a new active controller: what was cancelled last does not begin again."""
        made, last = cls(), last_balance_event(image)
        if last is not None and last.kind == EventKind.BALANCE_CANCELLED:
            made._declined = last.subjects
        return made

    def __repr__(self) -> str:
        return f"<BadlyOff {self._seen}>"

    def decline(self, cause: Cause) -> None:
        """An operator has cancelled that."""
        self._declined = cause.subjects

    def forget(self, cause: Cause) -> None:
        """A balance that began for this was switched off, and may begin again."""
        self._begun_ms.pop(cause.subjects, None)

    def on_unregistered(self, broker_id: int) -> None:
        """What comes with this id later is another broker, for which none has begun yet."""
        name = node_name(broker_id)
        self._begun_ms = {key: ms for key, ms in self._begun_ms.items() if name not in key}

    def look(self, context: "RequestContext", config: BrokerConfig) -> Cause | None:
        """Why a balance is to begin now; None while there is no reason, or not for long enough."""
        now_ms, seen = context.now_ms, badly_off(context) if config.balancer_enable else None
        if seen is None or self._seen is None or seen.subjects != self._seen.subjects:
            self._since_ms = now_ms
        self._seen = seen
        if seen is None or now_ms - self._since_ms < config.balancer_settle_ms:
            return None
        if seen.subjects == self._declined:
            return None
        self._declined = None
        begun_ms = self._begun_ms.get(seen.subjects)
        if begun_ms is not None and now_ms - begun_ms < REPEAT_MS:
            return None
        self._begun_ms = {key: ms for key, ms in self._begun_ms.items() if now_ms - ms < REPEAT_MS}
        self._begun_ms[seen.subjects] = now_ms
        return seen


def badly_off(context: "RequestContext") -> Cause | None:
    """As the module says, at this moment; None while a broker is away or has not reported its load."""
    if away_brokers(context):
        return None
    image = context.image
    nodes = [
        each
        for each in image.brokers.values()
        if each.is_active
        and each.takes_user_partitions
        and placeable_directories(image, context.config, each)
    ]
    reports = {each.broker_id: report for each in nodes if (report := context.loads.newest(each)) is not None}
    if len(nodes) < 2 or len(reports) < len(nodes):
        return None
    known = capacities(reports, {each.broker_id: each.registration.host for each in image.brokers.values()})
    use = {
        broker_id: report.size_bytes / known[broker_id]
        for broker_id, report in reports.items()
        if known[broker_id]
    }
    full = [broker_id for broker_id, share in use.items() if share > DISK_USE_MAX]
    if full:
        told = ", ".join(f"broker {each} at {use[each]:.0%}" for each in full)
        reason = f"{DISKS_ARE_FULL}: {told}"
        return Cause(tuple(map(node_name, full)), reason, Goal.CAPACITY)
    counts = {each.broker_id: context.replicas.of(each.broker_id).directories.total() for each in nodes}
    mean = sum(counts.values()) / len(counts)
    empty = [broker_id for broker_id, count in counts.items() if count < mean * NEARLY_EMPTY]
    if not empty:
        return None
    told = ", ".join(f"broker {each} holds {counts[each]:,}" for each in empty)
    reason = f"of {mean:,.0f} replicas on average {told}"
    return Cause(tuple(map(node_name, empty)), reason, Goal.LEADERS)


def away_brokers(context: "RequestContext") -> list[int]:
    """Those that hold replicas and do not run: what they hold may come back, or is made anew."""
    return [
        each.broker_id
        for each in context.image.brokers.values()
        if not each.is_active and context.replicas.of(each.broker_id).directories.total()
    ]
