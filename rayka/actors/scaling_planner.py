"""What is done next so that there are as many brokers, or coordinators, as the load asks for. A core: no clock, no IO.

Level-triggered: what was begun is where everyone finds it, so the next planner goes on with it or undoes it. A broker
that is to come is a room that Ray is asked for (`rooms`), then an actor, then a registration; one that is to go is
marked in the metadata (`scaling.leaving`), loses its replicas, its actor, its directories, its registration. Nothing of
this is remembered here. Only one comes or goes at a time. The first min stay: they are what the spec declares. One that
has been away for as long as its replicas wait to be made anew does not count until it is back, whether they are made
anew or not; while it holds some, others come, and none goes. A coordinator is a broker here, too, as it is to the
controller: each role has a planner, which sees its own nodes only.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import count
from uuid import UUID

from rayka.actors.scaling_decision import Decider
from rayka.config.cluster_config import ClusterSpec, NodeSpec, Scaling
from rayka.ids import FIRST_BROKER_ID, FIRST_COORDINATOR_ID, Role, role_of
from rayka.protocol.load import LoadReport

# The spec of a cluster whose brokers or coordinators come and go: with those that there are beyond the declared ones.
# Pure.


_FIRST_IDS = {Role.BROKER: FIRST_BROKER_ID, Role.COORDINATOR: FIRST_COORDINATOR_ID}


def grown(spec: ClusterSpec, node_ids: Iterable[int]) -> ClusterSpec:
    """The same cluster with these nodes, too: between which counts they come and go stays as it is."""
    added = [each for each in dict.fromkeys(node_ids) if each not in spec.roles]
    if not added:
        return spec
    roles = {**spec.roles, **{each: (role_of(each),) for each in added}}
    nodes = tuple(NodeSpec(id=each, roles=roles[each]) for each in sorted(roles))
    return spec.model_copy(update={"nodes": nodes})


def declared(spec: ClusterSpec) -> ClusterSpec:
    """The same cluster without nodes that have come and may go."""
    others = come_and_gone(spec, spec.roles)
    nodes = tuple(NodeSpec(id=each, roles=roles) for each, roles in spec.roles.items() if each not in others)
    return spec.model_copy(update={"nodes": nodes}) if others else spec


def as_it_is(wanted: ClusterSpec, node_ids: Collection[int]) -> ClusterSpec:
    """What a start is to bring up or find: the declared nodes and, where nodes come and go, those that have come."""
    return grown(wanted, come_and_gone(wanted, node_ids))


def come_and_gone(spec: ClusterSpec, node_ids: Iterable[int]) -> list[int]:
    """Those of these nodes that are beyond the declared ones; none of a role whose nodes do not come and go."""
    first_ids = {role: _first_id(spec, role) for role in spec.ranges}
    return sorted(
        each for each in node_ids if role_of(each) in first_ids and each >= first_ids[role_of(each)]
    )


def free_id(spec: ClusterSpec, role: Role, taken: Collection[int]) -> int:
    """The id of the next node of that role that comes: the lowest that none has."""
    return next(each for each in count(_first_id(spec, role)) if each not in taken)


def _first_id(spec: ClusterSpec, role: Role) -> int:
    """The lowest id of a node that comes and goes."""
    return _FIRST_IDS[role] + spec.ranges[role].min


# How long a scale-in that was refused rests. A core: no clock, no IO.
#
# A refusal comes of a plan over all partitions, so it is not asked for at each look. The rest is longer after each
# refusal, up to a bound, for what refuses may change unseen: a cordon that an operator takes back. It ends at once when
# other brokers serve, or the disks of those that do have clearly more room, or fewer replicas are there.


REST_MIN_MS = 15_000
REST_MAX_MS = 300_000
_ROOM_PERCENT = 110  # of what it was: reports of free bytes always differ a little


@dataclass(frozen=True, slots=True)
class Standpoint:
    """What a refusal may depend on: the brokers that serve and stay, and what is free and held there in sum."""

    broker_ids: Set[int]
    free_bytes: int
    partition_count: int


class Rest:
    """Of one role. It has begun at the first refusal, and lasts until a broker goes or other brokers serve."""

    def __init__(self) -> None:
        self._refusal = ""
        self._standpoint = Standpoint(frozenset(), 0, 0)
        self._duration_ms = 0
        self._until_ms = 0

    def __repr__(self) -> str:
        return f"<Rest of {self._duration_ms} ms {self._refusal}>"

    def begin(self, refusal: str, standpoint: Standpoint, now_ms: int) -> bool:
        """It was refused. Whether that is the first time."""
        is_first = not self._refusal
        self._refusal, self._standpoint = refusal, standpoint
        self._duration_ms = REST_MIN_MS if is_first else min(2 * self._duration_ms, REST_MAX_MS)
        self._until_ms = now_ms + self._duration_ms
        return is_first

    def holds(self, standpoint: Standpoint, now_ms: int) -> str:
        """Why nothing is to be asked for now; empty where it may be."""
        if standpoint.broker_ids != self._standpoint.broker_ids:
            self.end()
        return "" if now_ms >= self._until_ms or self._is_easier(standpoint) else self._refusal

    def end(self) -> None:
        """What was refused is over: the next refusal is news."""
        self._refusal = ""
        self._until_ms = 0

    def _is_easier(self, standpoint: Standpoint) -> bool:
        before = self._standpoint
        has_room = 100 * standpoint.free_bytes > _ROOM_PERCENT * before.free_bytes
        return has_room or standpoint.partition_count < before.partition_count


@dataclass(frozen=True, slots=True)
class Standing:
    """A registered broker. `load` is None before its first report; `replica_count` where it was not asked for, as of
    one that is active and stays; `directory_ids` are those it registered with.
    """

    is_active: bool
    is_leaving: bool = False
    load: LoadReport | None = None
    replica_count: int | None = None
    directory_ids: frozenset[UUID] = frozenset()
    # Why not all of its replicas can move; empty if they can, or if it does not go.
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """A place for a broker that Ray is asked for; it has none yet while `ray_node_id` is empty. `lacking`: what Ray
    says it has not, once that has lasted.
    """

    ray_node_id: str = ""
    lacking: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is of one role. `actors`: the brokers that have one; `move_count`: reassignments under way, whatever
    they move; `factor_max`: the largest replication factor that these brokers have to hold, 1 where that was not asked
    for, and of coordinators, beside which brokers hold the rest. `unavailable_ms`: the replicas of one that is away for
    so long are made anew.
    """

    now_ms: int
    brokers: Mapping[int, Standing] = field(default_factory=dict)
    rooms: Mapping[int, Room] = field(default_factory=dict)
    actors: Collection[int] = ()
    move_count: int = 0
    factor_max: int = 1
    unavailable_ms: int = 900_000


