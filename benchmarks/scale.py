"""What many partitions cost a client (keyed `send`, the memory of small batches, an idle consumer), and what they cost
brokers and controllers (`scale_nodes`).

Of a client: one controller, one broker, real Ray; clients and nodes share the machine. Each figure stands beside the
same figure with ten partitions, taken in turn with it. `PARTS` lists the functions that make the rows.
"""

import os
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import rayka
from benchmarks import scale_nodes
from benchmarks.harness import Bar, Row, compare
from benchmarks.keyed_floor import LeastSends
from benchmarks.limits import payloads
from benchmarks.stage import cpu_seconds, local_ray, pid_of, running_cluster
from rayka.client.producer.accumulator import Accumulator
from rayka.client.producer.partition_queue import Limits
from rayka.client.producer.record_columns import Moment, PreparedRecord
from rayka.config.client_config import ProducerConfig

FEW, SOME, MANY = 10, 1_000, 9_000
RECORD_BYTES = 100
SMALL_BATCHES = 512
CPU_SHARE_MAX, LATENCY_MAX_S = 5.0, 0.05
_POLL_MS, _WAIT_S = 200, 60.0


@dataclass(frozen=True)
class Stage:
    """The cluster of the run and how much is done on it; a topic of each size is made once, when it is first used."""

    cluster: rayka.Cluster
    is_quick: bool

    @property
    def broker_pid(self) -> int:
        return pid_of(self.cluster)

    def topic(self, partitions: int) -> str:
        name = f"scale-{partitions}"
        with rayka.Admin(cluster=self.cluster) as admin:
            if name not in admin.list_topics():
                admin.create_topic(name, partitions=partitions)
        return name


def run(*, quick: bool = False) -> Iterator[Row]:
    with local_ray() as directory:
        with running_cluster(directory) as cluster:
            stage = Stage(cluster, quick)
            for part in PARTS:
                yield from part(stage)
        yield from scale_nodes.rows(directory, quick=quick)


# ---- Keyed sends ----


@dataclass(frozen=True, slots=True)
class SendCost:
    """Seconds a record: processor time of the client, all threads, and of the broker; and by the clock."""

    client_s: float
    broker_s: float
    wall_s: float


def keyed_send(stage: Stage) -> Iterator[Row]:
    """The same records, their keys spread over all partitions, to topics of growing size."""
    count = 18_000 if stage.is_quick else 90_000
    with rayka.Producer(cluster=stage.cluster) as producer:
        few = KeyedSends(stage, producer, FEW, count)
        for partitions in (SOME, MANY):
            many = KeyedSends(stage, producer, partitions, count)
            measured = compare(many.client_s, few.client_s, rounds=1 if stage.is_quick else 3)
            settings = (
                f"{partitions:,} partitions, {count:,} records of {RECORD_BYTES} B, acks=all, until flush"
            )
            broker_us = f"{many.broker_us():.0f} µs, with {FEW} partitions {few.broker_us():.0f}"
            yield measured.row(
                "keyed send, the client's CPU a record",
                settings,
                "s",
                f"the same with {FEW} partitions",
                bar=Bar(2, at_most=True),
                note=f"the broker's CPU a record {broker_us}",
            )
            yield Row(
                what="keyed send, wall time a record",
                settings=settings,
                value=many.wall_s(),
                unit="s",
                limit=few.wall_s(),
                limit_what=f"the same with {FEW} partitions",
                share=many.wall_s() / few.wall_s(),
            )
        least = compare(many.least_s, few.client_s, rounds=1 if stage.is_quick else 3)
        yield least.row(
            "the fewest batches by the least code, the client's CPU a record",
            f"{MANY:,} partitions, {count:,} records of {RECORD_BYTES} B, acks=all, each batch full",
            "s",
            f"keyed send with {FEW} partitions",
        )


class KeyedSends:
    """Sends to one topic, again and again, and what each time cost."""

    def __init__(self, stage: Stage, producer: rayka.Producer, partitions: int, count: int) -> None:
        self._producer = producer
        self._topic = stage.topic(partitions)
        self._keys = [b"user-%011d" % index for index in range(count)]
        self._value = payloads(1, RECORD_BYTES)[0]
        self._pids = {"client": os.getpid(), "broker": stage.broker_pid}
        self._least = LeastSends(stage.cluster, self._topic)
        self._costs: list[SendCost] = []

    def client_s(self) -> float:
        """Sends all once; the client's processor time a record."""
        started = time.perf_counter()
        spent = cpu_seconds(self._send_all, self._pids)
        wall_s, count = time.perf_counter() - started, len(self._keys)
        self._costs.append(SendCost(spent["client"] / count, spent["broker"] / count, wall_s / count))
        return self._costs[-1].client_s

    def least_s(self) -> float:
        """The same by the least code (`keyed_floor`)."""
        spent = cpu_seconds(lambda: self._least.send_all(self._keys, self._value), self._pids)
        return spent["client"] / len(self._keys)

    def _send_all(self) -> None:
        for key in self._keys:
            self._producer.send(self._topic, value=self._value, key=key)
        self._producer.flush()

    def broker_us(self) -> float:
        return statistics.median(each.broker_s for each in self._costs[1:]) * 1e6

    def wall_s(self) -> float:
        return statistics.median(each.wall_s for each in self._costs[1:])


