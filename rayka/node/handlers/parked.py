"""Requests that wait for something to happen to partitions.

Invariants: a request watches its partitions from before its last look at them until it is answered, so no
wake-up is lost (G9; nothing runs between a look and a wait); any number of wake-ups between two looks count
as one. A watch remembers which keys were woken: a request that watches many looks only at those.
When the node stops, all waits end. Kafka: `DelayedOperationPurgatory`.
"""

import asyncio
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from rayka.errors import BrokerNotAvailable

KeyT = TypeVar("KeyT", bound=Hashable)
KeyT_contra = TypeVar("KeyT_contra", bound=Hashable, contravariant=True)


class Watch(Generic[KeyT]):
    """One request's view of its keys, or that of a series of requests, one after another.

    `due`: the keys that were woken, in that order, until its owner removes them.
    """

    __slots__ = ("_is_woken", "_reason", "_waiter", "due")

    def __init__(self) -> None:
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

    def wake(self, key: KeyT) -> None:
        self.due[key] = None
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

    def wake(self, key: KeyT_contra) -> None:
        """Something happened to this key."""
        ...

    def end(self, reason: str) -> None:
        """The node stops: nothing will happen any more."""
        ...


class Parked(Generic[KeyT]):
    """All requests of one node that wait, by what they wait for."""

    def __init__(self) -> None:
        self._watches: dict[KeyT, dict[Listener[KeyT], None]] = {}
        self._reason: str | None = None

    def __repr__(self) -> str:
        return f"<Parked keys={len(self._watches)}>"

    @contextmanager
    def watch(self, keys: Iterable[KeyT]) -> Iterator[Watch[KeyT]]:
        """A watch on these keys for the length of the block; look after it began, not before."""
        watch, watched = self.new_watch(), list(keys)
        self.add(watch, watched)
        try:
            yield watch
        finally:
            self.remove(watch, watched)

    def new_watch(self) -> Watch[KeyT]:
        """A watch that lasts: on no key yet, and on each that is added until it is removed."""
        watch: Watch[KeyT] = Watch()
        if self._reason is not None:
            watch.end(self._reason)
        return watch

    def add(self, watch: Listener[KeyT], keys: Iterable[KeyT]) -> None:
        """Watches these keys as well; one that is watched already is no error."""
        for key in keys:
            self._watches.setdefault(key, {})[watch] = None

    def remove(self, watch: Listener[KeyT], keys: Iterable[KeyT]) -> None:
        """Watches these keys no more."""
        for key in keys:
            watches = self._watches.get(key)
            if watches is not None:
                watches.pop(watch, None)  # a request may name a partition twice
                if not watches:
                    del self._watches[key]

    def wake(self, key: KeyT) -> None:
        """Something happened to this key."""
        for watch in self._watches.get(key, ()):
            watch.wake(key)

    def close(self, reason: str) -> None:
        """Ends all waits, now and from now on."""
        self._reason = reason
        for watches in self._watches.values():
            for watch in watches:
                watch.end(reason)
