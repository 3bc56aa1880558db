"""The hot calls by the direct lane and by Ray's remote methods, beside plain sockets and Kafka.

For each row there are four sides, in turn, round for round: the limit, a cluster whose calls go directly, one of the
same shape with `transport: ray`, and Kafka where its jars are given. All of them run all the time; those that have no
turn are idle.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

import rayka
from benchmarks import many_connections, quorum
from benchmarks.bare_sockets import BareCalls, bare_copies
from benchmarks.client import drain_arrow
from benchmarks.end_to_end import latencies
from benchmarks.harness import Bar, Row, in_turn, median_share, quantile
from benchmarks.kafka import Kafka, running_kafka
from benchmarks.limits import NoopActor, file_append_rate, payloads, seconds
from benchmarks.single_records import rate_by_port, rate_by_producer
from benchmarks.stage import WatchedCluster, cpu_seconds, local_ray, running_cluster
from rayka.options import Transport

REPLICAS, MIN_ISR, PARTITIONS, MANY_PARTITIONS = 3, 2, 6, 48
IN_FLIGHT, RATE, KAFKA_PRODUCERS = 200, 1_000, 10
TRANSPORTS: tuple[Transport, ...] = ("auto", "ray")
LIMIT, KAFKA = "limit", "kafka"
COPIES = "the same copies over plain asyncio sockets"

_numbers = count()


def run(*, quick: bool = False, kafka_jars: Path | None = None) -> Iterator[Row]:
    with local_ray() as directory:
        with _stage(directory, kafka_jars, brokers=1, quick=quick) as stage:
            yield from _one_replica(stage)
        with _stage(directory, kafka_jars, brokers=REPLICAS, quick=quick) as stage:
            yield from _three_replicas(stage)
        with (
            running_cluster(directory, controllers=3) as cluster,
            closing(quorum.Machine(directory)) as machine,
        ):
            yield quorum.commits(cluster, machine, 1 if quick else 5, voters=3)


@dataclass(frozen=True, slots=True)
class _Stage:
    """All sides of one number of brokers."""

    directory: Path
    clusters: Mapping[Transport, rayka.Cluster]
    kafka: Kafka | None
    bare: BareCalls
    replicas: int
    is_quick: bool
    stack: ExitStack

    @property
    def rounds(self) -> int:
        return 1 if self.is_quick else 5

    @property
    def scale(self) -> int:
        return 1 if self.is_quick else 10

    def topic(self, partitions: int) -> str:
        """A new topic of every side."""
        name = f"topic-{next(_numbers)}"
        min_isr = min(MIN_ISR, self.replicas)
        for cluster in self.clusters.values():
            with rayka.Admin(cluster=cluster) as admin:
                admin.create_topic(
                    name,
                    partitions=partitions,
                    replication_factor=self.replicas,
                    configs={"min.insync.replicas": str(min_isr)},
                )
        if self.kafka is not None:
            self.kafka.create_topic(name, partitions, replicas=self.replicas, min_isr=min_isr)
        return name

    def sides(
        self,
        limit: Callable[[], Any],
        ours: Callable[[Transport], Callable[[], Any]],
        theirs: Callable[[Kafka], Any],
    ) -> dict[str, list[Any]]:
        """What each side measured in each round, in turn."""
        measures: dict[str, Callable[[], Any]] = {LIMIT: limit}
        measures |= {transport: ours(transport) for transport in self.clusters}
        if self.kafka is not None:
            measures[KAFKA] = partial(theirs, self.kafka)
        return in_turn(measures, rounds=self.rounds)

    def producer(self, transport: Transport, **options: Any) -> rayka.Producer:
        """A producer that is closed with the stage."""
        return self.stack.enter_context(rayka.Producer(cluster=self.clusters[transport], **options))


@contextmanager
def _stage(directory: Path, kafka_jars: Path | None, *, brokers: int, quick: bool) -> Iterator[_Stage]:
    with ExitStack() as stack:
        clusters = {
            each: stack.enter_context(running_cluster(directory, brokers=brokers, transport=each))
            for each in TRANSPORTS
        }
        kafka = None
        if kafka_jars is not None:
            kafka = stack.enter_context(running_kafka(kafka_jars, directory / "kafka", brokers=brokers))
        bare = stack.enter_context(closing(bare_copies(directory, replicas=brokers)))
        with ExitStack() as clients:
            yield _Stage(directory, clusters, kafka, bare, brokers, quick, clients)


def _rows(
    taken: Mapping[str, Sequence[float]], what: str, settings: str, unit: str, **more: Any
) -> Iterator[Row]:
    """One row for each transport; the bars are for the direct lane."""
    bars = {name: more.pop(name, None) for name in ("bar", "ratio_bar")}
    limits, theirs = taken[LIMIT], taken.get(KAFKA)
    for transport in TRANSPORTS:
        yield Row(
            what=what,
            settings=f"{settings}; transport {transport}",
            unit=unit,
            value=statistics.median(taken[transport]),
            limit=statistics.median(limits),
            share=median_share(taken[transport], limits),
            peer=None if theirs is None else statistics.median(theirs),
            **more,
            **(bars if transport == "auto" else {}),
        )


def _latency_rows(
    taken: Mapping[str, Sequence[Sequence[float]]],
    what: str,
    settings: str,
    limit_what: str,
    bars: Mapping[str, Bar],
    note: str = "",
) -> Iterator[Row]:
    """The quantiles over all rounds, for each transport; `bars` say which, and what their ratios must reach."""
    for name, bar in bars.items():
        share = {"p50": 0.5, "p99": 0.99}[name]
        pooled = {
            side: quantile([each for figures in rounds for each in figures], share)
            for side, rounds in taken.items()
        }
        for transport in TRANSPORTS:
            shares = [
                quantile(mine, share) / quantile(limit, share)
                for mine, limit in zip(taken[transport], taken[LIMIT], strict=True)
            ]
            yield Row(
                what=f"{what} {name}",
                settings=f"{settings}; transport {transport}",
                unit="s",
                value=pooled[transport],
                limit=pooled[LIMIT],
                limit_what=limit_what,
                share=statistics.median(shares),
                peer=pooled.get(KAFKA),
                ratio_bar=bar if transport == "auto" else None,
                note=note,
            )


# ---- Both numbers of replicas ----------------------------------------------------------------------------------------


def _round_trips(stage: _Stage, acks: str, bars: Mapping[str, Bar]) -> Iterator[Row]:
    topic, calls = stage.topic(1), 40 * stage.scale
    value = bytes(1000)

    def ours(transport: Transport) -> Callable[[], list[float]]:
        producer = stage.producer(transport, acks=acks, linger_ms=0)
        return lambda: [seconds(lambda: producer.send(topic, value=value).result()) for _ in range(calls)]

    taken = stage.sides(
        lambda: stage.bare.round_trips(len(value), calls),
        ours,
        lambda kafka: kafka.round_trips(topic, len(value), calls, acks=acks),
    )
    settings = f"1 KB, {_replicas(stage)}, acks={acks}, linger 0"
    yield from _latency_rows(taken, "one record in flight", settings, COPIES, bars)


def _send_batch(
    stage: _Stage, acks: str, limit: Callable[[list[int], int], float], limit_what: str, ratio_bar: Bar
) -> Iterator[Row]:
    """`limit` gets the sizes of the calls that the direct lane made, and how many were in flight."""
    topic, values = stage.topic(PARTITIONS), payloads(10_000, 1000)
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    repeats = 2 * stage.scale if stage.replicas == 1 else stage.scale
    watched = {each: WatchedCluster(cluster) for each, cluster in stage.clusters.items()}

    def send(producer: rayka.Producer) -> None:
        for _ in range(repeats):
            producer.send_batch(topic, batch)
        producer.flush()

    def ours(transport: Transport) -> Callable[[], float]:
        cluster = watched[transport]
        producer = stage.stack.enter_context(rayka.Producer(cluster=cluster, acks=acks))

        def rate() -> float:
            cluster.forget()
            return repeats * batch.num_rows * 1000 / seconds(lambda: send(producer))

        rate()
        return rate

    measure = {each: ours(each) for each in stage.clusters}
    taken = stage.sides(
        lambda: limit(watched["auto"].sizes, watched["auto"].in_flight_max),
        lambda transport: measure[transport],
        lambda kafka: kafka.produce_rate(topic, values, repeats, acks=acks) * 1000,
    )
    settings = f"1 KB, {_replicas(stage)}, acks={acks}, {PARTITIONS} partitions"
    yield from _rows(
        taken,
        "send_batch until flush returns",
        settings,
        "B/s",
        limit_what=limit_what,
        bar=Bar(0.8),
        ratio_bar=ratio_bar,
        note=f"direct: {watched['auto'].calls()}; by Ray: {watched['ray'].calls()}",
    )


def _replicas(stage: _Stage) -> str:
    return "1 replica" if stage.replicas == 1 else f"{stage.replicas} replicas"


# ---- One replica -----------------------------------------------------------------------------------------------------


def _one_replica(stage: _Stage) -> Iterator[Row]:
    yield from _round_trips(stage, "1", {"p50": Bar(1.0, at_most=True)})
    yield from _single_records(stage)
    yield from _send_batch(
        stage,
        "1",
        lambda sizes, _: file_append_rate(stage.directory, sizes, files=PARTITIONS),
        "one process that appends the same bytes to files",
        Bar(1.5),
    )
    yield from _remote_consume(stage)
    seconds_long = 2.0 if stage.is_quick else 20.0
    yield from many_connections.rows(stage.clusters["auto"], seconds_long=seconds_long)


def _remote_consume(stage: _Stage) -> Iterator[Row]:
    """Bytes from the broker, as to a reader on another machine; the last runs give the broker's processor time."""
    topic, repeats = stage.topic(PARTITIONS), 30 * stage.scale
    values = payloads(10_000, 100)
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    watched = {each: WatchedCluster(cluster, is_remote=True) for each, cluster in stage.clusters.items()}
    for transport in stage.clusters:
        producer = stage.producer(transport, acks=1)
        for _ in range(repeats):
            producer.send_batch(topic, batch)
        producer.flush()
    if stage.kafka is not None:
        stage.kafka.produce_rate(topic, values, repeats)

    def ours(transport: Transport) -> Callable[[], float]:
        cluster = watched[transport]

        def rate() -> float:
            cluster.forget()
            taken_s = drain_arrow(cluster, topic, repeats * batch.num_rows)
            return sum(cluster.sizes) / taken_s

        rate()
        return rate

    measure = {each: ours(each) for each in stage.clusters}
    noop = NoopActor()
    stage.stack.callback(noop.close)
    taken = stage.sides(
        lambda: noop.give_rate(watched["auto"].sizes, in_flight=watched["auto"].in_flight_max),
        lambda transport: measure[transport],
        lambda kafka: kafka.consume_rate(topic, repeats * len(values)) * 100,
    )
    limit = "a no-op actor that returns the same bytes in calls of the same size"
    note = f"direct: {watched['auto'].calls()}; Kafka: consume(10000), values looked at"
    yield from _rows(
        taken, "remote consume, poll_arrow", "100 B", "B/s", limit_what=limit, bar=Bar(2), note=note
    )
    for transport in TRANSPORTS:
        yield _broker_cpu(watched[transport], measure[transport], transport, runs=stage.rounds)


