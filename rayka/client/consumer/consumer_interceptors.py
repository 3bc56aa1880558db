"""The application's hooks around what a consumer reads: one before records are given, one after offsets are committed.

Invariants: positions move by what was stored, whatever an interceptor makes of it; what an interceptor raises is
logged, and the records go on as they were. Kafka: ConsumerInterceptor, ConsumerInterceptors.
"""

import inspect
from typing import Any, Self

from rayka.client.consumer.record import Record
from rayka.client.interception import Interceptors, hooks_of
from rayka.errors import ConfigError


class ConsumerInterceptors(Interceptors[list[Record]]):
    """See the module. Each is an object with `on_consume(records)`, `on_commit(offsets)` or both."""

    names = ("on_consume", "on_commit")

    @classmethod
    def of(cls, given: Any) -> Self | None:
        """As of all interceptors. Raises ConfigError for an `on_consume` that is a coroutine function, too: a task that
        is cancelled while it awaits one would lose the records.
        """
        interceptors = super().of(given)
        for hook in hooks_of(given, "on_consume"):
            if inspect.iscoroutinefunction(hook):
                raise ConfigError(f"interceptors: expected an on_consume that is not async, found {hook!r}")
        return interceptors

    @staticmethod
    def check(returned: Any) -> list[Record]:
        if not isinstance(returned, list) or not all(isinstance(each, Record) for each in returned):
            found = type(returned).__name__ if not isinstance(returned, list) else "other things in it"
            raise TypeError(f"expected on_consume to return a list of records, found {found}")
        return returned