# ---- Steps ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do for one broker, and why."""

    broker_id: int
    reason: str


class AskForRoom(Step):
    """Ray is asked for what the broker needs."""


class DropRoom(Step):
    """Ray is not asked any more: the broker is not wanted."""


class ReturnRoom(Step):
    """The broker's actor is there, so its room goes back to Ray."""


class Make(Step):
    """The broker's room has a Ray node: its directories and its actor are made there."""


class Leave(Step):
    """The broker takes no new replicas, and is emptied by the controller."""


class Stay(Step):
    """The broker does not go."""


class Stop(Step):
    """A broker that holds nothing any more is stopped, its actor ended, and its directories are removed."""


class Forget(Step):
    """What is left of the directories of a broker that was stopped is removed, and the controller forgets it."""


@dataclass(frozen=True, slots=True)
class ScalingStatus:
    """How many brokers there should be and are, between which counts, and why that differs or stays as it is."""

    desired: int
    actual: int
    min: int
    max: int
    reason: str


class Planner:
    """Plans for one role in one cluster. `status` says what came of the last look, and `is_under_way` whether what was
    begun may go on soon by itself.
    """

    def __init__(self, spec: ClusterSpec, role: Role = Role.BROKER) -> None:
        self._spec = spec
        self._role = role
        self._range = spec.ranges[role]
        self._targets = spec.scaling or Scaling()
        self._decider = Decider(self._range, self._targets, role)
        self._rest = Rest()
        self._ghost_since_ms: dict[int, int] = {}
        self._away_since_ms: dict[int, int] = {}
        self.status: ScalingStatus | None = None
        self.is_under_way = False

    def __repr__(self) -> str:
        return f"<Planner {self._role}s {self._range} {self.status}>"

    def next(self, seen: Seen) -> Step | None:
        """The next step; None where there is nothing to do but wait."""
        self._note_absences(seen)
        step, reason = self._next(seen)
        desired = self._count(seen) + isinstance(step, AskForRoom) - isinstance(step, Leave)
        actual = sum(each.is_active for each in seen.brokers.values())
        self.status = ScalingStatus(desired, actual, self._range.min, self._range.max, reason)
        is_leaving = any(each.is_leaving and each.is_active for each in seen.brokers.values())
        is_coming = any(each not in seen.rooms or not seen.rooms[each].lacking for each in _coming(seen))
        self.is_under_way = is_leaving or is_coming or step is not None
        return step

    def refused(self, step: Step, reason: str, seen: Seen) -> bool:
        """The step was not taken, for this reason. Whether that is news: one that is to go is asked to again after a
        while, or as soon as something has changed that may make it possible.
        """
        self.failed(reason)
        return isinstance(step, Leave) and self._rest.begin(reason, _standpoint(seen), seen.now_ms)

    def failed(self, reason: str) -> None:
        """The step was not taken, for this reason: nothing is decided before the windows are whole again."""
        self._decider.begin_anew()
        if self.status is not None:
            self.status = replace(self.status, reason=reason)

    def _next(self, seen: Seen) -> tuple[Step | None, str]:
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
            self._rest.end()
            return self._go_on_leaving(leaving[0], seen)
        return self._decide(seen)

    # ---- One that goes ----

    def _go_on_leaving(self, broker_id: int, seen: Seen) -> tuple[Step | None, str]:
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

    # ---- Whether one comes or goes ----

    def _decide(self, seen: Seen) -> tuple[Step | None, str]:
        ghost = self._long_gone(seen)
        if ghost is not None:
            return _with_reason(Leave(ghost, "its machine is gone, and it holds no replica"))
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

    def _obstacle(self, seen: Seen) -> str:
        """Why nothing is decided now."""
        are_too_few = self._count(seen) < self._least(seen)
        are_needed = are_too_few and any(self._is_long_away(each, seen) for each in self._staying(seen))
        if seen.move_count and not are_needed:  # else a move may wait for one of them
            return f"{seen.move_count:,} reassignments are under way"
        for each in self._staying(seen):
            found = seen.brokers[each]
            if _is_away_with_replicas(found) and not self._is_long_away(each, seen):
                return _away(each)
            if found.is_active and found.load is None:
                return f"{_named(each)} has not reported its load yet"
        return ""

    def _shrink(self, seen: Seen, reason: str) -> tuple[Step | None, str]:
        """The one that is not there yet, else the one that is the least to move."""
        for each in seen.rooms:
            return _with_reason(DropRoom(each, reason))
        away = [each for each in self._staying(seen) if _is_away_with_replicas(seen.brokers[each])]
        if away:  # for long: it may come back, and what it holds is nowhere else yet
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
        refusal = self._rest.holds(_standpoint(seen), seen.now_ms)
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

    # ---- One that is away ----

    def _note_absences(self, seen: Seen) -> None:
        away = {each for each, found in seen.brokers.items() if not found.is_active}
        ghosts = {each for each in away if self._is_ghost(each, seen.brokers[each], seen.actors)}
        self._away_since_ms = {each: self._away_since_ms.get(each, seen.now_ms) for each in away}
        self._ghost_since_ms = {each: self._ghost_since_ms.get(each, seen.now_ms) for each in ghosts}

    def _long_gone(self, seen: Seen) -> int | None:
        """One beyond the declared ones whose machine did not come back in time; what it held was made anew."""
        if "in" in self._targets.never:
            return None
        for each, since_ms in self._ghost_since_ms.items():
            if seen.now_ms - since_ms >= self._targets.in_window_s * 1000:
                return each
        return None

    def _is_long_away(self, broker_id: int, seen: Seen) -> bool:
        """Whether its replicas are made anew on others, as far as these have room."""
        away_ms = seen.now_ms - self._away_since_ms.get(broker_id, seen.now_ms)
        return away_ms >= seen.unavailable_ms

    def _is_ghost(self, broker_id: int, found: Standing, actors: Collection[int]) -> bool:
        is_empty = not found.is_active and found.replica_count == 0
        return is_empty and self._may_go(broker_id) and broker_id not in actors

    def _may_go(self, broker_id: int) -> bool:
        """Whether it is beyond the declared ones."""
        return bool(come_and_gone(self._spec, [broker_id]))

    # ---- How many there are ----

    def _least(self, seen: Seen) -> int:
        return max(self._range.min, seen.factor_max)

    def _count(self, seen: Seen) -> int:
        """Those that serve, are to come, or may soon be back."""
        back = [each for each in self._staying(seen) if not self._is_long_away(each, seen)]
        return len({*back, *_coming(seen)})

    def _staying(self, seen: Seen) -> list[int]:
        return [
            each
            for each, found in seen.brokers.items()
            if not found.is_leaving and not self._is_ghost(each, found, seen.actors)
        ]


