"""The clock of a node: that of its event loop, which the simulator replaces."""

import asyncio


def now_s() -> float:
    """Seconds of the event loop's clock, in which its deadlines are."""
    return asyncio.get_running_loop().time()


def now_ms() -> int:
    """Monotonic, in whole milliseconds."""
    return int(now_s() * 1000)
