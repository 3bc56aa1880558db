"""The plan by which brokers, or coordinators, become as many as the load asks for. A core: no clock, no IO.

Level-triggered: all that was begun is recorded where every planner finds it, so the next planner continues or undoes
it, and none remembers anything. A broker that is to come is first a room that Ray is asked for (`scaling_rooms`), then
an actor, then a registration. A broker that is to go is marked in the metadata (`scaling.leaving`), then loses its
replicas, its actor, its directories and its registration. Invariants:
- One broker comes or goes at a time.
- The declared brokers stay: the first `min` of the range.
- A broker that has been away for so long that its replicas are made anew does not count until it is back. While it
  holds replicas, others come, and none goes.

Here a coordinator is a broker, too, as for the controller. Each role has a planner, which sees the nodes of its role
only.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import count
from uuid import UUID

from rayka.actors.scaling_decision import Decider
from rayka.config.cluster_config import ClusterSpec, NodeSpec, Scaling
from rayka.ids import FIRST_BROKER_ID, FIRST_COORDINATOR_ID, Role, role_of
from rayka.protocol.load import LoadReport

_FIRST_IDS = {Role.BROKER: FIRST_BROKER_ID, Role.COORDINATOR: FIRST_COORDINATOR_ID}
# The pause after the first refusal; doubled after each further one, up to the second value.
BACKOFF_MIN_MS = 15_000
BACKOFF_MAX_MS = 300_000
# The free bytes that count as clearly more, in percent of the former ones: reports always differ a little.
_ROOM_PERCENT = 110


@dataclass(frozen=True, slots=True)
class ScaledBroker:
    """A registered broker."""

    is_active: bool
    is_leaving: bool = False
    # None before the first report.
    load: LoadReport | None = None
    # None: not asked for, because the broker is active and stays.
    replica_count: int | None = None
    # The directories that the broker registered with.
    directory_ids: frozenset[UUID] = frozenset()
    # Why not all of its replicas can move; empty if they can, or if it does not go.
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """A place for a broker that Ray is asked for."""

    # Empty until Ray has placed the room.
    ray_node_id: str = ""
    # The resources that Ray lacks, once that has lasted.
    lacking: str = ""


@dataclass(frozen=True, slots=True)
class RoleView:
    """The present state of one role."""

    now_ms: int
    brokers: Mapping[int, ScaledBroker] = field(default_factory=dict)
    rooms: Mapping[int, Room] = field(default_factory=dict)
    # The brokers that have an actor.
    actors: Collection[int] = ()
    # Reassignments under way, of whatever partitions.
    move_count: int = 0
    # The largest replication factor that these brokers have to hold; 1: not asked for, or coordinators, beside which
    # brokers hold the rest.
    factor_max: int = 1
    # The replicas of a broker that is away for so long are made anew.
    unavailable_ms: int = 900_000


# ---- Steps ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """One thing to do for one broker, and the reason."""

    broker_id: int
    reason: str


class AskForRoom(ScalingStep):
    """Asks Ray for the resources of the broker."""


class DropRoom(ScalingStep):
    """Withdraws the request for a broker that is not wanted any more."""


class ReturnRoom(ScalingStep):
    """Gives the broker's room back to Ray, because its actor is there."""


class Make(ScalingStep):
    """Makes the broker's directories and its actor on the Ray node of its room."""


class Leave(ScalingStep):
    """Begins the departure of the broker: it takes no new replicas, and is emptied."""


class Stay(ScalingStep):
    """Ends the departure of the broker."""


class Stop(ScalingStep):
    """Stops a broker that holds nothing any more, ends its actor, and removes its directories."""


class Forget(ScalingStep):
    """Removes the rest of a stopped broker's directories, and makes the controller forget it."""


@dataclass(frozen=True, slots=True)
class ScalingStatus:
    """How many brokers there should be and are, between which counts, and why the counts differ or stay."""

    desired: int
    actual: int
    min: int
    max: int
    reason: str