def _active(seen: Seen) -> list[int]:
    """Those that serve, and stay."""
    return [each for each, found in seen.brokers.items() if found.is_active and not found.is_leaving]


def _is_away_with_replicas(found: Standing) -> bool:
    return not found.is_active and found.replica_count != 0


def _away(broker_id: int) -> str:
    return f"{_named(broker_id)} is away, and holds replicas"


def _standpoint(seen: Seen) -> Standpoint:
    active = _active(seen)
    loads = [load for each in active if (load := seen.brokers[each].load) is not None]
    return Standpoint(
        frozenset(active), sum(each.free_bytes for each in loads), sum(each.partition_count for each in loads)
    )


def _coming(seen: Seen) -> list[int]:
    return [each for each in sorted({*seen.rooms, *seen.actors}) if each not in seen.brokers]


def _why_it_does_not_come(broker_id: int, seen: Seen) -> str:
    room = seen.rooms.get(broker_id)
    if room is None:
        return f"{_named(broker_id)} starts"
    return f"{_named(broker_id)} waits for a Ray node" + (f": {room.lacking}" if room.lacking else "")


def _with_reason(step: Step) -> tuple[Step, str]:
    return step, f"{_named(step.broker_id)}: {step.reason}"


def _named(broker_id: int) -> str:
    return f"{role_of(broker_id)} {broker_id}"
