"""The budget of one logical call: attempts until a deadline, with growing pauses between them.

Kafka: ExponentialBackoff (G18): 100 ms, doubling up to 1000 ms, 20 % jitter.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from rayka.client.bootstrap import ClientConfig

JITTER = 0.2
SOON_MS = 10
# Attempts; a node that still does not know of its leadership afterwards may never learn of it.
SOON_MAX = 4
TELL_AFTER_S = 3.0

logger = logging.getLogger(__name__)


class Backoff:
    """The pause after the n-th failure in a row."""

    __slots__ = ("_first_ms", "_max_ms", "_random")

    def __init__(self, config: ClientConfig, random: Random) -> None:
        self._first_ms = config.retry_backoff_ms
        self._max_ms = config.retry_backoff_max_ms
        self._random = random

    def pause_ms(self, failure_count: int) -> float:
        """The pause after `failure_count` failures (from 1), jittered by up to 20 % to either side."""
        unjittered_ms = min(self._first_ms << min(failure_count - 1, 30), self._max_ms)
        return unjittered_ms * self._random.uniform(1 - JITTER, 1 + JITTER)

    def soon_ms(self, failure_count: int) -> float:
        """A short pause for a node whose metadata lag behind the caller's: 10 ms, doubling up to the first pause."""
        unjittered_ms = min(SOON_MS << min(failure_count - 1, 30), self._first_ms)
        return unjittered_ms * self._random.uniform(1 - JITTER, 1 + JITTER)


class Retry:
    """The attempts of one call. Created on the loop of the attempts."""

    __slots__ = ("_backoff", "_deadline_s", "_failure_count", "_loop")

    def __init__(self, timeout_ms: float, backoff: Backoff) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline_s = self._loop.time() + timeout_ms / 1000
        self._backoff = backoff
        self._failure_count = 0

    def __repr__(self) -> str:
        return f"<Retry failures={self._failure_count} remaining_ms={self.remaining_ms}>"

    @property
    def remaining_ms(self) -> int:
        """Milliseconds left until the deadline; at least 1, so that it is a valid timeout."""
        return max(1, int((self._deadline_s - self._loop.time()) * 1000))

    async def pause(self) -> bool:
        """Waits before the next attempt; returns False at once if the deadline would pass during the pause."""
        self._failure_count += 1
        pause_s = self._backoff.pause_ms(self._failure_count) / 1000
        if self._loop.time() + pause_s >= self._deadline_s:
            return False
        await asyncio.sleep(pause_s)
        return True


@contextmanager
def telling(awaited: Callable[[], str], after_s: float = TELL_AFTER_S) -> Iterator[None]:
    """Logs one warning (a command shows it on stderr) if the block takes longer than `after_s`; `awaited` words it."""
    timer = asyncio.get_running_loop().call_later(after_s, lambda: logger.warning("%s", awaited()))
    try:
        yield
    finally:
        timer.cancel()
