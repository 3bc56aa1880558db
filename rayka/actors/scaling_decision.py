"""The number of brokers, or coordinators, that the load asks for. A core: no clock, no IO.

The load is the bytes that clients send and read, the bytes on disks, and the processor time, summed over the brokers:
another broker takes its share of the sum, whichever broker has most now. Copies between brokers do not count, because
every move would ask for more brokers.

The number comes to rest. A broker comes when a target was exceeded throughout the window. A broker goes when,
throughout a longer window, the others would have been below 70 % of every target without it. So the load that made a
broker come cannot make it go. One broker comes or goes at a time, and the windows begin anew after each.

Kubernetes does the same: the tolerance and the stabilisation windows of its HorizontalPodAutoscaler.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from rayka.config.cluster_config import CountRange, Scaling
from rayka.ids import Role
from rayka.protocol.load import LoadReport

IN_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Advice:
    """How many brokers there should be, and why that many."""

    count: int
    reason: str


class Decider:
    """Decides for one role in one cluster. It remembers since when each look has asked for more, or for fewer. A new
    decider waits for its windows again.
    """

    def __init__(self, counts: CountRange, targets: Scaling, role: Role = Role.BROKER) -> None:
        self._counts = counts
        self._targets = targets if role is Role.BROKER else targets.of_coordinators()
        self._role = role
        self._count = 0
        self._more_since_ms: int | None = None
        self._fewer_since_ms: int | None = None

    def __repr__(self) -> str:
        since = f"more since {self._more_since_ms}, fewer since {self._fewer_since_ms}"
        return f"<Decider {self._role}s {self._counts} {since}>"

    def advise(self, loads: Sequence[LoadReport], count: int, factor_max: int, now_ms: int) -> Advice:
        """Returns how many brokers there should be, of `count` with these known loads: as many, one more or one less.
        `factor_max` is the largest replication factor of a topic: there are never fewer brokers.
        """
        if count != self._count:
            self.begin_anew()
            self._count = count
        least = min(max(self._counts.min, factor_max), self._counts.max)
        if count < least:
            why = f"there are never fewer than {least}"
            is_never = "out" in self._targets.never
            return Advice(count, f"{why}; scaling.never has out") if is_never else Advice(count + 1, why)
        if count > self._counts.max and "in" not in self._targets.never:
            return Advice(count - 1, f"there are never more than {self._counts.max}")
        wish = self._wish(loads, count)
        asked = min(max(wish.count, least), self._counts.max)
        self._more_since_ms = _since(self._more_since_ms, asked > count, now_ms)
        self._fewer_since_ms = _since(self._fewer_since_ms, asked < count, now_ms)
        return self._stable(wish, asked, now_ms)

    def begin_anew(self) -> None:
        """Forgets the windows, because the conditions of the measurements have changed."""
        self._more_since_ms = self._fewer_since_ms = None

    def _wish(self, loads: Sequence[LoadReport], count: int) -> Advice:
        """Returns the number that this look alone asks for."""
        if not loads:
            return Advice(count, "no load is known")
        most = max(self._needs(loads, 1.0), key=lambda each: each.count, default=None)
        if most is None:
            return Advice(count, "no target is set")
        if most.count > count:
            return most
        idle = max(self._needs(loads, IN_SHARE), key=lambda each: each.count)
        if idle.count < count:
            return Advice(idle.count, f"{idle.reason}; {idle.count} would be below {IN_SHARE:.0%} of it")
        return Advice(count, f"within the targets: {most.reason}")

    def _stable(self, wish: Advice, asked: int, now_ms: int) -> Advice:
        """Returns the number that the windows allow. `asked` is the wish within the bounds."""
        count, targets = self._count, self._targets
        if asked == count:
            return Advice(count, wish.reason if wish.count == count else self._bounded(wish))
        is_more = asked > count
        window_s = targets.out_window_s if is_more else targets.in_window_s
        since_ms = self._more_since_ms if is_more else self._fewer_since_ms
        if since_ms is None or now_ms - since_ms < window_s * 1000:
            return Advice(count, f"{wish.reason}, but not for {window_s:g} s yet")
        direction = "out" if is_more else "in"
        if direction in targets.never:
            return Advice(count, f"{wish.reason}; scaling.never has {direction}")
        return Advice(count + 1 if is_more else count - 1, wish.reason)

    def _bounded(self, wish: Advice) -> str:
        bound = "more" if wish.count > self._count else "fewer"
        return f"{wish.reason}; {self._count} {self._role}s, and {bound} are not allowed"

    def _needs(self, loads: Sequence[LoadReport], share: float) -> list[Advice]:
        """Returns how many nodes keep each average at that share of its target, or below. Numbers stop at one more than
        there may be: a tiny target would ask for more without end.
        """
        targets, most = self._targets, max(self._count, self._counts.max) + 1
        cores = sum(each.processor_permille for each in loads) / 1000
        sums = (
            ("bytes_in", sum(each.bytes_in for each in loads), targets.bytes_in),
            ("bytes_out", sum(each.bytes_out for each in loads), targets.bytes_out),
            ("partitions", sum(each.partition_count for each in loads), targets.partitions),
            ("processor_share", cores, targets.processor_share),
            ("disk_share", _full_disks(loads), targets.disk_share),
        )
        return [
            Advice(
                max(1, ceil(min(total / (target * share), most))),
                _said(name, total / len(loads), target, self._role),
            )
            for name, total, target in sums
            if target is not None
        ]


def _since(since_ms: int | None, holds: bool, now_ms: int) -> int | None:
    """Returns since when the condition has held at each look; None if it does not hold."""
    if not holds:
        return None
    return now_ms if since_ms is None else since_ms


def _full_disks(loads: Sequence[LoadReport]) -> float:
    """Returns how many disks of the brokers' mean size the logs fill."""
    capacity = sum(each.size_bytes + each.free_bytes for each in loads)
    return len(loads) * sum(each.size_bytes for each in loads) / capacity if capacity else 0.0


def _said(name: str, mean: float, target: float, role: Role) -> str:
    is_share = name.endswith("_share")
    values = [f"{each:.0%}" if is_share else f"{each:,.0f}" for each in (mean, target)]
    return f"{name} {values[0]} a {role}, target {values[1]}"
