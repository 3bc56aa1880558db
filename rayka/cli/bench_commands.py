"""`rayka bench`: measures throughput and latency of the cluster for one client.

Each benchmark sends or reads records of random bytes, in a new topic that is deleted at the end, unless a topic is
given. A record that is not acknowledged is an error, never a figure. Kafka: kafka-producer-perf-test,
kafka-consumer-perf-test, kafka-e2e-latency. Left out: limits of the machine beside the figures, which `benchmarks` has.
"""

import dataclasses
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from rayka.cli.bench_group import (
    STAMP_BYTES,
    Figures,
    GroupFigures,
    Load,
    count_to_read,
    measure_group_consumer,
    measure_group_end_to_end,
    measure_passage,
    one_by_one,
)
from rayka.cli.output import counted, print_table, working
from rayka.cli.produce_command import closing
from rayka.cli.shared_options import CommandGroup, Target, all_of, client_config_option, target_options
from rayka.errors import UnavailableError

if TYPE_CHECKING:
    from rayka.client.bootstrap import ClusterHandle
    from rayka.client.producer.delivery_future import DeliveryFuture

# Latencies sampled of a producer; a callback for each record would slow the measurement down.
_SAMPLES_MAX = 10_000
_CHECKED_TOGETHER = 100_000
_WAIT_S = 30.0
_POLL_MS = 500
_COLUMNS = ("benchmark", "records", "records/s", "MB/s", "p50", "p95", "p99", "p99.9")


Measure = Callable[["ClusterHandle", str, Load], Figures | GroupFigures]


# ---- What is measured ----


