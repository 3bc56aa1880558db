"""One Spark session, on the Ray that all tests share, for all tests here: it takes half a minute to start."""

import pytest

import rayka
import rayka.spark
from rayka.spark.session import SHORT_JOB
from rayka_demo.flights import flight_records, load_flights

FLIGHTS_PARTITIONS = 6


@pytest.fixture(scope="session")
def spark(cluster):
    """A session on that Ray; the format `rayka` is registered with its address."""
    session = rayka.spark.init("tests", cores=2, configs=SHORT_JOB)
    yield session
    rayka.spark.stop()


@pytest.fixture(scope="session")
def admin(cluster):
    with rayka.Admin(cluster=cluster) as admin:
        yield admin


@pytest.fixture(scope="session")
def produce(cluster):
    """Sends records, each a dict of what `Producer.send` takes, and returns when they are acknowledged."""

    def send_all(topic, records, **producer_options):
        with rayka.Producer(cluster=cluster, **producer_options) as producer:
            for future in [producer.send(topic, **record) for record in records]:
                future.result(timeout=120)

    return send_all


@pytest.fixture(scope="session")
def read(spark, cluster):
    """The frame of a topic, with further options as keywords."""

    def load(topic, **options):
        return spark.read.format("rayka").options(cluster=cluster.name, subscribe=topic, **options).load()

    return load


@pytest.fixture(scope="session")
def flights(cluster, admin):
    """The topic `flights` with every flight of 2013; gives them as they are in the CSV."""
    table = load_flights()
    admin.create_topic("flights", partitions=FLIGHTS_PARTITIONS, configs={"retention.ms": -1})
    with rayka.Producer(cluster=cluster) as producer:
        for batch in flight_records(table).to_batches(max_chunksize=20_000):
            producer.send_batch("flights", batch)
    return table
