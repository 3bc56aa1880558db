"""The clock of clients: that of the event loop that they run on, so that a virtual loop gives them virtual time."""

import asyncio


def now_s() -> float:
    """Seconds of the running loop; monotonic."""
    return asyncio.get_running_loop().time()
