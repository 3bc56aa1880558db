"""Results of produce requests: ends batches or sends them again, calls their callbacks, and counts.

An error about single records fails no other record. A batch that the log refuses as too large is sent again in smaller
parts, until the record that is too large is alone and fails. Records that the log names in its refusal fail; the other
records of the batch are sent again.

A batch with a retriable error is sent again until `delivery_timeout_ms`: after a back-off, or as soon as a new leader
is known if the leader failed. With idempotence the broker recognizes a repeated batch. Without idempotence, a request
whose answer was lost may put its records into the log twice.

Invariant: a batch ends exactly once. Runs on the IO thread only. Kafka: Sender.completeBatch; Sender.failBatch (G18,
C11), which fails the records that the log does not name, too (KIP-467); RecordAccumulator.splitAndReenqueue.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from rayka.client.producer.accumulator import Accumulator
from rayka.client.producer.acknowledgement import PartEnd
from rayka.client.producer.partition_leaders import PartitionLeaders
from rayka.client.producer.producer_batch import IN_FLIGHT, Callback, ProducerBatch
from rayka.client.retry import SOON_MAX, Backoff
from rayka.errors import (
    ApiError,
    ErrorCode,
    InvalidMetadataError,
    NoSuchTopic,
    OutOfOrderSequence,
    RaykaError,
    RecordBatchTooLarge,
    RecordTooLarge,
    RequestTimedOut,
    error_for,
)
from rayka.ids import NO_EPOCH, NO_NODE, node_name
from rayka.protocol.batch_format import Codec
from rayka.protocol.produce import ProducePartitionResult

_KEPT_LATENCIES = 1_000
NO_LEADER_ERRORS = (InvalidMetadataError, RequestTimedOut)
# Errors of a batch larger than the topic's `max.message.bytes`, or than a segment of the log.
_TOO_LARGE = (RecordTooLarge, RecordBatchTooLarge)
_IN_LOG = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)

logger = logging.getLogger(__name__)


class ProducerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a producer at one moment. Totals count from the producer's start.

    `records_total` and `batches_total` count acknowledgements. `bytes_total` is the size of the encoded batches handed
    to the network, retries included. `retries_total` and `splits_total` count batches, `errors_total` counts records.
    Latencies are those of the last thousand answered produce requests, in ms; None before the first answer.
    `records_waiting` and `batches_waiting` have no result yet; `buffer_bytes` is their reserved memory.
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
    """The counters of a producer, raised once for each batch and each request: a record costs nothing.

    The counters belong to the IO thread. Any thread may take a `snapshot`, which may then show a batch half counted.
    Kafka: the metrics group `producer-metrics`.
    """

    records_total: int = 0
    bytes_total: int = 0
    batches_total: int = 0
    requests_total: int = 0
    retries_total: int = 0
    splits_total: int = 0
    errors_total: int = 0
    latencies_ms: deque[float] = msgspec.field(default_factory=partial(deque, maxlen=_KEPT_LATENCIES))

    def on_answer(self, took_ms: float) -> None:
        """Counts an answered request and its latency."""
        self.requests_total += 1
        self.latencies_ms.append(took_ms)

    def snapshot(self, waiting: Sequence[ProducerBatch]) -> ProducerMetrics:
        """The counters now, with the sums over the waiting batches."""
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


class Outcomes:
    """Ends batches, or has the accumulator send them again."""

    def __init__(
        self,
        accumulator: Accumulator,
        leaders: PartitionLeaders,
        backoff: Backoff,
        now_ms: Callable[[], float],
        *,
        cluster_name: str,
        codec: Codec,
    ) -> None:
        # First error of an application's callback, until `flush` or `close` raises the error.
        self.callback_error: BaseException | None = None
        self.logs_failures = True
        self.counts = Counts()
        self._to_call_back: list[tuple[ProducerBatch, Sequence[Callback]]] = []
        self._accumulator = accumulator
        self._leaders = leaders
        self._backoff = backoff
        self._now_ms = now_ms
        self._cluster_name = cluster_name
        self._codec = codec

    def on_answers(
        self, node_id: int, batches: Sequence[ProducerBatch], results: Sequence[ProducePartitionResult]
    ) -> None:
        """Ends the batches that are in the log, then handles the refused ones.

        Takes the accumulator's lock once for all acknowledged batches, because a busy sending thread delays each
        acquisition. The caller calls `call_back` at the end of its work: a waiting thread runs only once the IO thread
        is idle.
        """
        appended: list[tuple[ProducerBatch, ProducePartitionResult]] = []
        for batch, result in zip(batches, results, strict=True):
            if result.error_code in _IN_LOG:
                self._leaders.on_settled(batch)
                self.counts.batches_total += 1
                self.counts.records_total += batch.part_count
                if batch.has_more_parts:
                    self._go_on(
                        batch, PartEnd(batch.partition, result.base_offset, result.log_append_time_ms)
                    )
                else:
                    appended.append((batch, result))
        self._accumulator.finish([batch for batch, _ in appended], is_acknowledged=True)
        for batch, result in appended:
            callbacks = batch.acknowledge(result.base_offset, result.log_append_time_ms)
            if callbacks:
                self._to_call_back.append((batch, callbacks))
        if len(appended) < len(batches):
            self._leaders.on_refused(results)
        for batch, result in zip(batches, results, strict=True):
            if result.error_code not in _IN_LOG:
                where = f"{node_name(node_id)} of cluster {self._cluster_name!r}, {batch.topic_partition}"
                if result.record_errors and self._goes_on_without(batch, result, where):
                    continue
                error = error_for(result.error_code, f"{where}: {result.error_message}")
                self.on_error(batch, error, node_id, leader_epoch=result.leader_epoch)

    def call_back(self) -> None:
        """Calls the callbacks of the batches acknowledged since the last call."""
        acknowledged, self._to_call_back = self._to_call_back, []
        for batch, callbacks in acknowledged:
            self._call_back(batch, callbacks)

    def _go_on(
        self, batch: ProducerBatch, end: PartEnd | None = None, *, has_fewer_records: bool = False
    ) -> None:
        """Sends the remaining records of the batch; fails them if the topic was deleted."""
        if not self._accumulator.go_on(batch, end, has_fewer_records=has_fewer_records):
            self.end(
                batch, NoSuchTopic(f"topic {batch.topic!r} of cluster {self._cluster_name!r} was deleted")
            )

    def on_error(
        self, batch: ProducerBatch, error: ApiError, node_id: int, *, leader_epoch: int = NO_EPOCH
    ) -> None:
        """Splits a batch that is too large, retries a retriable error, else fails the batch.

        Retries soon if the node has not learned that it leads, at once if another leader is known, else after the
        back-off. `leader_epoch` is the last epoch that the node knows.
        """
        if isinstance(error, _TOO_LARGE) and self._goes_on_smaller(batch, error):
            return
        may_retry = error.retriable or isinstance(error, OutOfOrderSequence)
        # A batch is out of order because an earlier batch is late or was refused; the result of that batch comes soon.
        is_passing = isinstance(error, OutOfOrderSequence) or self._leaders.is_behind(
            batch, node_id, leader_epoch
        )
        is_soon = batch.failure_count < SOON_MAX and is_passing
        retry_ms = self._soon_ms(batch) if is_soon else self.retry_ms(batch)
        if not may_retry or not self._accumulator.defer(batch, error, retry_ms):
            self.end(batch, error)
            return
        self.counts.retries_total += 1
        if is_soon or not isinstance(error, NO_LEADER_ERRORS):
            return
        if self._leaders.leader_of(batch) in (node_id, NO_NODE):
            self._leaders.on_failed(batch)
        else:
            self._accumulator.on_new_leaders(batch.topic, (batch.partition,))

    def _goes_on_smaller(self, batch: ProducerBatch, error: ApiError) -> bool:
        """Splits the part that is too large, or fails its only record and sends the next part; False if the batch has
        no further record.

        The log has none of the part: the log does not refuse a batch that it appended before its limit was lowered.
        """
        is_going_on = batch.part_count > 1 or batch.has_more_parts
        if batch.part_count > 1:
            batch.split(self._codec)
            self.counts.splits_total += 1
            self._go_on(batch)
        elif is_going_on:
            self.counts.errors_total += 1
            if self.logs_failures:
                logger.warning("1 record for %s failed: %s", batch.topic_partition, error)
            self._go_on(batch, PartEnd(batch.partition, error=error))
        # The topic's limit has changed: later batches need the new limit.
        self._leaders.refresh(batch.topic)
        return is_going_on

    def _goes_on_without(self, batch: ProducerBatch, result: ProducePartitionResult, where: str) -> bool:
        """Fails the records that the answer names, and sends the other records again; False if the answer names none.

        The log has none of the batch: the log does not refuse a batch that it appended in an earlier try.
        """
        errors: dict[int, Exception] = {
            each.batch_index: error_for(each.error_code, f"{where}: {each.error_message}")
            for each in result.record_errors
            if 0 <= each.batch_index < batch.part_count
        }
        if not errors:
            return False
        batch.refuse(errors, self._codec)
        self.counts.errors_total += len(errors)
        first = next(iter(errors.values()))
        if self.logs_failures:
            logger.warning("%d of %s failed: %s", len(errors), batch.records_text, first)
        if batch.left_count:
            self._go_on(batch, has_fewer_records=True)
        else:
            self._accumulator.go_on(batch, has_fewer_records=True)
            self._end(batch, first)
        return True

    def on_unsent(self, batch: ProducerBatch, error: ApiError) -> None:
        """Retries a batch that could not be sent after the back-off, or fails the batch."""
        if not error.retriable:
            self.end(batch, error)
        else:
            self._accumulator.defer(batch, error, self.retry_ms(batch))

    def retry_ms(self, batch: ProducerBatch) -> float:
        """The end of the back-off after another failure of the batch."""
        return self._now_ms() + self._backoff.pause_ms(batch.failure_count + 1)

    def _soon_ms(self, batch: ProducerBatch) -> float:
        return self._now_ms() + self._backoff.soon_ms(batch.failure_count + 1)

    def fail(self, batches: Sequence[ProducerBatch], error: RaykaError) -> None:
        """Fails the batches for good; a batch in flight is ended by its answer."""
        for batch in batches:
            if batch.state is not IN_FLIGHT:
                self.end(batch, error)

    def end(self, batch: ProducerBatch, error: Exception) -> None:
        """Fails the batch for good."""
        self.counts.errors_total += batch.left_count if batch.is_sealed else len(batch)
        if self.logs_failures:
            logger.warning("%s failed: %s", batch.records_text, error)
        self._end(batch, error)

    def _end(self, batch: ProducerBatch, error: Exception) -> None:
        callbacks = batch.fail(error)
        self._leaders.on_settled(batch)
        self._accumulator.finish((batch,), is_acknowledged=False)
        self._call_back(batch, callbacks)

    def _call_back(self, batch: ProducerBatch, callbacks: Sequence[Callback]) -> None:
        """Runs the application's callbacks and keeps their first error.

        Catches everything: a SystemExit would end the IO thread, and a CancelledError the request with all its batches.
        """
        for callback in callbacks:
            try:
                callback()
            except BaseException as error:
                logger.exception("a delivery callback for %s raised", batch.topic_partition)
                self.callback_error = self.callback_error or error
