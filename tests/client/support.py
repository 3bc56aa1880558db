"""A cluster that answers at once and does what it is told: for what the real nodes cannot be made to do on request."""

import asyncio
from collections import deque
from collections.abc import Sequence
from threading import Event
from typing import Any, cast
from uuid import UUID

from rayka.client import io_thread
from rayka.client.producer.accumulator import Accumulator
from rayka.client.producer.drain_schedule import LeaderRequests
from rayka.client.producer.partition_queue import Limits
from rayka.client.producer.producer_batch import ProducerBatch
from rayka.errors import BrokerNotAvailable, ErrorCode, NetworkException, RequestTimedOut
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import RecordBatch, split_batches
from rayka.protocol.membership import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from rayka.protocol.produce import (
    CurrentLeader,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
)

BROKER, OTHER, CONTROLLER = 1, 2, 3001
QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 2, "linger_ms": 0}  # options that make tests short
Answer = ErrorCode | Exception


class ScriptedCluster:
    """A `ClusterHandle` and its `Network`: two brokers, one controller, topics by name and partition count. Broker 1
    leads all, until `move_leaders`; the logs are the same on both. A refusal names `named`. A
    partition that the topic does not have is refused, as a broker does.

    `answers`: what becomes of the next produced partitions, one after another: an error code, or an error of
    the network. `logs`: the batches of each partition, as they arrived. While `hold` was called, produce
    requests wait for `release`.
    """

    name = "scripted"

    def __init__(self, topics: dict[str, int] | None = None) -> None:
        self.topics = dict(topics or {"orders": 3})
        self.configs: dict[str, str] = {}
        self.answers: deque[Answer] = deque()
        self.id_answers: deque[Exception] = deque()  # instead of the next producer ids
        self.producer_ids = 0  # given out
        self.cut_off: list[int] = []  # brokers that do not reach the controller
        self.logs: dict[tuple[str, int], list[RecordBatch]] = {}
        self.requests: list[ProduceRequest] = []
        self.asked: list[int] = []  # the nodes that got them
        self.leader_id = BROKER
        self.leader_epoch = 0
        self.named = CurrentLeader()
        self.cluster_id = "id"
        self.metadata_offset = 7
        self.dead: list[int] = []  # nodes that are not reached
        self.fenced: list[int] = []
        self.hung: list[int] = []  # nodes that take calls and never answer
        self.topics_at_broker: dict[str, int] | None = None  # what the broker knows, if not all
        self.is_down = False
        self.metadata_calls = 0
        self.executes_lost_requests = False
        self.batch_bytes_max = 1 << 30  # larger ones are refused
        self.refused_count = 0
        self._gate: asyncio.Event | None = None
        self._held = Event()

    def network(self, transport: str = "auto") -> "ScriptedCluster":
        return self

    async def node_ids(self) -> Sequence[int]:
        return [BROKER, OTHER, CONTROLLER]

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if self.is_down or node_id in self.dead:
            raise NetworkException(f"node {node_id} is down")
        if node_id in self.hung:
            self._held.set()
            await asyncio.sleep(timeout_ms / 1000)
            raise RequestTimedOut(f"node {node_id} did not answer within {timeout_ms} ms")
        if isinstance(request, MetadataRequest):
            return self._metadata(node_id, request)
        if isinstance(request, InitProducerIdRequest):
            if node_id in self.cut_off:
                raise BrokerNotAvailable(f"broker {node_id} has no producer ids left")
            return self._new_producer_id()
        assert isinstance(request, ProduceRequest)
        self.requests.append(request)
        self.asked.append(node_id)
        if self._gate is not None:
            self._held.set()
            await self._gate.wait()
        return ProduceResponse(tuple(self._append(each, request.acks) for each in request.partitions))

    # ---- For tests ----

    def hold(self) -> None:
        """Produce requests wait from now on."""
        self._gate = asyncio.Event()
        self._held.clear()

    def move_leaders(self, leader_id: int) -> None:
        """All partitions have another leader, or with -1 none."""
        self.leader_id = leader_id
        self.leader_epoch += 1
        self.metadata_offset += 1

    def wait_until_held(self) -> None:
        """Returns when a produce request waits."""
        assert self._held.wait(60)

    def release(self) -> None:
        """Requests go on, those that wait and those to come."""
        gate, self._gate = self._gate, None
        assert gate is not None
        io_thread.call_soon(gate.set)

    def values(self, topic: str, partition: int) -> list[bytes | None]:
        """The values in a partition, in the order of the log."""
        return [
            value for batch in self.logs.get((topic, partition), []) for value in decode(batch).values_list()
        ]

    # ---- Nodes ----

    def _metadata(self, node_id: int, request: MetadataRequest) -> MetadataResponse:
        self.metadata_calls += 1
        known = self.topics
        if node_id == BROKER and self.topics_at_broker is not None and request.min_metadata_offset < 0:
            known = self.topics_at_broker
        names = tuple(self.topics) if request.topics is None else request.topics
        brokers = tuple(MetadataBroker(each, "here", each in self.fenced, ()) for each in (BROKER, OTHER))
        topics = tuple(self._topic(each, known) for each in names)
        return MetadataResponse(self.cluster_id, CONTROLLER, brokers, topics, self.metadata_offset)

    def _new_producer_id(self) -> InitProducerIdResponse:
        answer = self.id_answers.popleft() if self.id_answers else None
        if answer is not None:
            raise answer
        self.producer_ids += 1
        return InitProducerIdResponse(self.producer_ids - 1, 0)

    def _topic(self, name: str, known: dict[str, int]) -> MetadataTopic:
        if name not in known:
            return MetadataTopic(name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partitions = tuple(
            MetadataPartition(index, self.leader_id, self.leader_epoch, (BROKER, OTHER), (BROKER, OTHER))
            for index in range(known[name])
        )
        return MetadataTopic(name, _topic_id(name), partitions, self.configs)

    def _append(self, part: ProducePartition, acks: int) -> ProducePartitionResult:
        topic = next((each for each in self.topics if _topic_id(each) == part.topic_id), None)
        if topic is None:
            return ProducePartitionResult(
                part.topic_id, part.partition, ErrorCode.UNKNOWN_TOPIC_ID, "unknown"
            )
        answer = self.answers.popleft() if self.answers else None
        if answer is None and part.partition >= self.topics[topic]:
            answer = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if isinstance(answer, ErrorCode):
            leader_id, leader_epoch = self.named
            return ProducePartitionResult(
                part.topic_id,
                part.partition,
                answer,
                "as told",
                leader_id=leader_id,
                leader_epoch=leader_epoch,
            )
        if isinstance(answer, Exception) and not self.executes_lost_requests:
            raise answer
        if part.records.size > self.batch_bytes_max:
            self.refused_count += 1
            return ProducePartitionResult(
                part.topic_id, part.partition, ErrorCode.MESSAGE_TOO_LARGE, "too large"
            )
        log = self.logs.setdefault((topic, part.partition), [])
        base_offset = sum(each.record_count for each in log)
        log += split_batches(part.records.copy())
        if isinstance(answer, Exception):
            raise answer
        return ProducePartitionResult(part.topic_id, part.partition, base_offset=base_offset if acks else -1)


def _topic_id(name: str) -> UUID:
    return UUID(bytes=name.encode().ljust(16, b"\0")[:16])


# ---- The producer's accumulator without a sender ----


def new_accumulator(limits: Limits, *, partitions: int, producer_id: int = -1) -> Accumulator:
    """One that wakes nothing, with a topic `orders`."""
    made = Accumulator(limits, wake=lambda: None)
    made.identity.producer_id = producer_id
    made.set_topic("orders", partitions, 1 << 20)
    return made


class OneLeader(LeaderRequests):
    """A leader of all partitions."""

    def __init__(self) -> None:
        super().__init__(cast(Any, None), 5, cast(Any, None))

    def leader_of(self, batch: ProducerBatch) -> int:
        return BROKER

    def drain(self, accumulator: Accumulator, now_ms: float) -> tuple[list[list[ProducerBatch]], float]:
        """The requests that go now, and when to drain again."""
        plan = accumulator.drain(now_ms, self)
        return [batches for _, batches in plan.requests], plan.next_ms

    def answer(self, accumulator: Accumulator, request: list[ProducerBatch], took_ms: float) -> None:
        """All of the request is in the log."""
        accumulator.finish(request, is_acknowledged=True)
        self.on_over(BROKER, len(request), took_ms)


def start_batch(accumulator: Accumulator, batch: ProducerBatch) -> None:
    """Starts it as `drain` does, whether it is due or not."""
    accumulator._start(accumulator.topics.queue_of(batch), batch)


def hold(accumulator: Accumulator, batch: ProducerBatch, now_ms: float) -> None:
    """Leader 1 takes no more, as `drain` finds out."""
    accumulator.schedule.hold(accumulator.topics.queue_of(batch), batch, 1, now_ms)


def expired(accumulator: Accumulator, now_ms: float) -> list[ProducerBatch]:
    """The batches that `drain` would end now."""
    queues = accumulator.schedule.pending(now_ms)
    return [batch for queue in queues for batch in queue.expired(now_ms)]
