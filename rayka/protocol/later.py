"""A future that can hand its result over in the step that brings it.

asyncio's futures call back a turn of the event loop later, and a task goes on in that turn: on the way of a small
request each turn costs about as much as the work that it does. A coroutine may await this one as any other. Invariants:
it ends once, with a result or an exception, or is given up; `then` has one taker, which is called once, and raises
nothing. Kafka: `RequestFuture`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def _nothing() -> None:
    pass


class Later(asyncio.Future[ResultT]):
    """See the module. `on_given_up` is called when nothing waits for the result any more: `cancel` says so."""

    __slots__ = ("_observers", "_on_end", "_on_given_up")

    def __init__(self, on_given_up: Callable[[], object] = _nothing) -> None:
        super().__init__()
        self._on_given_up = on_given_up
        self._on_end: Callable[[ResultT | BaseException], object] | None = None
        self._observers: tuple[Callable[[ResultT | BaseException], object], ...] = ()

    def then(self, on_end: Callable[[ResultT | BaseException], object]) -> None:
        """Calls it with the result, or with the exception: at once when it has come, else in the step that ends this.
        Instead of an await.
        """
        if self.done():
            on_end(_outcome_of(self))
        else:
            self._on_end = on_end

    def observe(self, on_end: Callable[[ResultT | BaseException], object]) -> None:
        """As `then`, for what looks on, any number of them: called before the one that waits, and with CancelledError
        when this is given up.
        """
        if self.done():
            on_end(_outcome_of(self))
        else:
            self._observers = (*self._observers, on_end)

    def end(self, outcome: ResultT | BaseException) -> None:
        """The result, or the exception, is here; without effect on what is over."""
        if self.done():
            return
        on_end, observers, self._on_end, self._observers = self._on_end, self._observers, None, ()
        # It refers to this one, perhaps: the garbage collector would have to find that.
        self._on_given_up = _nothing
        if on_end is not None:
            self.set_result(None)  # type: ignore[arg-type]  # nothing else will ask for it
        elif not isinstance(outcome, BaseException):
            self.set_result(outcome)
        elif isinstance(outcome, asyncio.CancelledError):
            super().cancel()
        else:
            self.set_exception(outcome)
        for observer in observers:
            observer(outcome)
        if on_end is not None:
            on_end(outcome)

    def cancel(self, msg: Any = None) -> bool:
        """Gives it up, unless it is over."""
        is_given_up = super().cancel(msg)
        if is_given_up:
            on_given_up, observers, self._observers = self._on_given_up, self._observers, ()
            self._on_given_up, self._on_end = _nothing, None
            on_given_up()
            for observer in observers:
                observer(asyncio.CancelledError())
        return is_given_up

    def fail(self, error: BaseException) -> None:
        """Gives it up, unless it is over; what waits for it gets this exception instead."""
        if not self.done():
            on_given_up, self._on_given_up = self._on_given_up, _nothing
            on_given_up()
            self.end(error)


def later_of(awaitable: Awaitable[ResultT]) -> Later[ResultT]:
    """The same as a `Later`; a coroutine runs in a task."""
    if isinstance(awaitable, Later):
        return awaitable
    future = asyncio.ensure_future(awaitable)
    later: Later[ResultT] = Later(future.cancel)
    future.add_done_callback(partial(_end_by, later))
    return later


def _end_by(later: Later[ResultT], future: "asyncio.Future[ResultT]") -> None:
    later.end(_outcome_of(future))


def _outcome_of(future: "asyncio.Future[Any]") -> Any:
    if future.cancelled():
        return asyncio.CancelledError()
    return future.exception() or future.result()
