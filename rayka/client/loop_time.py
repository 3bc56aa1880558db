"""The clock of clients: that of the event loop that they run on, so that a virtual loop gives them virtual time."""

import asyncio
from collections.abc import Callable


def now_s() -> float:
    """Seconds of the running loop; monotonic."""
    return asyncio.get_running_loop().time()


class LoopClock:
    """`now_s` for an object that belongs to one loop and asks several times in each call. The loop is looked up once:
    that asks the operating system for the process's id, which takes several times as long as to look at the clock.
    """

    __slots__ = ("_time",)

    def __init__(self) -> None:
        self._time: Callable[[], float] | None = None

    def now_s(self) -> float:
        """As the function of this name; of the loop that ran when it was called first."""
        if self._time is None:
            self._time = asyncio.get_running_loop().time
        return self._time()
