"""A node's way to whichever controller is active: its calls, the pauses between them, and its reports of events.

An event is reported with the time at which it was seen. The controllers may be the part that was lost, so events wait
until a controller takes them (decision 091). Invariants: events are sent one after another, in their order; at most 200
wait, and the oldest are dropped first; nothing is sent while nothing happens. Events that wait are lost with their
process.

Kafka: `NodeToControllerChannelManager`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

from rayka.errors import ApiError, NetworkException, RaykaError, RetriableApiError, UnknownServerError
from rayka.ports import Request
from rayka.protocol.active_controller import ActiveController
from rayka.protocol.events import RecordEventRequest, RecordEventResponse

ResponseT = TypeVar("ResponseT")
_PAUSE_FIRST_MS, _PAUSE_MAX_MS = 20, 100
WAITING_MAX = 200
_ASK_AGAIN_S = 1.0
_logger = logging.getLogger(__name__)


class ControllerLink(ActiveController):
    """The way to the controllers of one cluster, shared by all parts of one node that call them."""

    async def call(self, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        """Calls as a client does, but a bug of the controller is an error that passes: it ends that process, and
        another controller will lead.
        """
        try:
            return await super().call(request, timeout_ms)
        except UnknownServerError as error:
            raise NetworkException(str(error)) from error

    async def call_until_answered(self, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        """Calls until an attempt is answered; each attempt has this timeout."""
        pauses = Pauses()
        while True:
            try:
                return await self.call(request, timeout_ms)
            except RetriableApiError:
                await pauses.pause()


class Pauses:
    """The pauses between attempts that fail: 20 ms, doubling up to a tenth of a second."""

    def __init__(self) -> None:
        self._next_ms = _PAUSE_FIRST_MS

    def reset(self) -> None:
        """Begins anew: an attempt has succeeded."""
        self._next_ms = _PAUSE_FIRST_MS

    def next_ms(self) -> int:
        """The length of the next pause."""
        now_ms, self._next_ms = self._next_ms, min(_PAUSE_MAX_MS, 2 * self._next_ms)
        return now_ms

    async def pause(self) -> None:
        await asyncio.sleep(self.next_ms() / 1000)


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

    def tell(self, kind: str, node_ids: Collection[int], reason: str) -> None:
        """Reports an event with the present time, as soon as a controller takes it."""
        self._waiting.append(RecordEventRequest.of_nodes(self._wall_clock_ms(), kind, node_ids, reason))
        self._has_new.set()

    async def run(self) -> None:
        """Sends for ever. Repeats are harmless: a controller records an event once."""
        while True:
            while self._waiting:
                request = self._waiting[0]
                if not await self._is_settled(request):
                    await asyncio.sleep(_ASK_AGAIN_S)
                # Else newer events have pushed it out.
                elif self._waiting[0] is request:
                    self._waiting.popleft()
            self._has_new.clear()
            await self._has_new.wait()

    async def _is_settled(self, request: RecordEventRequest) -> bool:
        """True if the event is recorded, or never will be."""
        try:
            await self._record(request)
        except (RaykaError, TimeoutError) as error:
            if isinstance(error, ApiError) and not error.retriable:
                _logger.warning("%s is not recorded: %r", request, error)
                return True
            _logger.debug("%s is not recorded yet: %r", request, error)
            return False
        return True
