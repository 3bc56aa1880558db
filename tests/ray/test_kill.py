"""`kill -9` of the only broker's process while a producer runs: the promise that everything else serves."""

from collections.abc import Callable
from pathlib import Path

import pytest

import rayka
from rayka.cluster import Cluster
from tests.ray.sender import Sender
from tests.ray.support import broker_pid, is_alive, kill

pytestmark = pytest.mark.ray
KILLS = 5


def test_five_kills_of_the_broker_lose_no_acknowledged_record(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start(data_dir=str(tmp_path))
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("numbers", partitions=3, configs={"segment.bytes": "65536"})
    sender = Sender(cluster, "numbers")
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
    sender.check()
