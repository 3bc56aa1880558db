"""What the interceptors of producers and of consumers have in common: how they are given, and that they harm nothing.

Invariant: an exception of an interceptor is logged, and neither the client nor the other interceptors see it. On the IO
thread that holds for whatever is raised; in the application's thread a SystemExit, a KeyboardInterrupt or the end of a
task is the application's. Kafka: ProducerInterceptors, ConsumerInterceptors.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rayka.client import io_thread
from rayka.errors import ConfigError

Hook = Callable[..., Any]

logger = logging.getLogger(__name__)


def checked_interceptors(given: Any, names: Sequence[str]) -> tuple[object, ...]:
    """Those of an option. Raises ConfigError for anything but a list of objects with at least one of these methods."""
    if not isinstance(given, (list, tuple)):
        raise ConfigError(f"interceptors: expected a list, found {type(given).__name__}")
    for each in given:
        if not any(hooks_of([each], name) for name in names):
            raise ConfigError(f"interceptors: expected objects with {' or '.join(names)}, found {each!r}")
    return tuple(given)


def hooks_of(given: Sequence[object], name: str) -> list[Hook]:
    """The methods of this name, in the order of the objects."""
    return [getattr(each, name) for each in given if callable(getattr(each, name, None))]


@contextmanager
def contained(hook: Hook) -> Iterator[None]:
    """Within it the hook is called: what it raises is logged. On the IO thread a SystemExit would end the step that has
    other answers to bring.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and not io_thread.is_current():
            raise
        logger.exception("the interceptor %r raised; its client goes on without it", hook)
