"""A cluster whose nodes are restarted under control, one after the other, each when the one before is in sync again:
a producer and a group go on. No record is refused, each is in the log once, and the group gets all of them (H5).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest

import rayka
import rayka.testing
from rayka import Admin, Consumer, Producer
from rayka.node.controller_node import ControllerNode
from rayka.testing import InProcessCluster
from tests.testing.waiting import WAIT_S, wait_until

BROKERS, CONTROLLERS, PARTITIONS = (1, 2, 3), (3001, 3002, 3003), 3
OFFSETS_TOPIC = "__consumer_offsets"
CONFIG = {
    "broker.heartbeat.interval.ms": 50,
    "replica.fetch.backoff.ms": 20,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.num.partitions": PARTITIONS,
    "group.initial.rebalance.delay.ms": 0,
}


class Work:
    """A producer and a member of a group in threads of their own; an error ends its thread and stays in `errors`."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self._cluster = cluster
        self._is_over = Event()
        self.sent: list[int] = []
        self.received: Counter[int] = Counter()
        self.errors: list[BaseException] = []
        self.sender, self.receiver = self.threads = [
            Thread(target=self._guard, args=(each,), daemon=True) for each in (self._send, self._receive)
        ]

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)

    def _send(self) -> None:
        with Producer(self._cluster, linger_ms=1, retry_backoff_ms=5) as producer:
            while not self._is_over.wait(0.005):
                number = len(self.sent)
                producer.send("orders", b"%d" % number, partition=number % PARTITIONS).result(WAIT_S)
                self.sent.append(number)

    def _receive(self) -> None:
        options = {"group_id": "readers", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        with Consumer("orders", cluster=self._cluster, **options) as consumer:
            while self.sender.is_alive() or len(self.received) < len(self.sent):
                self.received.update(int(each.value or b"") for each in consumer.poll(timeout_ms=50))
                consumer.commit()

    def go_on(self) -> None:
        """Returns when records were sent and received that were not there before."""
        sent, received = len(self.sent), len(self.received)
        wait_until(
            lambda: bool(self.errors) or (len(self.sent) > sent + 10 and len(self.received) > received + 10)
        )
        assert not self.errors

    def end(self) -> None:
        self._is_over.set()
        for each in self.threads:
            each.join(WAIT_S)
            assert not each.is_alive()


@contextmanager
def working(cluster: InProcessCluster) -> Iterator[Work]:
    work = Work(cluster)
    for each in work.threads:
        each.start()
    try:
        yield work
    finally:
        work.end()


def led_at_the_end(cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """How many partitions each broker still led, for the active controller, when its process ended; filled on."""
    nodes, led = cluster.nodes, dict[int, int]()
    detach = nodes.switch.detach

    def note(node_id: int) -> None:
        for each in list(nodes.running.values()):
            if isinstance(each.node, ControllerNode) and each.node.is_active and node_id in BROKERS:
                observed = each.node.observed
                assert observed is not None
                led[node_id] = sum(found.leader_id == node_id for _, found in observed.image().partitions())
        detach(node_id)

    monkeypatch.setattr(nodes.switch, "detach", note)
    return led


def is_in_sync(admin: Admin) -> bool:
    topics = (admin.describe_topic(each) for each in ("orders", OFFSETS_TOPIC))
    return all(sorted(each.isr) == list(BROKERS) for topic in topics for each in topic.partitions)


def test_all_nodes_restart_one_by_one_while_a_producer_and_a_group_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # H5
    with (
        rayka.testing.cluster(brokers=3, controllers=3, config=CONFIG) as cluster,
        Admin(cluster) as admin,
    ):
        admin.create_topic("orders", partitions=PARTITIONS)
        led = led_at_the_end(cluster, monkeypatch)
        with working(cluster) as work:
            work.go_on()
            for broker_id in BROKERS:
                wait_until(lambda: is_in_sync(admin))
                cluster.restart(broker_id)
                assert led[broker_id] == 0  # all were handed over before
                work.go_on()
            active = cluster.await_active_controller()
            for controller_id in (*(each for each in CONTROLLERS if each != active), active):
                cluster.restart(controller_id)
                work.go_on()
        assert not work.errors
        read = Counter(int(each.value or b"") for each in rayka.read("orders", cluster=cluster))
        assert read == Counter(work.sent)
        assert set(work.received) == set(read)
