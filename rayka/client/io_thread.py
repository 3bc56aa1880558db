"""The one IO thread of this process: an asyncio loop that all clients share, however many there are.

Invariants: a sync call never waits for itself (it is refused on this thread, and in code that has interrupted a step
which this thread waits for); no callback or task on the loop can end it; Ctrl-C in a waiting thread cancels the work
that the thread waits for; a forked child is refused (`forks`); at exit the loop stops before the interpreter ends.
A blocking or awaited call ends within its documented bound, also if its work does not. A client belongs to its process:
no pickle takes along its threads and connections. Kafka has one `kafka-producer-network-thread` per client instead.
"""

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from copy import copy
from functools import partial
from typing import Any, Generic, NoReturn, Self, TypeVar
from weakref import ref

from rayka import forks
from rayka.errors import RaykaError, UnavailableError
from rayka.protocol.later import Later

ResultT = TypeVar("ResultT")
# A function that makes a coroutine, called on the IO thread: a coroutine made in another thread would never be awaited,
# with a warning, if Ctrl-C came before its submission.
Work = Callable[[], Coroutine[Any, Any, ResultT]]
# A `Work`, or a function that makes a Later, whose callback runs in the step of the loop that brings the result.
BlockingWork = Callable[[], Coroutine[Any, Any, ResultT] | Later[ResultT]]
_STOP_TIMEOUT_S = 2.0


logger = logging.getLogger(__name__)


class InterruptsAStep(TimeoutError):
    """Code that interrupted a step of its own thread made a blocking call, whose wait would never end."""


class _Executor(ThreadPoolExecutor):
    """Runs jobs that would block the loop, such as the lookup of an actor.

    Python's own executor refuses jobs once the main thread has ended, though other threads may go on for hours; each
    later job gets a thread of its own.
    """

    def submit(self, job: Callable[..., ResultT], /, *arguments: Any, **options: Any) -> "Future[ResultT]":
        try:
            return super().submit(job, *arguments, **options)
        except RuntimeError:
            future: Future[ResultT] = Future()
            work = partial(fulfil, future, partial(job, *arguments, **options))
            threading.Thread(target=work, name="rayka-late", daemon=True).start()
            return future


def fulfil(future: "Future[ResultT]", job: Callable[[], ResultT]) -> None:
    """Runs the job and passes its result or exception to the future; does nothing for a cancelled future."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)
            # The error refers to this frame: a client among the job's arguments would live on.
            del future, job


class _IoThread:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_Executor(thread_name_prefix="rayka-work"))
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="rayka-io", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def stop(self) -> None:
        self._is_stopping = True
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        """Runs the loop until `stop`.

        A SystemExit or KeyboardInterrupt in a task or callback, or a call of `loop.stop`, would end the loop for every
        client of the process; the loop is run again, and its other tasks go on.
        """
        asyncio.set_event_loop(self.loop)
        while not self._is_stopping:
            try:
                self.loop.run_forever()
            except BaseException:
                logger.exception("something that ran on rayka's IO thread tried to end it; it goes on")
        self._cancel_all()
        self.loop.close()

    def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


class _Process:
    """This process's IO thread, if it has one."""

    def __init__(self) -> None:
        self.reset()
        atexit.register(self.stop)
        os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Forgets the thread, as after a fork: the parent's thread does not exist in the child."""
        self._lock = threading.RLock()
        self._is_starting = False
        self.thread: _IoThread | None = None
        self.is_ending = False

    def get(self) -> _IoThread:
        thread = self.thread
        if thread is not None and not self.is_ending:
            return thread
        with self._lock:
            if self.is_ending:
                raise RuntimeError("rayka's IO thread has ended with this process; close clients before exit")
            return self.thread or self._start()

    def _start(self) -> _IoThread:
        forks.refuse()
        if self._is_starting:
            raise TimeoutError(
                "a signal handler has interrupted the start of rayka's IO thread, and cannot use it"
            )
        self._is_starting = True
        try:
            forks.own(forks.IO_THREAD)
            self.thread = _IoThread()
        finally:
            self._is_starting = False
        return self.thread

    def stop(self) -> None:
        # Prevents a new thread: it could not start while the interpreter ends, and callers would wait for it.
        self.is_ending = True
        if self.thread is not None:
            self.thread.stop()
            self.thread = None


_process = _Process()


class _StepLocks:
    """The step locks of this process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Replaced and never changed, so that it is read without a lock.
        self._locks: tuple[ref[Any], ...] = ()

    def new(self) -> Any:
        made = threading.RLock()
        with self._lock:
            self._locks = (*(each for each in self._locks if each() is not None), ref(made))
        return made

    def is_any_held(self) -> bool:
        """Whether the caller's own thread holds a step lock, further up in its stack."""
        return any(ownership(lock)() for each in self._locks if (lock := each()) is not None)


