"""The trace of a run: one fixed-column line for each event, and a hash over all lines.

Two runs with the same hash were the same run. A line is time, node, event, and what it was about:

    time ms      node  event     what
    12034.218    3001  deliver   fetch from 3002 #4:17 112 bytes
"""

import hashlib
from collections import deque
from collections.abc import Callable

from rayka.sim.loop import VirtualLoop

_LINES_AT_ONCE = 512


class Trace:
    """The events of one run. `last` keeps the newest lines, for the report of a failure."""

    def __init__(self, loop: VirtualLoop, write: Callable[[str], None] | None = None) -> None:
        self._loop = loop
        self._write = write
        self._digest = hashlib.blake2b(digest_size=16)
        self._lines: list[str] = []
        self._now_us, self._time = -1, ""
        self._columns: dict[tuple[int | str, str], str] = {}  # node and event, as they stand in a line
        self.count = 0
        self.last: deque[str] = deque(maxlen=200)

    def add(self, node: int | str, event: str, what: str = "") -> None:
        """Records one event."""
        now_us = self._loop.now_us
        if now_us != self._now_us:
            self._now_us, self._time = now_us, f"{now_us // 1000:9d}.{now_us % 1000:03d}"
        columns = self._columns.get((node, event))
        if columns is None:  # formatting is most of the work, and few nodes have few events
            columns = self._columns[node, event] = f"  {node!s:>5}  {event:<9} "
        line = self._time + columns + what
        lines = self._lines
        lines.append(line)
        self.count += 1
        if self._write is not None:
            self._write(line)
        if len(lines) >= _LINES_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._digest.update("\n".join(self._lines).encode())
        self.last.extend(self._lines)
        self._lines.clear()

    def hash(self) -> str:
        """The hash of everything recorded so far."""
        self._flush()
        return self._digest.hexdigest()
