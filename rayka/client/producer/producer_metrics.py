"""What a producer has done so far, counted once for each batch and each request: a record costs nothing.

Belongs to the IO thread; `snapshot` may be taken from any thread, and then some of a batch may be counted and some not.
Kafka: the metrics group `producer-metrics`.
"""

from collections import deque

import msgspec

_KEPT_LATENCIES = 1_000


class ProducerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A producer at one moment. Totals count from its beginning; a record counts as sent when it is acknowledged.

    `bytes_total` is encoded batches as they were handed to the network, repeats included. `retries_total` and
    `splits_total` count batches. Latencies are of the last thousand produce requests that were answered, in ms, None
    before the first. `records_waiting` and `batches_waiting` are not over yet; of `buffer_bytes` set aside for them.
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


class Counts:
    """The counters; see the module."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.batches = 0
        self.requests = 0
        self.retries = 0
        self.splits = 0
        self.errors = 0  # records
        self._latencies_ms: deque[float] = deque(maxlen=_KEPT_LATENCIES)

    def __repr__(self) -> str:
        return f"<Counts records={self.records} batches={self.batches} errors={self.errors}>"

    def on_answer(self, took_ms: float) -> None:
        """A request was answered."""
        self.requests += 1
        self._latencies_ms.append(took_ms)

    def snapshot(self, *, records_waiting: int, batches_waiting: int, buffer_bytes: int) -> ProducerMetrics:
        """All of it now, with what waits."""
        latencies_ms = sorted(self._latencies_ms.copy())
        return ProducerMetrics(
            records_total=self.records,
            bytes_total=self.bytes,
            batches_total=self.batches,
            requests_total=self.requests,
            retries_total=self.retries,
            splits_total=self.splits,
            errors_total=self.errors,
            records_waiting=records_waiting,
            batches_waiting=batches_waiting,
            buffer_bytes=buffer_bytes,
            request_latency_ms_p50=_quantile(latencies_ms, 50),
            request_latency_ms_p99=_quantile(latencies_ms, 99),
        )


def _quantile(ordered: list[float], percent: int) -> float | None:
    return ordered[(len(ordered) - 1) * percent // 100] if ordered else None
