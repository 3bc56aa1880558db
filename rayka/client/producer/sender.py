"""The producer's async half: takes ready batches to the brokers that lead them, and answers back to the accumulator.

Everything ready for one broker goes in one request, at most one batch of each partition (C1); several requests may be
under way. One that fails in a way that passes is repeated until `delivery_timeout_ms`: after a pause, or as soon as a
new leader is known where it was the leader that failed (`leader_watch`). A call that nobody answers is given up as soon
as the metadata say that the node leads none of its partitions any more (`call_watch`). With idempotence the broker
knows a repeated batch again, and a broker gives the producer its id before the first batch goes; without, a request
whose answer was lost may put its records into the log twice. Invariant: a batch that was started ends exactly once,
also when the loop stops.
Kafka: Sender (G18, C11, C12).
"""

import asyncio
import logging
import threading
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any

from rayka.client import io_thread
from rayka.client.bootstrap import ClusterHandle
from rayka.client.call_watch import CallWatch, Patience
from rayka.client.metadata import ClusterMetadata, NoSuchTopic
from rayka.client.producer.accumulator import Accumulator, Limits
from rayka.client.producer.leader_watch import LeaderWatch
from rayka.client.producer.partition_queue import NEVER
from rayka.client.producer.producer_batch import Callback, ProducerBatch
from rayka.client.retry import Backoff
from rayka.config import ProducerConfig, TopicConfig
from rayka.errors import (
    ApiError,
    BrokerNotAvailable,
    ClosedError,
    DeliveryTimeout,
    ErrorCode,
    InvalidMetadataError,
    LeaderNotAvailable,
    NetworkException,
    OutOfOrderSequence,
    RaykaError,
    RequestTimedOut,
    error_for,
)
from rayka.ids import NO_NODE, node_name
from rayka.protocol.batch_header import Codec
from rayka.protocol.membership import MetadataPartition, MetadataTopic
from rayka.protocol.produce import ProducePartition, ProducePartitionResult, ProduceRequest, ProduceResponse
from rayka.protocol.producer_ids import InitProducerIdRequest

REQUEST_BYTES_MAX = 4 << 20
REQUEST_BATCHES_MAX = 300  # small ones take a loop's time by their number, here and on the broker
LEADER_BATCHES_MAX = (
    2 * REQUEST_BATCHES_MAX
)  # on their way to one: it is busy, and what waits here still fills
_MESSAGE_BYTES_MAX = TopicConfig().max_message_bytes
_PATIENCE = Patience(least_s=0.1, most_s=1.0)  # without an answer for so long, and metadata may tell why
_NO_LEADER_ERRORS = (InvalidMetadataError, RequestTimedOut)
_Answer = tuple[ProducerBatch, ProducePartitionResult]

logger = logging.getLogger(__name__)


