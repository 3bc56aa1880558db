"""Brokers and their controller in virtual time, with a producer or a consumer of the real kind: for what is about time,
and must not depend on the machine.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from random import Random
from typing import Any

from rayka.client.consumer.delivery import Delivery
from rayka.client.consumer.fetcher import Fetcher
from rayka.client.producer.record_columns import RECORD_OVERHEAD_BYTES, Moment, PreparedRecord
from rayka.client.producer.sender import Sender
from rayka.config.client_config import ConsumerConfig, ProducerConfig
from rayka.errors import UnavailableError, UnknownTopicOrPartition
from rayka.ids import TopicIdPartition, TopicPartition
from rayka.metadata.image import PartitionImage
from rayka.ports import Network
from rayka.protocol.active_controller import ActiveController
from rayka.protocol.membership import MetadataRequest
from rayka.protocol.topics import (
    AlterPartitionReassignmentsRequest,
    CreateTopicsRequest,
    ElectionType,
    ElectLeadersRequest,
    NewTopic,
    Reassignment,
)
from rayka.sim.checks.data_history import Send
from rayka.sim.loop import PROCESS, START_US, Process
from rayka.sim.run_options import CLIENT_ID, SimOptions
from rayka.sim.simulation import Quiet, Simulation

TOPIC, REPLICAS, CONTROLLER = "orders", (1, 2, 3), 3001
_PATIENCE_MS = 30_000


class VirtualCluster:
    """See the module. Each client has a network of its own."""

    name = "virtual"

    def __init__(self, *, brokers: int = 3, coordinators: int = 0, voters: int = 1, **config: Any) -> None:
        options = SimOptions(
            seed=1, voters=voters, brokers=brokers, coordinators=coordinators, clients=1, ops_per_second=0.0,
            faults_per_minute=0.0, latency_ms=1.0, jitter_ms=0.0, sync_ms=1.0, config=config,
        )  # fmt: skip
        self.sim = Simulation(options)
        self.loop = self.sim.loop
        self.questions_ms: list[int] = []  # when clients asked for metadata
        self._process = Process(CLIENT_ID, 1)
        self._context = Context()
        self._context.run(PROCESS.set, self._process)
        self.sim.begin()
        self.until(lambda: all(each.is_serving for each in self.sim.cluster.machines.values()))
        topic = NewTopic(TOPIC, configs={"min.insync.replicas": "2"}, assignments=(REPLICAS,))
        active = ActiveController(self.network())
        self.run(active.call(CreateTopicsRequest((topic,)), _PATIENCE_MS))
        self.go_on(500)

    def network(self, transport: str = "auto") -> "CountingNetwork":
        return CountingNetwork(self, self.port())

    def port(self) -> Network:
        """A network of the client's process that counts nothing."""
        return self.sim.network.port(self._process)

    # ---- Time ----

    @property
    def now_ms(self) -> int:
        return (self.loop.now_us - START_US) // 1_000

    def go_on(self, duration_ms: int) -> None:
        self.sim.run_until_ms(self.now_ms + duration_ms)
        assert self.sim.checkers.violation is None, self.sim.checkers.violation

    def until(self, holds: Callable[[], bool]) -> None:
        self.sim.run_until_ms(self.now_ms + _PATIENCE_MS, holds)
        assert holds(), f"it did not come to be; {self.sim.checkers.violation}"

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """A task of the client's process."""
        return self.loop.create_task(coroutine, context=self._context)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        task = self.start(coroutine)
        self.until(task.done)
        return task.result()

    # ---- The brokers ----

    @property
    def partition(self) -> PartitionImage:
        """As committed."""
        image = self.sim.ledger.newest_image
        state = image.partition(TopicIdPartition(image.topics[TOPIC].topic_id, 0))
        assert state is not None
        return state

    def move_lead(self, node_id: int) -> None:
        """The partition is led by this broker from now on."""
        replicas = (node_id, *(each for each in REPLICAS if each != node_id))
        active, partition = ActiveController(self.network()), TopicPartition(TOPIC, 0)
        order = AlterPartitionReassignmentsRequest((Reassignment(TOPIC, 0, replicas),))
        self.run(active.call(order, _PATIENCE_MS))
        self.until(lambda: self.partition.replicas == replicas)
        self.run(active.call(ElectLeadersRequest(ElectionType.PREFERRED, (partition,)), _PATIENCE_MS))
        self.until(lambda: self.partition.leader_id == node_id)

    def silence(self, node_id: int) -> None:
        """The node ends in silence: calls to it are never answered."""
        self.sim.network.links.cut([(CLIENT_ID, node_id), (node_id, CLIENT_ID)])
        self.sim.cluster.kill(node_id, is_silent=True)

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """No call of a client reaches a node, and none fails by itself."""
        nodes = list(self.sim.cluster.machines)
        links = [link for each in nodes for link in ((CLIENT_ID, each), (each, CLIENT_ID))]
        self.sim.network.links.cut(links)
        yield
        self.sim.network.links.mend(links)

    @contextmanager
    def paused(self, node_id: int) -> Iterator[None]:
        """The process of a node, or of the clients, stands still, and then goes on with what has come meanwhile."""
        process = self._process if node_id == CLIENT_ID else self.sim.cluster.machines[node_id].process
        assert process is not None, node_id
        process.is_paused = True
        yield
        self.loop.resume(process)


