"""Apache Kafka beside rayka: one broker of its own on this machine, driven by confluent-kafka.

Optional. Needs a directory with Kafka's jars, the package `confluent-kafka` and Java; `README.md` says how. Defaults
but for what the comparison needs: one replica, and a client that batches by megabytes as rayka's does.
"""

import os
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.limits import seconds

_START_TIMEOUT_S = 60.0
_HEAP = "768m"
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker_port}
controller.listener.names=CONTROLLER
log.dirs={directory}/logs
offsets.topic.replication.factor=1
auto.create.topics.enable=false
"""


@contextmanager
def running_kafka(jars: Path, directory: Path) -> Iterator["Kafka"]:
    """A fresh Kafka for the time of the block, in a directory that is removed with it."""
    directory.mkdir()
    ports = {"broker_port": _free_port(), "controller_port": _free_port()}
    properties = directory / "server.properties"
    properties.write_text(_PROPERTIES.format(directory=directory, **ports))
    _java(
        jars, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(properties)
    ).wait()
    process = _java(jars, "kafka.Kafka", str(properties))
    try:
        _await_port(ports["broker_port"], process)
        yield Kafka(f"127.0.0.1:{ports['broker_port']}")
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(directory)


class Kafka:
    """A running Kafka, and what a Python client reaches with it."""

    def __init__(self, address: str) -> None:
        self._address = address

    def create_topic(self, name: str, partitions: int) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self._address})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)

    def produce_rate(self, topic: str, values: Sequence[bytes], repeats: int) -> float:
        """Records/s of a loop of `produce` until `flush` returns; acks=1."""
        producer = self._producer(linger_ms=5)
        producer.list_topics(topic, 10)

        def loop() -> None:
            for _ in range(repeats):
                for value in values:
                    _produce(producer, topic, value)
                producer.poll(0)
            assert producer.flush(60) == 0

        return len(values) * repeats / seconds(loop)

    def round_trip_p50(self, topic: str, size_bytes: int, count: int) -> float:
        """Median seconds of one `produce` and `flush`; linger 0, acks=1."""
        producer, value = self._producer(linger_ms=0), bytes(size_bytes)

        def round_trip() -> None:
            producer.produce(topic, value)
            producer.flush()

        round_trip()
        return statistics.median(seconds(round_trip) for _ in range(count))

    def consume_rate(self, topic: str, count: int) -> float:
        """Records/s of `consume(10000)` from the first to the last of so many records, values looked at."""
        consumer = self._consumer(topic)
        started, left = time.perf_counter(), count
        while left > 0:
            left -= sum(message.value() is not None for message in consumer.consume(10_000, 5.0))
        taken_s = time.perf_counter() - started
        consumer.close()
        return count / taken_s

    def _producer(self, *, linger_ms: int) -> Any:
        from confluent_kafka import Producer

        batching = {"linger.ms": linger_ms, "batch.size": 1_000_000, "batch.num.messages": 100_000}
        queue = {"queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 1 << 20}
        return Producer({"bootstrap.servers": self._address, "acks": 1, **batching, **queue})

    def _consumer(self, topic: str) -> Any:
        from confluent_kafka import Consumer, TopicPartition

        group = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        fetching = {"fetch.min.bytes": 100_000, "fetch.wait.max.ms": 50, "fetch.message.max.bytes": 4 << 20}
        queue = {"queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 262_144}
        consumer = Consumer({"bootstrap.servers": self._address, **group, **fetching, **queue})
        partitions = consumer.list_topics(topic, 10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        return consumer


def _produce(producer: Any, topic: str, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value)
            return
        except BufferError:
            producer.poll(0.02)


def _java(jars: Path, *command: str) -> subprocess.Popen[bytes]:
    options = [f"-Xms{_HEAP}", f"-Xmx{_HEAP}", "-server", "-XX:+UseG1GC", "-cp", f"{jars}/*"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(["java", *options, *command], stdout=quiet, stderr=quiet, cwd=os.fspath(jars))


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
