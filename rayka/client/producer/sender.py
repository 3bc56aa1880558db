"""The sender of a producer: drains the accumulator on the IO thread and sends produce requests to the leaders.

`drain_schedule` puts batches into requests, `outcomes` handles answers and failures, and `partition_leaders` handles
leaders that are unknown, fail or are silent. With idempotence a broker gives the producer its id before the first batch
is sent. Invariant: a started batch ends exactly once, also when the loop stops. Kafka: Sender (G18, C12).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any, NamedTuple

from rayka.client import io_thread
from rayka.client.bootstrap import ClusterHandle
from rayka.client.metadata import ClusterMetadata
from rayka.client.producer.accumulator import Accumulator
from rayka.client.producer.drain_schedule import LeaderRequests
from rayka.client.producer.outcomes import NO_LEADER_ERRORS, Outcomes
from rayka.client.producer.partition_leaders import PartitionLeaders
from rayka.client.producer.partition_queue import NEVER, Limits
from rayka.client.producer.producer_batch import IN_FLIGHT, ProducerBatch
from rayka.client.retry import Backoff
from rayka.config.client_config import ProducerConfig
from rayka.config.topic_config import TopicConfig
from rayka.errors import (
    ApiError,
    BrokerNotAvailable,
    ClosedError,
    DeliveryTimeout,
    NetworkException,
    NoSuchTopic,
    RaykaError,
    RequestTimedOut,
)
from rayka.ids import node_name
from rayka.protocol.batch_format import Codec
from rayka.protocol.later import Later
from rayka.protocol.membership import MetadataTopic
from rayka.protocol.produce import InitProducerIdRequest, ProducePartition, ProduceRequest, ProduceResponse

_BATCH_BYTES_MAX = {
    "max.message.bytes": TopicConfig().max_message_bytes,
    "segment.bytes": TopicConfig().segment_bytes,
}

logger = logging.getLogger(__name__)


class _Request(NamedTuple):
    """One produce request."""

    node_id: int
    started: list[ProducerBatch]
    # The started batches that could be encoded.
    batches: list[ProducerBatch]
    began_ms: float


class Sender:
    """Sends one producer's batches. Any thread may call `wake` and `call_when_sent`; all else runs on the IO thread."""

    def __init__(
        self,
        handle: ClusterHandle,
        config: ProducerConfig,
        random: Random,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Runs on `loop`: by default the process's IO thread, in the simulator a loop in virtual time."""
        self.cluster_name = handle.name
        self.accumulator = Accumulator(_limits(config), self.wake)
        self._config = config
        self._codec = Codec[config.compression_type.upper()]
        self._backoff = Backoff(config, random)
        self.loop = loop or io_thread.loop()
        self._network = handle.network(config.transport)
        self.metadata = ClusterMetadata(self._network, handle.name, config, random)
        self.metadata.listen(self._set_topic, on_gone=self._on_gone, may_forget=self.accumulator.forget_idle)
        in_flight_max = config.max_in_flight_requests_per_connection
        self._requests = LeaderRequests(self.metadata, in_flight_max, self._backoff)
        self._leaders = PartitionLeaders(
            self.metadata, self.accumulator, config.retry_backoff_ms, self._run, self._on_gone
        )
        self.outcomes = Outcomes(
            self.accumulator,
            self._leaders,
            self._backoff,
            self.now_ms,
            cluster_name=self.cluster_name,
            codec=self._codec,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._is_asking_for_id = False
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._open: dict[Later[ProduceResponse], _Request] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Sender of {self.cluster_name} {self._requests!r} {self.accumulator!r}>"

    def now_ms(self) -> float:
        return self.loop.time() * 1000

    def wake(self) -> None:
        """Drains the accumulator soon; callable from any thread."""
        self.loop.call_soon_threadsafe(self._pump)

    def call_when_sent(self, callback: Callable[[], object]) -> None:
        """Sends the ready batches, then calls back, both on the IO thread; callable from any thread.

        A caller that loops over `send` waits for the callback, because the loop alone never releases the interpreter's
        lock. Without the wait the IO thread would get the lock only after 5 ms each time, and a request would take
        longer than filling the next one.
        """

        def pump() -> None:
            self._pump()
            # Behind the first steps of the requests, in which they are sent.
            self.loop.call_soon(callback)

        self.loop.call_soon_threadsafe(pump)

    async def close(self) -> None:
        """Stops the sender; fails undelivered batches with ClosedError."""
        self._is_closed = True
        self._leaders.close()
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._end_all()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self._is_closed:
            coroutine.close()
            return
        task = self.loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    # ---- Topics ----

    async def learn_topic(self, name: str) -> None:
        """Gives the accumulator the topic. Raises UnknownTopicOrPartition, InvalidTopic, UnavailableError."""
        self._set_topic(await self.metadata.topic(name, self._config.max_block_ms))

    def _set_topic(self, topic: MetadataTopic) -> None:
        """Updates the topic's partitions for new records; waiting records stay in their partitions."""
        bytes_max = min(int(topic.configs.get(name, default)) for name, default in _BATCH_BYTES_MAX.items())
        self.accumulator.set_topic(topic.name, len(topic.partitions), bytes_max)

    def _on_gone(self, name: str) -> None:
        """Fails the batches of a deleted topic."""
        gone = self.accumulator.remove_topic(name)
        if gone and (error := self.metadata.missing(name)) is not None:
            self.outcomes.fail(gone, error)

    # ---- The loop ----

    def _pump(self) -> None:
        """Drains the accumulator once and carries out its plan; sets the timer for the next drain."""
        if self._is_closed:
            return
        now_ms = self.now_ms()
        plan = self.accumulator.drain(now_ms, self._requests)
        for batch in plan.leaderless:
            self._leaders.on_failed(batch)
        for batch in plan.expired:
            self.outcomes.end(batch, _too_late(batch, self.cluster_name, self._config.delivery_timeout_ms))
        for batch in plan.unplaced:
            self.outcomes.end(
                batch, NoSuchTopic(f"partition {batch.topic_partition} does not exist any more")
            )
        if plan.unnumbered is not None and not self._is_asking_for_id:
            self._is_asking_for_id = True
            leader_id, batch = plan.unnumbered
            self._run(self._init_producer_id(leader_id, batch.topic))
        for node_id, batches in plan.requests:
            self._produce(node_id, batches, now_ms)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if plan.next_ms == NEVER else self.loop.call_at(plan.next_ms / 1000, self._pump)

    async def _init_producer_id(self, leader_id: int, topic: str) -> None:
        """Asks a broker for the producer id, preferably the leader of the first ready batch: any broker gives one.

        A broker that is cut off from the controller answers with an error. The ready batches then wait for another try,
        or fail.
        """
        node_id = self.metadata.nodes.trusted_broker(leader_id)
        timeout_ms = self._config.request_timeout_ms
        try:
            response = await self._network.call(node_id, InitProducerIdRequest(), timeout_ms)
            self.accumulator.identity.producer_id = response.producer_id
        except ApiError as error:
            if isinstance(error, (NetworkException, RequestTimedOut, BrokerNotAvailable)):
                self.metadata.nodes.on_unanswered(node_id)
            if isinstance(error, NO_LEADER_ERRORS):
                self._leaders.refresh(topic)
            for batch in self.accumulator.ready(self.now_ms()):
                self.outcomes.on_unsent(batch, error)
        finally:
            self._is_asking_for_id = False
        self._pump()

    # ---- One request ----

    def _produce(self, node_id: int, started: list[ProducerBatch], now_ms: float) -> None:
        """Encodes the batches and sends them; fails a batch that cannot be encoded.

        Calls `_on_end` after the end of the request; in a later turn of the loop if the request has ended already.
        """
        batches: list[ProducerBatch] = []
        parts: list[ProducePartition] = []
        topic, known, oldest_ms = None, None, now_ms
        for batch in started:
            try:
                if topic is None or topic.name != batch.topic:
                    topic, known = self.metadata.cached(batch.topic), self.accumulator.topics.get(batch.topic)
                if topic is None or known is None:
                    raise NoSuchTopic(f"topic {batch.topic!r} of cluster {self.cluster_name!r} was deleted")
                encoded = batch.encode(self._codec, known.batch_bytes)
            except RaykaError as error:
                self.outcomes.end(batch, error)
                continue
            self.outcomes.counts.bytes_total += encoded.size
            oldest_ms = min(oldest_ms, batch.created_ms)
            batches.append(batch)
            parts.append(ProducePartition(topic.topic_id, batch.partition, encoded))
        request = _Request(node_id, started, batches, now_ms)
        if not batches:
            self.loop.call_soon(self._on_over, request, now_ms)
            return
        left_ms = oldest_ms + self._config.delivery_timeout_ms - now_ms
        timeout_ms = max(1, min(self._config.request_timeout_ms, int(left_ms)))
        content = ProduceRequest(self._config.acks, timeout_ms, tuple(parts))
        call = self._network.call(node_id, content, timeout_ms)
        response = self._leaders.calls.answer(node_id, batches, call)
        self._open[response] = request
        on_end = partial(self._on_end, response)
        if response.done():
            self.loop.call_soon(response.then, on_end)
        else:
            response.then(on_end)

    def _on_end(self, response: Later[ProduceResponse], outcome: ProduceResponse | BaseException) -> None:
        request, now_ms = self._open.pop(response), self.now_ms()
        try:
            self._on_outcome(request, outcome, now_ms - request.began_ms)
        except Exception as error:
            self._on_bug(request, error)
        self._on_over(request, now_ms)

    def _on_outcome(
        self, request: _Request, outcome: ProduceResponse | BaseException, took_ms: float
    ) -> None:
        node_id, batches = request.node_id, request.batches
        if isinstance(outcome, ProduceResponse):
            if len(outcome.partitions) == len(batches):
                self.outcomes.counts.on_answer(took_ms)
                self.outcomes.on_answers(node_id, batches, outcome.partitions)
                return
            outcome = NetworkException(
                f"{node_name(node_id)} answered for {len(outcome.partitions)} of {len(batches)}"
            )
        if isinstance(outcome, ApiError):
            if isinstance(outcome, (NetworkException, RequestTimedOut)):
                self.metadata.nodes.on_unanswered(node_id)
            for batch in batches:
                self.outcomes.on_error(batch, outcome, node_id)
        elif isinstance(outcome, Exception):
            self._on_bug(request, outcome)

    def _on_bug(self, request: _Request, error: Exception) -> None:
        where = (self.cluster_name, node_name(request.node_id))
        logger.error("cluster %s: a produce request to %s broke", *where, exc_info=error)
        for batch in request.started:
            if not batch.is_done:
                self.outcomes.end(batch, error)

    def _on_over(self, request: _Request, now_ms: float) -> None:
        """Frees the leader's place for another request, drains, and calls the callbacks of the batches."""
        self._requests.on_over(request.node_id, len(request.started), now_ms - request.began_ms)
        for batch in request.started:
            # The request was cancelled by `close`, so no outcome has ended the batch.
            if batch.state is IN_FLIGHT:
                self._end_by_close(batch)
        # Without a timer, work or a departing queue only an append creates work.
        accumulator = self.accumulator
        if self._timer is not None or accumulator.schedule.has_work or accumulator.topics.departing:
            self._pump()
        self.outcomes.call_back()

    # ---- Undelivered records at the end ----

    def _end_all(self) -> None:
        for response in list(self._open):
            response.cancel()
        self._open.clear()
        for batch in self.accumulator.batches():
            self._end_by_close(batch)

    def _end_by_close(self, batch: ProducerBatch) -> None:
        what = f"the producer was closed before the acknowledgement of {batch.records_text}"
        self.outcomes.end(batch, ClosedError(what))


def _too_late(batch: ProducerBatch, cluster_name: str, delivery_timeout_ms: int) -> DeliveryTimeout:
    is_tried = batch.failure_count > 0
    tries = f"{batch.failure_count} tries; the last error: {batch.last_error}" if is_tried else "never sent"
    return DeliveryTimeout(
        f"{batch.records_text} of cluster {cluster_name!r}: not acknowledged "
        f"within delivery_timeout_ms={delivery_timeout_ms} and may or may not be in the log ({tries})"
    )


def _limits(config: ProducerConfig) -> Limits:
    is_idempotent = bool(config.enable_idempotence)
    return Limits(
        batch_bytes=min(config.batch_size, config.max_request_size, config.buffer_memory),
        memory_bytes=config.buffer_memory,
        linger_ms=config.linger_ms,
        delivery_timeout_ms=config.delivery_timeout_ms,
        is_idempotent=is_idempotent,
        in_flight_max=config.max_in_flight_requests_per_connection if is_idempotent else 1,
    )
