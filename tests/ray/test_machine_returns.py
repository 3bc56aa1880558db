"""A machine that comes back as another Ray node: its broker has another actor, whose old handle is of no use, and gets
its leads back; a caller that knew the old actor must find the new one, or what is sent to those leads is refused.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import rayka
from rayka.cluster import Cluster
from rayka.errors import RaykaError
from tests.ray.machines import Machines, homes
from tests.ray.sender import Sender
from tests.ray.support import wait_until
from tests.rays import RayNodes

pytestmark = pytest.mark.ray
PARTITIONS = 4
LOADED = "loaded"
# A machine has room for one broker: both see the disk that is back, and the survivor might get the lost broker, too.
ONE_BROKER_EACH = {
    "broker": {"resources": {"machine": 0.6}},
    "controller": {"resources": {"machine": 0.01}},
}
CONFIG = {
    "default.replication.factor": 2,
    "broker.session.timeout.ms": 3_000,
    "auto.leader.rebalance.enable": False,
}


@pytest.fixture
def machines(rays: RayNodes) -> Iterator[Machines]:
    """Without labels, so that Ray gives up the actors of a machine that is lost."""
    machines = Machines(rays, 2, labelled=())
    yield machines
    machines.close()


def test_a_machine_that_comes_back_leads_again_and_no_send_is_refused(
    machines: Machines, tmp_path: Path
) -> None:
    fields = {
        "name": "returning",
        "brokers": 2,
        "data_dir": str(tmp_path),
        "resources": ONE_BROKER_EACH,
        "config": CONFIG,
    }
    with (
        Cluster.start(**fields) as cluster,
        rayka.Admin(cluster=cluster) as admin,
        new_producer(cluster) as former,
        checked_load(cluster),
    ):
        admin.create_topic("kept", partitions=PARTITIONS)
        send_to_all(former)
        for is_empty in (False, True):
            lost = lose_a_machine(machines, cluster)
            await_leaders(admin, {1, 2} - {lost})
            send_to_all(former)
            await_report(cluster, lost)
            machines.bring_back(is_empty=is_empty)
            if is_empty:
                Cluster.start(**fields, replace=[lost])
            wait_until(lambda: is_in_sync(admin))
            assert homes(cluster)[lost] in machines.ray_node_ids
            admin.elect_leaders()
            await_leaders(admin, {1, 2})
            send_to_all(former)
            with new_producer(cluster) as fresh:
                send_to_all(fresh)
            assert is_in_sync(admin), "no broker left an ISR meanwhile"


@contextmanager
def checked_load(cluster: Cluster) -> Iterator[None]:
    """A producer and a group of one all the while: in the end each acknowledged record is at its offset, in the order
    of its key, and was given to the group.
    """
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(LOADED, partitions=PARTITIONS)
    sender, reader = Sender(cluster, LOADED, pause_s=0.005), GroupReader(cluster)
    for each in (sender, reader):
        each.start()
    try:
        yield
        sender.await_acknowledged(100)
    finally:
        sender.stop()
    try:
        records = sender.check()
        wanted = {(each.partition, each.offset) for each in records}
        wait_until(lambda: wanted <= reader.given)
    finally:
        reader.stop()


class GroupReader(threading.Thread):
    """A group of one that commits what it was given."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="group")
        self._cluster = cluster
        self._is_stopping = threading.Event()
        self.given: set[tuple[int, int]] = set()

    def run(self) -> None:
        options: dict[str, Any] = {"group_id": "readers", "enable_auto_commit": False}
        with rayka.Consumer(
            LOADED, cluster=self._cluster, auto_offset_reset="earliest", **options
        ) as consumer:
            while not self._is_stopping.is_set():
                records = consumer.poll(timeout_ms=200)
                self.given.update((each.partition, each.offset) for each in records)
                if records:
                    with suppress(RaykaError):  # another generation, or nobody coordinates; it is given again
                        consumer.commit()

    def stop(self) -> None:
        self._is_stopping.set()
        self.join(60)
        assert not self.is_alive()


def await_report(cluster: Cluster, lost: int) -> None:
    """Waits until the cluster's status says why the supervisor does not bring the broker back."""

    def details() -> list[str]:
        return [each.detail for each in cluster.describe().nodes if each.node_id == lost]

    wait_until(lambda: any("none of 1 Ray nodes with" in each for each in details()))


def new_producer(cluster: Cluster) -> rayka.Producer:
    """Gives a record up sooner than a leader gives up a follower that lags."""
    return rayka.Producer(cluster=cluster, acks="all", delivery_timeout_ms=25_000)


def lose_a_machine(machines: Machines, cluster: Cluster) -> int:
    """Loses the machine without the controller; the broker that was on it."""
    with_controller = homes(cluster)[3001]
    (other,) = set(machines.ray_node_ids) - {with_controller}
    (lost,) = machines.lose(cluster, other)
    return lost


def send_to_all(producer: rayka.Producer, count: int = 25) -> None:
    """Records to each partition; raises what a send was refused with."""
    for number in range(count):
        sent = [producer.send("kept", b"%d" % number, partition=each) for each in range(PARTITIONS)]
        for each in sent:
            each.result(60)


def await_leaders(admin: rayka.Admin, wanted: set[int]) -> None:
    """Waits until these brokers lead the partitions."""
    wait_until(lambda: {each.leader_id for each in admin.describe_topic("kept").partitions} == wanted)


def is_in_sync(admin: rayka.Admin) -> bool:
    return all(sorted(each.isr) == [1, 2] for each in admin.describe_topic("kept").partitions)
