"""The producer for event loops: wraps the sync producer, and awaits where the sync producer would block.

Records, batches, retries and the IO thread are those of the sync producer; nothing is implemented twice. Kafka has no
such client; aiokafka's runs on the loop of its user.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, Unpack

from rayka.aio.opening import AioClient, Reports
from rayka.client import io_thread
from rayka.client.bootstrap import DEFAULT_CLUSTER, ClusterHandle
from rayka.client.io_thread import await_for
from rayka.client.other_loops import called
from rayka.client.producer import producer
from rayka.client.producer.acknowledgement import RecordMetadata
from rayka.client.producer.arrow_input import Data
from rayka.client.producer.delivery_future import (
    BatchFuture,
    BatchRun,
    DeliveryFuture,
    OnDelivery,
    await_done,
)
from rayka.client.producer.outcomes import ProducerMetrics
from rayka.client.producer.producer_batch import ProducerBatch
from rayka.client.producer.producer_core import OutgoingRecord, ProducerCore, reported_to
from rayka.client.producer.producer_topics import MemoryTurn
from rayka.client.producer.record_columns import OMITTED, Row, given_value
from rayka.config.client_config import ProducerConfig
from rayka.errors import ClosedError
from rayka.options import ProducerOptions

AddedT = TypeVar("AddedT")
PreparedT = TypeVar("PreparedT")


class _Core(producer.Producer):
    """Accepts records that need no wait; the async producer awaits metadata and memory for all others."""

    take = producer.Producer._take
    take_keyed = producer.Producer._take_keyed
    warn_unclosed = producer.Producer._warn_unclosed

    def __repr__(self) -> str:
        return super().__repr__().replace("<Producer", "<aio.Producer", 1)

    @property
    def producer_core(self) -> ProducerCore:
        return self._core

    def end(self) -> Sequence[ProducerBatch]:
        """Refuses further records; returns the batches with records."""
        self._is_closed = self._core.is_closed = True
        return self._accumulator.close()


class Producer(AioClient[_Core]):
    """Sends records to topics, from an event loop. `async with` closes it.

    Arguments, options and guarantees are those of `rayka.Producer`. The first awaited call, or `async with`, looks up
    the cluster. `await producer.send(...)` returns when the record is accepted, with a future that can be awaited for
    its RecordMetadata; while `buffer_memory` is full the call awaits and other tasks run. Callbacks, also those of
    interceptors, run in the loop of their `send` and may be coroutine functions. An exception of a callback is logged,
    and raised by the next `flush` or `close`.

    A task that is cancelled in `send` has sent its whole record or nothing. A task that is cancelled in `flush` or in
    an awaited future ends only its wait.

    Raises ConfigError; the first awaited call raises ClusterNotFound. Kafka: KafkaProducer.
    """

    def __init__(
        self,
        cluster: str | ClusterHandle = DEFAULT_CLUSTER,
        *,
        config: Mapping[str, Any] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._config = ProducerConfig.given(config, options, what="producer")
        super().__init__(partial(_Core, cluster, config=config, **options), "aio.Producer")
        self._reports = Reports()

    def __del__(self) -> None:
        """Warns of an unclosed client here, because a thread may keep the core alive for longer."""
        if self._core is not None and not self._is_closed:
            self._core.warn_unclosed()

    async def send(
        self,
        topic: str,
        value: Any = OMITTED,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> DeliveryFuture:
        """Sends one record in the background; returns a future of its RecordMetadata or error.

        Awaits the topic's metadata, or memory, for up to `max_block_ms`. Arguments and errors are those of
        `rayka.Producer.send`; `on_delivery` may be a coroutine function.
        """
        core = self._core or await self._open()
        if (
            type(value) is bytes
            and headers is None
            and partition is None
            and timestamp_ms is None
            and on_delivery is None
        ):
            sent = core.take(topic, value) if key is None else core.take_keyed(topic, value, key)
            if sent is not None:
                return sent
        row = Row(given_value(value, key), key, headers, timestamp_ms)
        return await self._send(core.producer_core, topic, row, partition, on_delivery)

    async def send_and_wait(
        self,
        topic: str,
        value: Any = OMITTED,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Sends one record and awaits its acknowledgement. Raises like `send`, and the error of the delivery."""
        sent = await self.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )
        return await sent

    async def send_batch(self, topic: str, data: Data) -> BatchFuture:
        """Sends many records in the background; returns a future of a list of BatchMetadata.

        Awaits like `send`. Arguments and errors are those of `rayka.Producer.send_batch`. After a cancellation the
        records accepted so far are sent.
        """
        core = (self._core or await self._open()).producer_core
        core.check_usable()
        await self._learn(core, topic)
        runs, first_row = [], 0
        for given in core.inputs(topic, data):
            await self._learn(core, topic, given.last_partition)
            for piece in core.pieces(topic, given):
                added = core.try_append_columns(piece)
                if added is None:
                    added = await self._when_there_is_memory(core, core.try_append_columns, piece)
                runs.append(BatchRun(*added, first_row, piece.rows))
            first_row += len(given.columns.values)
        return BatchFuture(runs)

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Returns when every record sent before was acknowledged or has failed, and its callbacks have run.

        Awaits up to `timeout` seconds, by default as long as a delivery may take. Raises TimeoutError, ClosedError, and
        the exception of a delivery callback.
        """
        core = (self._core or await self._open()).producer_core
        core.check_usable()
        await self._finish(core, core.accumulator.end_linger(), timeout)

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Flushes and ends; closing again does nothing.

        Records without an outcome after `timeout` seconds fail with ClosedError, and the call raises TimeoutError. A
        cancelled close ends at once, and such records fail with ClosedError. Raises the exception of a delivery
        callback, too.
        """
        core = await self._to_close()
        if core is None:
            return
        try:
            await self._finish(core.producer_core, core.end(), timeout)
        finally:
            bound_ms = producer.CLOSE_SLACK_S * 1000
            await asyncio.shield(await_for(core.producer_core.sender.close, bound_ms, caller=self))

    def metrics(self) -> ProducerMetrics:
        """Returns `rayka.Producer.metrics`. Raises ClosedError before the producer has found its cluster."""
        if self._core is None:
            raise ClosedError(f"{self!r} is not open yet: await something of it first, or use `async with`")
        return self._core.metrics()

    # ---- Within ----

    async def _send(
        self, core: ProducerCore, topic: str, row: Row, partition: int | None, on_delivery: OnDelivery | None
    ) -> DeliveryFuture:
        core.check_usable()
        reported: OnDelivery | None = (
            None if on_delivery is None else self._reports.to_loop(on_delivery, "on_delivery")
        )
        interceptors = core.interceptors
        if interceptors is None:
            return await self._append(core, topic, row, partition, reported)
        given = OutgoingRecord(topic, row.value, row.key, row.headers, partition, row.timestamp_ms)
        sent = await interceptors.await_changed(given)
        row = Row(sent.value, sent.key, sent.headers, sent.timestamp_ms)
        try:
            reported = reported_to(self._reports.to_loop(interceptors.await_tell, "interceptors"), reported)
            return await self._append(core, sent.topic, row, sent.partition, reported)
        except Exception as error:
            await interceptors.await_tell(None, error)
            raise

    async def _append(
        self, core: ProducerCore, topic: str, row: Row, partition: int | None, on_delivery: OnDelivery | None
    ) -> DeliveryFuture:
        await self._learn(core, topic, partition)
        record = core.check(topic, row, partition, on_delivery)
        topics = core.accumulator.topics
        filled_count = topics.filled_count
        future = core.try_append(record)
        if future is None:
            future = await self._when_there_is_memory(core, core.try_append, record)
        if topics.filled_count != filled_count:
            await _let_send(core)
        return future

    async def _learn(self, core: ProducerCore, topic: str, partition: int | None = None) -> None:
        while not core.knows(topic, partition):
            await await_for(partial(core.learn, topic, partition), self._config.max_block_ms, caller=self)

    async def _when_there_is_memory(
        self,
        core: ProducerCore,
        try_append: Callable[[PreparedT, MemoryTurn], AddedT | None],
        prepared: PreparedT,
    ) -> AddedT:
        """Appends once there is memory, after the sends that wait already."""
        accumulator, line, turn = core.accumulator, core.accumulator.line, MemoryTurn()
        try:
            line.join(turn)
            async with asyncio.timeout(self._config.max_block_ms / 1000):
                while True:
                    # Before the attempt: what is freed behind it ends the wait.
                    news_count = line.news_count
                    added = try_append(prepared, turn)
                    if added is not None:
                        return added
                    accumulator.end_linger()
                    await called(partial(line.call_on_news, turn, news_count))
                    core.check_usable()
        except TimeoutError as error:
            raise core.exhausted() from error
        finally:
            line.leave(turn)

    async def _finish(
        self, core: ProducerCore, pending: Sequence[ProducerBatch], timeout_s: float | None
    ) -> None:
        if timeout_s is None:
            timeout_s = self._config.delivery_timeout_ms / 1000 + producer.CLOSE_SLACK_S
        await await_done(pending, timeout_s)
        await called(io_thread.call_soon)  # behind the callbacks that it is in
        await self._reports.join()
        error = core.take_callback_error() or self._reports.take_error()
        if error is not None:
            raise error


async def _let_send(core: ProducerCore) -> None:
    """Waits until the ready batches are sent, a moment at most, and lets the caller's loop run."""
    with suppress(TimeoutError):
        async with asyncio.timeout(producer.LET_SEND_S):
            await called(core.sender.call_when_sent)
