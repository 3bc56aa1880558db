"""What a producer has done so far, counted once for each batch and each request: a record costs nothing.

Belongs to the IO thread; `snapshot` may be taken from any thread, and then some of a batch may be counted and some not.
Kafka: the metrics group `producer-metrics`.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial

import msgspec

from rayka.client.producer.producer_batch import ProducerBatch

_KEPT_LATENCIES = 1_000


class ProducerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A producer at one moment. Totals count from its beginning; a record counts as sent when it is acknowledged.

    `bytes_total` is encoded batches as they were handed to the network, repeats included. `retries_total` and
    `splits_total` count batches, `errors_total` records. Latencies are of the last thousand produce requests that were
    answered, in ms, None before the first. `records_waiting` and `batches_waiting` are not over yet; of `buffer_bytes`
    set aside for them.
    """

    records_total: int
    bytes_total: int
    batches_total: int
    requests_total: int
    retries_total: int
    splits_total: int
    errors_total: int
    records_waiting: int
    batches_waiting: int
    buffer_bytes: int
    request_latency_ms_p50: float | None
    request_latency_ms_p99: float | None


class Counts(msgspec.Struct, eq=False):
    """The counters; see the module."""

    records_total: int = 0
    bytes_total: int = 0
    batches_total: int = 0
    requests_total: int = 0
    retries_total: int = 0
    splits_total: int = 0
    errors_total: int = 0
    latencies_ms: deque[float] = msgspec.field(default_factory=partial(deque, maxlen=_KEPT_LATENCIES))

    def __repr__(self) -> str:
        return (
            f"<Counts records={self.records_total} batches={self.batches_total} errors={self.errors_total}>"
        )

    def on_answer(self, took_ms: float) -> None:
        """A request was answered."""
        self.requests_total += 1
        self.latencies_ms.append(took_ms)

    def snapshot(self, waiting: Sequence[ProducerBatch]) -> ProducerMetrics:
        """All of it now, with the batches that wait."""
        latencies_ms = sorted(self.latencies_ms.copy())
        return ProducerMetrics(
            **{name: getattr(self, name) for name in self.__struct_fields__ if name.endswith("_total")},
            records_waiting=sum(map(len, waiting)),
            batches_waiting=len(waiting),
            buffer_bytes=sum(each.granted_bytes for each in waiting),
            request_latency_ms_p50=_quantile(latencies_ms, 50),
            request_latency_ms_p99=_quantile(latencies_ms, 99),
        )


def _quantile(ordered: list[float], percent: int) -> float | None:
    return ordered[(len(ordered) - 1) * percent // 100] if ordered else None
