"""The demo's Spark job: flights and mean departure delay by carrier, from the topic, through RayDP."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import rayka.spark
from rayka.cli.flights import CarrierDelay, in_order
from rayka.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def delays_by_spark(cluster: Cluster, topic: str, directory: str) -> list[CarrierDelay]:
    """Starts Spark on the cluster's Ray, asks it, and stops it; its JVM's chatter goes to a file in the directory."""
    with _standard_error_in(Path(directory) / "spark.log"):
        try:
            session = rayka.spark.init("rayka-demo", cores=2, configs={"spark.sql.shuffle.partitions": "2"})
            return query(session, cluster.name, topic)
        finally:
            rayka.spark.stop()


def query(session: "SparkSession", cluster_name: str, topic: str) -> list[CarrierDelay]:
    """The table, in the order of `in_order`."""
    from pyspark.sql import functions

    frame = (
        session.read.format("rayka")
        .option("cluster", cluster_name)
        .option("subscribe", topic)
        .option("columns", "value")
        .load()
    )
    flight = functions.from_json(frame.value.cast("string"), "carrier string, dep_delay int")
    table = (
        frame.select(flight.alias("flight"))
        .groupBy("flight.carrier")
        .agg(functions.count("*").alias("flights"), functions.avg("flight.dep_delay").alias("delay"))
    )
    return in_order(CarrierDelay(row.carrier, row.flights, row.delay) for row in table.collect())


@contextmanager
def _standard_error_in(path: Path) -> Iterator[None]:
    """Sends what this process and its children write to standard error to a file instead."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
