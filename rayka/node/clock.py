"""The clock of a node: that of its event loop, which the simulator replaces."""

import asyncio


def now_ms() -> int:
    """Monotonic, in whole milliseconds."""
    return int(asyncio.get_running_loop().time() * 1000)
