"""The producers and consumers of a simulation: the real brains of the clients, on the virtual loop.

A producer is the real `Sender` with its `Accumulator` and sequences, a consumer the real `Fetcher` with its `Delivery`;
only the sync classes in front of them, which wait in threads, are left out. A client is a process of the network: its
links are cut, its calls lost and doubled like those of the nodes. Each record has a value of its own, so that the
history knows it wherever it turns up. A consumer begins anew from time to time, from the earliest record on.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from rayka.client.consumer.delivery import Delivery
from rayka.client.consumer.fetcher import Fetcher
from rayka.client.producer.record_columns import RECORD_OVERHEAD_BYTES, Moment, PreparedRecord, Row
from rayka.client.producer.sender import Sender
from rayka.config.client_config import ConsumerConfig, ProducerConfig
from rayka.errors import RaykaError, UnavailableError
from rayka.ids import TopicPartition
from rayka.options import Transport
from rayka.ports import Network
from rayka.sim.checks.checkers import Checkers
from rayka.sim.checks.compacted_logs import TOMBSTONE, identity_of
from rayka.sim.checks.data_history import DataHistory, OperationOutcome, Send, Session
from rayka.sim.checks.replica_views import Replication
from rayka.sim.clients.acting import Acting
from rayka.sim.loop import Process
from rayka.sim.run_options import TopicPlan
from rayka.sim.world.machines import SimCluster
from rayka.sim.world.simulated_network import SimNetwork

_POLL_MS = 400.0
_POLLS_MAX = 200  # then a consumer may begin anew
_RETRY_S = 0.2
_KEYS = 5  # of a compacted topic, for each partition


class SimHandle:
    """A client's handle of its cluster, with its own network."""

    name = "sim"

    def __init__(self, network: SimNetwork, process: Process) -> None:
        self._network = network
        self._process = process

    def network(self, transport: Transport = "auto") -> Network:
        return self._network.port(self._process)


