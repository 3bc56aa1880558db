"""The balance that the active controller carries out, and the reasons that begin one.

`BalanceRun` says why there is a balance, which plan it follows and what has come of it; its moves are in the queue
(`move_queue`). Soft state: a new active controller knows from the events that a balance has begun and not ended. The
controller plans anew when everything under way has ended and every broker has reported.

`BalanceTrigger` begins a balance by itself for brokers that hold less than a tenth of the mean number of replicas, as
one that has just joined, and for disks above 80 %. A cordoned broker triggers nothing: it gets no replicas. The trigger
has to last for `balancer.settle.ms`, so a broker that flaps begins nothing. A balance for the same brokers does not
begin again within five minutes, nor after an operator cancelled it, until other brokers trigger one. Rayka's own.
"""

from typing import TYPE_CHECKING, NamedTuple

from rayka.config.broker_config import BrokerConfig
from rayka.controller.decided_events import EventKind
from rayka.controller.move_queue import EndedMove, MoveCause, MoveOutcome, MoveQueue
from rayka.controller.placeable_directories import placeable_directories
from rayka.controller.planning.balance_plan import Goal, Plan
from rayka.ids import node_name
from rayka.metadata.image import MetadataImage
from rayka.metadata.metadata_records import EventRecord
from rayka.protocol.load import DISK_USE_MAX, BalanceState, capacities

if TYPE_CHECKING:
    from rayka.controller.request_context import RequestContext

PLANS_MAX = 50
REPEAT_MS = 300_000
# As a part of the mean number of replicas.
NEARLY_EMPTY = 0.1
# The reason of a balance that relieves disks alone begins so.
DISKS_ARE_FULL = f"disks are above {DISK_USE_MAX:.0%}"
_OPEN = (EventKind.BALANCE_BEGUN,)
_OVER = (EventKind.BALANCE_ENDED, EventKind.BALANCE_CANCELLED)


class BalanceReason(NamedTuple):
    """Why a balance begins."""

    # The brokers that trigger the balance; none where an operator asks for it.
    subjects: tuple[str, ...]
    reason: str
    # The last goal of the plan.
    last_goal: Goal = Goal.BYTES_OUT
    # How many moves are under way at a time; 0: as configured.
    moves_max: int = 0


# While there is no balance.
NO_REASON = BalanceReason((), "")


class BalanceRun:
    """One balance."""

    def __init__(self, moves: MoveQueue) -> None:
        self._moves = moves
        # How the last balance ended, and the counts or the cause of its end.
        self.outcome = BalanceState.NONE, ""
        self.begin(NO_REASON)

    def begin(self, reason: BalanceReason) -> None:
        """A balance is planned and carried out from now on."""
        self.reason = reason
        # None: a plan is due.
        self.plan: Plan | None = None
        self.plan_count = 0
        # Whether the event that the balance has begun is written.
        self.is_recorded = False
        # Whether another caller has cancelled one of its moves.
        self.is_cancelled = False
        # Why no move begins now; empty if moves may begin.
        self.waits_for = ""
        self.planned_count = self.moved_count = self.moved_bytes = 0
        # When a move of the balance ended last.
        self.settled_ms = 0
        self.planned_ms: int | None = None

    @classmethod
    def resumed(cls, image: MetadataImage, moves: MoveQueue) -> "BalanceRun":
        """The balance of a new active controller."""
        run = cls(moves)
        last = last_balance_event(image)
        if last is not None and last.kind in _OPEN:
            reason = "it had begun under an earlier controller"
            run.begin(BalanceReason(last.subjects, reason, _last_goal(last)))
            run.is_recorded = True
        return run

    def __repr__(self) -> str:
        return f"<BalanceRun {self.reason} of {self._moves!r}>"

    @property
    def state(self) -> BalanceState:
        if self.is_idle:
            return self.outcome[0]
        return BalanceState.PLANNING if self.plan is None else BalanceState.MOVING

    @property
    def is_idle(self) -> bool:
        return self.reason is NO_REASON

    @property
    def waiting_count(self) -> int:
        return len(self._moves.waiting[MoveCause.BALANCE])

    @property
    def under_way_count(self) -> int:
        return len(self._moves.under_way(MoveCause.BALANCE))

    def on_ended(self, ended: EndedMove, now_ms: int) -> None:
        """A move of the balance has ended. Unless the partition has moved, a new plan is due."""
        if ended.outcome is MoveOutcome.MOVED:
            self.moved_count += 1
            self.moved_bytes += ended.move.copied_bytes
            self.settled_ms = now_ms
        else:
            self.replan()
            self.is_cancelled |= ended.outcome is MoveOutcome.CANCELLED

    def replan(self) -> None:
        """Drops the moves that wait."""
        self._moves.waiting[MoveCause.BALANCE].clear()
        self.plan = None

    def on_planned(self, plan: Plan, now_ms: int) -> None:
        self.plan, self.planned_ms = plan, now_ms
        self.plan_count += 1
        waiting = self._moves.waiting[MoveCause.BALANCE]
        waiting.clear()
        waiting.extend(plan.moves)
        self.planned_count = self.moved_count + len(plan.moves)

    @property
    def is_over(self) -> bool:
        """Whether everything planned has moved, and more moves would not improve the cluster."""
        if self.plan is None or not self._moves.is_idle(MoveCause.BALANCE):
            return False
        return self.plan.is_whole or self.plan_count >= PLANS_MAX

    def end(self, state: BalanceState, reason: str) -> None:
        """Forgets the moves; the counts stay for callers that ask for the outcome."""
        self.replan()
        self._moves.clear(MoveCause.BALANCE)
        self.reason, self.waits_for, self.outcome = NO_REASON, "", (state, reason)


