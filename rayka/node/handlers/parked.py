"""Requests that wait for something to happen to partitions.

Invariants: a request watches its partitions from before its last look at them until it is answered, so no
wake-up is lost (G9; nothing runs between a look and a wait); any number of wake-ups between two looks count
as one. A watch remembers which keys were woken: a request that watches many looks only at those. News that cannot
bring a request more does not wake it: what waits for commits sleeps through appends, a follower through commits.
When the node stops, all waits end. Kafka: `DelayedOperationPurgatory`.
"""

import asyncio
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from rayka.errors import BrokerNotAvailable

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

    __slots__ = ("_is_woken", "_reason", "_waiter", "due", "sleeps_through")

    def __init__(self, sleeps_through: News | None = None) -> None:
        self.sleeps_through = sleeps_through
        self.due: dict[KeyT, None] = {}
        self._is_woken = False
        self._reason: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self, deadline_s: float) -> bool:
        """True once a key was woken since the last wait, False at the deadline (the event loop's clock), or when
        `release` was called.

        Raises BrokerNotAvailable when the node stops.
        """
        loop = asyncio.get_running_loop()
        if not self._is_woken and self._reason is None and loop.time() < deadline_s:
            waiter = self._waiter = loop.create_future()
            timer = loop.call_at(deadline_s, self.release)
            try:
                await waiter
            finally:
                timer.cancel()
        if self._reason is not None:
            raise BrokerNotAvailable(self._reason)
        woken, self._is_woken = self._is_woken, False
        return woken

    @property
    def is_woken(self) -> bool:
        """Whether a key was woken since the last wait."""
        return self._is_woken

    def wake(self, key: KeyT, news: News = News.CHANGED) -> None:
        self.due[key] = None
        if news is not self.sleeps_through:
            self._is_woken = True
            self.release()

    def end(self, reason: str) -> None:
        self._reason = reason
        self.release()

    def release(self) -> None:
        """Every request that waits goes on."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Listener(Protocol[KeyT_contra]):
    """What is told of news of a key: a watch, or what hosts a state machine on a partition."""

    @property
    def sleeps_through(self) -> News | None:
        """What it need not be told; of commits it is told all the same."""
        ...

    def wake(self, key: KeyT_contra, news: News) -> None:
        """Something happened to this key."""
        ...

    def end(self, reason: str) -> None:
        """The node stops: nothing will happen any more."""
        ...


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
        if self._reason is not None:
            watch.end(self._reason)
        return watch

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

    def wake(self, key: KeyT, news: News = News.CHANGED) -> None:
        """Something happened to this key."""
        watches = self._of_appends if news is News.APPENDED else self._watches
        for watch in watches.get(key, ()):
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
