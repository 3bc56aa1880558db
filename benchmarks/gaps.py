"""How long nothing is acknowledged while something happens to the broker that leads."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

RATE = 500  # records/s
_BEFORE_S, _AFTER_S, _MOST_S = 2.0, 2.0, 60.0
_QUIET_S = 0.2  # a gap of this length is the one that was made, and not the scheduler's
Send = Callable[[bytes, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest time between two acknowledgements, and when it ended after what happened."""

    longest_s: float
    ended_after_s: float


def longest_gap(send: Send, act: Callable[[], None], *, size_bytes: int = 1000) -> Gap:
    """Sends at an even rate, acts after a while, and goes on until acknowledgements have come again for a while.

    `send` sends one record and returns at once, and calls back when it is acknowledged; nothing is sent for an empty
    value. Raises RuntimeError when no acknowledgement comes within a minute of what happened.
    """
    acknowledged: list[float] = []
    lock = threading.Lock()

    def on_acknowledged() -> None:
        with lock:
            acknowledged.append(time.perf_counter())

    began, acted, number = time.perf_counter(), 0.0, 0
    while True:
        now = time.perf_counter()
        if not acted and now - began >= _BEFORE_S:
            act()
            acted = now
        if acted and _is_over(acknowledged, acted, now):
            break
        if acted and now - acted > _MOST_S:
            raise RuntimeError(f"nothing was acknowledged for {_MOST_S:g} s")
        if now >= began + number / RATE:
            send(number.to_bytes(8, "big") + bytes(size_bytes - 8), on_acknowledged)
            number += 1
        else:
            send(b"", on_acknowledged)
            time.sleep(0.0005)
    with lock:
        moments = sorted(acknowledged)
    longest, ended = max((later - earlier, later) for earlier, later in pairwise(moments))
    return Gap(longest, ended - acted)


def _is_over(acknowledged: list[float], acted: float, now: float) -> bool:
    """Whether acknowledgements have come for a while since the gap, or there was none to speak of."""
    since = [each for each in acknowledged if each > acted + _QUIET_S]
    return bool(since) and now - since[0] >= _AFTER_S


def watch(condition: Callable[[], bool]) -> Callable[[], float]:
    """Looks for the condition in the background from now on; the function returned waits and says after how long it
    held."""
    began, held = time.perf_counter(), [0.0]

    def look() -> None:
        while not condition() and time.perf_counter() - began < _MOST_S:
            time.sleep(0.01)
        held[0] = time.perf_counter() - began

    thread = threading.Thread(target=look, daemon=True)
    thread.start()

    def after() -> float:
        thread.join()
        return held[0]

    return after
