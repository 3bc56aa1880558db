"""A node's background tasks: kept in insertion order, watched, and ended together.

Invariants: a task is referred to until it ends, so it is never collected while it runs; an exception that
no code expected is reported to `crash` once, whatever follows it, because a node whose task died in silence
would look alive. Order never depends on addresses, so a seeded run repeats. Kafka has `ShutdownableThread`
and `FaultHandler` for this.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from rayka.node import clock


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


# Wakes all tasks that wait for news, in the order in which they began to wait.


class Signal:
    """A condition without a state of its own: a waiter looks, waits, and looks again."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}

    def __repr__(self) -> str:
        return f"<Signal waiters={len(self._waiters)}>"

    def notify(self) -> None:
        """There is news."""
        for waiter in self._waiters:
            _wake(waiter)

    async def wait(self, deadline_s: float) -> None:
        """Returns at the next news, or at the deadline on the event loop's clock (infinity: there is none)."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters[waiter] = None
        timer = None if deadline_s == math.inf else loop.call_at(deadline_s, _wake, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            del self._waiters[waiter]


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


# Work on very many items that leaves others their turn of the event loop.


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
ITEMS_PER_TURN = 1_000  # of what costs a few microseconds each
STEPS_PER_TURN = 100  # of what costs a few tens of microseconds each


def _one(_: object) -> int:
    return 1


async def in_turns(
    items: Iterable[ItemT], count: int = ITEMS_PER_TURN, *, weigh: Callable[[ItemT], int] = _one
) -> AsyncIterator[ItemT]:
    """The items; after so many of them others have their turn. One may count as several, by its weight."""
    weight = 0
    for item in items:
        weight += weigh(item)
        yield item
        if weight >= count:
            weight = 0
            await asyncio.sleep(0)


async def result_in_turns(
    steps: Generator[None, Any, ResultT],
    count: int = STEPS_PER_TURN,
    *,
    check: Callable[[], object] = lambda: None,
) -> ResultT:
    """What comes of the steps; after so many of them others have their turn. `check` looks behind each turn whether the
    steps may go on, and raises where they may not.
    """
    try:
        while True:
            for _ in range(count):
                next(steps)
            await asyncio.sleep(0)
            check()
    except StopIteration as end:
        result: ResultT = end.value
        return result


# What keeps failing is said at once and then once a minute: each time would bury the log, only once is overlooked.


_AGAIN_S = 60.0
_KEPT_MAX = 100_000


@dataclass(slots=True)
class _Said:
    at_s: float
    unsaid_count: int = 0


class Repeats:
    """The failures of one part of a node, by what fails; used on its event loop. Of 100,000 the oldest is forgotten."""

    def __init__(self, logger: logging.Logger, level: int = logging.WARNING) -> None:
        self._logger = logger
        self._level = level
        self._said: dict[Hashable, _Said] = {}

    def __repr__(self) -> str:
        return f"<Repeats {list(self._said)}>"

    def failed(self, what: Hashable, message: str) -> None:
        """It has failed, perhaps again."""
        now_s = asyncio.get_running_loop().time()
        said = self._said.get(what)
        if said is not None and now_s < said.at_s + _AGAIN_S:
            said.unsaid_count += 1
            return
        count = said.unsaid_count if said is not None else 0
        again = f" ({count + 1} times in the last {now_s - said.at_s:.0f} s)" if said is not None else ""
        self._said.pop(what, None)
        self._said[what] = _Said(now_s)
        if len(self._said) > _KEPT_MAX:
            del self._said[next(iter(self._said))]
        self._logger.log(self._level, "%s%s", message, again)

    def succeeded(self, what: Hashable) -> None:
        """The next failure is a new one."""
        self._said.pop(what, None)


# The rate at which one kind of work may read and write, in bytes a second for all its tasks together.


# Waiting tasks notice a new rate after this time at most.
LOOK_MS = 1_000


class Pace:
    """A debt of bytes that time pays off at the rate; tasks wait for it, first come, first served. Idle time earns
    nothing.

    Invariant: 0 <= paid <= spent.
    """

    def __init__(self, bytes_per_second: Callable[[], float]) -> None:
        """`bytes_per_second`: the rate, asked for at each look; at least 1."""
        self._bytes_per_second = bytes_per_second
        self._spent_bytes = 0
        self._paid_bytes = 0.0
        self._at_ms = 0

    def __repr__(self) -> str:
        return f"<Pace {self._bytes_per_second():g} B/s owed={self._spent_bytes - self._paid_bytes:.0f}>"

    async def spend(self, size_bytes: int, is_wanted: Callable[[], bool]) -> None:
        """Adds bytes that were read or written; waits until they are paid for, or the work is not wanted any more."""
        self._pay()
        self._spent_bytes += size_bytes
        mine = self._spent_bytes
        await asyncio.sleep(0)
        while (pause_ms := self._pause_ms(mine)) and is_wanted():
            await asyncio.sleep(min(LOOK_MS, pause_ms) / 1000)
            self._pay()

    def _pause_ms(self, up_to_bytes: int) -> int:
        return int(max(0.0, up_to_bytes - self._paid_bytes) * 1000 / self._bytes_per_second())

    def _pay(self) -> None:
        now_ms = clock.now_ms()
        paid_bytes = self._bytes_per_second() * (now_ms - self._at_ms) / 1000
        self._paid_bytes = min(self._spent_bytes, self._paid_bytes + paid_bytes)
        self._at_ms = now_ms
