"""What the interceptors of producers and of consumers have in common: how they are given and called, and that they
harm nothing.

Invariant: an exception of an interceptor is logged, and neither the client nor the other interceptors see it. On the IO
thread that holds for whatever is raised; in the application's thread a SystemExit, a KeyboardInterrupt or the end of a
task is the application's. Kafka: ProducerInterceptors, ConsumerInterceptors.
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
    """Those of one client, in their order. Each is an object with a hook that may change what passes through the
    client, with one that is told what became of it, or both: `names`.
    """

    names: ClassVar[tuple[str, str]]

    def __init__(self, given: Sequence[object]) -> None:
        self._changing, self._told = (hooks_of(given, name) for name in self.names)

    def __repr__(self) -> str:
        changing, told = self.names
        return f"<{type(self).__name__} {changing}={len(self._changing)} {told}={len(self._told)}>"

    @classmethod
    def of(cls, given: Any) -> Self | None:
        """From an option; None without any. Raises ConfigError for anything but a list of objects with a hook."""
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
        """What a hook has made of what it was given. Raises TypeError where that is none."""

    def changed(self, given: GivenT) -> GivenT:
        """It as the interceptors want it, each given what the one before made of it."""
        for hook in self._changing:
            with _contained(hook):
                given = self.check(hook(given))
        return given

    async def await_changed(self, given: GivenT) -> GivenT:
        """As `changed`; a hook may be a coroutine function."""
        for hook in self._changing:
            with _contained(hook):
                given = self.check(await _ended(hook(given)))
        return given

    def tell(self, *outcome: Any) -> None:
        """What became of it."""
        for hook in self._told:
            with _contained(hook):
                hook(*outcome)

    async def await_tell(self, *outcome: Any) -> None:
        """As `tell`; a hook may be a coroutine function."""
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
    """Within it the hook is called: what it raises is logged. On the IO thread a SystemExit would end the step that has
    other answers to bring.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and not io_thread.is_current():
            raise
        logger.exception("the interceptor %r raised; its client goes on without it", hook)
