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


class AioClient(ProcessBound, Generic[CoreT]):
    """What all async clients have: a core, which is a sync client, once they are open; and `async with`."""

    def __init__(self, make: Callable[[], CoreT], name: str) -> None:
        self._make = make
        self._name = name
        self._look: asyncio.Future[CoreT] | None = None
        self._core: CoreT | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<{self._name}{' closed' * self._is_closed}>" if self._core is None else repr(self._core)

    async def close(self) -> Any:
        """Ends."""

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open(self) -> CoreT:
        """The core. Raises what making it raises, and ClosedError."""
        io_thread.refuse(self._name)
        if self._is_closed:
            raise ClosedError(f"<{self._name} closed>: make a new one")
        self._core = await self._found()
        return self._core

    async def _to_close(self) -> CoreT | None:
        """The core: None if it was closed before, or never opened."""
        if self._is_closed or io_thread.is_lost():
            return None
        self._is_closed = True
        return None if self._look is None else await self._found()

    async def _found(self) -> CoreT:
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