class Planner:
    """Plans for one role in one cluster."""

    def __init__(self, spec: ClusterSpec, role: Role = Role.BROKER) -> None:
        self._spec = spec
        self._role = role
        self._range = spec.ranges[role]
        self._targets = spec.scaling or Scaling()
        self._decider = Decider(self._range, self._targets, role)
        self._backoff = RefusalBackoff()
        # Since when brokers are away, and since when they are away without a replica or an actor.
        self._away_since_ms: dict[int, int] = {}
        self._gone_since_ms: dict[int, int] = {}
        # The outcome of the last look.
        self.status: ScalingStatus | None = None
        # Whether something that was begun may go on soon by itself.
        self.is_under_way = False

    def __repr__(self) -> str:
        return f"<Planner {self._role}s {self._range} {self.status}>"

    def next(self, seen: RoleView) -> ScalingStep | None:
        """Returns the next step; None if there is nothing to do but wait."""
        self._note_absences(seen)
        step, reason = self._next(seen)
        desired = self._count(seen) + isinstance(step, AskForRoom) - isinstance(step, Leave)
        actual = sum(each.is_active for each in seen.brokers.values())
        self.status = ScalingStatus(desired, actual, self._range.min, self._range.max, reason)
        is_leaving = any(each.is_leaving and each.is_active for each in seen.brokers.values())
        is_coming = any(each not in seen.rooms or not seen.rooms[each].lacking for each in _coming(seen))
        self.is_under_way = is_leaving or is_coming or step is not None
        return step

    def refused(self, step: ScalingStep, reason: str, seen: RoleView) -> bool:
        """Notes that the step was not taken, and why. Returns whether the refusal is the first. A broker that is to go
        is tried again after a pause, or as soon as a change may make its departure possible.
        """
        self.failed(reason)
        return isinstance(step, Leave) and self._backoff.begin(reason, _grounds(seen), seen.now_ms)

    def failed(self, reason: str) -> None:
        """Notes that the step was not taken, and why. The windows of the decision begin anew."""
        self._decider.begin_anew()
        if self.status is not None:
            self.status = replace(self.status, reason=reason)

    def _next(self, seen: RoleView) -> tuple[ScalingStep | None, str]:
        leftover = [each for each in seen.rooms if each in seen.brokers or each in seen.actors]
        if leftover:
            return _with_reason(ReturnRoom(leftover[0], "it has an actor"))
        placed = [each for each, room in seen.rooms.items() if room.ray_node_id]
        if placed:
            return _with_reason(
                Make(placed[0], f"Ray node {seen.rooms[placed[0]].ray_node_id} has room for it")
            )
        leaving = [each for each, found in seen.brokers.items() if found.is_leaving]
        if leaving:
            self._decider.begin_anew()
            self._backoff.end()
            return self._go_on_leaving(leaving[0], seen)
        return self._decide(seen)

    # ---- A broker that goes ----

    def _go_on_leaving(self, broker_id: int, seen: RoleView) -> tuple[ScalingStep | None, str]:
        found, name = seen.brokers[broker_id], _named(broker_id)
        if not self._may_go(broker_id):
            return _with_reason(Stay(broker_id, "the specification declares it"))
        active = len(_active(seen))
        if (found.replica_count or found.is_active) and active < self._least(seen):
            return _with_reason(Stay(broker_id, f"without it only {active} {self._role}s are there"))
        if found.replica_count:
            # The controller moves them (decision 093).
            if found.obstacle and not seen.move_count:
                return _with_reason(Stay(broker_id, found.obstacle))
            return None, f"{name} goes: {found.replica_count:,} replicas to move"
        if broker_id in seen.actors:
            return _with_reason(Stop(broker_id, "it holds no replica any more"))
        if found.is_active:
            return None, f"{name} goes: it has stopped, and its session ends"
        return _with_reason(Forget(broker_id, "it has stopped, and held no replica"))

    # ---- Whether a broker comes or goes ----

    def _decide(self, seen: RoleView) -> tuple[ScalingStep | None, str]:
        gone = self._long_gone(seen)
        if gone is not None:
            return _with_reason(Leave(gone, "its machine is gone, and it holds no replica"))
        obstacle = self._obstacle(seen)
        if obstacle:
            self._decider.begin_anew()
            return None, obstacle
        loads = [load for each in _active(seen) if (load := seen.brokers[each].load) is not None]
        count, coming = self._count(seen), _coming(seen)
        advice = self._decider.advise(loads, count, seen.factor_max, seen.now_ms)
        if advice.count < count:
            return self._shrink(seen, advice.reason)
        if coming:
            return None, _why_it_does_not_come(coming[0], seen)
        if advice.count > count:
            taken = {*seen.brokers, *seen.actors, *seen.rooms}
            return _with_reason(AskForRoom(free_id(self._spec, self._role, taken), advice.reason))
        return None, advice.reason

    def _obstacle(self, seen: RoleView) -> str:
        """Returns why nothing is decided now; empty if something may be."""
        are_too_few = self._count(seen) < self._least(seen)
        are_needed = are_too_few and any(self._is_long_away(each, seen) for each in self._staying(seen))
        # Where brokers are needed, a move may wait for one of them.
        if seen.move_count and not are_needed:
            return f"{seen.move_count:,} reassignments are under way"
        for each in self._staying(seen):
            found = seen.brokers[each]
            if _is_away_with_replicas(found) and not self._is_long_away(each, seen):
                return _away(each)
            if found.is_active and found.load is None:
                return f"{_named(each)} has not reported its load yet"
        return ""

    def _shrink(self, seen: RoleView, reason: str) -> tuple[ScalingStep | None, str]:
        """Chooses the broker that goes: one that has not come yet, else the one with the least to move."""
        for each in seen.rooms:
            return _with_reason(DropRoom(each, reason))
        away = [each for each in self._staying(seen) if _is_away_with_replicas(seen.brokers[each])]
        if away:
            # Even one that has been away for long may come back, and its replicas are nowhere else yet.
            return None, _away(away[0])
        loads = {
            each: load
            for each in _active(seen)
            if self._may_go(each) and (load := seen.brokers[each].load) is not None
        }
        if _coming(seen) or not loads:
            return None, reason
        if len(_active(seen)) <= self._least(seen):
            return None, f"{reason}; only {len(_active(seen))} {self._role}s are there now"
        refusal = self._backoff.holds(_grounds(seen), seen.now_ms)
        if refusal:
            return None, f"{reason}; but {refusal}"
        cheapest = min(loads, key=lambda each: (loads[each].size_bytes, loads[each].partition_count, -each))
        free_bytes = sum(
            load.free_bytes
            for each in _active(seen)
            if each != cheapest and (load := seen.brokers[each].load) is not None
        )
        asked = loads[cheapest].size_bytes
        if 2 * asked > free_bytes:
            return None, f"{reason}; but the disks of the others have {free_bytes:,} bytes free for {asked:,}"
        return _with_reason(Leave(cheapest, reason))

    # ---- A broker that is away ----

    def _note_absences(self, seen: RoleView) -> None:
        away = {each for each, found in seen.brokers.items() if not found.is_active}
        gone = {each for each in away if self._is_gone(each, seen.brokers[each], seen.actors)}
        self._away_since_ms = {each: self._away_since_ms.get(each, seen.now_ms) for each in away}
        self._gone_since_ms = {each: self._gone_since_ms.get(each, seen.now_ms) for each in gone}

    def _long_gone(self, seen: RoleView) -> int | None:
        """Returns a broker beyond the declared ones whose machine did not come back in time. Its replicas were made
        anew.
        """
        if "in" in self._targets.never:
            return None
        for each, since_ms in self._gone_since_ms.items():
            if seen.now_ms - since_ms >= self._targets.in_window_s * 1000:
                return each
        return None

    def _is_long_away(self, broker_id: int, seen: RoleView) -> bool:
        """Whether the broker's replicas are made anew on others, as far as these have room."""
        away_ms = seen.now_ms - self._away_since_ms.get(broker_id, seen.now_ms)
        return away_ms >= seen.unavailable_ms

    def _is_gone(self, broker_id: int, found: ScaledBroker, actors: Collection[int]) -> bool:
        is_empty = not found.is_active and found.replica_count == 0
        return is_empty and self._may_go(broker_id) and broker_id not in actors

    def _may_go(self, broker_id: int) -> bool:
        """Whether the broker is beyond the declared ones."""
        return bool(scaled_ids(self._spec, [broker_id]))

    # ---- How many brokers there are ----

    def _least(self, seen: RoleView) -> int:
        return max(self._range.min, seen.factor_max)

    def _count(self, seen: RoleView) -> int:
        """Counts the brokers that serve, are to come, or may soon be back."""
        back = [each for each in self._staying(seen) if not self._is_long_away(each, seen)]
        return len({*back, *_coming(seen)})

    def _staying(self, seen: RoleView) -> list[int]:
        return [
            each
            for each, found in seen.brokers.items()
            if not found.is_leaving and not self._is_gone(each, found, seen.actors)
        ]


