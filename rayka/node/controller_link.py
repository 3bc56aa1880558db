"""A broker's calls to whichever controller is active.

Invariant: after an answer that says somebody else leads, or none, the next call asks the next controller.
Kafka: `NodeToControllerChannelManager`.
"""

import asyncio
from typing import TypeVar

from rayka.errors import InvalidMetadataError, NetworkException, RequestTimedOut, UnknownServerError
from rayka.ids import Role, role_of
from rayka.ports import Network, Request

ResponseT = TypeVar("ResponseT")
_PAUSE_FIRST_MS, _PAUSE_MAX_MS = 20, 1_000


class ControllerLink:
    """The way to the controllers of one cluster."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._known: list[int] = []

    def __repr__(self) -> str:
        return f"<ControllerLink {self._known}>"

    async def call(self, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        """The active controller's answer. Raises the ApiError it gave, or a retriable one when it was not
        found."""
        if not self._known:
            node_ids = await self._network.node_ids()
            self._known = [node_id for node_id in node_ids if role_of(node_id) is Role.CONTROLLER]
            if not self._known:
                raise NetworkException("the cluster has no controller that could be asked")
        try:
            return await self._network.call(self._known[0], request, timeout_ms)
        except (InvalidMetadataError, RequestTimedOut):
            self.on_not_active()
            raise
        except UnknownServerError as error:  # its bug, which ends it; it will be back
            raise NetworkException(str(error)) from error

    def on_not_active(self) -> None:
        """The controller asked does not lead: the next one may."""
        del self._known[:1]


class Pauses:
    """The growing pauses between attempts that fail: 20 ms, doubling up to a second."""

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