class CountingNetwork:
    """The network port of one client; notes when it asks for metadata, which it may do once at a time."""

    def __init__(self, cluster: VirtualCluster, port: Network) -> None:
        self._cluster = cluster
        self._port = port
        self._is_asking = False

    async def node_ids(self) -> Sequence[int]:
        return await self._port.node_ids()

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if not isinstance(request, MetadataRequest):
            return await self._port.call(node_id, request, timeout_ms)
        assert not self._is_asking, "a client asks for metadata while it asks for metadata"
        self._is_asking = True
        self._cluster.questions_ms.append(self._cluster.now_ms)
        try:
            return await self._port.call(node_id, request, timeout_ms)
        finally:
            self._is_asking = False


class VirtualProducer:
    """Sends numbers at an even rate, and notes when each was acknowledged, in milliseconds, and where."""

    def __init__(self, cluster: VirtualCluster, pause_ms: int, **options: Any) -> None:
        self.acknowledged_ms: list[int] = []
        self.offsets: dict[int, int] = {}
        self.count = 0
        self._cluster = cluster
        self._is_sending = True
        config = ProducerConfig.parse({"linger_ms": 0, **options}, what="producer")
        self._sender = Sender(cluster, config, Random(1), cluster.loop)
        self._task = cluster.start(self._send(pause_ms))

    async def _send(self, pause_ms: int) -> None:
        await self._sender.learn_topic(TOPIC)
        while self._is_sending:
            self._append(self.count, b"%d" % self.count)
            self.count += 1
            await asyncio.sleep(pause_ms / 1000)

    def _append(self, number: int, value: bytes) -> None:
        cluster, sender = self._cluster, self._sender
        cluster.sim.data_history.begin(Send(CLIENT_ID, number, TOPIC, 0, value, -1, True, cluster.now_ms))
        at = Moment(sender.now_ms(), 1_700_000_000_000)
        future = sender.accumulator.try_append(
            PreparedRecord(TOPIC, 0, value, len(value) + RECORD_OVERHEAD_BYTES), at
        )
        assert future is not None

        def on_delivery(error: Exception | None, metadata: Any) -> None:
            assert error is None, error
            self.acknowledged_ms.append(cluster.now_ms)
            self.offsets[number] = metadata.offset

        future.report_to(on_delivery)

    def end(self) -> None:
        """Sends nothing more; returns when all is acknowledged."""
        self._is_sending = False
        self._cluster.until(lambda: len(self.offsets) == self.count)
        self._cluster.run(self._sender.close())


class VirtualConsumer:
    """Reads from the beginning; notes what came, and each UnavailableError, with the time in milliseconds."""

    def __init__(self, cluster: VirtualCluster, **options: Any) -> None:
        self.values: list[bytes | None] = []
        self.read_ms: list[int] = []
        self.unavailable_ms: list[int] = []
        self.partitions: Mapping[TopicPartition, None] = {}
        self._cluster = cluster
        config = ConsumerConfig.parse(
            {"auto_offset_reset": "earliest", "local_reads": False, **options}, what="consumer"
        )
        self._task = cluster.start(self._read(config))

    async def _read(self, config: ConsumerConfig) -> None:
        fetcher, delivery = Fetcher(self._cluster, config, Random(1)), Delivery()
        await fetcher.follow([TOPIC])
        while True:
            try:
                await fetcher.poll(1_000, delivery.add, silence_ms_max=config.default_api_timeout_ms)
            except UnknownTopicOrPartition:  # between its deletion and its second creation
                continue
            except UnavailableError:
                self.unavailable_ms.append(self._cluster.now_ms)
            self.partitions = fetcher.subscription.partitions
            while records := delivery.next_records(100):
                self.values += [each.value for each in records]
                self.read_ms += [self._cluster.now_ms] * len(records)


@contextmanager
def virtual_cluster(**config: Any) -> Iterator[VirtualCluster]:
    """Ends it afterwards."""
    with Quiet():
        cluster = VirtualCluster(**config)
        try:
            yield cluster
        finally:
            cluster.sim.close()
