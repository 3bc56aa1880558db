"""The clients against a real cluster on Ray, each figure beside a no-op actor or a bare loop in the same minute.

One controller, one broker, six partitions, acks=1, no compression; clients and nodes share the machine.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pyarrow as pa

import rayka
from benchmarks.harness import Bar, Comparison, Row, compare, median_of
from benchmarks.kafka import running_kafka
from benchmarks.limits import NoopActor, append_loop, payloads, record_loop, seconds
from benchmarks.stage import WatchedCluster, cpu_seconds, local_ray, running_cluster

PARTITIONS = 6
BIG_CONFIGS = {"max.message.bytes": 16 << 20}
ROUND_TRIP, SEND_LOOP = "produce round trip p50", "send() loop until flush returns"
SEND_BATCH, ITERATE = "send_batch until flush returns", "iterate Records"
TAKES = "a no-op actor taking the same bytes in calls of the same size"
APPENDS = "an actor that takes the same bytes in calls of the same size and appends them to a file"
GIVES = "a no-op actor returning the same bytes in calls of the same size"


def run(*, quick: bool = False, kafka_jars: Path | None = None) -> Iterator[Row]:
    """Rows as they come; with Kafka after all of ours, when the machine is idle."""
    ours = _ours(quick=quick)
    yield from with_peers(list(ours), kafka_jars, quick=quick) if kafka_jars else ours


def _ours(*, quick: bool) -> Iterator[Row]:
    with local_ray() as directory, running_cluster(directory) as cluster:
        noop = NoopActor()
        try:
            yield from ClientBenchmarks(cluster, noop, quick=quick).rows()
        finally:
            noop.close()


def with_peers(rows: list[Row], jars: Path, *, quick: bool) -> list[Row]:
    """The rows, with Kafka's figure where it does the same thing; measured right after them, on the idle machine."""
    rounds, scale = (2, 1) if quick else (5, 10)
    values, kilobytes = payloads(10_000, 100), payloads(10_000, 1000)
    with (
        tempfile.TemporaryDirectory(prefix="rayka-bench-") as name,
        running_kafka(jars, Path(name) / "kafka") as kafka,
    ):
        for topic in ("small", "large", "one"):
            kafka.create_topic(topic, 1 if topic == "one" else PARTITIONS)
        small = median_of(lambda: kafka.produce_rate("small", values, 3 * scale), rounds=rounds)
        large = median_of(lambda: kafka.produce_rate("large", kilobytes, 2 * scale) * 1000, rounds=rounds)
        round_trip = kafka.round_trip_p50("one", 1000, 100 * scale)
        consumed = median_of(
            lambda: kafka.consume_rate("small", 3 * scale * rounds * len(values)), rounds=rounds
        )
    peers = {ROUND_TRIP: round_trip, SEND_LOOP: small, SEND_BATCH: large, ITERATE: consumed}
    return [replace(row, peer=peers.get(row.what)) for row in rows]


