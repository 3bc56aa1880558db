"""The demo's Spark job: flights and mean departure delay by carrier, from the topic, through RayDP."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import rayka.spark
from rayka.errors import RaykaError, UnavailableError
from rayka.spark.session import SHORT_JOB
from rayka_demo.flights import CarrierDelay, in_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LINES_SHOWN = 3


@contextmanager
def demo_spark(directory: str) -> Iterator["SparkSession"]:
    """A session on the Ray of this process; the chatter of its JVM goes to a file in the directory.

    Raises UnavailableError when Spark does not start or fails, with the last that it said.
    """
    log = Path(directory) / "spark.log"
    with _standard_error_in(log):
        try:
            yield rayka.spark.init("rayka-demo", cores=2, configs=SHORT_JOB)
        except RaykaError:
            raise
        except Exception as error:
            said = log.read_text(errors="replace").strip().splitlines()[-_LINES_SHOWN:]
            reason = str(error).strip().partition("\n")[0]
            raise UnavailableError(
                f"Spark failed: {reason} | {' | '.join(said)}; see `rayka doctor`"
            ) from error
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