# ---- Pauses after refusals -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RefusalGrounds:
    """The facts that a refusal may depend on: the brokers that serve and stay, and their free bytes and partitions in
    sum.
    """

    broker_ids: Set[int]
    free_bytes: int
    partition_count: int


class RefusalBackoff:
    """The pause of one role after refused departures.

    A refusal results from a plan over all partitions, so it is not asked for at each look. The pause is longer after
    each refusal, up to a bound, because the cause may change unseen, as a cordon that an operator takes back. The pause
    ends at once when other brokers serve, or the disks of the serving ones have clearly more room, or fewer replicas
    are there. It ends, too, when a broker goes.
    """

    def __init__(self) -> None:
        self._refusal = ""
        self._grounds = RefusalGrounds(frozenset(), 0, 0)
        self._duration_ms = 0
        self._until_ms = 0

    def begin(self, refusal: str, grounds: RefusalGrounds, now_ms: int) -> bool:
        """Notes a refusal. Whether it is the first."""
        is_first = not self._refusal
        self._refusal, self._grounds = refusal, grounds
        self._duration_ms = BACKOFF_MIN_MS if is_first else min(2 * self._duration_ms, BACKOFF_MAX_MS)
        self._until_ms = now_ms + self._duration_ms
        return is_first

    def holds(self, grounds: RefusalGrounds, now_ms: int) -> str:
        """Returns why nothing is to be tried now; empty if it may be."""
        if grounds.broker_ids != self._grounds.broker_ids:
            self.end()
        return "" if now_ms >= self._until_ms or self._is_easier(grounds) else self._refusal

    def end(self) -> None:
        """Ends the pause: the next refusal is the first of another series."""
        self._refusal = ""
        self._until_ms = 0

    def _is_easier(self, grounds: RefusalGrounds) -> bool:
        before = self._grounds
        has_room = 100 * grounds.free_bytes > _ROOM_PERCENT * before.free_bytes
        return has_room or grounds.partition_count < before.partition_count


