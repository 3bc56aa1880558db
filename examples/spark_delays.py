"""Spark reads a topic: python examples/spark_delays.py

Sends a few flights as JSON and lets PySpark, started on the same Ray by RayDP, compute the mean delay by carrier.
Needs the extra `rayka[spark]` and Java 17.
"""

import tempfile

from pyspark.sql import functions

import rayka
import rayka.spark

FLIGHTS = [
    {"carrier": "UA", "dep_delay": 2},
    {"carrier": "UA", "dep_delay": 4},
    {"carrier": "AA", "dep_delay": -3},
    {"carrier": "AA", "dep_delay": None},
]


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        rayka.Cluster.start(name="example", data_dir=directory) as cluster,
    ):
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("flights", partitions=2)

        with rayka.Producer(cluster=cluster, value_serializer="json") as producer:
            for flight in FLIGHTS:
                producer.send("flights", key=flight["carrier"].encode(), value=flight)

        spark = rayka.spark.init(app_name="delays", executors=1, cores=2, memory="1g")
        try:
            frame = (
                spark.read.format("rayka").option("cluster", "example").option("subscribe", "flights").load()
            )
            flight = functions.from_json(frame.value.cast("string"), "carrier string, dep_delay int")
            delays = frame.select(flight.alias("flight")).groupBy("flight.carrier")
            delays.agg(
                functions.count("*").alias("flights"), functions.avg("flight.dep_delay").alias("delay")
            ).show()
        finally:
            rayka.spark.stop()


if __name__ == "__main__":
    main()
