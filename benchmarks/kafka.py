"""Apache Kafka beside rayka: brokers of its own on this machine, driven by confluent-kafka.

Optional. Needs a directory with Kafka's jars, the package `confluent-kafka` and Java; `README.md` says how. Defaults
but for what the comparison needs: as many replicas as rayka has, and a client that batches by megabytes as rayka's
does. With several brokers each of them is a controller, too.
"""

import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.limits import seconds

_START_TIMEOUT_S, _TOOL_TIMEOUT_S = 60.0, 180.0
_HEAP = "768m"
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
_ANY_PARTITION = -1  # which the client chooses
_CLEANERS_LOGGER = "org.apache.kafka.storage.internals.log.LogCleaner$CleanerThread"
_CLEANED = re.compile(r"cleaned log (\S+) \(.*\)\s+[\d.,]+ MB of log processed in ([\d.,]+) seconds")
_PROPERTIES = """\
process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker_port}
controller.listener.names=CONTROLLER
log.dirs={directory}/logs-{node_id}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
"""


@contextmanager
def running_kafka(
    jars: Path, directory: Path, *, brokers: int = 1, properties: Mapping[str, Any] | None = None
) -> Iterator["Kafka"]:
    """A fresh Kafka for the time of the block, in a directory that is removed with it; `properties` are those of its
    brokers that differ.
    """
    directory.mkdir()
    ports = {node_id: (_free_port(), _free_port()) for node_id in range(1, brokers + 1)}
    voters = ",".join(f"{node_id}@127.0.0.1:{controller}" for node_id, (_, controller) in ports.items())
    for node_id, (broker_port, controller_port) in ports.items():
        path = _properties_path(directory, node_id)
        lines = [f"{key}={value}\n" for key, value in (properties or {}).items()]  # the last one counts
        path.write_text(
            _PROPERTIES.format(
                node_id=node_id,
                voters=voters,
                directory=directory,
                broker_port=broker_port,
                controller_port=controller_port,
            )
            + "".join(lines)
        )
        _java(jars, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(path)).wait()
    kafka = Kafka(jars, directory, {node_id: broker_port for node_id, (broker_port, _) in ports.items()})
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.end()
        shutil.rmtree(directory)


