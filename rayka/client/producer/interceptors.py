"""The application's hooks around each record of `send`: one before it is serialized, one at its end.

Invariant: an interceptor harms nothing but itself. What it raises is logged; the record goes on as it was. Kafka:
ProducerInterceptor, ProducerInterceptors.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from rayka.client.interception import Interceptors
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


class ProducerInterceptors(Interceptors[OutgoingRecord]):
    """See the module. Each is an object with `on_send(record)`, `on_acknowledgement(metadata, error)` or both; the
    latter is told, too, where `send` itself has failed.
    """

    names = ("on_send", "on_acknowledgement")

    @staticmethod
    def check(returned: Any) -> OutgoingRecord:
        if not isinstance(returned, OutgoingRecord):
            raise TypeError(f"expected on_send to return the record, found {type(returned).__name__}")
        return returned


def reported_to(tell: Callable[..., object], on_delivery: OnDelivery | None) -> OnDelivery:
    """One callback that tells the interceptors, and then the application's, if there is one."""

    def report(error: Exception | None, metadata: RecordMetadata | None) -> None:
        tell(metadata, error)
        if on_delivery is not None:
            on_delivery(error, metadata)

    return report
