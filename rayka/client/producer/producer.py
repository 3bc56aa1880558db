"""The producer as people use it: sync, thread-safe, fast.

`send` is written for few bytecodes: without key, headers and so on it appends to the open batch of the topic and
takes no lock (`producer_batch` tells why that is safe). Everything else is the slow way, under the accumulator's lock.
Kafka: KafkaProducer (C7, C11, G10, G18). Left out: transactions.
"""

import asyncio
import warnings
from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from rayka import forks
from rayka.client import io_thread
from rayka.client.bootstrap import DEFAULT_CLUSTER, ClusterHandle, resolve
from rayka.client.bounded_wait import wait_for
from rayka.client.metadata import NoSuchTopic
from rayka.client.producer import at_exit
from rayka.client.producer.accumulator import Moment
from rayka.client.producer.arrow_input import Data, Piece, inputs_of, pieces_of
from rayka.client.producer.delivery_future import BatchFuture, DeliveryFuture, OnDelivery, wait_until_done
from rayka.client.producer.producer_batch import BATCH_OVERHEAD_BYTES, ProducerBatch
from rayka.client.producer.record_columns import RECORD_OVERHEAD_BYTES, Row
from rayka.client.producer.row_input import as_bytes, as_headers, as_timestamp, size_of
from rayka.client.producer.sender import Sender
from rayka.client.producer.topic_queues import TopicQueues
from rayka.client.serializers import serializer
from rayka.config import ProducerConfig
from rayka.errors import BufferExhausted, ClosedError, RecordTooLarge
from rayka.options import ProducerOptions
from rayka.protocol.murmur2 import partition_for_key

AddedT = TypeVar("AddedT")
_CLOSE_SLACK_S = 10.0  # for what the waits inside end by themselves, with a better message
_LET_SEND_S = 0.1  # a courtesy to the IO thread, no promise


