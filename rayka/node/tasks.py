"""A node's background tasks: kept in insertion order, watched, and ended together.

Invariants: a task is referred to until it ends, so it is never collected while it runs; an exception that
no code expected is reported to `crash` once, whatever follows it, because a node whose task died in silence
would look alive. Order never depends on addresses, so a seeded run repeats. Kafka has `ShutdownableThread`
and `FaultHandler` for this.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """The tasks of one node."""

    def __init__(self, crash: Callable[[BaseException], None]) -> None:
        self._crash = crash
        self._running: dict[asyncio.Task[Any], None] = {}
        self._has_crashed = False

    def __repr__(self) -> str:
        return f"<Tasks {[task.get_name() for task in self._running]}>"

    def start(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs the coroutine in the background, under a name that shows in a debugger."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._running[task] = None
        task.add_done_callback(self._on_done)
        return task

    def crash(self, error: BaseException) -> None:
        """Reports an exception that no code expected; only the first one counts."""
        if not self._has_crashed:
            self._has_crashed = True
            self._crash(error)

    def abandon(self) -> None:
        """Cancels all without waiting: what the end of the process does."""
        self._has_crashed = True  # what they still say is of no interest
        for task in self._running:
            task.cancel()

    async def stop(self) -> None:
        """Cancels all, in the order in which they were started, and waits until they have ended."""
        tasks = [task for task in self._running if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        del self._running[task]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.crash(error)