def ownership(lock: Any) -> Callable[[], bool]:
    """The function that says whether the caller's own thread holds the lock; `threading.Condition` uses the same."""
    is_owned: Callable[[], bool] = lock._is_owned
    return is_owned


_step_locks = _StepLocks()


def step_lock() -> Any:
    """A reentrant lock that a thread holds for a short step, and that the IO thread takes too.

    A signal handler or a finalizer may interrupt its own thread within such a step and enters the lock again. The
    handler must not change the state of the step; a wait for the IO thread is refused there (`refuse`).
    """
    return _step_locks.new()


def loop() -> asyncio.AbstractEventLoop:
    """The loop of all clients of this process; started by the first call."""
    return _process.get().loop


def is_current() -> bool:
    """Whether the caller runs on the IO thread, as delivery callbacks do."""
    return _process.thread is not None and _process.thread.is_current


def is_lost() -> bool:
    """Whether the IO thread has ended with the process, or this is a forked child: no client needs a close any more."""
    return _process.is_ending or forks.is_cut_off()


def refuse(what: str) -> None:
    """Refuses a wait for the IO thread that would never end; `what` names the call in the error.

    Raises RuntimeError on the IO thread itself; UnavailableError in a forked child, which has no IO thread;
    InterruptsAStep, a TimeoutError, in a signal handler or a finalizer that has interrupted a step which the IO thread
    waits for.
    """
    forks.refuse()
    if is_current():
        raise RuntimeError(
            f"{what} was called on rayka's IO thread (from a delivery or done callback), which would wait for "
            "itself; hand the work to another thread, or use what the callback was given"
        )
    if _step_locks.is_any_held():
        raise InterruptsAStep(
            f"{what} was called in a signal handler or a finalizer that has interrupted a step of a producer in this "
            "thread, and nothing goes on before it returns: let it set a flag, and act where the program sees the flag"
        )


def call_soon(callback: Callable[..., object], *arguments: Any) -> None:
    """Runs the callback on the IO thread soon; never waits. Drops the callback while the process ends."""
    if not _process.is_ending:
        _process.get().loop.call_soon_threadsafe(callback, *arguments)


def call_next(callback: Callable[..., object], *arguments: Any) -> None:
    """Does the same as `call_soon`, without a wake-up for a caller on the IO thread.

    Not for finalizers: a finalizer may run on the IO thread between the loop's look for ready callbacks and its wait,
    and without a wake-up the callback would run late.
    """
    if is_current():
        loop().call_soon(callback, *arguments)
    else:
        call_soon(callback, *arguments)


def wait_for_turn(timeout_s: float) -> None:
    """Returns when the IO thread has run all callbacks that were queued before, the current one included.

    Raises TimeoutError, and RuntimeError on the IO thread itself.
    """
    refuse("waiting for the IO thread")
    if not wait_for_call(call_soon, timeout_s):
        raise TimeoutError(f"rayka's IO thread was busy for {timeout_s} s; does a callback block it?")


def wall_clock_ms() -> int:
    """Milliseconds since 1970 UTC, for the timestamps of records."""
    return time.time_ns() // 1_000_000


