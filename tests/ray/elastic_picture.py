"""A run of `elastic` as a picture over time: the load, brokers and machines, bytes on each broker, what writers wait
for, and moves.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.svg_shapes import INK, box, text

_WIDTH, _LEFT, _RIGHT, _PANEL, _GAP, _TOP = 1000, 70, 20, 110, 38, 50
_FAINT, _MARK = "#dddddd", "#c06030"
_COLOURS = ("#2f6f9f", "#e0b050", "#5a9a5a", "#9a5a9a", "#c06030", "#4a9a9a")
_BUCKET_S = 2.0
_SIZES_EVERY = 4  # looks: they change slowly
Points = Sequence[tuple[float, float]]


class Look(NamedTuple):
    """What there is of the cluster; `sizes` are bytes by broker, `bytes_in` of all brokers a second, `leaders` the
    brokers that lead partitions.
    """

    at_s: float
    brokers: int
    machines: int
    moves: int
    sizes: Mapping[int, int]
    bytes_in: int
    leaders: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, int]:
        """Brokers and machines."""
        return self.brokers, self.machines


class Mark(NamedTuple):
    """Something that was done to the cluster or its load."""

    at_s: float
    text: str


class Line(NamedTuple):
    """One line of a panel; steps keep a value until the next one."""

    name: str
    points: Points
    is_stepped: bool = False


def picture(looks: Sequence[Look], marks: Sequence[Mark], acknowledged: Points) -> str:
    """An SVG. `acknowledged`: when each record was, and how long it took."""
    end_s = max(each.at_s for each in looks)
    panels = [
        ("records a second", [Line("acknowledged", rates(acknowledged))]),
        (
            "how many",
            [
                Line("brokers", [(each.at_s, each.brokers) for each in looks], is_stepped=True),
                Line("machines", [(each.at_s, each.machines) for each in looks], is_stepped=True),
            ],
        ),
        ("MB a broker", _sizes(looks)),
        ("send p99, ms", [Line("p99", p99s_ms(acknowledged))]),
        (
            "partitions on their way",
            [Line("moves", [(each.at_s, each.moves) for each in looks], is_stepped=True)],
        ),
    ]
    parts = [
        part
        for number, (title, lines) in enumerate(panels)
        for part in _panel(title, lines, _TOP + number * (_PANEL + _GAP), end_s)
    ]
    bottom = _TOP + len(panels) * (_PANEL + _GAP) - _GAP
    parts += _marks(marks, bottom, end_s) + _seconds(bottom, end_s)
    height = bottom + 40
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif"'
        f' font-size="12" fill="{INK}">\n<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def rates(acknowledged: Points) -> Points:
    """Records a second, by bucket; none is 0."""
    found = _buckets(acknowledged)
    return [
        (_middle(each), len(found.get(each, ())) / _BUCKET_S) for each in range(max(found, default=-1) + 1)
    ]


def p99s_ms(acknowledged: Points) -> Points:
    """By bucket; nothing for one without a record."""
    return [
        (_middle(each), 1000 * sorted(taken)[int(len(taken) * 0.99)])
        for each, taken in sorted(_buckets(acknowledged).items())
    ]


def _buckets(acknowledged: Points) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for at_s, taken_s in acknowledged:
        found.setdefault(int(max(0.0, at_s) / _BUCKET_S), []).append(taken_s)
    return found


def _middle(bucket: int) -> float:
    return (bucket + 0.5) * _BUCKET_S


def _sizes(looks: Sequence[Look]) -> list[Line]:
    brokers = sorted({broker for each in looks for broker in each.sizes})
    return [
        Line(
            f"broker {broker}",
            [(each.at_s, each.sizes.get(broker, 0) / 1e6) for each in looks[::_SIZES_EVERY]],
        )
        for broker in brokers
    ]


def _panel(title: str, lines: Sequence[Line], top: float, end_s: float) -> list[str]:
    most = max([1e-9, *(value for line in lines for _, value in line.points)])
    parts = [
        box(_LEFT, top + _PANEL, _WIDTH - _LEFT - _RIGHT, 1, _FAINT),
        box(_LEFT, top, _WIDTH - _LEFT - _RIGHT, 1, _FAINT),
        text(_LEFT - 6, top + 5, f"{most:.3g}", anchor="end"),
        text(_LEFT - 6, top + _PANEL, "0", anchor="end"),
        text(_LEFT, top - 6, title, weight="bold"),
    ]
    at = _LEFT + 8.0 * len(title) + 20
    for line, colour in zip(lines, _COLOURS, strict=False):
        if len(lines) > 1:
            parts += [box(at, top - 14, 10, 10, colour), text(at + 14, top - 5, line.name)]
            at += 7.0 * len(line.name) + 30
        places = [(_x(x, end_s), top + _PANEL * (1 - y / most)) for x, y in line.points]
        parts.append(_line(_stepped(places) if line.is_stepped else places, colour))
    return parts


def _stepped(points: Points) -> Points:
    """With a corner before each change; what does not change needs no point."""
    found = list(points[:1])
    for x, y in points[1:]:
        if y != found[-1][1]:
            found += [(x, found[-1][1]), (x, y)]
    return [*found, (points[-1][0], found[-1][1])] if found else found


def _marks(marks: Iterable[Mark], bottom: float, end_s: float) -> list[str]:
    parts: list[str] = []
    for number, each in enumerate(marks):
        x = _x(each.at_s, end_s)
        parts.append(
            f'<line x1="{x:.1f}" y1="26" x2="{x:.1f}" y2="{bottom}" stroke="{_MARK}" stroke-dasharray="3 3"/>'
        )
        parts.append(text(x + 3, 10 + 12 * (number % 2), each.text, fill=_MARK))
    return parts


def _seconds(bottom: float, end_s: float) -> list[str]:
    step = 20 if end_s < 200 else 60
    return [
        text(_x(each, end_s), bottom + 18, f"{each} s", anchor="middle")
        for each in range(0, int(end_s) + 1, step)
    ]


def _x(at_s: float, end_s: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at_s / end_s


def _line(points: Points, colour: str) -> str:
    listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{listed}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
