"""A node's calls to whichever controller is active, and the pauses between them.

Kafka: `NodeToControllerChannelManager`.
"""

import asyncio
from typing import TypeVar

from rayka.errors import NetworkException, RetriableApiError, UnknownServerError
from rayka.ports import Request
from rayka.protocol.active_controller import ActiveController

ResponseT = TypeVar("ResponseT")
_PAUSE_FIRST_MS, _PAUSE_MAX_MS = 20, 100


class ControllerLink(ActiveController):
    """The way to the controllers of one cluster, shared by all parts of one node that call them."""

    async def call(self, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        """As a client's call, but a bug of the controller is an error that passes: it ends that process, and another
        one will lead.
        """
        try:
            return await super().call(request, timeout_ms)
        except UnknownServerError as error:
            raise NetworkException(str(error)) from error

    async def call_until_answered(self, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        """The answer to the first attempt that has one, each of so long at most, however many it takes."""
        pauses = Pauses()
        while True:
            try:
                return await self.call(request, timeout_ms)
            except RetriableApiError:
                await pauses.pause()


class Pauses:
    """The growing pauses between attempts that fail: 20 ms, doubling up to a tenth of a second."""

    def __init__(self) -> None:
        self._next_ms = _PAUSE_FIRST_MS

    def reset(self) -> None:
        """An attempt has succeeded."""
        self._next_ms = _PAUSE_FIRST_MS

    def next_ms(self) -> int:
        """How long to wait now."""
        now_ms, self._next_ms = self._next_ms, min(_PAUSE_MAX_MS, 2 * self._next_ms)
        return now_ms

    async def pause(self) -> None:
        await asyncio.sleep(self.next_ms() / 1000)