class _Awaited(Generic[ResultT]):
    """Work on the IO thread that another thread waits for.

    The two threads share only a lock: a future on either side, and the turn of the loop between them, would cost them
    twice as much.
    """

    def __init__(self, work: BlockingWork[ResultT]) -> None:
        self._work = work
        self._under_way: asyncio.Future[Any] | None = None
        self._outcome: list[ResultT] = []
        self._error: BaseException | None = None
        self._over = threading.Lock()
        self._over.acquire()

    def begin(self) -> None:
        """Starts the work, on the IO thread."""
        try:
            work = self._work()
        except BaseException as error:
            self._end(error)
            return
        if isinstance(work, Later):
            self._under_way = work
            work.then(self._end)
        else:
            self._under_way = asyncio.get_running_loop().create_task(self._run(work))
            # A task that is cancelled before its first step would leave the inner coroutine unawaited, with a warning.
            self._under_way.add_done_callback(lambda _: work.close())

    def give_up(self) -> None:
        """Cancels the work, on the IO thread, after `begin` if that was called: no thread waits any more."""
        if self._under_way is not None:
            self._under_way.cancel()

    def _end(self, outcome: ResultT | BaseException) -> None:
        if isinstance(outcome, BaseException):
            self._error = outcome
        else:
            self._outcome.append(outcome)
        self._over.release()

    async def _run(self, work: Coroutine[Any, Any, ResultT]) -> None:
        try:
            self._outcome.append(await work)
        except (Exception, asyncio.CancelledError) as error:
            self._error = error
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._over.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Whether the work ends within this time."""
        return acquire_within(self._over, timeout_s)

    def result(self) -> ResultT:
        """Returns the result of the work, or raises its exception."""
        error, self._error = self._error, None
        if error is None:
            return self._outcome[0]
        try:
            if isinstance(error, asyncio.CancelledError):
                raise CancelledError from error
            raise _own(error) if isinstance(error, RaykaError) else error
        finally:
            # The error refers to this frame.
            del error


def _own(error: RaykaError) -> RaykaError:
    """A copy of the error for one caller.

    Caches and frames of the IO thread keep the original, which would keep the caller's frames: a dropped consumer would
    stay in its group.
    """
    own = copy(error)
    own.__cause__, own.__suppress_context__ = error.__cause__, True
    return own


def submit(work: Work[ResultT]) -> "Future[ResultT]":
    """Runs the work on the IO thread; cancelling the future cancels the work.

    Raises RuntimeError on the IO thread itself, and when the process ends; UnavailableError in a forked child.
    """
    own_loop = _loop_for(work)
    return asyncio.run_coroutine_threadsafe(work(), own_loop)


def wait_for_call(begin: Callable[[Callable[[], None]], object], timeout_s: float | None) -> bool:
    """Passes a callback to `begin`; blocks until any thread has called it. False after `timeout_s`."""
    called = threading.Lock()
    called.acquire()
    begin(called.release)
    return acquire_within(called, timeout_s)


def acquire_within(lock: threading.Lock, timeout_s: float | None) -> bool:
    """Acquires the lock; False after `timeout_s`. None, or more than a lock can wait, means no timeout."""
    if timeout_s is None or timeout_s > threading.TIMEOUT_MAX:
        return lock.acquire()
    return lock.acquire(timeout=max(timeout_s, 0.0))


def run(work: BlockingWork[ResultT], timeout_s: float | None, slack_s: float = 0.0) -> ResultT:
    """Runs the work on the IO thread and waits for its result.

    Raises TimeoutError after `timeout_s` and `slack_s` more; None: the work has a deadline of its own. The work is
    cancelled then, and when Ctrl-C or another signal's exception ends the wait. The slack consists of separate waits: a
    process that was stopped (Ctrl-Z, a frozen machine) may find one wait over when it continues, and its IO thread
    needs the time of another. Raises like `submit`.
    """
    own_loop, awaited = _loop_for(work), _Awaited(work)
    try:
        own_loop.call_soon_threadsafe(awaited.begin)
        if not any(awaited.wait(each) for each in (timeout_s, slack_s / 2, slack_s / 2)):
            raise TimeoutError
    except BaseException:
        own_loop.call_soon_threadsafe(awaited.give_up)
        raise
    return awaited.result()


def name_of(work: BlockingWork[Any]) -> str:
    """The name of the work in errors: the function's own name."""
    function = work.func if isinstance(work, partial) else work
    return str(getattr(function, "__name__", "a blocking call"))


def _loop_for(work: BlockingWork[Any]) -> asyncio.AbstractEventLoop:
    """The loop for the work. Raises like `refuse`."""
    refuse(name_of(work))
    return loop()


# ---- Bounded calls of clients ----------------------------------------------------------------------------------------

# Lets a coroutine that ends by itself at the bound raise its better message.
SLACK_S = 1.0


def wait_for(
    work: BlockingWork[ResultT], timeout_ms: float, *, caller: object, slack_s: float = SLACK_S
) -> ResultT:
    """The work's result.

    Raises UnavailableError, naming the work and the caller, when the work takes longer. The work is cancelled then, and
    when Ctrl-C ends the wait.
    """
    try:
        return run(work, timeout_ms / 1000, slack_s)
    except InterruptsAStep:
        raise
    except TimeoutError as error:
        raise _late(work, timeout_ms, caller) from error


async def await_for(work: Work[ResultT], timeout_ms: float, *, caller: object) -> ResultT:
    """Awaits the work's result in the caller's event loop, with the bound and the error of `wait_for`.

    Cancelling the caller's task cancels the work.
    """
    try:
        async with asyncio.timeout(timeout_ms / 1000 + SLACK_S):
            return await asyncio.wrap_future(submit(work))
    except InterruptsAStep:
        raise
    except TimeoutError as error:
        raise _late(work, timeout_ms, caller) from error


def _late(work: BlockingWork[Any], timeout_ms: float, caller: object) -> UnavailableError:
    return UnavailableError(
        f"{caller}: {name_of(work)} did not end within {timeout_ms:g} ms; do the cluster's nodes answer? "
        "see `rayka status`"
    )


class ProcessBound:
    """Refuses to be pickled, and so to be passed to a Ray task or actor, with advice."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled, as it belongs to this process; make one where it is used, in the Ray task "
            "or actor itself, from the name of the cluster"
        )


class SyncClient(ProcessBound):
    """The base of sync clients: `with` closes them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends."""
