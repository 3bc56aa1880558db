"""`rayka bench consumer|end-to-end --group`: the same through a consumer group, whose members are threads here.

A run has three parts: the members join until each has its partitions, records are read, and each member commits its
positions some hundred times in turn. The group is deleted in the end. The members share one interpreter: records/s are
those of one process, however many members it has.
"""

import math
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rayka.cli.output import Count
from rayka.cli.produce_command import closing
from rayka.errors import GroupIdNotFound, UnavailableError
from rayka.ids import TopicPartition

if TYPE_CHECKING:
    from rayka.client.bootstrap import ClusterHandle
    from rayka.client.consumer.consumer import Consumer
    from rayka.client.producer.producer import Producer


# ---- Figures of all benchmarks ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of a benchmark: records, their size, the client, and the members of a group (0: no group)."""

    record_count: int
    size_bytes: int
    configs: dict[str, Any]
    members: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of a benchmark; percentiles of latencies are in ms."""

    benchmark: str
    records: int
    seconds: float
    records_per_s: float
    mb_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p99_9_ms: float

    @classmethod
    def of(
        cls, benchmark: str, records: int, size_bytes: int, seconds: float, latencies_s: list[float]
    ) -> "Figures":
        """Figures from the sizes together and the latencies of some or all records, at least one."""
        ordered = sorted(latencies_s)
        shares = (percentile(ordered, share) * 1000 for share in (0.5, 0.95, 0.99, 0.999))
        return cls(benchmark, records, seconds, records / seconds, size_bytes / seconds / 1e6, *shares)

    def row(self) -> tuple[object, ...]:
        percentiles = (self.p50_ms, self.p95_ms, self.p99_ms, self.p99_9_ms)
        rates = (Count(self.records), Count(round(self.records_per_s)), f"{self.mb_per_s:.1f}")
        return (self.benchmark, *rates, *(f"{each:.2f} ms" for each in percentiles))


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """The results of a benchmark of a group.

    `settle_seconds`: from the first join until all members had their partitions, including the wait of a new group for
    members (`group.initial.rebalance.delay.ms`). The records of `commits` are commits.
    """

    benchmark: str
    members: int
    settle_seconds: float
    reading: Figures
    commits: Figures


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the ordered values that this share of them does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def one_by_one(
    benchmark: str,
    load: Load,
    pass_one: Callable[[int], object],
    clock_s: Callable[[], float] = time.perf_counter,
) -> Figures:
    """The latencies of numbered records. A tenth more records come first as a warm-up and do not count."""
    warm_up_count, latencies_s = load.record_count // 10 + 1, []
    for number in range(warm_up_count + load.record_count):
        begin_s = clock_s()
        pass_one(number)
        latencies_s.append(clock_s() - begin_s)
    del latencies_s[:warm_up_count]
    size_bytes = load.record_count * load.size_bytes
    return Figures.of(benchmark, load.record_count, size_bytes, sum(latencies_s), latencies_s)


# The stamp in a record of end-to-end.
STAMP_BYTES = 16
# Commits of each member.
_COMMITS = 200
_WAIT_S = 30.0
_POLL_MS = 100.0
_TAKE_S = 0.5
ResultT = TypeVar("ResultT")


def measure_group_consumer(cluster: "ClusterHandle", topic_name: str, load: Load) -> GroupFigures:
    """`poll` from the beginning by all members at once, as many records as there are or as are asked for; latencies of
    the polls that gave some.
    """
    count = count_to_read(cluster, topic_name, load)
    with bench_group(cluster, topic_name, load, load.configs, "earliest") as group:
        settle_s = group.join()
        reading = group.read(count)
        return GroupFigures("consumer", load.members, settle_s, reading, group.commit())


def measure_group_end_to_end(cluster: "ClusterHandle", topic_name: str, load: Load) -> GroupFigures:
    """Measures one record after another, from `send` until the partition's member has the record."""
    from rayka.client.producer.producer import Producer

    producer = Producer(cluster=cluster, config={"linger_ms": 0, **load.configs})
    with closing(producer), bench_group(cluster, topic_name, load, {}, "latest") as group:
        settle_s = group.join()
        with group.pumping() as arrived:
            reading = measure_passage(producer, topic_name, load, arrived)
        return GroupFigures("end-to-end", load.members, settle_s, reading, group.commit())


