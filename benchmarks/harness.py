"""What a benchmark reports, and how a value is taken beside its limit.

A machine drifts within minutes, so a figure says little; its share of a limit measured in the same minute says more.
Value and limit therefore run in turn, several rounds, and the share is the median of the rounds' shares, each
against the mean of the limit before and after it.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

Measure = Callable[[], float]
FigureT = TypeVar("FigureT")


@dataclass(frozen=True, slots=True)
class Bar:
    """What `value / limit` must reach: at least for a rate, at most for a duration."""

    share: float
    at_most: bool = False

    def __str__(self) -> str:
        return f"≤ {self.share:g} x" if self.at_most else f"≥ {share_text(self.share)}"

    def is_met(self, share: float) -> bool:
        return share <= self.share if self.at_most else share >= self.share


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the report. `share` is value / limit, both in `unit`; so is `peer`, and `ratio` is value / peer.
    `bar` is what the share must reach, `ratio_bar` what the ratio must.
    """

    what: str
    value: float
    unit: str
    settings: str = ""
    limit: float | None = None
    limit_what: str = ""
    share: float | None = None
    bar: Bar | None = None
    peer: float | None = None
    ratio_bar: Bar | None = None
    note: str = ""

    @classmethod
    def allowed(cls, what: str, value: float, unit: str, most: float, **more: Any) -> "Row":
        """A value that may be so much at the most; `more` are other fields."""
        bar = Bar(1.0, at_most=True)
        return cls(
            what=what,
            value=value,
            unit=unit,
            limit=most,
            limit_what="what is allowed",
            share=value / most,
            bar=bar,
            **more,
        )

    @property
    def ratio(self) -> float | None:
        return self.value / self.peer if self.peer else None

    @property
    def is_met(self) -> bool | None:
        """None where there is no bar, or nothing to hold against it."""
        pairs = ((self.bar, self.share), (self.ratio_bar, self.ratio))
        met = [bar.is_met(found) for bar, found in pairs if bar is not None and found is not None]
        return all(met) if met else None

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "bar": None if self.bar is None else str(self.bar),
            "ratio_bar": None if self.ratio_bar is None else str(self.ratio_bar),
            "is_met": self.is_met,
            "ratio": self.ratio,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """A value and its limit, each the median of its runs, and the median of the rounds' shares."""

    value: float
    limit: float
    share: float

    def row(self, what: str, settings: str, unit: str, limit_what: str, **more: Any) -> Row:
        """The line of the report; `more` are other fields of a Row."""
        return Row(
            what=what,
            settings=settings,
            unit=unit,
            value=self.value,
            limit=self.limit,
            limit_what=limit_what,
            share=self.share,
            **more,
        )


def median_of(measure: Measure, *, rounds: int) -> float:
    """The median of some runs, after one that warms up and does not count."""
    measure()
    return statistics.median(measure() for _ in range(rounds))


def compare(value: Measure, limit: Measure, *, rounds: int = 5) -> Comparison:
    """Limit, value, limit, value, …, limit; after one of each that warms up and does not count."""
    limit(), value()
    limits, values = [limit()], []
    for _ in range(rounds):
        values.append(value())
        limits.append(limit())
    shares = [each / ((limits[i] + limits[i + 1]) / 2) for i, each in enumerate(values)]
    return Comparison(statistics.median(values), statistics.median(limits), statistics.median(shares))


def in_turn(measures: Mapping[str, Callable[[], FigureT]], *, rounds: int) -> dict[str, list[FigureT]]:
    """What each measured, by its name: all in turn, round for round, after one round that warms up."""
    for measure in measures.values():
        measure()
    taken: dict[str, list[FigureT]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            taken[name].append(measure())
    return taken


def median_share(values: Sequence[float], limits: Sequence[float]) -> float:
    """The median of the rounds' shares."""
    return statistics.median(value / limit for value, limit in zip(values, limits, strict=True))


def quantile(figures: Sequence[float], share: float) -> float:
    return sorted(figures)[int(len(figures) * share)]


# ---- Figures as people say them ----


def amount(value: float, unit: str) -> str:
    """`21.4 M records/s`, `1.30 ms`, `5.20 GB/s`: three digits, with the prefix that people use."""
    if unit == "s" and value < 1:
        return f"{_three_digits(value * 1e3)} ms" if value >= 1e-3 else f"{_three_digits(value * 1e6)} µs"
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            joint = "" if unit.startswith("B") else " "
            return f"{_three_digits(value / size)} {prefix}{joint}{unit}"
    return f"{_three_digits(value)} {unit}"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def share_text(share: float, *, is_duration: bool = False) -> str:
    """`43%` of a rate; `1.76 x` the limit's time, or several times its rate."""
    return f"{share:.3g} x" if is_duration or share >= 1.5 else f"{share:.0%}"
