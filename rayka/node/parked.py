"""Requests that wait for something to happen to partitions.

Invariants: a request watches its partitions from before its last look at them until it is answered, so no
wake-up is lost (G9; nothing runs between a look and a wait); any number of wake-ups between two looks count
as one. When the node stops, all of them end. Kafka: `DelayedOperationPurgatory`.
"""

import asyncio
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from rayka.errors import BrokerNotAvailable

KeyT = TypeVar("KeyT", bound=Hashable)


class Watch:
    """One request's view of its keys."""

    __slots__ = ("_is_woken", "_reason", "_waiter")

    def __init__(self) -> None:
        self._is_woken = False
        self._reason: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self, deadline_s: float) -> bool:
        """True once a key was woken since the last wait, False at the deadline (the event loop's clock).

        Raises BrokerNotAvailable when the node stops.
        """
        loop = asyncio.get_running_loop()
        if not self._is_woken and self._reason is None and loop.time() < deadline_s:
            self._waiter = loop.create_future()
            timer = loop.call_at(deadline_s, self._release)
            try:
                await self._waiter
            finally:
                timer.cancel()
        if self._reason is not None:
            raise BrokerNotAvailable(self._reason)
        woken, self._is_woken = self._is_woken, False
        return woken

    def wake(self) -> None:
        self._is_woken = True
        self._release()

    def end(self, reason: str) -> None:
        self._reason = reason
        self._release()

    def _release(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Parked(Generic[KeyT]):
    """All requests of one node that wait, by what they wait for."""

    def __init__(self) -> None:
        self._watches: dict[KeyT, dict[Watch, None]] = {}
        self._reason: str | None = None

    def __repr__(self) -> str:
        return f"<Parked keys={len(self._watches)}>"

    @contextmanager
    def watch(self, keys: Iterable[KeyT]) -> Iterator[Watch]:
        """A watch on these keys for the length of the block; look after it began, not before."""
        watch, watched = Watch(), list(keys)
        if self._reason is not None:
            watch.end(self._reason)
        for key in watched:
            self._watches.setdefault(key, {})[watch] = None
        try:
            yield watch
        finally:
            for key in watched:
                self._forget(key, watch)

    def wake(self, key: KeyT) -> None:
        """Something happened to this key."""
        for watch in self._watches.get(key, ()):
            watch.wake()

    def close(self, reason: str) -> None:
        """Ends all waits, now and from now on."""
        self._reason = reason
        for watches in self._watches.values():
            for watch in watches:
                watch.end(reason)

    def _forget(self, key: KeyT, watch: Watch) -> None:
        watches = self._watches.get(key)
        if watches is not None:
            watches.pop(watch, None)  # a request may name a partition twice
            if not watches:
                del self._watches[key]