def count_to_read(cluster: "ClusterHandle", topic_name: str, load: Load) -> int:
    """The number of records to read: all in the topic, or fewer if asked. Raises UnavailableError if there are none."""
    from rayka.client.consumer.reader import read

    count = min(load.record_count, len(read(topic_name, cluster=cluster)))
    if not count:
        raise UnavailableError(
            f"topic {topic_name!r} has no records to read; leave out --topic, or produce some"
        )
    return count


def measure_passage(
    producer: "Producer", topic_name: str, load: Load, arrived: Callable[[], Collection[Any]]
) -> Figures:
    """Measures one record after another, from `send` until the next `arrived` includes the record."""
    run, padding = secrets.token_bytes(STAMP_BYTES // 2), os.urandom(load.size_bytes - STAMP_BYTES)

    def pass_through(number: int) -> None:
        value = run + number.to_bytes(STAMP_BYTES // 2, "big") + padding
        sent = producer.send(topic_name, value)
        deadline_s = time.monotonic() + _WAIT_S
        while value not in arrived():
            if sent.done():
                sent.result()  # raises if it was refused
            if time.monotonic() >= deadline_s:
                raise UnavailableError(f"a record of {topic_name!r} did not arrive within {_WAIT_S:g} s")

    return one_by_one("end-to-end", load, pass_through)


class BenchGroup:
    """The members of a benchmark's group, each with a thread."""

    def __init__(
        self, consumers: "list[Consumer]", threads: ThreadPoolExecutor, partitions: set[TopicPartition]
    ) -> None:
        self._consumers = consumers
        self._threads = threads
        self._partitions = partitions
        self._owned: dict[int, set[TopicPartition]] = {}  # by the member's number
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Makes the members end soon."""
        self._stopping.set()

    def join(self) -> float:
        """Waits until each partition has a member, and each member a partition if there are enough; returns seconds.

        Positions are known then, and no record is read. Raises UnavailableError after 30 s.
        """
        begin_s = time.perf_counter()
        deadline_s = time.monotonic() + _WAIT_S

        def take_part(number: int, consumer: "Consumer") -> None:
            while not (self._is_shared or self._stopping.is_set()):
                consumer.poll(_POLL_MS)
                self._owned[number] = set(consumer.assignment())
                if time.monotonic() > deadline_s:
                    raise UnavailableError(
                        f"the group of {len(self._consumers)} did not share {len(self._partitions)} partitions "
                        f"within {_WAIT_S:g} s; see `rayka group list`"
                    )

        self._all(take_part)
        seconds = time.perf_counter() - begin_s
        self._all(lambda _, consumer: [consumer.position(tp) for tp in consumer.assignment()])
        return seconds

    def read(self, count: int) -> Figures:
        """Reads this many records with all members. Raises UnavailableError after 30 s without a record."""
        tally = _Tally(count)

        def poll(_: int, consumer: "Consumer") -> None:
            consumer.resume(*consumer.paused())
            while not (tally.is_full or self._stopping.is_set()):
                begin_s = time.perf_counter()
                if records := consumer.poll(_POLL_MS):
                    size_bytes = sum([len(each.key or b"") + len(each.value or b"") for each in records])
                    tally.add(len(records), size_bytes, time.perf_counter() - begin_s)

        begin_s = time.perf_counter()
        self._all(poll)
        return Figures.of(
            "consumer", tally.records, tally.size_bytes, tally.full_at_s - begin_s, tally.latencies_s
        )

    @contextmanager
    def pumping(self) -> Iterator[Callable[[], list[Any]]]:
        """Reads with all members during the block; yields a function that takes the next value read by any member.

        The function waits for a value for half a second.
        """
        values: queue.SimpleQueue[Any] = queue.SimpleQueue()
        is_over = threading.Event()

        def pump(consumer: "Consumer") -> None:
            consumer.resume(*consumer.paused())
            while not is_over.is_set():
                for record in consumer.poll(_POLL_MS):
                    values.put(record.value)

        def take() -> list[Any]:
            with suppress(queue.Empty):
                return [values.get(timeout=_TAKE_S)]
            return []

        pumps = [self._threads.submit(pump, each) for each in self._consumers]
        try:
            yield take
        finally:
            is_over.set()
            for each in pumps:
                each.result()

    def commit(self) -> Figures:
        """Commits each member's positions some hundred times, one after another; returns all latencies."""

        def commits(_: int, consumer: "Consumer") -> list[float]:
            latencies_s: list[float] = []
            while len(latencies_s) < _COMMITS and not self._stopping.is_set():
                begin_s = time.perf_counter()
                consumer.commit()
                latencies_s.append(time.perf_counter() - begin_s)
            return latencies_s

        begin_s = time.perf_counter()
        latencies_s = [each for found in self._all(commits) for each in found]
        return Figures.of("commit", len(latencies_s), 0, time.perf_counter() - begin_s, latencies_s)

    @property
    def _is_shared(self) -> bool:
        owned = [each for each in list(self._owned.values()) if each]
        has_one_owner_each = sum(map(len, owned)) == len(self._partitions) == len(set().union(*owned))
        return has_one_owner_each and len(owned) == min(len(self._consumers), len(self._partitions))

    def _all(self, work: "Callable[[int, Consumer], ResultT]") -> list[ResultT]:
        """Runs a step in all members at once, each in its thread. Raises the first error."""
        return list(self._threads.map(work, range(len(self._consumers)), self._consumers))


class _Tally:
    """The records that all members have read. A thread waits at most 30 s without any new record."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._last_read_at_s = time.monotonic()
        self.records = 0
        self.size_bytes = 0
        self.full_at_s = 0.0
        self.latencies_s: list[float] = []

    @property
    def is_full(self) -> bool:
        """Raises UnavailableError when nothing has come for too long."""
        if self.full_at_s:
            return True
        if time.monotonic() - self._last_read_at_s > _WAIT_S:
            raise UnavailableError(
                f"the group was given {self.records:,} of {self._count:,} records, and nothing for {_WAIT_S:g} s; "
                "see `rayka status`"
            )
        return False

    def add(self, records: int, size_bytes: int, latency_s: float) -> None:
        with self._lock:
            if self.full_at_s:
                return
            self._last_read_at_s = time.monotonic()
            self.records += records
            self.size_bytes += size_bytes
            self.latencies_s.append(latency_s)
            if self.records >= self._count:
                self.full_at_s = time.perf_counter()


@contextmanager
def bench_group(
    cluster: "ClusterHandle", topic_name: str, load: Load, configs: dict[str, Any], auto_offset_reset: str
) -> Iterator[BenchGroup]:
    """Makes a group for one benchmark; members leave it and it is deleted in the end."""
    from rayka.client.admin.admin import Admin
    from rayka.client.consumer.consumer import Consumer

    group_id = f"rayka-bench-{secrets.token_hex(4)}"
    options = {**configs, "group.id": group_id, "auto.offset.reset": auto_offset_reset}
    with Admin(cluster=cluster) as admin, ThreadPoolExecutor(load.members) as threads:
        partitions = {
            TopicPartition(topic_name, each.partition) for each in admin.describe_topic(topic_name).partitions
        }
        consumers: list[Consumer] = []
        group = BenchGroup(consumers, threads, partitions)
        try:
            for _ in range(load.members):
                consumers.append(Consumer(cluster=cluster, config=options))
                consumers[-1].subscribe(topic_name, on_assign=_pausing(consumers[-1]))
            yield group
        finally:
            group.stop()
            _leave(consumers, threads)
            with suppress(GroupIdNotFound):  # no member has joined it
                admin.delete_group(group_id)


def _pausing(consumer: "Consumer") -> Callable[[Iterable[TopicPartition]], None]:
    return lambda partitions: consumer.pause(*partitions)


def _leave(consumers: "list[Consumer]", threads: ThreadPoolExecutor) -> None:
    """Closes all members at once, so that the group does not rebalance for each one."""
    for leaving in [threads.submit(each.close) for each in consumers]:
        leaving.result()
