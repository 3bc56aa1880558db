"""A compacted topic as a table: what a consumer rebuilds of it is the dictionary of its writer, whatever was killed."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import rayka
from rayka.client.producer.delivery_future import DeliveryFuture
from rayka.cluster import Cluster
from tests.ray.support import broker_pid, kill, wait_until

pytestmark = pytest.mark.ray
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}
KEYS, RECORDS, KILLS = 50, 1_500, 2
Table = dict[bytes, bytes]


def test_a_table_that_is_rebuilt_after_kills_is_its_writers_dictionary(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:  # F22, F23, F26
    """The broker is killed while it compacts and its writer writes; of many records of a key few are left."""
    cluster = start(data_dir=str(tmp_path), config={"log.cleaner.backoff.ms": 20})
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("table", partitions=2, configs=CONFIGS)
    table: Table = {}
    with rayka.Producer(cluster=cluster, acks="all", batch_size=5_000) as producer:
        for number in range(KILLS + 1):
            sent = _changes(producer, table, Random(number), RECORDS // 2)
            if number < KILLS:
                kill(broker_pid(cluster))
            sent += _changes(producer, table, Random(-1 - number), RECORDS // 2)
            for future in sent:
                future.result(timeout=60)
            assert _rebuilt(_records(cluster)) == table
            wait_until(lambda: len(_records(cluster)) < RECORDS // 2)
            assert _rebuilt(_records(cluster)) == table


def _changes(producer: rayka.Producer, table: Table, random: Random, count: int) -> list[DeliveryFuture]:
    """Sends so many and makes them in the table as well: a key gets a value, or goes."""
    sent = []
    for _ in range(count):
        key = b"key-%d" % random.randrange(KEYS)
        value = random.randbytes(60) if random.random() < 0.8 else None
        sent.append(producer.send("table", value, key=key))
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return sent


def _records(cluster: Cluster) -> list[rayka.Record]:
    return list(rayka.read("table", cluster=cluster))


def _rebuilt(records: list[rayka.Record]) -> Table:
    table: Table = {}
    for record in records:
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table
