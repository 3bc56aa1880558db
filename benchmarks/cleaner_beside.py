"""Produce requests beside a running cleaner, ours and Kafka's; and how long Kafka's takes for the records of `cleaner`.

A topic is filled while it keeps everything, and its last segments are sealed. One record after the other is then sent
to another topic of the same broker, before the first one becomes a compacted one and from then until it is small. Both
clusters have one broker, whose cleaner has one thread, and stand idle while the other is measured.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

import rayka
from benchmarks.harness import Bar, Row, quantile
from benchmarks.kafka import Kafka, running_kafka
from benchmarks.limits import seconds
from benchmarks.stage import local_ray, running_cluster

BAR = Bar(1.5, at_most=True)
RECORD_BYTES, KEY_BYTES = 100, 8
PARTITIONS = 4  # cleaned one after another
SEGMENT_BYTES = 256 << 20
LEFT_SHARE = (
    0.2  # of the bytes: less is left once all partitions are cleaned, for a tenth of the records stays
)
BACKOFF = {"log.cleaner.backoff.ms": 50, "log.cleaner.threads": 1}
FILLING = {"segment.bytes": str(SEGMENT_BYTES), "cleanup.policy": "delete"}
SEALING = {"segment.ms": "1"}
COMPACTING = {"cleanup.policy": "compact"}
_RUN_RECORDS = 100_000
_LOOKS_EVERY = 20  # round trips
_TIMEOUT_S = 600.0


class Side(Protocol):
    """A cluster with one broker, and a topic "one" to send to."""

    def create(self, topic: str, partitions: int) -> None: ...

    def alter(self, topic: str, configs: dict[str, str]) -> None: ...

    def fill(self, topic: str, keys: np.ndarray, partitions: int) -> None:
        """A record of `RECORD_BYTES` for each key, int64, about as many to each partition; returns when all are in."""

    def log_bytes(self, topic: str) -> int: ...

    def send_one(self) -> object:
        """One record to the topic "one", acknowledged by its leader."""


def rows(kafka_jars: Path | None, *, quick: bool) -> Iterator[Row]:
    """The row of requests beside the cleaner."""
    size_bytes, rounds = (32 << 20, 1) if quick else (1 << 30, 3)
    with ExitStack() as stack:
        directory = stack.enter_context(local_ray())
        cluster = stack.enter_context(running_cluster(directory, config=BACKOFF))
        ours: Side = stack.enter_context(RaykaSide(cluster, directory))
        sides = {"rayka": ours}
        if kafka_jars is not None:
            kafka = stack.enter_context(running_kafka(kafka_jars, directory / "kafka", properties=BACKOFF))
            sides["kafka"] = KafkaSide(kafka)
        for side in sides.values():
            side.create("one", 1)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for number in range(rounds):
            for name, side in sides.items():
                taken[name].append(_p99s(side, f"table-{number}", size_bytes))
    shares = {
        name: statistics.median(beside / alone for alone, beside in each) for name, each in taken.items()
    }
    alone_s, beside_s = (statistics.median(each) for each in zip(*taken["rayka"], strict=True))
    theirs = [beside for _, beside in taken.get("kafka", ())]
    yield Row(
        what="one record in flight beside a running cleaner p99",
        settings=f"1 KB, acks=1, linger 0, {size_bytes >> 20} MiB of {RECORD_BYTES} B records are compacted",
        unit="s",
        value=beside_s,
        limit=alone_s,
        limit_what="the same without the cleaner",
        share=shares["rayka"],
        bar=BAR,
        peer=statistics.median(theirs) if theirs else None,
        note=f"Kafka's share: {shares['kafka']:.2f} x" if theirs else "",
    )


def kafka_cleaning_s(jars: Path, directory: Path, size_bytes: int) -> float:
    """How long Kafka's cleaner takes, by its own log, for so many bytes of records in one partition."""
    with running_kafka(jars, directory / "kafka", properties=BACKOFF) as kafka:
        side = KafkaSide(kafka)
        fill(side, "table", size_bytes, 1)
        side.alter("table", COMPACTING)
        deadline = time.monotonic() + _TIMEOUT_S
        while not (taken_s := kafka.cleaning_s("table")):
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"no word of a cleaning in Kafka's log within {_TIMEOUT_S:g} s; fetch its jars again: it needs"
                    " slf4j-simple among them"
                )
            time.sleep(0.1)
    return taken_s