# ---- The memory of small batches ----


def small_batches(stage: Stage) -> Iterator[Row]:
    """One small record for each of many partitions, none of which is sent yet."""
    config = ProducerConfig()
    accumulator = Accumulator(
        Limits(config.batch_size, config.buffer_memory, linger_ms=60_000, delivery_timeout_ms=120_000),
        wake=lambda: None,
    )
    accumulator.set_topic("small", SMALL_BATCHES, config.batch_size)
    value = bytes(RECORD_BYTES)
    taken = sum(
        accumulator.try_append(PreparedRecord("small", partition, value, len(value)), Moment(0, 0))
        is not None
        for partition in range(SMALL_BATCHES)
    )
    used = accumulator.topics.pool.used_bytes
    yield Row(
        what="memory set aside for small batches",
        settings=f"{taken} of {SMALL_BATCHES} records of {RECORD_BYTES} B, one a partition",
        value=used,
        unit="B",
        limit=config.buffer_memory,
        limit_what="buffer_memory",
        share=used / config.buffer_memory,
        bar=Bar(0.05, at_most=True),
    )


# ---- An idle consumer ----


def idle_consumer(stage: Stage) -> Iterator[Row]:
    """A consumer that waits, in the process of the benchmark, and single records that reach it now and then."""
    for partitions in (FEW, MANY):
        is_barred = partitions == MANY
        topic, settings = stage.topic(partitions), f"{partitions:,} partitions"
        with (
            rayka.Producer(cluster=stage.cluster, linger_ms=0) as producer,
            rayka.Consumer(topic, cluster=stage.cluster, auto_offset_reset="latest") as consumer,
        ):
            listener = Listener(consumer, producer, topic, partitions)
            listener.settle()
            shares = listener.cpu_shares(stage.broker_pid, 5.0 if stage.is_quick else 60.0)
            latency_s = listener.median_latency_s(20 if stage.is_quick else 100)
        total = sum(shares.values())
        spent = ", ".join(f"{name} {share:.1f} %" for name, share in shares.items())
        yield Row(
            what="CPU of an idle consumer, client and broker",
            settings=settings,
            value=total,
            unit="% of a core",
            note=f"{settings}: {spent}",
            **(_allowed(CPU_SHARE_MAX, total) if is_barred else {}),
        )
        yield Row(
            what="from send to poll p50, one record now and then",
            settings=f"{settings}, {RECORD_BYTES} B, linger 0, acks=all",
            value=latency_s,
            unit="s",
            **(_allowed(LATENCY_MAX_S, latency_s) if is_barred else {}),
        )


def _allowed(most: float, value: float) -> dict[str, object]:
    return {
        "limit": most,
        "limit_what": "what is allowed",
        "share": value / most,
        "bar": Bar(1.0, at_most=True),
    }


class Listener:
    """A consumer that polls on this thread, and a producer on another one."""

    def __init__(
        self, consumer: rayka.Consumer, producer: rayka.Producer, topic: str, partitions: int
    ) -> None:
        self._consumer = consumer
        self._producer = producer
        self._topic = topic
        self._partitions = partitions

    def settle(self) -> None:
        """Until a record arrives: the consumer has its positions."""
        deadline = time.perf_counter() + _WAIT_S
        while not self._consumer.poll(timeout_ms=_POLL_MS):
            assert time.perf_counter() < deadline, f"no record of {self._topic} came within {_WAIT_S:g} s"
            self._send(self._partitions - 1)

    def cpu_shares(self, broker_pid: int, seconds_long: float) -> dict[str, float]:
        """Percents of a core while nothing is sent."""
        started = time.perf_counter()

        def wait() -> None:
            while time.perf_counter() - started < seconds_long:
                self._consumer.poll(timeout_ms=_POLL_MS)

        spent = cpu_seconds(wait, {"client": os.getpid(), "broker": broker_pid})
        taken_s = time.perf_counter() - started
        return {name: each / taken_s * 100 for name, each in spent.items()}

    def median_latency_s(self, count: int) -> float:
        """Of records that are sent one at a time, each to another partition."""
        latencies: list[float] = []
        sender = threading.Thread(target=self._send_now_and_then, args=(count,))
        sender.start()
        deadline = time.perf_counter() + _WAIT_S
        while len(latencies) < count and time.perf_counter() < deadline:
            records = self._consumer.poll(timeout_ms=_POLL_MS)
            now = time.perf_counter()
            latencies.extend(now - struct.unpack_from("d", record.value or b"")[0] for record in records)
        sender.join()
        assert len(latencies) >= count, f"{len(latencies)} of {count} records of {self._topic} came"
        return statistics.median(latencies)

    def _send_now_and_then(self, count: int) -> None:
        for index in range(count):
            time.sleep(0.05)
            self._send(index * self._partitions // count)

    def _send(self, partition: int) -> None:
        value = struct.pack("d", time.perf_counter()).ljust(RECORD_BYTES)
        self._producer.send(self._topic, value=value, partition=partition)


PARTS: tuple[Callable[[Stage], Iterator[Row]], ...] = (small_batches, idle_consumer, keyed_send)
