"""The figures of `rayka bench`: how they are reckoned, and how they look.

Invariant: figures are of at least one record. Left out: what is measured, see `bench_commands` and `bench_group`.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rayka.cli.output import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many records of which size, with which client, and through a group of how many members, 0 for none."""

    record_count: int
    size_bytes: int
    configs: dict[str, Any]
    members: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """What a benchmark found; the latencies' percentiles are in ms."""

    benchmark: str
    records: int
    seconds: float
    records_per_s: float
    mb_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p99_9_ms: float

    @classmethod
    def of(
        cls, benchmark: str, records: int, size_bytes: int, seconds: float, latencies_s: list[float]
    ) -> "Figures":
        """From all sizes together, and a latency of each record or of some; at least one."""
        ordered = sorted(latencies_s)
        shares = (percentile(ordered, share) * 1000 for share in (0.5, 0.95, 0.99, 0.999))
        return cls(benchmark, records, seconds, records / seconds, size_bytes / seconds / 1e6, *shares)

    def row(self) -> tuple[object, ...]:
        percentiles = (self.p50_ms, self.p95_ms, self.p99_ms, self.p99_9_ms)
        rates = (Count(self.records), Count(round(self.records_per_s)), f"{self.mb_per_s:.1f}")
        return (self.benchmark, *rates, *(f"{each:.2f} ms" for each in percentiles))


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """What a benchmark found through a group.

    `settle_seconds` are those from the first join until all members had their partitions, with the time for which a new
    group waits for members (`group.initial.rebalance.delay.ms`); the records of `commits` are commits.
    """

    benchmark: str
    members: int
    settle_seconds: float
    reading: Figures
    commits: Figures


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the ordered values that this share of them does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def one_by_one(
    benchmark: str,
    load: Load,
    pass_one: Callable[[int], object],
    clock_s: Callable[[], float] = time.perf_counter,
) -> Figures:
    """The latency of each record, which has its number. A tenth more come first, to warm up, and do not count."""
    warm_up_count, latencies_s = load.record_count // 10 + 1, []
    for number in range(warm_up_count + load.record_count):
        begin_s = clock_s()
        pass_one(number)
        latencies_s.append(clock_s() - begin_s)
    del latencies_s[:warm_up_count]
    size_bytes = load.record_count * load.size_bytes
    return Figures.of(benchmark, load.record_count, size_bytes, sum(latencies_s), latencies_s)