class Producer:
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
        request_timeout_ms: int = 30000
        retry_backoff_ms: int = 100
        retry_backoff_max_ms: int = 1000
        metadata_max_age_ms: int = 300000
        transport: "auto" | "ray" = "auto"

    A callable serializer takes what was sent and returns bytes. `enable_idempotence=None` is True with `acks="all"` and
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

    _is_closed = True  # until it is made

    def __init__(
        self,
        cluster: str | ClusterHandle = DEFAULT_CLUSTER,
        *,
        config: Mapping[str, Any] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._config = ProducerConfig.given(config, options, what="producer")
        self._key_serializer = serializer(self._config.key_serializer, "key_serializer")
        self._value_serializer = serializer(self._config.value_serializer, "value_serializer")
        self._sender = Sender(resolve(cluster), self._config, Random())
        self._accumulator = self._sender.accumulator
        # With a serializer no value is ready as it comes, so the quick way of `send` must find nothing.
        self._sticky = {} if self._value_serializer else self._accumulator.topics.sticky
        largest_bytes = min(self._config.max_request_size, self._config.buffer_memory)
        self._record_bytes_max = largest_bytes - BATCH_OVERHEAD_BYTES
        at_exit.watch(self._sender)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Producer cluster={self._sender.cluster_name}{' closed' * self._is_closed}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._is_closed and not io_thread.is_lost():
            # First, as warnings may be errors. On the loop, because a collection may run this under the lock.
            io_thread.call_soon(self._accumulator.hurry)
            warnings.warn(
                f"unclosed {self!r}; use `with`, or close it", ResourceWarning, stacklevel=2, source=self
            )

    # ---- Sending ----

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> DeliveryFuture:
        """Sends one record, in the background; the future ends as its RecordMetadata or as an error.

        value, key: bytes, or what the serializer takes; None stays None (a tombstone). headers: (str, bytes or None)
        pairs or a mapping. partition: else the key's (murmur2), else one that sticks until its batch is full.
        timestamp_ms: since 1970 UTC; by default now, to about 10 ms. on_delivery(error, metadata): called at the end,
        on the IO thread, with one of them None.

        Waits up to `max_block_ms` for the topic's metadata, or for memory. Partitions that are added to the topic are
        used within `metadata_max_age_ms` of the next send, at once when `partition` names one of them. Raises
        UnknownTopicOrPartition (also for a partition out of range), InvalidTopic, UnavailableError, BufferExhausted,
        RecordTooLarge, SerializationError, TypeError naming the argument, ClosedError.
        """
        if (
            type(value) is bytes
            and key is None
            and headers is None
            and partition is None
            and timestamp_ms is None
            and on_delivery is None
        ):
            try:
                batch = self._sticky[topic]
            except (KeyError, TypeError):  # not known, or no name at all: the slow way knows
                pass
            else:
                size_bytes = batch.size_bytes + len(value) + RECORD_OVERHEAD_BYTES
                if size_bytes <= batch.limit_bytes:
                    batch.size_bytes = size_bytes
                    future = DeliveryFuture(batch, value)
                    batch.records.append(future)
                    if not batch.is_sealed or self._accumulator.is_counted(future):
                        return future
        row = Row(value, key, headers, timestamp_ms)
        return self._send(topic, row, partition, on_delivery)

    def send_batch(self, topic: str, data: Data) -> BatchFuture:
        """Sends many records, in the background, without an object for each; its future ends as a list of
        BatchMetadata.

        data: a pyarrow RecordBatch or Table with the columns `value` (binary or string) and if wanted `key`,
        `timestamp` (or int64 ms), `headers` (list<struct<key, value>>), `partition`; or a list of values, or of
        `Record`s, of which key, value, headers and timestamp are taken. Serializers apply to lists only. Records with
        neither partition nor key go round the partitions in large runs. The data must not be changed before the
        future is done.

        Waits and raises as `send`. When it raises BufferExhausted, the records before are on their way.
        """
        self._check_usable()
        target = self._topic(topic)
        serializers = (self._key_serializer, self._value_serializer)
        runs = []
        for given in inputs_of(data, io_thread.wall_clock_ms(), serializers):
            if given.partitions is not None:
                target = self._topic_with(topic, int(given.partitions.max()))
            placed = given.placed(len(target.queues), target.last_sticky)
            room = target.batch_bytes - BATCH_OVERHEAD_BYTES
            for piece in pieces_of(placed, room, self._record_bytes_max):
                runs.append((*self._add_columns(topic, piece), len(piece.columns.values)))
        return BatchFuture(runs)

    def flush(self, timeout: float | None = None) -> None:
        """Returns when every record sent before is over, acknowledged or failed, and its callbacks have run.

        Waits up to `timeout` seconds, by default as long as a delivery may take. Raises TimeoutError, what a delivery
        callback raised, and ClosedError.
        """
        self._check_usable()
        self._finish(self._accumulator.hurry(), timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flushes and ends; closing again does nothing. What is not over after `timeout` seconds fails with
        ClosedError, and this raises TimeoutError; it raises what a delivery callback raised, too."""
        if self._is_closed or io_thread.is_lost():
            return
        io_thread.refuse("close")
        self._is_closed = True
        try:
            self._finish(self._accumulator.close(), timeout)
        finally:
            wait_for(self._sender.close(), _CLOSE_SLACK_S * 1000, caller=self)

    # ---- The slow way ----

    def _send(
        self, topic: str, row: Row, partition: int | None, on_delivery: OnDelivery | None
    ) -> DeliveryFuture:
        self._check_usable()
        target = self._topic(topic)
        row.value = as_bytes(row.value, self._value_serializer, "value")
        row.key = as_bytes(row.key, self._key_serializer, "key")
        row.headers, row.timestamp_ms = as_headers(row.headers), as_timestamp(row.timestamp_ms)
        if partition is not None:
            self._topic_with(topic, partition)
        elif row.key is not None:
            partition = partition_for_key(row.key, len(target.queues))
        if on_delivery is not None and not callable(on_delivery):
            raise TypeError(f"on_delivery: expected a callable, found {type(on_delivery).__name__}")
        is_plain = row.key is None and not row.headers and row.timestamp_ms is None
        slot = row.value if is_plain else row
        size_bytes = size_of(slot)
        if size_bytes > self._record_bytes_max:
            raise RecordTooLarge(
                f"a record for topic {topic!r} takes {size_bytes} bytes; "
                f"max_request_size={self._config.max_request_size} and buffer_memory={self._config.buffer_memory} "
                f"leave {self._record_bytes_max} for one"
            )
        accumulator = self._accumulator

        def append() -> DeliveryFuture | None:
            at = Moment(self._sender.now_ms(), io_thread.wall_clock_ms())
            return accumulator.append(topic, partition, slot, size_bytes, at, on_delivery=on_delivery)

        filled_count = accumulator.topics.filled_count
        future = append() or self._when_there_is_memory(append)
        if accumulator.topics.filled_count != filled_count and not io_thread.is_current():
            self._sender.let_send(_LET_SEND_S)
        return future

    def _add_columns(self, topic: str, piece: Piece) -> tuple[ProducerBatch, int]:
        def add() -> tuple[ProducerBatch, int] | None:
            return self._accumulator.add_columns(
                topic, piece.partition, piece.columns, piece.size_bytes, self._sender.now_ms()
            )

        return add() or self._when_there_is_memory(add)

    def _when_there_is_memory(self, attempt: Callable[[], AddedT | None]) -> AddedT:
        """Repeats the attempt as memory is freed."""
        io_thread.refuse("send, with the buffer full,")
        deadline_ms = self._sender.now_ms() + self._config.max_block_ms
        while (left_ms := deadline_ms - self._sender.now_ms()) > 0:
            freed_count = (
                self._accumulator.freed_count
            )  # before the attempt: what is freed behind it ends the wait
            added = attempt()
            if added is not None:
                return added
            self._accumulator.wait_for_memory(freed_count, left_ms / 1000)
            self._check_usable()
        raise BufferExhausted(
            f"buffer_memory={self._config.buffer_memory} stayed full for max_block_ms={self._config.max_block_ms}: "
            f"cluster {self._sender.cluster_name!r} takes records slower than they are sent, or not at all"
        )

    # ---- Within ----

    def _finish(self, pending: Sequence[ProducerBatch], timeout: float | None) -> None:
        if timeout is None:
            timeout = self._config.delivery_timeout_ms / 1000 + _CLOSE_SLACK_S
        wait_until_done(pending, timeout)
        io_thread.wait_for_turn(_CLOSE_SLACK_S)
        outcomes = self._sender.outcomes
        error, outcomes.callback_error = outcomes.callback_error, None
        # A caller's task would take this for its own cancellation.
        if isinstance(error, asyncio.CancelledError):
            raise RuntimeError("a delivery callback raised CancelledError") from error
        if error is not None:
            raise error

    def _topic(self, name: str) -> TopicQueues:
        """The topic, with its metadata. Raises as `learn_topic`, and TypeError."""
        if not isinstance(name, str):
            raise TypeError(f"topic: expected str, found {type(name).__name__}")
        while (topic := self._accumulator.topics.get(name)) is None:
            wait_for(self._sender.learn_topic(name), self._config.max_block_ms, caller=self)
        return topic

    def _topic_with(self, name: str, partition: int) -> TopicQueues:
        """The topic, this partition among its own; the active controller is asked for one that is not known yet.
        Raises NoSuchTopic.
        """
        if not isinstance(partition, int) or isinstance(partition, bool):
            raise TypeError(f"partition: expected int, found {type(partition).__name__}")
        topic = self._topic(name)
        if partition >= len(topic.queues) and not io_thread.is_current():
            wait_for(self._sender.renew_topic(name), self._config.max_block_ms, caller=self)
            topic = self._topic(name)
        if not 0 <= partition < len(topic.queues):
            raise NoSuchTopic(
                f"partition {partition} of topic {name!r} does not exist in cluster {self._sender.cluster_name!r}: "
                f"it has {len(topic.queues)}, numbered from 0"
            )
        return topic

    def _check_usable(self) -> None:
        forks.refuse()
        if self._is_closed:
            raise ClosedError(f"{self!r}: make a new Producer")
