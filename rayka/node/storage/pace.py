"""The rate at which one kind of work may read and write, in bytes a second for all its tasks together."""

import asyncio
from collections.abc import Callable

from rayka.node import clock

# Waiting tasks notice a new rate after this time at most.
LOOK_MS = 1_000


class Pace:
    """A debt of bytes that time pays off at the rate; tasks wait for it, first come, first served. Idle time earns
    nothing.

    Invariant: 0 <= paid <= spent.
    """

    def __init__(self, bytes_per_second: Callable[[], float]) -> None:
        """`bytes_per_second`: the rate, asked for at each look; at least 1."""
        self._bytes_per_second = bytes_per_second
        self._spent_bytes = 0
        self._paid_bytes = 0.0
        self._at_ms = 0

    def __repr__(self) -> str:
        return f"<Pace {self._bytes_per_second():g} B/s owed={self._spent_bytes - self._paid_bytes:.0f}>"

    async def spend(self, size_bytes: int, is_wanted: Callable[[], bool]) -> None:
        """Adds bytes that were read or written; waits until they are paid for, or the work is not wanted any more."""
        self._pay()
        self._spent_bytes += size_bytes
        mine = self._spent_bytes
        await asyncio.sleep(0)
        while (pause_ms := self._pause_ms(mine)) and is_wanted():
            await asyncio.sleep(min(LOOK_MS, pause_ms) / 1000)
            self._pay()

    def _pause_ms(self, up_to_bytes: int) -> int:
        return int(max(0.0, up_to_bytes - self._paid_bytes) * 1000 / self._bytes_per_second())

    def _pay(self) -> None:
        now_ms = clock.now_ms()
        paid_bytes = self._bytes_per_second() * (now_ms - self._at_ms) / 1000
        self._paid_bytes = min(self._spent_bytes, self._paid_bytes + paid_bytes)
        self._at_ms = now_ms