class ClientBenchmarks:
    """The rows of one run, on one cluster."""

    def __init__(self, cluster: rayka.Cluster, noop: NoopActor, *, quick: bool) -> None:
        self._cluster = cluster
        self._noop = noop
        self._rounds = 2 if quick else 5
        self._scale = 1 if quick else 10
        self._topics = 0

    def rows(self) -> Iterator[Row]:
        yield self._round_trip()
        yield self._send_loop()
        yield from self._send_batch()
        filled = self._filled_topic()
        yield self._poll_arrow_remote(*filled)
        yield self._poll_arrow_local(*filled)
        yield self._iterate(*filled)
        for megabytes in (1, 4):
            yield from self._big(megabytes << 20, f"{megabytes} MB")

    # ---- Producing ----

    def _round_trip(self) -> Row:
        topic, value, count = self._topic(partitions=1), bytes(1000), 100 * self._scale
        with rayka.Producer(cluster=self._cluster, acks=1, linger_ms=0) as producer:

            def p50() -> float:
                return statistics.median(
                    seconds(lambda: producer.send(topic, value=value).result()) for _ in range(count)
                )

            measured = compare(p50, lambda: self._noop.round_trip_p50(len(value), count), rounds=self._rounds)
        settings, limit = (
            "1 KB, acks=1, linger 0, one in flight",
            "round trip p50 of a no-op actor, same bytes",
        )
        return measured.row(ROUND_TRIP, settings, "s", limit, bar=Bar(1.8, at_most=True))

    def _send_loop(self) -> Row:
        topic, values = self._topic(), payloads(10_000, 100)
        repeats = 3 * self._scale
        with rayka.Producer(cluster=self._cluster, acks=1) as producer:

            def loop() -> None:
                for _ in range(repeats):
                    for value in values:
                        producer.send(topic, value=value)
                producer.flush()

            def rate() -> float:
                return len(values) * repeats / seconds(loop)

            measured = compare(rate, lambda: append_loop(values, repeats), rounds=self._rounds)
        limit = "a loop that appends to a list and returns a two-slot handle"
        settings = "100 B, acks=1, no keys"
        return measured.row(SEND_LOOP, settings, "records/s", limit, bar=Bar(0.3))

    def _send_batch(self) -> Iterator[Row]:
        topic, column = self._topic(), pa.array(payloads(10_000, 1000), pa.binary())
        batch = pa.record_batch({"value": column})
        watched = WatchedCluster(self._cluster)
        with rayka.Producer(cluster=watched, acks=1) as producer:

            def send() -> None:
                watched.forget()
                for _ in range(2 * self._scale):
                    producer.send_batch(topic, batch)
                producer.flush()

            def rate() -> float:
                return 2 * self._scale * batch.num_rows * 1000 / seconds(send)

            rate()
            measured = compare(rate, lambda: self._takes(watched), rounds=self._rounds)
            note = f"{watched.calls()}; {self._cpu_a_megabyte(send, self._takes, watched)}"
            written = compare(rate, lambda: self._appends(watched), rounds=self._rounds)
        settings = "1 KB, acks=1, 6 partitions"
        yield measured.row(SEND_BATCH, settings, "B/s", TAKES, bar=Bar(0.6), note=note)
        yield written.row("send_batch, beside a file", settings, "B/s", APPENDS)

    # ---- Consuming ----

    def _filled_topic(self) -> tuple[str, int]:
        """A topic of 100-byte records, and how many it holds."""
        topic, column = self._topic(), pa.array(payloads(10_000, 100), pa.binary())
        batch = pa.record_batch({"value": column})
        with rayka.Producer(cluster=self._cluster, acks=1) as producer:
            for _ in range(30 * self._scale):
                producer.send_batch(topic, batch)
        return topic, 30 * self._scale * batch.num_rows

    def _poll_arrow_remote(self, topic: str, count: int) -> Row:
        watched = WatchedCluster(self._cluster, is_remote=True)
        measured = self._poll_arrow(watched, topic, count)
        cpu = self._cpu_a_megabyte(lambda: drain_arrow(watched, topic, count), self._gives, watched)
        note = f"{watched.calls()}; {cpu}"
        return measured.row("poll_arrow, remote", "100 B", "B/s", GIVES, bar=Bar(0.5), note=note)

    def _poll_arrow(self, watched: WatchedCluster, topic: str, count: int) -> Comparison:
        def rate() -> float:
            watched.forget()
            taken_s = drain_arrow(watched, topic, count)
            return sum(watched.sizes) / taken_s

        rate()
        return compare(rate, lambda: self._gives(watched), rounds=self._rounds)

    def _poll_arrow_local(self, topic: str, count: int) -> Row:
        watched = WatchedCluster(self._cluster)
        rate = median_of(lambda: count / drain_arrow(watched, topic, count), rounds=self._rounds)
        note = (
            "file ranges, mapped by the reader; CRCs checked" if not watched.sizes else "answered with BYTES"
        )
        return Row(
            what="poll_arrow, from mapped files", settings="100 B", value=rate, unit="records/s", note=note
        )

    def _iterate(self, topic: str, count: int) -> Row:
        values = payloads(10_000, 100)

        def rate() -> float:
            with rayka.Consumer(topic, cluster=self._cluster, auto_offset_reset="earliest") as consumer:
                return count / seconds(lambda: _walk(consumer, count))

        measured = compare(rate, lambda: record_loop(values, 3 * self._scale), rounds=self._rounds)
        limit = "a loop that builds one slotted object per record"
        return measured.row(ITERATE, "100 B", "records/s", limit, bar=Bar(0.5))

    # ---- Big records ----

    def _big(self, size_bytes: int, name: str) -> Iterator[Row]:
        topic, count = self._topic(configs=BIG_CONFIGS), max(2, (32 << 20) * self._scale // size_bytes // 4)
        values = payloads(4, size_bytes)
        watched = WatchedCluster(self._cluster)
        limits = {"max_request_size": 16 << 20, "batch_size": size_bytes}
        with rayka.Producer(cluster=watched, acks=1, **limits) as producer:

            def send() -> None:
                watched.forget()
                for index in range(count):
                    producer.send(topic, value=values[index % len(values)])
                producer.flush()

            def rate() -> float:
                return count * size_bytes / seconds(send)

            rate()
            measured = compare(rate, lambda: self._takes(watched), rounds=self._rounds)
        settings = "acks=1, 6 partitions"
        yield measured.row(f"produce at {name}", settings, "B/s", TAKES, note=watched.calls())
        remote = WatchedCluster(self._cluster, is_remote=True)
        consumed = self._poll_arrow(remote, topic, count)
        yield consumed.row(f"consume at {name}", "poll_arrow, remote", "B/s", GIVES, note=remote.calls())

    # ---- Within ----

    def _topic(self, *, partitions: int = PARTITIONS, configs: dict[str, int] | None = None) -> str:
        self._topics += 1
        name = f"bench-{self._topics}"
        with rayka.Admin(cluster=self._cluster) as admin:
            admin.create_topic(name, partitions=partitions, configs=configs or {})
        return name

    def _cpu_a_megabyte(
        self, work: Callable[[], object], limit: Callable[[WatchedCluster], float], watched: WatchedCluster
    ) -> str:
        """Where the time goes: the work once more, and then the limit's."""
        watched.forget()
        client = {"client": os.getpid()}
        ours = cpu_seconds(work, {**client, "broker": watched.broker_pid})
        theirs = cpu_seconds(lambda: limit(watched), {**client, "no-op actor": self._noop.pid})
        megabytes = sum(watched.sizes) / 1e6
        spent = [
            ", ".join(f"{name} {each / megabytes * 1e3:.2f} ms" for name, each in times.items())
            for times in (ours, theirs)
        ]
        return f"CPU a MB: {spent[0]}; the limit's: {spent[1]}"

    def _takes(self, watched: WatchedCluster) -> float:
        return self._noop.take_rate(watched.sizes, in_flight=watched.in_flight_max)

    def _appends(self, watched: WatchedCluster) -> float:
        return self._noop.append_rate(watched.sizes, in_flight=watched.in_flight_max)

    def _gives(self, watched: WatchedCluster) -> float:
        return self._noop.give_rate(watched.sizes, in_flight=watched.in_flight_max)


def drain_arrow(cluster: WatchedCluster, topic: str, count: int) -> float:
    """Seconds from the first poll_arrow until so many records came."""
    with rayka.Consumer(topic, cluster=cluster, auto_offset_reset="earliest") as consumer:
        started = time.perf_counter()
        left = count
        while left > 0:
            batch = consumer.poll_arrow(timeout_ms=10_000)
            assert batch is not None, f"{left} of {count} records of {topic} did not come"
            left -= batch.num_rows
        return time.perf_counter() - started


def _walk(consumer: rayka.Consumer, count: int) -> None:
    for _ in islice(consumer, count):
        pass
