"""The application's hooks around what a consumer reads: one before records are given, one after offsets are committed.

Invariants: positions move by what was stored, whatever an interceptor makes of it; what an interceptor raises is
logged, and the records go on as they were. Kafka: ConsumerInterceptor, ConsumerInterceptors.
"""

import inspect
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Self

from rayka.client.consumer.record import Record
from rayka.client.interception import Hook, checked_interceptors, contained, hooks_of
from rayka.errors import ConfigError


class ConsumerInterceptors:
    """See the module. Each is an object with `on_consume(records)`, `on_commit(offsets)` or both."""

    def __init__(self, given: tuple[object, ...]) -> None:
        self._on_consume: list[Hook] = hooks_of(given, "on_consume")
        self._on_commit: list[Hook] = hooks_of(given, "on_commit")

    def __repr__(self) -> str:
        return f"<ConsumerInterceptors on_consume={len(self._on_consume)} on_commit={len(self._on_commit)}>"

    @classmethod
    def of(cls, given: Any) -> Self | None:
        """From an option; None without any. Raises ConfigError for what has neither hook, and for an `on_consume` that
        is a coroutine function: a task that is cancelled while it awaits one would lose the records.
        """
        interceptors = checked_interceptors(given, ("on_consume", "on_commit"))
        for hook in hooks_of(interceptors, "on_consume"):
            if inspect.iscoroutinefunction(hook):
                raise ConfigError(f"interceptors: expected an on_consume that is not async, found {hook!r}")
        return cls(interceptors) if interceptors else None

    def consumed(self, records: list[Record]) -> list[Record]:
        """The records as the interceptors want them, each given what the one before made of them."""
        for hook in self._on_consume:
            with contained(hook):
                records = _checked(hook(records))
        return records

    def each_consumed(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records one after another; the hooks see each in a list of its own, when it is asked for."""
        return chain.from_iterable(self.consumed([record]) for record in records)

    def committed(self, offsets: Any) -> None:
        """The cluster has these offsets."""
        for hook in self._on_commit:
            with contained(hook):
                hook(offsets)

    async def await_committed(self, offsets: Any) -> None:
        """As `committed`; a hook may be a coroutine function."""
        for hook in self._on_commit:
            with contained(hook):
                returned = hook(offsets)
                if inspect.isawaitable(returned):
                    await returned


def _checked(returned: Any) -> list[Record]:
    if not isinstance(returned, list) or not all(isinstance(each, Record) for each in returned):
        found = type(returned).__name__ if not isinstance(returned, list) else "other things in it"
        raise TypeError(f"expected on_consume to return a list of records, found {found}")
    return returned
