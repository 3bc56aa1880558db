"""The base of async clients: opens a client at its first awaited call, and runs callbacks in the caller's event loop.

Opening looks up the cluster, which blocks, so a thread does the lookup. Invariants: one lookup at a time, however many
tasks wait for it; a cancelled task ends only its own wait; a lookup belongs to no event loop, so it outlives the loop
that began it, and the next loop takes its result; after a failure the next call looks up again.

A callback of the application runs in the event loop of the call that registered it, and may be a coroutine function. An
exception of a callback is logged; a producer raises it from the next `flush` or `close`.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, Self, TypeVar

from rayka.client import io_thread
from rayka.client.arguments import check_callback
from rayka.client.io_thread import ProcessBound
from rayka.client.other_loops import called, poster
from rayka.errors import ClosedError

CoreT = TypeVar("CoreT")


class AioClient(ProcessBound, Generic[CoreT]):
    """The base of async clients: `async with`, and a core."""

    # The sync client that does the work; None: not open yet.
    _core: CoreT | None = None

    def __init__(self, make: Callable[[], CoreT], name: str) -> None:
        self._make = make
        self._name = name
        self._look: Future[CoreT] | None = None
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
        """Opens the client if needed; returns the core. Raises the errors of its constructor, and ClosedError."""
        io_thread.refuse(self._name)
        if self._is_closed:
            raise ClosedError(f"<{self._name} closed>: make a new one")
        self._core = await self._found()
        return self._core

    async def _to_close(self) -> CoreT | None:
        """Marks the client as closed; returns the core, None if it was closed before or never opened."""
        if self._is_closed or io_thread.is_lost():
            return None
        self._is_closed = True
        look = self._look
        if look is None or (look.done() and look.exception() is not None):
            return None
        return await self._found()

    async def _found(self) -> CoreT:
        look = self._look
        if look is None or (look.done() and look.exception() is not None):
            look = self._look = _begin_look(self._make, self._name)
        if not look.done():
            return await asyncio.wrap_future(look)
        # No await here: a turn of the loop at each poll would cost as much as twenty records.
        return look.result()


def _begin_look(make: Callable[[], CoreT], name: str) -> "Future[CoreT]":
    """Begins a lookup in a new thread. The future is marked as running at once, so that no waiter can cancel it."""
    found: Future[CoreT] = Future()
    found.set_running_or_notify_cancel()
    threading.Thread(target=_make_into, args=(found, make), name=f"{name} opening", daemon=True).start()
    return found


def _make_into(found: "Future[CoreT]", make: Callable[[], CoreT]) -> None:
    try:
        found.set_result(make())
    except BaseException as error:
        found.set_exception(error)


logger = logging.getLogger(__name__)


class Reports:
    """The application's callbacks of one async client."""

    def __init__(self) -> None:
        # The first exception of a callback since `take_error`.
        self._error: BaseException | None = None
        # Callbacks that are coroutines under way.
        self._tasks: dict[asyncio.Future[object], None] = {}

    def __repr__(self) -> str:
        return f"<Reports tasks={len(self._tasks)}>"

    def to_loop(self, callback: Callable[..., object], name: str) -> Callable[..., None]:
        """Returns a function, for any thread, that calls the callback in the running loop. Raises TypeError."""
        check_callback(callback, name)
        post = poster()

        def report(*arguments: object) -> None:
            post(partial(self._call, callback, arguments))

        return report

    async def join(self) -> None:
        """Returns when all callbacks due by now have ended, except for the one that awaits this.

        A callback in another loop is left out, because a closed loop would never end it.
        """
        # Queued after the callbacks that wait for this loop.
        await called(lambda end: end())
        loop, current = asyncio.get_running_loop(), asyncio.current_task()
        tasks = [each for each in self._tasks if each is not current and each.get_loop() is loop]
        if tasks:
            await asyncio.wait(tasks)

    def take_error(self) -> BaseException | None:
        """Returns and forgets the first error of a callback."""
        error, self._error = self._error, None
        return error

    def _call(self, callback: Callable[..., object], arguments: tuple[object, ...]) -> None:
        try:
            result = callback(*arguments)
        except Exception as raised:
            self._on_raised(raised)
            return
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(result)
            # A loop keeps no task alive by itself.
            self._tasks[task] = None
            task.add_done_callback(self._on_over)

    def _on_over(self, task: "asyncio.Future[object]") -> None:
        del self._tasks[task]
        if not task.cancelled() and (raised := task.exception()) is not None:
            self._on_raised(raised)

    def _on_raised(self, raised: BaseException) -> None:
        logger.error("a callback raised", exc_info=raised)
        self._error = self._error or raised
