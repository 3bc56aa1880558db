"""The application's hooks around each record of `send`: one before it is serialized, one at its end.

Invariant: an interceptor harms nothing but itself. What it raises is logged; the record goes on as it was. Kafka:
ProducerInterceptor, ProducerInterceptors.
"""

import inspect
from functools import partial
from typing import Any, NamedTuple, Self

from rayka.client.interception import Hook, checked_interceptors, contained, hooks_of
from rayka.client.producer.acknowledgement import RecordMetadata
from rayka.client.producer.delivery_future import OnDelivery


class OutgoingRecord(NamedTuple):
    """What `send` was given. An interceptor returns it, or another one: `record._replace(headers=[...])`."""

    topic: str
    value: Any
    key: Any
    headers: Any
    partition: int | None
    timestamp_ms: int | None


class Interceptors:
    """See the module. Each is an object with `on_send(record)`, `on_acknowledgement(metadata, error)` or both."""

    def __init__(self, given: tuple[object, ...]) -> None:
        self._on_send: list[Hook] = hooks_of(given, "on_send")
        self._on_acknowledgement: list[Hook] = hooks_of(given, "on_acknowledgement")

    def __repr__(self) -> str:
        return (
            f"<Interceptors on_send={len(self._on_send)} on_acknowledgement={len(self._on_acknowledgement)}>"
        )

    @classmethod
    def of(cls, given: Any) -> Self | None:
        """From an option; None without any. Raises ConfigError for what has neither hook."""
        interceptors = checked_interceptors(given, ("on_send", "on_acknowledgement"))
        return cls(interceptors) if interceptors else None

    def sent(self, record: OutgoingRecord) -> OutgoingRecord:
        """The record as they want it, each given what the one before made of it."""
        for hook in self._on_send:
            with contained(hook):
                record = _checked(hook(record))
        return record

    async def await_sent(self, record: OutgoingRecord) -> OutgoingRecord:
        """As `sent`; a hook may be a coroutine function."""
        for hook in self._on_send:
            with contained(hook):
                returned = hook(record)
                record = _checked(await returned if inspect.isawaitable(returned) else returned)
        return record

    def acknowledged(self, error: Exception | None, metadata: RecordMetadata | None) -> None:
        """The record has ended, one of the two is None; also where `send` itself has failed."""
        for hook in self._on_acknowledgement:
            with contained(hook):
                hook(metadata, error)

    async def await_acknowledged(self, error: Exception | None, metadata: RecordMetadata | None) -> None:
        """As `acknowledged`; a hook may be a coroutine function."""
        for hook in self._on_acknowledgement:
            with contained(hook):
                returned = hook(metadata, error)
                if inspect.isawaitable(returned):
                    await returned


def reported_to(first: OnDelivery, second: OnDelivery | None) -> OnDelivery:
    """One callback for both."""
    return first if second is None else partial(_report_both, first, second)


def _report_both(
    first: OnDelivery, second: OnDelivery, error: Exception | None, metadata: RecordMetadata | None
) -> None:
    first(error, metadata)
    second(error, metadata)


def _checked(returned: Any) -> OutgoingRecord:
    if not isinstance(returned, OutgoingRecord):
        raise TypeError(f"expected on_send to return the record, found {type(returned).__name__}")
    return returned
