"""Waiting for a condition, with an end."""

import time
from collections.abc import Callable

WAIT_S = 120
_PAUSE_S = 0.01  # else the thread that asks takes the processor from the nodes


def wait_until(holds: Callable[[], bool]) -> None:
    """Asks again and again; a condition that never holds fails the test."""
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come to be"
        time.sleep(_PAUSE_S)