def last_balance_event(image: MetadataImage) -> EventRecord | None:
    """The newest event of a balance."""
    kinds = (*_OPEN, *_OVER)
    return next((each for each in reversed(image.events) if each.kind in kinds), None)


def _last_goal(begun: EventRecord) -> Goal:
    """The last goal of the balance that the event is about. The reason says which goal a balance has that began by
    itself.
    """
    if not begun.subjects:
        return Goal.BYTES_OUT
    return Goal.CAPACITY if begun.reason.startswith(DISKS_ARE_FULL) else Goal.LEADERS


class BalanceTrigger:
    """Decides when a balance begins by itself."""

    def __init__(self) -> None:
        self._seen: BalanceReason | None = None
        # Since when `_seen` is about the same brokers.
        self._since_ms = 0
        # When a balance began for brokers; entries older than `REPEAT_MS` go.
        self._begun_ms: dict[tuple[str, ...], int] = {}
        # The brokers whose balance an operator cancelled last.
        self._declined: tuple[str, ...] | None = None

    @classmethod
    def of(cls, image: MetadataImage) -> "BalanceTrigger":
        """The trigger of a new active controller: a balance that was cancelled last does not begin again."""
        made, last = cls(), last_balance_event(image)
        if last is not None and last.kind == EventKind.BALANCE_CANCELLED:
            made._declined = last.subjects
        return made

    def __repr__(self) -> str:
        return f"<BalanceTrigger {self._seen}>"

    def decline(self, reason: BalanceReason) -> None:
        """An operator has cancelled this balance."""
        self._declined = reason.subjects

    def forget(self, reason: BalanceReason) -> None:
        """A balance that began for this reason was switched off, and may begin again."""
        self._begun_ms.pop(reason.subjects, None)

    def on_unregistered(self, broker_id: int) -> None:
        """A broker that comes with this id later is another one, for which no balance has begun."""
        name = node_name(broker_id)
        self._begun_ms = {key: ms for key, ms in self._begun_ms.items() if name not in key}

    def look(self, context: "RequestContext", config: BrokerConfig) -> BalanceReason | None:
        """Why a balance begins now; None without a reason, or while the reason has not lasted long enough."""
        now_ms, seen = context.now_ms, balance_reason(context) if config.balancer_enable else None
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


def balance_reason(context: "RequestContext") -> BalanceReason | None:
    """The brokers that trigger a balance at this moment. None while a broker is away or has not reported its load."""
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
        listed = ", ".join(f"broker {each} at {use[each]:.0%}" for each in full)
        reason = f"{DISKS_ARE_FULL}: {listed}"
        return BalanceReason(tuple(map(node_name, full)), reason, Goal.CAPACITY)
    counts = {each.broker_id: context.replicas.of(each.broker_id).directories.total() for each in nodes}
    mean = sum(counts.values()) / len(counts)
    empty = [broker_id for broker_id, count in counts.items() if count < mean * NEARLY_EMPTY]
    if not empty:
        return None
    listed = ", ".join(f"broker {each} holds {counts[each]:,}" for each in empty)
    reason = f"of {mean:,.0f} replicas on average {listed}"
    return BalanceReason(tuple(map(node_name, empty)), reason, Goal.LEADERS)


def away_brokers(context: "RequestContext") -> list[int]:
    """The brokers that hold replicas and do not run; their replicas come back or are healed."""
    return [
        each.broker_id
        for each in context.image.brokers.values()
        if not each.is_active and context.replicas.of(each.broker_id).directories.total()
    ]
