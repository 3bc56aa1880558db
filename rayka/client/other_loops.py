"""Calls into the event loops of the application, from the IO thread or any other, with one wake-up for many calls.

`loop.call_soon_threadsafe` wakes the loop by a write to a socket for each call: ten thousand deliveries that are
awaited one by one would be ten thousand writes on the IO thread. Here the calls to a loop wait in one mailbox, which
wakes the loop only when it was empty. Invariants: calls are made in the order in which they were posted; the loop does
other work after a thousand of them; a post to a closed loop drops all waiting calls of that loop.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary, ref

Call = Callable[[], object]
_TURN_CALLS_MAX = 1_000


class _Mailbox:
    """The calls that wait for one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # The mailbox is a value of a weak dictionary and must not keep its key alive.
        self._loop = ref(loop)
        self._calls: deque[Call] = deque()
        self._is_woken = False

    def post(self, call: Call) -> None:
        self._calls.append(call)
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def _wake(self) -> None:
        loop = self._loop()
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._run)
        except RuntimeError:
            # The loop was closed.
            self._calls.clear()
            self._is_woken = False

    def _run(self) -> None:
        # Reset before the calls are read: a call posted later must wake the loop again.
        self._is_woken = False
        try:
            for _ in range(min(len(self._calls), _TURN_CALLS_MAX)):
                self._calls.popleft()()
        finally:
            # Also after a call that raised: the others are made all the same.
            if self._calls and not self._is_woken:
                self._is_woken = True
                self._wake()


_mailboxes: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox]" = WeakKeyDictionary()
_lock = threading.RLock()


def poster() -> Callable[[Call], None]:
    """Returns a function, for any thread, that has the running loop make a call soon."""
    loop = asyncio.get_running_loop()
    with _lock:
        mailbox = _mailboxes.get(loop)
        if mailbox is None:
            mailbox = _mailboxes[loop] = _Mailbox(loop)
    return mailbox.post


async def called(begin: Callable[[Call], object]) -> None:
    """Passes a callback to `begin`; returns when any thread has called the callback."""
    over = asyncio.get_running_loop().create_future()
    begin(partial(poster(), partial(_set, over)))
    await over


def _set(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)
