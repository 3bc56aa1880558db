"""The background work of a node: its tasks, and the means by which they wait, take turns and keep to a rate.

`Tasks` keeps, watches and ends the tasks of one node. `Signal` wakes those that wait for news. `in_turns` and
`result_in_turns` leave other work its turn of the event loop. `Pace` bounds the bytes of one kind of work. `Repeats`
logs a failure that lasts.

Order never depends on addresses, so a seeded run repeats. Kafka has `ShutdownableThread`, `FaultHandler` and
`Throttler`.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from rayka import clock

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
# Items that cost a few microseconds each.
ITEMS_PER_TURN = 1_000
# Steps that cost a few tens of microseconds each.
STEPS_PER_TURN = 100
# Waiting tasks notice a new rate after this time at most.
LOOK_MS = 1_000
_AGAIN_S = 60.0
_KEPT_MAX = 100_000


class Tasks:
    """The tasks of one node, in the order in which they were started.

    Invariants: a task is referred to until it ends, so it is never collected while it runs. An exception that no code
    expected is reported to `crash` once, whatever follows it, because a node whose task died in silence would look
    alive.
    """

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
        """Cancels all without waiting, as the end of the process does. Later exceptions are not reported."""
        self._has_crashed = True
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


# ---- Waiting ---------------------------------------------------------------------------------------------------------


class Signal:
    """A condition without a state: a waiter looks, waits, and looks again. Waiters wake in the order of their waits."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}

    def notify(self) -> None:
        """Wakes all that wait."""
        for waiter in self._waiters:
            _wake(waiter)

    async def wait(self, deadline_s: float) -> None:
        """Returns at the next `notify`, or at the deadline on the event loop's clock; infinity is no deadline."""
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


# ---- Turns of the event loop -----------------------------------------------------------------------------------------


def _one(_: object) -> int:
    return 1


async def in_turns(
    items: Iterable[ItemT], count: int = ITEMS_PER_TURN, *, weigh: Callable[[ItemT], int] = _one
) -> AsyncIterator[ItemT]:
    """Yields the items; after `count` of them other work has its turn. An item counts as many times as it weighs."""
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
    """Returns the result of the steps; after `count` of them other work has its turn. After each turn `check` raises if
    the steps may not go on.
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


# ---- Rates -----------------------------------------------------------------------------------------------------------


class Pace:
    """The rate in bytes per second of one kind of work, shared by its tasks.

    Work adds to a debt, which time pays off at the rate. Tasks wait for their part, first come, first served. Idle time
    earns nothing. Invariant: 0 <= paid <= spent.
    """

    def __init__(self, bytes_per_second: Callable[[], float]) -> None:
        """`bytes_per_second` gives the rate, at least 1; it is called at each look."""
        self._bytes_per_second = bytes_per_second
        self._spent_bytes = 0
        self._paid_bytes = 0.0
        self._at_ms = 0

    def __repr__(self) -> str:
        return f"<Pace {self._bytes_per_second():g} B/s owed={self._spent_bytes - self._paid_bytes:.0f}>"

    async def spend(self, size_bytes: int, is_wanted: Callable[[], bool]) -> None:
        """Adds bytes that were read or written; waits until they are paid, or until the work is not wanted any more."""
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


# ---- Failures that last ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Logged:
    at_s: float
    # The number of failures since.
    unlogged_count: int = 0


class Repeats:
    """Logs the failures of one part of a node, by key: at once, then once a minute while they last.

    A line for each failure would bury the log, a single one is overlooked. Of more than 100,000 keys the oldest is
    forgotten.
    """

    def __init__(self, logger: logging.Logger, level: int = logging.WARNING) -> None:
        self._logger = logger
        self._level = level
        # Empty while nothing fails: a caller on a hot path need not call `succeeded` then.
        self.failing: dict[Hashable, _Logged] = {}

    def failed(self, key: Hashable, message: str) -> None:
        """Logs the failure unless it was logged within the last minute."""
        now_s = asyncio.get_running_loop().time()
        logged = self.failing.get(key)
        if logged is not None and now_s < logged.at_s + _AGAIN_S:
            logged.unlogged_count += 1
            return
        count = logged.unlogged_count if logged is not None else 0
        again = f" ({count + 1} times in the last {now_s - logged.at_s:.0f} s)" if logged is not None else ""
        self.failing.pop(key, None)
        self.failing[key] = _Logged(now_s)
        if len(self.failing) > _KEPT_MAX:
            del self.failing[next(iter(self.failing))]
        self._logger.log(self._level, "%s%s", message, again)

    def succeeded(self, key: Hashable) -> None:
        """Forgets the failure: the next one is logged at once."""
        self.failing.pop(key, None)
