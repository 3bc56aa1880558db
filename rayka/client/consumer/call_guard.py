"""Admits one call at a time to the methods of a consumer.

Invariant: one thread at a time is in a method that moves a position, and within such a method only callbacks of the
group call another one. Kafka: KafkaConsumer.acquireAndEnsureOpen.
"""

import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from rayka.client import io_thread

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class MethodCall:
    """A call in progress. `end` is one C call, so a signal cannot interrupt it half way."""

    __slots__ = ("_under_way", "end", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._under_way = threading.Lock()
        self._under_way.acquire()
        self.end = self._under_way.release

    def is_under_way(self) -> bool:
        return self._under_way.locked()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the call ends within this time."""
        is_over = io_thread.acquire_within(self._under_way, timeout_s)
        if is_over:
            self._under_way.release()
        return is_over


class CallGuard:
    """The call that is under way, if there is one. A nested call of the same thread is not admitted anew."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may interrupt a method and call another one.
        self._lock = threading.RLock()
        self._last: MethodCall | None = None

    def locked(self) -> bool:
        """Whether a call is under way."""
        return self._last is not None and self._last.is_under_way()

    def begin(self, call: MethodCall) -> MethodCall | None:
        """Admits the call and returns None, or returns the call that is under way."""
        with self._lock:
            if self.locked():
                return self._last
            self._last = call
            return None

    def wait_and_begin(self, call: MethodCall, timeout_s: float | None = None) -> MethodCall | None:
        """As `begin`, but waits at most `timeout_s` for the end of another thread's call."""
        while (other := self.begin(call)) is not None:
            if other.thread == call.thread or not other.wait(timeout_s):
                return other
        return None


class _Guarding(Protocol):
    def exclusively(self, name: str, work: Callable[[], ResultT], *, may_nest: bool = False) -> ResultT: ...


class _Guarded(Protocol):
    @property
    def _core(self) -> _Guarding: ...


GuardedT = TypeVar("GuardedT", bound=_Guarded)


def exclusive(
    method: Callable[Concatenate[GuardedT, P], ResultT],
) -> Callable[Concatenate[GuardedT, P], ResultT]:
    """Runs the method while no other thread is in one. A nested call, as by a deserializer or a signal handler, is
    refused, unless a callback of the group makes it.
    """
    return _guarded(method, may_nest=False)


def exclusive_or_nested(
    method: Callable[Concatenate[GuardedT, P], ResultT],
) -> Callable[Concatenate[GuardedT, P], ResultT]:
    """As `exclusive`, for a method that moves no position: nested calls are allowed."""
    return _guarded(method, may_nest=True)


def _guarded(
    method: Callable[Concatenate[GuardedT, P], ResultT], *, may_nest: bool
) -> Callable[Concatenate[GuardedT, P], ResultT]:
    name = method.__name__.lstrip("_")

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **options: P.kwargs) -> ResultT:
        result: ResultT = self._core.exclusively(
            name, partial(method, self, *arguments, **options), may_nest=may_nest
        )
        return result

    return call
