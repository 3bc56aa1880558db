"""The hops of a write as a picture: one lane for each thread that takes part, before and after on one scale."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.svg_shapes import INK, box, text

_WIDTH, _LEFT, _LANE, _BAR = 1000, 150, 30, 20
_WORK, _WAY, _FAINT = "#2f6f9f", "#e0b050", "#dddddd"


class Hop(NamedTuple):
    """What ends when a mark is passed, and the lane that it is drawn in. A way is between two threads or processes."""

    mark: str
    text: str
    lane: str
    is_way: bool = False


class Drawn(NamedTuple):
    """The medians of one transport, in µs. Of so many writes `whole` had a note of every hop."""

    hops: Sequence[Hop]
    hops_us: Sequence[float]
    p50_us: float
    p99_us: float
    whole: int
    writes: int
    cpu_us: Mapping[str, float]


def drawing(before: Drawn, after: Drawn) -> str:
    """An SVG with both, and a table of the figures."""
    scale = (_WIDTH - _LEFT - 20) / max(sum(before.hops_us), sum(after.hops_us))
    hops = before.hops
    lanes = list(dict.fromkeys([hops[-1].lane, *(hop.lane for hop in hops)]))  # a write ends where it begins
    parts, top = list[str](), 20
    for title, drawn in (("Before: Ray's remote methods", before), ("After: the direct lane", after)):
        parts += _panel(title, drawn, lanes, top, scale)
        top += 60 + _LANE * len(lanes)
    parts += _table(before, after, top)
    height = top + 20 + 18 * (len(hops) + 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif"'
        f' font-size="12" fill="{INK}">\n<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(title: str, drawn: Drawn, lanes: Sequence[str], top: int, scale: float) -> list[str]:
    spent = ", ".join(f"{role} {each:.0f}" for role, each in drawn.cpu_us.items())
    parts = [
        text(10, top, f"{title}: p50 {drawn.p50_us:.0f} µs, p99 {drawn.p99_us:.0f} µs", weight="bold"),
        text(10, top + 16, f"processor time of one write in µs: {spent}"),
    ]
    rows = {lane: top + 30 + _LANE * number for number, lane in enumerate(lanes)}
    for lane, y in rows.items():
        parts.append(text(10, y + 15, lane))
        parts.append(box(_LEFT, y + _BAR + 3, _WIDTH - _LEFT - 20, 1, _FAINT))
    at = float(_LEFT)
    for number, (hop, taken_us) in enumerate(zip(drawn.hops, drawn.hops_us, strict=True), 1):
        width, y = taken_us * scale, rows[hop.lane]
        parts.append(box(at, y, width, _BAR, _WAY if hop.is_way else _WORK))
        if width >= 14:
            parts.append(text(at + width / 2, y + 14, str(number), anchor="middle", fill="#ffffff"))
        at += width
    return parts


def _table(before: Drawn, after: Drawn, top: int) -> list[str]:
    parts = [
        text(_LEFT + 60, top, "before", anchor="end", weight="bold"),
        text(_LEFT + 130, top, "after, µs", anchor="end", weight="bold"),
        box(_LEFT + 500, top - 10, 12, 12, _WORK),
        text(_LEFT + 518, top, "work"),
        box(_LEFT + 570, top - 10, 12, 12, _WAY),
        text(_LEFT + 588, top, "on the way, and waiting for a turn"),
    ]
    pairs = zip(before.hops, before.hops_us, after.hops_us, strict=True)
    for number, (hop, before_us, after_us) in enumerate(pairs, 1):
        y = top + 18 * number
        parts.append(text(_LEFT, y, str(number), anchor="end"))
        parts.append(text(_LEFT + 60, y, f"{before_us:.0f}", anchor="end"))
        parts.append(text(_LEFT + 130, y, f"{after_us:.0f}", anchor="end"))
        parts.append(text(_LEFT + 150, y, f"{hop.lane}: {hop.text}"))
    y = top + 18 * (len(before.hops) + 1)
    note = "medians of each hop; 1 KB, three replicas, one record in flight; the slower of the two followers"
    parts.append(text(_LEFT + 60, y, f"{sum(before.hops_us):.0f}", anchor="end", weight="bold"))
    parts.append(text(_LEFT + 130, y, f"{sum(after.hops_us):.0f}", anchor="end", weight="bold"))
    parts.append(text(_LEFT + 150, y, note))
    return parts
