"""A broker that is killed again and again while a producer runs loses nothing that it acknowledged, and has nothing
twice.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest

import rayka
import rayka.testing
from rayka.client.producer.delivery_future import DeliveryFuture
from rayka.errors import RaykaError
from rayka.testing import InProcessCluster
from tests.testing.waiting import wait_until

BROKER, CONTROLLER, PARTITIONS, KILLS = 1, 3001, 3, 5


class Sender(Thread):
    """Sends numbers until it is told to stop; `acknowledged` has those whose futures ended well."""

    def __init__(self, cluster: InProcessCluster) -> None:
        super().__init__(name="sender")
        self._cluster = cluster
        self._is_over = Event()
        self.acknowledged: set[bytes] = set()

    def run(self) -> None:
        with rayka.Producer(cluster=self._cluster, linger_ms=1, retry_backoff_ms=5) as producer:
            number = 0
            while not self._is_over.is_set():
                futures = [
                    (value, producer.send("orders", value=value, partition=n % PARTITIONS))
                    for n, value in ((n, b"%d" % n) for n in range(number, number + 100))
                ]
                number += 100
                producer.flush(timeout=30)
                for value, future in futures:
                    try:
                        future.result(timeout=30)
                    except RaykaError:
                        continue  # not acknowledged: it may be in the log, or not
                    self.acknowledged.add(value)

    def stop(self) -> None:
        self._is_over.set()
        self.join()


@contextmanager
def sending(cluster: InProcessCluster) -> Iterator[Sender]:
    sender = Sender(cluster)
    sender.start()
    try:
        yield sender
    finally:
        sender.stop()


def until_more_than(sender: Sender, count: int) -> None:
    while len(sender.acknowledged) <= count:
        sender.join(0.001)
        assert sender.is_alive()


def test_no_acknowledged_record_is_lost_or_repeated_and_each_partition_keeps_its_order() -> None:
    with rayka.testing.cluster() as cluster:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("orders", partitions=PARTITIONS)
        with sending(cluster) as sender:
            for kill in range(KILLS):
                until_more_than(sender, kill * 200)
                cluster.kill(BROKER)
                if kill % 2:
                    cluster.restart(CONTROLLER)
                cluster.restart(BROKER)
            until_more_than(sender, len(sender.acknowledged))
        read = list(rayka.read("orders", cluster=cluster))
        assert sender.acknowledged <= {record.value for record in read}
        for partition in range(PARTITIONS):
            numbers = [int(record.value) for record in read if record.partition == partition]
            assert numbers == sorted(set(numbers))  # C3, C11: each once, in order


def test_a_wait_for_a_delivery_that_times_out_names_the_last_error() -> None:
    def said(future: DeliveryFuture) -> str:
        with pytest.raises(TimeoutError) as raised:
            future.result(timeout=0.05)
        return str(raised.value)

    with rayka.testing.cluster() as cluster, rayka.Producer(cluster=cluster) as producer:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("orders", partitions=1)
        producer.send("orders", b"one").result(timeout=30)
        cluster.kill(BROKER)
        future = producer.send("orders", b"two")
        wait_until(
            lambda: "1 records not acknowledged" in said(future) and "; the last error: " in said(future)
        )
        cluster.restart(BROKER)
        future.result(timeout=60)
