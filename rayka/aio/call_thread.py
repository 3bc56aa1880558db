"""The thread of one async client whose sync calls wait: it makes them one after another, off the event loop.

Invariants: calls are made in the order in which they were handed over; while the thread waits for a callback of the
application, which runs in the event loop, it makes the calls that the callback awaits. The thread ends with `end`, or
when the client is collected.
"""

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from rayka import forks
from rayka.client import io_thread

ResultT = TypeVar("ResultT")
_Job = Callable[[], object] | None


class CallThread:
    """See the module."""

    def __init__(self, name: str, callback_timeout_s: float) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._callback_timeout_s = callback_timeout_s
        self._thread = threading.Thread(target=_make_calls, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<CallThread {self._thread.name}>"

    def end(self) -> None:
        """What was handed over is done, and nothing more."""
        self._jobs.put(None)

    def submit(self, call: Callable[[], ResultT]) -> "Future[ResultT]":
        """Makes the call when those before are over. Raises UnavailableError in a forked child."""
        forks.refuse()
        future: Future[ResultT] = Future()
        self._jobs.put(partial(io_thread.fulfil, future, call))
        return future

    def in_loop(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        """What has the running loop call the callback, which may be a coroutine function, and waits for it in this
        thread. Raises what it raises, and TimeoutError after its time; never CancelledError, which would cancel the
        task that waits for the call.
        """
        loop = asyncio.get_running_loop()

        def called(*arguments: Any) -> Any:
            work = _result_of(callback, arguments)
            try:
                over = asyncio.run_coroutine_threadsafe(work, loop)
            except RuntimeError:  # the loop was closed
                work.close()
                raise
            over.add_done_callback(lambda _: self._jobs.put(_nothing))
            self._work_until(over)
            if over.cancelled():
                raise RuntimeError(f"the callback {callback!r} was cancelled, or its client closed meanwhile")
            return over.result(0)

        return called

    def _work_until(self, over: "Future[Any]") -> None:
        """Raises TimeoutError."""
        deadline_s = time.monotonic() + self._callback_timeout_s
        while not over.done():
            try:
                job = self._jobs.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except Empty:
                over.cancel()
                raise TimeoutError(
                    f"a callback did not end within {self._callback_timeout_s:g} s, and was cancelled"
                ) from None
            if job is None:  # for the thread, when this is over
                self._jobs.put(None)
                over.cancel()
                return
            job()


async def _result_of(callback: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    returned = callback(*arguments)
    return await returned if inspect.isawaitable(returned) else returned


def _nothing() -> None:
    """Wakes the thread."""


def _make_calls(jobs: "SimpleQueue[_Job]") -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # or it would keep its client until the next one
