"""How much memory the streams of one event loop set aside for frames that are not whole yet, and which comes next.

Invariants: what is set aside stays below the bound, but for the frame that reaches it: so one of the largest size gets
its turn, too; what waits is let in by the order of its arrival. Kafka: `SimpleMemoryPool`, `queued.max.request.bytes`.
"""

import math
from typing import Protocol


class Holder(Protocol):
    """What receives one frame at a time."""

    def on_room(self) -> None:
        """There is room for its frame, which waited."""


class UnfinishedFrames:
    """See the module."""

    def __init__(self, bytes_max: float = math.inf) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Holder, int] = {}
        self._waiting: dict[Holder, int] = {}
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"<UnfinishedFrames {self.held_bytes} bytes waiting={len(self._waiting)}>"

    @property
    def is_short(self) -> bool:
        """Whether a frame waits for room."""
        return bool(self._waiting)

    def take(self, holder: Holder, size: int) -> bool:
        """Whether a frame may be received now; else `holder.on_room` is called when it may."""
        if self._waiting or self.held_bytes >= self._bytes_max:
            self._waiting[holder] = size
            return False
        self._let_in(holder, size)
        return True

    def give_back(self, holder: Holder) -> None:
        """Its frame is whole, or will never be; the next ones get its room."""
        self._waiting.pop(holder, None)
        self.held_bytes -= self._held.pop(holder, 0)
        while self._waiting and self.held_bytes < self._bytes_max:
            first = next(iter(self._waiting))
            self._let_in(first, self._waiting.pop(first))
            first.on_room()

    def _let_in(self, holder: Holder, size: int) -> None:
        self._held[holder] = size
        self.held_bytes += size
