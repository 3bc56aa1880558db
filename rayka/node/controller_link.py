"""A node's calls to whichever controller is active.

Invariants: a call goes to the newest leader heard of; when a newer one becomes known, calls that still wait for an
older one end at once, because their answer can only be that it does not lead. Kafka: `NodeToControllerChannelManager`.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from rayka.errors import (
    BrokerNotAvailable,
    InvalidMetadataError,
    NetworkException,
    NotController,
    RequestTimedOut,
    UnknownServerError,
)
from rayka.ids import NO_NODE, node_name
from rayka.ports import Network, Request
from rayka.protocol.active_controller import ActiveController

ResponseT = TypeVar("ResponseT")
_PAUSE_FIRST_MS, _PAUSE_MAX_MS = 20, 100


class ControllerLink:
    """The way to the controllers of one cluster, shared by all who call them from one node."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._active = ActiveController(network)
        self._open: dict[asyncio.Timeout, int] = {}

    def __repr__(self) -> str:
        return f"<ControllerLink {self._active!r} open={len(self._open)}>"

    async def call(self, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        """The active controller's answer. Raises the ApiError it gave, or a retriable one when it was not
        found."""
        node_id = await self._active.find()
        try:
            with self._until_succeeded(node_id) as patience:
                async with patience:
                    return await self._network.call(node_id, request, timeout_ms)
        except TimeoutError:
            raise NotController(
                f"{node_name(node_id)} was succeeded by {node_name(self._active.leader_id)}"
            ) from None
        except (InvalidMetadataError, RequestTimedOut, BrokerNotAvailable) as error:
            self._active.forget(node_id)
            if isinstance(error, NotController):
                self.learn(error.leader_id, error.leader_epoch)
            raise
        except UnknownServerError as error:  # its bug, which ends it; it will be back
            self._active.forget(node_id)
            raise NetworkException(str(error)) from error

    def learn(self, leader_id: int, leader_epoch: int) -> None:
        """An answer named the leader of an epoch, or said with -1 that none is known."""
        if self._active.learn(leader_id, leader_epoch) and leader_id != NO_NODE:
            now_s = asyncio.get_running_loop().time()
            for patience, node_id in self._open.items():
                if node_id != leader_id and not patience.expired():
                    patience.reschedule(now_s)

    def on_not_leader(self, leader_id: int, leader_epoch: int) -> None:
        """The controller asked has answered that it does not lead; who does, if it knows."""
        self._active.forget(self._active.leader_id)
        self.learn(leader_id, leader_epoch)

    @contextmanager
    def _until_succeeded(self, node_id: int) -> Iterator[asyncio.Timeout]:
        patience = asyncio.timeout(None)
        self._open[patience] = node_id
        try:
            yield patience
        finally:
            del self._open[patience]


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
