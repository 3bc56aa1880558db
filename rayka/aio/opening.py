"""How an async client opens: it is made in the event loop, and looks for its cluster when it is first awaited.

To look for a cluster blocks, so a thread does it. Invariants: one look at a time, however many tasks wait for it; a
task that is cancelled meanwhile ends its own wait only; after a failure the next call looks again.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from rayka.client import io_thread
from rayka.client.process_bound import ProcessBound
from rayka.errors import ClosedError

CoreT = TypeVar("CoreT")


class Opening(Generic[CoreT]):
    """The core of an async client, which is a sync client, once it is there."""

    def __init__(self, make: Callable[[], CoreT], name: str) -> None:
        self._make = make
        self._name = name
        self._look: asyncio.Future[CoreT] | None = None
        self.is_closed = False

    def __repr__(self) -> str:
        return f"<{self._name}{' closed' * self.is_closed}>"

    async def core(self) -> CoreT:
        """Raises what making it raises, and ClosedError."""
        io_thread.refuse(self._name)
        if self.is_closed:
            raise ClosedError(f"{self!r}: make a new one")
        return await self._core()

    async def close(self) -> CoreT | None:
        """What is to be closed: None if it was closed before, or never opened."""
        if self.is_closed or io_thread.is_lost():
            return None
        self.is_closed = True
        return None if self._look is None else await self._core()

    async def _core(self) -> CoreT:
        look = self._look
        if look is not None and look.done() and not look.cancelled() and look.exception() is None:
            return look.result()  # a shield for each poll would cost as much as twenty records
        if look is None:
            look = self._look = asyncio.ensure_future(_made(self._make))
        try:
            return await asyncio.shield(look)
        except BaseException:
            if look.done() and self._look is look and (look.cancelled() or look.exception() is not None):
                self._look = None
            raise


async def _made(make: Callable[[], CoreT]) -> CoreT:
    """Not as the thread's own result, to which it refers until it has its turn again: a client that is dropped
    meanwhile would live on.
    """
    made: list[CoreT] = []
    await asyncio.to_thread(lambda: made.append(make()))
    return made.pop()


class AioClient(ProcessBound):
    """What all async clients have: `async with`."""

    async def close(self) -> Any:
        """Ends."""

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open(self) -> Any:
        """The core."""
