"""How long nothing is acknowledged while something happens to the broker that leads, and what the time goes by with."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

RATE = 500  # records/s
_BEFORE_S, _AFTER_S, _MOST_S = 2.0, 2.0, 60.0
_QUIET_S = 0.2  # a gap of this length is the one that was made, and not the scheduler's
_LOOK_AGAIN_S = 0.002  # a look takes another one to two milliseconds
Send = Callable[[bytes, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Acknowledgements:
    """When they came, in seconds from what happened, ascending."""

    moments_s: tuple[float, ...]

    @property
    def longest_gap_s(self) -> float:
        """The longest time between two of them."""
        return max(end - begin for begin, end in pairwise(self.moments_s))

    def gap_at(self, seen: "Seen") -> tuple[float, float]:
        """The longest gap in which the moment that was looked for may lie."""
        begin_s, end_s = seen.after_s - seen.grain_s, seen.after_s
        found = [gap for gap in pairwise(self.moments_s) if gap[0] < end_s and gap[1] > begin_s]
        return max(found, key=lambda gap: gap[1] - gap[0])


@dataclass(frozen=True, slots=True)
class Seen:
    """After how long something held, and how long before it was last seen not to hold."""

    after_s: float
    grain_s: float


@dataclass(frozen=True, slots=True)
class Shares:
    """What the gap at an election went by with."""

    detection_s: float
    election_s: float
    client_s: float
    grain_s: float

    @classmethod
    def of(cls, acknowledgements: Acknowledgements, known: Seen, led: Seen) -> "Shares":
        """From when the controller knew, and when a living broker knew of another leader."""
        begin_s, end_s = acknowledgements.gap_at(led)
        led_s = min(led.after_s, end_s)
        known_s = min(max(known.after_s, begin_s), led_s)
        grain_s = max(known.grain_s, led.grain_s)
        return cls(known_s - begin_s, led_s - known_s, end_s - led_s, grain_s)

    def __str__(self) -> str:
        whole_s = self.detection_s + self.election_s + self.client_s
        parts = {"detection": self.detection_s, "election": self.election_s, "client": self.client_s}
        told = ", ".join(f"{name} {s * 1000:.0f} ms ({s / whole_s:.0%})" for name, s in parts.items())
        return f"{told}, seen within {self.grain_s * 1000:.0f} ms"


def acknowledgements_around(
    send: Send, act: Callable[[], None], *, size_bytes: int = 1000
) -> Acknowledgements:
    """Sends at an even rate, acts after a while, and goes on until acknowledgements have come again for a while.

    `act` must return at once: nothing is sent meanwhile.
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
            acted = now = time.perf_counter()
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
    return Acknowledgements(tuple(each - acted for each in moments))


def _is_over(acknowledged: list[float], acted: float, now: float) -> bool:
    """Whether acknowledgements have come for a while since the gap, or there was none to speak of."""
    since = [each for each in acknowledged if each > acted + _QUIET_S]
    return bool(since) and now - since[0] >= _AFTER_S


def watch(condition: Callable[[], bool]) -> Callable[[], Seen]:
    """Looks for the condition in the background from now on; the function returned waits and says after how long it
    held."""
    seen: list[Seen] = []
    began = time.perf_counter()

    def look() -> None:
        before = began
        while True:
            asked = time.perf_counter()
            holds, now = condition(), time.perf_counter()
            if holds or now - began > _MOST_S:
                seen.append(Seen(now - began, now - before))
                return
            before = asked
            time.sleep(_LOOK_AGAIN_S)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()

    def outcome() -> Seen:
        thread.join()
        return seen[0]

    return outcome
