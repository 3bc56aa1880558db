"""The sync producer: thread-safe and fast.

`send` is written for few bytecodes. The quick way appends a record of bytes alone to the open batch of the topic, or of
the key's partition, without a lock (`producer_batch` tells why this is safe). The arguments of `send` may be
positional, because Python looks up the defaults of keyword-only arguments in a dict, one by one. All other records take
the slow way, under the accumulator's lock.
Kafka: KafkaProducer (C7, C11, G10, G18). Left out: transactions.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, Unpack

from rayka.client import io_thread
from rayka.client.bootstrap import DEFAULT_CLUSTER, ClusterHandle, resolve
from rayka.client.io_thread import SyncClient, wait_for
from rayka.client.producer import at_exit
from rayka.client.producer.arrow_input import Data
from rayka.client.producer.delivery_future import (
    BatchFuture,
    BatchRun,
    DeliveryFuture,
    OnDelivery,
    wait_until_done,
)
from rayka.client.producer.outcomes import ProducerMetrics
from rayka.client.producer.producer_batch import ProducerBatch
from rayka.client.producer.producer_core import OutgoingRecord, ProducerCore, reported_to
from rayka.client.producer.producer_topics import MemoryTurn
from rayka.client.producer.record_columns import (
    KEYED_OVERHEAD_BYTES,
    OMITTED,
    RECORD_OVERHEAD_BYTES,
    PreparedRecord,
    Row,
    given_value,
)
from rayka.config.client_config import ProducerConfig
from rayka.errors import NoSuchTopic
from rayka.options import ProducerOptions

AddedT = TypeVar("AddedT")
PreparedT = TypeVar("PreparedT")
# Slack of outer waits in `flush` and `close`: the inner waits end first, with a better message.
CLOSE_SLACK_S = 10.0
# Longest wait of a `send` for the IO thread after a batch was filled.
LET_SEND_S = 0.1


class Producer(SyncClient):
    """Sends records to topics. Thread-safe; `with` closes it.

    Options are Kafka's, as keywords or dotted in the dict `config`; an unknown one is a ConfigError that names the
    nearest:

        acks: "all" | -1 | 0 | 1 | "-1" | "0" | "1" = "all"
        linger_ms: float = 5
        batch_size: int = 1048576
        buffer_memory: int = 134217728
        max_block_ms: int = 60000
        max_request_size: int = 1048576
        delivery_timeout_ms: int = 120000
        max_in_flight_requests_per_connection: int = 5
        enable_idempotence: bool | None = None
        compression_type: "none" | "gzip" | "lz4" | "zstd" | None = "none"
        key_serializer: "bytes" | "string" | "json" | "msgpack" | a pydantic model | a callable | None = None
        value_serializer: "bytes" | "string" | "json" | "msgpack" | a pydantic model | a callable | None = None
        partitioner: a callable | None = None
        interceptors: a list of objects = ()
        request_timeout_ms: int = 30000
        retry_backoff_ms: int = 100
        retry_backoff_max_ms: int = 1000
        metadata_max_age_ms: int = 300000
        metadata_max_idle_ms: int = 300000
        transport: "auto" | "ray" = "auto"

    A callable serializer takes what was sent and returns bytes; an object with `serialize(topic, headers, data)` is
    told where it goes. `partitioner(key, partitions, available)` chooses for
    records that name no partition: by the key as bytes or None, among all partitions and those with a leader; where it
    returns None, the producer chooses. `interceptors` are objects with `on_send(record)`, which returns the record or
    a changed one before it is serialized, `on_acknowledgement(metadata, error)`, or both, for each `send`; what they
    raise is logged and harms nothing else. `enable_idempotence=None` is True with `acks="all"` and
    at most 5 in flight.

    Guarantee: what was acknowledged is in the log (how safely, `acks` and the topic's `flush` say); the records of
    one partition stay in the order of their sends, over retries too, and a retry puts none into the log twice. For that
    the producer is idempotent, which needs `acks="all"` and is the default with it (`enable_idempotence`); without, a
    retry may repeat a record. A record that was accepted ends as metadata or as an error of its future, within
    `delivery_timeout_ms`. Callbacks run on rayka's IO thread: what one raises, SystemExit and KeyboardInterrupt too, is
    logged and raised by the next `flush` or `close`; it affects no other record.

    Close it, best by `with`. One that is dropped without `close` still sends what it has accepted. When the interpreter
    ends, what is on its way has five seconds more; what is not acknowledged then is reported on standard error, and the
    exit status is 120, or 1 where an exception ended the script.

    Raises ConfigError, ClusterNotFound. Kafka: KafkaProducer.
    """

    # True until `__init__` ends, so that `__del__` of a half-made producer does nothing.
    _is_closed = True
    _is_warned = False

    def __init__(
        self,
        cluster: str | ClusterHandle = DEFAULT_CLUSTER,
        *,
        config: Mapping[str, Any] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        parsed = ProducerConfig.given(config, options, what="producer")
        self._core = ProducerCore(resolve(cluster), parsed)
        self._accumulator = self._core.accumulator
        self._sticky = self._core.sticky
        self._by_key = self._core.by_key
        self._hash_of = self._accumulator.topics.hash_of
        at_exit.watch(self._core.sender)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Producer cluster={self._core.sender.cluster_name}{' closed' * self._is_closed}>"

    def __del__(self) -> None:
        if not self._is_closed and not io_thread.is_lost():
            # Before the warning, which may be an error. On the loop, because a collection may run `__del__` under the
            # accumulator's lock.
            io_thread.call_soon(self._accumulator.end_linger)
            self._warn_unclosed()

    def _warn_unclosed(self) -> None:
        """Warns the caller of a finalizer once that the producer is not closed."""
        if self._is_closed or self._is_warned or io_thread.is_lost():
            return
        self._is_warned = True
        warnings.warn(
            f"unclosed {self!r}; use `with`, or close it", ResourceWarning, stacklevel=3, source=self
        )

    # ---- Sending ----

    def send(
        self,
        topic: str,
        value: Any = OMITTED,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> DeliveryFuture:
        """Sends one record, in the background; the future ends as its RecordMetadata or as an error.

        value, key: bytes, or what the serializer takes; None stays None. A key alone, or with the value None, is a
        tombstone. headers: (str, bytes or None) pairs or a mapping. partition: else the key's (murmur2), else one that
        sticks until its batch is full. timestamp_ms: since 1970 UTC; by default now, to about 10 ms.
        on_delivery(error, metadata): called at the end, on the IO thread, with one of them None.

        Waits up to `max_block_ms` for the topic's metadata, or for memory. Partitions that are added to the topic are
        used within `metadata_max_age_ms` of the next send, at once when `partition` names one of them. Raises
        UnknownTopicOrPartition (also for a partition out of range), InvalidTopic, UnavailableError, BufferExhausted,
        RecordTooLarge, SerializationError, TypeError naming the argument, ClosedError.
        """
        if (
            type(value) is bytes
            and headers is None
            and partition is None
            and timestamp_ms is None
            and on_delivery is None
        ):
            future = self._take(topic, value) if key is None else self._take_keyed(topic, value, key)
            if future is not None:
                return future
        row = Row(given_value(value, key), key, headers, timestamp_ms)
        return self._send(topic, row, partition, on_delivery)

    def send_batch(self, topic: str, data: Data) -> BatchFuture:
        """Sends many records, in the background, without an object for each; its future ends as a list of
        BatchMetadata.

        data: a pyarrow RecordBatch or Table with the columns `value` (binary or string) and if wanted `key`,
        `timestamp` (or int64 ms), `headers` (list<struct<key, value>>), `partition`; or a list of values, or of
        `Record`s, of which key, value, headers and timestamp are taken. Serializers apply to lists only. Records with
        neither partition nor key go round the partitions in large runs. The data must not be changed before the
        future is done. Rows may fail by themselves: `failures` of the future says which.

        Waits and raises as `send`. When it raises BufferExhausted, the records before are on their way.
        """
        core = self._core
        core.check_usable()
        self._learn(topic)
        runs, first_row = [], 0
        for given in core.inputs(topic, data):
            self._learn(topic, given.last_partition)
            for piece in core.pieces(topic, given):
                added = core.try_append_columns(piece) or self._when_there_is_memory(
                    core.try_append_columns, piece
                )
                runs.append(BatchRun(*added, first_row, piece.rows))
            first_row += len(given.columns.values)
        return BatchFuture(runs)

    def flush(self, timeout: float | None = None) -> None:
        """Returns when every record sent before is over, acknowledged or failed, and its callbacks have run.

        Waits up to `timeout` seconds, by default as long as a delivery may take. Raises TimeoutError, what a delivery
        callback raised, and ClosedError.
        """
        self._core.check_usable()
        io_thread.refuse("flush")
        self._finish(self._accumulator.end_linger(), timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flushes and ends; closing again does nothing. What is not over after `timeout` seconds fails with
        ClosedError, and this raises TimeoutError; it raises what a delivery callback raised, too."""
        if self._is_closed or io_thread.is_lost():
            return
        io_thread.refuse("close")
        self._is_closed = self._core.is_closed = True
        try:
            self._finish(self._accumulator.close(), timeout)
        finally:
            wait_for(self._core.sender.close, CLOSE_SLACK_S * 1000, caller=self)

    def metrics(self) -> ProducerMetrics:
        """Returns the counters of the producer and of its waiting records."""
        return self._core.sender.outcomes.counts.snapshot(self._accumulator.batches())

    # ---- The quick way ----

    def _take(self, topic: str, value: Any) -> DeliveryFuture | None:
        """Appends a record without key by the quick way; None: the record needs the slow way."""
        try:
            batch = self._sticky[topic]
        # An unknown topic, or a topic that is no text; the slow way tells these apart.
        except (KeyError, TypeError):
            return None
        size_bytes = batch.size_bytes + len(value) + RECORD_OVERHEAD_BYTES
        if size_bytes > batch.limit_bytes:
            return None
        batch.size_bytes = size_bytes
        future = DeliveryFuture(batch, value)
        batch.records.append(future)
        if not batch.is_sealed or self._accumulator.is_counted(future):
            return future
        return None

    def _take_keyed(self, topic: str, value: bytes, key: Any) -> DeliveryFuture | None:
        """Appends a record with a key by the quick way, under the lock if the partition's batch is not open; None: the
        record needs the slow way.
        """
        if type(key) is not bytes:
            return None
        try:
            filling = self._by_key[topic].filling
            batch = filling[self._hash_of[key] % len(filling)]
        # IndexError: the topic was just created again with fewer partitions.
        except (KeyError, TypeError, IndexError):
            return None
        size_bytes = len(value) + len(key) + KEYED_OVERHEAD_BYTES
        if batch is None or batch.limit_bytes < 0:
            if size_bytes > self._core.record_bytes_max:
                return None
            # Raised if the topic was forgotten since the look-up.
            with suppress(NoSuchTopic):
                return self._core.try_append(PreparedRecord(topic, None, value, size_bytes, key))
            return None
        size_bytes += batch.size_bytes
        if size_bytes > batch.limit_bytes:
            return None
        batch.size_bytes = size_bytes
        batch.has_keys = True
        future = DeliveryFuture(batch, value, key)
        batch.records.append(future)
        if not batch.is_sealed or self._accumulator.is_counted(future):
            return future
        return None

    # ---- The slow way ----

    def _send(
        self, topic: str, row: Row, partition: int | None, on_delivery: OnDelivery | None
    ) -> DeliveryFuture:
        self._core.check_usable()
        interceptors = self._core.interceptors
        if interceptors is None:
            return self._append(topic, row, partition, on_delivery)
        given = OutgoingRecord(topic, row.value, row.key, row.headers, partition, row.timestamp_ms)
        sent = interceptors.changed(given)
        row = Row(sent.value, sent.key, sent.headers, sent.timestamp_ms)
        try:
            reported = reported_to(interceptors.tell, on_delivery)
            return self._append(sent.topic, row, sent.partition, reported)
        except Exception as error:
            interceptors.tell(None, error)
            raise

    def _append(
        self, topic: str, row: Row, partition: int | None, on_delivery: OnDelivery | None
    ) -> DeliveryFuture:
        core, topics = self._core, self._accumulator.topics
        self._learn(topic, partition)
        record = core.check(topic, row, partition, on_delivery)
        filled_count = topics.filled_count
        future = core.try_append(record) or self._when_there_is_memory(core.try_append, record)
        if topics.filled_count != filled_count and not io_thread.is_current():
            io_thread.wait_for_call(core.sender.call_when_sent, LET_SEND_S)
        return future

    def _learn(self, topic: str, partition: int | None = None) -> None:
        """Waits until the topic, and the partition if given, are known. Raises as `ProducerCore.learn`."""
        while not self._core.knows(topic, partition):
            if io_thread.is_current():
                self._core.check_partition(topic, partition)
            wait_for(partial(self._core.learn, topic, partition), self._core.config.max_block_ms, caller=self)

    def _when_there_is_memory(
        self, try_append: Callable[[PreparedT, MemoryTurn], AddedT | None], prepared: PreparedT
    ) -> AddedT:
        """Tries to append whenever memory is freed, behind the sends that wait already. Raises BufferExhausted."""
        io_thread.refuse("send, with the buffer full,")
        core, line, turn = self._core, self._accumulator.line, MemoryTurn()
        deadline_ms = core.sender.now_ms() + core.config.max_block_ms
        try:
            line.join(turn)
            while (left_ms := deadline_ms - core.sender.now_ms()) > 0:
                # Read before the attempt, so that memory freed after the attempt ends the wait.
                news_count = line.news_count
                added = try_append(prepared, turn)
                if added is not None:
                    return added
                self._accumulator.end_linger()
                io_thread.wait_for_call(partial(line.call_on_news, turn, news_count), left_ms / 1000)
                core.check_usable()
            raise core.exhausted()
        finally:
            line.leave(turn)

    def _finish(self, pending: Sequence[ProducerBatch], timeout: float | None) -> None:
        if timeout is None:
            timeout = self._core.config.delivery_timeout_ms / 1000 + CLOSE_SLACK_S
        wait_until_done(pending, timeout)
        io_thread.wait_for_turn(CLOSE_SLACK_S)
        error = self._core.take_callback_error()
        if error is not None:
            raise error
