"""Spark reads a topic, beside the same query over a Python data source that yields ready Arrow batches.

Both run in one RayDP session with one executor of two cores, in turn. The first query, which starts Spark's Python
workers, is reported by itself.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa

import rayka
from benchmarks.harness import Bar, Measure, Row, compare
from benchmarks.limits import payloads, seconds
from benchmarks.stage import local_ray, running_cluster

VALUE_BYTES = 100
PARTITIONS = 6
BATCH_RECORDS = 10_000
BATCHES_A_PARTITION, QUICK_BATCHES = 84, 10
TOPIC = "benchmark"
QUERY = ("count(*) records", "sum(length(value)) bytes", "max(offset) last")
BAR = Bar(0.6)
LIMIT = "the same query over a Python data source of ready Arrow batches of 10,000 rows"


def run(*, quick: bool = False) -> list[Row]:
    batch_count = QUICK_BATCHES if quick else BATCHES_A_PARTITION
    with local_ray() as directory, running_cluster(directory) as cluster:
        _fill(cluster, batch_count)
        started: list[Any] = []
        start_seconds = seconds(lambda: started.append(rayka.spark.init("benchmark", cores=2, memory="2g")))
        try:
            rows = _measure(started[0], cluster, batch_count, rounds=2 if quick else 7)
        finally:
            rayka.spark.stop()
    return [Row(what="Spark session on Ray, start", value=start_seconds, unit="s"), *rows]


def _measure(session: Any, cluster: rayka.Cluster, batch_count: int, *, rounds: int) -> list[Row]:
    for source in (ready_batches(batch_count), without_files()):
        session.dataSource.register(source)
    record_count = batch_count * BATCH_RECORDS * PARTITIONS
    settings = f"{record_count / 1e6:g} M x {VALUE_BYTES} B, 2 cores"
    options = {"cluster": cluster.name, "rayAddress": cluster.ray_address, "subscribe": TOPIC}

    def rate(source: str, **more: str) -> Measure:
        return partial(_rate, session.read.format(source).options(**more), record_count)

    two_columns = rate("rayka", columns="value,offset", **options)
    first_seconds = record_count / two_columns()
    rows = [Row(what="Spark batch read, first query", value=first_seconds, unit="s", settings=settings)]
    for what, measure, bar in (
        ("Spark batch read", two_columns, BAR),
        ("Spark batch read, seven columns", rate("rayka", **options), None),
        (
            "Spark batch read, all through the broker",
            rate("fetched", columns="value,offset", **options),
            None,
        ),
    ):
        found = compare(measure, rate("ready"), rounds=rounds)
        row = Row(what=what, settings=settings, value=found.value, unit="records/s", limit=found.limit,
                  limit_what=LIMIT, share=found.share, bar=bar)  # fmt: skip
        rows.append(row)
    return rows


def _rate(reader: Any, record_count: int) -> float:
    """Records/s of the query."""
    found: list[Any] = []
    taken = seconds(lambda: found.append(reader.load().selectExpr(*QUERY).collect()[0]))
    assert (found[0].records, found[0].bytes) == (record_count, record_count * VALUE_BYTES), found
    return record_count / taken


def ready_batches(batch_count: int) -> type:
    """A data source `ready` with two columns, as many partitions as the topic, and one batch that it yields again and
    again. A local class, so that it travels to Spark's workers by value."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    partitions, rows, value_bytes = PARTITIONS, BATCH_RECORDS, VALUE_BYTES

    class ReadyReader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(index) for index in range(partitions)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import os

            import numpy as np
            import pyarrow as pa

            offsets = pa.py_buffer(np.arange(0, value_bytes * rows + 1, value_bytes, dtype=np.int32))
            values = pa.Array.from_buffers(
                pa.binary(), rows, [None, offsets, pa.py_buffer(os.urandom(value_bytes * rows))]
            )
            for index in range(batch_count):
                numbers = pa.array(np.arange(index * rows, (index + 1) * rows))
                yield pa.RecordBatch.from_arrays([values, numbers], names=["value", "offset"])

    class ReadySource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def schema(self) -> str:
            return "value binary, offset bigint"

        def reader(self, schema: Any) -> ReadyReader:
            return ReadyReader()

    return ReadySource


def without_files() -> type:
    """The source `fetched`: `rayka`, but its tasks are told of no files, as on a machine that has none."""
    from rayka.spark.source import RangePartition, RaykaDataSource, RaykaReader

    class FetchingReader(RaykaReader):
        def partitions(self) -> list[Any]:
            return [RangePartition(each.offsets, ()) for each in super().partitions()]

    class FetchingSource(RaykaDataSource):
        @classmethod
        def name(cls) -> str:
            return "fetched"

        def reader(self, schema: Any) -> FetchingReader:
            reader = super().reader(schema)
            reader.__class__ = FetchingReader
            return reader

    return FetchingSource


def _fill(cluster: rayka.Cluster, batch_count: int) -> None:
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS)
    values = pa.array(payloads(BATCH_RECORDS, VALUE_BYTES))
    batches = [
        pa.record_batch(
            {"value": values, "partition": pa.repeat(pa.scalar(partition, pa.int32()), BATCH_RECORDS)}
        )
        for partition in range(PARTITIONS)
    ]
    with rayka.Producer(cluster=cluster) as producer:
        for batch in batches * batch_count:
            producer.send_batch(TOPIC, batch)