class DataClients:
    """All producers and consumers of one run. They begin when their topics are there."""

    def __init__(
        self, cluster: SimCluster, checkers: Checkers, history: DataHistory, replication: Replication
    ) -> None:
        self.cluster = cluster
        self.checkers = checkers
        self.history = history
        self.replication = replication
        self.producers = [_Producer(self, each) for each in cluster.options.producer_ids]
        self.consumers = [_Consumer(self, each) for each in cluster.options.consumer_ids]
        self.is_asking = True

    def start(self, topics: Sequence[TopicPlan]) -> None:
        """Topics that have been created: clients use them from now on."""
        if topics:
            for client in (*self.producers, *self.consumers):
                client.start(topics)

    def add(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions that topics have got since."""
        for client in (*self.producers, *self.consumers):
            client.partitions += partitions

    def stop_asking(self) -> None:
        """No new records; those under way go on, and the consumers read to the end."""
        self.is_asking = False

    def waiting(self) -> list[str]:
        """The sends that have not ended, and the consumers that have not read everything."""
        found = [str(each) for each in self.history.pending()[:5]]
        return found + [problem for each in self.consumers for problem in each.behind()]

    def close(self) -> None:
        """Gives up all operations under way."""
        for each in (*self.producers, *self.consumers):
            each.process.is_alive = False


class DataClient(Acting, ABC):
    """A process that uses topics."""

    def __init__(self, owner: DataClients, client_id: int) -> None:
        super().__init__(owner.cluster, client_id)
        self.owner = owner
        self.random = Random(f"data {self.options.seed} {client_id}")
        self.partitions: list[TopicPartition] = []
        self.compacted: dict[str, None] = {}  # topics

    def start(self, topics: Sequence[TopicPlan]) -> None:
        """Uses the partitions of these topics."""
        for topic in topics:
            if topic.is_compacted:
                self.compacted[topic.name] = None
            self.partitions += [TopicPartition(topic.name, number) for number in range(topic.partition_count)]
        if not self.tasks:
            self.begin("data client", self.run())

    @abstractmethod
    async def run(self) -> None:
        """Acts until it is cancelled, or clients stop asking."""

    def report(self, checker: str, evidence: str) -> None:
        self.owner.checkers.report_if(checker, self.process.node_id, evidence)


# ---- Producers -------------------------------------------------------------------------------------------------------


class _Producer(DataClient):
    """Sends records at random times to random partitions."""

    def __init__(self, owner: DataClients, client_id: int) -> None:
        super().__init__(owner, client_id)
        self._config = ProducerConfig.parse(self._options(), what="simulated producer")
        self._count = 0

    def _options(self) -> dict[str, Any]:
        is_first = self.process.node_id == self.options.producer_ids[0]
        acks, is_idempotent = (
            (-1, True) if is_first else self.random.choice(((-1, True), (-1, False), (1, False)))
        )
        return {
            "acks": acks,
            "enable_idempotence": is_idempotent,
            "linger_ms": self.random.choice((0, 5, 50)),
            "batch_size": self.random.choice((500, 5_000)),
            "request_timeout_ms": self.random.choice((1_000, 5_000)),
            "delivery_timeout_ms": self.random.choice((3_000, 15_000, 50_000)),
            "max_block_ms": 2_000,
            "max_in_flight_requests_per_connection": self.random.choice((1, 5)),
        }

    async def run(self) -> None:
        owner = self.owner
        sender = Sender(SimHandle(self.cluster.network, self.process), self._config, self.random, self.loop)
        pause_s = self.options.producers / self.options.records_per_second
        while owner.is_asking:
            await asyncio.sleep(self.random.expovariate(1) * pause_s)
            target = self.partitions[self.random.randrange(len(self.partitions))]
            if await self._knows(sender, target):
                for _ in range(self.random.choice((1, 1, 3))):
                    self._send(sender, target)

    async def _knows(self, sender: Sender, target: TopicPartition) -> bool:
        """Whether the partition is there for the producer, which asks for its topic if it is not."""
        topics = sender.accumulator.topics
        try:
            if (known := topics.get(target.topic)) is None:
                await sender.learn_topic(target.topic)
            elif target.partition >= len(known.queues):
                await sender.metadata.renew((target.topic,), self._config.max_block_ms)
        except RaykaError as error:
            self.tell("blocked", str(error)[:80])
            return False
        known = topics.get(target.topic)
        return known is not None and target.partition < len(known.queues)

    def _send(self, sender: Sender, target: TopicPartition) -> None:
        now_ms = self.loop.now_ms
        self._count += 1
        value = f"{self.process.node_id}-{self._count}-{'x' * self.random.choice((0, 20, 200))}".encode()
        slot: bytes | Row = value
        if target.topic in self.compacted:
            slot = self._row(value)
            value = identity_of(slot.key, slot.value)
        send = Send(
            self.process.node_id, self._count, target.topic, target.partition, value,
            self._config.acks, bool(self._config.enable_idempotence), now_ms,
        )  # fmt: skip
        moment = Moment(sender.now_ms(), self.loop.wall_clock_ms)
        record = PreparedRecord(target.topic, target.partition, slot, len(value) + RECORD_OVERHEAD_BYTES)
        future = sender.accumulator.try_append(record, moment)
        if future is not None:
            self.owner.history.begin(send)
            future.report_to(partial(self._on_delivery, send))

    def _row(self, value: bytes) -> Row:
        """A record of one of a few keys; one of ten has no value, and then a key of its own."""
        if self.random.random() < 0.1:
            return Row(None, TOMBSTONE + value[:20])
        return Row(value, b"k%d" % self.random.randrange(_KEYS))

    def _on_delivery(self, send: Send, error: Exception | None, metadata: Any) -> None:
        if error is not None:
            send.outcome, send.what = OperationOutcome.UNKNOWN, type(error).__name__
            self.tell("unsent", str(send))
            return
        send.outcome, send.offset = OperationOutcome.ACKNOWLEDGED, metadata.offset
        owner = self.owner
        name = TopicPartition(send.topic, send.partition)
        problem = owner.history.on_delivered(send, owner.replication.truth_named(name))
        if problem:
            self.report("promised", problem)


# ---- Consumers -------------------------------------------------------------------------------------------------------


class _Consumer(DataClient):
    """Reads all partitions, from the beginning, again and again."""

    def __init__(self, owner: DataClients, client_id: int) -> None:
        super().__init__(owner, client_id)
        self._sessions: dict[TopicPartition, Session] = {}

    async def run(self) -> None:
        while True:
            config = ConsumerConfig.parse(self._options(), what="simulated consumer")
            fetcher = Fetcher(SimHandle(self.cluster.network, self.process), config, self.random)
            delivery = Delivery()
            partitions = list(self.partitions)  # others may be added meanwhile
            self._sessions = {each: Session(each.topic, each.partition) for each in partitions}
            try:
                await fetcher.assign(partitions)
                await self._read(fetcher, delivery, self.random.randint(20, _POLLS_MAX))
            except RaykaError as error:
                self.tell("consumer", str(error)[:120])
                await asyncio.sleep(_RETRY_S)
            finally:
                await fetcher.close()

    def _options(self) -> dict[str, Any]:
        return {
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": self.random.choice((100, 500)),
            "max_partition_fetch_bytes": self.random.choice((1_000, 100_000)),
            "request_timeout_ms": self.random.choice((1_000, 5_000)),
            "default_api_timeout_ms": 5_000,
            "metadata_max_age_ms": self.random.choice((1_000, 60_000)),
            "local_reads": False,
        }

    async def _read(self, fetcher: Fetcher, delivery: Delivery, polls: int) -> None:
        """Ends after so many polls, or when there is another partition to read. A poll that tells of a partition
        without a leader is followed by another: all others are read on."""
        while len(self.partitions) == len(self._sessions) and (polls > 0 or not self.owner.is_asking):
            polls -= 1
            try:
                if not await fetcher.poll(_POLL_MS, delivery.add):
                    continue
            except UnavailableError as error:
                self.tell("consumer", str(error)[:120])
                continue
            while records := delivery.next_records(100):
                for record in records:
                    self._on_record(
                        TopicPartition(record.topic, record.partition),
                        record.offset,
                        identity_of(record.key, record.value),
                    )

    def _on_record(self, topic_partition: TopicPartition, offset: int, value: bytes) -> None:
        owner = self.owner
        truth = owner.replication.truth_named(topic_partition)
        if truth is not None:
            owner.replication.look_at_starts(truth)
        checker, problem = owner.history.on_polled(self._sessions[topic_partition], offset, value, truth)
        if checker:
            self.report(checker, problem)

    def behind(self) -> list[str]:
        """Partitions whose end it has not reached."""
        found, owner = [], self.owner
        for topic_partition, session in self._sessions.items():
            truth = owner.replication.truth_named(topic_partition)
            state = None if truth is None else owner.replication.state_of(truth)
            if truth is None or state is None or not state.has_leader or truth.has_lost:
                continue
            owner.replication.look_at_starts(truth)  # what expired meanwhile has not to be read
            if truth.needed_end > max(session.next_offset, truth.needed_begin):
                found.append(f"consumer {self.process.node_id} stands at {session.next_offset} of {truth!r}")
        return found