def _broker_cpu(
    watched: WatchedCluster, consume: Callable[[], object], transport: Transport, *, runs: int
) -> Row:
    """What the broker spends on a byte, as the share of a core that 500 MB/s would take."""
    spent_s, read_bytes = 0.0, 0
    for _ in range(runs):
        spent_s += cpu_seconds(consume, {"broker": watched.broker_pid})["broker"]
        read_bytes += sum(watched.sizes)
    value = 100 * spent_s / read_bytes * 500e6
    return Row(
        what="CPU of the broker at 500 MB/s of remote consume",
        settings=f"100 B; transport {transport}",
        value=value,
        unit="% of a core",
        limit=100.0,
        limit_what="what is allowed",
        share=value / 100,
        bar=Bar(1.0, at_most=True) if transport == "auto" else None,
    )


# ---- Three replicas --------------------------------------------------------------------------------------------------


def _three_replicas(stage: _Stage) -> Iterator[Row]:
    yield from _round_trips(stage, "all", {"p50": Bar(0.8, at_most=True), "p99": Bar(1.0, at_most=True)})
    yield from _single_records(stage)
    yield from _single_records_of_a_producer(stage)
    yield from _end_to_end(stage)
    yield from _send_batch(
        stage,
        "all",
        lambda sizes, in_flight: stage.bare.byte_rate(sizes, in_flight=in_flight),
        COPIES,
        Bar(4),
    )


