"""Wakes all tasks that wait for news, in the order in which they began to wait."""

import asyncio
import math


class Signal:
    """A condition without a state of its own: a waiter looks, waits, and looks again."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}

    def __repr__(self) -> str:
        return f"<Signal waiters={len(self._waiters)}>"

    def notify(self) -> None:
        """There is news."""
        for waiter in self._waiters:
            _wake(waiter)

    async def wait(self, deadline_s: float) -> None:
        """Returns at the next news, or at the deadline on the event loop's clock (infinity: there is none)."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters[waiter] = None
        timer = None if deadline_s == math.inf else loop.call_at(deadline_s, _wake, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            del self._waiters[waiter]


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
