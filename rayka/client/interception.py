"""What the interceptors of producers and of consumers have in common: how they are given, and that they harm nothing.

Invariant: an exception of an interceptor is logged, and neither the client nor the other interceptors see it. Kafka:
ProducerInterceptors, ConsumerInterceptors.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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
    """Within it the hook is called: what it raises is logged."""
    try:
        yield
    except Exception:
        logger.exception("the interceptor %r raised; its client goes on without it", hook)
