"""A future that hands its result over in the step that brings the result.

asyncio's futures run their callbacks one turn of the event loop later, and a task continues in that turn. On the way of
a small request each turn costs about as much as the work in it. A coroutine may await this future as any other.
Invariants: a `Later` ends once, with a result or an exception, or is given up; `then` has one callback, which is called
once and raises nothing. Kafka: `RequestFuture`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def _nothing() -> None:
    pass


class Later(asyncio.Future[ResultT]):
    """A result to come. `on_given_up` is called when `cancel` gives the result up."""

    __slots__ = ("_observers", "_on_end", "_on_given_up")

    def __init__(self, on_given_up: Callable[[], object] = _nothing) -> None:
        super().__init__()
        self._on_given_up = on_given_up
        self._on_end: Callable[[ResultT | BaseException], object] | None = None
        self._observers: tuple[Callable[[ResultT | BaseException], object], ...] = ()

    def then(self, on_end: Callable[[ResultT | BaseException], object]) -> None:
        """Calls `on_end` with the result or the exception: at once if the future has ended, else in the step that ends
        it. Replaces an await.
        """
        if self.done():
            on_end(_outcome_of(self))
        else:
            self._on_end = on_end

    def observe(self, on_end: Callable[[ResultT | BaseException], object]) -> None:
        """Calls `on_end` as `then` does, for any number of observers: before the callback of `then`, and with
        CancelledError when the future is given up.
        """
        if self.done():
            on_end(_outcome_of(self))
        else:
            self._observers = (*self._observers, on_end)

    def end(self, outcome: ResultT | BaseException) -> None:
        """Ends the future with a result or an exception; without effect on a future that has ended."""
        if self.done():
            return
        on_end, observers, self._on_end, self._observers = self._on_end, self._observers, None, ()
        # The callback may refer to this future: a cycle that only the garbage collector would find.
        self._on_given_up = _nothing
        if on_end is not None:
            # The callback gets the outcome, and nothing else asks for it.
            self.set_result(None)  # type: ignore[arg-type]
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
        """Gives the result up, unless the future has ended."""
        is_given_up = super().cancel(msg)
        if is_given_up:
            on_given_up, observers, self._observers = self._on_given_up, self._observers, ()
            self._on_given_up, self._on_end = _nothing, None
            on_given_up()
            for observer in observers:
                observer(asyncio.CancelledError())
        return is_given_up

    def fail(self, error: BaseException) -> None:
        """Gives the result up, unless the future has ended; waiting code gets this exception."""
        if not self.done():
            on_given_up, self._on_given_up = self._on_given_up, _nothing
            on_given_up()
            self.end(error)


def later_of(awaitable: Awaitable[ResultT]) -> Later[ResultT]:
    """The result of an awaitable as a `Later`; a coroutine runs in a task."""
    if isinstance(awaitable, Later):
        return awaitable
    future = asyncio.ensure_future(awaitable)
    later: Later[ResultT] = Later(future.cancel)
    future.add_done_callback(lambda done: later.end(_outcome_of(done)))
    return later


def _outcome_of(future: "asyncio.Future[Any]") -> Any:
    if future.cancelled():
        return asyncio.CancelledError()
    return future.exception() or future.result()
