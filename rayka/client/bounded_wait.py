"""The wait of a call for its work on the IO thread, blocking or awaited. It ends within the bound that the call
documents, also when the work would not end by itself.
"""

import asyncio
from typing import Any, TypeVar

from rayka.client import io_thread
from rayka.client.io_thread import BlockingWork, Work
from rayka.errors import UnavailableError

ResultT = TypeVar("ResultT")
SLACK_S = 1.0  # for coroutines that end by themselves at the bound, with a better message


def wait_for(
    work: BlockingWork[ResultT], timeout_ms: float, *, caller: object, slack_s: float = SLACK_S
) -> ResultT:
    """The work's result. Raises UnavailableError, which names it and the caller, when it takes longer; then, and
    when Ctrl-C ends the wait, it is cancelled.
    """
    try:
        return io_thread.run(work, timeout_ms / 1000, slack_s)
    except io_thread.InterruptsAStep:
        raise
    except TimeoutError as error:
        raise _late(work, timeout_ms, caller) from error


async def await_for(work: Work[ResultT], timeout_ms: float, *, caller: object) -> ResultT:
    """As `wait_for`, in the event loop of the caller, which goes on meanwhile; when its task is cancelled, so is the
    work.
    """
    try:
        async with asyncio.timeout(timeout_ms / 1000 + SLACK_S):
            return await asyncio.wrap_future(io_thread.submit(work))
    except io_thread.InterruptsAStep:
        raise
    except TimeoutError as error:
        raise _late(work, timeout_ms, caller) from error


def _late(work: BlockingWork[Any], timeout_ms: float, caller: object) -> UnavailableError:
    return UnavailableError(
        f"{caller}: {io_thread.name_of(work)} did not end within {timeout_ms:g} ms; do the cluster's nodes answer? "
        "see `rayka status`"
    )
