"""Records/s of one client that sends, or reads as a member of a group: rayka's sync and async clients, and three of
Kafka's in Python. A reader's time begins with its first record: what a group takes to settle is measured elsewhere.
"""

import asyncio
import time
from collections.abc import Sequence
from itertools import count, islice
from typing import Any

import rayka
import rayka.aio
from benchmarks.limits import seconds

_numbers = count()


def _group_id() -> str:
    return f"rates-{time.time_ns()}-{next(_numbers)}"


# ---- Sending ---------------------------------------------------------------------------------------------------------


class Load:
    """So many records of a topic, with keys or without."""

    def __init__(self, topic: str, values: Sequence[bytes], repeats: int) -> None:
        self.topic = topic
        self.values = values
        self.keys = [b"key-%04d" % (number % 1000) for number in range(len(values))]
        self.repeats = repeats

    @property
    def count(self) -> int:
        return len(self.values) * self.repeats


def send_rate(producer: rayka.Producer, load: Load) -> float:
    def loop() -> None:
        for _ in range(load.repeats):
            for value in load.values:
                producer.send(load.topic, value=value)
        producer.flush()

    return load.count / seconds(loop)


def keyed_send_rate(producer: rayka.Producer, load: Load) -> float:
    def loop() -> None:
        for _ in range(load.repeats):
            for key, value in zip(load.keys, load.values, strict=True):
                producer.send(load.topic, value=value, key=key)
        producer.flush()

    return load.count / seconds(loop)


def aio_send_rate(cluster: rayka.Cluster, load: Load) -> float:
    async def work() -> float:
        async with rayka.aio.Producer(cluster=cluster, acks=1) as producer:
            await producer.send_and_wait(load.topic, b"first")
            started = time.perf_counter()
            for _ in range(load.repeats):
                for value in load.values:
                    await producer.send(load.topic, value=value)
            await producer.flush()
            return load.count / (time.perf_counter() - started)

    return asyncio.run(work())


def kafka_python_send_rate(address: str, load: Load) -> float:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=address, acks=1, linger_ms=5, batch_size=1_000_000)
    producer.send(load.topic, b"first").get(30)

    def loop() -> None:
        for value in load.values:
            producer.send(load.topic, value)
        producer.flush()

    taken_s = seconds(loop)
    producer.close()
    return len(load.values) / taken_s


def aiokafka_send_rate(address: str, load: Load) -> float:
    from aiokafka import AIOKafkaProducer

    async def work() -> float:
        producer = AIOKafkaProducer(bootstrap_servers=address, acks=1, linger_ms=5, max_batch_size=1_000_000)
        await producer.start()
        await producer.send_and_wait(load.topic, b"first")
        started = time.perf_counter()
        for value in load.values:
            await producer.send(load.topic, value)
        await producer.flush()
        rate = len(load.values) / (time.perf_counter() - started)
        await producer.stop()
        return rate

    return asyncio.run(work())


# ---- Reading ---------------------------------------------------------------------------------------------------------


def iterate_rate(cluster: rayka.Cluster, topic: str, records: int, **options: Any) -> float:
    with _consumer(cluster, topic, **options) as consumer:
        remaining = islice(consumer, records)
        next(remaining)
        return (records - 1) / seconds(lambda: _walk(remaining))


def _walk(records: Any) -> None:
    for _ in records:
        pass


def poll_arrow_rate(cluster: rayka.Cluster, topic: str, records: int) -> float:
    with _consumer(cluster, topic) as consumer:
        first = None
        while first is None:
            first = consumer.poll_arrow(10_000)
        left = records - first.num_rows
        counted, started = left, time.perf_counter()
        while left > 0:
            batch = consumer.poll_arrow(10_000)
            assert batch is not None, f"{left} of {records} records of {topic} did not come"
            left -= batch.num_rows
        return counted / (time.perf_counter() - started)


def counted_rate(cluster: rayka.Cluster, topic: str, records: int) -> float:
    """As `aio_iterate_rate` does it, which has no `islice`."""
    with _consumer(cluster, topic) as consumer:
        seen, started = 0, 0.0
        for _ in consumer:
            if not seen:
                started = time.perf_counter()
            seen += 1  # noqa: SIM113 - as there
            if seen == records:
                break
        return (records - 1) / (time.perf_counter() - started)


def aio_iterate_rate(cluster: rayka.Cluster, topic: str, records: int) -> float:
    async def work() -> float:
        options: dict[str, Any] = {"group_id": _group_id(), "enable_auto_commit": False}
        async with rayka.aio.Consumer(
            topic, cluster=cluster, auto_offset_reset="earliest", **options
        ) as consumer:
            seen, started = 0, 0.0
            async for _ in consumer:
                if not seen:
                    started = time.perf_counter()
                seen += 1
                if seen == records:
                    break
            return (records - 1) / (time.perf_counter() - started)

    return asyncio.run(work())


def _consumer(cluster: rayka.Cluster, topic: str, **options: Any) -> "rayka.Consumer[Any]":
    given = {"group_id": _group_id(), "enable_auto_commit": False, **options}
    return rayka.Consumer(topic, cluster=cluster, auto_offset_reset="earliest", **given)


def confluent_consume_rate(address: str, topic: str, records: int) -> float:
    """`consume(10000)` of a member of a group, values looked at."""
    from confluent_kafka import Consumer

    fetching = {"fetch.min.bytes": 100_000, "fetch.wait.max.ms": 50, "fetch.message.max.bytes": 4 << 20}
    queue = {"queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 262_144}
    group = {"group.id": _group_id(), "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": address, **group, **fetching, **queue})
    consumer.subscribe([topic])
    first: list[Any] = []
    while not first:
        first = consumer.consume(1, 10.0)
    left, started = records - 1, time.perf_counter()
    while left > 0:
        left -= sum(message.value() is not None for message in consumer.consume(10_000, 5.0))
    taken_s = time.perf_counter() - started
    consumer.close()
    return (records - 1) / taken_s


def kafka_python_iterate_rate(address: str, topic: str, records: int) -> float:
    from kafka import KafkaConsumer

    group = {"group_id": _group_id(), "auto_offset_reset": "earliest", "enable_auto_commit": False}
    consumer = KafkaConsumer(topic, bootstrap_servers=address, **group)
    remaining = islice(consumer, records)
    next(remaining)
    taken_s = seconds(lambda: _walk(remaining))
    consumer.close()
    return (records - 1) / taken_s


def aiokafka_iterate_rate(address: str, topic: str, records: int) -> float:
    from aiokafka import AIOKafkaConsumer

    async def work() -> float:
        group = {"group_id": _group_id(), "auto_offset_reset": "earliest", "enable_auto_commit": False}
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=address, **group)
        await consumer.start()
        seen, started = 0, 0.0
        async for _ in consumer:
            if not seen:
                started = time.perf_counter()
            seen += 1
            if seen == records:
                break
        rate = (records - 1) / (time.perf_counter() - started)
        await consumer.stop()
        return rate

    return asyncio.run(work())