def _p99s(side: Side, topic: str, size_bytes: int) -> tuple[float, float]:
    """Without the cleaner and beside it."""
    fill(side, topic, size_bytes, PARTITIONS)
    full_bytes = side.log_bytes(topic)
    until_s = time.monotonic() + 2
    alone = _round_trips(side.send_one, lambda: time.monotonic() < until_s)
    side.alter(topic, COMPACTING)
    deadline = time.monotonic() + _TIMEOUT_S

    def is_cleaning() -> bool:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{topic} of {side!r} is not compacted within {_TIMEOUT_S:g} s")
        return side.log_bytes(topic) > LEFT_SHARE * full_bytes

    beside = _round_trips(side.send_one, is_cleaning)
    return quantile(alone, 0.99), quantile(beside, 0.99)


def fill(side: Side, topic: str, size_bytes: int, partitions: int) -> None:
    """Records of which one in ten has a key of its own, in sealed segments."""
    record_count = size_bytes // RECORD_BYTES
    side.create(topic, partitions)
    key_count = record_count // 10 // partitions
    keys = np.random.default_rng(1).integers(0, key_count, record_count, np.int64)
    side.fill(topic, keys, partitions)
    side.alter(topic, SEALING)
    time.sleep(0.1)  # older than segment.ms by the timestamps of records
    side.fill(topic, keys[:partitions], partitions)


def _round_trips(send: Callable[[], object], goes_on: Callable[[], bool]) -> list[float]:
    taken: list[float] = []
    while goes_on():
        taken += [seconds(send) for _ in range(_LOOKS_EVERY)]
    return taken


class RaykaSide:
    """Our cluster, whose broker has its data below the directory."""

    def __init__(self, cluster: rayka.Cluster, directory: Path) -> None:
        self._directory = directory
        self._admin = rayka.Admin(cluster=cluster)
        self._producer = rayka.Producer(cluster=cluster, acks=1, linger_ms=0)
        self._value = bytes(1000)

    def __enter__(self) -> "RaykaSide":
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()
        self._admin.close()

    def create(self, topic: str, partitions: int) -> None:
        self._admin.create_topic(topic, partitions=partitions, configs=FILLING)

    def alter(self, topic: str, configs: dict[str, str]) -> None:
        self._admin.alter_configs(configs, topic=topic)

    def fill(self, topic: str, keys: np.ndarray, partitions: int) -> None:
        run_records = min(_RUN_RECORDS, len(keys) // partitions)
        values = pa.array([bytes(RECORD_BYTES - KEY_BYTES)] * run_records)
        for number in range(len(keys) // run_records):
            run = keys[number * run_records : (number + 1) * run_records]
            column = pa.array([each.tobytes() for each in run], pa.binary())
            targets = pa.array(np.full(run_records, number % partitions, np.int32))
            data = pa.table({"key": column, "value": values, "partition": targets})
            self._producer.send_batch(topic, data)
        self._producer.flush()

    def log_bytes(self, topic: str) -> int:
        return sum(each.stat().st_size for each in self._directory.glob(f"bench-*/**/{topic}-*/*.log"))

    def send_one(self) -> object:
        return self._producer.send("one", value=self._value).result()


class KafkaSide:
    """Kafka's."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._send_one = kafka.one_by_one("one", bytes(1000))

    def create(self, topic: str, partitions: int) -> None:
        self._kafka.create_topic(topic, partitions, configs=FILLING)

    def alter(self, topic: str, configs: dict[str, str]) -> None:
        self._kafka.alter_topic(topic, configs)

    def fill(self, topic: str, keys: np.ndarray, partitions: int) -> None:
        value = bytes(RECORD_BYTES - KEY_BYTES)
        self._kafka.fill(topic, ((each.tobytes(), value) for each in keys), partitions)

    def log_bytes(self, topic: str) -> int:
        return self._kafka.log_bytes(topic)

    def send_one(self) -> object:
        return self._send_one()
