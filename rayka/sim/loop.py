"""An asyncio event loop on virtual time: nothing waits, the clock jumps to the next timer.

Invariants: callbacks run in the order in which they became ready, timers of one instant in the order in which they
were made; time never passes while a callback is ready; no thread, no selector, no file descriptor. So a run depends on
nothing but what its callbacks do. Time is counted in whole microseconds. A loop with nothing left to run while a task
waits is a `Deadlock`, one that never lets time pass a `Livelock`. Kafka: `MockTime` and the event queue of
`RaftEventSimulationTest`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from threading import get_ident
from typing import Any, NoReturn

import msgspec

# A process, if there were one: whatever a node's incarnation, or a client, runs in the simulator belongs to one.
#
# The process is found through a context variable, which every task and timer inherits from what started it. So a
# whole process can be paused (its callbacks are kept, in order) or be gone (it reaches no disk and no network).


class Process:
    """One incarnation of one node, or a client. `watches` are called after each of its callbacks; `context` is that of
    its tasks.
    """

    __slots__ = (
        "context", "incarnation", "is_alive", "is_paused", "node_id", "resumed_us", "watches", "withheld",
    )  # fmt: skip

    def __init__(self, node_id: int, incarnation: int) -> None:
        self.context = Context()
        self.context.run(PROCESS.set, self)
        self.node_id = node_id
        self.incarnation = incarnation
        self.is_alive = True
        self.is_paused = False
        self.resumed_us = 0
        self.withheld: deque[Any] = deque()
        self.watches: Sequence[Callable[[], None]] = ()

    def __repr__(self) -> str:
        state = "" if self.is_alive else " gone"
        return f"<Process of node {self.node_id} #{self.incarnation}{' paused' * self.is_paused}{state}>"


PROCESS: ContextVar[Process | None] = ContextVar("rayka.sim.loop", default=None)


START_US = 1_000_000  # the clock's reading at the begin; nothing may depend on it being zero
_CALLBACKS_AT_ONE_INSTANT_MAX = 20_000
_CANCELLED_TIMERS_MAX = 5_000
_EPOCH_MS = 1_700_000_000_000  # the wall clock at the begin
_NEVER_S = 1e9
_ROUNDS_OF_CANCELLING = 3
_TASKS_MIN = 1_000


class Deadlock(Exception):
    """A task waits, and nothing is left that could end it."""


class Livelock(Exception):
    """Callbacks wake each other for ever, and time stands still."""


class Escape(Exception):
    """The code tried to leave the simulation by a thread."""


class Handle(msgspec.Struct, eq=False):
    """A callback to be run; asyncio's Handle and TimerHandle, as far as its users go. A struct, because one is made for
    each callback, and a class of Python takes twice as long.
    """

    loop: "VirtualLoop"
    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: Context
    when_us: int  # 0: it is ready
    is_cancelled: bool = False

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self.args = ()
            if self.when_us:
                self.loop.on_timer_cancelled()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return (self.when_us + 0.5) / 1e6


# What this loop leaves out of the abstract one (sockets, files, signals) raises there; its handles are its own.
_AbstractLoop: Any = asyncio.AbstractEventLoop


class VirtualLoop(_AbstractLoop):  # type: ignore[misc]
    """The loop of one simulation. `run_until` and `run_until_complete` drive it."""

    def __init__(self) -> None:
        self.now_us = START_US
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[int, int, Handle]] = []
        self._timer_count = 0
        self._cancelled_count = 0
        self._instant_us, self._budget = 0, 0
        self._is_closed = False
        self._thread_id = get_ident()
        self._tasks: list[asyncio.Task[Any]] = []  # in the order of their making; some have ended
        self._tasks_max = _TASKS_MIN

    def __repr__(self) -> str:
        return f"<VirtualLoop now_us={self.now_us} ready={len(self._ready)} timers={len(self._timers)}>"

    # ---- Time --------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        # Half a microsecond on top: a wait until n ms must be over at n ms also after division and multiplication.
        return (self.now_us + 0.5) / 1e6

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    @property
    def wall_clock_ms(self) -> int:
        """The wall clock of a machine whose clock has not jumped."""
        return _EPOCH_MS + self.now_ms

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(self, callback, args, copy_context() if context is None else context, 0)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at_us(self.now_us + int(delay * 1e6 + 0.75), callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        when_us = int(min(when, _NEVER_S) * 1e6 + 0.25)
        # A woken task must find that it is time, however it counts.
        if (when_us + 0.4) / 1e6 < when < _NEVER_S:
            when_us += 1
        return self.call_at_us(when_us, callback, *args, context=context)

    def call_at_us(
        self, when_us: int, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Schedules a callback, like `call_at`, in microseconds of this loop's clock."""
        handle = Handle(self, callback, args, copy_context() if context is None else context, when_us)
        self._timer_count += 1
        heappush(self._timers, (when_us, self._timer_count, handle))
        return handle

    def on_timer_cancelled(self) -> None:
        """Cancelled timers stay in the heap until they are too many."""
        self._cancelled_count += 1
        if self._cancelled_count > _CANCELLED_TIMERS_MAX and self._cancelled_count * 2 > len(self._timers):
            self._timers = [each for each in self._timers if not each[2].is_cancelled]
            heapify(self._timers)
            self._cancelled_count = 0

    # ---- Running -----------------------------------------------------------------------------------------------------

    def run_until(self, when_us: int, is_done: Callable[[], bool] | None = None) -> None:
        """Runs everything due up to that time, or until `is_done`, which is asked whenever time is about to pass."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            while True:
                self._run_ready()
                if is_done is not None and is_done():
                    return
                if not self._advance(when_us):
                    self.now_us = max(self.now_us, when_us)
                    return
        finally:
            asyncio._set_running_loop(before)

    def run_until_complete(self, future: Any) -> Any:
        """The result of a coroutine or future. Raises Deadlock when nothing is left that could complete it."""
        awaited: asyncio.Future[Any] = asyncio.ensure_future(future, loop=self)
        self.run_until(1 << 62, awaited.done)
        if not awaited.done():
            raise Deadlock(f"{awaited!r} waits, and no callback and no timer is left")
        return awaited.result()

    def _run_ready(self) -> None:
        ready = self._ready
        if self.now_us != self._instant_us:
            self._instant_us, self._budget = self.now_us, _CALLBACKS_AT_ONE_INSTANT_MAX
        budget = self._budget
        while ready:
            handle = ready.popleft()
            if handle.is_cancelled:
                continue
            budget -= 1
            context = handle.context
            process: Process | None = context.get(PROCESS)
            if process is not None and process.is_paused:
                process.withheld.append(handle)
                continue
            context.run(handle.callback, *handle.args)
            if process is not None:
                for watch in process.watches:
                    watch()
            if budget <= 0:
                raise Livelock(
                    f"{_CALLBACKS_AT_ONE_INSTANT_MAX} callbacks at {self.now_us} us; the last was {handle.callback!r}"
                )
        self._budget = budget

    def _advance(self, limit_us: int) -> bool:
        """Lets time pass until the next timer, whose callback is then ready; False if that is after the limit."""
        timers = self._timers
        while timers:
            when_us, _, handle = timers[0]
            if handle.is_cancelled:
                heappop(timers)
                self._cancelled_count -= 1
                continue
            if when_us > limit_us:
                return False
            now_us = self.now_us = max(self.now_us, when_us)
            while timers and timers[0][0] <= now_us:
                due = heappop(timers)[2]
                if due.is_cancelled:
                    self._cancelled_count -= 1
                else:
                    due.when_us = 0
                    self._ready.append(due)
            return True
        return False

    def resume(self, process: Process) -> None:
        """The process goes on: what was withheld becomes ready, in its order."""
        process.is_paused = False
        process.resumed_us = self.now_us
        self._ready.extend(process.withheld)
        process.withheld.clear()

    # ---- Futures and tasks -------------------------------------------------------------------------------------------

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[Any]":
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        # A callback for the end of each would be a tenth of all callbacks.
        if len(self._tasks) >= self._tasks_max:
            self._tasks = [each for each in self._tasks if not each.done()]
            self._tasks_max = max(2 * len(self._tasks), _TASKS_MIN)
        self._tasks.append(task)
        return task

    def cancel_all(self) -> None:
        """Cancels every task that is left, and runs them to their ends."""
        self._timers.clear()
        for task in self._tasks:
            task.cancel()
        for _ in range(_ROUNDS_OF_CANCELLING):
            with suppress(Exception):
                self.run_until(self.now_us)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._is_closed

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Nothing to tell: the nodes watch their own tasks, and what a callback raises ends the run."""

    # ---- What would leave the simulation -----------------------------------------------------------------------------

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Handle:
        """Schedules like `call_soon`: clients call it also on the loop's own thread. No other thread may."""
        if get_ident() != self._thread_id:
            raise Escape(f"call_soon_threadsafe({callback!r}): another thread reaches into the simulation")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:
        raise Escape(f"run_in_executor({func!r}): a thread is no part of the simulation")