class Kafka:
    """A Kafka of some brokers, and what a Python client reaches with it."""

    def __init__(self, jars: Path, directory: Path, ports: dict[int, int]) -> None:
        self._jars = jars
        self._directory = directory
        self._ports = ports
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ending: list[subprocess.Popen[bytes]] = []
        self._address = ",".join(f"127.0.0.1:{port}" for port in ports.values())

    @property
    def address(self) -> str:
        """Of all brokers, for clients."""
        return self._address

    # ---- Brokers ----

    def start(self) -> None:
        """Starts every broker that does not run, once those that were told to end have; returns when all answer."""
        while self._ending:
            self._ending.pop().wait()
        for node_id in self._ports:
            process = self._processes.get(node_id)
            if process is None or process.poll() is not None:
                properties = str(_properties_path(self._directory, node_id))
                log_path = _log_path(self._directory, node_id)
                self._processes[node_id] = _java(self._jars, "kafka.Kafka", properties, log_path=log_path)
        for node_id, port in self._ports.items():
            _await_port(port, self._processes[node_id])

    def end(self) -> None:
        """Ends every broker."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait()

    def end_leader(self, topic: str, signal_number: signal.Signals) -> None:
        """Sends the signal to the process that leads the topic's first partition."""
        self.end_node(self._leader(topic), signal_number)

    def end_node(self, node_id: int, signal_number: signal.Signals) -> None:
        """Sends the signal to a broker."""
        process = self._processes[node_id]
        process.send_signal(signal_number)
        self._ending.append(process)

    def await_in_sync(self, topic: str, replicas: int) -> None:
        """Returns when so many replicas of the topic's first partition are in sync."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while len(self._partition(topic).isrs) < replicas:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{topic} has not got {replicas} replicas in sync: {self._partition(topic)}"
                )
            time.sleep(0.2)

    def log_bytes(self, topic: str) -> int:
        """Of the segments of all partitions of the topic, those that are about to be removed not counted."""
        return sum(each.stat().st_size for each in self._directory.glob(f"logs-*/{topic}-*/*.log"))

    def cleaning_s(self, topic: str) -> float:
        """How long compaction of the topic's partitions has taken, by what its cleaner writes into its log."""
        texts = [_log_path(self._directory, each).read_text() for each in self._ports]
        found = [each for text in texts for each in _CLEANED.findall(text)]
        return sum(float(taken.replace(",", "")) for log, taken in found if log.rpartition("-")[0] == topic)

    def partition_sizes(self, topic: str, broker_id: int) -> dict[int, int]:
        """The bytes of the segments of each of the topic's partitions on a broker, without what it is to delete."""
        found: dict[int, int] = {}
        for each in self._directory.glob(f"logs-{broker_id}/{topic}-*/*.log"):
            number = each.parent.name.rpartition("-")[2]
            with suppress(FileNotFoundError):
                if number.isdigit():
                    found[int(number)] = found.get(int(number), 0) + each.stat().st_size
        return found

    # ---- Reassignments ----

    def replicas(self, topic: str) -> dict[int, list[int]]:
        """Of each partition, those of reassignments under way among them."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self._address})
        partitions = admin.list_topics(topic, 10).topics[topic].partitions
        return {number: list(each.replicas) for number, each in partitions.items()}

    def reassign(self, topic: str, brokers: Iterable[int], rate_bytes: int) -> dict[int, list[int]]:
        """Has the replicas moved as `kafka-reassign-partitions` proposes for these brokers; which that will be."""
        topics = {"topics": [{"topic": topic}], "version": 1}
        topics_path = self._directory / "topics.json"
        topics_path.write_text(json.dumps(topics))
        listed = ",".join(map(str, brokers))
        said = self._reassign_partitions(
            "--generate", "--topics-to-move-json-file", str(topics_path), "--broker-list", listed
        )
        proposed = json.loads(said.splitlines()[-1])
        self._plan_path.write_text(json.dumps(proposed))
        execute = ("--execute", "--reassignment-json-file", str(self._plan_path))
        self._reassign_partitions(*execute, "--throttle", str(rate_bytes))
        return {each["partition"]: each["replicas"] for each in proposed["partitions"]}

    def end_reassignment(self) -> None:
        """Takes the throttles away."""
        self._reassign_partitions("--verify", "--reassignment-json-file", str(self._plan_path))

    @property
    def _plan_path(self) -> Path:
        return self._directory / "plan.json"

    def _reassign_partitions(self, *arguments: str) -> str:
        """What the command prints."""
        tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
        process = _java(
            self._jars, tool, "--bootstrap-server", self._address, *arguments, stdout=subprocess.PIPE
        )
        said = process.communicate(timeout=_TOOL_TIMEOUT_S)[0].decode().strip()
        if process.returncode != 0:
            raise RuntimeError(f"kafka-reassign-partitions {' '.join(arguments)} said {said}")
        return said

    def _leader(self, topic: str) -> int:
        return int(self._partition(topic).leader)

    def _partition(self, topic: str) -> Any:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self._address})
        return admin.list_topics(topic, 10).topics[topic].partitions[0]

    # ---- Clients ----

    def create_topic(
        self,
        name: str,
        partitions: int,
        *,
        replicas: int = 1,
        min_isr: int = 1,
        configs: Mapping[str, str] | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """`assignment`: the brokers of each partition, instead of a number of replicas."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self._address})
        merged = {"min.insync.replicas": str(min_isr), **(configs or {})}
        placed: dict[str, Any] = (
            {"replica_assignment": assignment} if assignment else {"replication_factor": replicas}
        )
        topic = NewTopic(name, partitions, config=merged, **placed)
        admin.create_topics([topic])[name].result(30)

    def alter_topic(self, name: str, configs: Mapping[str, str]) -> None:
        """Sets these keys of the topic's configuration."""
        from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

        admin = AdminClient({"bootstrap.servers": self._address})
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in configs.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(30)

    def produce_rate(
        self,
        topic: str,
        values: Sequence[bytes],
        repeats: int,
        *,
        acks: str = "1",
        keys: Sequence[bytes] | None = None,
    ) -> float:
        """Records/s of a loop of `produce` until `flush` returns; idempotent with acks=all."""
        producer = self._producer(linger_ms=5, acks=acks)
        producer.list_topics(topic, 10)

        def loop() -> None:
            for _ in range(repeats):
                if keys is None:
                    for value in values:
                        _produce(producer, topic, value)
                else:
                    for key, value in zip(keys, values, strict=True):
                        _produce(producer, topic, value, key)
                producer.poll(0)
            assert producer.flush(60) == 0

        return len(values) * repeats / seconds(loop)

    def round_trip_p50(self, topic: str, size_bytes: int, count: int) -> float:
        """Median seconds of one `produce` and `flush`; linger 0, acks=1."""
        return statistics.median(self.round_trips(topic, size_bytes, count))

    def round_trips(self, topic: str, size_bytes: int, count: int, *, acks: str = "1") -> list[float]:
        """Seconds of each `produce` and `flush`, one record in flight; linger 0."""
        send = self.one_by_one(topic, bytes(size_bytes), acks=acks)
        send()
        return [seconds(send) for _ in range(count)]

    def one_by_one(self, topic: str, value: bytes, *, acks: str = "1") -> Callable[[], None]:
        """A function that sends the value and returns when it is acknowledged; linger 0."""
        producer = self._producer(linger_ms=0, acks=acks)

        def send() -> None:
            producer.produce(topic, value)
            producer.flush()

        return send

    def unlingering_producer(self) -> Any:
        """A client that sends each record at once, acks=all."""
        return self._producer(linger_ms=0, acks="all")

    def fill(self, topic: str, records: Iterable[tuple[bytes, bytes]], partitions: int) -> None:
        """Sends keys and values to so many partitions in turn; returns when all are acknowledged, acks=1."""
        producer = self._producer(linger_ms=5, acks="1")
        for number, (key, value) in enumerate(records):
            _produce(producer, topic, value, key, number % partitions)
        assert producer.flush(60) == 0

    def sender(self, topic: str) -> Callable[[bytes, Callable[[], None]], None]:
        """A function that sends one record to the topic's first partition, acks=all, and calls back when it is in."""
        producer = self._producer(linger_ms=0, acks="all")

        def send(value: bytes, on_acknowledged: Callable[[], None]) -> None:
            if value:
                producer.produce(topic, value, partition=0, on_delivery=_reporting(on_acknowledged))
            producer.poll(0)

        return send

    def single_record_rate(
        self, topic: str, size_bytes: int, *, in_flight: int, producers: int, seconds_long: float
    ) -> float:
        """Records/s with so many unacknowledged, each a request of its own, acks=all.

        A single producer is idempotent, with at most five requests in flight to a broker. Several are not; they share
        the records. A broker takes the next request of a connection when it has answered the one before, so what helps
        Kafka is more connections.
        """
        in_flight_max = 5 if producers == 1 else in_flight
        one_a_request = {"batch.num.messages": 1, "max.in.flight.requests.per.connection": in_flight_max}
        more = {"enable.idempotence": producers == 1, **one_a_request}
        clients = [
            _Loader(self._producer(linger_ms=0, acks="all", more=more), topic) for _ in range(producers)
        ]
        for client in clients:
            client.fill(bytes(size_bytes), in_flight // producers)
        for client in clients:
            client.flush()  # connects to all brokers
        began, before = time.perf_counter(), sum(each.done for each in clients)
        while time.perf_counter() < began + seconds_long:
            for client in clients:
                client.fill(bytes(size_bytes), in_flight // producers)
        rate = (sum(each.done for each in clients) - before) / (time.perf_counter() - began)
        for client in clients:
            client.flush()
        return rate

    @contextmanager
    def both_ends(self, topic: str) -> Iterator[tuple[Callable[[bytes], None], Callable[[], list[bytes]]]]:
        """A function that sends a value at once, acks=all, and one that gives what arrives."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        producer = self._producer(linger_ms=0, acks="all")
        producer.list_topics(topic, 10)
        consumer = Consumer({"bootstrap.servers": self._address, "group.id": f"{topic}-end"})
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])

        def send(value: bytes) -> None:
            producer.produce(topic, value, partition=0)
            producer.poll(0)

        def poll() -> list[bytes]:
            message = consumer.poll(0.1)
            return [] if message is None or message.error() else [message.value()]

        try:
            yield send, poll
        finally:
            consumer.close()
            producer.flush(10)

    def consume_rate(self, topic: str, count: int) -> float:
        """Records/s of `consume(10000)` from the first to the last of so many records, values looked at."""
        consumer = self._consumer(topic)
        started, left = time.perf_counter(), count
        while left > 0:
            left -= sum(message.value() is not None for message in consumer.consume(10_000, 5.0))
        taken_s = time.perf_counter() - started
        consumer.close()
        return count / taken_s

    def _producer(self, *, linger_ms: int, acks: str = "1", more: Mapping[str, Any] | None = None) -> Any:
        from confluent_kafka import Producer

        promises = {"acks": acks, "enable.idempotence": acks == "all", "retry.backoff.ms": 50}
        batching = {"linger.ms": linger_ms, "batch.size": 1_000_000, "batch.num.messages": 100_000}
        queue = {"queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 1 << 20}
        return Producer({"bootstrap.servers": self._address, **promises, **batching, **queue, **(more or {})})

    def _consumer(self, topic: str) -> Any:
        from confluent_kafka import Consumer, TopicPartition

        group = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        fetching = {"fetch.min.bytes": 100_000, "fetch.wait.max.ms": 50, "fetch.message.max.bytes": 4 << 20}
        queue = {"queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 262_144}
        consumer = Consumer({"bootstrap.servers": self._address, **group, **fetching, **queue})
        partitions = consumer.list_topics(topic, 10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        return consumer


class _Loader:
    """One producer with a number of records on their way."""

    def __init__(self, producer: Any, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._sent = 0
        self.done = 0

    def fill(self, value: bytes, in_flight: int) -> None:
        """Takes in the acknowledgements, and sends as many records again."""
        self._producer.poll(0.0005)
        while self._sent < self.done + in_flight:
            self._producer.produce(self._topic, value, on_delivery=_reporting(self._on_acknowledged))
            self._sent += 1

    def flush(self) -> None:
        assert self._producer.flush(60) == 0

    def _on_acknowledged(self) -> None:
        self.done += 1


def _reporting(on_acknowledged: Callable[[], None]) -> Callable[[Any, Any], None]:
    def report(error: Any, _: Any) -> None:
        if error is None:
            on_acknowledged()

    return report


def _properties_path(directory: Path, node_id: int) -> Path:
    return directory / f"server-{node_id}.properties"


def _produce(
    producer: Any, topic: str, value: bytes, key: bytes | None = None, partition: int = _ANY_PARTITION
) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition)
            return
        except BufferError:
            producer.poll(0.02)


def _log_path(directory: Path, node_id: int) -> Path:
    return directory / f"log-{node_id}.txt"


def _java(
    jars: Path, *command: str, log_path: Path | None = None, stdout: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Of all that Kafka would log, what its cleaner says goes to the file."""
    options = [f"-Xms{_HEAP}", f"-Xmx{_HEAP}", "-server", "-XX:+UseG1GC"]
    simple = "-Dorg.slf4j.simpleLogger"
    options.append(f"{simple}.defaultLogLevel=off")
    if log_path is not None:
        options.append(f"{simple}.log.{_CLEANERS_LOGGER}=info")
        options.append(f"{simple}.logFile={log_path}")
    bound = [os.fspath(each) for each in sorted(jars.glob("*.jar")) if not each.name.startswith("slf4j-nop")]
    started = ["java", *options, "-cp", ":".join(bound), *command]
    return subprocess.Popen(started, stdout=stdout, stderr=subprocess.DEVNULL, cwd=os.fspath(jars))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"Kafka did not start within {_START_TIMEOUT_S:g} s (exit code {process.poll()})")
