"""Plans the moves that balance a cluster: a synchronous core over brokers, replicas and loads.

Goals in their order:

1. each partition on as many racks and machines as it can be (with as many replicas as it has, always);
2. no disk above 80 % of its capacity; one that is, is brought to 75 %, on disks that stay below that;
3. evenness of bytes on disk;
4. evenness of preferred leaders, by another order of the same replicas, which copies nothing;
5. evenness of bytes in, by replicas of much traffic and few bytes, and of bytes out, by preferred leaders.

An evenness is looked after when a broker is off its share by more than 10 % (of traffic 20 %), and then brought to
within half of that. What brokers are off by more than this half is the goal's *excess*. No replica goes to disks that
have no room for it (`disk_room`), whatever the goal.

Each step lowers the excess of its own goal (of racks: the number of missing ones) and raises the excess of no earlier
goal. So planning ends, and nothing moves to and fro, not even where a share cannot be reached because one partition is
larger. Rounds through all goals go on until none finds a step, so the plan after one that was carried out is empty.

The moves of a goal come by what they gain for each byte copied. At most 1,000 partitions a plan; when that is not all,
the next plan goes on.

It is a generator: one step is some ten microseconds of work, so a caller can give others their turn. Rayka's own;
Cruise Control's `GoalOptimizer` has these goals among its own.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable
from enum import IntEnum
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from rayka.controller.planning.shapes import (
    BrokerShape,
    Holder,
    Holders,
    PartitionShape,
    Placed,
)
from rayka.ids import TopicPartition
from rayka.protocol.load import DISK_USE_MAX, BalanceShare

MOVES_MAX = 1_000
DISK_USE_AIM = 0.75
SIZE_TRIGGER, TRAFFIC_TRIGGER = 0.10, 0.20
# A second, on average of the brokers: below that traffic is no reason to move anything.
TRAFFIC_BYTES_MIN = 1_000_000
_LOOKS_MAX = 100  # at candidates of one pair of brokers
_TARGETS_MAX = 8  # brokers that are looked at for one that gives
_STEPS_PER_MOVE = 5  # what it takes to look at a hundred brokers
# Rounds through all goals; two or three are usual.
_ROUNDS_MAX = 20
# A smaller share of an excess is an error of rounding.
_ROUNDING = 1e-9
Planning = Generator[None, int, "Plan"]
_Steps = Generator[None, int, bool]  # whether something was found to move
_Cost = Callable[[Holder], float]
_by_fill: _Cost = attrgetter("fill")
_by_bytes_in: _Cost = attrgetter("bytes_in")
_by_bytes_out: _Cost = attrgetter("bytes_out")


class Goal(IntEnum):
    """Why something moves, the most important first."""

    # The goal of `replacement_plan` alone.
    REPLACEMENT = 0
    SPREAD = 1
    CAPACITY = 2
    SIZE = 3
    LEADERS = 4
    BYTES_IN = 5
    BYTES_OUT = 6


class Move(NamedTuple):
    """The replicas of a partition before and after the move, and the bytes copied for it."""

    topic_partition: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    copied_bytes: int
    goal: Goal


class Plan(NamedTuple):
    """Moves in the order in which they are to begin, and what brokers hold before and after. `is_whole`: more moves
    would not improve it.
    """

    moves: tuple[Move, ...]
    before: tuple[BalanceShare, ...]
    after: tuple[BalanceShare, ...]
    is_whole: bool


class Bounds(NamedTuple):
    """The values between which a broker is even enough. Weights make excesses of brokers with unequal shares add up."""

    low: float
    high: float
    weight: float = 1.0

    def excess(self, value: float) -> float:
        beyond = max(0.0, value - self.high, self.low - value)
        return beyond * beyond * self.weight


def excess_change(source: float, target: float, amount: float, bounds: tuple[Bounds, Bounds]) -> float:
    """The growth of the sum of both excesses if the source gives the amount to the target; it may be negative."""
    of_source, of_target = bounds
    before = of_source.excess(source) + of_target.excess(target)
    change = of_source.excess(source - amount) + of_target.excess(target + amount) - before
    return change if abs(change) > _ROUNDING * before else 0.0


def plan_balance(
    brokers: Iterable[BrokerShape],
    partitions: Iterable[PartitionShape],
    last_goal: Goal = Goal.BYTES_OUT,
) -> Planning:
    """Makes a plan, step by step, for the goals up to the last one."""
    return _Planner(brokers, partitions, last_goal).run()


class _Planner:
    def __init__(
        self, brokers: Iterable[BrokerShape], partitions: Iterable[PartitionShape], last_goal: Goal
    ) -> None:
        self._holders = Holders(brokers)
        self._last_goal = last_goal
        self._partitions = partitions
        self._changed: dict[int, None] = {}
        self._step_count = 0

    def run(self) -> Planning:
        holders = self._holders
        for each in self._partitions:
            holders.add(each)
            yield
        yield from holders.settle()
        before = self._shares()
        is_at_rest = len(holders.usable) <= 1
        for _ in range(0 if is_at_rest else _ROUNDS_MAX):
            step_count = self._step_count
            yield from self._reach_all()
            is_at_rest = self._step_count == step_count
            if is_at_rest or self._is_full:
                break
        moves, after, is_whole = (yield from self._moves()), self._shares(), is_at_rest and not self._is_full
        yield from holders.dismantle()
        return Plan(moves, before, after, is_whole)

    def _reach_all(self) -> Generator[None, int, None]:
        """Each goal once."""
        self._holders.share_out()
        goals = {
            Goal.SPREAD: self._spread,
            Goal.CAPACITY: self._relieve_disks,
            Goal.SIZE: self._even_sizes,
            Goal.LEADERS: self._even_leaders,
            Goal.BYTES_IN: self._even_bytes_in,
            Goal.BYTES_OUT: self._even_bytes_out,
        }
        for goal, reach in goals.items():
            if goal <= self._last_goal:
                yield from reach()

    @property
    def _is_full(self) -> bool:
        return len(self._changed) >= MOVES_MAX

    def _shares(self) -> tuple[BalanceShare, ...]:
        return tuple(self._holders.by_id[each].share() for each in sorted(self._holders.by_id))

    def _moves(self) -> Generator[None, int, tuple[Move, ...]]:
        """The moves, sorted by goal, then by gain for each byte, then by name."""
        moves = []
        for number in self._changed:
            yield
            placed = self._holders.placed[number]
            after, before = tuple(placed.replicas), placed.shape.replicas
            if after != before and placed.gain is not None:
                goal, gain = placed.gain
                move = Move(placed.shape.topic_partition, before, after, placed.copied_bytes, Goal(goal))
                moves.append(((goal, -gain, move.topic_partition), move))
        return tuple(move for _, move in sorted(moves, key=lambda each: each[0]))

    def _replace(self, placed: Placed, source: Holder, target: Holder, goal: Goal) -> None:
        gain = _improving_bytes(source, target) - placed.size_bytes
        self._holders.replace(placed, source, target)
        self._note(placed, goal, gain)

    def _prefer(self, placed: Placed, target: Holder, goal: Goal) -> None:
        self._holders.prefer(placed, target)
        self._note(placed, goal, 0.0)

    def _note(self, placed: Placed, goal: Goal, gain: float) -> None:
        if placed.gain is None:
            placed.gain = (goal, gain)
        self._changed[placed.number] = None
        self._step_count += 1

    def _even(
        self, cost: _Cost, is_off: Callable[[float], bool], trigger: float, give: Callable[[Holder], _Steps],
        pause: int = 1,
    ) -> Generator[None, int, None]:  # fmt: skip
        """If a broker is off by more than the trigger, lets the brokers of the highest cost give, one after another,
        until no broker is off by more than half of the trigger, or no broker has anything to give.
        """
        givers = list(self._holders.usable) if is_off(trigger) else []
        while givers and is_off(trigger / 2) and not self._is_full:
            source = max(givers, key=cost)
            if not (yield from give(source)):
                givers.remove(source)
            yield from _steps(pause)

    # ---- Racks and machines --------------------------------------------------------------------------------------

    def _spread(self) -> Generator[None, int, None]:
        shapes = [each.shape for each in self._holders.usable]
        racks, machines = {each.rack for each in shapes}, {(each.rack, each.machine) for each in shapes}
        for placed in self._holders.placed:
            yield
            count = len(placed.replicas)
            wanted = min(count, len(racks)), min(count, len(machines))
            while not self._is_full and self._holders.spread(placed.replicas) < wanted:
                yield from _steps(_STEPS_PER_MOVE)
                if not self._spread_one(placed):
                    break

    def _spread_one(self, placed: Placed) -> bool:
        """Moves the replica that shares its place to the emptiest broker elsewhere with room; whether there was one."""
        best = self._holders.spread(placed.replicas)
        for source_id in reversed(placed.replicas):  # the preferred leader last
            source = self._holders.by_id[source_id]
            others = [each for each in placed.replicas if each != source_id]
            for target in sorted(self._holders.usable, key=_by_fill):
                found = self._holders.spread((*others, target.shape.broker_id))
                may_go = self._holders.has_room(placed, target) and found > best
                if may_go and self._holders.may_replace(placed, source, target):
                    self._replace(placed, source, target, Goal.SPREAD)
                    return True
        return False

    # ---- Bytes on disk -------------------------------------------------------------------------------------------

    def _relieve_disks(self) -> Generator[None, int, None]:
        for source in sorted(self._holders.usable, key=_by_fill, reverse=True):
            capacity = source.shape.capacity_bytes
            if not capacity or source.size_bytes <= capacity * DISK_USE_MAX:
                continue
            while source.size_bytes > capacity * DISK_USE_AIM and not self._is_full:
                wanted_bytes = source.size_bytes - capacity * DISK_USE_AIM
                if not (yield from self._give(source, wanted_bytes, Goal.CAPACITY)):
                    break

    def _even_sizes(self) -> Generator[None, int, None]:
        give = partial(self._give, wanted_bytes=None, goal=Goal.SIZE)
        yield from self._even(_by_fill, self._is_off, SIZE_TRIGGER, give, _STEPS_PER_MOVE)

    def _is_off(self, tolerance: float) -> bool:
        return any(abs(each.fill - 1) > tolerance for each in self._holders.usable)

    def _give(self, source: Holder, wanted_bytes: float | None, goal: Goal) -> _Steps:
        """Moves one replica of the broker to one of the emptiest; whether there was one that improves it. It is the
        largest of at most so many bytes, or of half of what would make the other the fuller one.
        """
        targets = sorted((each for each in self._holders.usable if each is not source), key=_by_fill)
        for target in targets[:_TARGETS_MAX]:
            if wanted_bytes is None:
                most = _improving_bytes(source, target)
                if most <= 0 or not _size_excess(source) + _size_excess(target):
                    return False
                ideal, end = most / 2, min(self._holders.left_bytes(target), most)
            else:
                ideal, end = wanted_bytes, self._holders.left_bytes(target, DISK_USE_AIM)
            found: Placed | None = yield from self._candidate(source, target, ideal, end, goal)
            if found is not None:
                self._replace(found, source, target, goal)
                return True
        return False

    def _candidate(
        self, source: Holder, target: Holder, ideal: float, end: float, goal: Goal
    ) -> Generator[None, int, Placed | None]:
        """The largest replica of up to the ideal size that may go there, or else the next larger one below the end."""
        entries, holders = source.by_size, self._holders
        middle = bisect_right(entries, (min(ideal, end), len(holders.placed)))
        below = range(middle - 1, max(-1, middle - 1 - _LOOKS_MAX), -1)
        above = range(middle, min(len(entries), middle + _LOOKS_MAX))
        for place in (*below, *above):
            size_bytes, number = entries[place]
            if size_bytes >= end:
                return None
            if place % 8 == 0:
                yield
            placed: Placed = holders.placed[number]
            is_better = goal is not Goal.SIZE or _size_change(source, target, size_bytes) < 0
            if is_better and holders.may_replace(placed, source, target):
                return placed
        return None

    # ---- Leaders -------------------------------------------------------------------------------------------------

    def _even_leaders(self) -> Generator[None, int, None]:
        is_off = partial(_is_leading_off, self._holders.usable)
        yield from self._even(_by_leads, is_off, SIZE_TRIGGER, self._give_lead)

    def _give_lead(self, source: Holder) -> _Steps:
        """Gives one of the broker's preferred leads to the replica that leads least, if this makes leads more even."""
        best: tuple[float, Placed, Holder] | None = None
        bounds = _lead_bounds(self._holders.usable)
        for looked_at, number in enumerate(source.led):
            placed = self._holders.placed[number]
            target = self._least(placed, _by_leads)
            if target is not None and _lead_change(source, target, bounds) < 0:
                if best is None or len(target.led) < best[0]:
                    best = len(target.led), placed, target
                if looked_at >= _LOOKS_MAX:
                    break
            if looked_at % 8 == 0:
                yield
        return self._prefer_best(best, Goal.LEADERS)

    def _prefer_best(self, best: tuple[float, Placed, Holder] | None, goal: Goal) -> bool:
        """Whether there was one."""
        if best is not None:
            self._prefer(best[1], best[2], goal)
        return best is not None

    def _least(self, placed: Placed, cost: _Cost) -> Holder | None:
        """The cheapest broker among the replicas behind the first."""
        others = (self._holders.by_id[each] for each in placed.replicas[1:])
        return min((each for each in others if each.shape.takes_replicas), key=cost, default=None)

    # ---- Traffic -------------------------------------------------------------------------------------------------

    def _even_bytes_in(self) -> Generator[None, int, None]:
        is_busy = partial(_is_busy, self._holders.usable, _by_bytes_in)
        yield from self._even(_by_bytes_in, is_busy, TRAFFIC_TRIGGER, self._give_busy_replica)

    def _give_busy_replica(self, source: Holder) -> _Steps:
        """The smallest replica whose traffic improves it there, while bytes on disk and leaders stay as even as they
        are.
        """
        target = min(self._holders.usable, key=_by_bytes_in)
        bounds = _traffic_bounds(self._holders.usable, _by_bytes_in)
        may_lead_less = _lead_change(source, target, _lead_bounds(self._holders.usable)) <= 0
        if source.bytes_in <= bounds.high:
            return False
        for place, (size_bytes, number) in enumerate(source.by_size):
            if place % 8 == 0:
                yield
            # Replicas come by size: a larger one would make bytes even less even.
            if _size_change(source, target, size_bytes) > 0:
                return False
            placed = self._holders.placed[number]
            change = _even_change(source.bytes_in, target.bytes_in, placed.shape.bytes_in, bounds)
            if (
                change < 0
                and (may_lead_less or number not in source.led)
                and self._holders.has_room(placed, target)
                and self._holders.may_replace(placed, source, target)
            ):
                self._replace(placed, source, target, Goal.BYTES_IN)
                return True
        return False

    def _even_bytes_out(self) -> Generator[None, int, None]:
        is_busy = partial(_is_busy, self._holders.usable, _by_bytes_out)
        yield from self._even(_by_bytes_out, is_busy, TRAFFIC_TRIGGER, self._give_busy_lead)

    def _give_busy_lead(self, source: Holder) -> _Steps:
        """The readers of one partition move; leaders stay as even as they are."""
        best: tuple[float, Placed, Holder] | None = None
        bounds = _traffic_bounds(self._holders.usable, _by_bytes_out)
        lead_bounds = _lead_bounds(self._holders.usable)
        for looked_at, number in enumerate(source.led if source.bytes_out > bounds.high else ()):
            if looked_at % 8 == 0:
                yield
            placed = self._holders.placed[number]
            target = self._least(placed, _by_bytes_out)
            if target is not None and _lead_change(source, target, lead_bounds) <= 0:
                change = _even_change(source.bytes_out, target.bytes_out, placed.shape.bytes_out, bounds)
                if change < 0 and (best is None or change < best[0]):
                    best = change, placed, target
        return self._prefer_best(best, Goal.BYTES_OUT)


