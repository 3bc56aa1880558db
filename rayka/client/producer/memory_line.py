"""The waiting line for the memory of a producer: first come, first served.

While a send waits, no other one sets memory aside, so freed memory adds up until it is enough for the first in line;
else small records would take each piece, and a large one would wait for ever. Records whose memory is set aside already
go on. Guarded by the lock of the accumulator.

Invariants: only the first in line sets memory aside, or any send while the line is empty; a turn whose owner is gone
blocks no other one. Kafka: BufferPool, `waiters`.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from weakref import ref

Callback = Callable[[], object]


class MemoryTurn:
    """A place in the line. The waiting send holds the only reference."""

    __slots__ = ("__weakref__", "callback")

    def __init__(self) -> None:
        # Called once, when another try may find memory.
        self.callback: Callback | None = None


class MemoryLine:
    """The turns in their order. `current`: the turn of the append that is under way; None if that one does not wait."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self.current: MemoryTurn | None = None
        # Grows with each change that may let the first in line go on.
        self.news_count = 0
        self._lock = lock
        self._turns: deque[ref[MemoryTurn]] = deque()

    def __repr__(self) -> str:
        return f"<MemoryLine of {len(self._turns)}>"

    @property
    def may_take(self) -> bool:
        """Whether the append that is under way may set memory aside."""
        return not self._turns or self._first() in (None, self.current)

    def join(self, turn: MemoryTurn) -> None:
        """Puts the turn at the end of the line."""
        with self._lock:
            self._turns.append(ref(turn))

    def leave(self, turn: MemoryTurn) -> None:
        """Takes the turn out of the line, with memory or without, and wakes the next one."""
        with self._lock:
            self._turns = deque(each for each in self._turns if each() not in (None, turn))
            callback = self.on_news()
        if callback is not None:
            callback()

    def call_on_news(self, turn: MemoryTurn, news_count: int, callback: Callback) -> None:
        """Calls back once the turn is the first in line and `news_count` has grown beyond the given one: at once, on
        the IO thread, or in the thread of another waiting send.
        """
        with self._lock:
            if self._first() is not turn or self.news_count == news_count:
                turn.callback = callback
                return
        callback()

    def on_news(self) -> Callback | None:
        """Memory was freed, or the first in line has left. Returns the callback, to be called without the lock."""
        self.news_count += 1
        first = self._first()
        if first is None:
            return None
        callback, first.callback = first.callback, None
        return callback

    def _first(self) -> MemoryTurn | None:
        while self._turns:
            first = self._turns[0]()
            if first is not None:
                return first
            self._turns.popleft()
        return None
