"""The thread of an async client, and the callbacks that it waits for."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rayka.aio.aio_consumer import CallThread


def called(callback: Callable[[], Any], timeout_s: float = 60) -> None:
    """Has the thread wait for the callback, and raises what that comes to."""

    async def work() -> None:
        thread = CallThread("calls", timeout_s)
        try:
            await asyncio.wrap_future(thread.submit(thread.in_loop(callback)))
        finally:
            thread.end()

    asyncio.run(work())


def test_a_callback_that_does_not_end_is_a_timeout_and_cancels_no_task_that_waits():
    with pytest.raises(TimeoutError, match=r"did not end within 0\.01 s"):
        called(asyncio.Event().wait, timeout_s=0.01)


def test_a_callback_that_was_cancelled_cancels_no_task_that_waits():
    async def is_cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="was cancelled"):
        called(is_cancelled)
