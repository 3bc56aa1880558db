"""Requests that wait for something to happen to partitions.

Invariants: a request watches its partitions from before its last look at them until it is answered, so no wake-up is
lost (G9; nothing runs between a look and a wait); any number of wake-ups between two looks count as one, and the look
comes in the turn of the event loop behind the first of them, without a task. A watch remembers which keys were woken:
a request that watches many looks only at those. News that cannot bring a request more does not wake it: what waits
for commits sleeps through appends, a follower through commits. When the node stops, all waits end. Kafka:
`DelayedOperationPurgatory`.
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
    """What has happened to a key."""

    CHANGED = auto()  # anything: every watch is woken
    APPENDED = auto()  # the log has grown, and no more of it is committed
    COMMITTED = auto()  # more of the log is committed, and it has not grown


class Watch(Generic[KeyT]):
    """One request's view of its keys, or that of a series of requests, one after another.

    `due`: the keys that had news, in that order, until its owner removes them.
    """

    __slots__ = ("_look", "_reason", "_timer", "due", "is_woken", "sleeps_through")

    def __init__(self, sleeps_through: News | None = None) -> None:
        self.sleeps_through = sleeps_through
        self.due: dict[KeyT, None] = {}
        self.is_woken = False  # whether a key was woken since the last wait
        self._reason: str | None = None
        self._look: Callable[[], object] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def call_when_woken(self, look: Callable[[], object], deadline_s: float) -> None:
        """Calls it once, in a turn of its own: when a key was woken since `take`, at the deadline (the event loop's
        clock), when the node stops, or when `release` is called.
        """
        loop = asyncio.get_running_loop()
        self._look = look
        if self.is_woken or self._reason is not None or loop.time() >= deadline_s:
            self.release()
        else:
            self._timer = loop.call_at(deadline_s, self.release)

    def take(self) -> bool:
        """Whether a key was woken since the last time. Raises BrokerNotAvailable when the node stops."""
        if self._reason is not None:
            raise BrokerNotAvailable(self._reason)
        woken, self.is_woken = self.is_woken, False
        return woken

    async def wait(self, deadline_s: float) -> bool:
        """As `call_when_woken` and then `take`, for coroutines."""
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
            self.release()

    def end(self, reason: str) -> None:
        self._reason = reason
        self.release()

    def release(self) -> None:
        """A request that waits looks again."""
        look = self._look
        if look is not None:
            self.forget(look)
            asyncio.get_running_loop().call_soon(look)

    def forget(self, look: Callable[[], object]) -> None:
        """What waits is not called any more; without effect when something else waits by now."""
        if self._look == look:
            self._look = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None


class Listener(Protocol[KeyT_contra]):
    """What is called at news of a key: a watch, or what hosts a state machine on a partition."""

    @property
    def sleeps_through(self) -> News | None:
        """What it need not be called at; it is called at commits all the same."""

    def wake(self, key: KeyT_contra, news: News) -> None:
        """Something happened to this key."""

    def end(self, reason: str) -> None:
        """The node stops: nothing will happen any more."""


class Parked(Generic[KeyT]):
    """All requests of one node that wait, by what they wait for."""

    def __init__(self) -> None:
        self._watches: dict[KeyT, dict[Listener[KeyT], None]] = {}
        self._of_appends: dict[KeyT, dict[Listener[KeyT], None]] = {}  # those that do not sleep through them
        self._reason: str | None = None

    def __repr__(self) -> str:
        return f"<Parked keys={len(self._watches)}>"

    @contextmanager
    def watch(self, keys: Iterable[KeyT], *, sleeps_through: News | None = None) -> Iterator[Watch[KeyT]]:
        """A watch on these keys for the length of the block; look after it began, not before."""
        watch, watched = self.new_watch(sleeps_through), list(keys)
        self.add(watch, watched)
        try:
            yield watch
        finally:
            self.remove(watch, watched)

    def new_watch(self, sleeps_through: News | None = None) -> Watch[KeyT]:
        """A watch that lasts: on no key yet, and on each that is added until it is removed."""
        watch: Watch[KeyT] = Watch(sleeps_through)
        self.begin(watch)
        return watch

    def begin(self, watch: Watch[KeyT]) -> None:
        """Ends it at once when the node has stopped."""
        if self._reason is not None:
            watch.end(self._reason)

    def add(self, watch: Listener[KeyT], keys: Iterable[KeyT]) -> None:
        """Watches these keys as well; one that is watched already is no error."""
        hears_appends = watch.sleeps_through is not News.APPENDED
        for key in keys:
            self._watches.setdefault(key, {})[watch] = None
            if hears_appends:
                self._of_appends.setdefault(key, {})[watch] = None

    def remove(self, watch: Listener[KeyT], keys: Iterable[KeyT]) -> None:
        """Watches these keys no more."""
        for key in keys:
            _remove(self._watches, key, watch)
            _remove(self._of_appends, key, watch)

    def wake(self, key: KeyT, news: News = News.CHANGED, *, by: object = None) -> None:
        """Something happened to this key, by a listener that need not be called, or by something else."""
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


def _remove(watches: dict[KeyT, dict[Listener[KeyT], None]], key: KeyT, watch: Listener[KeyT]) -> None:
    of_key = watches.get(key)
    if of_key is not None:
        of_key.pop(watch, None)  # a request may name a partition twice
        if not of_key:
            del watches[key]
