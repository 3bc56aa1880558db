"""The common base of interceptors of producers and consumers: checks, calls, and containment of their exceptions.

Invariant: an exception of an interceptor is logged, and neither the client nor the other interceptors see it. On the IO
thread this holds for every exception; in the application's thread a SystemExit, a KeyboardInterrupt or the cancellation
of a task passes through to the application. Kafka: ProducerInterceptors, ConsumerInterceptors.
"""

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, Self, TypeVar

from rayka.client import io_thread
from rayka.errors import ConfigError

GivenT = TypeVar("GivenT")
Hook = Callable[..., Any]

logger = logging.getLogger(__name__)


class Interceptors(ABC, Generic[GivenT]):
    """The interceptors of one client, in their order."""

    # The method that may change a value on its way through the client, and the method that gets the outcome. An
    # interceptor has at least one of them.
    names: ClassVar[tuple[str, str]]

    def __init__(self, given: Sequence[object]) -> None:
        self._changing, self._told = (hooks_of(given, name) for name in self.names)

    def __repr__(self) -> str:
        changing, told = self.names
        return f"<{type(self).__name__} {changing}={len(self._changing)} {told}={len(self._told)}>"

    @classmethod
    def of(cls, given: Any) -> Self | None:
        """The interceptors of an option; None for an empty list. Raises ConfigError unless each has a hook."""
        if not isinstance(given, (list, tuple)):
            raise ConfigError(f"interceptors: expected a list, found {type(given).__name__}")
        for each in given:
            if not any(hooks_of([each], name) for name in cls.names):
                raise ConfigError(
                    f"interceptors: expected objects with {' or '.join(cls.names)}, found {each!r}"
                )
        return cls(given) if given else None

    @staticmethod
    @abstractmethod
    def check(returned: Any) -> GivenT:
        """Returns the value that a hook returned. Raises TypeError for a value of a wrong type."""

    def changed(self, given: GivenT) -> GivenT:
        """Passes the value through the changing hooks, each with the result of the one before."""
        for hook in self._changing:
            with _contained(hook):
                given = self.check(hook(given))
        return given

    async def await_changed(self, given: GivenT) -> GivenT:
        """Does the same as `changed`; a hook may be a coroutine function."""
        for hook in self._changing:
            with _contained(hook):
                given = self.check(await _ended(hook(given)))
        return given

    def tell(self, *outcome: Any) -> None:
        """Calls the hooks for outcomes."""
        for hook in self._told:
            with _contained(hook):
                hook(*outcome)

    async def await_tell(self, *outcome: Any) -> None:
        """Does the same as `tell`; a hook may be a coroutine function."""
        for hook in self._told:
            with _contained(hook):
                await _ended(hook(*outcome))


def hooks_of(given: Sequence[object], name: str) -> list[Hook]:
    """The methods of this name, in the order of the objects."""
    return [getattr(each, name) for each in given if callable(getattr(each, name, None))]


async def _ended(returned: Any) -> Any:
    return await returned if inspect.isawaitable(returned) else returned


@contextmanager
def _contained(hook: Hook) -> Iterator[None]:
    """Logs an exception of the hook that is called in the block.

    On the IO thread even a SystemExit is contained, because it would end a step that has other answers to deliver.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and not io_thread.is_current():
            raise
        logger.exception("the interceptor %r raised; its client goes on without it", hook)