# ---- Views ---------------------------------------------------------------------------------------------------------


def _active(seen: RoleView) -> list[int]:
    """Returns the brokers that serve and stay."""
    return [each for each, found in seen.brokers.items() if found.is_active and not found.is_leaving]


def _is_away_with_replicas(found: ScaledBroker) -> bool:
    return not found.is_active and found.replica_count != 0


def _away(broker_id: int) -> str:
    return f"{_named(broker_id)} is away, and holds replicas"


def _grounds(seen: RoleView) -> RefusalGrounds:
    active = _active(seen)
    loads = [load for each in active if (load := seen.brokers[each].load) is not None]
    return RefusalGrounds(
        frozenset(active), sum(each.free_bytes for each in loads), sum(each.partition_count for each in loads)
    )


def _coming(seen: RoleView) -> list[int]:
    return [each for each in sorted({*seen.rooms, *seen.actors}) if each not in seen.brokers]


def _why_it_does_not_come(broker_id: int, seen: RoleView) -> str:
    room = seen.rooms.get(broker_id)
    if room is None:
        return f"{_named(broker_id)} starts"
    return f"{_named(broker_id)} waits for a Ray node" + (f": {room.lacking}" if room.lacking else "")


def _with_reason(step: ScalingStep) -> tuple[ScalingStep, str]:
    return step, f"{_named(step.broker_id)}: {step.reason}"


def _named(broker_id: int) -> str:
    return f"{role_of(broker_id)} {broker_id}"


# ---- Specs ---------------------------------------------------------------------------------------------------------


def with_scaled(spec: ClusterSpec, node_ids: Iterable[int]) -> ClusterSpec:
    """Returns the spec with these nodes added. The ranges of counts stay as they are."""
    added = [each for each in dict.fromkeys(node_ids) if each not in spec.roles]
    if not added:
        return spec
    roles = {**spec.roles, **{each: (role_of(each),) for each in added}}
    nodes = tuple(NodeSpec(id=each, roles=roles[each]) for each in sorted(roles))
    return spec.model_copy(update={"nodes": nodes})


def without_scaled(spec: ClusterSpec) -> ClusterSpec:
    """Returns the spec with the declared nodes only."""
    others = scaled_ids(spec, spec.roles)
    nodes = tuple(NodeSpec(id=each, roles=roles) for each, roles in spec.roles.items() if each not in others)
    return spec.model_copy(update={"nodes": nodes}) if others else spec


def with_scaled_among(wanted: ClusterSpec, node_ids: Collection[int]) -> ClusterSpec:
    """Returns the spec with the nodes among these that came by the load: the cluster as a start brings it up, or finds
    it.
    """
    return with_scaled(wanted, scaled_ids(wanted, node_ids))


def scaled_ids(spec: ClusterSpec, node_ids: Iterable[int]) -> list[int]:
    """Returns the nodes among these that are beyond the declared ones. Empty for a role whose nodes do not come
    and go.
    """
    first_ids = {role: _first_id(spec, role) for role in spec.ranges}
    return sorted(
        each for each in node_ids if role_of(each) in first_ids and each >= first_ids[role_of(each)]
    )


def free_id(spec: ClusterSpec, role: Role, taken: Collection[int]) -> int:
    """Returns the id of the next node of that role that comes: the lowest free one."""
    return next(each for each in count(_first_id(spec, role)) if each not in taken)


def _first_id(spec: ClusterSpec, role: Role) -> int:
    """Returns the lowest id of a node that comes and goes."""
    return _FIRST_IDS[role] + spec.ranges[role].min