def measure_producer(cluster: "ClusterHandle", topic_name: str, load: Load) -> Figures:
    """Sends as fast as possible; samples latencies from `send` to the acknowledgement, evenly spread."""
    from rayka.client.producer.producer import Producer

    producer = Producer(cluster=cluster, config=load.configs)
    value, stride = os.urandom(load.size_bytes), max(1, load.record_count // _SAMPLES_MAX)
    latencies_s: list[float] = []
    unchecked: list[DeliveryFuture] = []
    with closing(producer):
        producer.send(topic_name, value).result(_WAIT_S)  # the first learns the topic and finds the leader
        begin_s = time.perf_counter()
        for number in range(load.record_count):
            if number % stride:
                unchecked.append(producer.send(topic_name, value))
            else:
                unchecked.append(producer.send(topic_name, value, on_delivery=_stopwatch(latencies_s)))
            if len(unchecked) >= 2 * _CHECKED_TOGETHER:
                check_all(unchecked[:_CHECKED_TOGETHER])
                del unchecked[:_CHECKED_TOGETHER]
        producer.flush()
        seconds = time.perf_counter() - begin_s
        check_all(unchecked)
    size_bytes = load.record_count * load.size_bytes
    return Figures.of("producer", load.record_count, size_bytes, seconds, latencies_s)


def measure_consumer(cluster: "ClusterHandle", topic_name: str, load: Load) -> Figures:
    """`poll` from the beginning, as many records as there are or as are asked for; latencies of the polls."""
    from rayka.client.consumer.consumer import Consumer

    count = count_to_read(cluster, topic_name, load)
    done, size_bytes = 0, 0
    latencies_s: list[float] = []
    with Consumer(topic_name, cluster=cluster, config=load.configs, auto_offset_reset="earliest") as consumer:
        begin_s = time.perf_counter()
        while done < count:
            poll_s = time.perf_counter()
            records = consumer.poll(_WAIT_S * 1000)
            latencies_s.append(time.perf_counter() - poll_s)
            if not records:
                raise UnavailableError(
                    f"topic {topic_name!r} gave nothing for {_WAIT_S:g} s; see `rayka status`"
                )
            done += len(records)
            size_bytes += sum([len(each.key or b"") + len(each.value or b"") for each in records])
        seconds = time.perf_counter() - begin_s
    return Figures.of("consumer", done, size_bytes, seconds, latencies_s)


def measure_latency(cluster: "ClusterHandle", topic_name: str, load: Load) -> Figures:
    """Measures one record after another, from `send` to the acknowledgement."""
    from rayka.client.producer.producer import Producer

    value = os.urandom(load.size_bytes)
    producer = Producer(cluster=cluster, config={"linger_ms": 0, **load.configs})
    with closing(producer):
        return one_by_one("latency", load, lambda number: producer.send(topic_name, value).result(_WAIT_S))


def measure_end_to_end(cluster: "ClusterHandle", topic_name: str, load: Load) -> Figures:
    """Measures one record after another, from `send` until a consumer has the record."""
    from rayka.client.consumer.consumer import Consumer
    from rayka.client.producer.producer import Producer

    producer = Producer(cluster=cluster, config={"linger_ms": 0, **load.configs})
    with closing(producer), Consumer(topic_name, cluster=cluster) as consumer:
        for tp in consumer.assignment():
            consumer.position(tp)  # from here on

        def arrived() -> list[Any]:
            return [each.value for each in consumer.poll(_POLL_MS)]

        return measure_passage(producer, topic_name, load, arrived)


def _stopwatch(latencies_s: list[float]) -> Callable[[Exception | None, object], None]:
    begin_s = time.perf_counter()

    def stop(error: Exception | None, metadata: object) -> None:
        latencies_s.append(time.perf_counter() - begin_s)

    return stop


def check_all(futures: "list[DeliveryFuture]") -> None:
    """Waits for all deliveries. Raises the error of the first that failed."""
    for future in futures:
        error = future.exception()
        if error is not None:
            raise error


# ---- Commands ----


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure what the cluster does for one client."""


def _bench_options(
    record_count: int, size_min: int = 0
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of all benchmarks: a topic, the fields of a Load, and a Target."""
    return all_of(
        click.option("--topic", "topic_name", metavar="NAME", help="Which; one of its own otherwise."),
        click.option(
            "--records", "record_count", type=click.IntRange(min=1), default=record_count, show_default=True
        ),
        click.option(
            "--size",
            "size_bytes",
            type=click.IntRange(min=size_min),
            default=1000,
            show_default=True,
            help="Bytes.",
        ),
        click.option(
            "--partitions",
            type=click.IntRange(min=1),
            help="Of its own topic; 1 otherwise, or one for each member.",
        ),
        click.option("--replication-factor", type=click.IntRange(min=1), help="Of its own topic."),
        client_config_option,
        target_options,
    )


_group_option = click.option(
    "--group",
    "members",
    type=click.IntRange(min=1),
    metavar="MEMBERS",
    help="Through a group of so many, in threads.",
)


@bench.command()
@_bench_options(record_count=500_000)
def producer(**given: Any) -> None:
    """Send records as fast as it goes. Latencies: from send to acknowledgement, with the queue before."""
    _bench(measure_producer, **given)


@bench.command()
@_bench_options(record_count=500_000)
@_group_option
def consumer(members: int | None, **given: Any) -> None:
    """Read records as fast as it goes; without --topic they are sent first, of --size. Latencies: of a poll."""
    measure: Measure = measure_group_consumer if members else measure_consumer
    _bench(_filling(measure) if given["topic_name"] is None else measure, members=members, **given)


@bench.command()
@_bench_options(record_count=2_000)
def latency(**given: Any) -> None:
    """Send one record after another, each when the one before is acknowledged."""
    _bench(measure_latency, **given)


@bench.command("end-to-end")
@_bench_options(record_count=2_000, size_min=STAMP_BYTES)
@_group_option
def end_to_end(members: int | None, **given: Any) -> None:
    """Send one record after another, each when a consumer has the one before. -X sets the producer."""
    _bench(measure_group_end_to_end if members else measure_end_to_end, members=members, **given)


def _filling(measure: Measure) -> Measure:
    """Returns the measurement with records sent before it, for a benchmark that reads."""

    def fill_and_measure(cluster: "ClusterHandle", topic_name: str, load: Load) -> Figures | GroupFigures:
        measure_producer(cluster, topic_name, dataclasses.replace(load, configs={}))
        return measure(cluster, topic_name, load)

    return fill_and_measure


def _bench(
    measure: Measure,
    *,
    target: Target,
    topic_name: str | None,
    partitions: int | None,
    replication_factor: int | None,
    members: int | None = None,
    **fields: Any,
) -> None:
    """`fields` are those of a Load."""
    if topic_name is not None and (partitions or replication_factor):
        raise click.UsageError("--topic is there already; leave out --partitions and --replication-factor")
    load = Load(members=members or 0, **fields)
    handle = target.cluster()
    with _topic(handle, topic_name, partitions or members or 1, replication_factor) as name:
        with working(f"{load.record_count:,} records of {load.size_bytes:,} bytes …"):
            figures = measure(handle, name, load)
    target.report(figures, lambda: _print(f"Cluster {target.name}", figures))


def _print(title: str, figures: Figures | GroupFigures) -> None:
    if isinstance(figures, Figures):
        print_table(title, _COLUMNS, [figures.row()])
        return
    print_table(title, _COLUMNS, [figures.reading.row(), figures.commits.row()])
    members = counted(figures.members, "member")
    click.echo(f"{members} had their partitions {figures.settle_seconds:.2f} s after the first joined")


@contextmanager
def _topic(
    cluster: "ClusterHandle", name: str | None, partitions: int, replication_factor: int | None
) -> Iterator[str]:
    """Yields the given topic, or a new one that is deleted at the end."""
    if name is not None:
        yield name
        return
    from rayka.client.admin.admin import Admin

    name = f"rayka-bench-{secrets.token_hex(4)}"
    with Admin(cluster=cluster) as admin:
        admin.create_topic(name, partitions=partitions, replication_factor=replication_factor)
        try:
            yield name
        finally:
            admin.delete_topic(name)
