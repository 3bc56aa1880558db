"""The steps of a send that the sync and the async producer share: check, serialize, append; and the interceptors.

Invariants: no append waits. If a record lacks metadata or memory, the caller is told and waits in its own way, by
blocking its thread or by awaiting. An error of an interceptor is logged, and the record continues unchanged. Kafka:
KafkaProducer.doSend, ProducerInterceptors.
"""

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from rayka import forks
from rayka.client import io_thread
from rayka.client.arguments import check_callback, text_of
from rayka.client.bootstrap import ClusterHandle
from rayka.client.interception import Interceptors
from rayka.client.producer.acknowledgement import RecordMetadata
from rayka.client.producer.arrow_input import Data, Input, Piece, inputs_of, pieces_of
from rayka.client.producer.delivery_future import DeliveryFuture, OnDelivery
from rayka.client.producer.producer_batch import BATCH_OVERHEAD_BYTES, ProducerBatch
from rayka.client.producer.producer_topics import MemoryTurn
from rayka.client.producer.record_columns import (
    Moment,
    Partitioning,
    PreparedRecord,
    Row,
    as_bytes,
    as_headers,
    as_timestamp,
    size_of,
)
from rayka.client.producer.sender import Sender
from rayka.client.serializers import serializer
from rayka.config.client_config import ProducerConfig
from rayka.errors import BufferExhausted, ClosedError, ConfigError, NoSuchTopic, RecordTooLarge


class OutgoingRecord(NamedTuple):
    """A record as given to `send`. An interceptor returns the record or a changed copy: `record._replace(key=...)`."""

    topic: str
    value: Any
    key: Any
    headers: Any
    partition: int | None
    timestamp_ms: int | None


class ProducerInterceptors(Interceptors[OutgoingRecord]):
    """Calls the application's interceptors, which have `on_send(record)`, `on_acknowledgement(metadata, error)` or
    both.

    `on_acknowledgement` also gets the error of a `send` that raised.
    """

    names = ("on_send", "on_acknowledgement")

    @staticmethod
    def check(returned: Any) -> OutgoingRecord:
        if not isinstance(returned, OutgoingRecord):
            raise TypeError(f"expected on_send to return the record, found {type(returned).__name__}")
        return returned


def reported_to(tell: Callable[..., object], on_delivery: OnDelivery | None) -> OnDelivery:
    """Returns a callback that calls the interceptors, then the application's `on_delivery`, if given."""

    def report(error: Exception | None, metadata: RecordMetadata | None) -> None:
        tell(metadata, error)
        if on_delivery is not None:
            on_delivery(error, metadata)

    return report


