"""The line of those who wait for the memory of a producer: first come, first served.

While somebody waits, nobody else sets memory aside, so what is freed adds up until it is enough for the first; else
small records would take each piece, and a large one would wait for ever. Records for which memory is set aside already
go on. Guarded by the lock of the accumulator.

Invariants: only the first in line, or anybody while it is empty, sets memory aside; a turn whose owner is gone,
whatever ended it, is in nobody's way. Kafka: BufferPool, `waiters`.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from weakref import ref

Callback = Callable[[], object]


class Turn:
    """A place in the line; it belongs to the one that waits."""

    __slots__ = ("__weakref__", "callback")

    def __init__(self) -> None:
        self.callback: Callback | None = None  # called once, when it may be worth to try


class MemoryLine:
    """See the module. `asking` is the turn of the append that is under way, None for one that does not wait."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self.asking: Turn | None = None
        self.news_count = 0  # how often something has changed for the first in line
        self._lock = lock
        self._turns: deque[ref[Turn]] = deque()

    def __repr__(self) -> str:
        return f"<MemoryLine of {len(self._turns)}>"

    @property
    def may_take(self) -> bool:
        """Whether the append that is under way may set memory aside."""
        return not self._turns or self._first() in (None, self.asking)

    def join(self, turn: Turn) -> None:
        """Waits behind those that are here."""
        with self._lock:
            self._turns.append(ref(turn))

    def leave(self, turn: Turn) -> None:
        """Waits no more, with memory or without; the next may find some."""
        with self._lock:
            self._turns = deque(each for each in self._turns if each() not in (None, turn))
            callback = self.on_news()
        if callback is not None:
            callback()

    def call_on_news(self, turn: Turn, news_count: int, callback: Callback) -> None:
        """Calls back once it is the turn's time to try, and something has changed since there had been so many news: on
        the IO thread, in the thread of another that waits, or at once.
        """
        with self._lock:
            if self._first() is not turn or self.news_count == news_count:
                turn.callback = callback
                return
        callback()

    def on_news(self) -> Callback | None:
        """Memory was freed, or the first has left. Returns what is to be called, without the lock."""
        self.news_count += 1
        first = self._first()
        if first is None:
            return None
        callback, first.callback = first.callback, None
        return callback

    def _first(self) -> Turn | None:
        while self._turns:
            first = self._turns[0]()
            if first is not None:
                return first
            self._turns.popleft()
        return None
