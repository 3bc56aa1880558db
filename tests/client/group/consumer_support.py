"""Consumers of a group on the real nodes in this process, polled in turn by one thread."""

import time
from collections.abc import Callable
from itertools import count
from typing import Any

import rayka
from rayka import Consumer, Producer, Record, TopicPartition
from rayka.testing import InProcessCluster
from tests.testing.waiting import WAIT_S

_numbers = count()
QUICK = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 100}


def new_topic(cluster: InProcessCluster, partitions: int = 4) -> str:
    name = f"flights-{next(_numbers)}"
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(name, partitions=partitions)
    return name


def send(cluster: InProcessCluster, topic: str, count_each: int = 10, partitions: int = 4) -> None:
    """So many more records in each partition; a value says which one it is."""
    with Producer(cluster=cluster) as producer:
        for partition in range(partitions):
            for number in range(count_each):
                producer.send(topic, b"%d-%d" % (partition, number), partition=partition)


class Told:
    """A consumer of a group with what its callbacks were told and what it has read."""

    def __init__(self, cluster: InProcessCluster, group_id: str, *, topic: str = "", **options: Any) -> None:
        given = {
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 50,
            "max_poll_records": 50,
            **options,
        }
        self.consumer: Consumer = Consumer(cluster=cluster, group_id=group_id, **given)
        self.told: list[str] = []
        self.records: list[Record] = []
        if topic:
            self.subscribe(topic)

    def subscribe(self, *topics: str, **more: Any) -> None:
        self.consumer.subscribe(
            topics, on_assign=self._note("assigned"), on_revoke=self._note("revoked"), on_lost=self._note("lost"),
            **more,
        )  # fmt: skip

    def _note(self, what: str) -> Callable[[list[TopicPartition]], None]:
        return lambda partitions: self.told.append(
            f"{what} {' '.join(str(each.partition) for each in sorted(partitions))}".strip()
        )

    @property
    def owned(self) -> list[int]:
        return sorted(each.partition for each in self.consumer.assignment())

    def poll(self, timeout_ms: float = 20) -> None:
        self.records += self.consumer.poll(timeout_ms)

    @property
    def values(self) -> list[bytes]:
        return sorted(each.value for each in self.records)


def poll_until(holds: Callable[[], bool], *members: Told) -> None:
    """The members poll in turn."""
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, [(each.told, each.owned) for each in members]
        for each in members:
            each.poll()