def _single_records(stage: _Stage) -> Iterator[Row]:
    topic, seconds_long = stage.topic(PARTITIONS), 0.3 * stage.scale
    taken = stage.sides(
        lambda: stage.bare.call_rate(1000, in_flight=IN_FLIGHT, seconds_long=seconds_long),
        lambda transport: partial(
            rate_by_port, stage.clusters[transport], topic, in_flight=IN_FLIGHT, seconds_long=seconds_long
        ),
        lambda kafka: kafka.single_record_rate(
            topic, 1000, in_flight=IN_FLIGHT, producers=KAFKA_PRODUCERS, seconds_long=seconds_long
        ),
    )
    note = (
        "by the network port, each request with one record of one partition, not idempotent, all over one connection "
        f"to each broker; Kafka: {KAFKA_PRODUCERS} producers of one process share the {IN_FLIGHT} records, not "
        "idempotent, batch.num.messages=1, linger 0, because its broker takes one request of a connection at a time"
    )
    settings = f"1 KB, {IN_FLIGHT} in flight, {_replicas(stage)}, acks=all, {PARTITIONS} partitions"
    yield from _rows(
        taken, "one record a request", settings, "records/s", limit_what=COPIES, ratio_bar=Bar(1), note=note
    )
    rate = statistics.median(taken["auto"])
    yield Row(
        what="one record a request, beside what is wanted",
        settings=settings,
        value=rate,
        unit="records/s",
        limit=10_000.0,
        limit_what="what is wanted",
        share=rate / 10_000,
        bar=Bar(1.0),
    )


