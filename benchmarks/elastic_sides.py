"""The two clusters of `elastic`: ours, and Kafka's."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

import rayka
from benchmarks.kafka import Kafka
from benchmarks.limits import payloads
from rayka.client.bootstrap import ClusterHandle

ADDED = 4  # the broker that comes
RATE_BYTES = 15_000_000  # of each broker; three of them share two processors here, and what moves costs these
TOPIC, PARTITIONS, FACTOR, MIN_ISR = "clicks", 48, 3, 2
ASSIGNMENT = [[1 + (number + place) % (ADDED - 1) for place in range(FACTOR)] for number in range(PARTITIONS)]
_RECORD_BYTES, _RUN_RECORDS = 1_000, 500
_TIMEOUT_S = 600.0
_POLL_S = 0.1
OnDelivery = Callable[[object], None]  # with an error, or None
Added = set[tuple[int, int]]  # the partitions that are copied, and to which brokers


@contextmanager
def rayka_side(directory: Path, size_bytes: int) -> Iterator["RaykaSide"]:
    """Our cluster on the Ray of this process, for the time of the block."""
    spec: dict[str, Any] = {
        "name": "bench-elastic",
        "data_dir": str(directory / "elastic"),
        "config": {
            "min.insync.replicas": MIN_ISR,
            "balancer.enable": False,  # it begins when it is asked for
            "reassignment.replication.throttled.rate": RATE_BYTES,
        },
    }
    with rayka.Cluster.start(**spec, brokers=ADDED - 1) as cluster:
        with RaykaSide(cluster, size_bytes, lambda: rayka.Cluster.start(**spec, brokers=ADDED)) as side:
            yield side
        cluster.stop(delete_data=True)


class RaykaSide:
    """Ours. `add` brings up the fourth broker."""

    def __init__(self, cluster: ClusterHandle, size_bytes: int, add: Callable[[], object]) -> None:
        self._cluster = cluster
        self._add = add
        self._admin = rayka.Admin(cluster=cluster)
        self._producer = rayka.Producer(cluster=cluster, acks="all", linger_ms=0)
        self._numbers = count()
        self._fill(size_bytes // FACTOR)

    def __enter__(self) -> "RaykaSide":
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()
        self._admin.close()

    def _fill(self, size_bytes: int) -> None:
        self._admin.create_topic(TOPIC, assignments=ASSIGNMENT)
        values = pa.array(payloads(_RUN_RECORDS, _RECORD_BYTES), pa.binary())
        with rayka.Producer(cluster=self._cluster, acks="all") as producer:
            for number in range(max(PARTITIONS, size_bytes // (_RUN_RECORDS * _RECORD_BYTES))):
                target = pa.array([number % PARTITIONS] * len(values), pa.int32())
                producer.send_batch(TOPIC, pa.table({"value": values, "partition": target}))

    def send(self, on_delivery: OnDelivery) -> None:
        partition = next(self._numbers) % PARTITIONS

        def on_done(error: BaseException | None, _: object) -> None:
            on_delivery(error)

        self._producer.send(TOPIC, bytes(_RECORD_BYTES), partition=partition, on_delivery=on_done)

    def wait(self, wait_s: float) -> None:
        time.sleep(wait_s)

    def flush(self) -> None:
        self._producer.flush()

    def sizes(self) -> dict[int, int]:
        found = self._admin.log_dirs(topics=[TOPIC])
        return {each.broker_id: sum(disk.size_bytes for disk in each.directories) for each in found}

    def add(self) -> None:
        self._add()
        _await(lambda: len(self.sizes()) == ADDED)

    def balance(self) -> int:
        def begin() -> None:
            self._admin.balance()

        return self._moved(begin, lambda: self._admin.describe_balance().state == "ended")

    def drain(self) -> int:
        def begin() -> None:
            self._admin.drain_broker(ADDED)

        return self._moved(begin, lambda: not self._admin.list_partition_reassignments())

    def _moved(self, begin: Callable[[], None], has_ended: Callable[[], bool]) -> int:
        """The bytes that are copied until it has ended, of a partition as often as it moves."""
        before = self._replicas()
        begin()
        seen = Added()

        def look() -> bool:
            for each in self._admin.list_partition_reassignments():
                seen.update((each.topic_partition.partition, to) for to in each.adding_replicas)
            return has_ended()

        _await(look)
        return copied_bytes(seen | added(before, self._replicas()), self._partition_sizes())

    def _replicas(self) -> dict[int, Sequence[int]]:
        return {each.partition: each.replicas for each in self._admin.describe_topic(TOPIC).partitions}

    def _partition_sizes(self) -> dict[int, int]:
        disks = [disk for each in self._admin.log_dirs(topics=[TOPIC]) for disk in each.directories]
        return {each.partition: each.size_bytes for disk in disks for each in disk.replicas}


class KafkaSide:
    """Kafka's, of four brokers, the last of which holds nothing."""

    def __init__(self, kafka: Kafka, size_bytes: int) -> None:
        self._kafka = kafka
        self._numbers = count()
        self._producer = kafka.unlingering_producer()
        kafka.create_topic(TOPIC, PARTITIONS, min_isr=MIN_ISR, assignment=ASSIGNMENT)
        values = payloads(_RUN_RECORDS, _RECORD_BYTES)
        kafka.produce_rate(TOPIC, values, size_bytes // FACTOR // (_RUN_RECORDS * _RECORD_BYTES), acks="all")

    def send(self, on_delivery: OnDelivery) -> None:
        partition = next(self._numbers) % PARTITIONS

        def on_done(error: object, _: object) -> None:
            on_delivery(error)

        self._producer.produce(TOPIC, bytes(_RECORD_BYTES), partition=partition, on_delivery=on_done)

    def wait(self, wait_s: float) -> None:
        """Its client calls back only from within a poll."""
        until_s = time.monotonic() + wait_s
        while (left_s := until_s - time.monotonic()) > 0:
            self._producer.poll(left_s)

    def flush(self) -> None:
        self._producer.flush()

    def sizes(self) -> dict[int, int]:
        return {each: sum(self._kafka.partition_sizes(TOPIC, each).values()) for each in range(1, ADDED + 1)}

    def add(self) -> None:
        """It is there."""

    def balance(self) -> int:
        return self._reassign(range(1, ADDED + 1))

    def drain(self) -> int:
        return self._reassign(range(1, ADDED))

    def _reassign(self, brokers: Iterable[int]) -> int:
        before = self._kafka.replicas(TOPIC)
        wanted = self._kafka.reassign(TOPIC, brokers, RATE_BYTES)
        _await(lambda: self._kafka.replicas(TOPIC) == wanted)
        self._kafka.end_reassignment()
        sizes = {
            partition: size
            for broker_id in brokers
            for partition, size in self._kafka.partition_sizes(TOPIC, broker_id).items()
        }
        return copied_bytes(added(before, wanted), sizes)


def added(before: Mapping[int, Sequence[int]], after: Mapping[int, Sequence[int]]) -> Added:
    """What was copied where replicas changed from these to those."""
    return {(number, to) for number, replicas in after.items() for to in replicas if to not in before[number]}


def copied_bytes(copied: Added, sizes: Mapping[int, int]) -> int:
    """How many bytes that is, by the size of each partition."""
    return sum(sizes[number] for number, _ in copied)


def _await(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not within {_TIMEOUT_S:g} s")
        time.sleep(_POLL_S)
