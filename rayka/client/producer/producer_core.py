"""What the sync and the async producer have in common: records are checked, serialized, placed and offered.

Invariant: nothing here waits. Where a record lacks metadata or memory the producer is told so, and waits in its own
way: by blocking its thread, or by awaiting. Kafka: KafkaProducer.doSend.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, NamedTuple, Protocol, TypeVar

from rayka import forks
from rayka.client import io_thread
from rayka.client.arguments import check_callback, text_of
from rayka.client.bootstrap import ClusterHandle
from rayka.client.interception import Interceptors
from rayka.client.producer.acknowledgement import RecordMetadata
from rayka.client.producer.arrow_input import Data, Input, Piece, Rows, inputs_of, pieces_of
from rayka.client.producer.delivery_future import DeliveryFuture, OnDelivery
from rayka.client.producer.producer_batch import BATCH_OVERHEAD_BYTES, ProducerBatch
from rayka.client.producer.producer_topics import MemoryTurn
from rayka.client.producer.record_columns import (
    Moment,
    Partitioning,
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

# The application's hooks around each record of `send`: one before it is serialized, one at its end.
#
# Invariant: an interceptor harms nothing but itself. What it raises is logged; the record goes on as it was. Kafka:
# ProducerInterceptor, ProducerInterceptors.


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


Run = tuple[ProducerBatch, int]  # and the index of its first record there
AddedT = TypeVar("AddedT", covariant=True)


class Attempt(Protocol[AddedT]):
    """Adds records; None while there is no memory for them. `turn`: the place of a caller that waits for memory."""

    def __call__(self, turn: MemoryTurn | None = None) -> AddedT | None: ...


class Outbox:
    """See the module."""

    def __init__(self, handle: ClusterHandle, config: ProducerConfig) -> None:
        self.config = config
        self.key_serializer = serializer(config.key_serializer, "key_serializer")
        self.value_serializer = serializer(config.value_serializer, "value_serializer")
        self.sender = Sender(handle, config, Random())
        self.accumulator = self.sender.accumulator
        self.interceptors = ProducerInterceptors.of(config.interceptors)
        self._partitioning = _partitioning(config.partitioner, self.sender)
        # Where a value is not ready as it comes, or placed by its batch, the quick way of `send` must find nothing.
        is_plain = not (self.value_serializer or self._partitioning or self.interceptors)
        topics = self.accumulator.topics
        self.sticky = topics.sticky if is_plain else {}
        self.by_key = topics.by_key if is_plain and not self.key_serializer else {}
        self.is_closed = False
        self._record_bytes_max = min(config.max_request_size, config.buffer_memory) - BATCH_OVERHEAD_BYTES

    def __repr__(self) -> str:
        return f"<Outbox {self.accumulator!r}>"

    def check_usable(self) -> None:
        """Raises ClosedError, and UnavailableError in a forked child."""
        forks.refuse()
        if self.is_closed:
            raise ClosedError(
                f"the producer of cluster {self.sender.cluster_name!r} is closed: make a new Producer"
            )

    # ---- Metadata ----

    def knows(self, topic: str, partition: int | None = None) -> bool:
        """Whether the metadata of the topic is here, and the partition is one of its own. Raises TypeError."""
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
        """Gets what `knows` misses, on the IO thread; the active controller is asked for a partition that is not known
        yet. Raises NoSuchTopic, InvalidTopic, UnavailableError, ValueError for what is no text.
        """
        if not self.knows(topic):
            text_of(topic, "topic")
            await self.sender.learn_topic(topic)
        if not self.knows(topic, partition):
            await self.sender.metadata.renew((topic,), self.config.max_block_ms)
            self.check_partition(topic, partition)

    def check_partition(self, topic: str, partition: int | None) -> None:
        """Raises NoSuchTopic for a partition that the topic, which is known, does not have."""
        if not self.knows(topic, partition) and (known := self.accumulator.topics.get(topic)) is not None:
            raise NoSuchTopic(
                f"partition {partition} of topic {topic!r} does not exist in cluster {self.sender.cluster_name!r}: "
                f"it has {len(known.queues)}, numbered from 0"
            )

    # ---- One record ----

    def prepared(
        self, topic: str, row: Row, partition: int | None, on_delivery: OnDelivery | None
    ) -> "Attempt[DeliveryFuture]":
        """The record as it will be sent, for a topic that is known: a call appends it, or returns None while the memory
        for it is not there. Raises as `Producer.send`.
        """
        row.headers, row.timestamp_ms = as_headers(row.headers), as_timestamp(row.timestamp_ms)
        row.value = as_bytes(row.value, self.value_serializer, "value", topic, row.headers)
        row.key = as_bytes(row.key, self.key_serializer, "key", topic, row.headers)
        accumulator = self.accumulator
        if partition is None and self._partitioning is not None:
            partition = self._partitioning.partition(topic, row.key)
        choosing_key = None
        if partition is None and row.key is not None:
            choosing_key = row.key
            known = accumulator.topics.get(topic)
            if known is None:
                raise NoSuchTopic(f"topic {topic!r} was deleted")
            partition = accumulator.topics.hash_of[row.key] % len(known.queues)
        if on_delivery is not None:
            check_callback(on_delivery, "on_delivery")
        is_plain = row.key is None and not row.headers and row.timestamp_ms is None
        slot = row.value if is_plain else row
        size_bytes = size_of(slot)
        if size_bytes > self._record_bytes_max:
            raise self._too_large(topic, size_bytes)

        def append(turn: MemoryTurn | None = None) -> DeliveryFuture | None:
            at = Moment(self.sender.now_ms(), io_thread.wall_clock_ms())
            return accumulator.append(
                topic,
                partition,
                slot,
                size_bytes,
                at,
                key=choosing_key,
                on_delivery=on_delivery,
                turn=turn,
            )

        return append

    def append_keyed(
        self, topic: str, partition: int, value: bytes, key: bytes, size_bytes: int
    ) -> DeliveryFuture | None:
        """A value and a key, for a partition that no batch is open for; None where it needs `prepared`."""
        if size_bytes > self._record_bytes_max:
            return None
        at, accumulator = Moment(self.sender.now_ms(), io_thread.wall_clock_ms()), self.accumulator
        future = accumulator.append_next(topic, partition, value, key, size_bytes, at)
        if future is not None:
            return future
        # Raised if the topic was forgotten, or made anew, since `knows`.
        with suppress(NoSuchTopic):
            return accumulator.append(topic, partition, value, size_bytes, at, key=key)
        return None

    def _too_large(self, topic: str, size_bytes: int) -> RecordTooLarge:
        return RecordTooLarge(
            f"a record for topic {topic!r} takes {size_bytes} bytes; "
            f"max_request_size={self.config.max_request_size} and buffer_memory={self.config.buffer_memory} "
            f"leave {self._record_bytes_max} for one"
        )

    # ---- Many records ----

    def inputs(self, topic: str, data: Data) -> list[Input]:
        """The records of a `send_batch`, serialized. Raises as `Producer.send_batch`."""
        serializers = (self.key_serializer, self.value_serializer)
        return inputs_of(data, io_thread.wall_clock_ms(), serializers, topic)

    def prepared_runs(self, topic: str, given: Input) -> "Iterator[tuple[Attempt[Run], Rows]]":
        """Pieces that fit a batch each, for a topic that is known: a call adds one, or returns None while the memory
        for it is not there; and its rows in the input. Raises RecordTooLarge before the first.
        """
        known = self.accumulator.topics.get(topic)
        if known is None:
            raise NoSuchTopic(f"topic {topic!r} was deleted")
        if self._partitioning is not None:
            given = given.placed_by(self._partitioning, topic)
        placed = given.placed(len(known.queues), known.last_sticky)
        for piece in pieces_of(placed, known.batch_bytes - BATCH_OVERHEAD_BYTES, self._record_bytes_max):
            yield partial(self._add, topic, piece), piece.rows

    def _add(self, topic: str, piece: Piece, turn: MemoryTurn | None = None) -> Run | None:
        return self.accumulator.add_columns(
            topic,
            piece.partition,
            piece.columns,
            piece.size_bytes,
            self.sender.now_ms(),
            turn,
            is_pinned=piece.is_pinned,
        )

    # ---- The end ----

    def take_callback_error(self) -> BaseException | None:
        """What one of the application's callbacks raised since the last time."""
        outcomes = self.sender.outcomes
        error, outcomes.callback_error = outcomes.callback_error, None
        # A caller's task would take this for its own cancellation.
        if isinstance(error, asyncio.CancelledError):
            replaced = RuntimeError("a delivery callback raised CancelledError")
            replaced.__cause__ = error
            return replaced
        return error

    def exhausted(self) -> BufferExhausted:
        """What a record that waited for memory in vain raises."""
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
