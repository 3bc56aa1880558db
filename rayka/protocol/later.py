"""A future that can hand its result over in the step that brings it.

asyncio's futures call back a turn of the event loop later, and a task goes on in that turn: on the way of a small
request each turn costs about as much as the work that it does. A coroutine may await this one as any other. Invariants:
it ends once, with a result or an exception, or is given up; `then` has one taker, which is told once, and raises
nothing. Kafka: `RequestFuture`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")
OtherT = TypeVar("OtherT")


def _nothing() -> None:
    pass


class Later(asyncio.Future[ResultT]):
    """See the module. `on_given_up` is called when nothing waits for the result any more: `cancel` says so."""

    __slots__ = ("_on_end", "_on_given_up")

    def __init__(self, on_given_up: Callable[[], object] = _nothing) -> None:
        super().__init__()
        self._on_given_up = on_given_up
        self._on_end: Callable[[ResultT | BaseException], object] | None = None

    def then(self, on_end: Callable[[ResultT | BaseException], object]) -> None:
        """Calls it with the result, or with the exception: at once when it has come, else in the step that ends this.
        Instead of an await.
        """
        if self.done():
            on_end(_outcome_of(self))
        else:
            self._on_end = on_end

    def converted(
        self,
        convert: Callable[[ResultT | BaseException], OtherT | BaseException],
        on_given_up: Callable[[], object] = _nothing,
    ) -> "Later[OtherT]":
        """What `convert` makes of the outcome. What gives that up gives this up, too; `on_given_up` is called then."""

        def give_up() -> None:
            self.cancel()
            on_given_up()

        other: Later[OtherT] = Later(give_up)
        self.then(lambda outcome: other.end(convert(outcome)))
        return other

    def end(self, outcome: ResultT | BaseException) -> None:
        """The result, or the exception, is here; without effect on what is over."""
        if self.done():
            return
        on_end, self._on_end = self._on_end, None
        self._on_given_up = (
            _nothing  # it refers to this one, perhaps: the garbage collector would have to find that
        )
        if on_end is not None:
            self.set_result(None)  # type: ignore[arg-type]  # nothing else will ask for it
            on_end(outcome)
        elif not isinstance(outcome, BaseException):
            self.set_result(outcome)
        elif isinstance(outcome, asyncio.CancelledError):
            super().cancel()
        else:
            self.set_exception(outcome)

    def cancel(self, msg: Any = None) -> bool:
        """Gives it up, unless it is over."""
        is_given_up = super().cancel(msg)
        if is_given_up:
            on_given_up, self._on_given_up, self._on_end = self._on_given_up, _nothing, None
            on_given_up()
        return is_given_up


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
