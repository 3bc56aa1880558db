"""Events that a node or the supervisor has seen, on their way into the cluster's history.

The controllers may be what is lost, so an event waits, with the time at which it was seen, until a controller takes it.
Invariants: events are sent one after another, in their order; at most 200 wait, and the oldest are dropped first;
nothing is sent while nothing happens. Events that wait are lost with their process. Decision 091.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

from rayka.errors import ApiError, RaykaError
from rayka.protocol.events import RecordEventRequest, RecordEventResponse

WAITING_MAX = 200
_ASK_AGAIN_S = 1.0
_logger = logging.getLogger(__name__)


class RecordEvent(Protocol):
    """Has an event recorded by the active controller. Raises RaykaError, or TimeoutError."""

    async def __call__(self, request: RecordEventRequest) -> RecordEventResponse: ...


class Tell(Protocol):
    """Takes an event: its kind, the nodes that it is about, and why."""

    def __call__(self, kind: str, node_ids: Collection[int], reason: str) -> None: ...


class EventReports:
    """The events of one process. Made and used on one event loop."""

    def __init__(self, record: RecordEvent, wall_clock_ms: Callable[[], int]) -> None:
        self._record = record
        self._wall_clock_ms = wall_clock_ms
        self._waiting: deque[RecordEventRequest] = deque(maxlen=WAITING_MAX)
        self._has_new = asyncio.Event()

    def __repr__(self) -> str:
        return f"<EventReports waiting={len(self._waiting)}>"

    def tell(self, kind: str, node_ids: Collection[int], reason: str) -> None:
        """Has an event recorded with the present time, as soon as a controller takes it."""
        self._waiting.append(RecordEventRequest.of_nodes(self._wall_clock_ms(), kind, node_ids, reason))
        self._has_new.set()

    async def run(self) -> None:
        """Sends for ever. Repeats are harmless: a controller records an event once."""
        while True:
            while self._waiting:
                request = self._waiting[0]
                if not await self._is_settled(request):
                    await asyncio.sleep(_ASK_AGAIN_S)
                # Else newer events have pushed it out meanwhile.
                elif self._waiting[0] is request:
                    self._waiting.popleft()
            self._has_new.clear()
            await self._has_new.wait()

    async def _is_settled(self, request: RecordEventRequest) -> bool:
        """Whether the event is recorded, or never will be."""
        try:
            await self._record(request)
        except (RaykaError, TimeoutError) as error:
            if isinstance(error, ApiError) and not error.retriable:
                _logger.warning("%s is not recorded: %r", request, error)
                return True
            _logger.debug("%s is not recorded yet: %r", request, error)
            return False
        return True
