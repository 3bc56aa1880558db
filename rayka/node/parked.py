"""Requests that wait for something to happen to partitions.

Invariants:

- A request watches its partitions from before its last look at them until it is answered, so no wake-up is lost (G9):
  nothing runs between a look and a wait.
- Any number of wake-ups between two looks count as one. The look comes in the turn of the event loop behind the first
  wake-up, without a task. A watch remembers the keys that were woken, so a request over many partitions looks only at
  those.
- News that cannot bring a request more does not wake the request: a produce that waits for commits sleeps through
  appends, a follower through commits.
- When the node stops, all waits end.

Kafka: `DelayedOperationPurgatory`.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from functools import partial
from typing import Generic, Protocol, TypeVar

from rayka.errors import BrokerNotAvailable
from rayka.protocol.later import Later

KeyT = TypeVar("KeyT", bound=Hashable)
KeyT_contra = TypeVar("KeyT_contra", bound=Hashable, contravariant=True)


class News(Enum):
    """The kinds of events of a key."""

    # Any event: wakes every watch.
    CHANGED = auto()
    # The log has grown, and no more of it is committed.
    APPENDED = auto()
    # More of the log is committed, and the log has not grown.
    COMMITTED = auto()


class PartitionListener(Protocol[KeyT_contra]):
    """Takes the news of keys: a `Watch`, or the host of a state machine on a partition. Kafka: `PartitionListener`."""

    @property
    def sleeps_through(self) -> News | None:
        """News that the listener need not get. COMMITTED is delivered all the same."""

    def wake(self, key: KeyT_contra, news: News) -> None:
        """Something happened to this key."""

    def end(self, reason: str) -> None:
        """The node stops: no more news will come."""


class Watch(Generic[KeyT]):
    """The wait of one request, or of a series of requests one after another. `close` ends the watch."""

    __slots__ = ("_deadline_s", "_look", "_reason", "_timer", "due", "is_woken", "sleeps_through")

    def __init__(self, sleeps_through: News | None = None) -> None:
        self.sleeps_through = sleeps_through
        # The keys with news, in the order of the news; the owner of the watch removes them.
        self.due: dict[KeyT, None] = {}
        # True if a key was woken since the last `take`.
        self.is_woken = False
        self._reason: str | None = None
        # The callback that waits; None: nothing waits.
        self._look: Callable[[], object] | None = None
        self._deadline_s = 0.0
        # Never later than the deadline of the look that waits. The timer outlives a look: a follower waits again
        # within a millisecond, and a new timer for each fetch would cost more than one that rings too early.
        self._timer: asyncio.TimerHandle | None = None

    def call_when_woken(self, look: Callable[[], object], deadline_s: float) -> None:
        """Calls `look` once, in a turn of the event loop of its own: when a key was woken since `take`, at the deadline
        (the event loop's clock), when the node stops, or after `release`.
        """
        loop = asyncio.get_running_loop()
        self._look = look
        if self.is_woken or self._reason is not None or loop.time() >= deadline_s:
            self.release()
            return
        self._deadline_s = deadline_s
        timer = self._timer
        if timer is None or timer.when() > deadline_s:
            if timer is not None:
                timer.cancel()
            self._timer = loop.call_at(deadline_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._look is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= self._deadline_s:
            self.release()
        else:
            self._timer = loop.call_at(self._deadline_s, self._on_timer)

    def take(self) -> bool:
        """True if a key was woken since the last call. Raises BrokerNotAvailable when the node stops."""
        if self._reason is not None:
            raise BrokerNotAvailable(self._reason)
        woken, self.is_woken = self.is_woken, False
        return woken

    async def wait(self, deadline_s: float) -> bool:
        """Waits as `call_when_woken`, then takes, for coroutines."""
        if not self.is_woken:
            news: Later[bool] = Later()
            look = partial(news.end, True)
            self.call_when_woken(look, deadline_s)
            try:
                await news
            finally:
                self.forget(look)
        return self.take()

    def wake(self, key: KeyT, news: News = News.CHANGED) -> None:
        self.due[key] = None
        if news is not self.sleeps_through:
            self.is_woken = True
            if self._look is not None:
                self.release()

    def end(self, reason: str) -> None:
        self._reason = reason
        self.release()

    def release(self) -> None:
        """Lets the request that waits look again."""
        look = self._look
        if look is not None:
            self._look = None
            asyncio.get_running_loop().call_soon(look)

    def forget(self, look: Callable[[], object]) -> None:
        """Drops the callback; no effect if another callback waits."""
        if self._look == look:
            self._look = None

    def close(self) -> None:
        """Stops the timer: nothing waits on this watch any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Parked(Generic[KeyT]):
    """All requests of one node that wait, by the keys they wait for."""

    def __init__(self) -> None:
        self._watches: dict[KeyT, dict[PartitionListener[KeyT], None]] = {}
        # The part of `_watches` that does not sleep through appends.
        self._of_appends: dict[KeyT, dict[PartitionListener[KeyT], None]] = {}
        # Why the node stops; None: it does not.
        self._reason: str | None = None

    def __repr__(self) -> str:
        return f"<Parked keys={len(self._watches)}>"

    @contextmanager
    def watch(self, keys: Iterable[KeyT], *, sleeps_through: News | None = None) -> Iterator[Watch[KeyT]]:
        """Watches these keys for the length of the block; the first look must come after the beginning."""
        watch: Watch[KeyT] = Watch(sleeps_through)
        watched = list(keys)
        self.add(watch, watched)
        try:
            yield watch
        finally:
            self.remove(watch, watched)
            watch.close()

    def add(self, watch: PartitionListener[KeyT], keys: Iterable[KeyT]) -> None:
        """Watches these keys as well; a key may be watched already. Ends the watch at once if the node has stopped."""
        hears_appends = watch.sleeps_through is not News.APPENDED
        for key in keys:
            self._watches.setdefault(key, {})[watch] = None
            if hears_appends:
                self._of_appends.setdefault(key, {})[watch] = None
        if self._reason is not None:
            watch.end(self._reason)

    def remove(self, watch: PartitionListener[KeyT], keys: Iterable[KeyT]) -> None:
        """Watches these keys no more. A request may name a partition twice, so a key may be gone already."""
        for key in keys:
            for watches in (self._watches, self._of_appends):
                of_key = watches.get(key)
                if of_key is not None:
                    of_key.pop(watch, None)
                    if not of_key:
                        del watches[key]

    def wake(self, key: KeyT, news: News = News.CHANGED, *, by: object = None) -> None:
        """Gives the news of this key to all its listeners but `by`, which has caused them."""
        watches = self._of_appends if news is News.APPENDED else self._watches
        for watch in watches.get(key, ()):
            if watch is not by:
                watch.wake(key, news)

    def close(self, reason: str) -> None:
        """Ends all waits, now and from now on."""
        self._reason = reason
        for watches in self._watches.values():
            for watch in watches:
                watch.end(reason)
