"""Every point of a call at which a signal handler's exception can come: Python looks for signals when a function begins
and when a call into C has returned."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C at one point of a call."""


def raising_at(point: int, call: Callable[[], ResultT], *, within: str) -> tuple[ResultT | None, bool]:
    """What the call returns, and whether there is a point of this number: Ctrl-C comes there. Python drops what is
    raised while it frees an object, so the call may return in spite of that.
    `within`: only points in files below this directory count.
    """

    def interrupt() -> None:
        nonlocal has_come
        has_come = True
        raise Interrupted

    has_come = False
    try:
        result = calling_at(point, interrupt, call, within=within)
    except Interrupted:
        return None, True
    return result, has_come


def calling_at(
    point: int, handler: Callable[[], object], call: Callable[[], ResultT], *, within: str
) -> ResultT:
    """What the call returns; the handler is called at the point with this number."""
    left = point

    def look(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(within):
            return
        left -= 1
        if left < 0:
            sys.setprofile(None)
            handler()

    try:
        sys.setprofile(look)
        return call()
    finally:
        sys.setprofile(None)