def _is_leading_off(usable: list[Holder], tolerance: float) -> bool:
    """Whether some broker is the preferred leader of too many or too few partitions: by more than one, and by more than
    that share of the mean.
    """
    bounds = _lead_bounds(usable, tolerance)
    return any(bounds.excess(len(each.led)) > 0 for each in usable)


def _lead_bounds(usable: list[Holder], tolerance: float = SIZE_TRIGGER / 2) -> Bounds:
    mean = _mean(usable, _by_leads)
    off = max(1.0, mean * tolerance)
    return Bounds(mean - off, mean + off)


def _traffic_bounds(usable: list[Holder], traffic: _Cost) -> Bounds:
    return Bounds(0.0, _mean(usable, traffic) * (1 + TRAFFIC_TRIGGER / 2))


def _is_busy(usable: list[Holder], traffic: _Cost, tolerance: float) -> bool:
    """Whether some broker is above the mean by more than the tolerance, where there is much traffic at all."""
    mean = _mean(usable, traffic)
    return mean >= TRAFFIC_BYTES_MIN and max(map(traffic, usable)) > mean * (1 + tolerance)


def _mean(usable: list[Holder], cost: _Cost) -> float:
    return sum(map(cost, usable)) / len(usable)


def _steps(count: int) -> Generator[None, int, None]:
    for _ in range(count):
        yield


