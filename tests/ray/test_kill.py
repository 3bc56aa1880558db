"""`kill -9` of the broker's process while a producer runs: the promise that everything else serves."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import rayka
from rayka.cluster import Cluster
from tests.ray.support import broker_pid, is_alive, kill

pytestmark = pytest.mark.ray
KILLS = 5
PARTITIONS = 3


class _Sender(threading.Thread):
    """Sends numbers until it is told to stop, and keeps what was acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="sender")
        self._producer = rayka.Producer(cluster=cluster, acks="all", linger_ms=2)
        self._has_new = threading.Condition()
        self._is_stopping = False
        self.acknowledged: list[int] = []
        self.failed: list[BaseException] = []

    def run(self) -> None:
        with self._producer:
            number = 0
            while not self._is_stopping:
                self._send(number)
                number += 1
                if number % 200 == 0:
                    self._producer.flush(timeout=60)

    def _send(self, number: int) -> None:
        def on_delivery(error: BaseException | None, metadata: rayka.RecordMetadata | None) -> None:
            with self._has_new:
                if error is None:
                    self.acknowledged.append(number)
                else:
                    self.failed.append(error)
                self._has_new.notify_all()

        self._producer.send("numbers", b"%d" % number, key=b"%d" % (number % 50), on_delivery=on_delivery)

    def await_acknowledged(self, count: int) -> None:
        """Waits until so many more records are acknowledged, which takes a broker that serves."""
        with self._has_new:
            wanted = len(self.acknowledged) + count
            assert self._has_new.wait_for(lambda: len(self.acknowledged) >= wanted, timeout=60)

    def stop(self) -> None:
        self._is_stopping = True
        self.join(90)
        assert not self.is_alive()


def test_five_kills_of_the_broker_lose_no_acknowledged_record(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start(data_dir=str(tmp_path))
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("numbers", partitions=PARTITIONS, configs={"segment.bytes": "65536"})
    sender = _Sender(cluster)
    sender.start()
    killed = []
    try:
        for _ in range(KILLS):
            sender.await_acknowledged(300)
            killed.append(broker_pid(cluster))
            kill(killed[-1])
        sender.await_acknowledged(300)
    finally:
        sender.stop()

    assert len(set(killed)) == KILLS, "each time another process"
    assert not any(is_alive(pid) for pid in killed)
    assert sender.failed == []
    read = [int(record.value) for record in rayka.read("numbers", cluster=cluster)]
    assert set(sender.acknowledged) - set(read) == set()
    offsets = [(record.partition, record.offset) for record in rayka.read("numbers", cluster=cluster)]
    assert len(offsets) == len(set(offsets)) == len(read), "no offset twice, and the log stays as it is"
