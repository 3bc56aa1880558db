"""The clock of nodes and clients: that of the event loop that they run on. A virtual loop gives them virtual time."""

import asyncio
from collections.abc import Callable


def now_s() -> float:
    """Seconds of the running loop's clock, in which its deadlines are; monotonic."""
    return asyncio.get_running_loop().time()


def now_ms() -> int:
    """Whole milliseconds of the running loop's clock; monotonic."""
    return int(asyncio.get_running_loop().time() * 1000)


class LoopClock:
    """The clock of an object that belongs to one loop and reads it several times in each call.

    It looks up the loop once: the look-up asks the operating system for the process's id, which takes several times as
    long as to read the clock.
    """

    __slots__ = ("_time",)

    def __init__(self) -> None:
        self._time: Callable[[], float] | None = None

    def now_s(self) -> float:
        """Seconds of the clock of the loop that ran at the first call."""
        if self._time is None:
            self._time = asyncio.get_running_loop().time
        return self._time()