class ProducerCore:
    """A producer without the waits.

    A `send` calls `check` once the topic is known, then `try_append` until memory is free. A `send_batch` calls
    `inputs`, `pieces`, and `try_append_columns` for each piece.
    """

    def __init__(self, handle: ClusterHandle, config: ProducerConfig) -> None:
        self.config = config
        self.key_serializer = serializer(config.key_serializer, "key_serializer")
        self.value_serializer = serializer(config.value_serializer, "value_serializer")
        self.sender = Sender(handle, config, Random())
        self.accumulator = self.sender.accumulator
        self._time_s = self.sender.loop.time
        self.interceptors = ProducerInterceptors.of(config.interceptors)
        self._partitioning = _partitioning(config.partitioner, self.sender)
        # The quick way of `send` must find no batch if a record needs a serializer, a partitioner or an interceptor.
        is_plain = not (self.value_serializer or self._partitioning or self.interceptors)
        topics = self.accumulator.topics
        self.sticky = topics.sticky if is_plain else {}
        self.by_key = topics.by_key if is_plain and not self.key_serializer else {}
        self.is_closed = False
        self.record_bytes_max = min(config.max_request_size, config.buffer_memory) - BATCH_OVERHEAD_BYTES

    def check_usable(self) -> None:
        """Raises ClosedError, and UnavailableError in a forked child."""
        forks.refuse()
        if self.is_closed:
            raise ClosedError(
                f"the producer of cluster {self.sender.cluster_name!r} is closed: make a new Producer"
            )

    # ---- Metadata ----

    def knows(self, topic: str, partition: int | None = None) -> bool:
        """Whether the topic's metadata are known, and the partition, if given, exists. Raises TypeError."""
        if not isinstance(topic, str):
            raise TypeError(f"topic: expected str, found {type(topic).__name__}")
        topics = self.accumulator.topics
        known = topics.get(topic)
        if known is None:
            return False
        if not known.is_wanted:
            known.is_wanted = True
            # The other half of the race in `Accumulator.forget_idle`.
            if topics.get(topic) is not known:
                return False
        if partition is None:
            return True
        if not isinstance(partition, int) or isinstance(partition, bool):
            raise TypeError(f"partition: expected int, found {type(partition).__name__}")
        return 0 <= partition < len(known.queues)

    async def learn(self, topic: str, partition: int | None = None) -> None:
        """Fetches the metadata that `knows` lacks, on the IO thread; an unknown partition needs newer metadata.

        Raises NoSuchTopic, InvalidTopic, UnavailableError, and ValueError for a name that is no text.
        """
        if not self.knows(topic):
            text_of(topic, "topic")
            await self.sender.learn_topic(topic)
        if not self.knows(topic, partition):
            await self.sender.metadata.renew((topic,), self.config.max_block_ms)
            self.check_partition(topic, partition)

    def check_partition(self, topic: str, partition: int | None) -> None:
        """Raises NoSuchTopic for a partition that a known topic does not have."""
        if not self.knows(topic, partition) and (known := self.accumulator.topics.get(topic)) is not None:
            raise NoSuchTopic(
                f"partition {partition} of topic {topic!r} does not exist in cluster {self.sender.cluster_name!r}: "
                f"it has {len(known.queues)}, numbered from 0"
            )

    # ---- One record ----

    def check(
        self, topic: str, row: Row, partition: int | None, on_delivery: OnDelivery | None
    ) -> PreparedRecord:
        """Checks and serializes a record of a known topic. Raises as `Producer.send`."""
        headers = row.headers = None if row.headers is None else as_headers(row.headers)
        if row.timestamp_ms is not None:
            row.timestamp_ms = as_timestamp(row.timestamp_ms)
        if type(row.value) is not bytes or self.value_serializer is not None:
            row.value = as_bytes(row.value, self.value_serializer, "value", topic, headers)
        if row.key is not None:
            row.key = as_bytes(row.key, self.key_serializer, "key", topic, headers)
        if partition is None and self._partitioning is not None:
            partition = self._partitioning.partition(topic, row.key)
        if on_delivery is not None:
            check_callback(on_delivery, "on_delivery")
        size_bytes = size_of(row)
        if size_bytes > self.record_bytes_max:
            raise RecordTooLarge(
                f"a record for topic {topic!r} takes {size_bytes} bytes; "
                f"max_request_size={self.config.max_request_size} and buffer_memory={self.config.buffer_memory} "
                f"leave {self.record_bytes_max} for one"
            )
        slot = row if headers or row.timestamp_ms is not None else row.value
        return PreparedRecord(topic, partition, slot, size_bytes, row.key, on_delivery)

    def try_append(self, record: PreparedRecord, turn: MemoryTurn | None = None) -> DeliveryFuture | None:
        """Appends the record; None while its memory is not free. `turn` is the place of a caller that waits for memory.

        Raises ClosedError, and NoSuchTopic for a topic or a partition deleted since `check`.
        """
        at = Moment(self._time_s() * 1000, io_thread.wall_clock_ms())
        return self.accumulator.try_append(record, at, turn)

    # ---- Many records ----

    def inputs(self, topic: str, data: Data) -> list[Input]:
        """Reads and serializes the records of a `send_batch`. Raises as `Producer.send_batch`."""
        serializers = (self.key_serializer, self.value_serializer)
        return inputs_of(data, io_thread.wall_clock_ms(), serializers, topic)

    def pieces(self, topic: str, given: Input) -> Iterator[Piece]:
        """Cuts the records for a known topic into pieces that fit a batch. Raises RecordTooLarge before the first
        piece.
        """
        known = self.accumulator.topics.get(topic)
        if known is None:
            raise NoSuchTopic(f"topic {topic!r} was deleted")
        if self._partitioning is not None:
            given = given.placed_by(self._partitioning, topic)
        placed = given.placed(len(known.queues), known.last_sticky)
        return pieces_of(topic, placed, known.batch_bytes - BATCH_OVERHEAD_BYTES, self.record_bytes_max)

    def try_append_columns(
        self, piece: Piece, turn: MemoryTurn | None = None
    ) -> tuple[ProducerBatch, int] | None:
        """Appends a piece; returns its batch and the index of its first record. None and errors as `try_append`."""
        return self.accumulator.try_append_columns(piece, self.sender.now_ms(), turn)

    # ---- The end ----

    def take_callback_error(self) -> BaseException | None:
        """Returns the first error of an application's callback since the last call, or None."""
        outcomes = self.sender.outcomes
        error, outcomes.callback_error = outcomes.callback_error, None
        # The caller's task would take a CancelledError for its own cancellation.
        if isinstance(error, asyncio.CancelledError):
            replaced = RuntimeError("a delivery callback raised CancelledError")
            replaced.__cause__ = error
            return replaced
        return error

    def exhausted(self) -> BufferExhausted:
        """The error of a record that got no memory within `max_block_ms`."""
        return BufferExhausted(
            f"buffer_memory={self.config.buffer_memory} stayed full for max_block_ms={self.config.max_block_ms}: "
            f"cluster {self.sender.cluster_name!r} takes records slower than they are sent, or not at all"
        )


def _partitioning(given: Any, sender: Sender) -> Partitioning | None:
    if given is None:
        return None
    if callable(given):
        partitioner: Any = given
        return Partitioning(partitioner, sender.metadata.last_known)
    raise ConfigError(
        "partitioner: expected a callable of (key, all partitions, those with a leader), "
        f"found {type(given).__name__}"
    )
