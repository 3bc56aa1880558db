"""Sends by code that has interrupted its own thread within a step of the producer.

A signal handler runs between two instructions of the main thread, a finalizer between two of any thread; both may send.
The accumulator may be halfway through a change then, in a frame that goes on only when they return, so waiting for its
lock would never end. Such a send touches nothing of the interrupted step:

1. the record gets a batch of its own, which waits here, and the IO thread is woken;
2. the handler returns, and the step that it has interrupted ends;
3. the thread puts the batch behind the others of its partition before it sends anything else. Where an exception ends
   the step, the next step does that, at the latest the IO thread's.

Invariants: the order of sends is kept; what waits here is bounded. Kafka has nothing of the kind: Java runs no code in
the middle of another's.
"""

from collections import deque
from contextlib import AbstractContextManager
from typing import Any

from rayka.client import io_thread
from rayka.client.producer.delivery_future import DeliveryFuture, future_in
from rayka.client.producer.producer_batch import ProducerBatch
from rayka.client.producer.producer_topics import ProducerTopics
from rayka.client.producer.record_columns import Columns, Moment
from rayka.errors import NoSuchTopic

COUNT_MAX = 1_000
# The partition of a batch until `adopt` chooses one.
_ANY = -1


class InterruptingSends:
    """The batches of such sends. `batches`: those that wait for the end of a step, each with its partition or None."""

    def __init__(self, topics: ProducerTopics, lock: AbstractContextManager[object]) -> None:
        self._topics = topics
        self._lock = lock
        self.batches: deque[tuple[ProducerBatch, int | None]] = deque()

    def __repr__(self) -> str:
        return f"<InterruptingSends {len(self.batches)}>"

    def add(
        self,
        topic: str,
        partition: int | None,
        slot: Any,
        key: bytes | None,
        size_bytes: int,
        at: Moment,
    ) -> DeliveryFuture | None:
        """Takes one record; None when `COUNT_MAX` batches wait."""
        if len(self.batches) >= COUNT_MAX:
            return None
        batch = ProducerBatch(topic, _ANY if partition is None else partition, at.now_ms)
        batch.stamp(at.timestamp_ms, at.now_ms)
        batch.size_bytes += size_bytes
        batch.is_pinned = partition is not None and key is None
        future = future_in(batch, slot, key)
        batch.records.append(future)
        self.batches.append((batch, partition))
        return future

    def add_columns(
        self,
        topic: str,
        partition: int | None,
        columns: Columns,
        size_bytes: int,
        now_ms: float,
        *,
        is_pinned: bool,
    ) -> tuple[ProducerBatch, int] | None:
        """Takes columns: their batch and the index of the first record; None when `COUNT_MAX` batches wait."""
        if len(self.batches) >= COUNT_MAX:
            return None
        batch = ProducerBatch(topic, _ANY if partition is None else partition, now_ms)
        batch.is_pinned = is_pinned
        index = batch.add_columns(columns, size_bytes)
        self.batches.append((batch, partition))
        return batch, index

    def settle(self) -> None:
        """Puts the batches behind those of their partitions. Not called within a step that may be interrupted."""
        with self._lock:
            while self.batches:
                batch, partition = self.batches[0]
                try:
                    # An exception of a signal handler may have come between this line and the last one of the loop.
                    if self._topics.queue_with(batch) is None:
                        self._topics.adopt(batch, partition)
                except NoSuchTopic as error:
                    for callback in batch.fail(error):
                        io_thread.call_soon(callback)
                self.batches.popleft()