def _single_records_of_a_producer(stage: _Stage) -> Iterator[Row]:
    topic, seconds_long = stage.topic(MANY_PARTITIONS), 0.3 * stage.scale
    watched = {each: WatchedCluster(cluster) for each, cluster in stage.clusters.items()}

    def ours(transport: Transport) -> Callable[[], float]:
        producer = stage.stack.enter_context(
            rayka.Producer(cluster=watched[transport], linger_ms=0, batch_size=1)
        )
        return partial(
            rate_by_producer, producer, topic, MANY_PARTITIONS, in_flight=IN_FLIGHT, seconds_long=seconds_long
        )

    taken = stage.sides(
        lambda: stage.bare.call_rate(1000, in_flight=IN_FLIGHT, seconds_long=seconds_long),
        ours,
        lambda kafka: kafka.single_record_rate(
            topic, 1000, in_flight=IN_FLIGHT, producers=1, seconds_long=seconds_long
        ),
    )
    note = (
        f"Producer(batch_size=1, linger_ms=0), idempotent; a request holds one batch of each partition that is due, "
        f"of the direct lane's {_records_a_call(watched['auto']):.1f} records at the mean. Kafka: idempotent, "
        "batch.num.messages=1, linger 0, and five requests in flight to a broker, as many as idempotence allows"
    )
    settings = f"1 KB, {IN_FLIGHT} unacknowledged, 3 replicas, acks=all, {MANY_PARTITIONS} partitions"
    yield from _rows(taken, "one record a batch, send()", settings, "records/s", limit_what=COPIES, note=note)


def _records_a_call(watched: WatchedCluster) -> float:
    smallest = min(watched.sizes)
    return statistics.mean(watched.sizes) / smallest


def _end_to_end(stage: _Stage) -> Iterator[Row]:
    topic, records = stage.topic(1), 300 * stage.scale
    measure = partial(latencies, size_bytes=1000, rate=RATE, count=records)

    def ours(transport: Transport) -> Callable[[], list[float]]:
        producer = stage.producer(transport, linger_ms=0)
        consumer = stage.stack.enter_context(
            rayka.Consumer(topic, cluster=stage.clusters[transport], auto_offset_reset="earliest")
        )

        def poll() -> list[bytes]:
            return [each.value or b"" for each in consumer.poll(100)]

        return lambda: measure(partial(producer.send, topic), poll)

    ends = None if stage.kafka is None else stage.stack.enter_context(stage.kafka.both_ends(topic))

    taken = stage.sides(
        lambda: stage.bare.round_trips(1000, 40 * stage.scale), ours, lambda _: measure(*ends or ())
    )
    settings = f"{RATE:,} records/s of 1 KB, 3 replicas, acks=all, linger 0, 1 partition"
    bars = {"p50": Bar(0.5, at_most=True), "p99": Bar(0.5, at_most=True)}
    limit = f"one acknowledgement of {COPIES}, one in flight"
    yield from _latency_rows(taken, "from send to poll", settings, limit, bars)
