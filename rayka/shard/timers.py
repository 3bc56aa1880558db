"""Timers of an active shard: requests that the runtime makes by itself when their time has come.

A result names the timers that it sets or cancels, so a request that was refused has changed none. They are soft state:
the end of a leadership cancels all, and `Shard.on_active` names those to begin with. Invariant: the heap holds at least
one entry for each timer, none later than its time; a timer that is put off again and again (a session that goes on)
costs no further entry. Kafka: `CoordinatorTimer`, `CoordinatorTimerImpl`.
"""

from collections.abc import Hashable, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple


class Timer(NamedTuple):
    """A request to run at a time of the monotonic clock, instead of the one that had this key; None: no more."""

    key: Hashable
    due_ms: int
    request: Any


class _Entry(NamedTuple):
    due_ms: int
    number: int  # so that timers of one instant fire in the order in which they were set
    key: Hashable


class Timers:
    """The timers of one active shard."""

    def __init__(self) -> None:
        self._timers: dict[Hashable, Timer] = {}
        self._entries: dict[Hashable, _Entry] = {}
        self._heap: list[_Entry] = []
        self._numbers = count()

    def __repr__(self) -> str:
        return f"<Timers {len(self._timers)} next_ms={self.next_ms}>"

    def __contains__(self, key: Hashable) -> bool:
        return key in self._timers

    def set(self, timer: Timer) -> None:
        """Sets it, puts it off or forward, or cancels it."""
        if timer.request is None:
            self._timers.pop(timer.key, None)
            return
        self._timers[timer.key] = timer
        entry = self._entries.get(timer.key)
        if entry is None or timer.due_ms < entry.due_ms:
            self._push(timer)

    def set_all(self, timers: Iterable[Timer]) -> None:
        """Sets each, in their order."""
        for timer in timers:
            self.set(timer)

    @property
    def next_ms(self) -> int | None:
        """When the first is due; None when there is none."""
        self._settle()
        return self._heap[0].due_ms if self._heap else None

    def take_due(self, now_ms: int) -> Timer | None:
        """The first that is due, which is no timer any more; None when none is."""
        self._settle()
        if not self._heap or self._heap[0].due_ms > now_ms:
            return None
        entry = heappop(self._heap)
        del self._entries[entry.key]
        return self._timers.pop(entry.key)

    def _push(self, timer: Timer) -> None:
        entry = self._entries[timer.key] = _Entry(timer.due_ms, next(self._numbers), timer.key)
        heappush(self._heap, entry)

    def _settle(self) -> None:
        """Until the first entry is that of a timer which is due then."""
        while self._heap:
            entry = self._heap[0]
            timer = self._timers.get(entry.key)
            is_current = self._entries.get(entry.key) is entry
            if is_current and timer is not None and timer.due_ms == entry.due_ms:
                return
            heappop(self._heap)
            if is_current:
                del self._entries[entry.key]
                if timer is not None:
                    self._push(timer)
