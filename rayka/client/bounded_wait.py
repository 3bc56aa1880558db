"""The wait of a call for a coroutine on the IO thread, blocking or awaited. It ends within the bound that the call
documents, also when the coroutine would not end by itself.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from rayka.client import io_thread
from rayka.errors import UnavailableError

ResultT = TypeVar("ResultT")
SLACK_S = 1.0  # for coroutines that end by themselves at the bound, with a better message


def wait_for(
    coroutine: Coroutine[Any, Any, ResultT], timeout_ms: float, *, caller: object, slack_s: float = SLACK_S
) -> ResultT:
    """The coroutine's result. Raises UnavailableError, which names it and the caller, when it takes longer; then, and
    when Ctrl-C ends the wait, it is cancelled.
    """
    try:
        return io_thread.run(coroutine, timeout_ms / 1000, slack_s)
    except TimeoutError as error:
        raise _late(coroutine, timeout_ms, caller) from error


async def await_for(
    coroutine: Coroutine[Any, Any, ResultT], timeout_ms: float, *, caller: object, slack_s: float = SLACK_S
) -> ResultT:
    """As `wait_for`, in the event loop of the caller, which goes on meanwhile; when its task is cancelled, so is the
    coroutine.
    """
    try:
        async with asyncio.timeout(timeout_ms / 1000 + slack_s):
            return await asyncio.wrap_future(io_thread.submit(coroutine))
    except TimeoutError as error:
        raise _late(coroutine, timeout_ms, caller) from error


def _late(coroutine: Coroutine[Any, Any, Any], timeout_ms: float, caller: object) -> UnavailableError:
    awaited = getattr(coroutine, "__name__", "what was awaited")
    return UnavailableError(
        f"{caller}: {awaited} did not end within {timeout_ms:g} ms; do the cluster's nodes answer? see `rayka status`"
    )