def _improving_bytes(source: Holder, target: Holder) -> float:
    """A move of fewer bytes than this makes the two more even. For equal targets it is the difference."""
    bytes_between = 2 * (source.fill - target.fill) / (1 / source.target_bytes + 1 / target.target_bytes)
    return bytes_between - 1  # what is equal but for a rounding would go to and fro for ever


def _size_bounds(holder: Holder) -> Bounds:
    target_bytes, off = holder.target_bytes, holder.target_bytes * SIZE_TRIGGER / 2
    return Bounds(target_bytes - off, target_bytes + off, 1 / target_bytes)


def _size_excess(holder: Holder) -> float:
    return _size_bounds(holder).excess(holder.size_bytes)


def _size_change(source: Holder, target: Holder, size_bytes: int) -> float:
    bounds = _size_bounds(source), _size_bounds(target)
    return excess_change(source.size_bytes, target.size_bytes, size_bytes, bounds)


def _lead_change(source: Holder, target: Holder, bounds: Bounds) -> float:
    """The change when the target becomes the preferred leader of a partition in the place of the source."""
    return _even_change(len(source.led), len(target.led), 1, bounds)


def _even_change(source: float, target: float, amount: float, bounds: Bounds) -> float:
    """The change where both brokers have the same bounds."""
    return excess_change(source, target, amount, (bounds, bounds))


def _by_leads(holder: Holder) -> float:
    return len(holder.led)