class Sender:
    """One producer's sender. `lock` guards `accumulator`; any thread may call `wake`, all else is the IO thread's."""

    def __init__(
        self,
        handle: ClusterHandle,
        config: ProducerConfig,
        random: Random,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`loop` is what it runs on: by default the process's IO thread, in the simulator virtual time."""
        self.lock = threading.Lock()
        self.memory_freed = threading.Condition(self.lock)
        self.cluster_name = handle.name
        self.callback_error: BaseException | None = None  # of the application's callbacks, until it is raised
        self.accumulator = Accumulator(
            Limits(
                batch_bytes=min(config.batch_size, config.max_request_size, config.buffer_memory),
                memory_bytes=config.buffer_memory,
                linger_ms=config.linger_ms,
                delivery_timeout_ms=config.delivery_timeout_ms,
                is_idempotent=bool(config.enable_idempotence),
                in_flight_max=config.max_in_flight_requests_per_connection
                if config.enable_idempotence
                else 1,
            )
        )
        self.logs_failures = True
        self._network = handle.network()
        self._metadata = ClusterMetadata(self._network, handle.name, config, random, on_topic=self._set_topic)
        self._config = config
        self._codec = Codec[config.compression_type.upper()]
        self._backoff = Backoff.of(config, random)
        self._loop = loop or io_thread.loop()
        self._timer: asyncio.TimerHandle | None = None
        self._looks_ms = NEVER  # when it looks what is ready, if nothing wakes it earlier
        self._in_flight: dict[int, int] = {}  # requests by node
        self._batches_in_flight: dict[int, int] = {}  # by node
        self._refreshing: dict[str, None] = {}
        self._next_refreshes: dict[str, asyncio.TimerHandle] = {}
        self._leaders = LeaderWatch()
        self._calls = CallWatch[Sequence[ProducerBatch]](_PATIENCE, self._on_silent)
        self._is_asking_for_id = False
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return (
            f"<Sender of {self.cluster_name} requests={sum(self._in_flight.values())} {self.accumulator!r}>"
        )

    def wake(self) -> None:
        """Looks soon what is ready; from any thread."""
        self._loop.call_soon_threadsafe(self._pump)

    def wake_in_time(self) -> None:
        """Looks before what was appended is due. The caller holds the lock."""
        next_ms = self.accumulator.next_ms()
        if next_ms < self._looks_ms:
            self.wake()
            # After the wake-up: an interrupt between the two then costs only another wake-up.
            self._looks_ms = next_ms

    def let_send(self, timeout_s: float) -> None:
        """Waits while the IO thread sends what is ready, from any other thread.

        A loop of `send` never lets go of the interpreter's lock by itself, and would hand it over only after 5 ms each
        time that the IO thread needs it for a moment: a request would take longer than to fill the next.
        """
        sent = threading.Lock()
        sent.acquire()
        self._loop.call_soon_threadsafe(self._pump_and_tell, sent)
        sent.acquire(timeout=timeout_s)

    def now_ms(self) -> float:
        return self._loop.time() * 1000

    async def learn_topic(self, name: str) -> None:
        """Makes the topic known to the accumulator. Raises UnknownTopicOrPartition, InvalidTopic, UnavailableError."""
        self._set_topic(await self._metadata.topic(name, self._config.max_block_ms))

    async def renew_topic(self, name: str) -> None:
        """Makes the topic known as the active controller has it now. Raises UnavailableError."""
        await self._metadata.renew((name,), self._config.max_block_ms)

    def finish_alone(self) -> None:
        """The producer was dropped: what is left goes now. From here on only the loop refers to the sender, until it is
        done.
        """
        with self.lock:
            self.accumulator.hurry()
        self._pump()

    async def close(self) -> None:
        """Stops; what is not delivered yet fails with ClosedError."""
        self._is_closed = True
        self._arm(None)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with self.lock:
            left = list(self.accumulator.batches())
        for batch in left:
            self._over(batch, batch.fail(self._closed_error(batch)))

    # ---- What goes now ----

    def _pump(self) -> None:
        if self._is_closed:
            return
        with self.lock:
            now_ms = self.now_ms()
            expired = self.accumulator.expired(now_ms)
            for batch in expired:
                self.accumulator.finish(batch, is_acknowledged=False)
            requests = self._start_ready(now_ms)
            next_ms = self.accumulator.tick(now_ms)
            self._looks_ms = NEVER if next_ms is None else next_ms
        for batch in expired:
            self._over(batch, batch.fail(self._too_late(batch)))
        for node_id, batches in requests:
            self._run(self._produce(node_id, batches))
        self._arm(next_ms)

    def _pump_and_tell(self, sent: threading.Lock) -> None:
        self._pump()
        self._loop.call_soon(sent.release)  # behind the first steps of the requests, which send

    def _start_ready(self, now_ms: float) -> list[tuple[int, list[ProducerBatch]]]:
        """The requests that go now, each with its node; they must be sent in this order."""
        requests: list[tuple[int, list[ProducerBatch]]] = []
        for node_id in self._in_flight:
            if self.accumulator.agenda.waits_for(node_id) and self._free_places(node_id) > 0:
                self.accumulator.agenda.bring_back(node_id, self._free_places(node_id))
        while by_node := self._start_next(now_ms):
            for node_id, requests_of_node in by_node.items():
                for request in requests_of_node.requests:
                    self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
                    self._batches_in_flight[node_id] = self._batches_in_flight.get(node_id, 0) + len(request)
                    requests.append((node_id, request))
        return requests

    def _start_next(self, now_ms: float) -> "dict[int, _Requests]":
        """Starts the next batch of each partition that has one to go, as far as the leaders take requests."""
        by_node: dict[int, _Requests] = {}
        topics: dict[str, MetadataTopic | None] = {}
        for batch in self.accumulator.ready(now_ms):
            if batch.topic not in topics:
                topics[batch.topic] = self._metadata.cached(batch.topic)
            leader_id = _leader_of(topics[batch.topic], batch.partition)
            if leader_id == NO_NODE:
                self._pause(batch, LeaderNotAvailable(f"{batch.topic_partition} has no leader"))
                self._await_leader(batch)
                continue
            if self.accumulator.needs_producer_id:
                self._ask_for_producer_id(leader_id, batch.topic)
                break
            if leader_id not in by_node:
                by_node[leader_id] = _Requests(self._free_requests(leader_id), self._free_places(leader_id))
            if by_node[leader_id].take(batch):
                self.accumulator.start(batch)
            else:
                self.accumulator.hold_back(batch, leader_id, now_ms)
        return {node_id: each for node_id, each in by_node.items() if each.requests}

    def _free_places(self, node_id: int) -> int:
        """How many batches the node takes now; the others fill up meanwhile."""
        places = LEADER_BATCHES_MAX - self._batches_in_flight.get(node_id, 0)
        is_room_for_full_request = places >= REQUEST_BATCHES_MAX
        return (
            min(self._free_requests(node_id) * REQUEST_BATCHES_MAX, places) if is_room_for_full_request else 0
        )

    def _free_requests(self, node_id: int) -> int:
        return self._config.max_in_flight_requests_per_connection - self._in_flight.get(node_id, 0)

    def _leader(self, batch: ProducerBatch) -> int:
        return _leader_of(self._metadata.cached(batch.topic), batch.partition)

    def _known(self, batch: ProducerBatch) -> MetadataPartition | None:
        return _partition_of(self._metadata.cached(batch.topic), batch.partition)

    def _arm(self, next_ms: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if next_ms is None else self._loop.call_at(next_ms / 1000, self._pump)

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    # ---- The producer id ----

    def _ask_for_producer_id(self, node_id: int, topic: str) -> None:
        if not self._is_asking_for_id:
            self._is_asking_for_id = True
            self._run(self._init_producer_id(node_id, topic))

    async def _init_producer_id(self, leader_id: int, topic: str) -> None:
        """Any broker gives one; this one leads what is to be sent first. One that is cut off from the controller has
        none to give.
        """
        node_id = self._metadata.nodes.trusted_broker(leader_id)
        try:
            response = await self._network.call(
                node_id, InitProducerIdRequest(), self._config.request_timeout_ms
            )
            with self.lock:
                self.accumulator.producer_id = response.producer_id
        except ApiError as error:
            self._on_no_producer_id(error, topic, node_id)
        finally:
            self._is_asking_for_id = False
        self._pump()

    def _on_no_producer_id(self, error: ApiError, topic: str, node_id: int) -> None:
        """What is ready waits for another try, or fails."""
        if isinstance(error, (NetworkException, RequestTimedOut, BrokerNotAvailable)):
            self._metadata.nodes.doubt(node_id)
        with self.lock:
            waiting = self.accumulator.ready(self.now_ms())
            if error.retriable:
                for batch in waiting:
                    self._pause(batch, error)
        if isinstance(error, _NO_LEADER_ERRORS):
            self._refresh(topic)
        if not error.retriable:
            self._fail_all(waiting, error)

    # ---- One request ----

    async def _produce(self, node_id: int, batches: list[ProducerBatch]) -> None:
        started_count = len(batches)
        try:
            batches = self._encoded(batches)
            if batches:
                self._on_answers(node_id, batches, await self._call(node_id, batches))
        except ApiError as error:
            if isinstance(error, (NetworkException, RequestTimedOut)):
                self._metadata.nodes.doubt(node_id)
            for batch in batches:
                self._on_error(batch, error, node_id)
        except Exception as error:
            logger.exception(
                "cluster %s: a produce request to %s broke", self.cluster_name, node_name(node_id)
            )
            for batch in batches:
                if not batch.is_done:
                    self._over(batch, batch.fail(error))
        finally:
            self._in_flight[node_id] -= 1
            self._batches_in_flight[node_id] -= started_count
            for batch in batches:
                if not batch.is_done and batch.is_in_flight:  # cancelled
                    self._over(batch, batch.fail(self._closed_error(batch)))
        self._pump()

    def _encoded(self, batches: list[ProducerBatch]) -> list[ProducerBatch]:
        """Those that can be; the others fail."""
        encoded = []
        for batch in batches:
            try:
                batch.encode(self._codec, self.accumulator.batch_bytes(batch.topic))
                encoded.append(batch)
            except RaykaError as error:
                self._over(batch, batch.fail(error))
        return encoded

    async def _call(self, node_id: int, batches: Sequence[ProducerBatch]) -> Sequence[ProducePartitionResult]:
        now_ms = self.now_ms()
        left_ms = min(self.accumulator.deadline_ms(each) for each in batches) - now_ms
        timeout_ms = max(1, min(self._config.request_timeout_ms, int(left_ms)))
        parts = []
        topics = {name: self._metadata.cached(name) for name in {each.topic: None for each in batches}}
        for batch in batches:
            topic = topics[batch.topic]
            if topic is None or batch.encoded is None:
                raise NoSuchTopic(f"topic {batch.topic!r} of cluster {self.cluster_name!r} was deleted")
            parts.append(ProducePartition(topic.topic_id, batch.partition, batch.encoded))
        request = ProduceRequest(self._config.acks, timeout_ms, tuple(parts))
        call = self._network.call(node_id, request, timeout_ms)
        response: ProduceResponse = await self._calls.answer(node_id, batches, call)
        if len(response.partitions) != len(batches):
            raise NetworkException(
                f"{node_name(node_id)} answered for {len(response.partitions)} of {len(batches)}"
            )
        return response.partitions

    def _on_silent(self, node_id: int, requests: list[Sequence[ProducerBatch]]) -> None:
        """Others may know that it leads no more; perhaps they have said so already."""
        self._metadata.nodes.doubt(node_id)
        self._calls.give_up(self._is_in_vain)
        open_requests = [each for each in requests if not self._is_in_vain(node_id, each)]
        for topic in dict.fromkeys(each.topic for request in open_requests for each in request):
            self._refresh(topic)

    def _is_in_vain(self, node_id: int, request: Sequence[ProducerBatch]) -> bool:
        return not any(self._leader(each) == node_id for each in request)

    def _on_answers(
        self, node_id: int, batches: Sequence[ProducerBatch], results: Sequence[ProducePartitionResult]
    ) -> None:
        """Takes those in the log first, and the lock once for all of them: a busy sending thread delays each
        acquisition.
        """
        appended: list[_Answer] = []
        refused: list[_Answer] = []
        for answer in zip(batches, results, strict=True):
            is_in_log = answer[1].error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
            (appended if is_in_log else refused).append(answer)
        if appended:
            self._on_appended(appended)
        for batch, result in refused:
            where = f"{node_name(node_id)} of cluster {self.cluster_name!r}, {batch.topic_partition}"
            error = error_for(result.error_code, f"{where}: {result.error_message}")
            self._on_error(batch, error, node_id)

    def _on_appended(self, appended: Sequence[_Answer]) -> None:
        over: list[_Answer] = []
        with self.lock:
            for batch, result in appended:
                if batch.has_more_parts and self.accumulator.holds(batch):
                    self.accumulator.go_on(batch, result.base_offset, result.log_append_time_ms)
                else:
                    self.accumulator.finish(batch, is_acknowledged=True)
                    over.append((batch, result))
            self.memory_freed.notify_all()
        for batch, _ in appended:
            self._leaders.on_settled(batch.topic, batch.partition)
        for batch, result in over:
            for callback in batch.acknowledge(result.base_offset, result.log_append_time_ms):
                self._call_back(batch, callback)

    def _on_error(self, batch: ProducerBatch, error: ApiError, node_id: int) -> None:
        """Another try later, or at once at a leader that is known by now, or the end."""
        is_out_of_order = isinstance(error, OutOfOrderSequence)
        with self.lock:
            may_retry = (error.retriable or is_out_of_order) and self.accumulator.holds(batch)
            if may_retry and is_out_of_order:
                self.accumulator.on_out_of_order(batch)
            if may_retry:
                self._pause(batch, error)
        if not may_retry:
            self._over(batch, batch.fail(error))
        elif isinstance(error, _NO_LEADER_ERRORS) and self._leader(batch) in (node_id, NO_NODE):
            self._await_leader(batch)
        elif isinstance(error, _NO_LEADER_ERRORS):
            with self.lock:
                self.accumulator.go_at_once(batch.topic, batch.partition)

    def _pause(self, batch: ProducerBatch, error: RaykaError | None) -> None:
        pause_ms = self._backoff.pause_ms(batch.failure_count + 1)
        self.accumulator.defer(batch, error, self.now_ms() + pause_ms)

    # ---- Topics and their leaders ----

    def _await_leader(self, batch: ProducerBatch) -> None:
        known = self._known(batch)
        if known is not None:
            self._leaders.on_failed(batch.topic, known)
        self._refresh(batch.topic)

    def _refresh(self, topic: str) -> None:
        if topic not in self._refreshing and not self._is_closed:
            timer = self._next_refreshes.pop(topic, None)
            if timer is not None:
                timer.cancel()
            self._refreshing[topic] = None
            self._run(self._refresh_topic(topic))

    async def _refresh_topic(self, topic: str) -> None:
        before = self._metadata.cached(topic)
        leader_ids_before = before and _leader_ids(before)
        try:
            await self._metadata.refresh((topic,))
        finally:
            del self._refreshing[topic]
        missing, known = self._metadata.missing(topic), self._metadata.cached(topic)
        if missing is not None:
            with self.lock:
                removed = self.accumulator.remove_topic(topic)
            self._fail_all(removed, missing)
        elif known is not None:
            self._go_to_new_leaders(known)
        if known is not None and _leader_ids(known) != leader_ids_before:
            with self.lock:
                self.accumulator.agenda.bring_all_back()
        self._calls.give_up(self._is_in_vain)
        self._refresh_again(topic)
        self._pump()

    def _refresh_again(self, topic: str) -> None:
        """Soon, as long as a batch waits for a leader."""
        if self._leaders.is_watched(topic):
            pause_s = self._config.retry_backoff_ms / 1000
            self._next_refreshes[topic] = self._loop.call_later(pause_s, self._refresh, topic)

    def _go_to_new_leaders(self, topic: MetadataTopic) -> None:
        with self.lock:
            for each in self._leaders.on_metadata(topic):
                self.accumulator.go_at_once(topic.name, each)

    def _set_topic(self, topic: MetadataTopic) -> None:
        """New records go to the partitions that the topic has now; those that wait stay where they are."""
        message_bytes_max = int(topic.configs.get("max.message.bytes", _MESSAGE_BYTES_MAX))
        with self.lock:
            gone = self.accumulator.set_topic(topic.name, len(topic.partitions), message_bytes_max)
        self._fail_all(gone, NoSuchTopic(f"topic {topic.name!r} has {len(topic.partitions)} partitions now"))

    def _fail_all(self, batches: Sequence[ProducerBatch], error: ApiError) -> None:
        for batch in batches:
            if not batch.is_in_flight:  # else its answer ends it
                self._over(batch, batch.fail(error))

    # ---- The end of a batch ----

    def _over(self, batch: ProducerBatch, callbacks: Sequence[Callback]) -> None:
        """It has failed for good."""
        self._leaders.on_settled(batch.topic, batch.partition)
        with self.lock:
            self.accumulator.finish(batch, is_acknowledged=False)
            self.memory_freed.notify_all()
        if self.logs_failures:
            logger.warning("%s failed: %s", _records_of(batch), batch.error)
        for callback in callbacks:
            self._call_back(batch, callback)

    def _call_back(self, batch: ProducerBatch, callback: Callback) -> None:
        """Runs the application's code, which may raise anything. Outside of here a SystemExit would end the IO thread,
        and a CancelledError the request with all its batches.
        """
        try:
            callback()
        except BaseException as error:
            logger.exception("a delivery callback for %s raised", batch.topic_partition)
            self.callback_error = self.callback_error or error

    def _too_late(self, batch: ProducerBatch) -> DeliveryTimeout:
        tries = (
            f"{batch.failure_count} tries; the last error: {batch.last_error}"
            if batch.failure_count
            else "never sent"
        )
        return DeliveryTimeout(
            f"{_records_of(batch)} of cluster {self.cluster_name!r}: not acknowledged "
            f"within delivery_timeout_ms={self._config.delivery_timeout_ms} and may or may not be in the log ({tries})"
        )

    def _closed_error(self, batch: ProducerBatch) -> ClosedError:
        return ClosedError(f"the producer was closed before the acknowledgement of {_records_of(batch)}")


def _partition_of(topic: MetadataTopic | None, partition: int) -> MetadataPartition | None:
    return topic.partitions[partition] if topic and partition < len(topic.partitions) else None


def _leader_ids(topic: MetadataTopic) -> list[int]:
    return [each.leader_id for each in topic.partitions]


def _leader_of(topic: MetadataTopic | None, partition: int) -> int:
    known = _partition_of(topic, partition)
    return NO_NODE if known is None else known.leader_id


def _records_of(batch: ProducerBatch) -> str:
    """`1 record for orders-0`."""
    return f"{len(batch):,} record{'s' * (len(batch) != 1)} for {batch.topic_partition}"


class _Requests:
    """The requests that go to one leader now, each of at most REQUEST_BYTES_MAX and REQUEST_BATCHES_MAX."""

    def __init__(self, count_max: int, batches_max: int) -> None:
        self.requests: list[list[ProducerBatch]] = []
        self._count_max = count_max
        self._batches_left = batches_max
        self._last_bytes = 0

    def take(self, batch: ProducerBatch) -> bool:
        """Adds it to the last request, or to another that the leader still takes; False when there is no room."""
        if self._batches_left <= 0:
            return False
        size_bytes = batch.size_bytes
        if not self._last_takes(size_bytes):
            if len(self.requests) >= self._count_max:
                return False
            self.requests.append([])
            self._last_bytes = 0
        self.requests[-1].append(batch)
        self._last_bytes += size_bytes
        self._batches_left -= 1
        return True

    def _last_takes(self, size_bytes: int) -> bool:
        if not self.requests or len(self.requests[-1]) == REQUEST_BATCHES_MAX:
            return False
        return self._last_bytes + size_bytes <= REQUEST_BYTES_MAX
