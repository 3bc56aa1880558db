"""How many brokers, or coordinators, there should be, by what they have to do. A core: no clock, no IO.

The load is what clients send and read, what is on disks, and what processes take, summed over the brokers: another
broker takes its share of it, whichever broker has most now. Copies between brokers do not count, or every move would
ask for more brokers. What comes to rest, and why: a broker comes when a target was exceeded throughout the window, and
goes when, throughout a longer one, the others would have been below 70 % of every target without it. So what made a
broker come cannot make it go. One at a time; after each the windows begin anew.

Kubernetes does the same: the tolerance and the stabilisation windows of its HorizontalPodAutoscaler.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from rayka.config_scaling import CountRange, Scaling
from rayka.ids import Role

IN_SHARE = 0.7
_LOOKS_MAX = 1_000  # that are kept of a window


@dataclass(frozen=True, slots=True)
class Load:
    """What one broker has to do. Bytes are of clients, a second; `size_bytes` and `free_bytes` of its disks."""

    size_bytes: int = 0
    free_bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    partition_count: int = 0
    processor_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """How many brokers there should be, and why that many."""

    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Need:
    """How many brokers one target asks for, and in which words."""

    count: int
    said: str


class _Look(NamedTuple):
    now_ms: int
    wish: Advice


class Decider:
    """Decides for one role in one cluster. What it remembers is the load within its windows: a new one waits for these
    again.
    """

    def __init__(self, counts: CountRange, targets: Scaling, role: Role = Role.BROKER) -> None:
        self._counts = counts
        self._targets = targets if role is Role.BROKER else targets.of_coordinators()
        self._role = role
        self._looks = deque[_Look]()
        self._count = 0

    def __repr__(self) -> str:
        return f"<Decider {self._role}s {self._counts} looks={len(self._looks)}>"

    def advise(self, loads: Sequence[Load], count: int, factor_max: int, now_ms: int) -> Advice:
        """How many there should be where there are `count`, of which these loads are known: as many, one more or one
        less. `factor_max` is the largest replication factor of a topic: there are never fewer than that.
        """
        if count != self._count:
            self.begin_anew()
            self._count = count
        least = min(max(self._counts.min, factor_max), self._counts.max)
        if count < least:
            return Advice(count + 1, f"there are never fewer than {least}")
        if count > self._counts.max and "in" not in self._targets.never:
            return Advice(count - 1, f"there are never more than {self._counts.max}")
        wish = self._wish(loads, count)
        self._remember(_Look(now_ms, Advice(min(max(wish.count, least), self._counts.max), wish.reason)))
        return self._stable(wish, now_ms)

    def begin_anew(self) -> None:
        """Forgets the windows: what was measured is not what would be measured now."""
        self._looks.clear()

    def _wish(self, loads: Sequence[Load], count: int) -> Advice:
        """What this look alone asks for."""
        if not loads:
            return Advice(count, "no load is known")
        most = max(self._needs(loads, 1.0), key=lambda each: each.count, default=None)
        if most is None:
            return Advice(count, "no target is set")
        if most.count > count:
            return Advice(most.count, most.said)
        idle = max(self._needs(loads, IN_SHARE), key=lambda each: each.count)
        if idle.count < count:
            return Advice(idle.count, f"{idle.said}; {idle.count} would be below {IN_SHARE:.0%} of it")
        return Advice(count, f"within the targets: {most.said}")

    def _remember(self, look: _Look) -> None:
        """Those of the longer window, and the last one before it, which shows that the window is whole."""
        looks = self._looks
        looks.append(look)
        begin_ms = look.now_ms - max(self._out_ms, self._in_ms)
        while len(looks) > 1 and (looks[1].now_ms <= begin_ms or len(looks) > _LOOKS_MAX):
            looks.popleft()

    def _stable(self, wish: Advice, now_ms: int) -> Advice:
        count = self._count
        out, idle = (self._within(each, now_ms) for each in (self._out_ms, self._in_ms))
        if out and min(each.wish.count for each in out) > count:
            if "out" in self._targets.never:
                return Advice(count, f"{wish.reason}; scaling.never has out")
            return Advice(count + 1, wish.reason)
        if idle and max(each.wish.count for each in idle) < count:
            if "in" in self._targets.never:
                return Advice(count, f"{wish.reason}; scaling.never has in")
            return Advice(count - 1, wish.reason)
        return Advice(count, self._why_not_yet(wish))

    def _why_not_yet(self, wish: Advice) -> str:
        count, asked = self._count, self._looks[-1].wish.count
        if asked == count != wish.count:
            bound = "more" if wish.count > count else "fewer"
            return f"{wish.reason}; {count} {self._role}s, and {bound} are not allowed"
        if asked != count:
            window_s = self._targets.out_window_s if asked > count else self._targets.in_window_s
            return f"{wish.reason}, but not for {window_s:g} s yet"
        return wish.reason

    def _within(self, window_ms: float, now_ms: int) -> list[_Look]:
        """The looks within the window; none while it is not whole."""
        begin_ms = now_ms - window_ms
        if self._looks[0].now_ms > begin_ms:
            return []
        return [each for each in self._looks if each.now_ms >= begin_ms]

    def _needs(self, loads: Sequence[Load], share: float) -> list[_Need]:
        """How many nodes keep each average at that share of its target, or below."""
        targets = self._targets
        sums = (
            ("bytes_in", sum(each.bytes_in for each in loads), targets.bytes_in),
            ("bytes_out", sum(each.bytes_out for each in loads), targets.bytes_out),
            ("partitions", sum(each.partition_count for each in loads), targets.partitions),
            ("processor_share", sum(each.processor_share for each in loads), targets.processor_share),
            ("disk_share", _full_disks(loads), targets.disk_share),
        )
        return [
            _Need(max(1, ceil(total / (target * share))), _said(name, total / len(loads), target, self._role))
            for name, total, target in sums
            if target is not None
        ]

    @property
    def _out_ms(self) -> float:
        return self._targets.out_window_s * 1000

    @property
    def _in_ms(self) -> float:
        return self._targets.in_window_s * 1000


def _full_disks(loads: Sequence[Load]) -> float:
    """How many disks of the brokers' mean size their logs fill."""
    capacity = sum(each.size_bytes + each.free_bytes for each in loads)
    return len(loads) * sum(each.size_bytes for each in loads) / capacity if capacity else 0.0


def _said(name: str, mean: float, target: float, role: Role) -> str:
    is_share = name.endswith("_share")
    values = [f"{each:.0%}" if is_share else f"{each:,.0f}" for each in (mean, target)]
    return f"{name} {values[0]} a {role}, target {values[1]}"
