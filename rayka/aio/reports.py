"""The application's callbacks of an async client: they run in the event loop of the call that brought them, and may be
coroutines. What one raises is logged; a producer raises it from the next `flush` or `close`.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable
from functools import partial

from rayka.client.arguments import check_callback
from rayka.client.other_loops import called, poster

logger = logging.getLogger(__name__)


class Reports:
    """See the module."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._tasks: dict[asyncio.Future[object], None] = {}

    def __repr__(self) -> str:
        return f"<Reports tasks={len(self._tasks)}>"

    def to_loop(self, callback: Callable[..., object], name: str) -> Callable[..., None]:
        """What has the callback called in the running loop, from any thread. Raises TypeError that names it."""
        check_callback(callback, name)
        post = poster()

        def report(*arguments: object) -> None:
            post(partial(self._call, callback, arguments))

        return report

    async def join(self) -> None:
        """Returns when all callbacks are over whose time had come, but for the one that awaits this.

        A callback in another loop is left out: a loop that was closed never ends it.
        """
        await called(lambda end: end())  # behind those that wait
        loop, current = asyncio.get_running_loop(), asyncio.current_task()
        tasks = [each for each in self._tasks if each is not current and each.get_loop() is loop]
        if tasks:
            await asyncio.wait(tasks)

    def take_error(self) -> BaseException | None:
        """What one of them raised since the last time."""
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
            self._tasks[task] = None  # a loop keeps no task alive by itself
            task.add_done_callback(self._on_over)

    def _on_over(self, task: "asyncio.Future[object]") -> None:
        del self._tasks[task]
        if not task.cancelled() and (raised := task.exception()) is not None:
            self._on_raised(raised)

    def _on_raised(self, raised: BaseException) -> None:
        logger.error("a callback raised", exc_info=raised)
        self._error = self._error or raised
